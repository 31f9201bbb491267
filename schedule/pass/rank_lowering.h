// The list of one class of ranks: its actions in order, each expanded by its recipe, with transfers,
// reductions and the update around them.
#pragma once

#include <initializer_list>
#include <optional>
#include <vector>

#include "schedule/pass/buckets.h"
#include "schedule/pass/instruction_list.h"
#include "schedule/pass/key_value_gradients.h"
#include "schedule/pass/lower.h"
#include "schedule/pass/recipe.h"
#include "schedule/plan/memory.h"

namespace schedule {

class RankLowering {
public:
    // `program` has plan, stages and tensor lists; `graph`, of a segment where sequences are cut, is null for
    // a Program without operators. `footprints` by virtual stage and segment.
    RankLowering(const Program& program, const model::ModelGraph* graph, const Schedule& order,
                 const LowerOptions& options, const std::vector<std::vector<ActivationFootprint>>& footprints,
                 int rank);
    RankProgram lower();

private:
    // State of one stage of this rank that every lowered pass of it uses.
    struct LocalStage {
        std::int32_t index = 0;                                        // virtual stage
        const std::vector<ActivationFootprint>* footprints = nullptr;  // by segment of a sequence
        bool splits_backward = false;
        bool has_before = false,
             has_after = false;  // tensors come from the stage before, go to the one after
        bool is_before_here = false, is_after_here = false;
        core::Bytes message_before, message_after;
        Recipe forward, backward, last_backward, input, weight, last_weight;
        // Buffers by micro-batch.
        std::vector<std::uint32_t> received, received_saved, saved, saved_for_weight, kept_for_weight,
            received_gradient;
        std::optional<KeyValueGradients> key_value_gradients;
    };
    using Buffers = std::initializer_list<std::uint32_t>;

    void prepare();
    void prepare_recipes(LocalStage& stage);
    LocalStage& local(std::int32_t stage) { return stages_[local_of_[stage]]; }

    const ActivationFootprint& footprint(const LocalStage& stage, std::int32_t micro_batch) const {
        return (*stage.footprints)[program_.segment_of(micro_batch)];
    }
    void lower_forward(LocalStage& stage, std::int32_t micro_batch);
    void lower_backward(LocalStage& stage, std::int32_t micro_batch, bool is_last);
    void lower_input(LocalStage& stage, std::int32_t micro_batch);
    void lower_weight(LocalStage& stage, std::int32_t micro_batch, bool is_last);
    // Allocates the buffers for tensors that stage `index` gets from a neighbour, by a receive or a
    // hand-over.
    void make_room(std::int32_t index, std::int32_t micro_batch, PayloadKind payload);
    void take_all();
    void arrive(LocalStage& stage, std::int32_t micro_batch, PayloadKind payload);
    Instruction message(const LocalStage& stage, std::int32_t micro_batch, PayloadKind payload,
                        bool sends) const;
    std::uint32_t depart(LocalStage& stage, std::int32_t micro_batch, PayloadKind payload);
    void send(LocalStage& stage, std::int32_t micro_batch, PayloadKind payload, std::uint32_t buffer);

    // Runs a recipe: its first step takes, its last compute or tensor-parallel step gives back.
    void run(const Recipe& recipe, const LocalStage& stage, std::int32_t micro_batch, Buffers takes,
             Buffers gives_back);
    void run_step(const Step& step, const LocalStage& stage, std::int32_t micro_batch);
    void begin_gradients(const std::vector<std::int32_t>& buckets);
    void gather(const StepGroup& group, std::uint32_t after);

    // Data-parallel reduction of a bucket's gradient after instruction `after`, and the collectives over its
    // shards; false when there is none to do.
    bool reduce(std::int32_t bucket, std::uint32_t after);
    std::uint32_t bucket_collective(std::int32_t bucket, CollectiveKind kind, GroupKind group,
                                    PayloadKind payload, bool on_shard, std::uint32_t after);
    void finish_reductions();
    // Adds up a few numbers of every member. `bucket`: the one that they belong to, if any.
    std::uint32_t sum_scalars(GroupKind group, PayloadKind payload, core::Bytes bytes, std::uint32_t after,
                              core::OptionalIndex bucket = {});
    void reduce_loss();
    void take_gradient_norm();
    std::uint32_t take_update_norms(std::int32_t index, std::uint32_t sums);
    void update();
    // Asynchronous: the update after a group of micro-batches, and the parameters that it replaces while
    // micro-batches in flight need them.
    void update_between(std::int32_t index);
    void add_persistent();

    // Offload (pass/offload.cpp): tasks are passes of micro-batches through units, in the rank's order.
    struct UnitTask {
        std::int32_t stage = 0, micro_batch = 0, unit = 0;
        ActionKind pass = ActionKind::forward;
        bool reads_first() const {
            return pass == ActionKind::backward || pass == ActionKind::backward_input;
        }  // ... the tensors that left
    };
    struct OffloadedUnit {
        std::int64_t forward = -1, backward = -1;  // tasks
        bool leaves = false;
        std::uint32_t buffer = no_buffer, stored = no_instruction;  // before it leaves
        std::uint32_t loaded =
            no_instruction;  // after the load: buffers freed with the first backward pass, and with the last
        std::uint32_t loaded_for_input = no_buffer, loaded_for_weight = no_buffer;
    };
    void plan_offload();
    OffloadedUnit& offloaded(std::int32_t stage, std::int32_t micro_batch, std::int32_t unit);
    struct Offloaded {
        core::Bytes all, for_weight;  // the second a part of the first
    };
    Offloaded offloaded_bytes(const LocalStage& stage, std::int32_t micro_batch);
    static core::Bytes for_weight(const LocalStage& stage, std::int32_t unit);
    void begin_unit(const LocalStage& stage, std::int32_t micro_batch, std::int32_t unit);
    void store(const LocalStage& stage, std::int32_t micro_batch, std::int32_t unit);
    void load(const UnitTask& task);
    std::uint32_t append_copy(const LocalStage& stage, std::int32_t micro_batch, std::int32_t unit,
                              bool loads);
    static bool is_last_of_unit(const StepGroup& group, std::size_t step);

    bool is_asynchronous() const { return program_.micro_batches_per_update > 0; }
    void find_last_backwards();
    bool is_reduced_at_the_end(std::size_t bucket) const;
    bool has_gradient_of_the_pass(std::size_t bucket) const {
        return reduces_every_micro_batch(bucket) && buckets_.uses[bucket].size() == 1;
    }
    // Hybrid sharding sums over the replicas once per step: beside the last backward pass where reductions
    // may run there (FSDP's HYBRID_SHARD), else after it.
    bool sums_replicas_beside_backward(std::size_t bucket) const {
        return plan_.overlaps_gradient_reduction && !is_reduced_at_the_end(bucket) &&
               program_.directions == 1 && !is_asynchronous();
    }
    bool reduces_every_micro_batch(std::size_t bucket) const {
        return plan_.sharding >= Sharding::gradients && buckets_.buckets[bucket].pieces > 1;
    }

    const Program& program_;
    const Plan& plan_;
    const model::ModelGraph* graph_;
    const Schedule& order_;
    const LowerOptions options_;
    const std::vector<std::vector<ActivationFootprint>>& footprints_;
    const int rank_;
    const bool trains_;
    RankProgram result_;
    InstructionList list_;
    RankBuckets buckets_;
    std::vector<LocalStage> stages_;
    std::vector<std::int32_t> local_of_;        // by virtual stage, -1 = elsewhere
    std::vector<char> completes_gradients_;     // by action: the last backward of its stage before an update
    std::vector<std::uint32_t> full_gradient_;  // by bucket: buffer of the pass

    std::vector<std::uint32_t> takes_;  // buffers that the next receive or first step takes
    std::vector<std::uint32_t>
        pending_;  // instructions that the next compute or tensor-parallel step waits for, beside its stream
    std::uint32_t last_step_ = no_instruction;            // the latest compute or tensor-parallel step
    std::uint32_t before_last_compute_ = no_instruction;  // the step before the latest compute
    std::uint32_t group_end_ = no_instruction, group_end_before_ = no_instruction;
    std::vector<std::uint32_t> gathered_, next_gathered_;  // buffers of this and of the next group of steps
    std::vector<std::uint32_t> gathers_, next_gathers_;    // instructions
    // Reduce-scatters: the last one, and the last one when whole gradients last began.
    std::uint32_t last_scatter_ = no_instruction, scatter_before_ = no_instruction;
    std::uint32_t last_on_data_ = no_instruction, last_on_tensor_ = no_instruction;  // of the reductions
    std::uint32_t loss_ready_ = no_instruction;
    bool completes_gradients_now_ =
        false;  // the pass being lowered is the last that adds to its stage's gradients

    std::vector<UnitTask> unit_tasks_;
    std::vector<std::vector<OffloadedUnit>> offloaded_;  // by local stage; [micro-batch][unit], flat
    std::int64_t unit_task_ = -1;                        // the latest begun
    std::vector<std::uint32_t> loaded_;                  // buffers that the unit at work frees at its end

    // Asynchronous: the update whose parameters each micro-batch began with, and what its backward gives back
    // of replaced ones.
    std::int32_t updates_done_ = 0, forwards_done_ = 0, backwards_done_ = 0;
    std::vector<std::int32_t> version_of_;
    std::vector<std::vector<std::uint32_t>> replaced_parameters_;
    std::vector<std::uint32_t> gives_back_too_;
};

}  // namespace schedule
