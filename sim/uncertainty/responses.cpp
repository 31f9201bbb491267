#include "sim/uncertainty/responses.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/diagnostics.h"
#include "schedule/plan/planned_graph.h"

namespace sim {

namespace {

// Rounds over all virtual stages that a changed constant is simulated with; longer steps are extrapolated.
constexpr int simulated_rounds = 4;
// Step of a constant, in prior deviations: wide enough to see past a maximum that just changes hands.
constexpr double trial_step = 0.25;

class Trials {
public:
    Trials(const model::ModelGraph& graph, const cluster::Cluster& cluster, const schedule::Plan& plan,
           const ResponseOptions& options)
        : graph_(plan, graph), cluster_(cluster), plan_(plan), options_(options) {}

    std::optional<LogFigures> predict(const CostConstants& constants) const {
        return predict_logarithms(*graph_, cluster_, plan_, constants, simulated_rounds * plan_.stages(),
                                  options_.peak, &lowered_);
    }

    void search(std::size_t c, const LogFigures& base, ConstantResponses& responses) const {
        const NamedConstant& constant = named_constants()[c];
        const double step = step_of(constant);
        CostConstants changed = options_.constants;
        changed.*constant.value += step;
        const std::optional<LogFigures> figures = predict(changed);
        if (!figures || *figures == base) return;
        responses.step[c] = (figures->step - base.step) / step;
        responses.peak[c] = (figures->peak - base.peak) / step;
    }

private:
    // Towards the middle of the physical range.
    double step_of(const NamedConstant& constant) const {
        const double step = trial_step * prior_deviation(constant);
        return options_.constants.*constant.value > 0.5 * (constant.least + constant.greatest) ? -step : step;
    }

    const schedule::PlannedGraph graph_;
    const cluster::Cluster& cluster_;
    const schedule::Plan& plan_;
    const ResponseOptions& options_;
    mutable LoweredPrograms lowered_;
};

}  // namespace

std::optional<LogFigures> predict_logarithms(const model::ModelGraph& graph, const cluster::Cluster& cluster,
                                             const schedule::Plan& plan, const CostConstants& constants,
                                             int most_micro_batches,
                                             const std::function<core::Bytes(const Evaluation&)>& peak,
                                             LoweredPrograms* lowered) {
    EvaluateOptions options;
    options.constants = constants;
    options.most_micro_batches = most_micro_batches;
    options.verifies = false;
    options.breaks_down = false;
    options.lowered = lowered;
    options.blocks = lowered ? &lowered->blocks : nullptr;
    core::Diagnostics unneeded;
    const std::optional<Evaluation> result = evaluate(graph, cluster, plan, unneeded, options);
    if (!result) return std::nullopt;
    const core::Bytes held = peak ? peak(*result) : result->peak_memory;
    return LogFigures{std::log(result->step_time.value), held.value > 0 ? std::log(held.value) : 0.0};
}

double prior_deviation(const NamedConstant& constant) { return 0.25 * (constant.greatest - constant.least); }

std::optional<ConstantResponses> constant_responses(const model::ModelGraph& graph,
                                                    const cluster::Cluster& cluster,
                                                    const schedule::Plan& plan,
                                                    const ResponseOptions& options) {
    const Trials trials(graph, cluster, plan, options);
    const std::optional<LogFigures> base = trials.predict(options.constants);
    if (!base) return std::nullopt;
    std::vector<std::size_t> all(named_constants().size());
    std::iota(all.begin(), all.end(), std::size_t{0});
    ConstantResponses responses{std::vector<double>(all.size(), 0.0), std::vector<double>(all.size(), 0.0)};
    // One by one: a constant that changes no price is not simulated.
    for (const std::size_t c : all) trials.search(c, *base, responses);
    return responses;
}

}  // namespace sim
