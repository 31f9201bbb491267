// Work of a search, counted instead of timed: a limit ends it at the same place on every machine, under any
// load and with any number of threads.
#pragma once

#include <atomic>
#include <cmath>
#include <cstdint>

#include "core/units.h"

namespace planner {

// The prices below are nanoseconds of one core of an AMD EPYC, fitted (2026-12-01) to the passes of searches
// of 42 questions, and rounded: of 45 other questions 0.75 to 1.6 of the time they took was counted. Two
// cores share what they have and wait for each other, so they do about a second of a limit in a second.
inline constexpr double steps_a_second = 1.25e9;

class WorkMeter {
public:
    // All threads add; what is read between passes of a search depends on the work done, not on its order.
    void add(double count, double price) {
        steps_.fetch_add(std::llround(count * price), std::memory_order_relaxed);
    }
    core::Seconds spent() const { return core::Seconds(double(steps_.load()) / steps_a_second); }

private:
    std::atomic<std::int64_t> steps_ = 0;
};

// Prices in steps.
inline constexpr double per_family = 45'000;          // the operators of a model, priced for one shape
inline constexpr double per_known_family = 8'000;     // ... again, for a plan of it
inline constexpr double per_estimate = 1'100;         // of a plan by its family
inline constexpr double per_opened_plan = 3'000;      // bounded whatever its partition
inline constexpr double per_tightened_plan = 24'000;  // beside its replay
inline constexpr double per_bounded_plan = 1'000;     // its memory and its time
inline constexpr double per_bounded_stage = 800;      // ... of each virtual stage
inline constexpr double per_live_operator = 430;      // what a run of units keeps, each of its operators
inline constexpr double per_memory_bound = 3'000;     // of a partition that is looked at by moves
inline constexpr double per_held_pass = 16;           // ... of one pass of a rank that was not looked at
inline constexpr double per_ordered_pass = 160;       // of a compute order that is made
inline constexpr double per_replayed_pass = 4;        // of one micro-batch through one stage
inline constexpr double most_replayed_passes = 4e5;   // longer orders are not replayed for a bound
inline constexpr double per_simulation = 300'000;
inline constexpr double per_simulation_alone = 600'000;  // as if nothing ran beside anything
inline constexpr double per_simulated_rank = 3'000;      // its groups, and what they share of links
inline constexpr double per_timed_rank = 100;            // alone
inline constexpr double per_instruction = 400;           // simulated
inline constexpr double per_instruction_alone = 240;     // ... alone
inline constexpr double per_table_entry = 2'800;         // passes of one run of units
inline constexpr double per_chosen_partition = 3e6;      // by moves of cuts, beside what each replays
inline constexpr double per_place = 20;     // of two units in a division that depends on where stages lie
inline constexpr double per_division = 14;  // of units into stages, looked at by tables and walks

}  // namespace planner
