#include "exec/runtime/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include <fmt/core.h>

#include "core/errors.h"

namespace exec {

double LearningRateSchedule::factor(std::int64_t step) const {
    const auto at = static_cast<double>(step), warmup = static_cast<double>(warmup_steps);
    if (step < warmup_steps) return at / std::max(1.0, warmup);
    const double left = std::max(1.0, static_cast<double>(steps) - warmup);
    switch (kind) {
        case LearningRateKind::constant: return 1;
        case LearningRateKind::linear: return std::max(0.0, (static_cast<double>(steps) - at) / left);
        case LearningRateKind::cosine:
            return std::max(0.0, 0.5 * (1 + std::cos(std::numbers::pi * (at - warmup) / left)));
    }
    throw core::InternalError("a learning rate's schedule outside its enumeration");
}

std::string LearningRateSchedule::describe() const {
    std::string text = "constant";
    if (kind != LearningRateKind::constant)
        text = fmt::format("{} over {} steps", kind == LearningRateKind::linear ? "linear" : "cosine", steps);
    return warmup_steps > 0 ? fmt::format("{} after {} of warm-up", text, warmup_steps) : text;
}

std::vector<std::string> learning_rate_names() {
    return {"constant", "constant_with_warmup", "linear", "cosine"};
}

LearningRateKind learning_rate_kind(const std::string& name) {
    if (name == "linear") return LearningRateKind::linear;
    if (name == "cosine") return LearningRateKind::cosine;
    return LearningRateKind::constant;
}

}  // namespace exec
