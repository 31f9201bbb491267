#include "sim/uncertainty/responses.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/diagnostics.h"

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
        : graph_(graph), cluster_(cluster), plan_(plan), options_(options) {}

    std::optional<LogFigures> predict(const CostConstants& constants) const {
        return predict_logarithms(graph_, cluster_, plan_, constants, simulated_rounds * plan_.stages(),
                                  options_.peak);
    }

    // Fills the responses of the constants among `tried`, halving the set while it changes anything.
    void search(std::span<const std::size_t> tried, const LogFigures& base,
                ConstantResponses& responses) const {
        const std::span<const NamedConstant> constants = named_constants();
        CostConstants changed = options_.constants;
        for (std::size_t c : tried) changed.*constants[c].value += step_of(constants[c]);
        const std::optional<LogFigures> figures = predict(changed);
        if (!figures || *figures == base) return;
        if (tried.size() == 1) {
            const double step = step_of(constants[tried.front()]);
            responses.step[tried.front()] = (figures->step - base.step) / step;
            responses.peak[tried.front()] = (figures->peak - base.peak) / step;
            return;
        }
        const std::size_t half = tried.size() / 2;
        search(tried.first(half), base, responses);
        search(tried.subspan(half), base, responses);
    }

private:
    // Towards the middle of the physical range.
    double step_of(const NamedConstant& constant) const {
        const double step = trial_step * prior_deviation(constant);
        return options_.constants.*constant.value > 0.5 * (constant.least + constant.greatest) ? -step : step;
    }

    const model::ModelGraph& graph_;
    const cluster::Cluster& cluster_;
    const schedule::Plan& plan_;
    const ResponseOptions& options_;
};

}  // namespace

std::optional<LogFigures> predict_logarithms(const model::ModelGraph& graph, const cluster::Cluster& cluster,
                                             const schedule::Plan& plan, const CostConstants& constants,
                                             int most_micro_batches,
                                             const std::function<core::Bytes(const Evaluation&)>& peak) {
    EvaluateOptions options;
    options.constants = constants;
    options.most_micro_batches = most_micro_batches;
    options.verifies = false;
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
    // Constants of one kind stand together in the list, and most runs answer to one of a kind.
    constexpr std::size_t kind = 4;
    for (std::size_t first = 0; first < all.size(); first += kind)
        trials.search(std::span(all).subspan(first, std::min(kind, all.size() - first)), *base, responses);
    return responses;
}

}  // namespace sim
