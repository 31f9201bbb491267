// Samples in a drawn order.
#pragma once

#include <cstdint>
#include <memory>

#include "exec/data/data_source.h"

namespace exec {

// The place of `index` in a drawn order of [0, count): a bijection, by arithmetic alone. count > 0.
std::int64_t permuted(std::int64_t index, std::int64_t count, std::uint64_t key);

// Each epoch (samples() of them) comes in an order of its own, which follows from the seed and the number of
// the epoch: the same whatever the plan, and after a resumption. `source` has a number of samples.
std::shared_ptr<const DataSource> shuffled(std::shared_ptr<const DataSource> source, std::uint64_t seed);

}  // namespace exec
