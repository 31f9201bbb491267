// Gradients in fp16 are smaller than the format's smallest number: losses are multiplied by a scale before
// the backward pass, and updates divide by it. Micikevicius et al., arXiv 1710.03740, with the constants of
// torch.amp.GradScaler (release 2.15): 2^16 to begin with, twice as much after 2,000
// good steps in a row, half after one whose gradients are not all finite, which updates nothing.
#pragma once

#include <algorithm>
#include <cstdint>

namespace exec {

struct LossScaling {
    float scale = 65536.0f;
    std::int64_t good_steps = 0;  // since the last change
    std::int64_t left_out = 0;    // updates since training began
    bool operator==(const LossScaling&) const = default;

    void end_step(bool is_good) {
        constexpr std::int64_t steps_to_double = 2000;
        constexpr float least_scale = 1.0f;
        if (!is_good) {
            scale = std::max(least_scale, scale / 2);
            good_steps = 0;
            ++left_out;
        } else if (++good_steps == steps_to_double) {
            scale *= 2;
            good_steps = 0;
        }
    }
};

}  // namespace exec
