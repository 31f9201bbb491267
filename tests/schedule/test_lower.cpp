#include <catch2/catch.hpp>

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "core/diagnostics.h"
#include "core/document.h"
#include "model/load.h"
#include "schedule/pass/lower.h"
#include "schedule/pipeline/registry.h"
#include "schedule/plan/memory.h"
#include "schedule/plan/plan_file.h"
#include "tests/model/catalogue.h"

using namespace schedule;

namespace {

// Equal numbers of units per stage.
Plan plan_of(const model::ModelGraph& graph, int data, int tensor, int pipeline, int micro_batches,
             int virtual_stages = 1) {
    Plan plan;
    plan.layout = {.data = data, .tensor = tensor, .pipeline = pipeline};
    plan.virtual_stages = virtual_stages;
    plan.micro_batches = micro_batches;
    plan.schedule = virtual_stages > 1 ? "interleaved-1f1b" : "1f1b";
    for (int s = 0; s < plan.stages(); ++s)
        plan.partition.first_units.push_back(s * static_cast<int>(graph.units.size()) / plan.stages());
    return plan;
}

Program lowered(const Plan& plan, const model::ModelGraph& graph) {
    core::Diagnostics diagnostics;
    const std::optional<Schedule> order = make_schedule(plan, diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(order);
    return lower(plan, graph, *order);
}

template <class Predicate>
std::size_t count(const RankProgram& list, Predicate matches) {
    return static_cast<std::size_t>(
        std::count_if(list.instructions.begin(), list.instructions.end(), matches));
}

bool is_collective(const Instruction& i, CollectiveKind kind, GroupKind group, PayloadKind payload) {
    return i.kind == InstructionKind::collective && i.collective == kind && i.group == group &&
           i.payload == payload;
}

std::vector<std::string> text_of(const Program& program, int class_index) {
    std::vector<std::string> lines;
    for (std::uint32_t i = 0; i < program.classes[static_cast<std::size_t>(class_index)].instructions.size();
         ++i)
        lines.push_back(describe(program, class_index, i));
    return lines;
}

}  // namespace

TEST_CASE("one rank with one micro-batch zeroes, runs forward and backward, and updates") {
    const model::ModelGraph graph = load_graph("mnist-convnet");
    const Program program = lowered(plan_of(graph, 1, 1, 1, 1), graph);
    const int operators = static_cast<int>(graph.operators.size());
    const std::string range = "ops [0, " + std::to_string(operators) + ")";
    CHECK(text_of(program, 0) == std::vector<std::string>{"0 zero_gradients", "1 compute F0 stage 0 " + range,
                                                          "2 compute B0 stage 0 " + range,
                                                          "3 optimizer_step bucket 0"});
}

TEST_CASE("a pipeline of two sends activations down and gradients up, once per micro-batch") {
    const model::ModelGraph graph = load_graph("gpt-tiny");
    const Program program = lowered(plan_of(graph, 1, 1, 2, 3), graph);
    // [128 tokens, 128 features] in bf16.
    const double message = 128 * 128 * 2;
    for (const RankProgram& list : program.classes) {
        CHECK(count(list, [&](const Instruction& i) {
                  return i.kind == InstructionKind::send && i.bytes.value == message;
              }) == 3);
        CHECK(count(list, [&](const Instruction& i) {
                  return i.kind == InstructionKind::receive && i.bytes.value == message;
              }) == 3);
    }
    // The tied embedding is summed over both ends.
    for (const RankProgram& list : program.classes) {
        CHECK(count(list, [](const Instruction& i) {
                  return is_collective(i, CollectiveKind::all_reduce, GroupKind::tied_stages,
                                       PayloadKind::parameter_gradient);
              }) == 1);
        CHECK(list.buckets.back().tied_ranks == std::vector<std::int32_t>{0, 1});
    }
    const Instruction& tied =
        *std::find_if(program.classes[0].instructions.begin(), program.classes[0].instructions.end(),
                      [](const Instruction& i) { return i.group == GroupKind::tied_stages; });
    CHECK(members_of(program, 1, tied) == std::vector<int>{0, 1});
}

TEST_CASE(
    "tensor parallelism performs two all-reduces per layer forward and two backward, and those of embedding, "
    "head and loss") {
    const model::ModelGraph graph = load_graph("gpt-tiny");
    const int layers = 4;
    const Program program = lowered(plan_of(graph, 1, 2, 1, 1), graph);
    const RankProgram& list = program.classes[0];
    const auto on_tensor = [&](CollectiveKind kind, PayloadKind payload) {
        return count(
            list, [&](const Instruction& i) { return is_collective(i, kind, GroupKind::tensor, payload); });
    };
    CHECK(on_tensor(CollectiveKind::all_reduce, PayloadKind::activation) ==
          2 * layers + 1);  // + the embedding's exit
    CHECK(on_tensor(CollectiveKind::all_reduce, PayloadKind::activation_gradient) ==
          2 * layers + 1);                                                       // + the head's enter
    CHECK(on_tensor(CollectiveKind::all_gather, PayloadKind::activation) == 1);  // the loss statistics
}

TEST_CASE(
    "sequence parallelism turns each all-reduce into a gather and a scatter, and gathers again for the "
    "weights' gradients") {
    const model::ModelGraph graph = load_graph("gpt-tiny");
    const int layers = 4;
    Plan plan = plan_of(graph, 1, 2, 1, 1);
    plan.sequence_parallel = true;
    const RankProgram list = lowered(plan, graph).classes[0];
    const auto on_tensor = [&](CollectiveKind kind, PayloadKind payload, ComputePhase phase) {
        return count(list, [&](const Instruction& i) {
            return is_collective(i, kind, GroupKind::tensor, payload) && i.phase == phase;
        });
    };
    CHECK(on_tensor(CollectiveKind::all_gather, PayloadKind::activation, ComputePhase::forward) ==
          2 * layers + 2);  // + the head's enter and the loss statistics
    CHECK(on_tensor(CollectiveKind::reduce_scatter, PayloadKind::activation, ComputePhase::forward) ==
          2 * layers + 1);
    CHECK(on_tensor(CollectiveKind::all_gather, PayloadKind::activation, ComputePhase::recompute) ==
          2 * layers + 1);
    CHECK(on_tensor(CollectiveKind::reduce_scatter, PayloadKind::activation_gradient,
                    ComputePhase::backward) == 2 * layers + 1);
    CHECK(on_tensor(CollectiveKind::all_gather, PayloadKind::activation_gradient, ComputePhase::backward) ==
          2 * layers + 1);
    CHECK(on_tensor(CollectiveKind::all_reduce, PayloadKind::activation, ComputePhase::forward) == 0);
    // Norms and positions see a share of the tokens only; biases after a reduce-scatter do not.
    for (const ParameterBucket& bucket : list.buckets)
        for (const model::ParameterId id : bucket.parameters) {
            const std::string& name = graph.parameter(id).name;
            INFO(name);
            CHECK(bucket.is_partial_over_tensor ==
                  (name.find("norm") != std::string::npos || name.find("positions") != std::string::npos));
        }
    CHECK(count(list,
                [](const Instruction& i) {
                    return is_collective(i, CollectiveKind::all_reduce, GroupKind::tensor,
                                         PayloadKind::parameter_gradient);
                }) == static_cast<std::size_t>(std::count_if(list.buckets.begin(), list.buckets.end(),
                                                             [](const ParameterBucket& b) {
                                                                 return b.is_partial_over_tensor;
                                                             })));
}

TEST_CASE(
    "every parameter of a rank lies in exactly one bucket, at its place, for every sharding and layout") {
    const model::ModelGraph graph = load_graph("gpt-tiny");
    for (const Sharding sharding :
         {Sharding::none, Sharding::optimizer, Sharding::gradients, Sharding::parameters})
        for (const int pipeline : {1, 2, 3})
            for (const int virtual_stages : {1, 2}) {
                if (pipeline == 1 && virtual_stages == 2) continue;
                Plan plan = plan_of(graph, 4, 1, pipeline, pipeline, virtual_stages);
                plan.sharding = sharding;
                plan.gradient_bucket = core::kibibytes(64);
                const Program program = lowered(plan, graph);
                for (const RankProgram& list : program.classes) {
                    std::set<int> expected, seen;
                    for (const StageInfo& stage : program.stages)
                        if (stage.rank == list.pipeline)
                            for (int i = stage.operators.begin; i < stage.operators.end; ++i)
                                for (const model::ParameterId id :
                                     graph.operators[static_cast<std::size_t>(i)].parameters)
                                    expected.insert(id.index);
                    for (const ParameterBucket& bucket : list.buckets) {
                        std::int64_t offset = 0;
                        for (std::size_t k = 0; k < bucket.parameters.size(); ++k) {
                            CHECK(seen.insert(bucket.parameters[k].index).second);
                            CHECK(bucket.offsets[k] == offset);
                            offset +=
                                model::parameter_elements(graph, bucket.parameters[k], plan.cost_context());
                        }
                        CHECK(bucket.elements == offset);
                        CHECK(bucket.padded_elements % (sharding == Sharding::none ? 1 : 4) == 0);
                        CHECK(bucket.padded_elements - bucket.elements < 4);
                    }
                    CHECK(seen == expected);
                }
            }
}

TEST_CASE("gradients are reduced once a step, or after every micro-batch when they are sharded") {
    const model::ModelGraph graph = load_graph("llama-tiny");  // nothing tied
    const int micro_batches = 3;
    for (const Sharding sharding :
         {Sharding::none, Sharding::optimizer, Sharding::gradients, Sharding::parameters}) {
        Plan plan = plan_of(graph, 4, 1, 1, micro_batches);
        plan.sharding = sharding;
        plan.gradient_bucket = core::kibibytes(100);
        const RankProgram list = lowered(plan, graph).classes[0];
        const std::size_t buckets = list.buckets.size();
        REQUIRE(buckets > 2);
        const auto times = [&](CollectiveKind kind, PayloadKind payload) {
            return count(list, [&](const Instruction& i) {
                return i.kind == InstructionKind::collective && i.collective == kind && i.payload == payload;
            });
        };
        CHECK(times(CollectiveKind::all_reduce, PayloadKind::parameter_gradient) ==
              (sharding == Sharding::none ? buckets : 0));
        CHECK(times(CollectiveKind::reduce_scatter, PayloadKind::parameter_gradient) ==
              (sharding == Sharding::none        ? 0
               : sharding == Sharding::optimizer ? buckets
                                                 : buckets * micro_batches));
        // Sharded parameters: before forward and before backward of every micro-batch; else once after the
        // update.
        CHECK(times(CollectiveKind::all_gather, PayloadKind::parameter) == (sharding == Sharding::none ? 0
                                                                            : sharding == Sharding::parameters
                                                                                ? buckets * micro_batches * 2
                                                                                : buckets));
        CHECK(count(list, [](const Instruction& i) { return i.kind == InstructionKind::optimizer_step; }) ==
              buckets);
    }
}

TEST_CASE("LAMB adds norms up over the groups that divide a bucket, and over no others") {
    // Norms of a bucket are on their way while those of the next are taken; where nothing is divided the step
    // follows at once.
    const auto update_of = [](const RankProgram& list, std::size_t bucket) {
        std::vector<std::string> lines;
        for (const Instruction& i : list.instructions) {
            if (i.bucket != static_cast<std::int32_t>(bucket)) continue;
            if (i.kind == InstructionKind::update_norm) lines.emplace_back("norm");
            if (i.payload == PayloadKind::update_norm) {
                lines.emplace_back(name_of(i.group));
                CHECK(
                    i.bytes ==
                    core::bytes(
                        8.0 * static_cast<double>(
                                  list.buckets[bucket].parameters.size())));  // two fp32 numbers a parameter
            }
            if (i.kind == InstructionKind::optimizer_step) lines.emplace_back("step");
        }
        return lines;
    };
    using Lines = std::vector<std::string>;
    const model::ModelGraph dense = load_graph("llama-tiny");
    core::Diagnostics diagnostics;
    const auto document = core::parse_toml(
        "family = 'mixtral'\nhidden = 64\nffn = 48\nlayers = 3\nheads = 4\nkv_heads = 2\nvocabulary = "
        "96\nmax_positions = 8\n"
        "sequence_length = 8\nexperts = 4\nexperts_per_token = 2",
        "test", diagnostics);
    REQUIRE(document);
    const model::ModelGraph mixture = *model::load_model(*document, {}, diagnostics);
    struct Case {
        int data, tensor, expert, degree;
        Sharding sharding;
        Lines of_dense, of_experts;
    };
    const Lines alone{"norm", "step"}, shards{"norm", "shard", "step"},
        experts{"norm", "expert_data", "step"}, tensor{"norm", "tensor", "step"};
    const std::vector<Case> cases = {
        {1, 1, 1, 0, Sharding::none, alone, {}},
        {4, 1, 1, 0, Sharding::none, alone, {}},
        {4, 1, 1, 0, Sharding::optimizer, shards, {}},
        {4, 1, 1, 2, Sharding::parameters, shards, {}},
        {1, 2, 1, 0, Sharding::none, tensor, {}},
        {4, 2, 1, 0, Sharding::gradients, {"norm", "shard", "tensor", "step"}, {}},
        {4, 1, 2, 0, Sharding::none, alone, experts},
        {4, 1, 4, 0, Sharding::optimizer, shards,
         experts},  // as many experts as shards: a rank has its own whole
        {4, 1, 2, 0, Sharding::optimizer, shards, shards},   // every expert in two pieces
        {4, 1, 4, 2, Sharding::optimizer, shards, experts},  // spread wider than shards
        {2, 2, 2, 0, Sharding::none, tensor, {"norm", "expert_data", "tensor", "step"}},
    };
    for (const Case& c : cases) {
        INFO("data " << c.data << ", tensor " << c.tensor << ", experts over " << c.expert << ", shards "
                     << c.degree << ", " << name_of(c.sharding));
        const model::ModelGraph& graph = c.expert > 1 ? mixture : dense;
        Plan plan = plan_of(graph, c.data, c.tensor, 1, 2);
        plan.layout.expert = c.expert;
        plan.sharding = c.sharding;
        plan.shard_degree = c.degree;
        plan.optimizer.kind = OptimizerKind::lamb;
        plan.gradient_bucket = core::kibibytes(4);
        const RankProgram list = lowered(plan, graph).classes[0];
        REQUIRE(list.buckets.size() > 2);
        std::size_t of_experts = 0;
        for (std::size_t b = 0; b < list.buckets.size(); ++b) {
            CHECK(update_of(list, b) == (list.buckets[b].is_expert ? c.of_experts : c.of_dense));
            of_experts += list.buckets[b].is_expert;
        }
        CHECK((of_experts > 0) == (c.expert > 1));
        // Every norm that is added up is taken before the first step.
        std::size_t first_step = list.instructions.size(), last_sum = 0;
        for (std::size_t n = list.instructions.size(); n-- > 0;)
            if (list.instructions[n].kind == InstructionKind::optimizer_step) first_step = n;
            else if (list.instructions[n].payload == PayloadKind::update_norm)
                last_sum = std::max(last_sum, n);
        CHECK(last_sum < first_step);
    }
}

TEST_CASE("hybrid sharding sums the pieces over the replicas once a step") {
    const model::ModelGraph graph = load_graph("llama-tiny");
    for (const Sharding sharding : {Sharding::optimizer, Sharding::gradients, Sharding::parameters}) {
        Plan plan = plan_of(graph, 4, 1, 1, 2);
        plan.sharding = sharding;
        plan.shard_degree = 2;
        const RankProgram list = lowered(plan, graph).classes[0];
        double pieces = 0, full = 0;
        for (const Instruction& i : list.instructions)
            if (is_collective(i, CollectiveKind::all_reduce, GroupKind::replica,
                              PayloadKind::parameter_gradient)) {
                CHECK(i.on_shard);
                pieces += i.bytes.value;
            }
        for (const ParameterBucket& bucket : list.buckets)
            full += static_cast<double>(bucket.padded_elements) * 2;
        CHECK(pieces == full / 2);
        // Where reductions may run beside the backward pass, so may these: only the last unit's come after
        // it.
        std::size_t last_backward = 0, before = 0, after = 0;
        for (std::size_t n = 0; n < list.instructions.size(); ++n)
            if (list.instructions[n].kind == InstructionKind::compute) last_backward = n;
        for (std::size_t n = 0; n < list.instructions.size(); ++n)
            if (is_collective(list.instructions[n], CollectiveKind::all_reduce, GroupKind::replica,
                              PayloadKind::parameter_gradient))
                ++(n < last_backward ? before : after);
        INFO(before << " before the last pass, " << after << " after it");
        if (sharding == Sharding::parameters) CHECK((before >= list.buckets.size() - 2 && before > 0));
    }
}

TEST_CASE("recomputing everything repeats each layer once, and selective recomputation each attention core") {
    const model::ModelGraph graph = load_graph("gpt-tiny");
    Plan plan = plan_of(graph, 1, 1, 2, 2);
    for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
        plan.recompute = recompute;
        const Program program = lowered(plan, graph);
        int repeated = 0, expected = 0;
        for (const RankProgram& list : program.classes)
            for (const Instruction& i : list.instructions)
                if (i.kind == InstructionKind::compute && i.phase == ComputePhase::recompute)
                    repeated += i.operators.size();
        for (const model::Unit& unit : graph.units)
            if (recompute == Recompute::full && unit.name.rfind("layers.", 0) == 0)
                expected += unit.operators.size();
        for (const model::Operator& op : graph.operators)
            expected += recompute == Recompute::selective && op.in_attention_core;
        CHECK(repeated == expected * plan.micro_batches);
    }
}

TEST_CASE("of a layer what recompute_modules names runs again, just before the backward that reads it") {
    struct Kinds {
        std::vector<model::OperatorKind> again;
        std::size_t a_layer;
    };
    using model::OperatorKind;
    Plan plan = plan_of(load_graph("gpt-tiny"), 1, 1, 2, 2);
    plan.recompute = Recompute::selective;
    Kinds wanted;
    SECTION("norms") {
        plan.recompute_modules = {RecomputeModule::layernorm};
        wanted = {{OperatorKind::layer_norm, OperatorKind::rms_norm}, 2};
    }
    SECTION("activations") {
        plan.recompute_modules = {RecomputeModule::activation};
        wanted = {{OperatorKind::gelu, OperatorKind::gated_silu}, 1};
    }
    SECTION("both, and attention") {
        plan.recompute_modules = {RecomputeModule::core_attn, RecomputeModule::layernorm,
                                  RecomputeModule::activation};
        wanted = {{OperatorKind::layer_norm, OperatorKind::rms_norm, OperatorKind::gelu,
                   OperatorKind::gated_silu, OperatorKind::attention},
                  4};
    }
    for (const char* name : {"gpt-tiny", "llama-tiny"})
        for (const char* order : {"1f1b", "zb-h1"}) {
            plan.schedule = order;
            const model::ModelGraph graph = load_graph(name);
            const Program program = lowered(plan, graph);
            const auto layers =
                std::count_if(graph.units.begin(), graph.units.end(),
                              [](const model::Unit& unit) { return unit.name.rfind("layers.", 0) == 0; });
            std::size_t repeated = 0;
            for (const RankProgram& list : program.classes)
                for (std::size_t n = 0; n < list.instructions.size(); ++n) {
                    const Instruction& i = list.instructions[n];
                    if (i.kind != InstructionKind::compute || i.phase != ComputePhase::recompute) continue;
                    REQUIRE(i.operators.size() == 1);
                    const model::Operator& op = graph.operators[i.operators.begin];
                    CHECK(std::count(wanted.again.begin(), wanted.again.end(), op.kind) == 1);
                    ++repeated;
                    // What comes next reads it, or is another one that runs again for it.
                    const Instruction& next = list.instructions[n + 1];
                    if (next.phase == ComputePhase::recompute) continue;
                    const std::int32_t last = op.kind == OperatorKind::attention
                                                  ? i.operators.begin
                                                  : graph.tensor(op.output).consumers.back().index;
                    CHECK(next.operators.end > last);
                    CHECK(next.operators.begin <= last);
                }
            CHECK(repeated == wanted.a_layer * std::size_t(layers) * std::size_t(plan.micro_batches));
        }
}

TEST_CASE("what experts make again waits for gradients of weights as if it had been kept") {
    const model::ModelGraph graph = load_graph("mixtral-8x7b");
    const model::OperatorRange all{0, core::count_of(graph.operators)};
    Plan kept;
    kept.recompute = Recompute::selective;
    kept.recompute_modules = {RecomputeModule::mlp};  // it has none
    Plan again = kept;
    again.recompute_modules = {RecomputeModule::moe_act};
    const ActivationFootprint before = activation_footprint(graph, all, kept),
                              after = activation_footprint(graph, all, again);
    const double layers = 32, products = 2.0 * double(graph.tokens_per_sample) * 2 * 14336;
    CHECK(before.saved.value - after.saved.value == Approx(layers * products));
    CHECK((after.saved_for_weight + after.kept_for_weight).value ==
          Approx((before.saved_for_weight + before.kept_for_weight).value));
    // One layer at a time has them all in a backward that is not split.
    CHECK((after.saved + after.backward_transient).value <=
          (before.saved + before.backward_transient).value - (layers - 1) * products * (1 - 1e-9));
}

TEST_CASE("what runs again of a layer is not kept, nor anything else less") {
    // Of a token's layer, in elements: its input twice normed, the output of an activation.
    const auto saved = [](const model::ModelGraph& graph, Plan plan, RecomputeModules modules) {
        plan.recompute = Recompute::selective;
        plan.recompute_modules = modules;
        const auto at = [&](const char* name) {
            return std::find_if(graph.units.begin(), graph.units.end(),
                                [&](const model::Unit& unit) { return unit.name == name; })
                ->operators;
        };
        return activation_footprint(graph, at("layers.1"), plan).saved.value;
    };
    Plan plan;
    plan.micro_batch = 3;
    plan.attention = model::AttentionImplementation::flash;
    plan.layout.tensor = GENERATE(1, 2);
    plan.sequence_parallel = plan.layout.tensor > 1;
    const double tensor = plan.layout.tensor, bf16 = 2, fp32 = 4;
    const model::ModelGraph llama = load_graph("llama-tiny");
    const auto one_of = [&](model::OperatorKind kind) {
        const auto at = std::find_if(llama.operators.begin(), llama.operators.end(),
                                     [&](const model::Operator& op) { return op.kind == kind; });
        return llama.tensor(at->output).shape;
    };
    const std::vector<std::int64_t> normed = one_of(model::OperatorKind::rms_norm),
                                    activated = one_of(model::OperatorKind::gated_silu);
    const double tokens = 3.0 * double(normed[0]) / tensor;
    // Norms also keep the reciprocal root of each token.
    const double norms = 2 * tokens * (bf16 * double(normed[1]) + fp32),
                 activation = tokens * bf16 * double(activated[1]);
    const double all = saved(llama, plan, {RecomputeModule::mla_up_proj});  // it has none
    CHECK(all - saved(llama, plan, {RecomputeModule::layernorm}) == Approx(norms));
    CHECK(all - saved(llama, plan, {RecomputeModule::activation}) == Approx(activation));
    CHECK(all - saved(llama, plan, {RecomputeModule::layernorm, RecomputeModule::activation}) ==
          Approx(norms + activation));
    // A dense feed-forward layer: its norm, gate and up, and their product.
    const double layer = norms / 2 + 3 * activation;
    CHECK(all - saved(llama, plan, {RecomputeModule::mlp}) == Approx(layer));
    // Norm and activation of the layer run again with it; the norm of attention is another one.
    CHECK(all - saved(llama, plan,
                      {RecomputeModule::layernorm, RecomputeModule::activation, RecomputeModule::mlp}) ==
          Approx(layer + norms / 2));

    // Mixtral 8x7B: probabilities of 8 experts, routed tokens there and back, gate and up of both experts of
    // a token, and their products; its norm with the others.
    Plan plain = plan;
    plain.layout.tensor = 1;
    plain.sequence_parallel = false;
    const model::ModelGraph mixtral = load_graph("mixtral-8x7b");
    const double mixtral_tokens = 3.0 * double(mixtral.tokens_per_sample), hidden = 4096, ffn = 14336;
    const double mixture = mixtral_tokens * bf16 * (8 + 2 * (2 * hidden + 3 * ffn)),
                 norm = mixtral_tokens * (bf16 * hidden + fp32);
    const double whole = saved(mixtral, plain, {RecomputeModule::mlp});  // it has none
    CHECK(whole - saved(mixtral, plain, {RecomputeModule::moe}) == Approx(mixture));
    CHECK(whole - saved(mixtral, plain, {RecomputeModule::moe, RecomputeModule::layernorm}) ==
          Approx(mixture + 2 * norm));
    // The products of gate and up alone; what goes into them is there.
    const double products = mixtral_tokens * bf16 * 2 * ffn;
    CHECK(whole - saved(mixtral, plain, {RecomputeModule::moe_act}) == Approx(products));
    CHECK(saved(mixtral, plain, {RecomputeModule::moe}) ==
          saved(mixtral, plain, {RecomputeModule::moe, RecomputeModule::moe_act}));

    // An expert of all tokens beside a mixture: gate and up, and their product.
    const double shared_ffn = 20480;
    const model::ModelGraph shared = graph_of([&] {
        core::Value table = core::Value::table();
        table["family"] = "mixtral";
        for (const auto& [key, value] : {std::pair<const char*, std::int64_t>{"hidden", 3584},
                                         {"ffn", 2560},
                                         {"layers", 2},
                                         {"heads", 28},
                                         {"kv_heads", 4},
                                         {"vocabulary", 1024},
                                         {"sequence_length", 512},
                                         {"max_positions", 512},
                                         {"experts", 8},
                                         {"experts_per_token", 2},
                                         {"shared_expert_ffn", int(shared_ffn)}})
            table[key] = value;
        return table;
    }());
    CHECK(saved(shared, plain, {RecomputeModule::mlp}) -
              saved(shared, plain, {RecomputeModule::shared_experts}) ==
          Approx(3.0 * 512 * bf16 * 3 * shared_ffn));

    // DeepSeek-V3 (arXiv 2412.19437, section 4.2): 128 heads of queries and keys of 192 and values of 128.
    // The latents that they are made of are kept anyhow, but for the 64 of the keys that all heads share.
    const model::ModelGraph deepseek = load_graph("deepseek-v3");
    plan.layout.tensor = 1;
    plan.sequence_parallel = false;
    const double packed = 128.0 * (192 + 192 + 128), shared_key = 64;
    const double unit_tokens = 3.0 * double(deepseek.tokens_per_sample);
    CHECK(saved(deepseek, plan, {RecomputeModule::activation}) -
              saved(deepseek, plan, {RecomputeModule::activation, RecomputeModule::mla_up_proj}) ==
          Approx(bf16 * unit_tokens * (packed - shared_key)));
}

TEST_CASE("recompute_layers repeats the first layers of each virtual stage, and no other") {
    const model::ModelGraph graph = load_graph("gpt2");  // twelve layers
    Plan plan = plan_of(graph, 1, 1, 2, 2, 2);
    plan.recompute = Recompute::full;
    // Embedding and three layers; two; five; two and the head.
    const std::vector<std::int32_t> first_units = {0, 4, 6, 11};
    plan.partition.first_units = first_units;
    const std::vector<std::set<std::string>> layers_of_two = {{"layers.0", "layers.1"},
                                                              {"layers.3", "layers.4"},
                                                              {"layers.5", "layers.6"},
                                                              {"layers.10", "layers.11"}};
    for (const int layers : {1, 2, 4, 12}) {
        plan.recompute_layers = layers;
        INFO("layers " << layers);
        const Program program = lowered(plan, graph);
        std::map<std::int32_t, std::map<std::string, int>> repeated;  // by stage and unit
        for (const RankProgram& list : program.classes)
            for (const Instruction& i : list.instructions)
                if (i.kind == InstructionKind::compute && i.phase == ComputePhase::recompute)
                    ++repeated[i.stage][graph.units[graph.operators[i.operators.begin].unit].name];
        REQUIRE(repeated.size() == 4);
        const std::size_t most[] = {3, 2, 5, 2};
        for (const auto& [stage, units] : repeated) {
            CHECK(units.size() == std::min(std::size_t(layers), most[stage]));
            for (const auto& [name, times] : units) {
                CHECK(times == plan.micro_batches);
                if (layers == 2) CHECK(layers_of_two[std::size_t(stage)].contains(name));
            }
        }
        // Less is kept the more runs again, down to what is kept where all do.
        const model::OperatorRange stage = program.stages[2].operators;
        Plan all = plan, fewer = plan;
        all.recompute_layers = 0;
        fewer.recompute_layers = 1;
        const auto saved = [&](const Plan& of) { return activation_footprint(graph, stage, of).saved; };
        CHECK((saved(plan) == saved(all)) == (layers >= 5));
        CHECK((saved(plan) < saved(fewer)) == (layers > 1));
    }
}

TEST_CASE(
    "every virtual stage repeats its own number of layers, and holds what a plan of that number holds") {
    const model::ModelGraph graph = load_graph("gpt2");  // twelve layers
    Plan plan = plan_of(graph, 1, 1, 2, 2, 2);
    plan.recompute = Recompute::full;
    plan.partition.first_units = {0, 4, 6, 11};  // embedding and three layers; two; five; two and the head
    for (const std::vector<std::int32_t>& layers :
         std::vector<std::vector<std::int32_t>>{{3, 1, 0, 2}, {0, 0, 4, 0}, {1, 9, 2, 1}}) {
        plan.recompute_layers_by_stage = layers;
        const Program program = lowered(plan, graph);
        std::vector<std::map<std::string, int>> repeated(4);  // by unit
        for (const RankProgram& list : program.classes)
            for (const Instruction& i : list.instructions)
                if (i.kind == InstructionKind::compute && i.phase == ComputePhase::recompute)
                    ++repeated[std::size_t(i.stage)]
                              [graph.units[graph.operators[i.operators.begin].unit].name];
        const std::size_t held[] = {3, 2, 5, 2};
        const int first[] = {0, 3, 5, 10};
        for (std::size_t s = 0; s < 4; ++s) {
            INFO("stage " << s);
            REQUIRE(repeated[s].size() == std::min(std::size_t(layers[s]), held[s]));
            for (int layer = 0; layer < int(repeated[s].size()); ++layer)
                CHECK(repeated[s]["layers." + std::to_string(first[s] + layer)] == plan.micro_batches);
        }
        // Stage by stage as in plans where all stages have that number.
        std::vector<model::OperatorRange> ranges;
        for (const StageInfo& stage : program.stages) ranges.push_back(stage.operators);
        const std::vector<ActivationFootprint> all =
            activation_footprints(graph, ranges, plan, nullptr, false, nullptr);
        for (std::size_t s = 0; s < 4; ++s) {
            Plan alike = plan;
            alike.recompute_layers_by_stage = {};
            alike.recompute = layers[s] > 0 ? Recompute::full : Recompute::none;
            alike.recompute_layers = layers[s];
            const ActivationFootprint one = activation_footprint(graph, program.stages[s].operators, alike);
            CHECK(all[s].saved == one.saved);
            CHECK(all[s].backward_transient == one.backward_transient);
        }
    }
}

// Bidirectional schedules have a copy of the model for each direction, whose stages are the same ones.
TEST_CASE("as many layers of each stage as of all are the same Program, under every schedule") {
    const model::ModelGraph graph = load_graph("gpt2");
    int compared = 0;
    for (const PipelineSchedule& entry : pipeline_schedules()) {
        if (entry.is_forward_only) continue;
        Plan plan = plan_of(graph, 1, 1, 2, 4, std::max(entry.least_chunks, 1));
        plan.schedule = entry.name;
        plan.recompute = Recompute::full;
        plan.recompute_layers = 1;
        Plan by_stage = plan;
        by_stage.recompute_layers = 0;
        by_stage.recompute_layers_by_stage.assign(std::size_t(plan.stages()), 1);
        core::Diagnostics diagnostics;
        check_plan(by_stage, graph, 2, nullptr, diagnostics);
        if (diagnostics.has_errors()) continue;
        INFO(entry.name);
        const Program one = lowered(plan, graph), other = lowered(by_stage, graph);
        REQUIRE(one.classes.size() == other.classes.size());
        for (std::size_t c = 0; c < one.classes.size(); ++c) {
            const RankProgram &a = one.classes[c], &b = other.classes[c];
            REQUIRE(a.instructions.size() == b.instructions.size());
            for (std::size_t i = 0; i < a.instructions.size(); ++i)
                CHECK(a.instructions[i].operators == b.instructions[i].operators);
            REQUIRE(a.buffers.size() == b.buffers.size());
            for (std::size_t i = 0; i < a.buffers.size(); ++i)
                CHECK(a.buffers[i].bytes == b.buffers[i].bytes);
        }
        ++compared;
    }
    CHECK(compared > 10);
}

TEST_CASE("recomputation keeps less and never more") {
    const model::ModelGraph graph = load_graph("gpt-tiny");
    for (const model::AttentionImplementation attention :
         {model::AttentionImplementation::unfused, model::AttentionImplementation::flash}) {
        Plan plan = plan_of(graph, 1, 1, 1, 1);
        plan.attention = attention;
        const model::OperatorRange all{0, static_cast<std::int32_t>(graph.operators.size())};
        std::vector<double> saved;
        for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
            plan.recompute = recompute;
            saved.push_back(activation_footprint(graph, all, plan).saved.value);
        }
        CHECK(saved[0] > saved[1]);
        CHECK(saved[1] > saved[2]);
    }
}

TEST_CASE(
    "a GPT layer of one tensor-parallel rank keeps s b h (34 + 5 a s / h) bytes without recomputation") {
    // Korthikanti et al., arXiv 2205.05198, equation 1, with dropout; the exact count of the stored tensors
    // of the second layer of two.
    core::Diagnostics diagnostics;
    const std::optional<core::Value> table = core::parse_toml(
        "family = 'gpt2'\nhidden = 512\nlayers = 3\nheads = 8\nffn = 2048\nvocabulary = 1000\nmax_positions "
        "= 256\ndropout = 0.1\nattention_dropout = "
        "0.1\nactivation = 'gelu'\n",
        "model", diagnostics);
    REQUIRE(table);
    const std::optional<model::ModelGraph> graph = model::load_model(*table, {}, diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(graph);
    Plan plan = plan_of(*graph, 1, 1, 1, 1);
    plan.micro_batch = 2;
    plan.attention = model::AttentionImplementation::unfused;
    const double s = 256, b = 2, h = 512, a = 8;
    const model::OperatorRange layer = graph->units[2].operators;
    const ActivationFootprint f = activation_footprint(*graph, layer, plan);
    CHECK(f.saved.value ==
          Approx(s * b * h * (34 + 5 * a * s / h)).epsilon(0.01));  // norms' statistics are ours
}

TEST_CASE(
    "state takes sixteen bytes per parameter in mixed precision with Adam, each kind divided by the degree "
    "from its stage of sharding on") {
    const model::ModelGraph graph = load_graph("llama-tiny");
    const model::OperatorRange all{0, static_cast<std::int32_t>(graph.operators.size())};
    const auto n = static_cast<double>(model::parameter_count(graph));
    for (int stage = 0; stage < 4; ++stage) {
        Plan plan = plan_of(graph, 8, 1, 1, 1);
        plan.sharding = static_cast<Sharding>(stage);
        const StateFootprint state = state_footprint(graph, all, plan);
        CHECK(state.parameters.value == 2 * n / (stage >= 3 ? 8 : 1));
        CHECK(state.gradients.value == 2 * n / (stage >= 2 ? 8 : 1));
        CHECK(state.optimizer.value == 12 * n / (stage >= 1 ? 8 : 1));  // two moments and the master copy
    }
}

TEST_CASE("gathering ahead moves gathers of sharded parameters, it leaves none out") {
    // Gradients of T5's position biases read the biases, and the head, whose gradients come first, has none:
    // in a backward_weight on its own there is nothing to gather for the first unit, but for the next one.
    core::Diagnostics diagnostics;
    const auto document = core::parse_toml(
        "family = 't5'\nhidden = 16\nffn = 32\nlayers = 4\nheads = 4\nvocabulary = 32\nsequence_length = 8\n",
        "test", diagnostics);
    const model::ModelGraph graph = *model::load_model(*document, {}, diagnostics);
    Plan plan = plan_of(graph, 2, 1, 2, 4);
    plan.schedule = "zb-h1";
    plan.sharding = Sharding::parameters;
    const auto gathers = [&](bool ahead) {
        plan.overlaps_parameter_gathering = ahead;
        const Program program = lowered(plan, graph);
        std::vector<std::int64_t> counts;
        for (const RankProgram& list : program.classes)
            counts.push_back(std::count_if(list.instructions.begin(), list.instructions.end(),
                                           [](const Instruction& instruction) {
                                               return instruction.kind == InstructionKind::collective &&
                                                      instruction.payload == PayloadKind::parameter;
                                           }));
        return counts;
    };
    CHECK(gathers(true) == gathers(false));
}

TEST_CASE("lowering is a function of its input") {
    const model::ModelGraph graph = load_graph("gpt-tiny");
    Plan plan = plan_of(graph, 2, 2, 2, 4);
    const std::string hash = hash_of(lowered(plan, graph));
    CHECK(hash.size() == 16);
    CHECK(hash_of(lowered(plan, graph)) == hash);
    plan.recompute = Recompute::full;
    CHECK(hash_of(lowered(plan, graph)) != hash);
}

TEST_CASE("a schedule alone lowers to compute and transfers") {
    core::Diagnostics diagnostics;
    Plan plan;
    plan.layout.pipeline = 3;
    plan.micro_batches = 4;
    const Program program = lower_compute_only(*make_schedule(plan, diagnostics));
    REQUIRE(program.classes.size() == 3);
    CHECK(program.classes[0].instructions.size() == 4 * (2 + 1 + 1));
    CHECK(program.classes[1].instructions.size() == 4 * (2 + 2 + 2));
}

TEST_CASE("an unknown schedule and a violated constraint are diagnosed") {
    core::Diagnostics diagnostics;
    Plan plan;
    plan.schedule = "1f1c";
    CHECK_FALSE(make_schedule(plan, diagnostics));
    CHECK(core::format(diagnostics).find("1f1b") != std::string::npos);
    core::Diagnostics more;
    plan.schedule = "1f1b";
    plan.virtual_stages = 2;
    plan.layout.pipeline = 2;
    CHECK_FALSE(make_schedule(plan, more));
    CHECK(more.has_errors());
}
