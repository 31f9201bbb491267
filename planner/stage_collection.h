// Memory and compute of stages, cached by the parts of a plan that decide them. Plans of one base on the
// devices of one cluster share most stages, so all threads use one collection.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "cluster/device.h"
#include "core/units.h"
#include "model/model_graph.h"
#include "model/repetition.h"
#include "model/segment.h"
#include "planner/work_meter.h"
#include "schedule/pass/recipe.h"
#include "schedule/plan/memory.h"
#include "schedule/plan/partition.h"
#include "schedule/plan/plan.h"
#include "schedule/schedule.h"
#include "sim/cost/compute.h"

namespace planner {

// Time of one pass of a micro-batch on the device's clock and on the host's. The host runs ahead of the
// device over the passes of a rank, but not over the arrival of a message: a pass that begins with an arrival
// lasts as long as the slower of both.
struct PassCost {
    core::Seconds device, host;
    core::Seconds after_arrival() const { return device > host ? device : host; }
    void add(const PassCost& pass, int count) {
        device += pass.device * count;
        host += pass.host * count;
    }
};
struct StageCost {
    PassCost forward, backward, backward_input;
    void add(const StageCost& part, int count) {
        forward.add(part.forward, count);
        backward.add(part.backward, count);
        backward_input.add(part.backward_input, count);
    }
};

// Elements of parameters on one pipeline rank, its share of the tensor-parallel split and, in `experts`, of
// the experts.
struct RankParameters {
    double dense = 0;         // every virtual stage's; experts too where they are not spread over ranks
    double experts = 0;       // ... of experts that are
    double largest_unit = 0;  // of one layer
};

// Activations of one pipeline rank under an order: the peak, and the bytes offloaded and loaded again over
// the order's micro-batches.
struct RankActivations {
    core::Bytes peak;
    core::Bytes of_a_micro_batch;  // by which it grows with each that the order has not; 0: by nothing
    core::Bytes offloaded;
    std::int64_t copies = 0;  // transfers out; there are as many back
};

// Properties of a plan's gradients that prices depend on beside the shape of its stages (sim::ComputeCost).
struct GradientHandling {
    bool accumulates;  // they are added to those of earlier micro-batches, or parts of one
    bool is_sharded;
    bool is_reduced_whole;  // by every replica

    explicit GradientHandling(const schedule::Plan& plan);
    auto operator<=>(const GradientHandling&) const = default;
};

// A plan's recomputation as a key of what depends on it.
using RecomputationKey = std::tuple<int, int, int, std::vector<std::int32_t>>;
inline RecomputationKey recomputation_key(const schedule::Plan& plan) {
    RecomputationKey key = {
        core::position_of(plan.recompute), plan.recompute_layers,
        plan.recompute == schedule::Recompute::selective ? plan.recompute_modules.bits() : 0,
        plan.recompute_layers_by_stage};
    std::vector<std::int32_t>& of_stages = std::get<3>(key);  // with the stages, if they are chosen
    if (!of_stages.empty())
        of_stages.insert(of_stages.end(), plan.partition.first_units.begin(),
                         plan.partition.first_units.end());
    return key;
}
// No plan that runs something again takes less time, or needs more memory.
inline schedule::Plan with_nothing_again(schedule::Plan plan) {
    plan.recompute = schedule::Recompute::none;
    plan.recompute_layers = 0;
    plan.recompute_layers_by_stage = {};
    plan.recompute_modules = schedule::Plan().recompute_modules;
    return plan;
}

// Answers are the same whichever plans were asked about before. What is asked of one stage takes the plan as
// that stage has it (schedule::Plan::of_stage).
class StageCollection {
public:
    // All must outlive it; `work` counts what is found out of runs of units.
    StageCollection(const model::ModelGraph& graph, const cluster::DeviceSpec& device,
                    const sim::CostConstants& constants = {}, WorkMeter* work = nullptr);
    ~StageCollection();

    const sim::CostConstants& constants() const { return constants_; }
    // The partition of a plan without one, whose longest stage is shortest by the device's prices, and the
    // operators of its stages. Null when the model has fewer units than stages. They live as long as the
    // collection.
    const schedule::Partition* partition(const schedule::Plan& plan);
    const std::vector<model::OperatorRange>* stages(const schedule::Plan& plan);
    // What that partition balances, by unit.
    schedule::PartitionProblem balance(const schedule::Plan& plan);
    // The passes of one segment through one stage without communication. Zero when the device has no price
    // for the model.
    StageCost compute(const schedule::Plan& plan, model::OperatorRange stage, int segment = 0);
    // The collectives (tensor, context and expert parallelism) that a pass through one unit waits for, in
    // order. It lives as long as the collection.
    struct Collective {
        sim::TensorCollective what;
        core::Bytes bytes;
    };
    struct Collectives {
        std::vector<Collective> forward, backward, backward_input;
        std::vector<Collective> beside_backward;  // gathered again while the pass computes
    };
    const Collectives& collectives(const schedule::Plan& plan, model::OperatorRange unit, int segment = 0);
    // The first run of operators of the model that costs what this one does.
    model::OperatorRange first_like(model::OperatorRange stage) { return repetition_.first_like(stage); }
    model::Repetition& repetition() { return repetition_; }
    // Of planned(plan).
    model::KnownSegmentGraphs& known_graphs() { return known_graphs_; }
    // The model as the plan lays it out (schedule::PlannedGraph). It lives as long as the collection.
    const model::ModelGraph& planned(const schedule::Plan& plan) const {
        return plan.layout.spreads_experts_over_tensor() ? *with_whole_experts_ : graph_;
    }
    // Of the device; null where it has none for the model. They live as long as the collection.
    const sim::ComputeCost* prices(const schedule::Plan& plan, int segment = 0);
    // Bytes of the tensors that cross a boundary between two units, the fewest of any; zero when there is
    // one unit.
    core::Bytes smallest_boundary(const schedule::Plan& plan);
    // The device's time to update so many elements.
    core::Seconds update(const schedule::Plan& plan, double elements);
    // Activations of each pipeline rank under an order of the plan's schedule, and parameters that are there
    // for the unit at work, fragmentation not counted: of offloaded activations those that a pass works on,
    // as if the others left at once and came back at the last moment. The order must live as long as the
    // collection.
    const std::vector<RankActivations>& activations(const schedule::Plan& plan,
                                                    const schedule::Schedule& order);
    // The same of other stages than those of partition(), here and below.
    std::vector<RankActivations> activations(const schedule::Plan& plan, const schedule::Schedule& order,
                                             const std::vector<model::OperatorRange>& ranges);
    RankActivations activations(const schedule::Plan& plan, const schedule::Schedule& order,
                                const std::vector<model::OperatorRange>& ranges, int rank);
    // Elements of the parameters that a rank holds of each of its stages, each once
    // (schedule::state_footprint).
    const std::vector<schedule::StateElements>& state_elements(const schedule::Plan& plan,
                                                               const schedule::Schedule& order);
    schedule::StateElements state_elements(const schedule::Plan& plan, const schedule::Schedule& order,
                                           const std::vector<model::OperatorRange>& ranges, int rank) const;
    const std::vector<RankParameters>& rank_parameters(const schedule::Plan& plan,
                                                       const schedule::Schedule& order);
    std::vector<RankParameters> rank_parameters(const schedule::Plan& plan, const schedule::Schedule& order,
                                                const std::vector<model::OperatorRange>& ranges);
    // What is reduced and gathered at once of a stage's parameters, those alike together; not the parameters
    // that other stages use too. It lives as long as the collection.
    struct Bucket {
        std::int64_t elements = 0;  // of each, on one tensor-parallel rank
        bool is_expert = false;     // spread over ranks
        int count = 0;
    };
    const std::vector<Bucket>& buckets(const schedule::Plan& plan, model::OperatorRange stage);
    // Do gradients lie in the same buckets if these are of another size? Of a plan with a partition, and one
    // copy of the model.
    bool has_same_buckets(const schedule::Plan& plan, core::Bytes other_size);
    // Of these operators, before any sharding: a rank's share of the tensor-parallel split, and of experts
    // that are spread over ranks.
    schedule::StateElements parameter_count(const schedule::Plan& plan, model::OperatorRange range);
    // Elements of the largest parameter, and of those that several units use: a rank's share.
    double largest_parameter(const schedule::Plan& plan) const;
    double tied_elements(const schedule::Plan& plan) const;
    // Parameters that stages of several ranks use, with their pipeline ranks: elements of a rank's share of
    // the tensor-parallel split.
    struct TiedCopies {
        double elements = 0;
        std::vector<std::int32_t> ranks;  // ascending
    };
    std::vector<TiedCopies> tied_copies(const schedule::Plan& plan, const schedule::Schedule& order,
                                        const std::vector<model::OperatorRange>& ranges) const;
    // The same of every partition: of those that the first and the last unit share, and no other.
    std::vector<TiedCopies> tied_ends(const schedule::Plan& plan, const schedule::Schedule& order) const;
    // Of a plan with recompute_layers, alike for all stages: the layers of a stage that run again, under a
    // plan that runs all again, and the others, under one that runs none again. What is empty is left out.
    struct Part {
        schedule::Plan plan;
        model::OperatorRange operators;
    };
    std::vector<Part> parts(const schedule::Plan& plan, model::OperatorRange stage) const;
    // What a stage of these operators keeps of one segment of a micro-batch for its backward, at least.
    struct Saved {
        core::Bytes whole, for_weights;  // until its backward; from gradients of inputs to those of weights
    };
    Saved saved(const schedule::Plan& plan, model::OperatorRange range, int segment = 0);
    const model::ModelGraph& graph() const { return graph_; }
    // Units of a range that cost the same, as the first such of the model and their number in the range.
    struct DistinctUnit {
        model::OperatorRange operators;
        int count = 0;
    };
    std::vector<DistinctUnit> distinct_units(model::OperatorRange range) const;

private:
    struct ParameterCount {
        double all = 0, experts = 0;
    };
    ParameterCount count_parameters(model::OperatorRange range) const;
    static schedule::StateElements share_of(const ParameterCount& count, const schedule::Plan& plan);
    struct Passes {
        StageCost cost;
        Collectives collectives;
    };
    using SegmentKey = std::pair<int, int>;  // passes of a micro-batch, and which
    struct Prices {
        schedule::Plan plan;  // the cost objects refer to it
        std::map<SegmentKey, std::optional<sim::ComputeCost>> compute;
        std::map<std::pair<std::int32_t, SegmentKey>, Passes> passes;  // of units, by their first operator
        std::map<std::tuple<std::int32_t, std::int32_t, SegmentKey>, StageCost> stages;
    };
    struct Division {
        schedule::Partition partition;
        std::vector<model::OperatorRange> ranges;  // of its stages
    };
    // Made once, by whoever asks first, and without the lock of its shape: it takes long.
    template <class Made>
    struct MadeOnce {
        std::once_flag is_made;
        Made made;
    };
    // Of a run of units: its operators, with offload or without.
    using RunKey = std::tuple<std::int32_t, std::int32_t, bool, SegmentKey>;
    static RunKey run_key(const schedule::Plan& plan, model::OperatorRange run, int segment) {
        return {run.begin,
                run.end,
                plan.offload != schedule::Offload::none,
                {plan.passes_per_micro_batch(), segment}};
    }
    // Which parameters are gathered for the unit at work, or copied from the host, and whose gradients live
    // for its pass alone: all that whole_parameters() knows of a plan beside its shape.
    struct Gathered {
        bool has_dense = false, has_experts = false;
        bool has_dense_gradients = false, has_expert_gradients = false;
        explicit Gathered(const schedule::Plan& plan);
        auto operator<=>(const Gathered&) const = default;
    };
    // What is known of plans that pass micro-batches alike (shape_of).
    struct Shape {
        std::mutex guard;  // of everything below
        schedule::PartitionProblem balance;
        std::map<int, std::optional<Division>> divisions;  // by the number of stages
        std::map<RunKey, schedule::ActivationFootprint> footprints;
        std::map<RunKey, Saved> saved;
        std::map<std::tuple<const schedule::Schedule*, int, Gathered>, MadeOnce<std::vector<RankActivations>>>
            activations;  // by order, loading horizon (0: without offload), and what is gathered
        std::map<const schedule::Schedule*, MadeOnce<std::vector<schedule::StateElements>>> state_elements;
        std::map<const schedule::Schedule*, MadeOnce<std::vector<RankParameters>>> rank_parameters;
        std::map<GradientHandling, Prices> prices;
        std::map<int, core::Bytes> smallest_boundaries;  // by passes

        template <class Map, class Key, class Make>
        const auto& made_once(Map& map, const Key& key, Make make) {
            typename Map::mapped_type* entry = nullptr;
            {
                const std::lock_guard lock(guard);
                entry = &map[key];
            }
            std::call_once(entry->is_made, [&] { entry->made = make(); });
            return entry->made;
        }
    };
    // Beside shards, while a pass through a stage works.
    struct WholeParameters {
        core::Bytes least;  // parameters of any of its units
        core::Bytes last;   // of the last one, with their gradients where they live for the pass alone
    };
    // `is_one_copy`: there is one of the model.
    WholeParameters whole_parameters(const schedule::Plan& plan, model::OperatorRange stage,
                                     bool is_one_copy) const;
    Shape& shape_of(const schedule::Plan& plan);
    Prices& prices_of(Shape& shape, const schedule::Plan& plan);
    TiedCopies copies_of(const model::TiedParameter& parameter, const schedule::Plan& plan,
                         const schedule::Schedule& order,
                         const std::function<int(std::int32_t unit)>& stage) const;
    std::vector<core::Seconds> unit_loads(Shape& shape, const schedule::Plan& plan);
    schedule::PartitionProblem balance_of(Shape& shape, const schedule::Plan& plan);
    const Division* division(Shape& shape, const schedule::Plan& plan);
    const std::vector<model::OperatorRange>* stages(Shape& shape, const schedule::Plan& plan);
    const sim::ComputeCost* compute_cost(Shape& shape, const schedule::Plan& plan, int segment);
    const Passes& passes(Shape& shape, const schedule::Plan& plan, model::OperatorRange unit, int segment);
    // The planned model, of one segment of a sequence.
    const model::ModelGraph& graph_of(const schedule::Plan& plan, int segment);
    const schedule::ActivationFootprint& footprint(Shape& shape, const schedule::Plan& plan,
                                                   model::OperatorRange stage, int segment);
    const Saved& saved(Shape& shape, const schedule::Plan& plan, model::OperatorRange range, int segment);
    // The range with one and with two units less than it has, where these and the one that it then has at
    // that end are alike: what it keeps goes on from them as from these to it.
    using Shorter = std::pair<model::OperatorRange, model::OperatorRange>;
    std::optional<Shorter> shorter_alike(const schedule::Plan& plan, model::OperatorRange range) const;

    const model::ModelGraph& graph_;
    WorkMeter* const work_;
    std::optional<model::ModelGraph> with_whole_experts_;
    const cluster::DeviceSpec& device_;
    sim::CostConstants constants_;
    model::Repetition repetition_;
    std::vector<model::OperatorRange> unit_like_;  // of each unit
    std::vector<ParameterCount> unit_parameters_;
    std::vector<model::TiedParameter> tied_;
    std::mutex guard_;  // of the maps below; each shape has its own
    std::map<std::pair<std::int32_t, std::int32_t>, ParameterCount> parameter_counts_;
    model::KnownSegmentGraphs known_graphs_;
    // By tensor degree, expert degree, and ranks that divide an expert, sequence parallelism, whether
    // parameters are sharded, the bytes of a bucket, and operators.
    std::map<std::tuple<int, int, int, bool, bool, double, std::int32_t, std::int32_t>, std::vector<Bucket>>
        buckets_;
    // tensor, context, expert, expert tensor, micro_batch, recompute, sequence_parallel, tensor_overlap
    using ShapeKey =
        std::tuple<int, int, int, int, int, RecomputationKey, bool, int, schedule::ContextCommunication>;
    std::map<ShapeKey, std::unique_ptr<Shape>> shapes_;
};

}  // namespace planner
