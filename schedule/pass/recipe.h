// One pass of a micro-batch through a stage: compute, cut where a lowering pass has something to do beside or
// between operators. A recipe is made once per stage and kind of pass; the list of a rank repeats it for
// every micro-batch.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/model_graph.h"
#include "schedule/pass/rank_draft.h"

namespace schedule {

class LoweringPass;

// What a lowering pass does when a step of a recipe is reached.
struct Hook {
    LoweringPass* pass = nullptr;  // null: the pass through the stage gives its own buffers back
    std::uint8_t what = 0;         // of the lowering pass's own list
    core::OptionalIndex unit{};    // of the stage
    std::vector<std::int32_t> buckets{};
};

struct Step {
    // own: no instruction, hooks alone.
    enum class Kind : std::uint8_t { compute, collective, own } kind = Kind::compute;
    bool works() const { return kind != Kind::own; }
    ComputePhase phase = ComputePhase::forward;
    model::OperatorRange operators;
    CollectiveKind collective = CollectiveKind::all_reduce;
    GroupKind group = GroupKind::tensor;
    PayloadKind payload = PayloadKind::none;
    core::Bytes bytes;
    std::uint8_t piece = 0, pieces = 1;  // as in Instruction
    bool starts_early = false;           // collective: may run beside the compute before it
    bool is_in_ring = false;             // pieces of an attention whose keys pass on beside them
    bool takes = false;       // the first that works: takes the buffers of the pass through the stage
    std::vector<Hook> hooks;  // performed before its instruction is appended
    // The first of several that one instruction can stand for (joined_steps.h): into RankProgram::parts.
    std::uint32_t parts_begin = 0, parts_count = 0;
};

Step compute_step(model::OperatorRange operators, ComputePhase phase, std::vector<Hook> hooks = {});
Step own_step(std::vector<Hook> hooks);
Step collective_step(model::OperatorRange operators, CollectiveKind kind, GroupKind group,
                     PayloadKind payload, ComputePhase phase, core::Bytes bytes);

using Recipe = std::vector<Step>;

// What the recipe is of.
struct RecipeContext {
    std::int32_t stage = 0;  // virtual
    model::OperatorRange operators{};
    // forward, backward, backward_input or backward_weight.
    ComputePhase phase = ComputePhase::forward;
    bool completes_gradients = false;  // nothing adds to the stage's gradients after this pass
    std::vector<model::OperatorRange> units{};
    std::vector<char> runs_again{};  // by unit: recompute full (recompute.h)
    bool has_input_part() const { return phase != ComputePhase::backward_weight; }
    bool has_weight_part() const { return phase != ComputePhase::backward_input; }
};

// Consecutive operators that run as one, and where lowering passes cut them. `phase` is forward or recompute
// (operators in order), or a backward phase (in reverse). Steps of several passes at one operator come in the
// order of the passes.
class OperatorCuts {
public:
    using Passes = std::span<const std::unique_ptr<LoweringPass>>;
    // `passes` outlive it.
    OperatorCuts(const RecipeContext& recipe, model::OperatorRange range, ComputePhase phase, Passes passes)
        : recipe_(recipe), range_(range), phase_(phase), passes_(passes) {}

    const RecipeContext& recipe() const { return recipe_; }
    const model::OperatorRange& range() const { return range_; }
    ComputePhase phase() const { return phase_; }
    bool is_forward() const { return phase_ == ComputePhase::forward || phase_ == ComputePhase::recompute; }

    // In the order of execution.
    void before(std::int32_t op, Step step) { add(op, Place::before, std::move(step)); }
    void instead(std::int32_t op, Step step) { add(op, Place::instead, std::move(step)); }
    void after(std::int32_t op, Step step) { add(op, Place::after, std::move(step)); }
    // Runs operators forward once more, cut as all of their phase are, before anything else that is before
    // `op`.
    void run_again(std::int32_t op, model::OperatorRange operators);
    // Just before the compute that runs the operator, which is not cut for it: of all operators that run in
    // one compute, the hooks of a pass with equal `what` become one.
    void with(std::int32_t op, Hook hook);

    // Appends the operators' compute, cut by all passes.
    void append_to(Recipe& recipe);

private:
    enum class Place : std::uint8_t { again, before, with, instead, after };
    struct Cut {
        std::int32_t op;
        Place place;
        Step step;
    };
    void add(std::int32_t op, Place place, Step step) { cuts_.push_back({op, place, std::move(step)}); }

    const RecipeContext& recipe_;
    const model::OperatorRange range_;
    const ComputePhase phase_;
    const Passes passes_;
    std::vector<Cut> cuts_;
};

// A recipe while its units are entered, in order or in reverse. Operators of units between which nothing
// flushes are one range.
class RecipeDraft {
public:
    // `passes` outlive it.
    RecipeDraft(const RecipeContext& context, std::span<const std::unique_ptr<LoweringPass>> passes)
        : context_(context), passes_(passes) {}
    Recipe make();

    const RecipeContext& context() const { return context_; }
    Recipe& steps() { return steps_; }
    bool is_forward() const { return context_.phase == ComputePhase::forward; }

    // For a lowering pass that a unit enters or leaves: what was entered and not flushed is appended.
    void flush();
    // Flushes, and appends a step of the pass alone, if it has hooks.
    void append(std::vector<Hook> hooks);
    // The unit's forward once more, then its backward, apart from other units.
    void run_again(model::OperatorRange unit);

private:
    void enter(std::int32_t unit);
    void append_range(model::OperatorRange range, ComputePhase phase);
    void mark_buffers();

    const RecipeContext& context_;
    const std::span<const std::unique_ptr<LoweringPass>> passes_;
    Recipe steps_;
    model::OperatorRange open_;   // entered and not flushed
    bool has_run_again_ = false;  // the unit that is entered
};

}  // namespace schedule
