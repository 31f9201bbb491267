#include <catch2/catch.hpp>

#include <climits>

#include "core/diagnostics.h"
#include "core/document.h"
#include "core/random.h"
#include "schedule/pipeline/registry.h"
#include "schedule/plan/plan_file.h"
#include "tests/model/catalogue.h"

using namespace schedule;

namespace {

struct Reading {
    core::Diagnostics diagnostics;
    std::optional<PlanFile> file;

    explicit Reading(const std::string& toml) {
        const std::optional<core::Value> document = core::parse_toml(toml, "p.toml", diagnostics);
        if (document) file = read_plan_file(*document, "p.toml", diagnostics);
    }
    std::string text() const { return core::format(diagnostics); }
};

const std::string head =
    "version = 1\nmodel = {name = 'gpt-tiny'}\ncluster = {instance = 'p3.8xlarge', nodes = 1}\n";

bool says(const std::string& text, const std::string& part) {
    INFO(text);
    INFO("looking for: " << part);
    const bool found = text.find(part) != std::string::npos;
    CHECK(found);
    return found;
}

std::string checked(const Plan& plan, const model::ModelGraph& graph, int devices = INT_MAX) {
    core::Diagnostics diagnostics;
    check_plan(plan, graph, devices, nullptr, diagnostics);
    return core::format(diagnostics);
}

}  // namespace

TEST_CASE("a plan file says what it decides and keeps the defaults for the rest") {
    const Reading reading(
        head +
        "[plan]\ntensor_parallel = 8\npipeline_parallel = 4\ndata_parallel = 2\nvirtual_stages = "
        "2\nplacement = 'spread'\nschedule = "
        "'interleaved-1f1b'\nmicro_batch = 2\n"
        "global_batch = 64\nsharding = 'optimizer'\nshard_degree = 2\nrecompute = 'full'\nsequence_parallel "
        "= true\nprecision = 'fp16'\nattention = 'unfused'\n"
        "gradient_bucket = '10MiB'\npartition = [0, 1, 2, 3, 4, 5, 6, 7]\n[training]\noptimizer = "
        "'sgd'\nmomentum = 0.9\nlearning_rate = 0.1\nsteps = 3\n");
    INFO(reading.text());
    REQUIRE(reading.file);
    const Plan& plan = reading.file->plan;
    CHECK(plan.layout == ParallelLayout{.data = 2, .tensor = 8, .pipeline = 4, .order = "TPD"});
    CHECK(plan.micro_batches == 16);  // 64 / (2 x 2)
    CHECK(plan.global_batch() == 64);
    CHECK(plan.sharding == Sharding::optimizer);
    CHECK(plan.recompute == Recompute::full);
    CHECK(plan.precision ==
          Precision{core::DataType::fp16, core::DataType::fp16, core::DataType::fp16, true});
    CHECK(plan.attention == model::AttentionImplementation::unfused);
    CHECK(plan.gradient_bucket == core::mebibytes(10));
    CHECK(plan.partition.first_units.size() == 8);
    CHECK(plan.optimizer.kind == OptimizerKind::sgd);
    CHECK(plan.optimizer.momentum == 0.9);
    CHECK(reading.file->training.steps == 3);
    CHECK(Reading(head + "[plan]\n").file->plan == Plan{});
}

TEST_CASE("writing a plan file and reading it again changes nothing") {
    core::Random random(11);
    const auto any = [&](int below) {
        return static_cast<int>(random.below(static_cast<std::uint64_t>(below)));
    };
    const core::DataType types[] = {core::DataType::fp32, core::DataType::tf32, core::DataType::fp16,
                                    core::DataType::bf16, core::DataType::fp8};
    for (int trial = 0; trial < 200; ++trial) {
        PlanFile file;
        file.path = "p.toml";
        file.model = core::Value::table();
        file.model["name"] = "gpt-tiny";
        file.cluster = core::Value::table();
        file.cluster["instance"] = "p4d.24xlarge";
        Plan& plan = file.plan;
        plan.layout = {
            .data = 1 + any(8),
            .tensor = 1 + any(8),
            .pipeline = 1 + any(4),
            .order = std::vector<std::string>{"DPT", "DTP", "PDT", "PTD", "TDP", "TPD"}[random.below(6)]};
        plan.virtual_stages = 1 + any(3);
        const std::vector<PipelineSchedule>& registered = pipeline_schedules();
        const PipelineSchedule& chosen = registered[random.below(registered.size())];
        plan.schedule = chosen.name;
        const ScheduleParameters parameters[] = {AdmissionParameters{1 + any(3), any(2) == 1},
                                                 GroupParameters{1 + any(3)}, SegmentParameters{1 + any(3)}};
        for (const ScheduleParameters& kind : parameters)
            if (any(2) && kind.index() == chosen.parameters.index()) plan.schedule_parameters = kind;
        for (int s = 0; any(2) && s < plan.stages(); ++s)
            plan.partition.first_units.push_back(s == 0 ? 0 : plan.partition.first_units.back() + 1 + any(3));
        plan.micro_batch = 1 + any(9);
        plan.micro_batches = 1 + any(99);
        plan.sharding = static_cast<Sharding>(any(4));
        plan.shard_degree = any(5);
        plan.sequence_parallel = any(2);
        plan.recompute = static_cast<Recompute>(any(3));
        plan.recompute_layers = any(3);
        if (plan.recompute_layers == 0 && any(2)) {
            plan.recompute_layers_by_stage.resize(std::size_t(plan.stages()));
            for (std::int32_t& layers : plan.recompute_layers_by_stage) layers = any(3);
            plan.recompute_layers_by_stage.back() += 1;
        }
        if (plan.recompute == Recompute::selective) {
            plan.recompute_modules = {all_recompute_modules[any(6)]};
            if (any(2)) plan.recompute_modules.add(all_recompute_modules[any(6)]);
        }
        plan.precision = {types[any(5)], types[any(2) * 2], types[any(2) * 3], any(2) == 1};
        plan.attention = static_cast<model::AttentionImplementation>(any(3));
        plan.fused_cross_entropy = any(2);
        plan.optimizer.kind = static_cast<OptimizerKind>(any(4));
        plan.optimizer.learning_rate = random.uniform();
        if (plan.optimizer.kind == OptimizerKind::sgd) plan.optimizer.momentum = random.uniform();
        plan.optimizer.epsilon = 1e-12 * random.uniform();
        plan.optimizer.weight_decay = random.uniform();
        plan.gradient_bucket = any(2) ? core::mebibytes(any(100) + 1) : core::bytes(1 + any(1000000));
        plan.overlaps_gradient_reduction = any(2);
        plan.overlaps_parameter_gathering = any(2);
        plan.collective = any(2) ? "ring" : "auto";
        file.training = {.seed = random.next() >> 1,
                         .steps = 1 + any(100),
                         .data = any(2) ? "a b.txt" : "",
                         .data_format = any(2) ? "bytes" : "",
                         .shuffle_seed = {},
                         .eval_data = {},
                         .eval_data_format = {}};
        if (any(2)) file.training.shuffle_seed = random.next() >> 1;
        if (any(2)) {
            file.training.eval_data = "held out.bin";
            file.training.eval_data_format = any(2) ? "tokens32" : "";
            file.training.eval_every = any(100);
            file.training.eval_batches = any(100);
        }
        file.provenance = core::Value::table();
        file.provenance["tool"] = "smplan";

        const std::string text = write_plan_file(file);
        const Reading reading(text);
        INFO(text << reading.text());
        REQUIRE(reading.file);
        CHECK(reading.file->plan == plan);
        CHECK(reading.file->training == file.training);
        CHECK(core::to_json(reading.file->model) == core::to_json(file.model));
        CHECK(core::to_json(reading.file->provenance) == core::to_json(file.provenance));
        CHECK(reading.file->prediction.is_null());
        CHECK(write_plan_file(*reading.file) == text);
    }
}

TEST_CASE("wrong keys and values are all diagnosed at their place") {
    const Reading reading(head +
                          "[plan]\ntensor_paralel = 2\nmicro_batch = 0\nsharding = 'zero'\nprecision = "
                          "'bf61'\norder = 'DDT'\npartition = [1, "
                          "2]\ngradient_bucket = '25Mb'\nschedule = 4\n");
    CHECK_FALSE(reading.file);
    CHECK(reading.diagnostics.error_count() == 8);
    says(reading.text(), "p.toml:5:");
    says(reading.text(), "tensor_parallel");  // did you mean
    says(reading.text(), "micro_batch = 0");
    says(reading.text(), "none, optimizer, gradients or parameters");
    says(reading.text(), "bf16");
}

TEST_CASE("another version is refused, and so is none") {
    const Reading newer("version = 2\nmodel = {}\ncluster = {}\nplan = {colour = 1}\n");
    CHECK_FALSE(newer.file);
    CHECK(newer.diagnostics.error_count() == 1);
    says(newer.text(), "version = 2");
    const Reading none("model = {}\ncluster = {}\nplan = {}\n");
    CHECK_FALSE(none.file);
    says(none.text(), "version");
}

TEST_CASE("a global batch that cannot be divided or contradicts is an error with the neighbours that could") {
    const Reading reading(head + "[plan]\ndata_parallel = 4\nmicro_batch = 3\nglobal_batch = 64\n");
    CHECK_FALSE(reading.file);
    says(reading.text(), "global_batch = 64 is not a multiple of micro_batch = 3 x data_parallel = 4 = 12");
    says(reading.text(), "use 60 or 72");
    says(Reading(head + "[plan]\nmicro_batches = 3\nglobal_batch = 64\n").text(),
         "micro_batches or global_batch");
    CHECK(Reading(head + "[plan]\nmicro_batches = 64\nglobal_batch = 64\n").file);
}

TEST_CASE("what a plan cannot do is refused, not dropped") {
    says(Reading(head + "[plan]\noffload = 'activations'\n").text(), "offload");
    says(Reading(head + "[plan]\n[training]\noptimizer = 'adamw'\nmomentum = 0.9\n").text(),
         "momentum is of sgd");
    CHECK(Reading(head + "[plan]\nexpert_parallel = 1\noffload = 'none'\n").file);
}

TEST_CASE("the announcement's SageMaker block is read word for word, with Horovod and the idle half named") {
    // AWS announcement of 8 December 2020: {"enabled": True, "parameters": {"microbatches": 2, "partitions":
    // 2, "pipeline": "interleaved", "optimize": "memory", "horovod": True}}, processes_per_host = 2, on one
    // ml.p3.8xlarge with four V100.
    const std::string text = head +
                             "[plan]\n[plan.sagemaker]\nenabled = true\nprocesses_per_host = "
                             "2\n[plan.sagemaker.parameters]\nmicrobatches = 2\npartitions = "
                             "2\npipeline = 'interleaved'\n"
                             "optimize = 'memory'\nhorovod = true\n";
    const Reading reading(text);
    INFO(reading.text());
    REQUIRE(reading.file);
    const Plan& plan = reading.file->plan;
    CHECK(plan.layout == ParallelLayout{.data = 1, .tensor = 1, .pipeline = 2, .order = "DPT"});
    CHECK(plan.schedule == "interleaved");
    CHECK(plan.micro_batches == 2);
    CHECK(plan.parameters<AdmissionParameters>().is_strict);
    CHECK(plan.precision.compute == core::DataType::fp32);
    CHECK(reading.diagnostics.entries().size() == 1);
    says(reading.text(), "horovod = true does nothing here");

    core::Diagnostics diagnostics;
    const std::optional<core::Value> document = core::parse_toml(text, "p.toml", diagnostics);
    check_plan(plan, load_graph("mnist-convnet"), 4, document->find("plan"), diagnostics);
    CHECK_FALSE(diagnostics.has_errors());
    says(core::format(diagnostics), "2 of the cluster's 4 devices stay idle (50 %)");
}

TEST_CASE("all that is wrong with modules that run again is said at once") {
    const auto with = [](const std::string& plan) { return Reading(head + "[plan]\n" + plan).text(); };
    const std::string both = with("recompute = 'full'\nrecompute_modules = ['layernrom', 'mla_up_proj']\n");
    says(both, "'layernrom' is no module");
    says(both, "core_attn, layernorm, activation, mla_up_proj, mlp, moe");
    says(both, "with recompute = \"full\"");
    const std::string no_text = with("recompute_modules = [3]\n");
    says(no_text, "recompute_modules[0] = 3");
    says(no_text, "with recompute = \"none\"");
    const std::string mixed = with("recompute = 'selective'\nrecompute_modules = ['moe_akt', 3]\n");
    says(mixed, "'moe_akt' is no module");
    says(mixed, "recompute_modules[1] = 3");
    says(with("recompute = 'selective'\nrecompute_modules = []\n"), "names nothing");
}

TEST_CASE(
    "layers that run again are one number or one of each virtual stage, and what is neither is refused") {
    const auto reading = [](const std::string& keys) {
        return Reading(head + "[plan]\npipeline_parallel = 2\nvirtual_stages = 2\nrecompute = 'full'\n" +
                       keys);
    };
    const Reading list = reading("recompute_layers = [2, 0, 1, 0]\n");
    REQUIRE(list.file);
    CHECK(list.file->plan.recompute_layers_by_stage == std::vector<std::int32_t>{2, 0, 1, 0});
    CHECK(recomputation_text(list.file->plan) == "full (layers by stage: 2, 0, 1, 0)");
    CHECK(list.file->plan.of_stage(0).recompute_layers == 2);
    CHECK(list.file->plan.of_stage(1).recompute == Recompute::none);
    says(reading("recompute_layers = [0, 0, 0, 0]\n").text(), "no layer of any stage runs again");
    says(reading("recompute_layers = [1, -1, 0, 0]\n").text(), "recompute_layers[1] = -1");
    says(reading("recompute_layers = 'two'\n").text(), "recompute_layers");
    const model::ModelGraph graph = load_graph("gpt-tiny");
    Plan plan = reading("recompute_layers = [2, 1]\n").file->plan;
    says(checked(plan, graph, 8), "recompute_layers = [2, 1] is of 2 stages; the plan has 4");
    plan.recompute_layers_by_stage = {2, 1, 0, 0};
    plan.recompute = Recompute::selective;
    says(checked(plan, graph, 8), "recompute_layers = [2, 1, 0, 0] with recompute = \"selective\"");
}

TEST_CASE("SageMaker's own rules hold for its parameters") {
    const auto with = [](const std::string& parameters, const std::string& plan = "", int processes = 8) {
        return Reading(head + "[plan]\n" + plan + "[plan.sagemaker]\nprocesses_per_host = " +
                       std::to_string(processes) + "\n[plan.sagemaker.parameters]\n" + parameters);
    };
    says(with("microbatches = 2\n").text(), "partitions");
    says(with("partitions = 2\nhorovod = true\nddp = true\n").text(),
         "plan.sagemaker.parameters.horovod and plan.sagemaker.parameters.ddp cannot be given together");
    says(with("partitions = 2\npipeline = 'fast'\n").text(), "interleaved, simple or _only_forward");
    says(with("partitions = 2\nddp = true\nauto_partition = false\n").text(), "needs default_partition");
    says(with("partitions = 2\nddp = true\ndefault_partition = 2\n").text(), "not below partitions = 2");
    says(with("partitions = 2\nddp = true\nmemory_weight = 1.5\n").text(), "memory_weight = 1.5");
    says(with("partitions = 2\nddp_port = 80\n").text(), "ddp_port needs ddp = true");
    says(with("partitions = 2\ntensor_parallel_degree = 2\n").text(), "needs ddp = true");
    says(with("partitions = 3\nddp = true\n").text(), "8 processes cannot be divided into replicas of 3");
    says(with("partitions = 2\nddp = true\nsharded_data_parallel_degree = 2\n").text(),
         "cannot be given together");
    says(with("partitions = 2\nddp = true\nfp16 = true\n", "precision = 'bf16'\n").text(),
         "both set the precision");
    says(with("partitions = 2\nddp = true\n", "pipeline_parallel = 2\n").text(),
         "plan.pipeline_parallel and plan.sagemaker.parameters cannot be given together");
    says(with("partitions = 2\nddp = true\nmicrobatchs = 4\n").text(), "microbatches");
    const Reading away =
        with("partitions = 2\nddp = true\noffload_activations = true\nactivation_loading_horizon = 6\n");
    says(away.text(), "counts passes through units");
    REQUIRE(away.file);
    CHECK(away.file->plan.offload == Offload::host);
    CHECK(away.file->plan.activation_loading_horizon == 6);
    says(with("partitions = 2\n").text(), "neither ddp nor horovod");

    const Reading good = with(
        "partitions = 2\nmicrobatches = 4\nddp = true\nplacement_strategy = 'spread'\ntensor_parallel_degree "
        "= 2\nprescaled_batch = "
        "true\nshard_optimizer_state = true\n"
        "active_microbatches = 3\noptimize = 'speed'\npipeline = 'simple'\nfp16 = true\n");
    INFO(good.text());
    REQUIRE(good.file);
    CHECK(good.diagnostics.entries().size() == 1);
    says(good.text(), "active_microbatches has no effect");  // simple has one order
    const Plan& plan = good.file->plan;
    CHECK(plan.layout == ParallelLayout{.data = 2, .tensor = 2, .pipeline = 2, .order = "TPD"});
    CHECK(plan.sharding == Sharding::optimizer);
    CHECK(plan.schedule == "simple");
    CHECK(plan.precision.compute == core::DataType::fp16);
}

TEST_CASE("a key of another schedule is refused where it stands, with the schedules that take it") {
    const auto with = [](const std::string& schedule, const std::string& key) {
        return Reading(head + "[plan]\npipeline_parallel = 2\nmicro_batches = 4\nschedule = '" + schedule +
                       "'\n" + key + "\n")
            .text();
    };
    const std::tuple<const char*, const char*, const char*> others[] = {
        {"1f1b", "group_size = 4", "'interleaved-1f1b'"},
        {"interleaved-1f1b", "active_micro_batches = 3", "'interleaved'"},
        {"gpipe", "strict_order = false", "'interleaved'"},
        {"interleaved", "segments = 2", "seq1f1b"},
    };
    for (const auto& [schedule, key, taker] : others) {
        const std::string text = with(schedule, key);
        says(text, "p.toml:8:");
        says(text, " takes no ");
        says(text, taker);
    }
    CHECK(with("1f1b", "group_size = 0\nsegments = 1\nstrict_order = true").empty());  // ask for nothing
    CHECK(with("interleaved", "active_micro_batches = 3\nstrict_order = false").empty());
    CHECK(with("pipedream-2bw", "group_size = 2").empty());
}

TEST_CASE("ranks that divide tokens or experts stand on the data axis, and a batch counts replicas") {
    const Reading reading(head +
                          "[plan]\ndata_parallel = 2\ncontext_parallel = 2\nexpert_parallel = 4\nmicro_batch "
                          "= 2\nglobal_batch = 8\noffload = 'disk'\n"
                          "offload_bandwidth = '2GB/s'\nactivation_loading_horizon = 7\n");
    INFO(reading.text());
    REQUIRE(reading.file);
    const Plan& plan = reading.file->plan;
    CHECK(plan.layout == ParallelLayout{.data = 4, .context = 2, .expert = 4});
    CHECK(plan.layout.ranks() == 4);
    CHECK(plan.layout.replicas() == 2);
    CHECK(plan.micro_batches == 2);  // 8 = 2 samples x 2 replicas x 2
    CHECK(plan.global_batch() == 8);
    CHECK(plan.offload == Offload::disk);
    CHECK(plan.offload_bandwidth == core::gigabytes_per_second(2));
    const Reading again(write_plan_file(*reading.file));
    INFO(again.text());
    REQUIRE(again.file);
    CHECK(again.file->plan == plan);
}

TEST_CASE("whole experts are spread over tensor ranks and then over the data axis") {
    const std::string start = head +
                              "[plan]\ndata_parallel = 4\ntensor_parallel = 2\nsequence_parallel = true\n"
                              "micro_batches = 1\n";
    const Reading reading(start + "expert_parallel = 4\nexpert_tensor_parallel = 1\n");
    INFO(reading.text());
    REQUIRE(reading.file);
    const ParallelLayout layout = reading.file->plan.layout;
    CHECK(layout == ParallelLayout{.data = 4, .tensor = 2, .expert = 2, .has_whole_experts = true});
    CHECK(layout.expert_ranks() == 4);
    CHECK(layout.expert_tensor() == 1);
    const Reading again(write_plan_file(*reading.file));
    REQUIRE(again.file);
    CHECK(again.file->plan == reading.file->plan);
    // Ranks 0 to 7: tensor ranks fastest.
    CHECK(process_group(layout, GroupKind::expert, 5) == std::vector<int>{4, 5, 6, 7});
    CHECK(process_group(layout, GroupKind::expert_data, 5) == std::vector<int>{5, 7});
    CHECK(process_group(layout, GroupKind::expert_replica, 5) == std::vector<int>{1, 5});
    CHECK(process_group(layout, GroupKind::tokens, 5) == std::vector<int>{4, 5});
    // The usual degree, and none without tensor ranks.
    const Reading usual(start + "expert_parallel = 4\nexpert_tensor_parallel = 2\n");
    REQUIRE(usual.file);
    CHECK(usual.file->plan.layout == ParallelLayout{.data = 4, .tensor = 2, .expert = 4});
    CHECK(process_group(usual.file->plan.layout, GroupKind::expert, 5) == std::vector<int>{1, 3, 5, 7});
    says(Reading(start + "expert_parallel = 4\nexpert_tensor_parallel = 4\n").text(),
         "by tensor_parallel = 2, or not at all");
    says(Reading(start + "expert_parallel = 3\nexpert_tensor_parallel = 1\n").text(),
         "no multiple of tensor_parallel = 2");
}

TEST_CASE(
    "groups on the data axis are consecutive, and shards of experts are among ranks with the same ones") {
    const ParallelLayout layout{.data = 8, .context = 2, .expert = 4};
    CHECK(process_group(layout, GroupKind::context, 5) == std::vector<int>{4, 5});
    CHECK(process_group(layout, GroupKind::expert, 5) == std::vector<int>{4, 5, 6, 7});
    CHECK(process_group(layout, GroupKind::expert_replica, 5) == std::vector<int>{1, 5});
    CHECK(process_group(layout, GroupKind::expert_shard, 5, 8) == std::vector<int>{1, 5});
    CHECK(process_group(layout, GroupKind::expert_shard, 5, 4) == std::vector<int>{5});
    Plan plan;
    plan.layout = layout;
    plan.sharding = Sharding::optimizer;
    CHECK(plan.pieces(false) == 8);
    CHECK(plan.pieces(true) == 2);
    plan.shard_degree = 2;
    CHECK(plan.pieces(true) == 1);
    CHECK(plan.divides_gradients_by() == 4);
}

TEST_CASE("what cannot be divided or offloaded is said with its reason") {
    Plan plan;
    plan.layout.data = 4;
    plan.layout.expert = 2;
    says(checked(plan, load_graph("gpt-tiny")), "the model has no experts");
    plan.layout.expert = 3;
    says(checked(plan, load_graph("mixtral-8x7b")), "experts = 8");
    says(checked(plan, load_graph("mixtral-8x7b")), "expert_parallel = 3 does not divide");
    plan.layout.expert = 1;
    plan.layout.context = 2;
    says(checked(plan, load_graph("bert-tiny")), "needs all tokens of a sample");
    says(checked(plan, load_graph("t5-small")), "one sequence of tokens");
    CHECK(checked(plan, load_graph("llama-tiny")).find("error") == std::string::npos);
    plan.context_communication = ContextCommunication::all_to_all;
    CHECK(checked(plan, load_graph("gpt-tiny")).find("error") == std::string::npos);
    plan.recompute = Recompute::selective;
    says(checked(plan, load_graph("gpt-tiny")), "exclude each other");
    plan.recompute = Recompute::none;
    plan.layout.tensor = 8;
    says(checked(plan, load_graph("llama-2-70b")),  // eight heads of keys
         "context_parallel = 2 does not divide the 1 heads of keys and values of");
    plan.layout.tensor = 4;
    CHECK(checked(plan, load_graph("llama-2-70b")).find("error") == std::string::npos);
    plan.layout.tensor = 1;
    plan.layout.context = 1;
    says(checked(plan, load_graph("gpt-tiny")), "has no effect with context_parallel = 1");
    plan.context_communication = ContextCommunication::all_gather;
    plan.offload = Offload::disk;
    says(checked(plan, load_graph("gpt-tiny")), "needs offload_bandwidth");
    plan.offload = Offload::host;
    plan.layout.pipeline = 2;
    plan.micro_batches = 4;
    for (const char* schedule : {"1f1b", "zb-h1"}) {
        plan.schedule = schedule;
        CHECK(checked(plan, load_graph("gpt-tiny")).find("error") == std::string::npos);
    }
    plan.schedule = "seq1f1b";
    says(checked(plan, load_graph("gpt-tiny")), "offload works on whole sequences");
    plan.offload = Offload::none;
    plan.layout.context = 2;
    says(checked(plan, load_graph("llama-tiny")), "context_parallel works on whole sequences");
}

TEST_CASE("a tensor-parallel degree must divide the heads, and the message says which do") {
    Plan plan;
    plan.layout.tensor = 3;
    const std::string text = checked(plan, load_graph("bert-large"));
    says(text, "tensor_parallel = 3 does not divide heads = 16");
    says(text, "use 1, 2, 4, 8 or 16");
    plan.layout.tensor = 8;
    says(checked(plan, load_graph("gpt2")), "tensor_parallel = 8 does not divide heads = 12");
    plan.layout.tensor = 4;
    says(checked(plan, load_graph("gpt2")), "vocabulary = 50257 of gpt2 is padded to 50260");
    says(checked(plan, load_graph("mnist-convnet")), "tensor_parallel = 4 cannot split mnist-convnet");
}

TEST_CASE("a plan is checked against model and cluster, all at once") {
    const model::ModelGraph graph = load_graph("gpt-tiny");  // six units
    Plan plan;
    plan.layout = {.data = 4, .tensor = 1, .pipeline = 8};
    plan.sharding = Sharding::optimizer;
    plan.shard_degree = 3;
    plan.schedule = "nothing";
    const std::string text = checked(plan, graph, 16);
    says(text, "has 6 units to place");
    says(text, "shard_degree = 3 does not divide data_parallel = 4");
    says(text, "schedule = 'nothing'");
    says(text, "32 ranks need more than the cluster's 16 devices");
    CHECK(checked(plan, graph).find("devices") == std::string::npos);  // shared devices

    Plan good;
    good.layout = {.data = 2, .tensor = 2, .pipeline = 2};
    good.micro_batches = 4;
    CHECK(checked(good, graph, 8).empty());
    good.partition.first_units = {0, 9};
    says(checked(good, graph, 8), "names unit 9, but the units of gpt-tiny are 0 to 5");
    good.partition.first_units = {0};
    says(checked(good, graph, 8), "partition has 1 stages");
    good.partition.first_units.clear();
    good.sharding = Sharding::none;
    good.shard_degree = 2;
    says(checked(good, graph, 8), "contradict each other");
    good.shard_degree = 0;
    good.layout = {.data = 1, .tensor = 1, .pipeline = 1};
    good.sequence_parallel = true;
    good.sharding = Sharding::parameters;
    says(checked(good, graph, 1), "sequence_parallel = true has no effect");
    says(checked(good, graph, 1), "has no effect over one rank");
    good.micro_batches = 0;
    says(checked(good, graph, 1), "micro_batches = 0 is not positive");
}

TEST_CASE("degrees whose products no machine counts are refused before anything is computed from them") {
    const Reading reading(head +
                          "[plan]\ndata_parallel = 1048576\ntensor_parallel = 1048576\npipeline_parallel = "
                          "1048576\nvirtual_stages = 1048576\nmicro_batch = "
                          "1048576\nmicro_batches = 1048576\n");
    REQUIRE(reading.file);
    const std::string text = checked(reading.file->plan, load_graph("gpt-tiny"), 8);
    says(text, "ranks are");
    says(text, "passes are");
    says(text, "samples are");
}

TEST_CASE("fp8 is a format of products: activations are bf16, those of every other precision are in it") {
    using core::DataType;
    schedule::Plan plan;
    plan.precision.compute = DataType::fp8;
    CHECK(plan.precision.activations() == DataType::bf16);
    CHECK(plan.cost_context().compute == DataType::bf16);
    for (const DataType type : {DataType::fp32, DataType::tf32, DataType::fp16, DataType::bf16}) {
        plan.precision.compute = type;
        CHECK(plan.precision.activations() == type);
        CHECK(plan.cost_context().compute == type);
    }
}

TEST_CASE("moments that never take a gradient in are refused: their correction divides by zero") {
    const Reading wrong(head + "[plan]\n[training]\nbeta1 = 1\nbeta2 = 1.0\n");
    CHECK(wrong.diagnostics.error_count() == 2);
    CHECK(wrong.text().find("p.toml:6:9: error: training.beta1 = 1 must be below 1") != std::string::npos);
    CHECK_FALSE(Reading(head + "[plan]\n[training]\nbeta1 = 0\nbeta2 = 0.9999\n").diagnostics.has_errors());
}
