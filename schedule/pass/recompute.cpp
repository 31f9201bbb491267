#include "schedule/pass/recompute.h"

#include <algorithm>
#include <optional>

#include "core/index/integers.h"
#include "model/model_graph.h"
#include "model/operators/rank_share.h"

namespace schedule {

namespace {

bool can_run_again(const model::ModelGraph& graph, model::OperatorRange unit) {
    bool has_input = false, continues = false;
    for (std::int32_t i = unit.begin; i < unit.end; ++i) {
        const model::Operator& op = graph.operators[i];
        if (op.kind == model::OperatorKind::embedding || op.kind == model::OperatorKind::cross_entropy)
            return false;
        has_input = has_input || op.kind == model::OperatorKind::input;
        for (const model::TensorId input : op.inputs)
            continues = continues || graph.tensor(input).producer.index < unit.begin;
    }
    // A unit that begins with the data is not recomputed. A layer that reads data beside the tensors of the
    // layer before (the memory of a Transformer-XL) is.
    return !has_input || continues;
}

}  // namespace

std::vector<char> recomputed_units(const model::ModelGraph& graph,
                                   std::span<const model::OperatorRange> units, Recompute recompute,
                                   int layers) {
    std::vector<char> run_again(units.size(), 0);
    if (recompute != Recompute::full) return run_again;
    int count = 0;
    for (std::size_t u = 0; u < units.size() && (layers == 0 || count < layers); ++u) {
        run_again[u] = can_run_again(graph, units[u]);
        count += run_again[u];
    }
    return run_again;
}

std::vector<char> recomputed_units(const model::ModelGraph& graph,
                                   std::span<const model::OperatorRange> units, const Plan& plan, int stage) {
    if (!plan.recomputes_by_stage())
        return recomputed_units(graph, units, plan.recompute, plan.recompute_layers);
    const int layers = plan.layers_again(stage);
    return recomputed_units(graph, units, layers > 0 ? plan.recompute : Recompute::none, layers);
}

std::vector<char> recomputed_units(const model::ModelGraph& graph, Recompute recompute) {
    return recomputed_units(graph, units_of(graph, {0, core::count_of(graph.operators)}), recompute, 0);
}

bool is_recomputed(const model::Operator& op, const Plan& plan) {
    return op.in_attention_core && plan.runs_again(RecomputeModule::core_attn);
}

namespace {

class RerunFinder {
public:
    RerunFinder(const model::ModelGraph& graph, model::OperatorRange unit, const Plan& plan)
        : graph_(graph), unit_(unit), plan_(plan), context_(plan.cost_context()) {}

    std::vector<Rerun> find() {
        for (std::int32_t i = unit_.begin; i < unit_.end; ++i)
            if (plan_.runs_again(RecomputeModule::mla_up_proj)) add_projections_of(i);
        for (std::int32_t i = unit_.begin; i < unit_.end; ++i) add_layer_of(i);
        for (std::int32_t i = unit_.begin; i < unit_.end; ++i)
            if (plan_.runs_again(RecomputeModule::shared_experts)) add_shared_experts(i);
        for (std::int32_t i = unit_.begin; i < unit_.end; ++i)
            if (is_chosen(i)) add({i, i + 1});
        std::sort(found_.begin(), found_.end(),
                  [](const Rerun& a, const Rerun& b) { return a.operators.begin < b.operators.begin; });
        return std::move(found_);
    }

private:
    using OperatorKind = model::OperatorKind;

    const model::Operator& op(std::int32_t i) const { return graph_.operators[i]; }
    const model::Operator& producer(model::TensorId tensor) const {
        return graph_.op(graph_.tensor(tensor).producer);
    }
    std::int32_t index_of(model::TensorId tensor) const { return graph_.tensor(tensor).producer.index; }

    bool is_chosen(std::int32_t i) const {
        const OperatorKind kind = op(i).kind;
        if (is_norm(kind))
            return plan_.runs_again(RecomputeModule::layernorm) && !saves_own_output(i) &&
                   graph_.tensor(op(i).inputs[0]).consumers.size() > 1;
        return is_activation(kind) && plan_.runs_again(RecomputeModule::activation) && !saves_own_output(i);
    }
    static bool is_activation(OperatorKind kind) {
        return kind == OperatorKind::gelu || kind == OperatorKind::silu || kind == OperatorKind::relu ||
               kind == OperatorKind::tanh || kind == OperatorKind::gated_silu ||
               kind == OperatorKind::gated_gelu;
    }

    // Of attention over latent queries, keys and values: from what enters the first projection to what is
    // joined for it.
    void add_projections_of(std::int32_t attention) {
        if (op(attention).kind != OperatorKind::attention || op(attention).inputs.size() != 1) return;
        const std::int32_t join = index_of(op(attention).inputs[0]);
        if (join < unit_.begin || op(join).kind != OperatorKind::concat) return;
        std::int32_t begin = join;
        bool reads_norms = false;
        for (const model::TensorId part : op(join).inputs) {
            if (producer(part).kind != OperatorKind::linear) continue;
            model::TensorId latent = producer(part).inputs[0];
            begin = std::min(begin, index_of(part));
            if (producer(latent).kind == OperatorKind::parallel_enter) {
                begin = std::min(begin, index_of(latent));
                latent = producer(latent).inputs[0];
            }
            reads_norms = reads_norms || producer(latent).kind == OperatorKind::rms_norm;
        }
        const auto is_projection = [&](std::int32_t i) {
            return op(i).kind == OperatorKind::linear || op(i).kind == OperatorKind::parallel_enter;
        };
        for (std::int32_t i = begin; i < join; ++i)
            if (i < unit_.begin || !is_projection(i)) return;
        if (reads_norms) add({begin, join + 1});
    }

    // A dense feed-forward layer, or a mixture, that begins with this operator.
    void add_layer_of(std::int32_t begin) {
        if (op(begin).kind != OperatorKind::parallel_enter && !model::is_view(op(begin).kind)) return;
        bool has_activation = false, has_router = false;
        // All that was made so far is read up to here, and by no operator beyond its `end`.
        std::int32_t last_read = begin, end = begin;
        for (std::int32_t i = begin; i < unit_.end && i <= last_read; ++i) {
            if (op(i).kind == OperatorKind::attention) return;
            if (i > begin && reads_others_than(op(begin).inputs[0], begin, i)) break;
            has_activation = has_activation || is_activation(op(i).kind);
            has_router = has_router || op(i).kind == OperatorKind::router;
            if (i > begin && i == last_read) {
                end = i + 1;
                const bool is_border = !op(i).in_parallel_region && passes_on(i);
                if (is_border || (has_router && (end == unit_.end || !passes_on(end)))) break;
            }
            for (const model::OperatorId reader : graph_.tensor(op(i).output).consumers)
                last_read = std::max(last_read, reader.index);
        }
        const bool runs_again = has_router ? plan_.runs_again(RecomputeModule::moe)
                                           : has_activation && plan_.runs_again(RecomputeModule::mlp);
        if (!runs_again || end == begin) return;
        const bool has_norm = !has_router || plan_.runs_again(RecomputeModule::layernorm);
        add({has_norm && is_norm_of({begin, end}) ? begin - 1 : begin, end});
    }
    // Of a mixture whose results are added to those of an expert of all tokens: what lies between is that
    // expert.
    void add_shared_experts(std::int32_t sum) {
        if (op(sum).kind != OperatorKind::add || op(sum).inputs.size() != 2) return;
        const model::OperatorRange shared{index_of(op(sum).inputs[0]) + 1, sum};
        if (shared.size() <= 0 || shared.begin <= unit_.begin || index_of(op(sum).inputs[1]) + 1 != sum)
            return;
        bool follows_mixture = false, has_activation = false;
        for (std::int32_t i = shared.begin; i-- > unit_.begin && !follows_mixture;) {
            follows_mixture = op(i).kind == OperatorKind::combine;
            if (!follows_mixture && !passes_on(i)) return;
        }
        for (std::int32_t i = shared.begin; i < shared.end; ++i) {
            has_activation = has_activation || is_activation(op(i).kind);
            if (reads_gathered_tokens(i, shared.begin)) return;
        }
        if (follows_mixture && has_activation) add(shared);
    }
    // ... of before `begin`: they are gathered anew by the backward that reads them, and not kept.
    bool reads_gathered_tokens(std::int32_t i, std::int32_t begin) const {
        if (!plan_.has_sequence_parallelism()) return false;
        for (model::TensorId input : op(i).inputs) {
            while (index_of(input) < begin && model::is_view(producer(input).kind))
                input = producer(input).inputs[0];
            if (index_of(input) < begin && producer(input).kind == OperatorKind::parallel_enter) return true;
        }
        return false;
    }
    // Is the operator before these a norm of what they alone read?
    bool is_norm_of(model::OperatorRange operators) const {
        const std::int32_t before = operators.begin - 1;
        if (before < unit_.begin || !is_norm(op(before).kind)) return false;
        const std::vector<model::OperatorId>& readers = graph_.tensor(op(before).output).consumers;
        return !readers.empty() && readers.front().index >= operators.begin &&
               std::all_of(readers.begin(), readers.end(),
                           [&](model::OperatorId reader) { return reader.index < operators.end; });
    }
    static bool is_norm(OperatorKind kind) {
        return kind == OperatorKind::layer_norm || kind == OperatorKind::rms_norm;
    }
    bool passes_on(std::int32_t i) const {
        return op(i).kind == OperatorKind::parallel_exit || model::is_view(op(i).kind);
    }
    // Than a tensor, and what is made from `begin` on.
    bool reads_others_than(model::TensorId known, std::int32_t begin, std::int32_t i) const {
        return std::any_of(op(i).inputs.begin(), op(i).inputs.end(),
                           [&](model::TensorId input) { return input != known && index_of(input) < begin; });
    }

    // The last operator that reads a tensor, or what is stored in its place; nothing where that is beyond the
    // unit.
    std::optional<std::int32_t> last_reader(model::TensorId tensor) const {
        std::int32_t last = index_of(tensor);
        for (const model::OperatorId reader : graph_.tensor(tensor).consumers) {
            std::optional<std::int32_t> of_reader = reader.index;
            if (model::is_view(graph_.op(reader).kind) ||
                graph_.op(reader).kind == OperatorKind::parallel_enter)
                of_reader = last_reader(graph_.op(reader).output);
            if (!of_reader || *of_reader >= unit_.end) return std::nullopt;
            last = std::max(last, *of_reader);
        }
        return last;
    }

    bool saves_own_output(std::int32_t i) const {
        const auto saved = model::saved_for_backward(graph_, model::OperatorId(i), context_).tensors;
        return std::find(saved.begin(), saved.end(), op(i).output) != saved.end();
    }

    // May what one makes reach the other?
    bool may_reach(const Rerun& one, const Rerun& other) const {
        return one.operators.begin < other.operators.begin && one.before >= other.operators.begin;
    }

    void add(model::OperatorRange operators) {
        Rerun rerun{operators, operators.begin};
        for (std::int32_t i = operators.begin; i < operators.end; ++i) {
            const std::optional<std::int32_t> last = last_reader(op(i).output);
            if (!last) return;
            rerun.before = std::max(rerun.before, *last);
        }
        if (rerun.before < operators.end) return;  // nothing reads it
        for (const Rerun& other : found_)
            if (may_reach(rerun, other) || may_reach(other, rerun)) return;
        found_.push_back(rerun);
    }

    const model::ModelGraph& graph_;
    const model::OperatorRange unit_;
    const Plan& plan_;
    const model::CostContext context_;
    std::vector<Rerun> found_;
};

}  // namespace

std::vector<Rerun> reruns(const model::ModelGraph& graph, model::OperatorRange unit, const Plan& plan) {
    if (!plan.runs_chosen_modules_again()) return {};
    return RerunFinder(graph, unit, plan).find();
}

RecomputeModules modules_of(const model::ModelGraph& graph, const Plan& plan) {
    RecomputeModules found = {};
    if (std::any_of(graph.operators.begin(), graph.operators.end(),
                    [](const model::Operator& op) { return op.in_attention_core; }))
        found.add(RecomputeModule::core_attn);
    if (std::any_of(graph.operators.begin(), graph.operators.end(),
                    [](const model::Operator& op) { return op.kind == model::OperatorKind::experts; }))
        found.add(RecomputeModule::moe_act);
    Plan alone = plan;
    alone.recompute = Recompute::selective;
    for (const RecomputeModule module : all_recompute_modules) {
        alone.recompute_modules = {module};
        if (module != RecomputeModule::core_attn &&
            std::any_of(graph.units.begin(), graph.units.end(), [&](const model::Unit& unit) {
                return !reruns(graph, unit.operators, alone).empty();
            }))
            found.add(module);
    }
    return found;
}

double recomputed_share(const model::ModelGraph& graph, const model::Operator& op) {
    using model::OperatorKind;
    if (op.kind == OperatorKind::attention) return 0;
    if (op.kind != OperatorKind::linear) return 1;
    if (graph.op(graph.tensor(op.inputs[0]).producer).kind == OperatorKind::attention) return 1;
    for (const model::OperatorId reader : graph.tensor(op.output).consumers) {
        const model::Operator& next = graph.op(reader);
        if (next.kind == OperatorKind::attention)
            return static_cast<double>(next.attributes.kv_heads) /
                   static_cast<double>(next.attributes.heads + 2 * next.attributes.kv_heads);
        if (next.kind == OperatorKind::gated_silu || next.kind == OperatorKind::gated_gelu) return 0.5;
    }
    return 0;
}

std::vector<model::OperatorRange> units_of(const model::ModelGraph& graph, model::OperatorRange stage) {
    std::vector<model::OperatorRange> units;
    for (const model::Unit& unit : graph.units) {
        const model::OperatorRange part{std::max(unit.operators.begin, stage.begin),
                                        std::min(unit.operators.end, stage.end)};
        if (part.size() > 0) units.push_back(part);
    }
    return units;
}

}  // namespace schedule
