// Sharded parameters (ZeRO-3, FSDP FULL_SHARD). The buckets that a unit reads are gathered before it and
// dropped after it. Where gathering overlaps with compute, those of the next unit are gathered while this
// one runs, at most one unit ahead. Where hosts keep them, each rank first copies its shard to the device.
#include <algorithm>
#include <utility>

#include "core/index/integers.h"
#include "model/operators/rank_share.h"
#include "schedule/pass/axis/axes.h"
#include "schedule/pass/axis/collectives.h"

namespace schedule {

namespace {

using Buckets = std::vector<std::int32_t>;

class ShardedParameters : public LoweringPass {
public:
    explicit ShardedParameters(RankDraft& draft) : LoweringPass(draft), of_unit_(draft.graph->units.size()) {
        for (const std::int32_t b : core::indices(draft.buckets.uses)) {
            if (draft.buckets.buckets[b].pieces == 1 && !draft.plan.keeps_parameters_on_hosts()) continue;
            for (const BucketUse& use : draft.buckets.uses[b])
                for (const std::int32_t unit : use.units) of_unit_[unit].push_back({use.stage, b});
        }
    }

    void enter_unit(RecipeDraft& recipe, std::int32_t unit) override {
        const RecipeContext& context = recipe.context();
        const std::int32_t count = core::count_of(context.units);
        const bool is_first = unit == (recipe.is_forward() ? 0 : count - 1);
        if (is_first) gathers_any_ = gathers_any(context);
        if (!gathers_any_) return;
        std::vector<Hook> hooks;
        if (!is_first) hooks.push_back({this, end_unit});
        const std::int32_t next = recipe.is_forward() ? unit + 1 : unit - 1;
        // A first unit that reads nothing still lets the next one be gathered ahead.
        hooks.push_back({this, is_first ? begin_first_unit : begin_unit, {}, gathers(context, unit)});
        if (next >= 0 && next < count && draft_.plan.overlaps_parameter_gathering)
            hooks.push_back({this, prefetch, {}, gathers(context, next)});
        recipe.append(std::move(hooks));
    }

    // The last step that works of each unit drops what was gathered for it.
    void finish(RecipeDraft& recipe) override {
        recipe.append({{this, end_unit}});
        bool is_dropped = true;
        Recipe& steps = recipe.steps();
        for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
            if (!step->works() && !step->hooks.empty() && step->hooks[0].pass == this) is_dropped = false;
            if (!step->works() || is_dropped) continue;
            step->hooks.insert(step->hooks.begin(), {this, drop});
            is_dropped = true;
        }
    }

    void perform(const Hook& hook, const StagePass&) override {
        Frontier& frontier = draft_.frontier;
        switch (What{hook.what}) {
            case begin_first_unit:
            case begin_unit: {
                const bool prefetches = draft_.plan.overlaps_parameter_gathering;
                if (hook.what == begin_first_unit || !prefetches)
                    gather(hook.buckets, prefetches ? unit_end_before_ : frontier.last_step);
                std::swap(gathered_, next_gathered_);
                std::swap(gathers_, next_gathers_);
                next_gathered_.clear();
                next_gathers_.clear();
                frontier.pending.insert(frontier.pending.end(), gathers_.begin(), gathers_.end());
                return;
            }
            case prefetch: return gather(hook.buckets, unit_end_);
            case drop:
                for (const std::uint32_t buffer : gathered_) draft_.list.give_back(buffer);
                gathered_.clear();
                return;
            case end_unit:
                unit_end_before_ = unit_end_;
                unit_end_ = frontier.last_step;
                return;
        }
    }

private:
    enum What : std::uint8_t { begin_first_unit, begin_unit, prefetch, drop, end_unit };
    struct Use {
        std::int32_t stage, bucket;
    };

    bool gathers_any(const RecipeContext& recipe) const {
        if (recipe.has_input_part()) return true;
        for (const std::int32_t unit : core::indices(recipe.units))
            if (!gathers(recipe, unit).empty()) return true;
        return false;
    }

    // Buckets that a pass through the unit reads: gradients of weights do not read all of them.
    Buckets gathers(const RecipeContext& recipe, std::int32_t unit) const {
        const model::OperatorRange operators = recipe.units[unit];
        Buckets result;
        for (const Use& use : of_unit_[draft_.graph->operators[operators.begin].unit])
            if (use.stage == recipe.stage &&
                (recipe.has_input_part() || weight_gradients_read(use.bucket, operators)))
                result.push_back(use.bucket);
        return result;
    }
    bool weight_gradients_read(std::int32_t bucket, const model::OperatorRange& operators) const {
        const std::vector<model::ParameterId>& held = draft_.buckets.buckets[bucket].parameters;
        for (std::int32_t i = operators.begin; i < operators.end; ++i) {
            const model::Operator& op = draft_.graph->operators[i];
            if (!model::weight_gradients_read_parameters(op)) continue;
            for (const model::ParameterId parameter : op.parameters)
                if (std::find(held.begin(), held.end(), parameter) != held.end()) return true;
        }
        return false;
    }

    void gather(const Buckets& buckets, std::uint32_t after) {
        for (const std::int32_t bucket : buckets) {
            const ParameterBucket& b = draft_.buckets.buckets[bucket];
            const std::uint32_t whole = draft_.list.buffer(
                MemoryKind::parameters, b.padded_elements * core::size_of(draft_.plan.precision.parameters));
            next_gathered_.push_back(whole);
            std::uint32_t fetched = after;
            if (draft_.plan.keeps_parameters_on_hosts()) fetched = fetch(bucket, whole, after);
            if (b.pieces > 1) {
                draft_.list.take(whole);
                fetched =
                    append_collective(draft_, bucket,
                                      {CollectiveKind::all_gather, groups_of(draft_.plan.layout, b).shard,
                                       PayloadKind::parameter, false},
                                      fetched);
            }
            next_gathers_.push_back(fetched);
        }
    }

    // From the host: a shard, which the gather that comes next gives back, or the whole bucket.
    std::uint32_t fetch(std::int32_t bucket, std::uint32_t whole, std::uint32_t after) {
        const bool is_shard = draft_.buckets.buckets[bucket].pieces > 1;
        const std::uint32_t buffer =
            is_shard ? draft_.list.buffer(MemoryKind::parameters,
                                          owned_bytes(draft_, bucket, PayloadKind::parameter))
                     : whole;
        draft_.list.take(buffer);
        const std::uint32_t copy = append_bucket_copy(draft_, bucket, true, after);
        if (is_shard) draft_.list.give_back(buffer);
        return copy;
    }

    std::vector<std::vector<Use>> of_unit_;  // of the graph
    bool gathers_any_ = false;               // in the recipe at hand
    // The last step of the latest unit, and of the one before: what is gathered ahead waits for these.
    std::uint32_t unit_end_ = no_instruction, unit_end_before_ = no_instruction;
    std::vector<std::uint32_t> gathered_, next_gathered_;  // buffers of this unit and of the next
    std::vector<std::uint32_t> gathers_, next_gathers_;    // instructions
};

}  // namespace

std::unique_ptr<LoweringPass> sharding(RankDraft& draft) {
    if (!draft.plan.fetches_parameters()) return nullptr;
    return std::make_unique<ShardedParameters>(draft);
}

}  // namespace schedule
