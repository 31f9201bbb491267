// What codes save or pay by documented habits: casts to fp8, layouts of images, clocks under a power limit.
#include <catch2/catch.hpp>

#include "sim/cost/collective/collective.h"
#include "sim/cost/compute.h"
#include "sim/cost/kernel/attention.h"
#include "sim/cost/kernel/fp8_casts.h"
#include "sim/cost/kernel/product.h"
#include "tests/cluster/instances.h"

namespace {

using core::DataType;
using model::Phase;

model::Kernel product(std::int64_t m, std::int64_t n, std::int64_t k) {
    model::Kernel kernel;
    kernel.kind = model::KernelKind::matrix_product;
    kernel.m = m;
    kernel.n = n;
    kernel.k = k;
    return kernel;
}

// The three products of a linear layer of `inputs` and `outputs` features for `tokens`.
double all_casts(std::int64_t tokens, std::int64_t inputs, std::int64_t outputs, const sim::Fp8Casts& casts) {
    return sim::fp8_cast_bytes(product(tokens, outputs, inputs), Phase::forward, casts).value +
           sim::fp8_cast_bytes(product(tokens, inputs, outputs), Phase::backward_input, casts).value +
           sim::fp8_cast_bytes(product(outputs, inputs, tokens), Phase::backward_weight, casts).value;
}

cluster::DeviceSpec hopper() {
    cluster::DeviceSpec device;
    device.architecture = "sm90";
    device.memory_bandwidth = core::gigabytes_per_second(3000);
    device.memory_efficiency = 0.9;
    for (const DataType type : {DataType::bf16, DataType::fp16, DataType::tf32, DataType::fp32}) {
        device.peak[type] = core::teraflops_per_second(type == DataType::fp32 ? 60 : 900);
        device.matrix_product[type] = {0.7, 0.8, core::microseconds(4), {}};
    }
    return device;
}

}  // namespace

TEST_CASE("casts to fp8 read and write every operand of a linear layer once") {
    // Input 8 x 4, weight 6 x 4, gradient of the output 8 x 6: 2 + 1 + 1 bytes an element.
    CHECK(all_casts(8, 4, 6, {}) == 4 * (8 * 4 + 6 * 4 + 8 * 6));
    // The weight in one of four micro-batches.
    CHECK(all_casts(8, 4, 6, {.weight_share = 0.25}) == 4 * (8 * 4 + 6 * 4 / 4 + 8 * 6));
    // The input comes in fp8 from the normalization before.
    CHECK(all_casts(8, 4, 6, {.input_comes_cast = true}) == 4 * (6 * 4 + 8 * 6));
}

TEST_CASE("images with channels first are turned around tensor cores' convolutions, and only there") {
    model::Kernel kernel;
    kernel.kind = model::KernelKind::convolution;
    kernel.kernel_y = kernel.kernel_x = kernel.stride = 1;
    kernel.flops = core::Flops(1e9);
    kernel.read = core::Bytes(3e8);
    kernel.written = core::Bytes(1e8);
    const cluster::DeviceSpec device = hopper();
    const auto conversion = [&](sim::ImageLayout layout, DataType type) {
        sim::FrameworkTraits last, as_given;
        last.image_layout = sim::ImageLayout::channels_last;
        as_given.image_layout = layout;
        const core::Seconds all = sim::kernel_time(kernel, Phase::forward, device, type, as_given) -
                                  sim::kernel_time(kernel, Phase::forward, device, type, last);
        return all.value * sim::memory_rate(device, {}).value;  // bytes
    };
    using enum sim::ImageLayout;
    CHECK(conversion(channels_first, DataType::fp16) == Approx(2 * 4e8));
    CHECK(conversion(channels_first, DataType::tf32) == Approx(2 * 3e8));  // results are written as wanted
    CHECK(conversion(channels_first, DataType::fp32) == 0);
    CHECK(conversion(channels_last_in_half, DataType::fp16) == 0);
    CHECK(conversion(channels_last_in_half, DataType::tf32) == Approx(2 * 3e8));
}

TEST_CASE("a board held to lower clocks runs attention at their share") {
    const cluster::DeviceSpec usual = hopper();
    cluster::DeviceSpec limited = usual;
    limited.clock_share = 0.8;
    for (const bool is_backward : {false, true}) {
        CHECK(sim::flash_attention_rate(limited, DataType::bf16, 128, 4096, true, is_backward).value ==
              Approx(0.8 *
                     sim::flash_attention_rate(usual, DataType::bf16, 128, 4096, true, is_backward).value));
        CHECK(sim::cudnn_attention_rate(limited, DataType::bf16, 128, 4096, true, is_backward).value ==
              Approx(0.8 *
                     sim::cudnn_attention_rate(usual, DataType::bf16, 128, 4096, true, is_backward).value));
    }
}

TEST_CASE("parameters gathered tensor by tensor pay a latency each, and in 2021 a list of all ranks") {
    const cluster::Cluster cluster = nodes_of("p4d.24xlarge", 4);
    schedule::ParameterBucket layer;
    layer.offsets = {0, 50'000, 1'050'000};  // the first is too small to be sharded
    layer.elements = 2'050'000;
    const core::Seconds whole = core::milliseconds(10);
    const auto overhead = [&](const char* framework, schedule::Recompute recompute = {}) {
        schedule::Plan plan;
        plan.layout = {32, 1, 1, "PDT"};
        plan.sharding = schedule::Sharding::parameters;
        plan.recompute = recompute;
        plan.framework = framework;
        sim::CommunicationCost cost(plan, cluster, {});
        return cost.gather_overhead(schedule::GroupKind::shard, 0, layer, whole);
    };
    CHECK(overhead("pytorch-fsdp").value == 0);
    const core::Seconds latency = overhead("deepspeed");
    CHECK(latency.value > 0);
    // Two lists of 32 entries, each a view narrowed, its view in torch and its copy.
    const sim::CostConstants constants;
    CHECK((overhead("deepspeed-2021") - latency).value ==
          Approx(2 * 32 * 3 * constants.dispatch_eager_us * 1e-6 * constants.newer_host_time));
    // A layer too large to stay gathered (stage3_max_live_parameters) is gathered again where it runs again.
    layer.elements = 2'000'000'000;
    const core::Seconds once = overhead("deepspeed");
    CHECK(overhead("deepspeed", schedule::Recompute::full).value ==
          Approx(1.5 * once.value + 0.5 * whole.value));
}
