#include "core/reader.h"

#include <charconv>

#include "core/diagnostics.h"

namespace core {

namespace {

// A mistyped file can hold a million unknown keys; nobody reads more than a few.
constexpr std::size_t most_unknown_keys_reported = 25;

// Below 2^53 = 9.007e15 a double holds every integer.
constexpr double greatest_exact_integer = 9e15;

std::string shown(double number) {
    char digits[32];
    const auto [end, failure] = std::to_chars(digits, digits + sizeof digits, number);
    return std::string(digits, failure == std::errc() ? end : digits);
}

// The value as it may stand in a message.
std::string shown(const Value& value) {
    switch (value.kind()) {
        case Value::Kind::boolean: return value.boolean() ? "true" : "false";
        case Value::Kind::integer: return std::to_string(value.integer());
        case Value::Kind::real: return shown(value.number());
        case Value::Kind::string: return in_quotes(value.string());
        case Value::Kind::null:
        case Value::Kind::array:
        case Value::Kind::table: return std::string(name_of(value.kind()));
    }
    throw InternalError("broken promise: every kind of value can be shown");
}

std::string with_article(std::string_view noun) {
    const bool has_vowel = std::string_view("aeiou").find(noun.front()) != std::string_view::npos;
    return (has_vowel ? "an " : "a ") + std::string(noun);
}

// "plan.nodes = 'one' is a string"; of an array or a table the kind says enough.
std::string with_kind(const std::string& path, const Value& value) {
    const std::string is = value.is_array() || value.is_table() ? "" : " = " + shown(value);
    return path + is + " is " + with_article(name_of(value.kind()));
}

std::string in_words(IntegerRange range) {
    const bool has_least = range.least != std::numeric_limits<std::int64_t>::min();
    const bool has_greatest = range.greatest != std::numeric_limits<std::int64_t>::max();
    if (has_least && has_greatest)
        return "an integer from " + std::to_string(range.least) + " to " + std::to_string(range.greatest);
    if (has_least) return "an integer of at least " + std::to_string(range.least);
    if (has_greatest) return "an integer of at most " + std::to_string(range.greatest);
    return "an integer";
}

std::string in_words(RealRange range) {
    const bool has_least = std::isfinite(range.least);
    const bool has_greatest = std::isfinite(range.greatest);
    if (has_least && has_greatest)
        return "a number from " + shown(range.least) + " to " + shown(range.greatest);
    if (has_least) return "a number of at least " + shown(range.least);
    if (has_greatest) return "a number of at most " + shown(range.greatest);
    return "a number";
}

std::string join(const std::string& path, std::string_view key) {
    const std::string text = in_quotes(key);
    const std::string name = text.substr(1, text.size() - 2);
    return path.empty() ? name : path + "." + name;
}

// What is wrong with a value that is there.
void refuse(const Value& value, const std::string& path, std::string message, std::string hint,
            std::vector<std::string> allowed, Diagnostics& diagnostics) {
    diagnostics.error({Severity::error, value.location, path, std::move(message), std::move(hint),
                       shown(value), std::move(allowed)});
}

std::optional<std::int64_t> read_integer(const Value& value, const std::string& path, IntegerRange range,
                                         Diagnostics& diagnostics) {
    if (value.kind() != Value::Kind::integer) {
        std::string hint = "give " + in_words(range);
        if (value.kind() == Value::Kind::real && std::fabs(value.number()) < greatest_exact_integer &&
            value.number() == std::trunc(value.number()))
            hint = "write it without a point: " + std::to_string(static_cast<std::int64_t>(value.number()));
        refuse(value, path, with_kind(path, value) + ", but an integer is expected", hint, {in_words(range)},
               diagnostics);
        return std::nullopt;
    }
    const std::int64_t number = value.integer();
    if (number < range.least || number > range.greatest) {
        const std::string limit = number < range.least
                                      ? "below the least allowed, " + std::to_string(range.least)
                                      : "above the greatest allowed, " + std::to_string(range.greatest);
        refuse(value, path, path + " = " + std::to_string(number) + " is " + limit, "give " + in_words(range),
               {in_words(range)}, diagnostics);
        return std::nullopt;
    }
    return number;
}

std::optional<double> read_real(const Value& value, const std::string& path, RealRange range,
                                Diagnostics& diagnostics) {
    if (!value.is_number()) {
        refuse(value, path, with_kind(path, value) + ", but a number is expected", "give " + in_words(range),
               {in_words(range)}, diagnostics);
        return std::nullopt;
    }
    const double number = value.number();
    if (!std::isfinite(number)) {
        refuse(value, path, path + " = " + shown(number) + " must be a finite number",
               "give " + in_words(range), {in_words(range)}, diagnostics);
        return std::nullopt;
    }
    if (number < range.least || number > range.greatest) {
        const std::string limit = number < range.least
                                      ? "below the least allowed, " + shown(range.least)
                                      : "above the greatest allowed, " + shown(range.greatest);
        refuse(value, path, path + " = " + shown(value) + " is " + limit, "give " + in_words(range),
               {in_words(range)}, diagnostics);
        return std::nullopt;
    }
    return number;
}

std::optional<std::string> read_string(const Value& value, const std::string& path,
                                       Diagnostics& diagnostics) {
    if (value.is_string()) return value.string();
    refuse(value, path, with_kind(path, value) + ", but a string is expected",
           "put the text in double quotes", {"a string"}, diagnostics);
    return std::nullopt;
}

template <class Q>
std::optional<Q> read_quantity(const Value& value, const std::string& path,
                               std::optional<Q> (*parse)(std::string_view), std::string_view noun,
                               std::string_view example, std::string_view units, Diagnostics& diagnostics) {
    const std::string hint = "write the number with its unit: \"" + std::string(example) +
                             "\" (units: " + std::string(units) + ")";
    if (value.is_number()) {
        refuse(value, path,
               path + " = " + shown(value) + " has no unit, but " + std::string(noun) + " is expected",
               "write the unit: \"" + std::string(example) + "\"", {std::string(noun)}, diagnostics);
        return std::nullopt;
    }
    if (!value.is_string()) {
        refuse(value, path, with_kind(path, value) + ", but " + std::string(noun) + " is expected", hint,
               {std::string(noun)}, diagnostics);
        return std::nullopt;
    }
    const std::optional<Q> quantity = parse(value.string());
    if (!quantity) {
        refuse(value, path, path + " = " + shown(value) + " is not " + std::string(noun), hint,
               {std::string(noun)}, diagnostics);
        return std::nullopt;
    }
    if (quantity->value < 0) {
        refuse(value, path, path + " = " + shown(value) + " is negative", "give zero or more",
               {std::string(noun)}, diagnostics);
        return std::nullopt;
    }
    return quantity;
}

template <class T, class ReadOne>
std::optional<std::vector<T>> read_all(const Value* array, const std::string& path, ReadOne read_one) {
    if (!array) return std::nullopt;
    std::vector<T> result;
    bool all_good = true;
    for (const Value& item : array->items()) {
        // Every bad element is told, not only the first.
        auto one = read_one(item, path + "[" + std::to_string(result.size()) + "]");
        all_good = all_good && one.has_value();
        result.push_back(std::move(one).value_or(T()));
    }
    if (!all_good) return std::nullopt;
    return result;
}

}  // namespace

TableReader::TableReader(const Value& value, std::string path, Diagnostics& diagnostics)
    : table_(&value), path_(std::move(path)), diagnostics_(diagnostics) {
    if (value.is_table()) return;
    const std::string what = path_.empty() ? "the document" : path_;
    diagnostics_.error(value.location, path_,
                       what + " is " + with_article(name_of(value.kind())) + ", but a table is expected");
}

bool TableReader::has(std::string_view key) const { return table_->find(key) != nullptr; }

SourceLocation TableReader::location_of(std::string_view key) const {
    const Value* value = table_->find(key);
    return value ? value->location : table_->location;
}

std::string TableReader::path_of(std::string_view key) const { return join(path_, key); }

// A null (JSON only) says the same as an absent key: Hugging Face writes "num_key_value_heads": null for "as
// many as heads".
const Value* TableReader::ask(std::string_view key) {
    asked_.emplace(key);
    const Value* value = table_->find(key);
    return value && !value->is_null() ? value : nullptr;
}

void TableReader::missing(std::string_view key, std::string_view what) {
    if (!table_->is_table()) return;  // told already
    if (ask(key)) return;             // present but wrong: told already
    diagnostics_.error(location_of(key), path_of(key),
                       "required key " + in_quotes(path_of(key)) + (has(key) ? " is null" : " is missing"),
                       "add " + std::string(key) + " = " + std::string(what));
}

void TableReader::wrong_kind(std::string_view key, const Value& value, std::string_view wanted) {
    const std::string path = path_of(key);
    refuse(value, path, with_kind(path, value) + ", but " + with_article(wanted) + " is expected", {},
           {with_article(wanted)}, diagnostics_);
}

std::optional<std::int64_t> TableReader::optional_integer(std::string_view key, IntegerRange range) {
    const Value* value = ask(key);
    if (!value) return std::nullopt;
    return read_integer(*value, path_of(key), range, diagnostics_);
}

std::optional<double> TableReader::optional_real(std::string_view key, RealRange range) {
    const Value* value = ask(key);
    if (!value) return std::nullopt;
    return read_real(*value, path_of(key), range, diagnostics_);
}

std::optional<bool> TableReader::optional_boolean(std::string_view key) {
    const Value* value = ask(key);
    if (!value) return std::nullopt;
    if (value->kind() == Value::Kind::boolean) return value->boolean();
    const std::string path = path_of(key);
    refuse(*value, path, with_kind(path, *value) + ", but a boolean is expected", "write true or false",
           {"true", "false"}, diagnostics_);
    return std::nullopt;
}

std::optional<std::string> TableReader::optional_string(std::string_view key) {
    const Value* value = ask(key);
    if (!value) return std::nullopt;
    return read_string(*value, path_of(key), diagnostics_);
}

std::optional<std::string> TableReader::optional_choice(std::string_view key,
                                                        const std::vector<std::string>& allowed) {
    auto text = optional_string(key);
    if (!text) return std::nullopt;
    for (const std::string& choice : allowed)
        if (*text == choice) return text;
    const std::string nearest = did_you_mean(*text, allowed);
    refuse(*ask(key), path_of(key),
           path_of(key) + " = " + in_quotes(*text) + " is not one of the allowed values",
           (nearest.empty() ? "" : "did you mean " + in_quotes(nearest) + "? ") + std::string("use ") +
               list_in_words(allowed),
           allowed, diagnostics_);
    return std::nullopt;
}

std::optional<Bytes> TableReader::optional_bytes(std::string_view key) {
    const Value* value = ask(key);
    if (!value) return std::nullopt;
    return read_quantity<Bytes>(*value, path_of(key), parse_bytes, "an amount of memory", "40GiB",
                                "B, kB, MB, GB, TB, KiB, MiB, GiB, TiB", diagnostics_);
}

std::optional<Seconds> TableReader::optional_seconds(std::string_view key) {
    const Value* value = ask(key);
    if (!value) return std::nullopt;
    return read_quantity<Seconds>(*value, path_of(key), parse_seconds, "a duration", "8us",
                                  "ns, us, ms, s, min, h, d", diagnostics_);
}

std::optional<BytesPerSecond> TableReader::optional_bytes_per_second(std::string_view key) {
    const Value* value = ask(key);
    if (!value) return std::nullopt;
    return read_quantity<BytesPerSecond>(*value, path_of(key), parse_bytes_per_second, "a data rate",
                                         "100Gbps", "Mbps, Gbps, MB/s, GB/s, GiB/s", diagnostics_);
}

std::optional<FlopsPerSecond> TableReader::optional_flops_per_second(std::string_view key) {
    const Value* value = ask(key);
    if (!value) return std::nullopt;
    return read_quantity<FlopsPerSecond>(*value, path_of(key), parse_flops_per_second, "a compute rate",
                                         "312TFLOP/s", "GFLOP/s, TFLOP/s, PFLOP/s", diagnostics_);
}

const Value* TableReader::optional_table(std::string_view key) {
    const Value* value = ask(key);
    if (!value || value->is_table()) return value;
    wrong_kind(key, *value, "table");
    return nullptr;
}

const Value* TableReader::optional_array(std::string_view key) {
    const Value* value = ask(key);
    if (!value || value->is_array()) return value;
    wrong_kind(key, *value, "array");
    return nullptr;
}

const Value* TableReader::optional_any(std::string_view key) { return ask(key); }

std::optional<std::vector<std::int64_t>> TableReader::optional_integers(std::string_view key,
                                                                        IntegerRange range) {
    return read_all<std::int64_t>(optional_array(key), path_of(key),
                                  [&](const Value& item, const std::string& path) {
                                      return read_integer(item, path, range, diagnostics_);
                                  });
}

std::optional<std::vector<double>> TableReader::optional_reals(std::string_view key, RealRange range) {
    return read_all<double>(optional_array(key), path_of(key),
                            [&](const Value& item, const std::string& path) {
                                return read_real(item, path, range, diagnostics_);
                            });
}

std::optional<std::vector<std::string>> TableReader::optional_strings(std::string_view key) {
    return read_all<std::string>(
        optional_array(key), path_of(key),
        [&](const Value& item, const std::string& path) { return read_string(item, path, diagnostics_); });
}

std::int64_t TableReader::required_integer(std::string_view key, IntegerRange range) {
    if (const auto value = optional_integer(key, range)) return *value;
    missing(key, in_words(range));
    if (range.least != std::numeric_limits<std::int64_t>::min()) return range.least;
    return std::min<std::int64_t>(0, range.greatest);
}

double TableReader::required_real(std::string_view key, RealRange range) {
    if (const auto value = optional_real(key, range)) return *value;
    missing(key, in_words(range));
    if (std::isfinite(range.least)) return range.least;
    return std::min(0.0, range.greatest);
}

bool TableReader::required_boolean(std::string_view key) {
    if (const auto value = optional_boolean(key)) return *value;
    missing(key, "true or false");
    return false;
}

std::string TableReader::required_string(std::string_view key) {
    if (auto value = optional_string(key)) return *value;
    missing(key, "a string");
    return {};
}

std::string TableReader::required_choice(std::string_view key, const std::vector<std::string>& allowed) {
    if (auto value = optional_choice(key, allowed)) return *value;
    missing(key, list_in_words(allowed));
    return {};
}

Bytes TableReader::required_bytes(std::string_view key) {
    if (const auto value = optional_bytes(key)) return *value;
    missing(key, "an amount of memory, such as \"40GiB\"");
    return {};
}

Seconds TableReader::required_seconds(std::string_view key) {
    if (const auto value = optional_seconds(key)) return *value;
    missing(key, "a duration, such as \"8us\"");
    return {};
}

BytesPerSecond TableReader::required_bytes_per_second(std::string_view key) {
    if (const auto value = optional_bytes_per_second(key)) return *value;
    missing(key, "a data rate, such as \"100Gbps\"");
    return {};
}

FlopsPerSecond TableReader::required_flops_per_second(std::string_view key) {
    if (const auto value = optional_flops_per_second(key)) return *value;
    missing(key, "a compute rate, such as \"312TFLOP/s\"");
    return {};
}

const Value* TableReader::required_table(std::string_view key) {
    if (const Value* value = optional_table(key)) return value;
    missing(key, "a table");
    return nullptr;
}

const Value* TableReader::required_array(std::string_view key) {
    if (const Value* value = optional_array(key)) return value;
    missing(key, "an array");
    return nullptr;
}

void TableReader::error(std::string_view key, std::string message, std::string hint) {
    const Value* value = table_->find(key);
    diagnostics_.error({Severity::error, location_of(key), path_of(key), std::move(message), std::move(hint),
                        value && !value->is_table() && !value->is_array() ? shown(*value) : std::string()});
}

void TableReader::warning(std::string_view key, std::string message, std::string hint) {
    diagnostics_.warning(location_of(key), path_of(key), std::move(message), std::move(hint));
}

void TableReader::ignore(std::string_view key) { asked_.emplace(key); }

void TableReader::finish() {
    if (!table_->is_table()) return;
    const std::vector<std::string> known(asked_.begin(), asked_.end());
    std::size_t unknown = 0;
    for (const auto& [key, value] : table_->members()) {
        if (asked_.contains(key)) continue;
        if (++unknown > most_unknown_keys_reported) continue;
        const SourceLocation& location = value.key_location.line > 0 ? value.key_location : value.location;
        const std::string nearest = did_you_mean(key, known);
        const std::string hint = !nearest.empty() ? "did you mean " + in_quotes(nearest) + "?"
                                 : known.empty()  ? "no key is known here"
                                                  : "known keys: " + list_in_words(known);
        diagnostics_.error({Severity::error, location, path_of(key),
                            "unknown key " + in_quotes(path_of(key), 120), hint,
                            value.is_table() || value.is_array() ? std::string() : shown(value), known});
    }
    if (unknown > most_unknown_keys_reported)
        diagnostics_.error(
            table_->location, path_,
            std::to_string(unknown - most_unknown_keys_reported) + " more unknown keys are not listed");
}

}  // namespace core
