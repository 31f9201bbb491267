#include "interop/megatron/partition.h"

#include <algorithm>
#include <cctype>

#include <fmt/core.h>

#include "core/index/integers.h"
#include "interop/expression.h"

namespace interop {

namespace {

// "(tt|)*2" written out; false when brackets or counts are wrong, or the result grows beyond any model.
bool expand(const std::string& text, std::size_t& at, std::string& out, int depth) {
    constexpr std::size_t longest = 1 << 16;
    while (at < text.size() && text[at] != ')') {
        std::string piece;
        if (text[at] == '(') {
            if (depth > 8 || !expand(text, ++at, piece, depth + 1) || at >= text.size()) return false;
            ++at;
        } else if (text[at] == ',') {
            ++at;
            continue;
        } else {
            piece = text[at++];
        }
        std::size_t count = 1;
        if (at < text.size() && text[at] == '*') {
            count = 0;
            const std::size_t digits = ++at;
            for (; at < text.size() && std::isdigit(static_cast<unsigned char>(text[at])) && count < longest;
                 ++at)
                count = 10 * count + static_cast<std::size_t>(text[at] - '0');
            if (at == digits) return false;
        }
        if (out.size() + count * piece.size() > longest) return false;
        for (std::size_t i = 0; i < count; ++i) out += piece;
    }
    return true;
}

}  // namespace

MegatronPartition megatron_partition(const model::ModelGraph& graph, const schedule::Plan& plan,
                                     const schedule::Partition& partition) {
    MegatronPartition result;
    const std::vector<std::int32_t>& first = partition.first_units;
    const std::size_t stages = plan.stages();
    const auto units = core::count_of(graph.units);
    const std::int32_t layers = units - 2;
    if (first == even_layers(graph, plan.stages())) {
        if (plan.virtual_stages > 1)
            result.arguments.push_back(
                fmt::format("--num-layers-per-virtual-pipeline-stage {}", layers / plan.stages()));
        return result;
    }
    if (graph.units.front().name != "embedding" || graph.units.back().name != "head") {
        result.unsupported = core::Unsupported{"the model is not an embedding, layers and a head"};
        return result;
    }
    std::vector<std::int32_t> counts;  // layers of each stage
    for (std::size_t s = 0; s < stages; ++s) {
        const std::int32_t begin = std::max(first[s], 1), end = s + 1 < stages ? first[s + 1] : units - 1;
        counts.push_back(std::min(end, units - 1) - begin);
    }
    const bool middle_is_even = stages > 2 && std::all_of(counts.begin() + 1, counts.end() - 1,
                                                          [&](std::int32_t c) { return c == counts[1]; });
    if (plan.virtual_stages == 1 && counts.front() > 0 && counts.back() > 0 &&
        (middle_is_even || stages == 2)) {
        result.arguments.push_back(fmt::format("--decoder-first-pipeline-num-layers {}", counts.front()));
        result.arguments.push_back(fmt::format("--decoder-last-pipeline-num-layers {}", counts.back()));
        return result;
    }
    // One letter a layer: E embedding, t layer, L loss; bars between stages.
    std::string layout;
    for (std::size_t s = 0; s < stages; ++s) {
        if (s > 0) layout += '|';
        const std::int32_t end = s + 1 < stages ? first[s + 1] : units;
        std::int32_t run = 0;
        for (std::int32_t unit = first[s]; unit < end; ++unit) {
            if (unit == 0) layout += 'E';
            if (unit > 0 && unit < units - 1) ++run;
        }
        if (run == 1) layout += 't';
        if (run > 1) layout += fmt::format("t*{}", run);
        if (end == units) layout += 'L';
    }
    result.arguments.push_back("--pipeline-model-parallel-layout " + layout);
    result.needs_layout = true;
    return result;
}

std::optional<std::vector<std::int32_t>> read_megatron_layout(const std::string& text) {
    std::string units;
    std::size_t at = 0;
    if (!expand(text, at, units, 0) || at != text.size()) return std::nullopt;
    std::vector<std::int32_t> first = {0};
    std::int32_t seen = 0;
    for (const char c : units) {
        if (c == '|') {
            if (seen == first.back()) return std::nullopt;  // an empty stage is no stage of a plan
            first.push_back(seen);
        } else if (c == 'E' || c == 't' || c == 'L') {
            ++seen;
        } else {
            return std::nullopt;
        }
    }
    if (units.empty() || units.front() != 'E' || units.back() != 'L' || seen == first.back())
        return std::nullopt;
    return first;
}

}  // namespace interop
