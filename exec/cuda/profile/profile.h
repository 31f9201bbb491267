// Measures a GPU with the backend's own calls, for the simulator.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cluster/topology.h"
#include "exec/cuda/machine.h"
#include "exec/data.h"
#include "model/model_fwd.h"
#include "schedule/plan/plan.h"

namespace exec::cuda {

// What a plan's operators take on the first GPU of this host.
struct GpuPlanProfile {
    std::vector<cluster::MeasuredOperator>
        operators;  // one entry a signature; none with tensor parallelism, whose shares need their group
    core::BytesPerSecond
        update_bandwidth;  // of the optimizer step, counting gradient, state and parameter traffic
    core::Bytes overhead;  // memory held beside the arrays: context, libraries, scratch
};
GpuPlanProfile profile_plan(const schedule::Plan& plan, const model::ModelGraph& graph,
                            std::shared_ptr<const DataSource> data, bool measures_products = false);
void apply(const GpuPlanProfile& profile, cluster::InstanceType& instance);

// One GPU: products over sizes and layouts in every precision it has, attention, streaming kernels, launches,
// copies from and to the host.
struct GpuProfile {
    struct Rate {
        std::string what;  // "product bf16 4096 x 4096 x 4096 nt"
        core::Flops flops;
        core::Bytes bytes;
        core::Seconds time;  // median
    };
    std::vector<Rate> rates;
    std::map<core::DataType, std::vector<cluster::MatrixProductCurve::Point>>
        products;                         // of all layouts, the mean rate
    core::BytesPerSecond copy_bandwidth;  // device to device, read and written bytes
    core::Seconds kernel, launch;         // smallest kernel on the device; its launch on the host
    core::BytesPerSecond to_device, to_host;
    core::Seconds copy_latency;
    double worst_kernel_share = 1;  // of our memory-bound kernels, the least share of the copy bandwidth
    std::string worst_kernel;
};
GpuProfile profile_gpu(Machine& machine);
void apply(const GpuProfile& profile, cluster::InstanceType& instance, const std::string& date);

}  // namespace exec::cuda
