// What each optimisation of a plan is worth: all of them but one, and one after another from none to all.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/diagnostics_fwd.h"
#include "core/units.h"
#include "core/value.h"
#include "schedule/plan/plan.h"

namespace sim {

// One optimisation that a plan has, with what to set for the plan to be without it.
struct Optimisation {
    std::string name;      // "flash attention"
    std::string from, to;  // as in the plan; without it
    // Keys of the scenario and their values without it; null: the key is left out.
    std::vector<std::pair<std::string, core::Value>> off;
};

// In the order in which they are added: kernels, overlap, communication, schedule, memory, sharding,
// precision, what the training code has that the one it extends has not.
std::vector<Optimisation> optimisations_of(const schedule::Plan& plan);

struct AblatedStep {
    core::Seconds step;
    core::Bytes peak_memory;
    bool fits = true;
};
// Nothing, with diagnostics, where the changed scenario is not valid.
using PredictAblated =
    std::function<std::optional<AblatedStep>(const core::Value& document, core::Diagnostics& diagnostics)>;

struct AblationRow {
    std::optional<std::size_t> optimisation;  // nothing: none of them
    std::optional<AblatedStep> result;
    std::string reason;  // why there is no result
};

struct Ablation {
    AblatedStep full;
    std::vector<Optimisation> optimisations;
    std::vector<AblationRow> without;  // each switched off alone
    std::vector<AblationRow> added;    // none, then one more each
};

// Nothing when the scenario as it is has no prediction. `only`: names of optimisations, in the order in which
// they are added; empty: all. A name that the plan does not have is a diagnostic.
std::optional<Ablation> ablate(const core::Value& document, const schedule::Plan& plan,
                               const PredictAblated& predict, core::Diagnostics& diagnostics,
                               const std::vector<std::string>& only = {});

std::string text_of(const Ablation& ablation);
// `step_time_s, fits, peak_memory_gib, without[] {name, from, to, step_time_s, slowdown, ...}, added[]`.
core::Value to_value(const Ablation& ablation);

}  // namespace sim
