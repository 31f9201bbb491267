// Any bytes as TOML, JSON and CSV: a value or diagnostics, never a crash; and what is read is written and
// read again the same.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "core/csv.h"
#include "core/diagnostics.h"
#include "core/document.h"

namespace {

// JSON text is the canonical form to compare by: it ignores places and keeps order, kinds and digits.
void must_round_trip(const core::Value& value) {
    core::Diagnostics diagnostics;
    const auto again = core::parse_toml(core::to_toml(value), "again.toml", diagnostics);
    if (!again || core::to_json(*again) != core::to_json(value)) std::abort();
}

bool holds_only_what_toml_can_write(const core::Value& value) {
    if (value.is_null()) return false;
    if (value.is_array())
        for (const core::Value& item : value.items())
            if (!holds_only_what_toml_can_write(item)) return false;
    if (value.is_table())
        for (const auto& [key, member] : value.members())
            if (!holds_only_what_toml_can_write(member)) return false;
    if (value.kind() == core::Value::Kind::real) return value.number() - value.number() == 0;  // finite
    return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    core::Diagnostics diagnostics;
    if (const auto value = core::parse_toml(text, "input.toml", diagnostics);
        value && holds_only_what_toml_can_write(*value)) {
        // Order of scalars and tables may change once (scalars first); after that it must be stable.
        core::Diagnostics first;
        const auto ordered = core::parse_toml(core::to_toml(*value), "ordered.toml", first);
        if (!ordered) std::abort();
        must_round_trip(*ordered);
    }
    if (const auto value = core::parse_json(text, "input.json", diagnostics)) {
        core::Diagnostics again_diagnostics;
        const auto again = core::parse_json(core::to_json(*value), "again.json", again_diagnostics);
        if (!again || core::to_json(*again) != core::to_json(*value)) std::abort();
    }
    core::parse_csv(text, "input.csv", {"id"}, diagnostics);
    return 0;
}
