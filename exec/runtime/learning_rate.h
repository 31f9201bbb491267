// How the learning rate changes during a training, as transformers' schedules do
// (transformers/optimization.py, release 5.23: get_scheduler and the functions that it names), by their
// names.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace exec {

enum class LearningRateKind { constant, linear, cosine };

struct LearningRateSchedule {
    LearningRateKind kind = LearningRateKind::constant;
    std::int64_t warmup_steps = 0;  // from 0, linearly
    std::int64_t steps = 1;         // of the whole training: linear and cosine end at 0 there

    // What the plan's learning rate is multiplied by in the update of step `step`, counted from 0: the first
    // one of a warm-up is 0.
    double factor(std::int64_t step) const;
    bool is_constant() const { return kind == LearningRateKind::constant && warmup_steps == 0; }
    std::string describe() const;  // "cosine over 100 steps after 10 of warm-up"
};

// constant, constant_with_warmup, linear, cosine.
std::vector<std::string> learning_rate_names();
// By one of these names.
LearningRateKind learning_rate_kind(const std::string& name);

}  // namespace exec
