// Any bytes as a graph of smplan partition: a sound problem or diagnostics; small problems are placed. The
// first byte chooses the format. Seeds: one small graph of each format, after that byte.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "core/diagnostics.h"
#include "core/document.h"
#include "partition/hierarchical/hierarchical_placement.h"
#include "partition/placement.h"
#include "partition/reader/costed_graph.h"
#include "partition/reader/dnn_partitioning.h"
#include "partition/reader/pipedream.h"
#include "partition/reader/piper.h"

namespace {

constexpr std::size_t most_placed = 12;

void place(partition::PlacementProblem problem) {
    if (problem.items.size() > most_placed) return;
    const partition::PlacementResult result =
        partition::place_contiguous(problem, {.time_limit = core::Seconds(0.05), .threads = 1});
    if (!result.is_feasible) {
        if (result.reason.empty()) std::abort();  // refused without saying why
        return;
    }
    if (!(result.lower_bound.value <= result.objective.value * (1 + 1e-9))) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size < 1) return 0;
    const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
    core::Diagnostics diagnostics;
    bool is_read = false;
    if (data[0] % 4 == 0) {
        if (auto problem = partition::read_pipedream(text, "f", diagnostics)) {
            is_read = true;
            problem->levels = {{2, core::BytesPerSecond(1e9)}, {2, core::BytesPerSecond(1e8)}};
            if (problem->nodes.size() <= most_placed)
                partition::place_hierarchical(*problem, {.time_limit = core::Seconds(0.05)});
        }
    } else if (data[0] % 4 == 1) {
        const auto document = core::parse_toml(text, "f", diagnostics);
        auto problem = document ? partition::read_costed_graph(*document, diagnostics) : std::nullopt;
        if ((is_read = problem.has_value())) place(*problem);
    } else {
        const auto document = core::parse_json(text, "f", diagnostics);
        if (document && data[0] % 4 == 2) {
            auto problem = partition::read_dnn_partitioning(*document, diagnostics);
            if ((is_read = problem.has_value())) place(*problem);
        } else if (document) {
            auto problem = partition::read_piper(*document, diagnostics);
            if ((is_read = problem.has_value()) && problem->nodes.size() <= 5 && problem->devices <= 8) {
                partition::ReplicatedOptions options;
                options.time_limit = core::Seconds(0.05);
                partition::place_replicated(*problem, options);
            }
        }
    }
    if (!is_read && !diagnostics.has_errors()) std::abort();  // refused without saying why
    return 0;
}
