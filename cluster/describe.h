// Words for `smsim hardware [NAME]`: the applications only print them.
#pragma once

#include <string>
#include <vector>

#include "cluster/topology.h"
#include "core/value.h"

namespace cluster {

// One line an instance, with a heading: devices, memory, links inside the node, network, price.
std::string describe_list(const std::vector<InstanceType>& instances);
core::Value list_to_value(const std::vector<InstanceType>& instances);
// Everything known of one instance with its sources, what is assumed, the matrix of routes between its devices.
std::string describe(const InstanceType& instance);
core::Value describe_to_value(const InstanceType& instance);

}  // namespace cluster
