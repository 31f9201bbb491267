#include "exec/profile/profiled_program.h"

#include <optional>
#include <string>

#include "core/diagnostics.h"
#include "core/index/integers.h"
#include "model/operators/signature.h"
#include "model/segment.h"
#include "schedule/pass/lower.h"
#include "schedule/plan/partition.h"
#include "schedule/plan/sequence_cut.h"

namespace exec {

schedule::Program profiled_program(const schedule::Plan& plan, int data, int tensor,
                                   const model::ModelGraph& graph) {
    schedule::Plan single = plan;
    // On fewer ranks nothing divides samples or holds other experts.
    if (data != plan.layout.data) single.layout = {.data = data, .order = plan.layout.order};
    single.layout.has_whole_experts = plan.layout.has_whole_experts;
    single.layout.pipeline = 1;
    single.layout.tensor = tensor;
    if (tensor == 1) single.sequence_parallel = false;
    single.tensor_overlap = 1;  // operators are timed whole
    single.virtual_stages = 1;
    if (schedule::passes_per_micro_batch(plan) == 1) {
        single.schedule = "1f1b";
        single.schedule_parameters = {};
    }
    single.micro_batches = 2;
    single.partition = {};
    single.sharding = schedule::Sharding::none;
    single.shard_degree = 0;
    single.recompute = schedule::Recompute::none;
    single.recompute_layers = 0;
    single.recompute_layers_by_stage = {};
    core::Diagnostics diagnostics;
    const std::optional<schedule::Partition> partition = schedule::complete_partition(single, graph);
    core::require(partition.has_value(), "one stage always has a partition");
    single.partition = *partition;
    const std::optional<schedule::Schedule> order = schedule::make_schedule(single, diagnostics);
    core::require(order.has_value(), "one stage always has a schedule");
    return schedule::lower(single, graph, *order);
}

std::vector<cluster::MeasuredOperator> by_signature(const schedule::Program& program,
                                                    const model::ModelGraph& graph,
                                                    const OperatorTimes& times) {
    struct Sum {
        double time[3] = {0, 0, 0};
        int count = 0;
    };
    std::map<std::string, Sum> sums;
    const model::CostContext context = program.plan.cost_context();
    const model::SegmentGraphs graphs = schedule::segment_graphs(program, graph);
    for (std::int32_t segment = 0; segment < static_cast<std::int32_t>(graphs.size()); ++segment)
        for (std::int32_t op = 0; op < core::count_of(graph.operators); ++op) {
            Sum& sum = sums[model::signature(graphs[segment], model::OperatorId(op), context)];
            ++sum.count;
            for (const model::Phase phase :
                 {model::Phase::forward, model::Phase::backward_input, model::Phase::backward_weight})
                if (const auto found = times.find({op, segment, phase}); found != times.end())
                    sum.time[core::position_of(phase)] += found->second;
        }
    std::vector<cluster::MeasuredOperator> result;
    for (const auto& [signature, sum] : sums)
        result.push_back({signature, core::Seconds(sum.time[0] / sum.count),
                          core::Seconds(sum.time[1] / sum.count), core::Seconds(sum.time[2] / sum.count)});
    return result;
}

}  // namespace exec
