// smsim calibrate --nccl-tests: a cluster's network from the output of nccl-tests.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

namespace apps {

bool calibrates_network(const std::vector<std::string>& arguments);
int run_calibrate_network(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err);

}  // namespace apps
