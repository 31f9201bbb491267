// Every plan that is legal for a model, a cluster and a global batch: all degrees, schedules, shardings,
// recomputations and micro-batches.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cluster/topology.h"
#include "model/model_fwd.h"
#include "schedule/pipeline/registry.h"
#include "schedule/plan/plan.h"

namespace planner {

// Does the space have it? Of the schedules those that train with one copy of the weights.
inline bool is_searched(const schedule::PipelineSchedule& schedule) {
    return !schedule.is_forward_only && !schedule.is_asynchronous && !schedule.is_bidirectional;
}

// Values that plans are kept to, by axis; without any, an axis is free.
struct PlanLimits {
    std::vector<int> tensor = {}, pipeline = {}, context = {}, expert = {}, micro_batch = {};
    std::vector<int> expert_tensor = {};   // ranks that divide each expert
    std::vector<int> tensor_overlap = {};  // of plans with tensor parallelism; without any: that of the base
    std::vector<schedule::ContextCommunication> context_communication = {};  // with context parallelism
    std::vector<int> replicas = {};                                          // that work on different samples
    std::vector<std::string> schedules = {};                                 // registered names
    std::vector<schedule::Recompute> recompute = {};
    std::vector<schedule::Sharding> sharding = {};

    bool allows(const schedule::ParallelLayout& layout) const;
    bool allows(const schedule::Plan& plan) const;
    // To the degrees, pieces, micro-batch and recomputation of a plan that they allow; the rest as it was.
    void keep_to_shape(const schedule::Plan& plan);
    bool operator==(const PlanLimits&) const = default;
};

// Do groups of so many ranks along the data axis, shards, lie in groups of experts or hold whole ones?
inline bool nests_with_experts(const schedule::ParallelLayout& layout, int shards) {
    return shards % layout.expert == 0 || layout.expert % shards == 0;
}

// The plans that whatever is to run them takes. Functions are called by several threads at once; empty ones
// take everything.
struct RunnablePlans {
    std::function<bool(const schedule::Plan&)> may_take;  // with some partition
    std::function<bool(const schedule::Plan&)> takes;     // with its own
    // The only division into so many stages; one without first units: there is none. Nothing: any.
    std::function<std::optional<schedule::Partition>(int stages)> partition;
    bool has_sequence_parallelism = true;
};

struct SpaceRequest {
    int global_batch = 1;  // samples a step; replicas * micro_batch * micro_batches of every plan
    schedule::Plan base;   // precision, attention, optimizer and whatever else is not searched
    int most_virtual_stages = 8;
    schedule::Offload offload = schedule::Offload::none;  // where activations may go; none: they stay
    PlanLimits limits = {};
    std::shared_ptr<const RunnablePlans> runnable = {};  // none: everything runs
    // Of the space the plans of this one of its layouts; none: of all.
    std::optional<schedule::ParallelLayout> layout = {};
};

// In a fixed order: tensor, pipeline, context, expert, micro-batch, context communication, pieces of
// products, recompute, schedule, virtual stages, sharding. All devices of the cluster are used. Axes:
//   tensor * pipeline * data = devices; tensor a degree that splits the model; replicas (data / context) *
//   micro_batch divides the global batch; context, a divisor of data, where samples have 8,192 tokens or more
//   or the batch is no multiple of data: parts of at least 1,024 tokens, whose keys and values are gathered,
//   or whose heads are exchanged where they divide and that moves at most twice as much, or where it is
//   asked for or all that is run (not with recompute selective); expert, a divisor of data that divides the
//   experts of mixtures, or with sequence parallelism the tensor degree times such a divisor: whole experts
//   on tensor ranks, and where these may be (and what runs the plans takes them) no divided ones of several
//   ranks of data; schedules of the registry that train with one copy of the weights, with every number
//   of virtual stages they allow, those of segments of sequences with each number of `segment_counts`; one
//   pipeline stage has one schedule; sharding none, optimizer, gradients and parameters over all replicas,
//   and hybrid over the replicas of one node where these are fewer; recompute none, selective where attention
//   cores keep something, full; with tensor parallelism sequence parallelism where tokens divide and what
//   runs the plans has it, else plain; offload where the request allows it: activations stay, or leave with
//   each horizon of `loading_horizons`, longest first. Tensor-parallel ranks that share heads of keys and
//   values are of one node.
std::vector<schedule::Plan> legal_plans(const model::ModelGraph& graph, const cluster::Cluster& cluster,
                                        const SpaceRequest& request);
// One after the other: a space of today's largest jobs has hundreds of thousands.
void for_each_legal_plan(const model::ModelGraph& graph, const cluster::Cluster& cluster,
                         const SpaceRequest& request,
                         const std::function<void(const schedule::Plan&)>& visit);

// Loading horizons of offloaded activations, in layers computed before they are needed, shortest first:
// powers of two up to all layers of the model forward and backward, as long as the first rank of 1F1B waits.
// The longer, the fewer activations leave and the earlier they return, so the more memory and the less time a
// plan needs. None where nothing is gained or plans cannot: processors whose memory is the host's, schedules
// of segments of sequences, plans without backward.
std::vector<int> loading_horizons(const model::ModelGraph& graph, const cluster::DeviceSpec& device,
                                  const schedule::Plan& plan);

// Into how many segments a plan's sequences may be cut (Seq1F1B): 2 and 4, where the model works token by
// token behind causal attention, the segments are equal and whole samples are on one rank. Mixtures whose
// capacity or balance loss would be of a segment instead of a micro-batch train differently and stay whole.
std::vector<int> segment_counts(const model::ModelGraph& graph, const schedule::Plan& plan);

// The plan under this schedule: once, or with each number of segments where the schedule cuts sequences.
std::vector<schedule::Plan> plans_with_schedule(const model::ModelGraph& graph, const schedule::Plan& plan,
                                                const schedule::PipelineSchedule& schedule);

// Tensor-, pipeline- and data-parallel degrees with that product, and what of the data axis divides samples
// and experts, that `legal_plans` visits.
std::vector<schedule::ParallelLayout> legal_layouts(const model::ModelGraph& graph, int devices,
                                                    int global_batch);

// What a search varies, in the words of the plan file, and whether it looked at other partitions than the one
// that balances stages.
std::vector<std::string> covered_axes(bool covers_partitions);

// The base for a device: bf16 where its profile has it, else fp16, else fp32, each with the master copy it
// needs; flash attention where kernels for it are known.
schedule::Plan default_plan(const cluster::DeviceSpec& device);

// The base under its framework: buckets, loss and kernels of attention that the framework has, gradients of
// 16 bits in the type that it reduces them in.
schedule::Plan as_framework_runs(schedule::Plan base);

}  // namespace planner
