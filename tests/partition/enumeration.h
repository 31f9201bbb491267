// Oracles of the placement searches: every set of items is costed by the definition, once, and every sequence
// (or family) of sets is tried by dynamic programming over bit masks. No bound, no reduction, no code of the
// planner but the types: up to some 13 items.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "partition/placement.h"

namespace enumeration {

using Mask = std::uint32_t;
constexpr double infinity = std::numeric_limits<double>::infinity();

struct Enumeration {
    explicit Enumeration(const partition::PlacementProblem& p)
        : problem(p),
          classes(partition::device_classes(p)),
          count(p.items.size()),
          all((Mask{1} << count) - 1) {
        fixed.assign(all + std::size_t{1}, 0);
        activations = fixed;
        cpu_only.assign(all + std::size_t{1}, 0);
        load.assign(classes.size(), std::vector<double>(all + std::size_t{1}, 0));
        for (Mask set = 1; set <= all; ++set) {
            double accelerator = 0, cpu = 0, moved = 0;
            for (std::size_t i = 0; i < count; ++i) {
                if (!(set >> i & 1)) continue;
                const partition::PlacementItem& item = problem.items[i];
                accelerator += item.accelerator_time.value;
                cpu += item.cpu_time.value;
                fixed[set] += item.memory.value;
                activations[set] += item.activations.value;
                cpu_only[set] |= !item.runs_on_accelerator;
            }
            for (const partition::Transfer& transfer : problem.transfers) {
                Mask destinations = 0;
                for (std::size_t d : transfer.destinations) destinations |= Mask{1} << d;
                const bool is_torn =
                    set >> transfer.source & 1 ? (destinations & ~set) != 0 : (destinations & set) != 0;
                if (is_torn) moved += transfer.time.value;
            }
            for (std::size_t c = 0; c < classes.size(); ++c)
                load[c][set] = classes[c].is_cpu
                                   ? cpu * classes[c].slowness
                                   : accelerator * classes[c].slowness + moved * classes[c].transfer_slowness;
        }
        after.assign(count, 0);
        for (auto [a, b] : problem.precedence) after[a] |= Mask{1} << b;
        // Devices used, of every class, as one number.
        for (const partition::DeviceClass& c : classes) {
            stride.push_back(combinations);
            combinations *= static_cast<std::size_t>(c.count) + 1;
        }
    }

    bool may_hold(std::size_t c, Mask set, int in_flight) const {
        return classes[c].is_cpu || (!cpu_only[set] && fixed[set] + activations[set] * in_flight <=
                                                           classes[c].most_memory().value);
    }
    int used(std::size_t combination, std::size_t c) const {
        return static_cast<int>(combination / stride[c] % (static_cast<std::size_t>(classes[c].count) + 1));
    }
    bool is_upset(Mask set) const {
        for (std::size_t i = 0; i < count; ++i)
            if ((set >> i & 1) && (after[i] & ~set)) return false;
        return true;
    }

    // Least largest load of stages in order, from the last to the first: with this one, `stages` are behind,
    // as many micro-batches are in flight (at most all).
    double contiguous() const { return best(true); }
    // Of any assignment; every device keeps the activations of all micro-batches of a step.
    double anywhere() const { return best(false); }

private:
    double best(bool in_order) const {
        std::vector<std::vector<double>> value(combinations,
                                               std::vector<double>(all + std::size_t{1}, infinity));
        std::vector<char> is_end(all + std::size_t{1}, 1);
        for (Mask set = 0; in_order && set <= all; ++set) is_end[set] = is_upset(set);
        value[0][0] = 0;
        double least = infinity;
        for (std::size_t combination = 0; combination < combinations; ++combination) {
            int stages = 1;
            for (std::size_t c = 0; c < classes.size(); ++c) stages += used(combination, c);
            const int in_flight = in_order ? std::min(problem.micro_batches, stages) : problem.micro_batches;
            for (Mask placed = 0; placed <= all; ++placed) {
                const double so_far = value[combination][placed];
                if (so_far == infinity) continue;
                if (placed == all) least = std::min(least, so_far);
                for (Mask rest = all & ~placed, stage = rest; stage; stage = (stage - 1) & rest) {
                    if (!is_end[placed | stage]) continue;
                    for (std::size_t c = 0; c < classes.size(); ++c) {
                        if (used(combination, c) >= classes[c].count || !may_hold(c, stage, in_flight))
                            continue;
                        double& to = value[combination + stride[c]][placed | stage];
                        to = std::min(to, std::max(so_far, load[c][stage]));
                    }
                }
            }
        }
        return least;
    }

    const partition::PlacementProblem& problem;
    const std::vector<partition::DeviceClass> classes;
    const std::size_t count;
    const Mask all;
    std::vector<double> fixed, activations;
    std::vector<char> cpu_only;
    std::vector<std::vector<double>> load;  // by class and set
    std::vector<Mask> after;
    std::vector<std::size_t> stride;
    std::size_t combinations = 1;
};

}  // namespace enumeration
