// Does a plan fit its model and cluster? Everything that is wrong at once, each at the key that can mend it.
#include <algorithm>
#include <limits>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "core/index/integers.h"
#include "model/model_graph.h"
#include "model/operators/cost.h"
#include "model/operators/rank_share.h"
#include "schedule/pass/lower.h"
#include "schedule/pass/recompute.h"
#include "schedule/pipeline/registry.h"
#include "schedule/plan/check_offload.h"
#include "schedule/plan/explicit_order.h"
#include "schedule/plan/plan_file.h"
#include "schedule/plan/planned_graph.h"
#include "schedule/plan/sequence_cut.h"
#include "schedule/program/pieces.h"

namespace schedule {

namespace {

class PlanChecker {
public:
    PlanChecker(const Plan& plan, const model::ModelGraph& graph, const core::Value* plan_table,
                core::Diagnostics& diagnostics)
        : plan_(plan), graph_(graph), plan_table_(plan_table), diagnostics_(diagnostics) {}

    void run(int device_count) {
        check_positive();
        if (!is_sound_) return;
        check_devices(device_count);
        check_tensor();
        check_pipeline();
        check_sharding();
        check_parts_of_data_axis();
        check_recompute();
        check_offload(plan_, [this](std::string_view key, std::string message, std::string hint) {
            error(key, std::move(message), std::move(hint));
        });
        if (plan_.offload != Offload::none && is_forward_only())
            warning("offload", "offload has no effect without a backward pass");
    }

private:
    // SageMaker's word for a key, when the plan was written in its words.
    static const char* sagemaker_key(std::string_view key) {
        if (key == "tensor_parallel") return "tensor_parallel_degree";
        if (key == "pipeline_parallel") return "partitions";
        if (key == "micro_batches") return "microbatches";
        if (key == "schedule") return "pipeline";
        if (key == "shard_degree" || key == "sharding") return "sharded_data_parallel_degree";
        return "";
    }
    core::SourceLocation location_of(std::string_view key) const {
        if (!plan_table_) return {};
        if (const core::Value* value = plan_table_->find(key)) return value->location;
        if (const core::Value* sagemaker = plan_table_->find("sagemaker"))
            if (const core::Value* parameters = sagemaker->find("parameters")) {
                const core::Value* value = parameters->find(sagemaker_key(key));
                return value ? value->location : parameters->location;
            }
        return plan_table_->location;
    }
    void error(std::string_view key, std::string message, std::string hint = {}) {
        diagnostics_.error(location_of(key), "plan." + std::string(key), std::move(message), std::move(hint));
    }
    void warning(std::string_view key, std::string message, std::string hint = {}) {
        diagnostics_.warning(location_of(key), "plan." + std::string(key), std::move(message),
                             std::move(hint));
    }

    void check_positive() {
        const std::pair<const char*, int> degrees[] = {
            {"data_parallel", plan_.layout.data},         {"tensor_parallel", plan_.layout.tensor},
            {"pipeline_parallel", plan_.layout.pipeline}, {"virtual_stages", plan_.virtual_stages},
            {"micro_batch", plan_.micro_batch},           {"micro_batches", plan_.micro_batches}};
        for (const auto& [key, value] : degrees)
            if (value < 1) {
                error(key, fmt::format("{} = {} is not positive", key, value), "use 1 or more");
                is_sound_ = false;
            }
        if (!is_sound_) return;
        // Larger products overflow what counts them, and no machine runs them.
        const double ranks = 1.0 * plan_.layout.data * plan_.layout.tensor * plan_.layout.pipeline;
        const double actions = 1.0 * plan_.layout.pipeline * plan_.virtual_stages * plan_.micro_batches;
        const double samples = 1.0 * plan_.micro_batch * plan_.micro_batches * plan_.layout.replicas();
        const auto limit = [&](const char* key, double value, double most, const std::string& what) {
            if (value <= most) return;
            error(key, fmt::format("{} are {:.0f}", what, value), fmt::format("at most {:.0f}", most));
            is_sound_ = false;
        };
        limit("data_parallel", ranks, 1 << 22,
              fmt::format("data_parallel = {} x tensor_parallel = {} x pipeline_parallel = {} ranks",
                          plan_.layout.data, plan_.layout.tensor, plan_.layout.pipeline));
        limit("micro_batches", actions, 1 << 25,
              fmt::format("pipeline_parallel = {} x virtual_stages = {} x micro_batches = {} passes",
                          plan_.layout.pipeline, plan_.virtual_stages, plan_.micro_batches));
        limit("micro_batches", samples, std::numeric_limits<std::int32_t>::max(),
              fmt::format("micro_batch = {} x micro_batches = {} x data_parallel = {} samples",
                          plan_.micro_batch, plan_.micro_batches, plan_.layout.replicas()));
    }

    void check_devices(int device_count) {
        if (device_count == std::numeric_limits<int>::max()) return;  // ranks may share devices (local CPU)
        const int ranks = plan_.layout.ranks();
        const std::string context = plan_.layout.context > 1
                                        ? fmt::format(" x context_parallel = {}", plan_.layout.context)
                                        : std::string();
        const std::string product =
            fmt::format("data_parallel = {}{} x tensor_parallel = {} x pipeline_parallel = {} = {} ranks",
                        plan_.layout.replicas(), context, plan_.layout.tensor, plan_.layout.pipeline, ranks);
        if (ranks > device_count) {
            error("data_parallel",
                  fmt::format("{} need more than the cluster's {} device{}", product, device_count,
                              device_count == 1 ? "" : "s"),
                  fmt::format("lower a degree, or use {} devices or more", ranks));
        } else if (ranks < device_count) {
            const int idle = device_count - ranks;
            warning("data_parallel",
                    fmt::format("{} of the cluster's {} devices stay idle ({:.0f} %): {}", idle, device_count,
                                100.0 * idle / device_count, product),
                    device_count % (plan_.layout.tensor * plan_.layout.pipeline) == 0
                        ? fmt::format("data_parallel = {} would use all",
                                      device_count / (plan_.layout.tensor * plan_.layout.pipeline))
                        : std::string());
        }
    }

    // Ranks that share heads of keys and values gather them; so do parts of sequences, another way.
    void check_shared_heads() {
        const PipelineSchedule* chosen = find_pipeline_schedule(plan_.schedule);
        const bool cuts_sequences = chosen && chosen->cuts_sequences();
        if (plan_.layout.context == 1 && !cuts_sequences) return;
        for (const model::Operator& op : graph_.operators) {
            if (!model::gathers_projection(op, plan_.cost_context())) continue;
            const std::int64_t heads = op.attributes.kv_heads;
            error(
                "tensor_parallel",
                fmt::format("tensor_parallel = {}: {} of {} has {} heads of keys and values, and ranks that "
                            "share them work on whole sequences, not with {}",
                            plan_.layout.tensor, op.name, graph_.name, heads,
                            cuts_sequences ? "schedule = " + core::in_quotes(schedule_label(plan_.schedule))
                                           : fmt::format("context_parallel = {}", plan_.layout.context)),
                fmt::format("use a tensor_parallel of at most {}", heads));
            return;
        }
    }

    void check_tensor_overlap() {
        const int pieces = plan_.tensor_overlap;
        if (pieces == 1) return;
        if (pieces < 1 || pieces > most_pieces)
            error("tensor_overlap", fmt::format("tensor_overlap = {} is no number of pieces", pieces),
                  fmt::format("use 1 to {}", most_pieces));
        else if (plan_.precision.compute == core::DataType::fp8)
            error("tensor_overlap",
                  fmt::format(
                      "tensor_overlap = {} and compute = \"fp8\" contradict each other: operands in fp8 "
                      "are scaled as a whole",
                      pieces),
                  "set tensor_overlap = 1, or compute in bf16");
        else if (plan_.layout.tensor == 1)
            warning("tensor_overlap",
                    fmt::format("tensor_overlap = {} has no effect with tensor_parallel = 1", pieces));
    }

    void check_tensor() {
        const int degree = plan_.layout.tensor;
        if (!check_experts(plan_, graph_, [&](std::string_view key, std::string message, std::string hint) {
                error(key, std::move(message), std::move(hint));
            }))
            return;
        const PlannedGraph planned(plan_, graph_);
        if (const auto unsupported = model::tensor_parallel_unsupported(*planned, degree)) {
            std::vector<std::string> allowed;
            for (int t = 1; t <= 128; ++t)
                if (!model::tensor_parallel_unsupported(*planned, t)) allowed.push_back(std::to_string(t));
            error("tensor_parallel",
                  unsupported->is_indivisible ? fmt::format("tensor_parallel = {} does not divide {} in {}",
                                                            degree, unsupported->reason, graph_.name)
                                              : fmt::format("tensor_parallel = {} cannot split {}: {}",
                                                            degree, graph_.name, unsupported->reason),
                  "use " + core::list_in_words(allowed));
        } else if (graph_.vocabulary % degree != 0) {
            const std::int64_t padded = (graph_.vocabulary + degree - 1) / degree * degree;
            warning(
                "tensor_parallel",
                fmt::format("vocabulary = {} of {} is padded to {} so that tensor_parallel = {} divides it",
                            graph_.vocabulary, graph_.name, padded, degree));
        }
        check_shared_heads();
        check_tensor_overlap();
        if (!plan_.sequence_parallel) return;
        if (degree == 1) {
            warning("sequence_parallel", "sequence_parallel = true has no effect with tensor_parallel = 1");
            return;
        }
        if (const auto unsupported = model::sequence_parallel_unsupported(graph_))
            error("sequence_parallel",
                  fmt::format("sequence_parallel = true cannot divide the tokens of {}: {}", graph_.name,
                              unsupported->reason),
                  "set it to false");
        for (const std::int64_t tokens : {graph_.tokens_per_sample, graph_.encoder_tokens_per_sample}) {
            const std::int64_t rows = tokens / plan_.layout.context * plan_.micro_batch;
            if (rows % degree != 0)
                error("sequence_parallel",
                      fmt::format("sequence_parallel = true: tensor_parallel = {} does not divide the {} "
                                  "tokens of a micro-batch ({} x micro_batch = {})",
                                  degree, rows, tokens, plan_.micro_batch),
                      fmt::format("make micro_batch a multiple of {}, or choose another sequence length",
                                  degree));
        }
    }

    void check_pipeline() {
        const auto units = core::count_of(graph_.units);
        const double stages = 1.0 * plan_.layout.pipeline * plan_.virtual_stages;
        if (stages > units) {
            error(plan_.virtual_stages > 1 ? "virtual_stages" : "pipeline_parallel",
                  fmt::format("pipeline_parallel = {} x virtual_stages = {} = {:.0f} stages, but {} has {} "
                              "units to place",
                              plan_.layout.pipeline, plan_.virtual_stages, stages, graph_.name, units),
                  fmt::format("use at most {} stages in all", units));
        }
        const std::vector<std::int32_t>& first = plan_.partition.first_units;
        if (const std::string& decided = plan_.partition.graph_hash;
            !decided.empty() && decided != model::hash_of(graph_)) {
            error("partition",
                  fmt::format("{} was decided for another graph: {} then, {} is {} now",
                              core::in_quotes(plan_.partition.file), decided, graph_.name,
                              model::hash_of(graph_)),
                  "partition the model again (smplan partition), or go back to the one it was made for");
            return;
        }
        if (!first.empty()) {
            if (first.size() != stages)
                error("partition",
                      fmt::format(
                          "partition has {} stages, pipeline_parallel = {} x virtual_stages = {} are {:.0f}",
                          first.size(), plan_.layout.pipeline, plan_.virtual_stages, stages),
                      "give the first unit of each stage, or leave it out for an automatic one");
            bool ascends = first.front() == 0;
            for (std::size_t i = 1; i < first.size(); ++i) ascends = ascends && first[i] > first[i - 1];
            if (!ascends)
                error("partition", "partition does not begin with 0 and ascend",
                      "give the first unit of each stage");
            if (first.back() >= units)
                error("partition", fmt::format("partition names unit {}, but the units of {} are 0 to {}",
                                               first.back(), graph_.name, units - 1));
        }
        if (!check_schedule(plan_, diagnostics_, 0, location_of("schedule"))) return;
        check_asynchronous();
        check_sequence_cut(plan_, graph_,
                           [this](std::string_view key, std::string message, std::string hint) {
                               error(key, std::move(message), std::move(hint));
                           });
    }

    // Stages of an asynchronous schedule update at different times: what would make them wait for each other
    // is refused.
    void check_asynchronous() {
        const PipelineSchedule* chosen = find_pipeline_schedule(plan_.schedule);
        if (!chosen || !chosen->is_asynchronous)
            return;  // an order of the plan's own, searched or given, is synchronous
        if (plan_.layout.pipeline == 1) return;
        for (const model::TiedParameter& tied : model::tied_parameters(graph_))
            error("schedule",
                  fmt::format("schedule = \"{}\" updates stages at different times, but {} of {} is shared "
                              "by several units",
                              plan_.schedule, graph_.parameter(tied.parameter).name, graph_.name),
                  "choose a synchronous schedule, or a model whose output layer has weights of its own");
    }

    void check_sharding() {
        if (plan_.sharding == Sharding::none) {
            if (plan_.shard_degree > 1)
                error("shard_degree",
                      fmt::format("shard_degree = {} and sharding = \"none\" contradict each other",
                                  plan_.shard_degree),
                      "set sharding to optimizer, gradients or parameters");
            return;
        }
        if (plan_.shard_degree < 0 || (plan_.shard_degree > 0 && plan_.layout.data % plan_.shard_degree != 0))
            error("shard_degree",
                  fmt::format("shard_degree = {} does not divide data_parallel = {}", plan_.shard_degree,
                              plan_.layout.data),
                  "use a divisor of data_parallel, or 0 for all of it");
        else if (plan_.effective_shard_degree() == 1 && !plan_.keeps_parameters_on_hosts())
            warning(
                "sharding",
                fmt::format(
                    "sharding = \"{}\" has no effect over one rank (data_parallel = {}, shard_degree = {})",
                    name_of(plan_.sharding), plan_.layout.data, plan_.shard_degree));
    }

    void check_context_communication() {
        if (plan_.context_communication == ContextCommunication::all_gather) return;
        const std::string given =
            fmt::format("context_communication = \"{}\"", name_of(plan_.context_communication));
        if (plan_.layout.context == 1)
            return warning("context_communication", given + " has no effect with context_parallel = 1");
        if (plan_.context_communication == ContextCommunication::ring) {
            if (const auto unsupported = model::ring_unsupported(graph_, plan_.cost_context()))
                error("context_communication", fmt::format("{}: no ring for {}", given, unsupported->reason),
                      "use \"all_gather\"");
            return;
        }
        if (plan_.runs_again(RecomputeModule::core_attn))
            error("context_communication",
                  given +
                      " and recompute = \"selective\" exclude each other: what would run again lies "
                      "between two exchanges",
                  "set recompute to none or full");
        if (const auto unsupported = model::head_exchange_unsupported(graph_, plan_.cost_context()))
            error("context_communication",
                  fmt::format("{}: context_parallel = {} does not divide the {}", given, plan_.layout.context,
                              unsupported->reason),
                  "use a context_parallel that does, a smaller tensor_parallel, or \"all_gather\"");
    }

    void check_parts_of_data_axis() {
        const ParallelLayout& layout = plan_.layout;
        if (layout.data % layout.context != 0)
            return error("context_parallel", fmt::format("context_parallel = {} does not divide {} ranks",
                                                         layout.context, layout.data));
        if (const auto unsupported = model::context_parallel_unsupported(graph_, layout.context))
            error("context_parallel",
                  fmt::format("context_parallel = {} cannot divide the samples of {}: {}", layout.context,
                              graph_.name, unsupported->reason),
                  "use 1");
        check_context_communication();
    }

    bool is_forward_only() const {
        core::Diagnostics unheard;
        const auto order =
            is_searched_order(plan_.schedule) ? std::optional<Schedule>() : make_schedule(plan_, unheard);
        return order && order->is_forward_only;
    }

    void check_recompute_modules() {
        const RecomputeModules found = modules_of(graph_, plan_);
        for (const RecomputeModule module : all_recompute_modules)
            if (plan_.runs_again(module) && !found.has(module))
                warning("recompute_modules",
                        fmt::format("recompute_modules: \"{}\" has no effect: {} has nothing of it that "
                                    "could be made again",
                                    name_of(module), graph_.name),
                        "leave it out");
    }

    void check_recompute_layers() {
        const std::vector<std::int32_t>& by_stage = plan_.recompute_layers_by_stage;
        const std::string layers = recompute_layers_text(plan_);
        if ((plan_.recompute_layers > 0 || !by_stage.empty()) && plan_.recompute != Recompute::full)
            error(
                "recompute_layers",
                fmt::format("recompute_layers = {} with recompute = \"{}\": whole layers run again where it "
                            "is \"full\"",
                            layers, name_of(plan_.recompute)),
                "set recompute = \"full\", or leave recompute_layers out");
        if (!by_stage.empty() && std::ssize(by_stage) != plan_.stages())
            error("recompute_layers",
                  fmt::format(
                      "recompute_layers = {} is of {} stages; the plan has {} (pipeline_parallel {} x "
                      "virtual_stages {})",
                      layers, by_stage.size(), plan_.stages(), plan_.layout.pipeline, plan_.virtual_stages),
                  "give the number of layers of each virtual stage, or one number for all");
    }

    void check_recompute() {
        check_recompute_layers();
        if (plan_.recompute != Recompute::selective) return;
        if (!plan_.runs_cores_again_alone()) return check_recompute_modules();
        if (std::none_of(graph_.operators.begin(), graph_.operators.end(),
                         [](const model::Operator& op) { return op.in_attention_core; }))
            warning("recompute",
                    fmt::format("recompute = \"selective\" has no effect: {} has no attention", graph_.name),
                    "use full or none");
    }

    const Plan& plan_;
    const model::ModelGraph& graph_;
    const core::Value* plan_table_;
    core::Diagnostics& diagnostics_;
    bool is_sound_ = true;
};

}  // namespace

void check_plan(const Plan& plan, const model::ModelGraph& graph, int device_count,
                const core::Value* plan_table, core::Diagnostics& diagnostics) {
    PlanChecker(plan, graph, plan_table, diagnostics).run(device_count);
}

}  // namespace schedule
