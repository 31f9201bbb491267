#include "exec/runtime/parameters.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/parallel.h"
#include "core/random.h"
#include "exec/cpu/cores.h"

namespace exec {

ParameterShare share_of(const schedule::ParallelLayout& layout, const schedule::RankCoordinates& place) {
    return {layout.tensor, place.tensor, layout.expert, place.data % layout.expert};
}

namespace {

std::vector<ElementRun> runs_of_tensor_rank(const model::Parameter& parameter, int tensor_degree,
                                            int tensor_rank) {
    if (tensor_degree == 1 || !parameter.split_dimension)
        return {{0, 0, model::element_count(parameter.shape)}};
    const std::size_t split = *parameter.split_dimension;
    const std::int64_t extent = parameter.shape[split];
    std::int64_t outer = 1, inner = 1;
    for (std::size_t i = 0; i < parameter.shape.size(); ++i)
        (i < split ? outer : inner) *= i == split ? 1 : parameter.shape[i];
    std::vector<std::int64_t> sections = parameter.split_sections;
    if (sections.empty()) sections.assign(parameter.split_blocks, extent / parameter.split_blocks);

    std::vector<ElementRun> runs;
    std::int64_t local = 0;
    for (std::int64_t o = 0; o < outer; ++o) {
        std::int64_t section_begin = 0;
        for (const std::int64_t section : sections) {
            const std::int64_t share = (section + tensor_degree - 1) / tensor_degree;
            const std::int64_t begin = std::min(section, tensor_rank * share),
                               end = std::min(section, begin + share);
            if (end > begin)
                runs.push_back({local, (o * extent + section_begin + begin) * inner, (end - begin) * inner});
            local += share * inner;
            section_begin += section;
        }
    }
    return runs;
}

}  // namespace

// Experts are the outermost dimension: a rank's are one piece of the whole.
std::vector<ElementRun> element_runs(const model::Parameter& parameter, const ParameterShare& share) {
    if (!parameter.is_expert || share.expert_degree == 1)
        return runs_of_tensor_rank(parameter, share.tensor_degree, share.tensor_rank);
    model::Parameter own = parameter;
    own.shape[0] /= share.expert_degree;
    std::vector<ElementRun> runs = runs_of_tensor_rank(own, share.tensor_degree, share.tensor_rank);
    for (ElementRun& run : runs) run.global += share.expert_rank * model::element_count(own.shape);
    return runs;
}

std::uint64_t key_of(std::uint64_t seed, std::string_view name) {
    std::uint64_t hash = 0xCBF29CE484222325ull;  // FNV-1a
    for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ull;
    return core::mix64(hash ^ core::mix64(seed));
}

namespace {

void initialize_run(const model::Parameter& parameter, std::uint64_t key, std::int64_t first,
                    std::int64_t count, float* values) {
    if (parameter.initialization != model::Initialization::normal) {
        std::fill_n(values, count, parameter.initialization == model::Initialization::ones ? 1.0f : 0.0f);
        return;
    }
    constexpr double unit = 1.0 / 9007199254740992.0;  // 2^-53
    for (std::int64_t i = 0; i < count;) {
        // Box-Muller: elements 2j and 2j + 1 are the two normals of pair j.
        const auto element = static_cast<std::uint64_t>(first + i), pair = element / 2;
        const double u = ((core::mix64(key + 2 * pair) >> 11) + 1.0) * unit,
                     v = (core::mix64(key + 2 * pair + 1) >> 11) * unit;
        const double radius = std::sqrt(-2.0 * std::log(u)), angle = 2.0 * std::numbers::pi * v;
        if (element % 2 == 0)
            values[i++] = static_cast<float>(parameter.deviation * radius * std::cos(angle));
        if (i < count && (first + i) % 2 != 0)
            values[i++] = static_cast<float>(parameter.deviation * radius * std::sin(angle));
    }
}

}  // namespace

void initialize(const model::Parameter& parameter, std::uint64_t seed, const std::vector<ElementRun>& runs,
                float* result) {
    const std::uint64_t key = key_of(seed, parameter.name);
    std::int64_t total = 0;
    for (const ElementRun& run : runs) total += run.count;
    // Every element is a function of its number: threads share them as they come. A billion of them take a
    // core half a minute.
    constexpr std::int64_t a_thread = 1 << 18;
    const std::int64_t threads = std::clamp<std::int64_t>(total / a_thread, 1, cpu::available_cores());
    core::for_each_in_parallel(threads, static_cast<int>(threads), [&](std::size_t item, int) {
        const auto share = static_cast<std::int64_t>(item);
        const std::int64_t begin = total * share / threads, end = total * (share + 1) / threads;
        std::int64_t before = 0;  // elements of earlier runs
        for (const ElementRun& run : runs) {
            const std::int64_t low = std::max(begin - before, std::int64_t{0}),
                               high = std::min(end - before, run.count);
            if (low < high)
                initialize_run(parameter, key, run.global + low, high - low, result + run.local + low);
            before += run.count;
        }
    });
}

}  // namespace exec
