// The list of one class of ranks: its actions in order, each expanded by its recipe, with transfers,
// reductions and the update around them.
#pragma once

#include <initializer_list>
#include <optional>
#include <vector>

#include "schedule/pass/buckets.h"
#include "schedule/pass/instruction_list.h"
#include "schedule/pass/lower.h"
#include "schedule/pass/rank/key_value_gradients.h"
#include "schedule/pass/rank/offload.h"
#include "schedule/pass/rank/update.h"
#include "schedule/pass/rank/weight_versions.h"
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
    void gather(const StepGroup& group, std::uint32_t after);

    // Asynchronous: the update after a group of micro-batches.
    void update_between(std::int32_t index);
    void hold_state();
    bool is_asynchronous() const { return program_.micro_batches_per_update > 0; }
    void find_last_backwards();
    static bool is_last_of_unit(const StepGroup& group, std::size_t step);

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
    std::vector<std::int32_t> local_of_;     // by virtual stage, -1 = elsewhere
    std::vector<char> completes_gradients_;  // by action: the last backward of its stage before an update

    std::vector<std::uint32_t> takes_;  // buffers that the next receive or first step takes
    Frontier frontier_;
    std::uint32_t before_last_compute_ = no_instruction;  // the step before the latest compute
    std::uint32_t group_end_ = no_instruction, group_end_before_ = no_instruction;
    std::vector<std::uint32_t> gathered_, next_gathered_;  // buffers of this and of the next group of steps
    std::vector<std::uint32_t> gathers_, next_gathers_;    // instructions
    std::uint32_t loss_ready_ = no_instruction;
    bool completes_gradients_now_ =
        false;  // the pass being lowered is the last that adds to its stage's gradients

    std::optional<OffloadedActivations> offload_;
    GradientReductions reductions_;
    RankUpdate update_;
    WeightVersions versions_;
    std::vector<std::uint32_t> gives_back_too_;  // replaced parameters, with the pass at work
};

}  // namespace schedule
