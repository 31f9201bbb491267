#include "model/reader/huggingface/family_rule.h"

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "core/errors.h"
#include "core/index/integers.h"

namespace model {

void apply(const Rule& rule, ConfigMapper& m) {
    const auto whole = static_cast<std::int64_t>(rule.number);
    switch (rule.kind) {
        case Rule::Kind::required_integer: return m.required_integer(rule.theirs, rule.ours, rule.range);
        case Rule::Kind::optional_integer: return m.optional_integer(rule.theirs, rule.ours, rule.range);
        case Rule::Kind::integer: return m.integer_or(rule.theirs, rule.ours, whole, rule.range);
        case Rule::Kind::real: return m.real(rule.theirs, rule.ours, rule.number, {0, 1e12});
        case Rule::Kind::flag: return m.boolean(rule.theirs, rule.ours, rule.is_set);
        case Rule::Kind::fixed: return m.must_be(rule.theirs, rule.is_set, rule.is_set, rule.ours);
        case Rule::Kind::activation: return m.activation(rule.theirs, rule.text);
        case Rule::Kind::gated_activation: return m.activation(rule.theirs, rule.text, true);
        case Rule::Kind::harmless: return m.harmless(rule.theirs);
        case Rule::Kind::own_text: return m.put(rule.ours, rule.text, rule.theirs);
        case Rule::Kind::own_flag: return m.put(rule.ours, rule.is_set, rule.theirs);
        case Rule::Kind::own_integer: return m.put(rule.ours, whole, rule.theirs);
    }
    throw core::InternalError("a rule outside its enumeration");
}

std::optional<std::int64_t> described(const ConfigMapper& m, const char* key) {
    const Value* value = m.description.find(key);
    return value && value->kind() == Value::Kind::integer ? std::optional(value->integer()) : std::nullopt;
}

void put_layers(ConfigMapper& m, const char* key, const std::vector<std::int64_t>& layers,
                const char* theirs) {
    Value list = Value::array();
    for (const std::int64_t layer : layers) list.append(layer);
    m.put(key, std::move(list), theirs);
}

void windows_by_kind(ConfigMapper& m, std::int64_t interval) {
    const auto layers = described(m, "layers");
    std::vector<std::int64_t> found;
    if (m.has("layer_types")) {
        const std::vector<std::string> kinds = m.strings("layer_types");
        if (layers && std::ssize(kinds) != *layers)
            return m.refuse("layer_types",
                            fmt::format("layer_types has {} entries for {} layers", kinds.size(), *layers),
                            "give one for every layer");
        for (const std::int32_t layer : core::indices(kinds))
            if (kinds[layer] == "sliding_attention" || kinds[layer] == "chunked_attention")
                found.push_back(layer);
            else if (kinds[layer] != "full_attention")
                m.refuse("layer_types",
                         fmt::format("layers of kind {} are not supported", core::in_quotes(kinds[layer])),
                         "supported: full_attention, sliding_attention or chunked_attention");
    } else if (interval > 0) {
        for (std::int64_t layer = 0; layer < layers.value_or(0); ++layer)
            if ((layer + 1) % interval != 0) found.push_back(layer);
    }
    const bool has_window = m.has("sliding_window");
    if (!has_window || found.empty()) return;
    m.required_integer("sliding_window", "window", token_range);
    put_layers(m, "window_layers", found, "layer_types");
}

void unrotated_layers(ConfigMapper& m, std::int64_t interval) {
    interval = m.integer("no_rope_layer_interval", interval, {1, layer_range.greatest});
    const auto layers = described(m, "layers");
    std::vector<std::int64_t> found;
    if (m.has("no_rope_layers")) {
        const std::vector<std::int64_t> rotated = m.integers("no_rope_layers", {0, 1});
        if (layers && !rotated.empty() && std::ssize(rotated) != *layers)
            return m.refuse(
                "no_rope_layers",
                fmt::format("no_rope_layers has {} entries for {} layers", rotated.size(), *layers),
                "give 1 (rotary positions) or 0 for every layer");
        for (const std::int32_t layer : core::indices(rotated))
            if (rotated[layer] == 0) found.push_back(layer);
    } else {
        for (std::int64_t layer = 0; layer < layers.value_or(0); ++layer)
            if ((layer + 1) % interval == 0) found.push_back(layer);
    }
    if (!found.empty()) put_layers(m, "unrotated_layers", found, "no_rope_layers");
}

}  // namespace model
