#include "planner/search_space.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include "core/index/integers.h"
#include "model/segment.h"
#include "model/whole_experts.h"
#include "planner/context_communication.h"
#include "schedule/pipeline/registry.h"
#include "schedule/plan/partition.h"
#include "sim/cost/framework/framework_lookup.h"
#include "sim/cost/kernel/attention.h"

namespace planner {

namespace {

std::vector<int> divisors(int n) {
    std::vector<int> result;
    for (int i = 1; i <= n; ++i)
        if (n % i == 0) result.push_back(i);
    return result;
}

bool divides_tokens(const model::ModelGraph& graph, const schedule::ParallelLayout& layout, int micro_batch) {
    for (std::int64_t tokens : {graph.tokens_per_sample, graph.encoder_tokens_per_sample})
        if (tokens / layout.context * micro_batch % layout.tensor != 0) return false;
    return graph.tokens_per_sample > 0 && !model::sequence_parallel_unsupported(graph);
}

struct ScheduleChoice {
    std::string name;
    int virtual_stages;
    int segments;  // of a sequence; 0: schedules of whole sequences
};

// `segments`: into how many sequences may be cut.
std::vector<ScheduleChoice> schedule_choices(const model::ModelGraph& graph, int pipeline, int micro_batches,
                                             int most_virtual_stages, const std::vector<int>& segments) {
    // With one stage every schedule is gradient accumulation; 1F1B keeps one micro-batch in flight.
    if (pipeline == 1) return {{"1f1b", 1, 0}};
    std::vector<ScheduleChoice> choices;
    for (const schedule::PipelineSchedule& candidate : schedule::pipeline_schedules()) {
        if (!is_searched(candidate)) continue;
        int most = std::min(
            {candidate.greatest_chunks, most_virtual_stages, core::count_of(graph.units) / pipeline});
        for (int chunks = candidate.least_chunks; chunks <= most; ++chunks) {
            schedule::PipelineShape shape;
            std::tie(shape.ranks, shape.chunks, shape.micro_batches) =
                std::tie(pipeline, chunks, micro_batches);
            if (schedule::unsupported(candidate, shape)) continue;
            if (!candidate.cuts_sequences()) choices.push_back({candidate.name, chunks, 0});
            else
                for (const int count : segments) choices.push_back({candidate.name, chunks, count});
        }
    }
    return choices;
}

struct ShardingChoice {
    schedule::Sharding sharding;
    int degree;  // 0 = all replicas
};

std::vector<ShardingChoice> sharding_choices(const schedule::Plan& base,
                                             const schedule::ParallelLayout& layout, int devices_per_node,
                                             bool keeps_gathered) {
    using schedule::Sharding;
    const int data = layout.data, tensor = layout.tensor;
    if (base.keeps_parameters_on_hosts()) return {{Sharding::parameters, 0}};
    std::vector<ShardingChoice> choices{{Sharding::none, 0}};
    if (data == 1) return choices;
    // Replicas of one node: tensor groups are numbered first, so they are neighbours. Hybrid sharding keeps
    // the gathering inside the node (MiCS, arXiv 2205.00119).
    const int in_node = tensor < devices_per_node ? std::min(data, devices_per_node / tensor) : 1;
    for (Sharding sharding : {Sharding::optimizer, Sharding::gradients, Sharding::parameters}) {
        // The plan of sharded optimizer state under another name (sim::keep_gathered).
        if (sharding == Sharding::parameters && keeps_gathered && layout.pipeline > 1) continue;
        choices.push_back({sharding, 0});
        if (in_node > 1 && in_node < data && data % in_node == 0 && nests_with_experts(layout, in_node))
            choices.push_back({sharding, in_node});
    }
    return choices;
}

// Degrees of context parallelism worth a look: each rank keeps this many tokens of a sample, and samples are
// long or fewer than the ranks that would each take one.
constexpr std::int64_t least_tokens_of_a_part = 1024, long_sample = 8192;

std::vector<int> context_degrees(const model::ModelGraph& graph, int data, int global_batch) {
    std::vector<int> degrees;
    const bool is_wanted = graph.tokens_per_sample >= long_sample || global_batch % data != 0;
    for (const int context : divisors(data)) {
        if (global_batch % (data / context) != 0) continue;
        if (context > 1 && (!is_wanted || graph.tokens_per_sample / context < least_tokens_of_a_part ||
                            model::context_parallel_unsupported(graph, context)))
            continue;
        degrees.push_back(context);
    }
    return degrees;
}

bool cuts_sequences(const model::ModelGraph& graph) {
    const auto is_of_a_micro_batch = [](const model::Operator& op) {
        return op.kind == model::OperatorKind::router &&
               (op.attributes.auxiliary_loss > 0 || op.attributes.capacity_factor > 0);
    };
    return !model::segments_unsupported(graph, 1) &&
           std::none_of(graph.operators.begin(), graph.operators.end(), is_of_a_micro_batch);
}

// `cuts`: what cuts_sequences says, which many plans of one model need.
std::vector<int> segment_counts(const model::ModelGraph& graph, const schedule::Plan& plan, bool cuts) {
    std::vector<int> counts;
    if (plan.layout.context > 1 || plan.offload != schedule::Offload::none || !cuts) return counts;
    for (const int count : {2, 4}) {
        const std::int64_t rows = graph.tokens_per_sample / count * plan.micro_batch;
        const bool divides = graph.tokens_per_sample % count == 0 &&
                             (!plan.has_sequence_parallelism() || rows % plan.layout.tensor == 0);
        if (divides) counts.push_back(count);
    }
    return counts;
}

template <class T>
bool takes(const std::vector<T>& values, const T& value) {
    return values.empty() || std::find(values.begin(), values.end(), value) != values.end();
}

// Products in fp8 run as a whole, those of one rank alone have no exchange.
std::vector<int> overlap_choices(const SpaceRequest& request, const schedule::ParallelLayout& layout) {
    if (layout.tensor == 1 || request.base.precision.compute == core::DataType::fp8) return {1};
    if (request.limits.tensor_overlap.empty()) return {request.base.tensor_overlap};
    return request.limits.tensor_overlap;
}

// How a micro-batch passes through a layer.
struct PassChoice {
    schedule::ContextCommunication context_communication;
    int tensor_overlap;
    schedule::Recompute recompute;
};

// Whatever they move: where others than gathered keys are asked for, and where what runs the plans gathers
// none.
bool wants_all_communication(const SpaceRequest& request, schedule::Plan plan) {
    if (plan.layout.context == 1) return false;
    if (!request.limits.context_communication.empty()) return true;
    if (!request.runnable || !request.runnable->may_take) return false;
    plan.context_communication = schedule::ContextCommunication::all_gather;
    return !request.runnable->may_take(plan);
}

// Then they are not divided: whole ones move a share of the routed tokens and nothing else, in as much
// memory.
bool may_keep_experts_whole(const SpaceRequest& request, const model::ModelGraph& graph,
                            schedule::Plan plan) {
    if (plan.layout.tensor == 1 || plan.layout.expert == 1 || !plan.sequence_parallel) return false;
    plan.layout.has_whole_experts = true;
    const bool is_run = !request.runnable || !request.runnable->may_take || request.runnable->may_take(plan);
    return is_run && request.limits.allows(plan.layout) && !model::whole_experts_unsupported(graph) &&
           !model::expert_parallel_unsupported(graph, plan.layout.expert_ranks());
}

// Of every micro-batch of a layout.
std::vector<PassChoice> pass_choices(const SpaceRequest& request, const model::ModelGraph& graph,
                                     const schedule::ParallelLayout& layout,
                                     bool has_recomputable_attention) {
    using schedule::ContextCommunication, schedule::Recompute;
    schedule::Plan plan = request.base;
    plan.layout = layout;
    std::vector<PassChoice> choices;
    for (const ContextCommunication communication :
         communication_choices(graph, plan, wants_all_communication(request, plan)))
        for (const int overlap : overlap_choices(request, layout))
            for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
                if (recompute == Recompute::selective &&
                    (!has_recomputable_attention || communication == ContextCommunication::all_to_all))
                    continue;
                if (takes(request.limits.recompute, recompute))
                    choices.push_back({communication, overlap, recompute});
            }
    return choices;
}

// Where stages may be divided in one way only: false where there is none.
bool give_only_partition(const RunnablePlans& runnable, const schedule::Plan& base, schedule::Plan& plan) {
    plan.partition = base.partition;
    if (!runnable.partition || plan.stages() == 1) return true;
    const std::optional<schedule::Partition> only = runnable.partition(plan.stages());
    if (only) plan.partition = *only;
    return !only || !only->first_units.empty();
}

}  // namespace

bool PlanLimits::allows(const schedule::ParallelLayout& layout) const {
    return takes(tensor, layout.tensor) && takes(pipeline, layout.pipeline) &&
           takes(context, layout.context) && takes(expert, layout.expert_ranks()) &&
           takes(expert_tensor, layout.expert_tensor()) && takes(replicas, layout.replicas());
}

bool PlanLimits::allows(const schedule::Plan& plan) const {
    return allows(plan.layout) && takes(micro_batch, plan.micro_batch) && takes(schedules, plan.schedule) &&
           (plan.layout.tensor == 1 || takes(tensor_overlap, plan.tensor_overlap)) &&
           (plan.layout.context == 1 || takes(context_communication, plan.context_communication)) &&
           takes(recompute, plan.recompute) && takes(sharding, plan.sharding);
}

void PlanLimits::keep_to_shape(const schedule::Plan& plan) {
    tensor = {plan.layout.tensor};
    pipeline = {plan.layout.pipeline};
    context = {plan.layout.context};
    expert = {plan.layout.expert_ranks()};
    expert_tensor = {plan.layout.expert_tensor()};
    micro_batch = {plan.micro_batch};
    tensor_overlap = {plan.tensor_overlap};
    context_communication = {plan.context_communication};
    recompute = {plan.recompute};
}

std::vector<int> segment_counts(const model::ModelGraph& graph, const schedule::Plan& plan) {
    return segment_counts(graph, plan, cuts_sequences(graph));
}

std::vector<schedule::Plan> plans_with_schedule(const model::ModelGraph& graph, const schedule::Plan& plan,
                                                const schedule::PipelineSchedule& schedule) {
    std::vector<schedule::Plan> plans;
    for (const int segments : schedule.cuts_sequences() ? segment_counts(graph, plan) : std::vector<int>{0}) {
        plans.push_back(plan);
        plans.back().schedule = schedule.name;
        if (segments > 0) plans.back().schedule_parameters = schedule::SegmentParameters{segments};
    }
    return plans;
}

std::vector<schedule::ParallelLayout> legal_layouts(const model::ModelGraph& graph, int devices,
                                                    int global_batch) {
    std::vector<schedule::ParallelLayout> layouts;
    std::optional<model::ModelGraph> whole;
    if (!model::whole_experts_unsupported(graph)) whole = model::with_whole_experts(graph);
    for (int tensor : divisors(devices)) {
        const bool may_divide = !model::tensor_parallel_unsupported(graph, tensor);
        const bool may_stay_whole =
            tensor > 1 && whole && !model::tensor_parallel_unsupported(*whole, tensor);
        for (int pipeline : divisors(devices / tensor)) {
            if (pipeline > core::count_of(graph.units)) continue;
            schedule::ParallelLayout layout{
                .data = devices / tensor / pipeline, .tensor = tensor, .pipeline = pipeline};
            for (const int context : context_degrees(graph, layout.data, global_batch))
                for (const int expert : divisors(layout.data))
                    for (const bool is_whole : {false, true}) {
                        if (!(is_whole ? may_stay_whole : may_divide)) continue;
                        layout.context = context;
                        layout.expert = expert;
                        layout.has_whole_experts = is_whole;
                        if (!model::expert_parallel_unsupported(graph, layout.expert_ranks()))
                            layouts.push_back(layout);
                    }
        }
    }
    return layouts;
}

std::vector<schedule::Plan> legal_plans(const model::ModelGraph& graph, const cluster::Cluster& cluster,
                                        const SpaceRequest& request) {
    std::vector<schedule::Plan> plans;
    for_each_legal_plan(graph, cluster, request, [&](const schedule::Plan& plan) { plans.push_back(plan); });
    return plans;
}

void for_each_legal_plan(const model::ModelGraph& graph, const cluster::Cluster& cluster,
                         const SpaceRequest& request,
                         const std::function<void(const schedule::Plan&)>& visit) {
    const RunnablePlans everything;
    const RunnablePlans& runnable = request.runnable ? *request.runnable : everything;
    bool has_recomputable_attention =
        request.base.attention != model::AttentionImplementation::flash &&
        std::any_of(graph.operators.begin(), graph.operators.end(),
                    [](const model::Operator& op) { return op.in_attention_core; });
    const bool cuts = cuts_sequences(graph),
               keeps_gathered = sim::framework_traits(request.base.framework).gathers_once_in_pipelines;
    // Ranks that share heads of keys and values exchange these too, in every layer: searched within a node,
    // where it is what grouped heads of today's models need, not between nodes.
    int least_key_heads = std::numeric_limits<int>::max();
    for (const model::Operator& op : graph.operators)
        if (op.kind == model::OperatorKind::attention && op.in_parallel_region)
            least_key_heads = std::min(least_key_heads, static_cast<int>(op.attributes.kv_heads));
    for (const schedule::ParallelLayout& layout :
         request.layout ? std::vector{*request.layout}
                        : legal_layouts(graph, cluster.device_count(), request.global_batch)) {
        if (!request.limits.allows(layout)) continue;
        if (layout.expert > 1 && request.base.keeps_parameters_on_hosts()) continue;  // schedule::check_plan
        if (layout.tensor > cluster.instance.devices && layout.tensor > least_key_heads) continue;
        const std::vector<PassChoice> passes =
            pass_choices(request, graph, layout, has_recomputable_attention);
        const int per_replica = request.global_batch / layout.replicas();
        for (int micro_batch : divisors(per_replica)) {
            if (!takes(request.limits.micro_batch, micro_batch)) continue;
            schedule::Plan plan = request.base;
            plan.layout = layout;
            plan.layout.order = request.base.layout.order;
            plan.micro_batch = micro_batch;
            plan.micro_batches = per_replica / micro_batch;
            plan.sequence_parallel = runnable.has_sequence_parallelism && layout.tensor > 1 &&
                                     divides_tokens(graph, layout, micro_batch);
            if (layout.spreads_experts_over_tensor() ? !plan.sequence_parallel
                                                     : may_keep_experts_whole(request, graph, plan))
                continue;
            const std::vector<int> segments =
                layout.pipeline > 1 ? segment_counts(graph, plan, cuts) : std::vector<int>();
            for (const PassChoice& pass : passes) {
                plan.context_communication = pass.context_communication;
                plan.tensor_overlap = pass.tensor_overlap;
                plan.recompute = pass.recompute;
                plan.recompute_layers =
                    pass.recompute == schedule::Recompute::full ? request.base.recompute_layers : 0;
                for (const ScheduleChoice& choice : schedule_choices(
                         graph, layout.pipeline, plan.micro_batches, request.most_virtual_stages, segments)) {
                    plan.schedule = choice.name;
                    plan.schedule_parameters = request.base.schedule_parameters;
                    plan.keep_sequences_whole();
                    if (choice.segments > 0)
                        plan.schedule_parameters = schedule::SegmentParameters{choice.segments};
                    plan.virtual_stages = choice.virtual_stages;
                    if (!give_only_partition(runnable, request.base, plan)) continue;
                    for (ShardingChoice sharding :
                         sharding_choices(request.base, layout, cluster.instance.devices, keeps_gathered)) {
                        plan.sharding = sharding.sharding;
                        plan.shard_degree = sharding.degree;
                        if (!request.limits.allows(plan) || (runnable.may_take && !runnable.may_take(plan)))
                            continue;
                        visit(plan);
                        if (request.offload == schedule::Offload::none ||
                            request.base.offload != schedule::Offload::none)
                            continue;
                        const std::vector<int> horizons =
                            loading_horizons(graph, cluster.instance.device, plan);
                        for (auto horizon = horizons.rbegin(); horizon != horizons.rend(); ++horizon) {
                            schedule::Plan away = plan;
                            away.offload = request.offload;
                            away.activation_loading_horizon = *horizon;
                            visit(away);
                        }
                    }
                }
            }
        }
    }
}

std::vector<int> loading_horizons(const model::ModelGraph& graph, const cluster::DeviceSpec& device,
                                  const schedule::Plan& plan) {
    std::vector<int> horizons;
    const schedule::PipelineSchedule* order = schedule::find_pipeline_schedule(plan.schedule);
    if (!device.has_concurrent_streams || (order && (order->cuts_sequences() || order->is_forward_only)))
        return horizons;
    for (std::size_t horizon = 1; horizon <= 2 * graph.units.size(); horizon *= 2)
        horizons.push_back(static_cast<int>(horizon));
    return horizons;
}

schedule::Plan default_plan(const cluster::DeviceSpec& device) {
    schedule::Plan plan;
    auto low = [&](core::DataType type) {
        plan.precision = {
            .compute = type, .parameters = type, .gradients = type, .has_master_parameters = true};
    };
    if (device.peak.count(core::DataType::bf16)) low(core::DataType::bf16);
    else if (device.peak.count(core::DataType::fp16)) low(core::DataType::fp16);
    else plan.precision = {core::DataType::fp32, core::DataType::fp32, core::DataType::fp32, false};
    plan.attention = sim::flash_attention_source(device) == sim::FlashAttentionSource::products
                         ? model::AttentionImplementation::fused_softmax
                         : model::AttentionImplementation::flash;
    return plan;
}

schedule::Plan as_framework_runs(schedule::Plan base) {
    const sim::FrameworkTraits traits = sim::framework_traits(base.framework);
    base.gradient_bucket = traits.bucket;
    base.fused_cross_entropy = traits.has_fused_loss;
    base.attention = std::min(base.attention, traits.attention);
    if (base.precision.has_master_parameters && traits.reduction)
        base.precision.gradients = *traits.reduction;
    return base;
}

std::vector<std::string> covered_axes(bool covers_partitions) {
    std::vector<std::string> axes = {
        "nodes",          "data_parallel",    "tensor_parallel", "pipeline_parallel",
        "virtual_stages", "context_parallel", "expert_parallel", "schedule",
        "segments",       "sharding",         "recompute",       "micro_batch"};
    if (covers_partitions) axes.push_back("partition");
    return axes;
}

}  // namespace planner
