// The list of one class of ranks: its actions in order, each a pass of a micro-batch through a stage with its
// activations and transfers. What else goes into the list are lowering passes (lowering_pass.h).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "schedule/pass/lowering_pass.h"
#include "schedule/pass/rank_draft.h"

namespace schedule {

class RankLowering {
public:
    // As RankDraft's.
    RankLowering(const Program& program, const model::ModelGraph* graph, const Schedule& order,
                 const LowerOptions& options, const std::vector<std::vector<ActivationFootprint>>& footprints,
                 int rank);
    // For lists as long as another's, and a little longer.
    void make_room_like(const RankProgram& other);
    RankProgram lower();

private:
    // State of one stage of this rank that every lowered pass of it uses.
    struct LocalStage {
        std::int32_t index = 0;  // virtual stage
        bool has_before = false,
             has_after = false;  // tensors come from the stage before, go to the one after
        bool is_before_here = false, is_after_here = false;
        core::Bytes message_before, message_after;
        std::vector<model::OperatorRange> units;
        std::map<std::pair<ComputePhase, bool>, Recipe> recipes;  // as they are asked for
        // Buffers by micro-batch.
        std::vector<std::uint32_t> received, received_saved, saved, saved_for_weight, kept_for_weight,
            received_gradient;
    };

    LocalStage local_stage(const RankDraft::Stage& stage) const;
    std::vector<char> runs_again(const LocalStage& stage) const;
    // `is_last`: it completes the gradients of the stage.
    const Recipe& recipe(LocalStage& stage, ComputePhase phase, bool is_last);
    LocalStage& local(std::int32_t stage) { return stages_[local_of_[stage]]; }
    void find_last_backwards();

    const ActivationFootprint& footprint(std::int32_t stage, std::int32_t micro_batch) const {
        return (*draft_.stages[local_of_[stage]].footprints)[draft_.program.segment_of(micro_batch)];
    }
    StagePass begin(const LocalStage& stage, std::int32_t micro_batch, ComputePhase phase, bool is_last);
    void lower(const Action& action, bool is_last);
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

    void begin_pass(StagePass& pass) {
        for (const std::unique_ptr<LoweringPass>& lowering : passes_) lowering->begin_pass(pass);
    }
    void end(const Ending& ending) {
        for (const std::unique_ptr<LoweringPass>& lowering : passes_) lowering->end(ending);
    }
    void run(LocalStage& stage, const StagePass& pass);
    void perform(const Step& step, const StagePass& pass);  // its hooks
    void append(const Step& step, const StagePass& pass);
    void append_joined(const Step& first, const Step& last, const StagePass& pass);

    RankDraft draft_;
    const std::vector<std::unique_ptr<LoweringPass>> passes_;
    std::vector<LocalStage> stages_;         // as RankDraft::stages
    std::vector<std::int32_t> local_of_;     // by virtual stage, -1 = elsewhere
    std::vector<char> completes_gradients_;  // by action: the last backward of its stage before an update

    std::vector<std::uint32_t> takes_;                    // buffers that the next receive or first step takes
    std::uint32_t before_last_compute_ = no_instruction;  // the step before the latest compute
    std::uint32_t settled_reduction_ = no_instruction;    // on the tensor stream, which a step waited for
    std::uint32_t last_piece_ = no_instruction;           // the latest product of some rows
    std::array<std::uint32_t, 2> rotations_{};            // the latest of a ring, by its piece modulo two
};

}  // namespace schedule
