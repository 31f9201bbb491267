// The time of one matrix product on the device.
#pragma once

#include "cluster/device.h"
#include "core/data_type.h"
#include "model/operators/cost.h"
#include "sim/cost/constants.h"

namespace sim {

// The measured curve where the profile has one. Else launch + max(arithmetic, memory); on GPUs from sm80
// whose multiprocessors are known, arithmetic goes by tiles and waves; a batched product whose depth or width
// is no multiple of 8 runs without tensor cores.
core::Seconds product_time(const model::Kernel& kernel, const cluster::DeviceSpec& device,
                           core::DataType compute, const CostConstants& constants);

// Whether products are priced by tiles and waves there.
bool has_tiles(const cluster::DeviceSpec& device);

// Rate under sustained load over that of the short runs behind the curves.
double sustained_rate(const cluster::DeviceSpec& device, core::DataType compute,
                      const CostConstants& constants);
// Achieved bandwidth of memory-bound kernels.
core::BytesPerSecond memory_rate(const cluster::DeviceSpec& device, const CostConstants& constants);

}  // namespace sim
