#include <catch2/catch.hpp>
#include <cstdint>
#include <random>
#include <vector>

#include "jobs/training_axis.h"

using core::seconds;
using jobs::Checkpointing;
using jobs::Evaluating;
using jobs::TrainingAxis;

namespace {

// The same clock, step by step: an oracle without a closed form.
struct Walk {
    std::vector<double> done;                           // by number of steps: the end of the last of them
    std::vector<double> at;                             // ... with its evaluation and checkpoint
    std::vector<std::pair<std::int64_t, double>> safe;  // steps, from when on
};

Walk walk(std::int64_t steps, double step, std::optional<Evaluating> evaluating,
          std::optional<Checkpointing> checkpointing) {
    Walk result{{0}, {0}, {{0, 0}}};
    double clock = 0;
    for (std::int64_t i = 1; i <= steps; ++i) {
        clock += step;
        result.done.push_back(clock);
        if (evaluating && i % evaluating->every == 0) clock += evaluating->time.value;
        if (checkpointing && (i % checkpointing->every == 0 || i == steps)) {
            clock += checkpointing->blocking.value;
            if (i == steps) clock += checkpointing->beside.value;
            result.safe.emplace_back(i, i == steps ? clock : clock + checkpointing->beside.value);
        }
        result.at.push_back(clock);
    }
    return result;
}

}  // namespace

TEST_CASE("a training's clock in closed form is that of a walk through its steps") {
    std::mt19937_64 random(5);
    const auto draw = [&](int least, int most) {
        return std::uniform_int_distribution<int>(least, most)(random);
    };
    for (int round = 0; round < 200; ++round) {
        const std::int64_t steps = draw(1, 120);
        const double step = draw(1, 16);  // whole seconds: sums are exact in any order
        std::optional<Evaluating> evaluating;
        std::optional<Checkpointing> checkpointing;
        if (draw(0, 1) == 1) evaluating = Evaluating{draw(1, 40), seconds(draw(0, 200))};
        if (draw(0, 3) > 0) {
            checkpointing = Checkpointing{draw(1, 50), seconds(draw(0, 30)), {}};
            if (draw(0, 1) == 1)  // beside the training: no longer than until the next one
                checkpointing->beside = seconds(draw(0, int(step) * int(checkpointing->every)));
        }
        const TrainingAxis axis(steps, seconds(step), evaluating, checkpointing);
        const Walk truth = walk(steps, step, evaluating, checkpointing);
        INFO("round " << round << ": " << steps << " steps of " << step);
        for (std::int64_t i = 0; i <= steps; ++i) CHECK(axis.at(i).value == truth.at[std::size_t(i)]);
        CHECK(axis.length().value == truth.at.back());
        for (double time = 0; time <= truth.at.back(); time += 0.5) {
            std::int64_t safe = 0, done = 0;
            for (const auto& [at, from] : truth.safe)
                if (from <= time) safe = at;
            for (std::int64_t i = 0; i <= steps; ++i)
                if (truth.done[std::size_t(i)] <= time && (i < steps || time >= truth.at.back())) done = i;
            if (axis.safe_steps(seconds(time)) != safe) CHECK(axis.safe_steps(seconds(time)) == safe);
            if (axis.done_steps(seconds(time)) != done) CHECK(axis.done_steps(seconds(time)) == done);
            const TrainingAxis::Shares shares = axis.shares(seconds(time));
            const double sum = (shares.computing + shares.evaluating + shares.checkpointing).value;
            if (sum != time) CHECK(sum == time);
        }
    }
}

TEST_CASE("without evaluations and checkpoints a training is its steps") {
    const TrainingAxis axis(7, seconds(3), std::nullopt, std::nullopt);
    CHECK(axis.length().value == 21);
    CHECK(axis.safe_steps(seconds(20.9)) == 0);
    CHECK(axis.checkpoints(7) == 0);
}

TEST_CASE("the last steps get a checkpoint of their own, and its write is waited for") {
    // 10 steps of 2 s, a checkpoint every 4 steps: after 4, 8 and 10. Beside the training each takes 5 s: the
    // last one is waited for.
    const TrainingAxis axis(10, seconds(2), std::nullopt, Checkpointing{4, seconds(1), seconds(5)});
    CHECK(axis.checkpoints(10) == 3);
    CHECK(axis.length().value == 10 * 2 + 3 * 1 + 5);
    CHECK(axis.safe_steps(seconds(4 * 2 + 1 + 5 - 0.5)) == 0);
    CHECK(axis.safe_steps(seconds(4 * 2 + 1 + 5)) == 4);
}
