#include "exec/parameters.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/random.h"

namespace exec {

std::vector<ElementRun> element_runs(const model::Parameter& parameter, int tensor_degree, int tensor_rank) {
    if (tensor_degree == 1 || parameter.split_dimension < 0) return {{0, 0, model::element_count(parameter.shape)}};
    const auto split = static_cast<std::size_t>(parameter.split_dimension);
    const std::int64_t extent = parameter.shape[split];
    std::int64_t outer = 1, inner = 1;
    for (std::size_t i = 0; i < parameter.shape.size(); ++i) (i < split ? outer : inner) *= i == split ? 1 : parameter.shape[i];
    std::vector<std::int64_t> sections = parameter.split_sections;
    if (sections.empty()) sections.assign(static_cast<std::size_t>(parameter.split_blocks), extent / parameter.split_blocks);

    std::vector<ElementRun> runs;
    std::int64_t local = 0;
    for (std::int64_t o = 0; o < outer; ++o) {
        std::int64_t section_begin = 0;
        for (const std::int64_t section : sections) {
            const std::int64_t share = (section + tensor_degree - 1) / tensor_degree;
            const std::int64_t begin = std::min(section, tensor_rank * share), end = std::min(section, begin + share);
            if (end > begin) runs.push_back({local, (o * extent + section_begin + begin) * inner, (end - begin) * inner});
            local += share * inner;
            section_begin += section;
        }
    }
    return runs;
}

std::uint64_t key_of(std::uint64_t seed, std::string_view name) {
    std::uint64_t hash = 0xCBF29CE484222325ull;  // FNV-1a
    for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ull;
    return core::mix64(hash ^ core::mix64(seed));
}

void initialize(const model::Parameter& parameter, std::uint64_t seed, std::int64_t first, std::int64_t count, float* values) {
    if (parameter.initialization != model::Initialization::normal) {
        std::fill_n(values, count, parameter.initialization == model::Initialization::ones ? 1.0f : 0.0f);
        return;
    }
    const std::uint64_t key = key_of(seed, parameter.name);
    constexpr double unit = 1.0 / 9007199254740992.0;  // 2^-53
    for (std::int64_t i = 0; i < count; ++i) {
        // Box-Muller: elements 2j and 2j + 1 are the two normals of pair j.
        const auto element = static_cast<std::uint64_t>(first + i), pair = element / 2;
        const double u = (static_cast<double>(core::mix64(key + 2 * pair) >> 11) + 1.0) * unit,
                     v = static_cast<double>(core::mix64(key + 2 * pair + 1) >> 11) * unit;
        const double radius = std::sqrt(-2.0 * std::log(u)), angle = 2.0 * std::numbers::pi * v;
        values[i] = static_cast<float>(parameter.deviation * radius * (element % 2 == 0 ? std::cos(angle) : std::sin(angle)));
    }
}

}  // namespace exec
