#include <catch2/catch.hpp>
#include <cmath>

#include "core/diagnostics.h"
#include "model/load.h"
#include "model/operators/signature.h"
#include "sim/cost/compute.h"
#include "sim/cost/framework/framework_lookup.h"
#include "sim/cost/kernel/attention.h"

namespace {

using core::DataType;

// Round figures: 100 TFLOP/s at half efficiency, 1 TB/s at 80 % (products) and 50 % (streams).
cluster::DeviceSpec round_device() {
    cluster::DeviceSpec device;
    device.name = "round";
    device.architecture = "sm80";
    device.memory_bandwidth = core::gigabytes_per_second(1000);
    device.memory_efficiency = 0.5;
    device.kernel_launch = core::microseconds(2);
    device.host_dispatch = core::microseconds(10);
    device.peak[DataType::bf16] = core::teraflops_per_second(100);
    device.peak[DataType::fp32] = core::teraflops_per_second(10);
    device.matrix_product[DataType::bf16] = {0.5, 0.8, core::microseconds(4), {}};
    return device;
}

model::Kernel product(double m, double n, double k) {
    model::Kernel kernel;
    kernel.kind = model::KernelKind::matrix_product;
    kernel.m = static_cast<std::int64_t>(m);
    kernel.n = static_cast<std::int64_t>(n);
    kernel.k = static_cast<std::int64_t>(k);
    kernel.flops = core::Flops(2 * m * n * k);
    kernel.read = core::Bytes(2 * (m * k + k * n));
    kernel.written = core::Bytes(2 * m * n);
    return kernel;
}

double time_of(const model::Kernel& kernel, const cluster::DeviceSpec& device) {
    return sim::kernel_time(kernel, model::Phase::forward, device, DataType::bf16).value;
}

}  // namespace

TEST_CASE("a product takes launch and the longer of arithmetic and memory") {
    const cluster::DeviceSpec device = round_device();
    // 4096^3: 137.4 GFLOP at 50 TFLOP/s = 2.749 ms, a little more under sustained load; 100.7 MB at 800 GB/s
    // = 0.126 ms.
    const double sustained = sim::CostConstants().sustained_ampere;
    REQUIRE(time_of(product(4096, 4096, 4096), device) ==
            Approx(4e-6 + 2.0 * 4096 * 4096 * 4096 / (50e12 * sustained)));
    // One row: 33.6 MB at 800 GB/s bind, not 33.6 MFLOP.
    REQUIRE(time_of(product(1, 4096, 4096), device) ==
            Approx(4e-6 + 2.0 * (4096 + 4096 * 4096.0 + 4096) / 800e9));
}

TEST_CASE(
    "tiles: a product that fills whole waves runs at the full-tile rate, one tile more costs part of a wave, "
    "and heads off the tensor cores run at fp32") {
    cluster::DeviceSpec device = round_device();
    device.multiprocessors = 128;
    sim::CostConstants constants;
    constants.tile_fill_depth = 0;
    constants.wave_softness = 0;
    constants.sustained_ampere = 1;
    const auto time = [&](const model::Kernel& kernel) {
        return sim::kernel_time(kernel, model::Phase::forward, device, DataType::bf16, {}, constants).value -
               device.kernel_launch.value;
    };
    // 4096 x 4096 = 16 x 32 tiles of 256 x 128 = 512 = 4 waves of 128.
    const double full = 2.0 * 4096 * 4096 * 4096 / (50e12 * constants.full_tile_rate);
    REQUIRE(time(product(4096, 4096, 4096)) == Approx(full));
    // One row more makes a fifth wave of the largest tile; no tile shape does better than 513/512 of the
    // time, none worse than 5/4.
    const double more = time(product(4097, 4096, 4096));
    REQUIRE(more > full);
    REQUIRE(more <= full * 1.25 * (1 + 1e-12));
    // Where half of an idle wave costs nothing, a fifth wave costs less; whole waves cost the same.
    constants.wave_softness = 0.5;
    REQUIRE(time(product(4096, 4096, 4096)) == Approx(full));
    const double softer = time(product(4097, 4096, 4096));
    REQUIRE(softer > full);
    REQUIRE(softer < more);
    constants.wave_softness = 0;
    model::Kernel scores = product(2048, 2048, 150);
    scores.batch = 16;
    scores.alignment = 2;  // 150 = 2 x 75
    scores.flops = scores.flops * 16.0;
    REQUIRE(time(scores) == Approx(16 * 2.0 * 2048 * 2048 * 150 / (10e12 * 0.5)));
    // A single product of odd rows takes twice as long, but where a compiler pads it.
    model::Kernel logits = product(4096, 4096, 4096);
    logits.alignment = 1;
    REQUIRE(time(logits) == Approx(2 * full));
    const auto with = [&](const char* framework) {
        return sim::kernel_time(logits, model::Phase::forward, device, DataType::bf16,
                                sim::framework_traits(framework, constants), constants)
                   .value -
               device.kernel_launch.value;
    };
    for (const char* framework : {"pytorch-fsdp", "megatron-lm", "llm.c", "nanogpt"})
        CHECK(with(framework) == Approx(2 * full));
    for (const char* framework : {"pytorch-compiled", "xla"}) CHECK(with(framework) == Approx(full));
}

TEST_CASE("who pads the vocabulary pads the product that ends in it, and compilers every product") {
    core::Value table;
    for (const auto& [key, value] : {std::pair{"hidden", 1024},
                                     {"ffn", 4099},
                                     {"layers", 1},
                                     {"heads", 16},
                                     {"vocabulary", 50257},
                                     {"max_positions", 1024}})
        table[key] = value;
    table["family"] = "gpt2";
    core::Diagnostics diagnostics;
    const std::optional<model::ModelGraph> graph = model::load_model(table, {}, diagnostics);
    REQUIRE(graph.has_value());
    const cluster::DeviceSpec device =
        round_device();  // without tiles: times are proportional to FLOPs and rate
    // Of the product with so many outputs, over what all of its FLOPs take at the full rate.
    const auto slowdown = [&](std::int64_t outputs, const char* framework, schedule::ComputePhase phase) {
        schedule::Plan plan;
        plan.framework = framework;
        plan.micro_batch = 4;
        const std::optional<sim::ComputeCost> cost =
            sim::ComputeCost::make(*graph, device, plan, diagnostics);
        REQUIRE(cost.has_value());
        for (std::int32_t i = 0; i < std::ssize(graph->operators); ++i) {
            const model::Operator& op = graph->operators[static_cast<std::size_t>(i)];
            if (op.kind != model::OperatorKind::linear ||
                graph->parameter(op.parameters[0]).shape[0] != outputs)
                continue;
            const sim::ComputePrice price = cost->price({i, i + 1}, phase);
            return price.device.value / (price.flops.value / (50e12 * sim::CostConstants().sustained_ampere));
        }
        FAIL("no such product");
        return 0.0;
    };
    for (const auto phase : {schedule::ComputePhase::forward, schedule::ComputePhase::backward_input})
        for (const auto& [framework, words, others] : {std::tuple{"pytorch-fsdp", 2.0, 2.0},
                                                       {"megatron-lm", 1.0, 2.0},
                                                       {"llm.c", 1.0, 2.0},
                                                       {"nanogpt", 1.0, 2.0},
                                                       {"pytorch-compiled", 1.0, 1.0},
                                                       {"xla", 1.0, 1.0}}) {
            INFO(framework);
            CHECK(slowdown(50257, framework, phase) ==
                  Approx(words).epsilon(0.02));  // launches are a hundredth
            CHECK(slowdown(4099, framework, phase) == Approx(others).epsilon(0.1));
        }
}

TEST_CASE("shallow batched products before Ampere fill and drain their tiles as often as they write them") {
    cluster::DeviceSpec device = round_device();
    device.architecture = "sm70";
    sim::CostConstants constants;
    constants.sustained_ampere = 1;
    const auto arithmetic = [&](std::int64_t k, std::int64_t batch) {
        model::Kernel kernel = product(2048, 2048, k);
        kernel.batch = batch;
        kernel.flops = kernel.flops * static_cast<double>(batch);
        kernel.read = kernel.written = core::Bytes(0);
        return sim::kernel_time(kernel, model::Phase::forward, device, DataType::bf16, {}, constants).value -
               device.matrix_product.at(DataType::bf16).launch.value;
    };
    // 128 deep: 1 + 128/128 against the 1 + 128/2048 that the plateau holds already.
    REQUIRE(arithmetic(128, 8) / (8 * arithmetic(128, 1)) == Approx(2.0 / (1 + 128.0 / 2048)));
    REQUIRE(arithmetic(4096, 8) == Approx(8 * arithmetic(4096, 1)));
}

TEST_CASE("without a search for the fastest algorithm a 3x3 convolution in fp32 saves no multiplications") {
    cluster::DeviceSpec device = round_device();
    device.architecture = "sm70";
    device.matrix_product[DataType::fp32] = {0.85, 0.8, core::microseconds(4), {}};
    model::Kernel kernel;
    kernel.kind = model::KernelKind::convolution;
    kernel.kernel_x = kernel.kernel_y = 3;
    kernel.stride = 1;
    kernel.flops = core::Flops(1e12);
    for (const model::Phase phase :
         {model::Phase::forward, model::Phase::backward_input, model::Phase::backward_weight}) {
        sim::FrameworkTraits traits;
        const auto rate = [&](bool is_tuned) {
            traits.tunes_convolutions = is_tuned;
            return 1e12 / sim::kernel_time(kernel, phase, device, DataType::fp32, traits).value;
        };
        // Winograd's tiles of 4x4 do a 3x3 with 16 multiplications instead of 36 (arXiv 1509.09308).
        CHECK(rate(true) > 10e12);
        CHECK(rate(true) < 2.25 * 10e12);
        CHECK(rate(false) < 10e12);
        // Other sizes have no such algorithm either way.
        model::Kernel pointwise = kernel;
        pointwise.kernel_x = pointwise.kernel_y = 1;
        traits.tunes_convolutions = false;
        CHECK(1e12 / sim::kernel_time(pointwise, phase, device, DataType::fp32, traits).value < 10e12);
    }
}

TEST_CASE("a memory-bound kernel takes launch and its bytes at streaming bandwidth") {
    model::Kernel kernel;
    kernel.read = core::Bytes(3e6);
    kernel.written = core::Bytes(1e6);
    REQUIRE(time_of(kernel, round_device()) ==
            Approx(2e-6 + 4e6 / (500e9 * sim::CostConstants().memory_rate)));
}

TEST_CASE("measured rates of products are met at their points and interpolated between") {
    cluster::DeviceSpec device = round_device();
    device.matrix_product[DataType::bf16].points = {{core::Flops(1e9), core::teraflops_per_second(10)},
                                                    {core::Flops(1e11), core::teraflops_per_second(50)}};
    const auto cube = [](double flops) {
        const double side = std::cbrt(flops / 2);
        model::Kernel kernel = product(1, 1, 1);
        kernel.flops = core::Flops(flops);
        kernel.read = kernel.written = core::Bytes(side);  // no matter here
        return kernel;
    };
    REQUIRE(time_of(cube(1e9), device) == Approx(1e9 / 10e12));
    REQUIRE(time_of(cube(1e11), device) == Approx(1e11 / 50e12));
    REQUIRE(time_of(cube(1e10), device) == Approx(1e10 / 30e12));  // halfway in the logarithm
    REQUIRE(time_of(cube(1e13), device) == Approx(1e13 / 50e12));
}

TEST_CASE("flash attention on an A100 meets the published bars, forward and backward together") {
    cluster::DeviceSpec device = round_device();
    device.peak[DataType::bf16] = core::teraflops_per_second(312);
    struct Bar {
        int head_dimension, sequence;
        bool is_causal;
        double rate;  // TFLOP/s, assets of Dao-AILab/flash-attention@0251105
    };
    for (const Bar& bar : {Bar{64, 512, false, 132}, Bar{64, 2048, true, 140}, Bar{128, 4096, true, 173},
                           Bar{128, 16384, false, 203}}) {
        const double forward = 1.0, backward = 2.5;  // FLOPs in units of forward
        const double time =
            forward / core::to_teraflops_per_second(sim::flash_attention_rate(
                          device, DataType::bf16, bar.head_dimension, bar.sequence, bar.is_causal, false)) +
            backward / core::to_teraflops_per_second(sim::flash_attention_rate(
                           device, DataType::bf16, bar.head_dimension, bar.sequence, bar.is_causal, true));
        REQUIRE((forward + backward) / time == Approx(bar.rate).epsilon(0.005));
    }
}

TEST_CASE("a precision without figures is refused and the message names what there is") {
    core::Diagnostics diagnostics;
    const std::optional<model::ModelGraph> graph = model::load_model(std::string("gpt2"), {}, diagnostics);
    REQUIRE(graph.has_value());
    schedule::Plan plan;
    plan.precision.compute = DataType::fp8;
    const cluster::DeviceSpec device = round_device();
    REQUIRE_FALSE(sim::ComputeCost::make(*graph, device, plan, diagnostics).has_value());
    REQUIRE(diagnostics.entries().size() == 1);
    REQUIRE(diagnostics.entries()[0].key == "plan.precision");
    REQUIRE(diagnostics.entries()[0].message.find("fp8") != std::string::npos);
    REQUIRE(diagnostics.entries()[0].hint.find("bf16") != std::string::npos);
}

TEST_CASE("prices of ranges add up, backward is both of its halves, and the host dispatches every kernel") {
    core::Diagnostics diagnostics;
    const std::optional<model::ModelGraph> graph = model::load_model(std::string("gpt2"), {}, diagnostics);
    REQUIRE(graph.has_value());
    schedule::Plan plan;
    const cluster::DeviceSpec device = round_device();
    const std::optional<sim::ComputeCost> cost = sim::ComputeCost::make(*graph, device, plan, diagnostics);
    REQUIRE(cost.has_value());
    using schedule::ComputePhase;
    const auto count = static_cast<std::int32_t>(graph->operators.size());
    const model::OperatorRange all{0, count};
    for (std::int32_t cut : {1, count / 3, count - 1}) {
        const double low = cost->price({0, cut}, ComputePhase::forward).device.value,
                     high = cost->price({cut, count}, ComputePhase::forward).device.value;
        REQUIRE(low + high == Approx(cost->price(all, ComputePhase::forward).device.value));
    }
    REQUIRE(cost->price(all, ComputePhase::backward).device.value ==
            Approx(cost->price(all, ComputePhase::backward_input).device.value +
                   cost->price(all, ComputePhase::backward_weight).device.value));
    const model::PhaseCost forward =
        model::phase_cost(*graph, all, model::Phase::forward, plan.cost_context());
    REQUIRE(cost->price(all, ComputePhase::forward).host.value == Approx(forward.kernels * 10e-6));
    REQUIRE(cost->price(all, ComputePhase::forward).flops.value == Approx(forward.flops.value));
}

TEST_CASE(
    "a layer that PyTorch's non-reentrant checkpoint runs again stops before its last product; reentrant "
    "checkpoints run all of it") {
    core::Diagnostics diagnostics;
    const cluster::DeviceSpec device = round_device();
    const auto share_of_flops = [&](const char* name, const char* framework) {
        const std::optional<model::ModelGraph> graph = model::load_model(std::string(name), {}, diagnostics);
        REQUIRE(graph.has_value());
        schedule::Plan plan;
        plan.recompute = schedule::Recompute::full;
        plan.framework = framework;
        const std::optional<sim::ComputeCost> cost =
            sim::ComputeCost::make(*graph, device, plan, diagnostics);
        REQUIRE(cost.has_value());
        const model::OperatorRange layer = graph->units[1].operators;
        REQUIRE(cost->price(layer, schedule::ComputePhase::recompute).device <=
                cost->price(layer, schedule::ComputePhase::forward).device);
        return cost->price(layer, schedule::ComputePhase::recompute).flops.value /
               cost->price(layer, schedule::ComputePhase::forward).flops.value;
    };
    // A layer of MPT-7B, 2048 tokens a sample: products of 24 h^2 a token, attention of 4 s h; the last
    // product has 8 h^2 of them.
    const double h = 4096, s = 2048;
    REQUIRE(share_of_flops("mpt-7b", "pytorch-fsdp") == Approx(1 - 8 * h * h / (24 * h * h + 4 * s * h)));
    REQUIRE(share_of_flops("mpt-7b", "megatron-lm-2022") == 1);
    // GPT-2 ends its layers with dropout, whose mask backward reads: all runs again.
    REQUIRE(share_of_flops("gpt2", "pytorch-fsdp") == 1);
}

TEST_CASE("a measured operator replaces the curve") {
    core::Diagnostics diagnostics;
    const std::optional<model::ModelGraph> graph = model::load_model(std::string("gpt2"), {}, diagnostics);
    REQUIRE(graph.has_value());
    schedule::Plan plan;
    cluster::DeviceSpec device = round_device();
    std::int32_t linear = 0;
    while (graph->operators[static_cast<std::size_t>(linear)].kind != model::OperatorKind::linear) ++linear;
    device.measured_operators.push_back(
        {model::signature(*graph, model::OperatorId(linear), plan.cost_context()), core::Seconds(0.25),
         core::Seconds(0.5), core::Seconds(1)});
    const std::optional<sim::ComputeCost> cost = sim::ComputeCost::make(*graph, device, plan, diagnostics);
    REQUIRE(cost.has_value());
    const model::OperatorRange only{linear, linear + 1};
    REQUIRE(cost->price(only, schedule::ComputePhase::forward).device.value == Approx(0.25));
    REQUIRE(cost->price(only, schedule::ComputePhase::backward).device.value == Approx(1.5));
    REQUIRE(cost->assumptions().size() >= 1);
}

TEST_CASE("the optimizer moves every byte of state once each way") {
    core::Diagnostics diagnostics;
    const std::optional<model::ModelGraph> graph = model::load_model(std::string("gpt2"), {}, diagnostics);
    REQUIRE(graph.has_value());
    schedule::Plan plan;  // bf16 gradients and parameters, fp32 master weights, AdamW
    const cluster::DeviceSpec device = round_device();
    const std::optional<sim::ComputeCost> cost = sim::ComputeCost::make(*graph, device, plan, diagnostics);
    REQUIRE(cost.has_value());
    // Read: gradient 2, moments 8, master 4. Written: moments 8, master 4, copy 2. 28 bytes a parameter at
    // 500 GB/s.
    REQUIRE(cost->optimizer_step(1'000'000, 1).device.value ==
            Approx(2e-6 + 28e6 / (500e9 * sim::CostConstants().memory_rate)));
    REQUIRE(cost->update_norm(1'000'000).time().value == 0);
    // LAMB before its norms reads gradient 2, moments 8, master 4 and writes moments 8; after them it reads
    // and writes master 4 + 4, writes the copy 2 and reads the update 4: 8 more in all, and one launch.
    plan.optimizer.kind = schedule::OptimizerKind::lamb;
    const std::optional<sim::ComputeCost> lamb = sim::ComputeCost::make(*graph, device, plan, diagnostics);
    REQUIRE(lamb.has_value());
    REQUIRE(lamb->update_norm(1'000'000).time().value ==
            Approx(22e6 / (500e9 * sim::CostConstants().memory_rate)));
    REQUIRE(lamb->optimizer_step(1'000'000, 1).device.value ==
            Approx(2e-6 + 14e6 / (500e9 * sim::CostConstants().memory_rate)));
}

TEST_CASE(
    "of a plan in fp8 the blocks' linear layers are priced in fp8 with the casts of their operands, logits "
    "and attention in bf16") {
    core::Diagnostics diagnostics;
    const std::optional<model::ModelGraph> graph = model::load_model(std::string("gpt2"), {}, diagnostics);
    REQUIRE(graph.has_value());
    cluster::DeviceSpec device = round_device();
    device.peak[DataType::fp8] = device.peak.at(DataType::bf16) * 2.0;
    device.matrix_product[DataType::fp8] = device.matrix_product.at(DataType::bf16);
    schedule::Plan low, half;
    low.precision.compute = DataType::fp8;
    low.micro_batch = half.micro_batch = 8;
    const auto in_fp8 = sim::ComputeCost::make(*graph, device, low, diagnostics),
               in_bf16 = sim::ComputeCost::make(*graph, device, half, diagnostics);
    REQUIRE(in_fp8.has_value());
    REQUIRE(in_bf16.has_value());
    int linear = 0, others = 0;
    for (std::size_t i = 0; i < graph->operators.size(); ++i) {
        const model::Operator& op = graph->operators[i];
        const auto at = static_cast<std::int32_t>(i);
        INFO(op.name);
        for (const auto phase : {schedule::ComputePhase::forward, schedule::ComputePhase::backward_input,
                                 schedule::ComputePhase::backward_weight}) {
            const double eighth = in_fp8->price({at, at + 1}, phase).device.value,
                         plain = in_bf16->price({at, at + 1}, phase).device.value;
            if (op.kind == model::OperatorKind::linear && op.name.find("logits") == std::string::npos) {
                CHECK(eighth != Approx(plain).epsilon(1e-3));
                ++linear;
            } else {
                CHECK(eighth == Approx(plain).epsilon(1e-9));
                ++others;
            }
        }
    }
    CHECK(linear == 3 * 12 * 4);
    CHECK(others > linear);
    // The user is told.
    bool is_told = false;
    for (const std::string& assumption : in_fp8->assumptions())
        is_told =
            is_told ||
            assumption ==
                "fp8: products of 48 of 49 linear layers; in bf16: head.logits (its results are logits)";
    CHECK(is_told);
}

TEST_CASE("cuDNN's attention on Hopper is faster than FlashAttention-2, and elsewhere there is none") {
    cluster::DeviceSpec hopper = round_device();
    hopper.architecture = "sm90";
    CHECK(sim::has_cudnn_attention(hopper));
    CHECK_FALSE(sim::has_cudnn_attention(round_device()));
    for (const bool is_backward : {false, true})
        for (const std::int64_t tokens : {512, 2048, 8192, 32768})
            for (const std::int64_t dimension : {64, 96, 128, 256})
                for (const bool is_causal : {false, true})
                    CHECK(sim::cudnn_attention_rate(hopper, DataType::bf16, dimension, tokens, is_causal,
                                                    is_backward)
                              .value > sim::flash_attention_rate(hopper, DataType::bf16, dimension, tokens,
                                                                 is_causal, is_backward)
                                           .value);
    // cudnn-frontend: 462 TFLOP/s backward of 989 at 8,192 causal tokens of dimension 128.
    CHECK(sim::cudnn_attention_rate(hopper, DataType::bf16, 128, 8192, true, true).value ==
          Approx(hopper.peak.at(DataType::bf16).value * 462 / 989));
}
