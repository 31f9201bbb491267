#include "sim/cost/constants.h"

namespace sim {

double host_time(std::string_view architecture, const CostConstants& constants) {
    const bool is_newer =
        architecture.starts_with("sm8") || architecture.starts_with("sm9") || architecture.starts_with("sm1");
    return is_newer ? constants.newer_host_time : 1;
}

std::span<const NamedConstant> named_constants() {
    using C = CostConstants;
    static const NamedConstant list[] = {
        {"full_tile_rate", &C::full_tile_rate, 1.0, 1.25, 1.13, false,
         "rate of a product of whole tiles over the profile's plateau",
         "vidur A100 and H100 products, m >= 512"},
        {"tile_fill_depth", &C::tile_fill_depth, 0, 512, 128, false,
         "depth k at which filling and draining a tile costs as much as its work",
         "vidur A100 and H100 products"},
        {"unaligned_rate", &C::unaligned_rate, 0.125, 1.0, 0.5, false,
         "rate of single products whose rows do not begin on 16 bytes, over that of aligned ones",
         "A. Karpathy, 2023-02-03: GPT-2 124M with 50257 words instead of 50304, A100"},
        {"sustained_half", &C::sustained_half, 0.6, 1.0, 0.9, true,
         "half precision on tensor cores, sustained over short runs", "all groups of half precision"},
        {"sustained_ampere", &C::sustained_ampere, 0.8, 1.05, 1.0, true,
         "half precision of A100, sustained over short runs", "A100 groups of half precision",
         &C::sustained_half},
        {"wave_softness", &C::wave_softness, 0, 1, 0.5, false,
         "share of a last wave's idle tiles that costs nothing",
         "AIConfigurator products of A100 and H100, m >= 1024"},
        {"sustained_hopper", &C::sustained_hopper, 0.6, 1.0, 0.9, true,
         "half precision of H100 and H200, sustained over short runs", "fsdp_mpt_h100, llmc",
         &C::sustained_half},
        {"sustained_full", &C::sustained_full, 0.6, 1.2, 1.0, true,
         "fp32 and tf32, newer libraries over CUDA 10.1", "V100, T4 and A100 groups in fp32 and tf32"},
        {"device_spread", &C::device_spread, 0, 0.04, 0.015, true,
         "standard deviation of the rates of devices of one kind; the slowest sets the pace",
         "all groups, 1 to 2,520 devices; Sinha et al., SC 2022: V100 and other GPUs of one machine differ "
         "by 8 % from end to end"},
        {"fp8_rate", &C::fp8_rate, 0.5, 1.1, 0.9, true, "fp8 products over the profile's efficiency",
         "fsdp_mpt_h100 (3 rows)"},
        {"convolution_rate", &C::convolution_rate, 0.8, 1.4, 1.0, true,
         "convolutions, newer libraries over cuDNN 7.6", "dle_ssd300, dle_resnet50, dlperf_resnet50"},
        {"memory_rate", &C::memory_rate, 0.6, 1.0, 0.9, true,
         "kernels of models over the streaming benchmark of the device", "all groups"},
        {"first_flash_rate", &C::first_flash_rate, 0.3, 0.8, 0.5, true, "FlashAttention 1 over 2",
         "arXiv 2307.08691 says about half; MPT groups"},
        {"rate_infiniband", &C::rate_infiniband, 0.3, 1, 0.9, true,
         "achieved share of the profile's rate, InfiniBand", "multi-node groups"},
        {"rate_roce", &C::rate_roce, 0.3, 1, 0.8, true, "achieved share of the profile's rate, RoCE",
         "multi-node groups", &C::rate_infiniband},
        {"rate_omnipath", &C::rate_omnipath, 0.3, 1, 0.5, true,
         "achieved share of the profile's rate, Omni-Path", "multi-node groups"},
        {"rate_tcp", &C::rate_tcp, 0.1, 1, 1.0, false, "achieved share of the profile's rate, TCP",
         "multi-node groups"},
        {"rate_efa", &C::rate_efa, 0.3, 1, 1.0, false, "achieved share of the profile's rate, EFA",
         "not fitted: no rows"},
        {"decay_per_doubling", &C::decay_per_doubling, 0, 0.3, 0.04, true,
         "network rate lost for each doubling of the nodes", "multi-node groups"},
        {"overlap_loss", &C::overlap_loss, 0, 0.6, 0.2, true, "compute lost to a collective beside it",
         "FSDP groups"},
        {"passes_eager_2020", &C::passes_eager_2020, 0.8, 2, 1.3, true,
         "passes over tensors in half precision, eager PyTorch of 2020, over those counted: kernels load 2 "
         "bytes at a time",
         "dle_bert_pytorch, dlperf_bert, dle_transformer_xl, deepspeed_bert"},
        {"passes_eager", &C::passes_eager, 0.8, 2, 1.0, true,
         "passes over tensors, eager PyTorch and Megatron-LM's layers, over those counted",
         "pollux, dle_bert_pytorch 21.11, FSDP and Megatron groups"},
        {"passes_compiled", &C::passes_compiled, 0.5, 1.5, 1.0, true,
         "passes over tensors, XLA, over those counted", "alpa groups"},
        {"passes_graph", &C::passes_graph, 0.8, 2, 1.3, true,
         "passes over tensors, graph engines, over those counted", "dle_bert_tensorflow, dlperf groups",
         &C::passes_eager_2020},
        {"wide_elementwise", &C::wide_elementwise, 1, 3.5, 1.25, true,
         "fp32 elementwise kernels and casts over half precision",
         "counted 2.35; dle_bert_tensorflow, dlperf_bert"},
        {"dispatch_eager_us", &C::dispatch_eager_us, 3, 30, 8, true, "host time a kernel, eager PyTorch",
         "dle_transformer_xl, dle_mask_rcnn", nullptr, ConstantUnit::microseconds},
        {"dispatch_graph_us", &C::dispatch_graph_us, 1, 15, 4, true,
         "host time a kernel, graph engines and C++", "dle_bert_tensorflow, dlperf groups", nullptr,
         ConstantUnit::microseconds},
        {"newer_host_time", &C::newer_host_time, 0.3, 1.2, 0.7, true,
         "host time beside A100 over beside V100", "dle_mask_rcnn"},
        {"micro_batch_eager_ms", &C::micro_batch_eager_ms, 0, 10, 1, true,
         "device idle per micro-batch where the host synchronizes between them", "Megatron groups", nullptr,
         ConstantUnit::milliseconds},
        {"step_eager_ms", &C::step_eager_ms, 0, 60, 3.5, true,
         "device idle per step, eager PyTorch and what runs on it", "eager and Megatron groups", nullptr,
         ConstantUnit::milliseconds},
        {"eager_loading_gib", &C::eager_loading_gib, 0, 4, 1.5, false,
         "GiB outside the allocator before lazy loading of kernels", "bloom, bigscience_1b3 (memory)",
         nullptr, ConstantUnit::gibibytes},
        {"input_copy_gbs", &C::input_copy_gbs, 3, 25, 8, false,
         "GB/s of a host copying inputs from pageable memory",
         "set: one thread's memcpy of a server; the one source that shows it (pollux) agrees", nullptr,
         ConstantUnit::gigabytes_per_second},
        {"host_update_rate", &C::host_update_rate, 0.2, 0.9, 0.45, false,
         "share of the rate of a host's memory that an optimizer's step there achieves",
         "set: Adam of 1e9 to 1e10 parameters on a DGX-2's two Xeon 8168, 28 bytes each (arXiv 2101.06840, "
         "table 4): 0.43 to 0.5"},
    };
    return list;
}

const NamedConstant* find_constant(std::string_view name) {
    for (const NamedConstant& constant : named_constants())
        if (constant.name == name) return &constant;
    return nullptr;
}

}  // namespace sim
