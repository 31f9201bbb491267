// Typed, diagnosed access to a table of a document: wrong types, units, ranges and unknown keys become
// diagnostics at their location.
//
//     core::TableReader plan(document, "plan", diagnostics);
//     int tensor = plan.integer("tensor_parallel", 1, {.least = 1});
//     core::Bytes memory = plan.required_bytes("memory");
//     plan.finish();   // every key that was not asked for is an error with a did-you-mean
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/diagnostics_fwd.h"
#include "core/units.h"
#include "core/value.h"

namespace core {

struct IntegerRange {
    std::int64_t least = std::numeric_limits<std::int64_t>::min();
    std::int64_t greatest = std::numeric_limits<std::int64_t>::max();
};
struct RealRange {
    double least = -std::numeric_limits<double>::infinity();  // NaN and infinity are always refused
    double greatest = std::numeric_limits<double>::infinity();
};

class TableReader {
public:
    // `value` must outlive the reader; a value that is no table is diagnosed and read as empty. `path` is the
    // dotted key prefix for messages.
    TableReader(const Value& value, std::string path, Diagnostics& diagnostics);

    bool has(std::string_view key) const;  // present (does not count as asked for)
    const SourceLocation& location() const { return table_->location; }
    SourceLocation location_of(std::string_view key) const;  // of the value, else of the table
    std::string path_of(std::string_view key) const;         // "plan.tensor_parallel"
    Diagnostics& diagnostics() { return diagnostics_; }

    // Optional keys: nothing when absent or diagnosed.
    std::optional<std::int64_t> optional_integer(std::string_view key, IntegerRange range = {});
    std::optional<double> optional_real(std::string_view key, RealRange range = {});
    std::optional<bool> optional_boolean(std::string_view key);
    std::optional<std::string> optional_string(std::string_view key);
    std::optional<std::string> optional_choice(std::string_view key, const std::vector<std::string>& allowed);
    // Quantities: text with unit; must be finite and not negative.
    std::optional<Bytes> optional_bytes(std::string_view key);
    std::optional<Seconds> optional_seconds(std::string_view key);
    std::optional<BytesPerSecond> optional_bytes_per_second(std::string_view key);
    std::optional<FlopsPerSecond> optional_flops_per_second(std::string_view key);
    // Sub-structures: null when absent; a wrong kind is diagnosed and null.
    const Value* optional_table(std::string_view key);
    const Value* optional_array(std::string_view key);
    const Value* optional_any(std::string_view key);
    std::optional<std::vector<std::int64_t>> optional_integers(std::string_view key, IntegerRange range = {});
    std::optional<std::vector<double>> optional_reals(std::string_view key, RealRange range = {});
    std::optional<std::vector<std::string>> optional_strings(std::string_view key);

    // With a fallback for an absent (or diagnosed) key.
    std::int64_t integer(std::string_view key, std::int64_t fallback, IntegerRange range = {}) {
        return optional_integer(key, range).value_or(fallback);
    }
    double real(std::string_view key, double fallback, RealRange range = {}) {
        return optional_real(key, range).value_or(fallback);
    }
    bool boolean(std::string_view key, bool fallback) { return optional_boolean(key).value_or(fallback); }
    std::string string(std::string_view key, std::string fallback) {
        return optional_string(key).value_or(std::move(fallback));
    }

    // Required keys: absence is diagnosed; the returned value is then a harmless stand-in (least of the
    // range, empty, zero) and has_errors() is true.
    std::int64_t required_integer(std::string_view key, IntegerRange range = {});
    double required_real(std::string_view key, RealRange range = {});
    bool required_boolean(std::string_view key);
    std::string required_string(std::string_view key);
    std::string required_choice(std::string_view key, const std::vector<std::string>& allowed);
    Bytes required_bytes(std::string_view key);
    Seconds required_seconds(std::string_view key);
    BytesPerSecond required_bytes_per_second(std::string_view key);
    FlopsPerSecond required_flops_per_second(std::string_view key);
    const Value* required_table(std::string_view key);
    const Value* required_array(std::string_view key);

    // A diagnostic at the location of `key` (or of the table when absent).
    void error(std::string_view key, std::string message, std::string hint = {});
    void warning(std::string_view key, std::string message, std::string hint = {});

    // Marks a key as known without reading it.
    void ignore(std::string_view key);
    // Reports every member that was never asked for.
    void finish();

private:
    const Value* ask(std::string_view key);
    void missing(std::string_view key, std::string_view what);
    void wrong_kind(std::string_view key, const Value& value, std::string_view wanted);

    const Value* table_;
    std::string path_;
    Diagnostics& diagnostics_;
    std::set<std::string, std::less<>> asked_;
};

}  // namespace core
