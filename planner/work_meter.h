// Work of a search, counted instead of timed: a limit ends it at the same place on every machine, under any
// load and with any number of threads.
#pragma once

#include <atomic>
#include <cmath>
#include <cstdint>

#include "core/units.h"

namespace planner {

// The prices below were measured on one core of an AMD EPYC (2026-11-23) as shares of whole searches and are
// rounded, so that a second of a limit stands for some two seconds of one core, about one of a machine with
// two: the default limit of 15 seconds ends a search after 30 (405B on 16,384 GPUs) to 40 (175B on 128).
inline constexpr double steps_a_second = 2.7e9;

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
inline constexpr double per_family = 150'000;         // the operators of a model, priced for one shape
inline constexpr double per_opened_plan = 15'000;     // bounded whatever its partition
inline constexpr double per_tightened_plan = 20'000;  // beside its replay
inline constexpr double per_bounded_plan = 15'000;    // its memory and its time
inline constexpr double per_bounded_stage = 3'000;    // ... of each virtual stage
inline constexpr double per_live_operator = 400;      // what a run of units keeps, each of its operators
inline constexpr double per_memory_bound = 2'000;     // of a partition that is looked at by moves
inline constexpr double per_held_pass = 40;           // ... of one pass of a rank that was not looked at
inline constexpr double per_ordered_pass = 100;       // of a compute order that is made
inline constexpr double per_replayed_pass = 8;        // of one micro-batch through one stage
inline constexpr double most_replayed_passes = 4e5;   // longer orders are not replayed for a bound
inline constexpr double per_simulation = 1'500'000;
inline constexpr double per_simulation_alone = 500'000;  // as if nothing ran beside anything
inline constexpr double per_simulated_rank = 3'500;      // its groups, and what they share of links
inline constexpr double per_timed_rank = 1'000;          // alone
inline constexpr double per_instruction = 800;           // simulated
inline constexpr double per_instruction_alone = 300;     // ... alone
inline constexpr double per_table_entry = 8'000;         // passes of one run of units
inline constexpr double per_chosen_partition = 5e7;      // by moves of cuts, each replayed
inline constexpr double per_division = 40;  // of units into stages, looked at by tables and walks

}  // namespace planner
