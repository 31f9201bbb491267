// The list of one class of ranks while it is written: what all lowering passes read, and where they append.
#pragma once

#include <cstdint>
#include <vector>

#include "model/model_fwd.h"
#include "schedule/pass/buckets.h"
#include "schedule/pass/instruction_list.h"
#include "schedule/pass/lower.h"
#include "schedule/plan/memory.h"
#include "schedule/program/program.h"
#include "schedule/schedule.h"

namespace schedule {

// Where the list has got to: what the next step follows.
struct Frontier {
    std::uint32_t last_step = no_instruction;  // the latest compute or tensor-parallel step
    std::vector<std::uint32_t> pending;        // what the next one waits for, beside its stream
    // The latest reductions of gradients, by stream, and the latest copy of one to the host.
    std::uint32_t reduced_on_data = no_instruction, reduced_on_tensor = no_instruction,
                  sent_to_host = no_instruction;
};

struct RankDraft {
    // A virtual stage of the rank.
    struct Stage {
        std::int32_t index = 0;                                        // virtual stage
        const std::vector<ActivationFootprint>* footprints = nullptr;  // by part of a sequence
        bool splits_backward = false;
    };

    // `program` has plan, stages and tensor lists; `graph`, of a part of a sequence where these are cut, is
    // null for a Program without operators. `footprints` by virtual stage and part of a sequence. All that is
    // given outlives the draft.
    RankDraft(const Program& program, const model::ModelGraph* graph, const Schedule& order,
              const LowerOptions& options, const std::vector<std::vector<ActivationFootprint>>& footprints,
              int rank);
    // For recipes alone, of all stages of the Program: no buckets, no footprints, no updates.
    RankDraft(const Program& program, const model::ModelGraph& graph, const Schedule& order);
    RankDraft(const RankDraft&) = delete;
    RankDraft& operator=(const RankDraft&) = delete;

    const std::vector<Action>& actions() const { return order.actions[rank]; }
    bool trains() const { return graph && !order.is_forward_only; }
    bool updates() const { return trains() && options.has_optimizer; }
    bool is_asynchronous() const { return program.micro_batches_per_update > 0; }
    const StageInfo& info(const Stage& stage) const { return program.stages[stage.index]; }

    // ZeRO-2 and 3: gradients of the bucket are scattered in every micro-batch,
    bool scatters_every_micro_batch(std::int32_t bucket) const {
        return plan.sharding >= Sharding::gradients && buckets.buckets[bucket].pieces > 1;
    }
    // ... and whole ones live from the beginning to the end of a pass only.
    bool has_gradient_of_the_pass(std::int32_t bucket) const {
        return (scatters_every_micro_batch(bucket) && buckets.uses[bucket].size() == 1) ||
               buckets.buckets[bucket].sums_on_host;
    }

    // The next instruction waits for the latest step, for all reductions of gradients and for what was sent
    // to the host.
    void wait_for_gradients();

    const Program& program;
    const Plan& plan;
    const model::ModelGraph* const graph;
    const Schedule& order;
    const LowerOptions options;
    const int rank;
    RankBuckets buckets;
    std::vector<Stage> stages;
    RankProgram result;
    InstructionList list{result};
    Frontier frontier;
};

}  // namespace schedule
