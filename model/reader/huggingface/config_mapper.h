// Typed copies from the keys of a Hugging Face config.json to those of a description.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include "core/reader.h"

namespace model {

using core::IntegerRange;
using core::RealRange;
using core::Value;

// Typed copies from config keys (diagnosed under their own names) to description keys. A null in a config
// means the default, as in transformers.
class ConfigMapper {
public:
    ConfigMapper(const Value& config, std::vector<std::string>& assumptions, core::Diagnostics& diagnostics)
        : description(Value::table()),
          config_(config),
          reader_(config, "", diagnostics),
          assumptions_(assumptions) {
        description.location = config.location;
    }

    // Present and not null; the key counts as understood.
    bool has(const char* key) {
        understood_.insert(key);
        const Value* value = config_.find(key);
        return value && !value->is_null();
    }
    bool is_absent(const char* key) {
        understood_.insert(key);
        return config_.find(key) == nullptr;
    }
    // A key that changes neither shapes nor work.
    void harmless(const char* key) { understood_.insert(key); }
    void ignore(std::initializer_list<const char*> keys) {
        for (const char* key : keys) harmless(key);
    }
    // Every other key is an error: one that is passed over in silence may have changed the model.
    void finish();
    const Value& config() const { return config_; }

    void required_integer(const char* key, const char* to, IntegerRange range) {
        if (!has(key)) return missing(key);
        if (const auto value = reader_.optional_integer(key, range)) put(to, *value, key);
    }
    // One of two names for the same thing (older and newer transformers).
    void required_integer(const char* key, const char* other, const char* to, IntegerRange range) {
        required_integer(has(key) || !has(other) ? key : other, to, range);
    }
    void integer_or(const char* key, const char* to, std::int64_t fallback, IntegerRange range) {
        put(to, integer(key, fallback, range), key);
    }
    void optional_integer(const char* key, const char* to, IntegerRange range) {
        if (!has(key)) return;
        if (const auto value = reader_.optional_integer(key, range)) put(to, *value, key);
    }
    // Defaults are transformers' own, of the class that the model_type names.
    std::int64_t integer(const char* key, std::int64_t fallback, IntegerRange range) {
        return has(key) ? reader_.integer(key, fallback, range) : fallback;
    }
    void real(const char* key, const char* to, double fallback, RealRange range) {
        put(to, has(key) ? reader_.real(key, fallback, range) : fallback, key);
    }
    double real(const char* key, double fallback, RealRange range) {
        return has(key) ? reader_.real(key, fallback, range) : fallback;
    }
    bool boolean(const char* key, bool fallback) {
        return has(key) ? reader_.boolean(key, fallback) : fallback;
    }
    void boolean(const char* key, const char* to, bool fallback) { put(to, boolean(key, fallback), key); }
    std::string string(const char* key, const char* fallback) {
        return has(key) ? reader_.string(key, fallback) : std::string(fallback);
    }

    std::vector<std::string> strings(const char* key) {
        return reader_.optional_strings(key).value_or(std::vector<std::string>());
    }
    std::vector<std::int64_t> integers(const char* key, IntegerRange range) {
        return reader_.optional_integers(key, range).value_or(std::vector<std::int64_t>());
    }
    // A nested table under its own name; null where there is none.
    const Value* table(const char* key) { return has(key) ? reader_.optional_table(key) : nullptr; }
    core::Diagnostics& diagnostics() { return reader_.diagnostics(); }

    // A switch of the architecture that only one position of is modelled.
    void must_be(const char* key, bool allowed, bool fallback, const char* what) {
        if (boolean(key, fallback) != allowed)
            refuse(key, fmt::format("{} = {} ({}) is not supported", key, allowed ? "false" : "true", what),
                   fmt::format("only {} = {} can be modelled", key, allowed ? "true" : "false"));
    }
    void refuse(const char* key, std::string message, std::string hint) {
        reader_.error(key, std::move(message), std::move(hint));
    }
    void assume(std::string_view text) { assumptions_.emplace_back(text); }

    // hidden_act and its cousins: transformers' names to ours.
    void activation(const char* key, const char* fallback, bool is_gated = false);

    // Rotary base and its scaling. Scaling changes angles, not shapes or work.
    void rotary(double default_base, double default_fraction = 1.0);
    void rotary_by_kind(double full_base, double window_base);

    // The head after the body: of causal models the language-model head is what pre-training uses, whatever
    // class saved the config.
    void expect_class(const char* suffix);

    void put(const char* to, Value value, const char* key) {
        value.location = value.key_location = reader_.location_of(key);
        description[to] = std::move(value);
    }

    Value description;

private:
    void missing(const char* key) {
        reader_.error(key, fmt::format("{} is missing", key),
                      fmt::format("a config.json of model_type \"{}\" states it", string("model_type", "")));
    }

    const Value& config_;
    core::TableReader reader_;
    std::vector<std::string>& assumptions_;
    std::set<std::string, std::less<>> understood_;
};

}  // namespace model
