#include <catch2/catch.hpp>

#include <tuple>

#include "core/diagnostics.h"
#include "exec/runtime/parameters.h"
#include "model/builder/vision/convolutional.h"
#include "schedule/pipeline/registry.h"
#include "tests/exec/tiny.h"

TEST_CASE("one rank trains as the reference does") {
    schedule::Plan plan = tiny::plan();
    SECTION("GPT") { tiny::check_equal(tiny::compare(plan, tiny::gpt())); }
    SECTION("GPT with dropout") {
        tiny::check_equal(tiny::compare(plan, tiny::gpt(2, "dropout = 0.2\nattention_dropout = 0.3")));
    }
    SECTION("Llama") { tiny::check_equal(tiny::compare(plan, tiny::llama())); }
    SECTION("unfused attention") {
        plan.attention = model::AttentionImplementation::unfused;
        tiny::check_equal(tiny::compare(plan, tiny::gpt(2, "dropout = 0.2\nattention_dropout = 0.3")));
    }
    SECTION("fused cross-entropy") {
        plan.fused_cross_entropy = true;
        tiny::check_equal(tiny::compare(plan, tiny::gpt()));
    }
}

TEST_CASE("a pipeline of every registered schedule trains as the reference does") {
    const model::ModelGraph graph = tiny::gpt(6);
    for (const schedule::PipelineSchedule& candidate : schedule::pipeline_schedules()) {
        if (candidate.is_forward_only || candidate.is_asynchronous || candidate.cuts_sequences()) continue;
        for (const int ranks : {2, 3, 4}) {
            schedule::Plan plan = tiny::plan();
            plan.schedule = candidate.name;
            plan.layout.pipeline = ranks;
            plan.micro_batches = 2 * ranks;
            plan.micro_batch = 1;
            plan.virtual_stages = candidate.least_chunks;
            if (plan.stages() > static_cast<int>(graph.units.size())) continue;
            core::Diagnostics diagnostics;
            if (!schedule::make_schedule(plan, diagnostics)) continue;
            INFO(candidate.name << " with " << ranks << " ranks");
            tiny::check_equal(tiny::compare(plan, graph, 1));
        }
    }
}

TEST_CASE("asynchronous schedules train as an emulation with the same staleness does") {
    const model::ModelGraph graph = tiny::llama(5);
    schedule::Plan plan = tiny::plan();
    plan.micro_batch = 1;
    plan.micro_batches = GENERATE(2, 7);
    plan.layout.pipeline = GENERATE(1, 2, 4);
    plan.optimizer.momentum = 0.5;
    plan.optimizer.learning_rate =
        0.01;  // seven updates a step at 0.1 leave the region where rounding stays small
    INFO(plan.micro_batches << " micro-batches on " << plan.layout.pipeline << " stages");
    SECTION("PipeDream") { plan.schedule = "pipedream"; }
    SECTION("2BW, an update every 4 micro-batches") {
        plan.schedule = "pipedream-2bw";
        plan.schedule_parameters = schedule::GroupParameters{4};
    }
    tiny::check_equal(tiny::compare(plan, graph));
    if (plan.layout.pipeline == 2) {
        plan.layout.data = 2;
        tiny::check_equal(tiny::compare(plan, graph));
        plan.layout.data = 1;
        plan.layout.tensor = 2;
        plan.sequence_parallel = true;
        plan.recompute = schedule::Recompute::full;
        tiny::check_equal(tiny::compare(plan, graph));
    }
}

TEST_CASE("bidirectional schedules train as the reference does with every other parallelism") {
    const model::ModelGraph graph = GENERATE(tiny::gpt(4), tiny::llama(4));
    schedule::Plan plan = tiny::plan();
    plan.micro_batch = 1;
    plan.layout.pipeline = 2;
    plan.schedule = GENERATE(as<std::string>{}, "chimera", "dualpipe");
    plan.optimizer.learning_rate = 0.02;
    INFO(plan.schedule << " on " << graph.family);
    SECTION("tensor parallelism") {
        plan.layout.tensor = 2;
        plan.sequence_parallel = GENERATE(false, true);
    }
    SECTION("data parallelism") {
        plan.layout.data = 2;
        plan.sharding = GENERATE(schedule::Sharding::none, schedule::Sharding::optimizer,
                                 schedule::Sharding::gradients, schedule::Sharding::parameters);
    }
    tiny::check_equal(tiny::compare(plan, graph));
}

TEST_CASE("mixed parallelism trains as the reference does") {
    schedule::Plan plan = tiny::plan();
    plan.layout.order = GENERATE(as<std::string>{}, "PDT", "TPD");
    SECTION("pipeline 2 x data 2") {
        plan.layout.pipeline = plan.layout.data = 2;
        plan.sharding = GENERATE(schedule::Sharding::none, schedule::Sharding::optimizer,
                                 schedule::Sharding::gradients, schedule::Sharding::parameters);
        INFO(schedule::name_of(plan.sharding));
        tiny::check_equal(tiny::compare(plan, tiny::gpt()));
    }
    SECTION("pipeline 2 x tensor 2, tied embedding") {
        plan.layout.pipeline = plan.layout.tensor = 2;
        plan.sequence_parallel = GENERATE(false, true);
        tiny::check_equal(tiny::compare(plan, tiny::gpt()));
    }
    SECTION("all three, with two virtual stages") {
        plan.layout.pipeline = plan.layout.tensor = plan.layout.data = 2;
        plan.virtual_stages = 2;
        plan.schedule = "interleaved";
        plan.sequence_parallel = GENERATE(false, true);
        plan.recompute = GENERATE(schedule::Recompute::none, schedule::Recompute::full);
        plan.sharding = GENERATE(schedule::Sharding::none, schedule::Sharding::gradients);
        tiny::check_equal(tiny::compare(plan, tiny::gpt(), 1));
    }
    SECTION("hybrid sharding: 2 of 4 replicas") {
        plan.layout.data = 4;
        plan.shard_degree = 2;
        plan.sharding = GENERATE(schedule::Sharding::optimizer, schedule::Sharding::gradients,
                                 schedule::Sharding::parameters);
        INFO(schedule::name_of(plan.sharding));
        tiny::check_equal(tiny::compare(plan, tiny::gpt()));
    }
    SECTION("sharded parameters with recomputation") {
        plan.layout.data = 2;
        plan.sharding = schedule::Sharding::parameters;
        plan.recompute = GENERATE(schedule::Recompute::selective, schedule::Recompute::full);
        plan.overlaps_parameter_gathering = GENERATE(true, false);
        tiny::check_equal(tiny::compare(plan, tiny::llama()));
    }
}

TEST_CASE("BERT, convolutional networks and the other decoders train as the reference does") {
    schedule::Plan plan = tiny::plan();
    plan.micro_batches = 2;
    SECTION("BERT with both losses, split in every way") {
        const model::ModelGraph graph = tiny::model_of(
            "family = 'bert'\nhidden = 16\nlayers = 2\nheads = 4\nvocabulary = 30\nmax_positions = "
            "8\nsequence_length = 8\nmasked_positions = 2\ndropout = "
            "0.1\nattention_dropout = 0.1");
        plan.layout.pipeline = GENERATE(1, 2);
        plan.layout.tensor = GENERATE(1, 2);
        tiny::check_equal(tiny::compare(plan, graph));
    }
    SECTION("convnet") {
        const model::ModelGraph graph = tiny::model_of(
            "family = 'convnet'\nimage_size = 8\nchannels = 1\nconvolutions = [3]\nkernel = 3\ndense = "
            "[12]\nclasses = 5");
        plan.layout.pipeline = GENERATE(1, 2);
        plan.layout.data = GENERATE(1, 2);
        tiny::check_equal(tiny::compare(plan, graph));
    }
    SECTION("residual network with batch norm") {
        model::ResnetDescription description;
        description.name = "tiny residual network";
        description.depth = 18;
        description.image_size = 32;
        description.base_channels = 4;
        description.classes = 5;
        description.has_small_stem = GENERATE(true, false);
        plan.layout.pipeline = 2;
        plan.layout.data = GENERATE(1, 2);
        plan.micro_batch =
            4;  // the last stage normalises over 4 pixels of 4 samples: fewer values magnify rounding
        INFO((description.has_small_stem ? "small stem" : "stem of 7 x 7 with pooling"));
        tiny::check_equal(tiny::compare(plan, model::build_resnet(description), 1), 1e-3);
    }
    SECTION("residual network of bottlenecks") {
        model::ResnetDescription description;
        description.name = "tiny residual network";
        description.depth = 50;
        description.image_size = 32;
        description.base_channels = 4;
        description.classes = 5;
        description.has_small_stem = true;
        plan.micro_batch = 4;
        // Gradients through fifty batch norms grow exponentially with depth (Yang et al., arXiv 1902.08129),
        // and rounding with them: only the loss is compared.
        CHECK(tiny::compare(plan, model::build_resnet(description), 1).losses < 1e-4);
    }
    SECTION("parallel residual, rotary on a part of the head") {
        plan.layout.tensor = GENERATE(1, 2);
        tiny::check_equal(tiny::compare(
            plan, tiny::model_of("family = 'gpt-neox'\nhidden = 16\nlayers = 2\nheads = 2\nvocabulary = "
                                 "30\nmax_positions = 8\nsequence_length = 8\nrotary_fraction = 0.5")));
    }
    SECTION("T5: relative positions, cross-attention, encoder and decoder over a pipeline") {
        const model::ModelGraph graph = tiny::model_of(
            "family = 't5'\nhidden = 16\nffn = 24\nlayers = 2\ndecoder_layers = 2\nheads = 4\nhead_dimension "
            "= 4\nvocabulary = 30\n"
            "sequence_length = 10\ndecoder_sequence_length = 6\nrelative_buckets = 8\nrelative_distance = "
            "16\ndropout = 0.1");
        plan.optimizer.learning_rate = 0.01;
        plan.layout.pipeline = GENERATE(1, 3);
        plan.layout.tensor = GENERATE(1, 2);
        plan.attention =
            GENERATE(model::AttentionImplementation::flash, model::AttentionImplementation::unfused);
        plan.schedule = GENERATE(as<std::string>{}, "1f1b", "zb-h1");
        tiny::check_equal(tiny::compare(plan, graph));
    }
    SECTION("ALiBi") {
        plan.layout.tensor = GENERATE(1, 2);
        tiny::check_equal(tiny::compare(
            plan, tiny::model_of("family = 'bloom'\nhidden = 24\nlayers = 2\nheads = 6\nvocabulary = "
                                 "30\nmax_positions = 8\nsequence_length = 8")));
    }
    SECTION("sliding window") {
        tiny::check_equal(
            tiny::compare(plan, tiny::model_of("family = 'mistral'\nhidden = 16\nffn = 24\nlayers = 2\nheads "
                                               "= 4\nkv_heads = 2\nvocabulary = "
                                               "30\nmax_positions = 80\nsequence_length = 80\nwindow = 5")));
    }
}

TEST_CASE("gradients are clipped by the norm of all of them, however they are divided") {
    schedule::Plan plan = tiny::plan();
    plan.optimizer.gradient_clipping = GENERATE(0.05, 100.0);  // below and above every norm that occurs
    const model::ModelGraph graph = tiny::gpt(4, "dropout = 0.1");
    SECTION("one rank") {}
    SECTION("pipeline 2 x tensor 2, tied embedding") {
        plan.layout.pipeline = plan.layout.tensor = 2;
        plan.sequence_parallel = GENERATE(false, true);
    }
    SECTION("pipeline 2 x data 2, sharded") {
        plan.layout.pipeline = plan.layout.data = 2;
        plan.sharding = GENERATE(schedule::Sharding::none, schedule::Sharding::optimizer,
                                 schedule::Sharding::gradients, schedule::Sharding::parameters);
    }
    SECTION("hybrid sharding") {
        plan.layout.data = 4;
        plan.shard_degree = 2;
        plan.sharding = schedule::Sharding::gradients;
    }
    SECTION("both directions") {
        plan.layout.pipeline = 2;
        plan.schedule = "chimera";
    }
    tiny::check_equal(tiny::compare(plan, graph));
}

TEST_CASE("training in bf16 with fp32 master parameters follows the reference within its precision") {
    schedule::Plan plan = tiny::plan();
    plan.precision = {core::DataType::bf16, core::DataType::bf16,
                      GENERATE(core::DataType::bf16, core::DataType::fp32), true};
    plan.optimizer.kind = GENERATE(schedule::OptimizerKind::sgd, schedule::OptimizerKind::adamw);
    plan.optimizer.learning_rate = plan.optimizer.kind == schedule::OptimizerKind::sgd ? 0.1 : 1e-3;
    plan.optimizer.gradient_clipping = 1.0;
    plan.attention = GENERATE(model::AttentionImplementation::flash, model::AttentionImplementation::unfused);
    const model::ModelGraph graph =
        GENERATE(tiny::gpt(4, "dropout = 0.1\nattention_dropout = 0.1"), tiny::llama(4));
    const exec::RunResult alone = tiny::compare(plan, graph).run;
    SECTION("one rank") {}
    SECTION("pipeline: the same bits") {
        plan.layout.pipeline = 4;
        CHECK(tiny::compare(plan, graph).run.losses[0] == alone.losses[0]);
    }
    SECTION("data, sharded") {
        plan.layout.data = 2;
        plan.sharding =
            GENERATE(schedule::Sharding::none, schedule::Sharding::optimizer, schedule::Sharding::parameters);
    }
    SECTION("tensor and pipeline") {
        plan.layout.pipeline = plan.layout.tensor = 2;
        plan.sequence_parallel = GENERATE(false, true);
        plan.recompute = schedule::Recompute::full;
    }
    // bf16 keeps 8 bits: one rounding is 2^-9 of a value at most, and a forward pass of some twenty operators
    // averages over many.
    const tiny::Comparison comparison = tiny::compare(plan, graph);
    INFO("worst gradient: " << comparison.worst);
    CHECK(comparison.losses < 0.004);
    CHECK(comparison.gradients < 0.12);
    CHECK(comparison.losses > 1e-7);  // it does round
    CHECK(comparison.copies == 0);
}

TEST_CASE("the first step of Adam moves every parameter by the learning rate, to the precision of fp32") {
    // First moment (1 - b1) g over 1 - b1, second (1 - b2) g^2 over 1 - b2: the update is the rate times g /
    // |g|, if 1 - b2 is that of the real number: the difference from beta2 in fp32 would be 1.3e-5 off and
    // the update 6e-6.
    schedule::Plan plan = tiny::plan();
    plan.optimizer.kind = schedule::OptimizerKind::adamw;
    plan.optimizer.learning_rate = 1;
    plan.optimizer.epsilon = 1e-30;
    const model::ModelGraph graph = tiny::gpt(1);
    const exec::RunResult run = tiny::compare(plan, graph, 1).run;
    double largest = 0;
    for (std::size_t p = 0; p < graph.parameters.size(); ++p) {
        std::vector<float> before(run.parameters[p].size());
        exec::initialize(graph.parameters[p], exec::RunOptions{}.seed,
                         exec::element_runs(graph.parameters[p], exec::ParameterShare{}), before.data());
        for (std::size_t i = 0; i < before.size(); ++i)
            if (std::abs(run.gradients[p][i]) > 1e-5f)
                largest = std::max(largest, std::abs(std::abs(static_cast<double>(run.parameters[p][i]) -
                                                              static_cast<double>(before[i])) -
                                                     1));
    }
    CHECK(largest < 1e-6);  // parameters up to 2 in fp32: 2.4e-7
}

TEST_CASE("losses stay with the reference over 20 steps of AdamW") {
    schedule::Plan plan = tiny::plan();
    plan.optimizer.kind = schedule::OptimizerKind::adamw;
    plan.optimizer.learning_rate = 1e-3;
    plan.optimizer.weight_decay = 0.1;
    plan.layout.data = 2;
    plan.sharding = schedule::Sharding::optimizer;
    const tiny::Comparison comparison = tiny::compare(plan, tiny::gpt(2), 20);
    CHECK(comparison.losses < 1e-6);
    CHECK(comparison.run.losses.back() < comparison.run.losses.front());
}

TEST_CASE("data parallelism trains as the reference does") {
    schedule::Plan plan = tiny::plan();
    plan.layout.data = GENERATE(2, 3);
    plan.overlaps_gradient_reduction = GENERATE(true, false);
    plan.sharding = GENERATE(schedule::Sharding::none, schedule::Sharding::optimizer,
                             schedule::Sharding::gradients, schedule::Sharding::parameters);
    INFO(schedule::name_of(plan.sharding) << " over " << plan.layout.data);
    tiny::check_equal(tiny::compare(plan, tiny::gpt()));
}

TEST_CASE("tensor parallelism trains as the reference does") {
    schedule::Plan plan = tiny::plan();
    plan.layout.tensor = 2;
    plan.sequence_parallel = GENERATE(false, true);
    using schedule::Recompute;
    std::tie(plan.recompute, plan.recompute_layers) = GENERATE(table<Recompute, int>(
        {{Recompute::none, 0}, {Recompute::selective, 0}, {Recompute::full, 1}, {Recompute::full, 0}}));
    INFO("sequence parallel " << plan.sequence_parallel << ", recompute "
                              << schedule::recomputation_text(plan));
    SECTION("GPT") {
        tiny::check_equal(tiny::compare(plan, tiny::gpt(2, "dropout = 0.1\nattention_dropout = 0.1")));
    }
    SECTION("Llama") { tiny::check_equal(tiny::compare(plan, tiny::llama(2))); }
}

TEST_CASE("what the CPU backend cannot run is refused by name before anything runs") {
    const auto refusals = [](const model::ModelGraph& graph, const schedule::Plan& plan) {
        core::Diagnostics diagnostics;
        exec::check_runnable(plan, graph, diagnostics);
        return core::format(diagnostics);
    };
    const schedule::Plan plan = tiny::plan();
    const auto of_family = [&](const std::string& toml) { return refusals(tiny::model_of(toml), plan); };
    CHECK(refusals(tiny::gpt(), plan).empty());
    const std::string detector = of_family("family = 'mask_rcnn'\nimage_size = 256\nregions = 64");
    CHECK_THAT(detector, Catch::Contains("no kernel for frozen operators"));
    CHECK_THAT(detector, Catch::Contains("no kernel for batch norm with fixed statistics"));
    CHECK_THAT(of_family("family = 'transformer_xl'\nhidden = 16\nffn = 32\nlayers = 1\nheads = "
                         "2\nvocabulary = 30\nsequence_length = 8\nmemory_length = 8"),
               Catch::Contains("no kernel for attention to relative positions and a memory"));
}

TEST_CASE("buckets exchanged beside the computation give the same bits as in list order") {
    schedule::Plan plan = tiny::plan();
    plan.layout.data = 2;
    plan.layout.pipeline = GENERATE(1, 2);
    plan.sharding = GENERATE(schedule::Sharding::none, schedule::Sharding::optimizer,
                             schedule::Sharding::gradients, schedule::Sharding::parameters);
    plan.optimizer.kind = schedule::OptimizerKind::adamw;
    const auto [in_order, beside] = tiny::in_order_and_beside(plan, tiny::gpt());
    INFO(schedule::name_of(plan.sharding) << ", pipeline " << plan.layout.pipeline);
    CHECK(beside.losses == in_order.losses);
    CHECK(beside.parameters == in_order.parameters);
    CHECK(beside.timelines.back().spans.size() == in_order.timelines.back().spans.size());
}

TEST_CASE("steps whose cores somebody else had are not measured, unless hardly any other is left") {
    const auto run_of = [](const std::vector<std::pair<double, double>>& steps) {  // time, lost share
        exec::RunResult result;
        for (const auto& [time, lost] : steps) {
            result.step_times.push_back(core::Seconds(time));
            result.conditions.push_back({{}, lost});
            result.timelines.emplace_back();
            result.timelines.back().makespan = core::Seconds(time);
        }
        return result;
    };
    const exec::RunResult disturbed = run_of({{9, 0}, {4, 0.01}, {8, 0.3}, {6, 0}, {7, 0.1}, {5, 0.02}});
    const auto steps = exec::measured_steps(disturbed, 1, true);
    CHECK(steps == std::vector<std::size_t>{1, 3, 5});
    const exec::StepTimes times = exec::summarize(disturbed, steps, 1);
    CHECK(times.median.value == 5);
    CHECK(times.least.value == 4);
    CHECK(times.steps == 3);
    CHECK(times.left_out == 2);
    CHECK(times.lost_share == Approx(0.01));
    CHECK(exec::nearest_timeline(disturbed, steps, core::Seconds(6.9)).makespan.value ==
          6);  // 7 is nearer, but was disturbed
    CHECK(exec::measured_steps(disturbed, 1, false).size() ==
          5);  // ranks share cores: every step is as good as another
    CHECK(exec::measured_steps(run_of({{1, 0}, {2, 0}, {3, 0.5}, {4, 0.5}}), 0, true).size() == 4);
    CHECK(exec::measured_steps(run_of({{1, 0.5}}), 1, true) ==
          std::vector<std::size_t>{0});  // a warm-up step, where there is no other
}
