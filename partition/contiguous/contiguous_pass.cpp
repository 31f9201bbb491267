// Downsets are expanded by size. All that lead to one are smaller, so its labels are final when its turn
// comes; those of one size are independent of each other.
#include "partition/contiguous/contiguous_pass.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <optional>
#include <thread>
#include <tuple>

#include "core/errors.h"
#include "core/parallel.h"
#include "partition/contiguous/stage_growth.h"

namespace partition {

namespace {

// Starting a thread costs some ten microseconds, expanding a downset about as much: threads pay from so many
// downsets of one size on, and in searches that are no short ones.
constexpr std::size_t least_for_threads = 16;
constexpr std::int64_t expanded_before_threads = 20000;

std::vector<PlacedStage> trace_back(const PlacementProblem& problem, const SearchGraph& graph,
                                    const DownsetTable& table, Downset at, Label label) {
    std::vector<PlacedStage> stages;
    while (label.device_class != no_class) {
        std::optional<Downset> below = table.find(label.parent);
        core::require(below.has_value(), "a stage begins at a downset of the table");
        std::vector<std::size_t> items;
        for (std::size_t i = 0; i < graph.count; ++i) {
            const bool is_above = at.bits[i / 64] >> (i % 64) & 1,
                       is_below = below->bits[i / 64] >> (i % 64) & 1;
            core::require(is_above || !is_below, "a stage is the difference of two downsets");
            if (is_above && !is_below) items.push_back(i);
        }
        const int in_flight = std::min(graph.micro_batches, all_used(label.used));
        stages.push_back(stage_of(problem, std::move(items), label.device_class, in_flight));
        const DevicesUsed used = label.used - one_of(label.device_class);
        // The label that led here: the devices without this stage's, no larger load. Nondominated labels with
        // the same devices are one.
        const auto before = std::find_if(below->labels.begin(), below->labels.end(), [&](const Label& other) {
            return other.used == used && other.value <= label.value;
        });
        core::require(before != below->labels.end(), "a stage's beginning is reached with one device less");
        label = *before;
        at = std::move(*below);
    }
    std::reverse(stages.begin(), stages.end());
    return stages;
}

}  // namespace

PassResult contiguous_pass(const PlacementProblem& problem, const SearchGraph& graph, double threshold,
                           double good_enough, int threads, const Deadline& deadline) {
    PassState pass{.deadline = deadline};
    pass.most = std::isinf(threshold) ? threshold : std::nextafter(threshold, 0.0);
    pass.cpu_can_take = graph.cpu_can_take(threshold);
    pass.cpu_can_hold = graph.cpu_can_hold(threshold);
    DownsetTable table(graph.words, graph.count);
    const std::vector<std::uint64_t> nothing(graph.words, 0);
    table.offer(nothing.data(), 0, 0, Label{});
    if (threads <= 0) threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    std::vector<std::unique_ptr<StageGrowth>> growths;
    for (int t = 0; t < threads; ++t) growths.push_back(std::make_unique<StageGrowth>(graph, table, pass));
    auto expanded = [&] {
        std::int64_t sum = 0;
        for (const auto& growth : growths) sum += growth->expanded();
        return sum;
    };

    for (std::size_t size = 0; size < graph.count && !pass.is_out_of_time; ++size) {
        const auto positions = table.of_size(size);
        if (positions.empty()) continue;
        const bool pays = positions.size() >= least_for_threads && expanded() > expanded_before_threads;
        core::for_each_in_parallel(positions.size(), pays ? threads : 1, [&](std::size_t p, int thread) {
            if (pass.is_out_of_time.load(std::memory_order_relaxed)) return;
            const Downset from = table.copy(positions[p]);
            for (std::size_t c = 0; c < graph.classes.size(); ++c)
                if (graph.classes[c].count > 0) growths[thread]->expand(from, c);
        });
        if (pass.most.load() <= good_enough) break;
    }
    PassResult result;
    result.expanded = expanded();
    if (std::optional<Downset> complete = table.find(graph.everything_hash); complete) {
        const Label best = *std::min_element(complete->labels.begin(), complete->labels.end(),
                                             [](const Label& a, const Label& b) {
                                                 return std::tie(a.value, a.used) < std::tie(b.value, b.used);
                                             });
        result.value = best.value;
        result.stages = trace_back(problem, graph, table, std::move(*complete), best);
        result.outcome = PassResult::Outcome::found;
    }
    if (pass.is_out_of_time) result.outcome = PassResult::Outcome::out_of_time;
    return result;
}

}  // namespace partition
