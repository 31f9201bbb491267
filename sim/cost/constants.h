// The constants of the cost model that no datasheet or microbenchmark states: each with its meaning, where it
// comes from, and the range in which it is physical. docs/accuracy.md lists them; bench/calibration refits
// them with groups of measurements left out.
#pragma once

#include <span>
#include <string_view>

namespace sim {

struct CostConstants {
    // Matrix products on sm80 and later, by tiles (sim/cost/kernel/product.h).
    double full_tile_rate = 1.13;
    double tile_fill_depth = 128;
    // Share of a last wave's idle tiles that costs nothing: kernels that stream tiles begin the next ones.
    double wave_softness = 0.5;
    // Single products on tensor cores whose rows do not begin on 16 bytes (sim/cost/kernel/product.cpp).
    double unaligned_rate = 0.5;

    // Rate under sustained load over the rate of the short runs the curves were measured in (power and
    // clocks).
    double sustained_half = 0.93;
    // A100 under random operands holds its rate in calls of 10 ms and more: 0.998 of what the tiles say
    // (AIConfigurator's products, 2026). Nodes of eight busy boards are a little slower.
    double sustained_ampere = 0.94;
    // H100 and H200, whose datasheets (NVIDIA, 2023 and 2024) say 700 W for the SXM boards: they are below
    // the short runs' rate by more than A100 is, as if they met that limit sooner. The rate is fitted, on
    // fsdp_mpt_h100 and llmc; that power is why is inferred.
    double sustained_hopper = 0.85;
    // fp32 and tf32: libraries of 2020 and later are faster than those of the tables (CUDA 10.1).
    double sustained_full = 1.04;
    // Devices of one kind differ in the clock they hold; a synchronous step goes at the pace of the slowest.
    // Standard deviation of their rates.
    double device_spread = 0.012;
    double fp8_rate = 1.0;
    // Convolutions of libraries of 2020 and later over those of the tables (cuDNN 7.6), which offsets part of
    // the loss under sustained load (sustained_half and its kin, in every precision).
    double convolution_rate = 1.25;

    // Kernels of real models against the streaming benchmark of the device profile.
    double memory_rate = 0.86;

    // FlashAttention of 2022 (version 1 and its Triton sibling) against version 2.
    double first_flash_rate = 0.52;

    // Networks: achieved share of the profile's rate by transport, and its decay with the number of nodes.
    double rate_infiniband = 0.78, rate_roce = 0.71, rate_omnipath = 0.31, rate_tcp = 1.0, rate_efa = 1.0;
    double decay_per_doubling = 0.045;
    // Compute beside a collective gives it multiprocessors and memory bandwidth: share of the overlapped time
    // lost.
    double overlap_loss = 0.21;

    // Passes over tensors of real code over those counted from its operators, by kind of framework.
    double passes_eager_2020 = 1.42, passes_eager = 1.16, passes_compiled = 1.29, passes_graph = 1.4;
    // fp32 elementwise kernels with casts over half-precision ones: 4 + 4 bytes and casts against 2 + 2.
    double wide_elementwise = 1.68;

    // Host, microseconds a kernel.
    double dispatch_eager_us = 8.4, dispatch_graph_us = 4;
    double newer_host_time = 0.67;  // of hosts beside A100 and H100, over those beside V100 and T4
    // Milliseconds in which the device waits for the host.
    double micro_batch_eager_ms = 1.6, step_eager_ms = 9;
    // GiB a process holds outside its allocator where every kernel is loaded at the start.
    double eager_loading_gib = 1.8;
    double input_copy_gbs =
        8;  // GB/s of a host that copies images from pageable memory, all ranks of a node together
    // An optimizer's step on the host: achieved share of the rate of all memory channels of a node.
    double host_update_rate = 0.45;
};

// What a constant's number counts; facts of framework profiles that refer to it are converted from this.
enum class ConstantUnit { one, microseconds, milliseconds, gibibytes, gigabytes_per_second };

// Host time of a device's system over that of V100 systems: those of A100 and newer are faster.
double host_time(std::string_view architecture, const CostConstants& constants);

struct NamedConstant {
    const char* name;
    double CostConstants::* value;
    double least, greatest;  // physical range
    double
        prior;  // what physics, a datasheet or counting says before any measurement of training is looked at
    bool is_fitted;  // on published measurements of training; else on microbenchmarks, or set by hand
    const char* meaning;
    const char* source;  // what it was fitted on, or where it comes from
    double CostConstants::* carried_from =
        nullptr;  // constant whose value it has when no measurement depends on it; null: the prior
    ConstantUnit unit = ConstantUnit::one;
};
std::span<const NamedConstant> named_constants();
// Null when there is none of that name.
const NamedConstant* find_constant(std::string_view name);

}  // namespace sim
