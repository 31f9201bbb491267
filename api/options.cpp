#include "api/options.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include <fmt/core.h>
#include <boost/program_options.hpp>

#include "core/diagnostics.h"

namespace api {

namespace {

namespace po = boost::program_options;

constexpr int long_options = po::command_line_style::allow_long | po::command_line_style::long_allow_next |
                             po::command_line_style::long_allow_adjacent;

po::options_description describe(const OptionNames& names) {
    po::options_description description;
    for (const std::string& name : names.with_value)
        description.add_options()(name.substr(2).c_str(), po::value<std::string>());
    for (const std::string& name : names.flags) description.add_options()(name.substr(2).c_str(), "");
    return description;
}

// "--json", "--set=VALUE".
std::vector<std::string> with_values_shown(const OptionNames& names) {
    std::vector<std::string> shown = names.flags;
    for (const std::string& name : names.with_value) shown.push_back(name + "=VALUE");
    std::sort(shown.begin(), shown.end());
    return shown;
}

std::string name_of(const std::string& argument) { return argument.substr(0, argument.find('=')); }

}  // namespace

Options::Options(const std::vector<std::string>& arguments, const OptionNames& names,
                 core::Diagnostics& diagnostics)
    : diagnostics_(diagnostics) {
    const auto is_among = [](const std::vector<std::string>& list, const std::string& name) {
        return std::find(list.begin(), list.end(), name) != list.end();
    };
    std::vector<std::string> known = names.with_value;
    known.insert(known.end(), names.flags.begin(), names.flags.end());
    std::sort(known.begin(), known.end());
    // The library throws at the first value that is missing or too many, and takes the next option for a
    // value ("--steps --json"): those are told, and left out, before.
    std::vector<std::string> left;
    for (std::size_t i = 0; i < arguments.size(); ++i) {
        const std::string& argument = arguments[i];
        const std::string name = name_of(argument);
        const bool has_value = name.size() < argument.size(),
                   is_value_next = i + 1 < arguments.size() && !is_among(known, name_of(arguments[i + 1]));
        if (is_among(names.flags, name)) {
            if (has_value) error(name, fmt::format("{} takes no value", name));
            left.push_back(name);
        } else if (is_among(names.with_value, name) &&
                   (has_value ? argument.size() == name.size() + 1 : !is_value_next)) {
            error(name, fmt::format("{} needs a value", name));
        } else {
            left.push_back(argument);
        }
    }
    const po::parsed_options parsed =
        po::command_line_parser(left).options(describe(names)).style(long_options).allow_unregistered().run();
    for (const po::option& option : parsed.options) {
        const std::string& given = option.original_tokens.front();
        const bool is_positional = option.position_key >= 0;
        if (!option.unregistered && !is_positional) {
            std::vector<std::string>& values = values_["--" + option.string_key];
            values.insert(values.end(), option.value.begin(), option.value.end());
        } else if (is_positional && (given.size() < 2 || given[0] != '-')) {
            positional_.push_back(given);
        } else {
            const std::string name = name_of(given), near = core::did_you_mean(name, known);
            has_unknown_ = true;
            diagnostics_.error(
                {.location = {},
                 .key = name,
                 .message = fmt::format("unknown option {}", core::in_quotes(name)),
                 .hint = near.empty() ? "known: " + core::list_in_words(known) : "did you mean " + near + "?",
                 .allowed = with_values_shown(names)});
        }
    }
}

bool Options::has(const std::string& name) const { return values_.count(name) > 0; }

std::string Options::only_positional(const std::string& name, const std::string& what,
                                     const std::string& hint, bool is_needed) {
    if (positional_.size() > 1 && !has_unknown_)
        error(name,
              fmt::format("one {} at a time, {} and {} were given", what, core::in_quotes(positional_[0]),
                          core::in_quotes(positional_[1])),
              hint);
    const std::string chosen = positional_.empty() ? std::string() : positional_.front();
    if (chosen.empty() && is_needed) error(name, fmt::format("no {} is given", what), hint);
    return chosen;
}

std::optional<std::string> Options::text(const std::string& name) const {
    auto found = values_.find(name);
    if (found == values_.end() || found->second.empty()) return std::nullopt;
    return found->second.back();
}

std::vector<std::string> Options::all(const std::string& name) const {
    auto found = values_.find(name);
    return found == values_.end() ? std::vector<std::string>() : found->second;
}

std::optional<std::int64_t> Options::integer(const std::string& name, std::int64_t least,
                                             std::int64_t greatest) {
    std::optional<std::string> given = text(name);
    if (!given) return std::nullopt;
    std::int64_t value = 0;
    auto [end, failure] = std::from_chars(given->data(), given->data() + given->size(), value);
    if (failure != std::errc{} || end != given->data() + given->size() || value < least || value > greatest) {
        const std::string range = fmt::format("a whole number from {} to {}", least, greatest);
        diagnostics_.error({.location = {},
                            .key = name,
                            .message = fmt::format("{} = {} is not {}", name, core::in_quotes(*given), range),
                            .hint = {},
                            .value = *given,
                            .allowed = {range}});
        return std::nullopt;
    }
    return value;
}

std::optional<double> Options::real(const std::string& name, double least, double greatest) {
    std::optional<std::string> given = text(name);
    if (!given) return std::nullopt;
    double value = 0;
    auto [end, failure] = std::from_chars(given->data(), given->data() + given->size(), value);
    if (failure != std::errc{} || end != given->data() + given->size() || !std::isfinite(value) ||
        value < least || value > greatest) {
        const std::string range = fmt::format("a number from {:g} to {:g}", least, greatest);
        diagnostics_.error({.location = {},
                            .key = name,
                            .message = fmt::format("{} = {} is not {}", name, core::in_quotes(*given), range),
                            .hint = {},
                            .value = *given,
                            .allowed = {range}});
        return std::nullopt;
    }
    return value;
}

std::vector<std::string> Options::list(const std::string& name) const {
    std::vector<std::string> parts;
    for (const std::string& value : all(name))
        for (std::size_t begin = 0; begin <= value.size();) {
            std::size_t end = std::min(value.find(',', begin), value.size());
            if (end > begin) parts.push_back(value.substr(begin, end - begin));
            begin = end + 1;
        }
    return parts;
}

std::optional<std::string> Options::choice(const std::string& name, const std::vector<std::string>& allowed) {
    std::optional<std::string> given = text(name);
    if (!given || std::find(allowed.begin(), allowed.end(), *given) != allowed.end()) return given;
    std::string near = core::did_you_mean(*given, allowed);
    diagnostics_.error(
        {.location = {},
         .key = name,
         .message = fmt::format("{} = {} is unknown", name, core::in_quotes(*given)),
         .hint = near.empty() ? "use " + core::list_in_words(allowed) : "did you mean " + near + "?",
         .value = *given,
         .allowed = allowed});
    return std::nullopt;
}

void Options::error(const std::string& name, const std::string& message, const std::string& hint) {
    diagnostics_.error({}, name, message, hint);
}

}  // namespace api
