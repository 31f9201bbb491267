// One accelerator (or CPU core) as the cost model sees it. Every figure comes from a profile that names its
// source and date.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/data_type.h"
#include "core/units.h"

namespace cluster {

// t = launch + max(flops / (compute_efficiency * peak), bytes / (memory_efficiency * memory_bandwidth)); see
// docs/accuracy.md.
struct MatrixProductCurve {
    double compute_efficiency = 0;  // of peak, in (0, 1]
    double memory_efficiency = 0;   // of memory bandwidth, in (0, 1]
    core::Seconds launch;           // fixed time of one kernel on the device
    struct Point {  // measured square-equivalent size -> achieved rate; interpolated in log(flops); empty
                    // when only the fit exists
        core::Flops flops;
        core::FlopsPerSecond rate;
    };
    std::vector<Point> points;
};

// Time of an operator measured on this very machine (`smexec profile`), keyed by its signature
// (model/operators/signature.h): wins over every curve.
struct MeasuredOperator {
    std::string signature;
    core::Seconds forward, backward_input, backward_weight;
};

enum class LinkKind { nvlink, pcie, host_interconnect, network, memory };

// One physical link of a kind, as a profile states it.
struct LinkSpec {
    std::string name;  // "nvlink", "pcie", "qpi"
    LinkKind kind = LinkKind::pcie;
    core::BytesPerSecond bandwidth;  // per direction, as the vendor states it
    double efficiency = 1.0;         // achieved share of it
    core::Seconds latency;           // a route's latency is the sum over its links
    bool is_full_duplex = true;
    int count = 1;  // links of this kind that a device has
};

struct DeviceSpec {
    std::string name;            // "A100-SXM4-40GB"
    std::string architecture;    // "sm80", "x86-64"
    core::Bytes memory;          // usable by a process
    core::Bytes nominal_memory;  // as the vendor states it; zero when the profile does not
    core::BytesPerSecond memory_bandwidth;
    double memory_efficiency = 0.85;  // of streaming kernels; every profile states its own
    core::Seconds kernel_launch;      // device-side floor of one small kernel
    core::Seconds host_dispatch;      // CPU time to launch one kernel from an eager framework
    std::map<core::DataType, core::FlopsPerSecond>
        peak;  // dense; a missing precision is refused, not guessed
    std::map<core::DataType, MatrixProductCurve> matrix_product;
    core::Bytes context_memory;                                          // CUDA context
    core::Bytes first_communicator_memory, further_communicator_memory;  // NCCL
    double fragmentation = 0;                                            // of allocated bytes
    double clock_share = 1;  // of the clocks that a board of this chip without a lower power limit holds
                             // under load; rates of products include it
    int multiprocessors = 0;
    bool has_concurrent_streams =
        true;  // false: a rank performs its instructions one after another (CPU ranks)
    std::vector<MeasuredOperator> measured_operators;
    std::vector<LinkSpec>
        links;  // links that the device offers ("nvlink", "pcie"); an instance may wire fewer
    bool has_gpudirect = false;  // a network card may read its memory, where the instance allows it
};

}  // namespace cluster
