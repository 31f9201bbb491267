// Bounds that cost microseconds: no plan needs less memory or time than they say, under the very prices the
// simulator uses.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "cluster/topology.h"
#include "model/model_fwd.h"
#include "planner/stage_collection.h"
#include "planner/work_meter.h"
#include "schedule/plan/plan.h"
#include "schedule/schedule.h"
#include "sim/cost/collective/known_candidates.h"
#include "sim/engine/schedule_timing.h"

namespace sim {
class CommunicationCost;
}

namespace planner {

// Times that are measured operator by operator bound nothing, nor do those of cores that take turns.
bool has_priced_times(const cluster::Cluster& cluster);

struct MemoryBound {
    core::Bytes state;      // parameters, gradients and optimizer state of the rank below
    core::Bytes peak;       // with context and activations; at least this much is needed on that rank
    int pipeline_rank = 0;  // the rank that needs most
    core::Bytes excess;     // of all ranks that need more than their devices have, what is beyond that
    core::Bytes beyond;     // ... less what others have left: if positive, moves of units hardly help
    core::Bytes on_hosts;   // of state there, and of activations where all leave first; of the fullest node,
                            // at least

    // Of a host of which it is not known, 0: no.
    bool exceeds_host(core::Bytes memory) const { return memory.value > 0 && on_hosts > memory; }
};

// What one rank of a pipeline needs, by bounds.
struct RankMemory {
    core::Bytes state, on_host;
    core::Bytes peak;                 // without activations where the state alone is too much
    std::optional<core::Bytes> away;  // of activations, where they count, what the device has no room for
};

// Of the ranks of one plan, by their stages, found out once: moves of one cut leave most of them as they
// were.
class RankMemories {
public:
    RankMemories() = default;
    RankMemories(const RankMemories&) = delete;
    RankMemories& operator=(const RankMemories&) = delete;
    // By rank; they live as long as this does.
    std::vector<const RankMemory*> of(const schedule::Schedule& order,
                                      const std::vector<model::OperatorRange>& ranges,
                                      const std::function<RankMemory(int rank)>& find_out);
    // Of the orders of all ranks that were looked at.
    double passes() const { return passes_; }

private:
    using Stages = std::vector<std::int32_t>;  // the operators at which they begin and end
    struct Rank {
        std::map<Stages, RankMemory> known;
        Stages asked;
        const std::pair<const Stages, RankMemory>* last = nullptr;  // what was found the last time
    };
    std::vector<Rank> ranks_;
    double passes_ = 0;
};

// Compute orders by name and shape. They are the same for every layout and expensive for deep pipelines, so
// all threads of a search share one collection.
class OrderCollection {
public:
    explicit OrderCollection(WorkMeter* work = nullptr);  // counts what is made
    ~OrderCollection();
    // An order of enough micro-batches that a longer one holds no less memory. Null when the schedule cannot
    // be made for the plan. It lives as long as the collection.
    const schedule::Schedule* order(const schedule::Plan& plan);
    // The order of all micro-batches, compiled for replay. Null when it cannot be made, or is too long to be
    // worth making.
    const sim::ReplayOrder* whole_order(const schedule::Plan& plan);

private:
    struct Content;
    std::unique_ptr<Content> content_;
};

// Does a backward pass come in two parts, of inputs and of weights?
bool splits_backward(const schedule::Schedule& order);

// Not thread-safe but for what says so: one object a thread. All collections must outlive it. Plans whose
// schedule cuts sequences say how often a micro-batch passes.
class Bounds {
public:
    // `known`: of plans of one base on this cluster; null: one of its own.
    Bounds(const cluster::Cluster& cluster, OrderCollection& orders, StageCollection& stages,
           sim::KnownCandidates* known = nullptr);
    ~Bounds();

    // Least memory of the tightest rank: exact state, the schedule's micro-batches in flight times what each
    // keeps, and the peak of one operator. Where activations are offloaded, they are on the device only while
    // a pass works on them. Nothing when the model has fewer units than stages. Thread-safe.
    std::optional<MemoryBound> memory(const schedule::Plan& plan);
    // The same of a partition that is not the collection's. `known`: of other partitions of the same plan,
    // by one thread at a time. Thread-safe.
    std::optional<MemoryBound> memory_of(const schedule::Plan& plan,
                                         const std::vector<model::OperatorRange>& ranges,
                                         RankMemories* known = nullptr);
    // The same of one pipeline rank. Thread-safe.
    core::Bytes peak_of(const schedule::Plan& plan, const schedule::Schedule& order,
                        const std::vector<model::OperatorRange>& ranges, int rank);
    // Does anything leave the device under the plan's loading horizon? Thread-safe.
    bool offloads_anything(const schedule::Plan& plan);
    // Least step time: every rank waits for the first micro-batch to reach it, computes all of its own with
    // the tensor-parallel collectives in between, and the last micro-batch still has to go back to the first
    // stage; no less than its data-parallel communication takes alone, bucket by bucket, nor its copies of
    // offloaded activations. Zero when the device's times are measured per operator or its prices are
    // missing.
    core::Seconds time(const schedule::Plan& plan);
    // Of every plan that differs from this one in schedule, virtual stages and partition alone, and of every
    // sharding with the same handling of gradients: the passes of the whole model, divided evenly among the
    // pipeline's ranks. It makes no compute order.
    core::Seconds time_of_work(const schedule::Plan& plan);
    // The same without what ranks exchange.
    core::Seconds time_of_compute(const schedule::Plan& plan);
    // Of every partition of this plan, at least: as above, with what the whole model's reductions and gathers
    // of each pass ask of all ranks together, and where a rank has one stage, with the passes that the ranks
    // before it make of one micro-batch. It makes no compute order.
    core::Seconds time_of_any_partition(const schedule::Plan& plan);
    // Of the rank of the pipeline that needs most, what it holds at least, if the state of the model were
    // divided evenly among them. It makes no compute order. Thread-safe.
    core::Bytes least_state(const schedule::Plan& plan);
    // Is that too much?
    bool state_never_fits(const schedule::Plan& plan) {
        return least_state(plan) > cluster_.instance.device.memory;
    }
    // The same, at least the time of the plan's own compute order, and of the reductions that begin with the
    // last backward pass of each stage: tighter, and dearer by a replay of the order.
    core::Seconds time_of_order(const schedule::Plan& plan) { return order_timing(plan).time(); }
    // What takes long of it, the replay, asks no cache of these bounds: it may be made while others use them.
    class OrderTiming {
    public:
        core::Seconds time() const;

    private:
        friend class Bounds;
        core::Seconds known_;  // without a replay
        // Nothing: a replay would tell no more.
        std::optional<schedule::Plan> plan_;
        OrderCollection* orders_ = nullptr;
        sim::ScheduleCosts costs_;
        std::vector<sim::ReplayOrder::StageMessages> messages_;
        core::Seconds after_;
    };
    OrderTiming order_timing(const schedule::Plan& plan);
    // Copies of offloaded activations of such a partition; zero where they stay.
    core::Seconds time_of_copies(const schedule::Plan& plan, const std::vector<model::OperatorRange>& ranges);

    // What a step asks of the rank of one stage, at least: the passes of all micro-batches, of which `weight`
    // are gradients of weights apart, and `host` on the host's clock; and one pass there and back.
    struct StagePasses {
        core::Seconds busy, weight, host, forward, backward;
        core::Seconds last_backward;           // of `busy`, what one backward pass has in it, at most
        core::Seconds compute;                 // of `busy`, without collectives
        std::vector<sim::StageCost> replayed;  // by segment
    };
    StagePasses stage_passes(const schedule::Plan& plan, const schedule::Schedule& order, bool splits,
                             int stage, model::OperatorRange range);
    using PassesByStage = std::vector<const StagePasses*>;
    // What the only stage of a rank does once a step, at least and wherever it lies: reductions, none of
    // which begins before the last pass that makes gradients, and what comes after these and all passes.
    struct OnceAStep {
        core::Seconds reduced, after;
    };
    OnceAStep once_a_step(const schedule::Plan& plan, model::OperatorRange range);
    // The least time of a partition that is not the collection's, whose stages make these passes; where a
    // part of it already takes the limit, that part.
    core::Seconds time_of_order(const schedule::Plan& plan, const std::vector<model::OperatorRange>& ranges,
                                const PassesByStage& stages, core::Seconds limit);
    // Is there too little memory on all ranks together for the state of the model, and for the activations
    // that they keep, however both are divided among them, or on all hosts for what lies there? Then no
    // partition fits.
    bool never_fits(const schedule::Plan& plan);
    // Micro-batches, or the parts that pass, of which a rank keeps activations at one moment: all of them, or
    // after the gradients of inputs those that its weights' gradients need.
    struct Kept {
        double whole = 0, for_weights = 0;
    };
    // By rank, under the plan's order: the moments that no other has more of both. Of one stage a rank.
    const std::vector<std::vector<Kept>>& kept(const schedule::Plan& plan);
    // The first run of operators that costs what this one does, and the parameters of one, a rank's share.
    model::OperatorRange first_like(model::OperatorRange range) { return stages_.first_like(range); }
    // Of the collection's partition; none where the model has too few units.
    std::vector<std::int32_t> first_units(const schedule::Plan& plan) {
        const schedule::Partition* partition = stages_.partition(plan);
        return partition ? partition->first_units : std::vector<std::int32_t>();
    }
    schedule::StateElements elements(const schedule::Plan& plan, model::OperatorRange range) {
        return stages_.parameter_count(plan, range);
    }
    // Of a stage of these operators, at least; saved is of any part of a micro-batch that passes.
    core::Bytes state(const schedule::Plan& plan, model::OperatorRange range);
    using Saved = StageCollection::Saved;
    Saved saved(const schedule::Plan& plan, model::OperatorRange range);
    // Memory of a rank for state and activations, of which the latter take more by the share that is lost.
    core::Bytes room(const schedule::Plan& plan, int pipeline_rank);
    double fragmentation() const { return 1 + cluster_.instance.device.fragmentation; }
    // Of how many pipeline ranks, from the first on, stages may cost differently by where they lie: rank r
    // exchanges what belongs to a pass as r modulo that many does.
    int unlike_places(const schedule::Plan& plan) const;
    // The plan's order, if prices of the device bound its time. Null: times bound nothing.
    const schedule::Schedule* timed_order(const schedule::Plan& plan);
    // Share of a bound that is claimed: bounds add up the prices of whole passes where the simulator adds
    // those of instructions, and rounding must not lift a bound above the simulated time.
    static constexpr double claimed_share = 0.999;

    // What passes of each stage send, at least.
    using Sends = std::vector<sim::ScheduleCosts::Sends>;
    // What steps of every partition of one plan have in common.
    struct AnyPartition {
        bool has_order = false;    // else times bound nothing, and costs are empty
        sim::ScheduleCosts costs;  // but for those of its stages
    };
    AnyPartition any_partition(const schedule::Plan& plan);
    // To be replayed. Null: it is too long for that.
    const sim::ReplayOrder* whole_order(const schedule::Plan& plan) { return orders_.whole_order(plan); }

private:
    struct Caches;
    Caches& caches_of(const schedule::Plan& plan);
    bool state_exceeds_hosts(const schedule::Plan& plan);
    sim::CommunicationCost& communication_of(const schedule::Plan& plan);

    // Of the data stream of one rank for one stage.
    struct Traffic {
        core::Seconds gathered;      // before each pass forward, and again before each backward
        core::Seconds scattered;     // in each pass backward
        core::Seconds reduced;       // once a step, from the last pass backward on
        core::Seconds after_update;  // gathers of updated parameters
        // Of what each pass forward and backward exchanges, by the share of the multiprocessors that it
        // takes, and the largest such share.
        core::Seconds crowding;
        double largest_share = 0;
    };
    // The same of what replicas exchange.
    int unlike_replicas(const schedule::Plan& plan) const;
    // As a pipeline rank: of each exchange, that of the rank for which it takes least. Only the largest share
    // of multiprocessors is that of the rank for which it is most: more of it leaves more to compute.
    static constexpr int any_place = -1;
    struct Places {
        int first, end;
    };
    Places places_of(const schedule::Plan& plan, int pipeline_rank) const;
    core::Seconds time_of_collective(const schedule::Plan& plan, schedule::CollectiveKind kind,
                                     schedule::GroupKind group, core::Bytes bytes, int pipeline_rank);
    const Traffic& traffic(const schedule::Plan& plan, model::OperatorRange stage, int pipeline_rank);
    Traffic traffic_of(const schedule::Plan& plan, model::OperatorRange stage, int pipeline_rank);
    // Of one micro-batch through the whole model.
    struct Whole {
        core::Seconds passes, compute;
        // Of every unit's passes at least these shares are one segment's forward pass, and with it its
        // backward pass.
        double forward = 0, there_and_back = 0;
    };
    const Whole& whole(const schedule::Plan& plan);
    // Elements of the unit that has most, a rank's share; experts that are spread over ranks not counted.
    double largest_unit(const schedule::Plan& plan);
    core::Seconds time_of_shards(const schedule::Plan& plan);
    // What each pass waits for of the exchanges within it.
    struct Collectives {
        core::Seconds forward, backward, backward_input, beside_backward;
    };
    const Collectives& collectives(const schedule::Plan& plan, model::OperatorRange range, int pipeline_rank,
                                   int segment);
    Collectives collectives_of_unit(const schedule::Plan& plan, model::OperatorRange unit, int pipeline_rank,
                                    int segment);
    // Of so many parameters' update by one rank.
    core::Seconds update_time(const schedule::Plan& plan, double elements);
    // With the tensor-parallel collectives between the passes' operators.
    StageCost stage_cost(const schedule::Plan& plan, model::OperatorRange range, int pipeline_rank,
                         int segment);
    RankMemory memory_of_rank(const schedule::Plan& plan, const schedule::Schedule& order, int rank,
                              const schedule::StateElements& elements,
                              const std::function<RankActivations()>& activations);
    MemoryBound memory_of_all(const schedule::Plan& plan, const schedule::Schedule& order,
                              const std::function<RankMemory(int)>& of_rank) const;
    // `copies` of each rank.
    std::vector<StagePasses> all_passes(const schedule::Plan& plan, const schedule::Schedule& order);
    core::Seconds time_of_passes(const schedule::Plan& plan, const schedule::Schedule& order,
                                 const std::vector<model::OperatorRange>& ranges, const PassesByStage& stages,
                                 const Sends& sends, const std::vector<core::Seconds>& copies);
    // `after`: all passes, and not counted here.
    OrderTiming replay(const schedule::Plan& plan, const schedule::Schedule& order,
                       const std::vector<model::OperatorRange>& ranges, const PassesByStage& stages,
                       const Sends& sends, const std::vector<core::Seconds>& tied, core::Seconds after);
    core::Seconds time(const schedule::Plan& plan, const schedule::Schedule& order,
                       const PassesByStage& stages);
    core::Seconds time_of_state_copies(const schedule::Plan& plan,
                                       const std::vector<RankParameters>& parameters);
    core::Seconds after_passes(const schedule::Plan& plan, const schedule::Schedule& order);
    core::Seconds after_passes(const schedule::Plan& plan, const schedule::Schedule& order,
                               const std::vector<model::OperatorRange>& ranges,
                               const std::vector<RankParameters>& parameters);
    const Sends& sends(const schedule::Plan& plan, const schedule::Schedule& order);
    // Of each rank, what it does for parameters that other ranks use too once its passes are over, or of
    // gradients that are sharded, its messages.
    std::vector<core::Seconds> tied_reductions(const schedule::Plan& plan, const schedule::Schedule& order,
                                               const std::vector<StageCollection::TiedCopies>& tied);
    std::vector<core::Seconds> tied_reductions(const schedule::Plan& plan, const schedule::Schedule& order,
                                               const std::vector<model::OperatorRange>& ranges);
    core::Seconds data_parallel_time(const schedule::Plan& plan, const schedule::Schedule& order,
                                     const std::vector<model::OperatorRange>& ranges,
                                     const std::vector<core::Seconds>& tied);
    std::vector<core::Seconds> copy_times(const schedule::Plan& plan, const schedule::Schedule& order,
                                          const std::vector<RankActivations>& ranks);

    const cluster::Cluster& cluster_;
    OrderCollection& orders_;
    StageCollection& stages_;
    std::unique_ptr<sim::KnownCandidates> own_known_;
    sim::KnownCandidates& known_;
    // Degrees, the pieces of products and the bytes of a bucket.
    using LayoutKey = std::tuple<int, int, int, int, int, int, int, schedule::ContextCommunication, double>;
    static LayoutKey layout_key(const schedule::Plan& plan);
    std::map<LayoutKey, std::unique_ptr<Caches>> caches_;
    std::mutex outside_guard_;
    std::map<std::tuple<LayoutKey, int, int>, core::Bytes>
        outside_memory_;  // by shard degree and pipeline rank too
    std::map<const schedule::Schedule*, std::vector<std::vector<Kept>>> kept_;
};

}  // namespace planner
