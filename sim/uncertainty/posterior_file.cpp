// The posterior as a document, both ways.
#include <fmt/core.h>

#include <cmath>
#include <map>

#include "core/diagnostics.h"
#include "core/document.h"
#include "core/reader.h"
#include "sim/uncertainty/posterior.h"
#include "sim/uncertainty/posterior_data.h"

namespace sim {

namespace {

constexpr std::int64_t schema = 1;

// Parameters of this version by name.
std::map<std::string, std::size_t> parameter_indices() {
    std::map<std::string, std::size_t> indices;
    std::size_t next = 0;
    for (const NamedConstant& constant : named_constants()) indices[constant.name] = next++;
    for (const char* name : site_effect_names()) indices[name] = next++;
    return indices;
}

double rounded(double value, int digits) {
    if (value == 0 || !std::isfinite(value)) return 0;
    const double scale = std::pow(10.0, digits - 1 - std::floor(std::log10(std::abs(value))));
    return std::round(value * scale) / scale;
}

void read_error(core::TableReader& document, const char* key, ErrorModel& error) {
    const core::Value* table = document.required_table(key);
    if (table == nullptr) return;
    core::TableReader reader(*table, document.path_of(key), document.diagnostics());
    error.row = reader.required_real("row", {.least = 0, .greatest = 10});
    error.factor_80 = reader.required_real("factor_80", {.least = 0, .greatest = 100});
    for (std::size_t n = 0; n < novelties; ++n)
        error.novelty[n] = reader.required_real(novelty_names()[n], {.least = 0, .greatest = 10});
    reader.finish();
}

core::Value error_value(const ErrorModel& error) {
    core::Value table = core::Value::table();
    table["row"] = rounded(error.row, 4);
    for (std::size_t n = 0; n < novelties; ++n) table[novelty_names()[n]] = rounded(error.novelty[n], 4);
    table["factor_80"] = rounded(error.factor_80, 4);
    return table;
}

void read_measured(core::TableReader& document, std::vector<MeasuredKind>& measured) {
    const core::Value* list = document.required_array("measured");
    if (list == nullptr) return;
    for (std::size_t i = 0; i < list->items().size(); ++i) {
        core::TableReader reader(list->items()[i], fmt::format("measured[{}]", i), document.diagnostics());
        MeasuredKind kind;
        kind.device = reader.required_string("device");
        kind.precision = reader.required_string("precision");
        kind.framework = reader.required_string("framework");
        kind.family = reader.required_string("family");
        constexpr std::int64_t most_devices = 100'000'000;
        kind.devices = int(reader.required_integer("devices", {.least = 1, .greatest = most_devices}));
        reader.finish();
        measured.push_back(std::move(kind));
    }
}

struct FileParameter {
    std::string name;
    double mean = 0, deviation = 0;
    std::vector<double> correlations;  // with those before it in the file
};

std::vector<FileParameter> read_parameters(core::TableReader& document) {
    std::vector<FileParameter> parameters;
    const core::Value* list = document.required_array("parameter");
    if (list == nullptr) return parameters;
    for (std::size_t i = 0; i < list->items().size(); ++i) {
        core::TableReader reader(list->items()[i], fmt::format("parameter[{}]", i), document.diagnostics());
        FileParameter parameter;
        parameter.name = reader.required_string("name");
        parameter.mean = reader.required_real("mean");
        parameter.deviation = reader.required_real("deviation", {.least = 0});
        parameter.correlations = reader.optional_reals("correlations", {.least = -1, .greatest = 1})
                                     .value_or(std::vector<double>(i, 0.0));
        if (parameter.correlations.size() != i)
            reader.error("correlations",
                         fmt::format("{} has {} correlations; {} parameters stand before it", parameter.name,
                                     parameter.correlations.size(), i),
                         "write the file anew with smsim calibrate");
        reader.finish();
        parameters.push_back(std::move(parameter));
    }
    return parameters;
}

// A constant outside its physical range, or a name that stands twice.
void check(const std::vector<FileParameter>& parameters, core::TableReader& document) {
    std::map<std::string, int> times;
    for (const FileParameter& parameter : parameters) {
        if (++times[parameter.name] == 2)
            document.error("parameter", "parameter " + core::in_quotes(parameter.name) + " stands twice",
                           "write the file anew with smsim calibrate");
        for (const NamedConstant& constant : named_constants())
            if (parameter.name == constant.name &&
                !(parameter.mean >= constant.least && parameter.mean <= constant.greatest))
                document.error("parameter",
                               fmt::format("{} = {} is outside its physical range, {} to {}", parameter.name,
                                           parameter.mean, constant.least, constant.greatest),
                               "docs/accuracy.md lists the ranges");
    }
}

}  // namespace

std::optional<Posterior> read_posterior(const core::Value& value, const std::string& origin,
                                        core::Diagnostics& diagnostics) {
    const std::size_t errors_before = diagnostics.error_count();
    core::TableReader document(value, "", diagnostics);
    document.required_integer("schema", {.least = schema, .greatest = schema});
    Posterior posterior = prior_posterior();
    posterior.origin = origin;
    posterior.date = document.required_string("date");
    posterior.command = document.required_string("command");
    read_error(document, "step_error", posterior.step);
    read_error(document, "peak_error", posterior.peak);
    const std::vector<FileParameter> parameters = read_parameters(document);
    read_measured(document, posterior.measured);
    check(parameters, document);
    document.finish();
    if (diagnostics.error_count() > errors_before) return std::nullopt;

    const std::map<std::string, std::size_t> indices = parameter_indices();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
        const auto here = indices.find(parameters[i].name);
        if (here == indices.end()) continue;  // of another version
        posterior.mean[here->second] = parameters[i].mean;
        const double deviation = parameters[i].deviation;
        posterior.covariance.set(here->second, here->second, deviation * deviation);
        for (std::size_t j = 0; j < i; ++j)
            if (const auto there = indices.find(parameters[j].name); there != indices.end())
                posterior.covariance.set(here->second, there->second,
                                         parameters[i].correlations[j] * deviation * parameters[j].deviation);
    }
    return posterior;
}

std::optional<Posterior> load_posterior(const std::string& path, core::Diagnostics& diagnostics) {
    const std::optional<core::Value> document = core::load_document(path, diagnostics);
    if (!document) return std::nullopt;
    return read_posterior(*document, path, diagnostics);
}

core::Value to_value(const Posterior& posterior) {
    core::Value document = core::Value::table();
    document["schema"] = schema;
    document["date"] = posterior.date;
    document["command"] = posterior.command;
    document["step_error"] = error_value(posterior.step);
    document["peak_error"] = error_value(posterior.peak);
    std::vector<std::string> names;
    for (const NamedConstant& constant : named_constants()) names.emplace_back(constant.name);
    for (const char* name : site_effect_names()) names.emplace_back(name);
    core::Value parameters = core::Value::array();
    for (std::size_t i = 0; i < names.size(); ++i) {
        core::Value parameter = core::Value::table();
        parameter["name"] = names[i];
        parameter["mean"] = rounded(posterior.mean[i], 6);
        const double deviation = std::sqrt(std::max(0.0, posterior.covariance(i, i)));
        parameter["deviation"] = rounded(deviation, 6);
        core::Value correlations = core::Value::array();
        for (std::size_t j = 0; j < i; ++j) {
            const double other = std::sqrt(std::max(0.0, posterior.covariance(j, j)));
            const double product = deviation * other;
            constexpr double digits = 1e5;
            correlations.append(
                product > 0 ? std::round(posterior.covariance(i, j) / product * digits) / digits : 0.0);
        }
        parameter["correlations"] = std::move(correlations);
        parameters.append(std::move(parameter));
    }
    document["parameter"] = std::move(parameters);
    core::Value measured = core::Value::array();
    for (const MeasuredKind& kind : posterior.measured) {
        core::Value table = core::Value::table();
        table["device"] = kind.device;
        table["precision"] = kind.precision;
        table["framework"] = kind.framework;
        table["family"] = kind.family;
        table["devices"] = kind.devices;
        measured.append(std::move(table));
    }
    document["measured"] = std::move(measured);
    return document;
}

const Posterior& shipped_posterior() {
    static const Posterior posterior = [] {
        core::Diagnostics diagnostics;
        const std::optional<core::Value> document =
            core::parse_toml(constants_posterior_text(), "constants_posterior.toml", diagnostics);
        std::optional<Posterior> read =
            document ? read_posterior(*document, "published runs", diagnostics) : std::nullopt;
        if (!read)
            throw core::InternalError("broken promise: constants_posterior.toml can be read: " +
                                      core::format(diagnostics));
        // The constants themselves are those of the code; the file says how well they are known.
        const CostConstants shipped;
        std::size_t c = 0;
        for (const NamedConstant& constant : named_constants()) read->mean[c++] = shipped.*constant.value;
        return *read;
    }();
    return posterior;
}

}  // namespace sim
