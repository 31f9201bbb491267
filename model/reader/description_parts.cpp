#include "model/reader/description_parts.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include "core/diagnostics.h"

namespace model {

namespace {

using core::TableReader;

const std::vector<std::pair<std::string, Activation>> activations = {
    {"gelu", Activation::gelu},
    {"gelu_tanh", Activation::gelu_tanh},
    {"relu", Activation::relu},
    {"silu", Activation::silu},
    {"gated_silu", Activation::gated_silu},
    {"gated_gelu", Activation::gated_gelu},
    {"gated_gelu_tanh", Activation::gated_gelu_tanh}};

}  // namespace

Activation read_activation(TableReader& reader, Activation fallback) {
    std::vector<std::string> names;
    for (const auto& [name, activation] : activations) names.push_back(name);
    const std::optional<std::string> chosen = reader.optional_choice("activation", names);
    for (const auto& [name, activation] : activations)
        if (chosen == name) return activation;
    return fallback;
}

void must_divide(TableReader& reader, const char* key, std::int64_t divisor, const char* of,
                 std::int64_t whole) {
    if (whole % divisor != 0)
        reader.error(key,
                     fmt::format("{} = {} does not divide {} = {}", reader.path_of(key), divisor, of, whole),
                     fmt::format("choose a divisor of {}", whole));
}

}  // namespace model
