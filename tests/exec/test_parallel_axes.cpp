// Experts and sequences divided over ranks, activations that wait elsewhere: training equals the reference,
// memory and bytes are as planned.
#include <catch2/catch.hpp>

#include <tuple>

#include "exec/context_parallel.h"
#include "schedule/pipeline/registry.h"
#include "tests/exec/tiny.h"

namespace {

double bytes_of(const schedule::Program& program, schedule::CollectiveKind kind, schedule::GroupKind group) {
    double sum = 0;
    for (const schedule::Instruction& i : program.classes[0].instructions)
        if (i.kind == schedule::InstructionKind::collective && i.collective == kind && i.group == group)
            sum += i.bytes.value;
    return sum;
}

// Two ways to divide layers over ranks, each a section of the test that calls.
void in_divided_sections(schedule::Plan& plan) {
    SECTION("tensor and sequence parallel") {
        plan.layout.tensor = 2;
        plan.sequence_parallel = true;
    }
    SECTION("sharded parameters") {
        plan.layout.data = 2;
        plan.sharding = schedule::Sharding::parameters;
    }
}

}  // namespace

TEST_CASE("experts spread over data-parallel ranks train as on one") {
    schedule::Plan plan = tiny::plan();
    plan.layout.data = plan.layout.expert = 2;
    const std::string kind =
        GENERATE(std::string("experts_per_token = 2"),
                 std::string("experts_per_token = 1\nauxiliary_loss = 0.3\ncapacity_factor = 1.0"));
    SECTION("every expert once") {}
    SECTION("experts in two copies") {
        plan.layout.data = 4;
        plan.sharding = GENERATE(schedule::Sharding::none, schedule::Sharding::optimizer,
                                 schedule::Sharding::gradients, schedule::Sharding::parameters);
    }
    SECTION("hybrid sharding inside and across groups of experts") {
        plan.layout.data = 4;
        plan.shard_degree = 2;
        plan.layout.expert = GENERATE(2, 4);
        plan.sharding = GENERATE(schedule::Sharding::optimizer, schedule::Sharding::parameters);
    }
    SECTION("with tensor and sequence parallelism") {
        plan.layout.tensor = 2;
        plan.sequence_parallel = GENERATE(false, true);
    }
    SECTION("in a pipeline, recomputed") {
        plan.layout.pipeline = 2;
        plan.recompute = schedule::Recompute::full;
        plan.optimizer.gradient_clipping = 0.05;
    }
    SECTION("in a pipeline with split backward") {
        plan.layout.pipeline = 2;
        plan.schedule = "zb-h1";
    }
    INFO(kind << "\n" << core::to_toml(schedule::to_value(plan)));
    tiny::check_equal(tiny::compare(plan, tiny::mixtral(3, kind)));
}

TEST_CASE("clipping counts the gradients of every expert once, however experts and shards divide the ranks") {
    schedule::Plan plan = tiny::plan();
    plan.optimizer.gradient_clipping = 0.02;
    plan.layout.data = 4;
    plan.layout.expert = GENERATE(1, 2, 4);
    plan.sharding = GENERATE(schedule::Sharding::none, schedule::Sharding::optimizer);
    plan.shard_degree = plan.sharding == schedule::Sharding::none ? 0 : GENERATE(2, 4);
    const tiny::Comparison comparison = tiny::compare(plan, tiny::mixtral(2));
    tiny::check_equal(comparison);
    CHECK(comparison.parameters < 1e-5);
}

TEST_CASE("whole experts on tensor ranks train as on one") {
    schedule::Plan plan = tiny::plan();
    plan.layout.tensor = 2;
    plan.layout.has_whole_experts = plan.sequence_parallel = true;
    const std::string kind =
        GENERATE(as<std::string>{}, "\nshared_expert_ffn = 12", "\nauxiliary_loss = 0.5",
                 "\ncapacity_factor = 0.6", "\nauxiliary_loss = 0.3\ncapacity_factor = 1.0");
    SECTION("over tensor ranks alone") { plan.tensor_overlap = GENERATE(1, 2); }
    SECTION("over all ranks, recomputed, sharded, clipped") {
        plan.layout.data = plan.layout.expert = 2;
        plan.recompute = schedule::Recompute::full;
        plan.sharding =
            GENERATE(schedule::Sharding::none, schedule::Sharding::optimizer, schedule::Sharding::parameters);
        plan.optimizer.gradient_clipping = 0.02;
    }
    SECTION("in two copies, with LAMB") {
        plan.layout.data = 4;
        plan.layout.expert = GENERATE(1, 2);
        plan.layout.order = GENERATE(as<std::string>{}, "PDT", "PTD");
        plan.optimizer.kind = schedule::OptimizerKind::lamb;
        plan.optimizer.epsilon = 1e-3;
        plan.sharding = GENERATE(schedule::Sharding::none, schedule::Sharding::optimizer);
    }
    SECTION("with divided sequences") {
        plan.layout.data = plan.layout.context = 2;
        plan.layout.expert = GENERATE(1, 2);
        plan.context_communication =
            GENERATE(schedule::ContextCommunication::all_gather, schedule::ContextCommunication::ring);
    }
    SECTION("in a pipeline with split backward, offloaded") {
        plan.layout.data = plan.layout.pipeline = plan.layout.expert = 2;
        plan.schedule = "zb-h1";
        plan.offload = GENERATE(schedule::Offload::none, schedule::Offload::host);
        plan.activation_loading_horizon = 1;
    }
    SECTION("of segments of sequences") {
        plan.layout.pipeline = 2;
        plan.schedule = "seq1f1b";
        plan.schedule_parameters = schedule::SegmentParameters{2};
    }
    INFO(kind << "\n" << core::to_toml(schedule::to_value(plan)));
    tiny::check_equal(tiny::compare(plan, tiny::mixtral(2, "experts_per_token = 2" + kind)));
}

TEST_CASE("routed tokens cross to their experts and back, forward and backward") {
    // Two layers, 4 micro-batches of 2 samples x 8 tokens x 2 copies x 16 values x 4 bytes; two exchanges
    // forward, two backward.
    schedule::Plan plan = tiny::plan();
    plan.layout.data = plan.layout.expert = 2;
    const schedule::Program program = tiny::program_of(plan, tiny::mixtral(2));
    CHECK(bytes_of(program, schedule::CollectiveKind::all_to_all, schedule::GroupKind::expert) ==
          2 * 4 * 4 * (2 * 8 * 2 * 16 * 4));
    // On tensor ranks experts are halves, of which each rank asks for the same tokens; or whole, and each
    // asks for half of the tokens, which nothing gathers or sums: what is left of both is that of attention
    // and of the logits.
    plan.layout.tensor = 2;
    plan.sequence_parallel = true;
    const auto bytes = [&](bool are_whole, schedule::CollectiveKind kind, schedule::GroupKind group) {
        plan.layout.has_whole_experts = are_whole;
        return bytes_of(tiny::program_of(plan, tiny::mixtral(2)), kind, group);
    };
    using schedule::CollectiveKind, schedule::GroupKind;
    CHECK(bytes(false, CollectiveKind::all_to_all, GroupKind::expert) == 2 * 4 * 4 * (2 * 8 * 2 * 16 * 4));
    CHECK(bytes(true, CollectiveKind::all_to_all, GroupKind::expert) == 4 * 4 * (2 * 8 * 2 * 16 * 4));
    const double tokens = 2 * 8 * 16 * 4;
    for (const CollectiveKind kind : {CollectiveKind::all_gather, CollectiveKind::reduce_scatter})
        CHECK(bytes(false, kind, GroupKind::tensor) - bytes(true, kind, GroupKind::tensor) ==
              // forward and backward; gathered once more for what the router and the experts kept
              2 * 4 * (kind == CollectiveKind::all_gather ? 3 : 2) * tokens);
}

TEST_CASE("ranks of a context-parallel group have as many scores each under a causal mask") {
    for (const int degree : {1, 2, 4}) {
        std::vector<std::int64_t> scores;
        std::vector<char> is_seen(64, 0);
        for (int rank = 0; rank < degree; ++rank) {
            scores.push_back(0);
            for (const std::int32_t token : exec::places_of_tokens(64, degree, rank)) {
                scores.back() += token + 1;
                is_seen[static_cast<std::size_t>(token)] = 1;
            }
        }
        for (const std::int64_t count : scores) CHECK(count == 64 * 65 / 2 / degree);
        CHECK(std::count(is_seen.begin(), is_seen.end(), 1) == 64);
    }
}

namespace {

// What ranks that divide sequences run beside.
void beside_other_axes(schedule::Plan& plan, std::string& more) {
    SECTION("alone") {}
    SECTION("with dropout, beside replicas, sharded") {
        more = "dropout = 0.1\nattention_dropout = 0.1";
        plan.layout.data *= 2;
        plan.sharding = schedule::Sharding::parameters;
        plan.optimizer.gradient_clipping = 0.1;
    }
    SECTION("with tensor and sequence parallelism") {
        plan.layout.tensor = 2;
        plan.sequence_parallel = GENERATE(false, true);
    }
    SECTION("in a pipeline with split backward") {
        plan.layout.pipeline = 2;
        plan.schedule = "zb-h1";
    }
}

}  // namespace

TEST_CASE("sequences divided over ranks train as whole ones") {
    schedule::Plan plan = tiny::plan();
    plan.layout.context = GENERATE(1, 2, 4);
    plan.layout.data = plan.layout.context;
    plan.attention = GENERATE(model::AttentionImplementation::flash, model::AttentionImplementation::unfused);
    std::string more;
    beside_other_axes(plan, more);
    SECTION("in a pipeline, recomputed") {
        plan.layout.pipeline = 2;
        plan.recompute = GENERATE(schedule::Recompute::selective, schedule::Recompute::full);
    }
    INFO(core::to_toml(schedule::to_value(plan)));
    tiny::check_equal(tiny::compare(plan, tiny::gpt(3, more)));
    tiny::check_equal(tiny::compare(plan, tiny::llama(3, more.empty() ? "window = 3" : more)));
    tiny::check_equal(tiny::compare(plan, tiny::gpt(3, "position_encoding = 'alibi'")));
}

TEST_CASE("ranks that exchange heads for tokens train as one with whole sequences") {
    schedule::Plan plan = tiny::plan();
    plan.layout.data = plan.layout.context = 2;
    plan.context_communication = schedule::ContextCommunication::all_to_all;
    plan.attention = GENERATE(model::AttentionImplementation::flash, model::AttentionImplementation::unfused);
    std::string more;
    beside_other_axes(plan, more);
    SECTION("a head a rank") {
        plan.layout.data = plan.layout.context = 4;
        more = "attention_dropout = 0.1";
    }
    SECTION("in a pipeline, recomputed") {
        plan.layout.pipeline = 2;
        plan.recompute = schedule::Recompute::full;
        plan.recompute_layers = GENERATE(0, 1);
        if (plan.recompute_layers == 1) {
            plan.recompute_layers_by_stage =
                GENERATE(as<std::vector<std::int32_t>>{}, std::vector{1, 0}, std::vector{0, 2});
            if (plan.recomputes_by_stage()) plan.recompute_layers = 0;
        }
    }
    SECTION("offloaded") {
        plan.schedule = "gpipe";
        plan.offload = schedule::Offload::host;
        plan.activation_loading_horizon = 1;
    }
    INFO(core::to_toml(schedule::to_value(plan)));
    tiny::check_equal(tiny::compare(plan, tiny::gpt(3, more)));
    tiny::check_equal(tiny::compare(plan, tiny::gpt(3, more + "\nposition_encoding = 'alibi'")));
    if (plan.layout.tensor * plan.layout.context > 2) return;  // two heads of keys
    tiny::check_equal(tiny::compare(plan, tiny::llama(3, more + "\nwindow = 3")));
    if (!more.empty()) return;
    tiny::check_equal(tiny::compare(plan, tiny::llama(3, "query_key_norm = 'per_head'")));
    tiny::check_equal(tiny::compare(plan, tiny::mixtral(3, "experts_per_token = 2\nauxiliary_loss = 0.5")));
}

TEST_CASE("exchanged heads cross twice forward and twice backward") {
    schedule::Plan plan = tiny::plan();
    plan.layout.data = plan.layout.context = 2;
    plan.context_communication = schedule::ContextCommunication::all_to_all;
    const schedule::Program program = tiny::program_of(plan, tiny::gpt(2));
    // Two layers, 4 micro-batches of 2 samples x 4 tokens; queries, keys and values of 16 values each go
    // there and as many of the output back, each with a gradient that goes the other way.
    CHECK(bytes_of(program, schedule::CollectiveKind::all_to_all, schedule::GroupKind::context) ==
          2 * 4 * (2 * 4) * 2 * (3 + 1) * 16 * 4);
    CHECK(bytes_of(program, schedule::CollectiveKind::all_gather, schedule::GroupKind::context) == 0);
    CHECK(bytes_of(program, schedule::CollectiveKind::reduce_scatter, schedule::GroupKind::context) == 0);
}

TEST_CASE("keys that pass from rank to rank train as those of whole sequences") {
    schedule::Plan plan = tiny::plan();
    plan.layout.data = plan.layout.context = GENERATE(2, 4);
    plan.context_communication = schedule::ContextCommunication::ring;
    std::string more;
    beside_other_axes(plan, more);
    SECTION("in a pipeline, recomputed") {
        plan.layout.pipeline = 2;
        plan.recompute = GENERATE(schedule::Recompute::selective, schedule::Recompute::full);
        plan.recompute_layers = plan.recompute == schedule::Recompute::full ? GENERATE(0, 1) : 0;
    }
    SECTION("recomputed with split backward") {
        plan.layout.pipeline = 2;
        plan.schedule = "zb-h1";
        plan.recompute = GENERATE(schedule::Recompute::selective, schedule::Recompute::full);
    }
    SECTION("offloaded") {
        plan.schedule = "gpipe";
        plan.offload = schedule::Offload::host;
        plan.activation_loading_horizon = 1;
    }
    INFO(core::to_toml(schedule::to_value(plan)));
    tiny::check_equal(tiny::compare(plan, tiny::gpt(3, more)));
    tiny::check_equal(tiny::compare(plan, tiny::gpt(3, more + "\nposition_encoding = 'alibi'")));
    tiny::check_equal(tiny::compare(plan, tiny::gpt(3, more + "\ncausal = false")));
    tiny::check_equal(tiny::compare(plan, tiny::llama(3, more)));
    if (!more.empty()) return;
    tiny::check_equal(tiny::compare(plan, tiny::llama(3, "query_key_norm = 'per_head'")));
    tiny::check_equal(tiny::compare(plan, tiny::mixtral(3, "experts_per_token = 2\nauxiliary_loss = 0.5")));
}

TEST_CASE("keys pass on in a ring in every synchronous schedule of whole sequences") {
    const model::ModelGraph graph = tiny::gpt(8);
    int trained = 0;
    for (const schedule::PipelineSchedule& candidate : schedule::pipeline_schedules()) {
        if (candidate.is_asynchronous || candidate.is_forward_only || candidate.cuts_sequences()) continue;
        for (const int chunks : {1, 2}) {
            schedule::Plan plan = tiny::plan();
            plan.schedule = candidate.name;
            plan.layout.data = plan.layout.context = plan.layout.pipeline = 2;
            plan.virtual_stages = chunks;
            plan.micro_batches = 8;
            plan.context_communication = schedule::ContextCommunication::ring;
            core::Diagnostics diagnostics;
            if (!schedule::make_schedule(plan, diagnostics)) continue;
            INFO(candidate.name << ", " << chunks << " chunks");
            tiny::check_equal(tiny::compare(plan, graph));
            ++trained;
        }
    }
    CHECK(trained >= 15);
}

TEST_CASE("in a ring keys cross as often as they are gathered") {
    schedule::Plan plan = tiny::plan();
    plan.layout.data = plan.layout.context = GENERATE(2, 4);
    plan.context_communication = schedule::ContextCommunication::ring;
    const schedule::Program program = tiny::program_of(plan, tiny::gpt(2));
    // Two layers, 4 micro-batches of 2 samples; keys and values of 16 values each of every other rank's
    // tokens pass through a rank forward and again backward, and so do their gradients.
    const int others = plan.layout.context - 1, tokens = 8 / plan.layout.context;
    CHECK(bytes_of(program, schedule::CollectiveKind::rotate, schedule::GroupKind::context) ==
          2 * 4 * 3 * others * (2 * tokens) * 2 * 16 * 4);
    CHECK(bytes_of(program, schedule::CollectiveKind::all_gather, schedule::GroupKind::context) == 0);
    CHECK(bytes_of(program, schedule::CollectiveKind::reduce_scatter, schedule::GroupKind::context) == 0);
}

TEST_CASE("experts and sequences are divided over the same ranks") {
    // Balance is of all tokens of a micro-batch, whoever has them; capacity of the tokens that a rank has:
    // the reference counts both so.
    schedule::Plan plan = tiny::plan();
    plan.layout.data = 4;
    plan.layout.context = 2;
    const std::string kind =
        GENERATE(as<std::string>{}, "", "\nauxiliary_loss = 0.5", "\ncapacity_factor = 0.6",
                 "\nauxiliary_loss = 0.3\ncapacity_factor = 1.0");
    SECTION("alone") { plan.layout.expert = GENERATE(1, 2, 4); }
    SECTION("in four parts each, recomputed, sharded, clipped") {
        plan.layout.context = plan.layout.expert = 4;
        plan.recompute = schedule::Recompute::full;
        plan.sharding = schedule::Sharding::parameters;
        plan.optimizer.gradient_clipping = 0.05;
    }
    SECTION("with tensor and sequence parallelism") {
        plan.layout.data = plan.layout.tensor = 2;
        plan.sequence_parallel = GENERATE(false, true);
    }
    SECTION("in a pipeline with split backward") {
        plan.layout.data = plan.layout.pipeline = 2;
        plan.schedule = "zb-h1";
        plan.layout.expert = GENERATE(1, 2);
    }
    INFO(kind << "\n" << core::to_toml(schedule::to_value(plan)));
    tiny::check_equal(tiny::compare(plan, tiny::mixtral(2, "experts_per_token = 2" + kind)));
}

TEST_CASE("the balance of sequences divided over ranks is that of whole ones, and costs one sum of counts") {
    schedule::Plan whole = tiny::plan(), divided = whole;
    divided.layout.data = divided.layout.context = 2;
    const model::ModelGraph balanced = tiny::mixtral(2, "experts_per_token = 2\nauxiliary_loss = 0.5"),
                            free = tiny::mixtral(2);
    const tiny::Comparison one = tiny::compare(whole, balanced), two = tiny::compare(divided, balanced),
                           without = tiny::compare(divided, free);
    // Same parameters after two steps; what a missing, or a doubled, balance loss would leave is far beyond
    // rounding.
    double difference = 0, of_balance = 0;
    for (std::size_t p = 0; p < balanced.parameters.size(); ++p)
        for (std::size_t i = 0; i < one.run.parameters[p].size(); ++i) {
            difference = std::max(difference, std::abs(static_cast<double>(one.run.parameters[p][i]) -
                                                       two.run.parameters[p][i]));
            of_balance = std::max(of_balance, std::abs(static_cast<double>(without.run.parameters[p][i]) -
                                                       two.run.parameters[p][i]));
        }
    CHECK(difference < 1e-5);
    CHECK(of_balance > 1e-4);
    // Two layers, 4 micro-batches, 4 experts x 4 bytes.
    CHECK(bytes_of(tiny::program_of(divided, balanced), schedule::CollectiveKind::all_reduce,
                   schedule::GroupKind::tokens) == 2 * 4 * 4 * 4);
    CHECK(bytes_of(tiny::program_of(divided, free), schedule::CollectiveKind::all_reduce,
                   schedule::GroupKind::tokens) == 0);
}

TEST_CASE("experts take tokens of segments of sequences") {
    schedule::Plan plan = tiny::plan();
    plan.schedule = "seq1f1b";
    plan.schedule_parameters = schedule::SegmentParameters{GENERATE(0, 4)};
    plan.layout.pipeline = 2;
    const std::string kind = GENERATE(as<std::string>{}, "", "\nauxiliary_loss = 0.3\ncapacity_factor = 1.0");
    SECTION("every rank has all experts") {
        plan.recompute = GENERATE(schedule::Recompute::none, schedule::Recompute::full);
    }
    SECTION("spread over ranks") {
        plan.layout.data = 4;
        plan.layout.expert = GENERATE(2, 4);
        plan.sharding = GENERATE(schedule::Sharding::none, schedule::Sharding::parameters);
    }
    SECTION("with tensor and sequence parallelism") {
        plan.layout.tensor = 2;
        plan.sequence_parallel = GENERATE(false, true);
    }
    SECTION("in bf16") { plan.precision = {}; }
    INFO(kind << "\n" << core::to_toml(schedule::to_value(plan)));
    const tiny::Comparison comparison = tiny::compare(plan, tiny::mixtral(2, "experts_per_token = 2" + kind));
    if (plan.precision.compute == core::DataType::fp32) tiny::check_equal(comparison);
    else CHECK(comparison.losses < 1e-2);
}

TEST_CASE("experts and sequences divided over ranks round in bf16 as one rank does") {
    schedule::Plan plan = tiny::plan();
    plan.precision = {core::DataType::bf16, core::DataType::bf16,
                      GENERATE(core::DataType::bf16, core::DataType::fp32), true};
    model::ModelGraph graph = tiny::mixtral(3, "experts_per_token = 2\nauxiliary_loss = 0.1");
    schedule::Plan alone = plan;
    plan.layout.data = 2;
    SECTION("experts") {
        plan.layout.expert = 2;
        alone.layout.data = 2;
        SECTION("alone") {}
        SECTION("sharded, with a capacity") {
            graph = tiny::mixtral(3, "experts_per_token = 1\ncapacity_factor = 1.0");
            plan.sharding = schedule::Sharding::parameters;
        }
        SECTION("with split backward") {
            plan.layout.pipeline = 2;
            plan.schedule = "zb-h1";
        }
        SECTION("recomputed, beside tensor and sequence parallelism") {
            plan.layout.tensor = 2;
            plan.sequence_parallel = true;
            plan.recompute = schedule::Recompute::full;
        }
    }
    SECTION("sequences") {
        plan.layout.context = 2;
        plan.context_communication =
            GENERATE(schedule::ContextCommunication::all_gather, schedule::ContextCommunication::all_to_all,
                     schedule::ContextCommunication::ring);
        plan.attention = alone.attention =
            GENERATE(model::AttentionImplementation::flash, model::AttentionImplementation::unfused);
        if (plan.context_communication == schedule::ContextCommunication::ring)
            plan.attention = alone.attention = model::AttentionImplementation::flash;
        graph = GENERATE(tiny::gpt(3, "dropout = 0.1\nattention_dropout = 0.1"), tiny::llama(3));
        SECTION("alone") {}
        SECTION("with split backward") {
            plan.layout.pipeline = 2;
            plan.schedule = "zb-h1";
        }
        SECTION("offloaded") {
            plan.schedule = "gpipe";
            plan.offload = schedule::Offload::host;
            plan.activation_loading_horizon = 1;
        }
    }
    INFO(graph.family << "\n" << core::to_toml(schedule::to_value(plan)));
    const tiny::Comparison one = tiny::compare(alone, graph), many = tiny::compare(plan, graph);
    // Both round; the ranks' sums are of other parts, so a value on the edge between two bf16 numbers may
    // fall to the other side.
    CHECK(one.losses > 1e-7);
    CHECK(std::abs(many.run.losses[0] - one.run.losses[0]) < 3e-4 * one.run.losses[0]);
    CHECK(many.losses < 2 * one.losses + 2e-3);
    CHECK(many.copies == 0);
}

TEST_CASE("activations that wait on the host or on disk leave losses as they are, and memory smaller") {
    schedule::Plan plan = tiny::plan();
    plan.schedule = "gpipe";
    plan.micro_batches = 8;
    plan.recompute =
        GENERATE(schedule::Recompute::none, schedule::Recompute::selective, schedule::Recompute::full);
    plan.attention = GENERATE(model::AttentionImplementation::flash, model::AttentionImplementation::unfused);
    plan.offload_bandwidth = core::gigabytes_per_second(1);
    const model::ModelGraph graph = tiny::gpt(4, "dropout = 0.1\nattention_dropout = 0.1");
    SECTION("one rank") {}
    SECTION("pipeline") { plan.layout.pipeline = 2; }
    in_divided_sections(plan);
    const double before = tiny::compare(plan, graph).run.memory.peak[0].value;
    plan.offload = GENERATE(schedule::Offload::host, schedule::Offload::disk);
    plan.activation_loading_horizon = GENERATE(1, 4);
    INFO(core::to_toml(schedule::to_value(plan)));
    const tiny::Comparison comparison = tiny::compare(plan, graph);
    tiny::check_equal(comparison);
    // All eight micro-batches wait for their backward; what stays is what crosses stages and what comes back
    // soon.
    CHECK(comparison.run.memory.peak[0].value < before);
}

TEST_CASE("an optimizer on the host trains as one on the device, whose memory lacks its state") {
    using schedule::Sharding;
    schedule::Plan plan = tiny::plan();
    plan.layout.data = GENERATE(1, 2);
    plan.sharding = GENERATE(Sharding::none, Sharding::optimizer, Sharding::gradients, Sharding::parameters);
    plan.optimizer.kind = GENERATE(schedule::OptimizerKind::sgd, schedule::OptimizerKind::adamw);
    // So that the rounding of gradients is not magnified to that of an update.
    plan.optimizer.epsilon = 1e-3;
    SECTION("alone") {
        plan.optimizer.momentum = plan.optimizer.kind == schedule::OptimizerKind::sgd ? 0.9 : 0;
    }
    SECTION("clipped") { plan.optimizer.gradient_clipping = 0.02; }
    SECTION("over tensor ranks, in a pipeline that offloads") {
        plan.layout.tensor = plan.layout.pipeline = 2;
        plan.schedule = "gpipe";
        plan.offload = schedule::Offload::host;
        plan.activation_loading_horizon = 1;
    }
    SECTION("with values of 32 bits beside those of 16") {
        plan.precision = {core::DataType::bf16, core::DataType::bf16, core::DataType::fp32, true};
    }
    const model::ModelGraph graph = tiny::gpt(4, "dropout = 0.1");
    const tiny::Comparison on_device = tiny::compare(plan, graph);
    plan.optimizer_offload = schedule::Offload::host;
    INFO(core::to_toml(schedule::to_value(plan)));
    const tiny::Comparison on_host = tiny::compare(plan, graph);
    CHECK(on_host.run.losses == on_device.run.losses);
    CHECK(on_host.gradients == on_device.gradients);
    CHECK(on_host.parameters == on_device.parameters);
    if (plan.precision.compute == core::DataType::fp32) tiny::check_equal(on_host);
    // Of each parameter that the rank updates, and padding: two moments or one, and the values of 32 bits.
    const schedule::Program program = tiny::program_of(plan, graph);
    const double each = (plan.optimizer.kind == schedule::OptimizerKind::adamw ? 8
                         : plan.optimizer.momentum != 0                        ? 4
                                                                               : 0) +
                        (plan.precision.has_master_parameters ? 4 : 0);
    double updated = 0;
    for (const schedule::ParameterBucket& bucket : program.classes[0].buckets)
        updated += static_cast<double>(bucket.padded_elements / bucket.pieces);
    const auto of_optimizer = [](const tiny::Comparison& compared) {
        return compared.run.memory.at_peak[0][core::position_of(schedule::MemoryKind::optimizer)].value;
    };
    CHECK(of_optimizer(on_device) == each * updated);
    CHECK(of_optimizer(on_host) == 0);
    // When messages arrive is not the same in every run of a pipeline, and so what else is there at the peak.
    const double less = on_device.run.memory.peak[0].value - on_host.run.memory.peak[0].value;
    if (plan.layout.pipeline == 1) CHECK(less == each * updated);
    else if (each > 0) CHECK(less > 0);
}

TEST_CASE("parameters on the host train as those on devices, which hold what a unit reads alone") {
    schedule::Plan plan = tiny::plan();
    plan.layout.data = GENERATE(1, 2, 4);
    plan.sharding = schedule::Sharding::parameters;
    plan.micro_batches = 4;
    plan.optimizer.kind = schedule::OptimizerKind::adamw;
    plan.optimizer.epsilon = 1e-3;
    plan.optimizer_offload = schedule::Offload::host;
    plan.overlaps_parameter_gathering = GENERATE(true, false);
    plan.overlaps_gradient_reduction = plan.overlaps_parameter_gathering;
    SECTION("alone") {}
    SECTION("clipped, layers run again") {
        plan.optimizer.gradient_clipping = 0.02;
        plan.recompute = schedule::Recompute::full;
    }
    SECTION("over tensor ranks that divide tokens, in a pipeline that offloads") {
        plan.layout.tensor = plan.layout.pipeline = 2;
        plan.sequence_parallel = true;
        plan.offload = schedule::Offload::host;
        plan.activation_loading_horizon = 1;
    }
    SECTION("in a pipeline with two stages a rank, its backward in two parts") {
        plan.layout.pipeline = 2;
        plan.virtual_stages = 2;
        plan.schedule = "zb-v";
    }
    SECTION("with values of 32 bits beside those of 16") {
        plan.precision = {core::DataType::bf16, core::DataType::bf16, core::DataType::fp32, true};
    }
    const model::ModelGraph graph = tiny::gpt(4, "dropout = 0.1");
    const tiny::Comparison on_device = tiny::compare(plan, graph);
    plan.parameter_offload = schedule::Offload::host;
    INFO(core::to_toml(schedule::to_value(plan)));
    const tiny::Comparison on_host = tiny::compare(plan, graph);
    // One rank's gradients of several micro-batches add up on the device as they are made, on the host when
    // they are whole.
    if (plan.layout.data > 1) {
        CHECK(on_host.run.losses == on_device.run.losses);
        CHECK(on_host.gradients == on_device.gradients);
        CHECK(on_host.parameters == on_device.parameters);
    }
    CHECK(std::abs(on_host.gradients - on_device.gradients) < 1e-6);
    CHECK(std::abs(on_host.parameters - on_device.parameters) < 1e-6);
    if (plan.precision.compute == core::DataType::fp32) tiny::check_equal(on_host);
    // All of them but for tied embeddings and for what tensor ranks must still add up lie there from the
    // beginning to the end of the step, gradients too.
    const schedule::Program program = tiny::program_of(plan, graph);
    std::size_t stays = 0;
    for (const schedule::RankProgram& list : program.classes)
        for (const schedule::Buffer& buffer : list.buffers)
            CHECK_FALSE((buffer.is_persistent && buffer.kind == schedule::MemoryKind::parameters));
    for (const schedule::ParameterBucket& bucket : program.classes[0].buckets) stays += !bucket.sums_on_host;
    CHECK(stays < program.classes[0].buckets.size());
    CHECK(on_host.run.memory.peak[0] < on_device.run.memory.peak[0]);
}

TEST_CASE("activations that left are back before the first half of a split backward") {
    schedule::Plan plan = tiny::plan();
    plan.micro_batches = 8;
    plan.layout.pipeline = 2;
    plan.schedule = GENERATE(as<std::string>{}, "zb-h1", "zb-h2", "zb-v", "v-half", "dualpipe-v");
    plan.virtual_stages = plan.schedule.starts_with("zb-h") ? 1 : 2;
    plan.attention = GENERATE(model::AttentionImplementation::flash, model::AttentionImplementation::unfused);
    plan.offload = schedule::Offload::host;
    plan.activation_loading_horizon = GENERATE(1, 4);
    const model::ModelGraph graph = tiny::gpt(6, "dropout = 0.1\nattention_dropout = 0.1");
    SECTION("alone") {
        using schedule::Recompute;
        std::tie(plan.recompute, plan.recompute_layers) = GENERATE(table<Recompute, int>(
            {{Recompute::none, 0}, {Recompute::selective, 0}, {Recompute::full, 2}, {Recompute::full, 0}}));
    }
    in_divided_sections(plan);
    INFO(core::to_toml(schedule::to_value(plan)));
    const schedule::Program program = tiny::program_of(plan, graph);
    const auto copies = std::count_if(
        program.classes[0].instructions.begin(), program.classes[0].instructions.end(),
        [](const schedule::Instruction& i) { return i.kind == schedule::InstructionKind::copy; });
    if (plan.recompute != schedule::Recompute::full) CHECK(copies > 0);
    tiny::check_equal(tiny::compare(plan, graph));
}

TEST_CASE("the axes run beside asynchronous and bidirectional schedules") {
    schedule::Plan plan = tiny::plan();
    plan.schedule =
        GENERATE(as<std::string>{}, "pipedream", "pipedream-2bw", "chimera", "dualpipe", "dualpipe-v");
    plan.layout.pipeline = 2;
    plan.schedule_parameters = schedule::GroupParameters{plan.schedule == "pipedream-2bw" ? 2 : 0};
    plan.virtual_stages = plan.schedule == "dualpipe-v" ? 2 : 1;
    SECTION("experts") { plan.layout.data = plan.layout.expert = 2; }
    SECTION("experts and sequences") { plan.layout.data = plan.layout.context = plan.layout.expert = 2; }
    SECTION("offload") {
        plan.offload = schedule::Offload::host;
        plan.activation_loading_horizon = 1;
    }
    INFO(core::to_toml(schedule::to_value(plan)));
    tiny::check_equal(tiny::compare(plan, tiny::mixtral(4)));
}

TEST_CASE("what is wanted back within the horizon does not leave") {
    schedule::Plan plan = tiny::plan();  // 1F1B on one rank: the backward of a unit is at most 2 x 6 - 1
                                         // tasks after its forward
    plan.offload = schedule::Offload::host;
    const auto copies = [&](int horizon) {
        plan.activation_loading_horizon = horizon;
        const schedule::Program program = tiny::program_of(plan, tiny::gpt(4));
        return std::count_if(
            program.classes[0].instructions.begin(), program.classes[0].instructions.end(),
            [](const schedule::Instruction& i) { return i.kind == schedule::InstructionKind::copy; });
    };
    // Units: embedding, four layers, head. Forward of unit u is task u, its backward 11 - u. It leaves when
    // 11 - 2 u >= horizon + 2: the embedding (nothing to keep but ids), layers 1 to 4 are units 1 ... 4 with
    // distances 9, 7, 5, 3.
    CHECK(copies(1) == 2 * 4 * 4);
    CHECK(copies(4) == 2 * 2 * 4);
    CHECK(copies(9) == 0);
}

TEST_CASE("ranks that share a head of keys and values train as one rank does") {
    schedule::Plan plan = tiny::plan();
    plan.layout.tensor = 4;
    plan.sequence_parallel = GENERATE(false, true);
    const int kv_heads = GENERATE(1, 2);
    SECTION("alone") {}
    SECTION("recomputed") { plan.recompute = schedule::Recompute::full; }
    SECTION("attention recomputed") { plan.recompute = schedule::Recompute::selective; }
    SECTION("in a pipeline with split backward, sharded") {
        plan.layout.pipeline = 2;
        plan.layout.data = 2;
        plan.schedule = "zb-h1";
        plan.sharding = schedule::Sharding::optimizer;
    }
    SECTION("clipped") { plan.optimizer.gradient_clipping = 0.02; }
    const model::ModelGraph graph = tiny::model_of(fmt::format(
        "family = 'llama'\nhidden = 32\nffn = 24\nlayers = 3\nheads = 8\nkv_heads = {}\nvocabulary = 32\n"
        "max_positions = 8\nsequence_length = 8\n",
        kv_heads));
    INFO(core::to_toml(schedule::to_value(plan)) << "\nkv_heads = " << kv_heads);
    tiny::check_equal(tiny::compare(plan, graph));
    // Forward and backward of 4 micro-batches of 3 layers gather the projection of 2 x 8 rows in fp32, as
    // many columns as heads of 4 elements.
    const double gathers = 2 * 4 * 3, columns = (8 + 2 * kv_heads) * 4;
    double bytes = 0;
    const schedule::Program program = tiny::program_of(plan, graph);
    for (const schedule::RankProgram& list : program.classes)
        for (const schedule::Instruction& i : list.instructions)
            if (i.kind == schedule::InstructionKind::collective &&
                i.collective == schedule::CollectiveKind::all_gather &&
                i.group == schedule::GroupKind::tensor && i.operators.size() == 1 &&
                graph.operators[i.operators.begin].kind == model::OperatorKind::attention)
                bytes += i.bytes.value;
    if (plan.recompute == schedule::Recompute::none && plan.layout.data == 1)
        CHECK(bytes == gathers * 2 * 8 * columns * 4);
}
