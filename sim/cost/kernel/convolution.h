// Achieved rates of convolutions, from measured tables, by class of kernel and phase.
#pragma once

#include "cluster/device.h"
#include "core/data_type.h"
#include "model/operators/cost.h"

namespace sim {

// Share of the device's peak that convolutions of this kind reach when arithmetic binds. Above 1 where the
// library saves multiplications (fp32, 3x3, stride 1: Winograd, arXiv 1509.09308). Devices without a table
// take V100's, times the ratio of what products reach of the peaks. A code that does not look for the fastest
// algorithm (is_tuned = false) gets none that saves multiplications: 3x3 convolutions run as those of other
// sizes do.
double convolution_efficiency(const model::Kernel& kernel, model::Phase phase,
                              const cluster::DeviceSpec& device, core::DataType compute, bool is_tuned);
// Share of memory bandwidth they reach when memory binds.
double convolution_memory_efficiency(const cluster::DeviceSpec& device, core::DataType compute);

}  // namespace sim
