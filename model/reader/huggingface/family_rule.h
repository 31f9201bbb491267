// One line of a family's table, and what several families' special cases share.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "model/reader/bounds.h"
#include "model/reader/huggingface/config_mapper.h"

namespace model {

// What becomes of one key of a config. Without a key of theirs the value is the family's own.
struct Rule {
    enum class Kind {
        required_integer,
        optional_integer,  // nothing when absent
        integer,           // `number` when absent
        real,              // `number` when absent
        flag,              // `is_set` when absent
        fixed,             // only `is_set` can be modelled; `ours` says what the other is
        activation,        // of a plain feed-forward; `text` when absent
        gated_activation,
        harmless,
        own_text,
        own_flag,
        own_integer,
    };
    Kind kind;
    const char* theirs;
    const char* ours = "";
    IntegerRange range{};
    double number = 0;
    bool is_set = false;
    const char* text = "";
};
using Rules = std::vector<Rule>;

inline Rule need(const char* theirs, const char* ours, IntegerRange range) {
    return {Rule::Kind::required_integer, theirs, ours, range};
}
inline Rule may(const char* theirs, const char* ours, IntegerRange range) {
    return {Rule::Kind::optional_integer, theirs, ours, range};
}
inline Rule integer(const char* theirs, const char* ours, std::int64_t fallback, IntegerRange range) {
    return {Rule::Kind::integer, theirs, ours, range, static_cast<double>(fallback)};
}
inline Rule real(const char* theirs, const char* ours, double fallback) {
    return {.kind = Rule::Kind::real, .theirs = theirs, .ours = ours, .number = fallback};
}
inline Rule flag(const char* theirs, const char* ours, bool fallback) {
    return {.kind = Rule::Kind::flag, .theirs = theirs, .ours = ours, .is_set = fallback};
}
// `what` the other position of the switch means.
inline Rule only(const char* theirs, bool allowed, const char* what) {
    return {.kind = Rule::Kind::fixed, .theirs = theirs, .ours = what, .is_set = allowed};
}
inline Rule plain(const char* theirs, const char* fallback) {
    return {.kind = Rule::Kind::activation, .theirs = theirs, .text = fallback};
}
inline Rule gated(const char* theirs, const char* fallback) {
    return {.kind = Rule::Kind::gated_activation, .theirs = theirs, .text = fallback};
}
inline Rule harmless(const char* theirs) { return {.kind = Rule::Kind::harmless, .theirs = theirs}; }
inline Rule own(const char* ours, const char* text) {
    return {.kind = Rule::Kind::own_text, .theirs = "model_type", .ours = ours, .text = text};
}
inline Rule own(const char* ours, bool is_set) {
    return {.kind = Rule::Kind::own_flag, .theirs = "model_type", .ours = ours, .is_set = is_set};
}
inline Rule own_integer(const char* ours, std::int64_t number) {
    return {.kind = Rule::Kind::own_integer,
            .theirs = "model_type",
            .ours = ours,
            .number = static_cast<double>(number)};
}

void apply(const Rule& rule, ConfigMapper& m);

// A description's integer that was put before, or nothing where that failed.
std::optional<std::int64_t> described(const ConfigMapper& m, const char* key);

// Layers with a window by `layer_types`; without that key all but every `interval`-th, 0 = none.
void windows_by_kind(ConfigMapper& m, std::int64_t interval);
// Layers without rotary positions by `no_rope_layers` (0 = without), else every `no_rope_layer_interval`-th.
void unrotated_layers(ConfigMapper& m, std::int64_t interval);
// Puts a list of layers.
void put_layers(ConfigMapper& m, const char* key, const std::vector<std::int64_t>& layers,
                const char* theirs);

}  // namespace model
