// smsim._core: the facade as functions of plain values. What they mean to a user, the package says.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <utility>

#include "api/compare.h"
#include "api/exchange.h"
#include "api/hardware.h"
#include "api/partition/partition_command.h"
#include "api/plan/certificate.h"
#include "api/plan/plan_command.h"
#include "api/simulate.h"
#include "api/validate.h"
#include "api/version.h"
#include "core/document.h"
#include "python/extension/convert.h"
#include "python/extension/follow.h"

namespace nb = nanobind;

namespace {

using Arguments = std::vector<std::string>;

const char* name_of(api::Outcome outcome) {
    switch (outcome) {
        case api::Outcome::good: return "good";
        case api::Outcome::wrong_input: return "wrong_input";
        case api::Outcome::no_plan: return "no_plan";
    }
    throw core::InternalError("broken promise: every outcome has a name");
}

// Writes the reply's files, and hands it over as a dict.
nb::dict hand_over(const api::Reply& reply) {
    nb::list written;
    for (const api::OutputFile& file : reply.files) {
        core::write_file_atomically(file.path, file.content);
        written.append(file.path);
    }
    nb::dict given;
    given["outcome"] = name_of(reply.outcome);
    given["document"] = python::to_python(reply.document);
    given["text"] = python::to_python(core::Value(reply.text));
    given["diagnostics"] = python::to_python(reply.diagnostics);
    given["files"] = written;
    return given;
}

// (path, tree or None, {dotted key: value}, name)
api::ScenarioSource source_of(const nb::tuple& given) {
    api::ScenarioSource source{.path = nb::cast<std::string>(given[0])};
    if (!given[1].is_none()) source.tree = python::to_value(given[1], "");
    for (auto [key, value] : nb::cast<nb::dict>(given[2])) {
        const auto name = nb::cast<std::string>(key);
        source.values.emplace_back(name, python::to_value(value, name));
    }
    source.name = nb::cast<std::string>(given[3]);
    return source;
}

template <class Work>
nb::dict answer_without_lock(Work work) {
    api::Reply reply;
    {
        const nb::gil_scoped_release others_may_run;
        reply = work();
    }
    return hand_over(reply);
}

nb::dict simulate(const nb::tuple& scenario, const Arguments& sweep, std::optional<std::string> trace,
                  std::optional<std::string> html, std::optional<std::string> csv,
                  std::optional<std::string> calibration, bool explain, bool unfolded) {
    const api::SimulateRequest request{.scenario = source_of(scenario),
                                       .sweep = sweep,
                                       .trace = std::move(trace),
                                       .html = std::move(html),
                                       .csv = std::move(csv),
                                       .calibration = std::move(calibration),
                                       .explains = explain,
                                       .is_unfolded = unfolded};
    return answer_without_lock([&] { return api::simulate(request); });
}

nb::dict compare(const nb::list& scenarios) {
    std::vector<api::ScenarioSource> sources;
    for (nb::handle scenario : scenarios) sources.push_back(source_of(nb::cast<nb::tuple>(scenario)));
    return answer_without_lock([&] { return api::compare(sources); });
}

nb::dict ablate(const nb::tuple& scenario, const std::vector<std::string>& only) {
    const api::ScenarioSource source = source_of(scenario);
    return answer_without_lock([&] { return api::ablate(source, only); });
}

nb::dict plan(const Arguments& arguments, nb::object progress) {
    api::PlanReply reply;
    const bool is_interrupted = python::follow(
        std::move(progress), [&](const api::Watch& watch) { reply = api::plan(arguments, watch); });
    nb::dict given = hand_over(reply);
    given["plan_files"] = python::to_python(core::Value(reply.plan_files));
    given["interrupted"] = is_interrupted || reply.is_stopped;
    return given;
}

template <auto answer>
nb::dict followed(const Arguments& arguments, nb::object progress) {
    api::Reply reply;
    const bool is_interrupted = python::follow(
        std::move(progress), [&](const api::Watch& watch) { reply = answer(arguments, watch); });
    nb::dict given = hand_over(reply);
    given["interrupted"] = is_interrupted || reply.is_stopped;
    return given;
}

template <auto answer>
nb::dict answered(const Arguments& arguments) {
    return answer_without_lock([&] { return answer(arguments); });
}

std::string to_toml(const nb::dict& document) { return core::to_toml(python::to_value(document, "")); }

// The file of a plan that the library wrote itself.
nb::object parse_toml(const std::string& text) {
    core::Diagnostics diagnostics;
    const std::optional<core::Value> document = core::parse_toml(text, "", diagnostics);
    if (!document) throw nb::value_error(core::format(diagnostics).c_str());
    return python::to_python(*document);
}

}  // namespace

NB_MODULE(_core, module) {
    module.doc() = "The library's facade. Use the package smsim, not this module.";
    nb::exception<core::MachineError>(module, "MachineError", PyExc_OSError);
    nb::exception<core::InternalError>(module, "InternalError", PyExc_RuntimeError);
    module.attr("version") = api::version;
    module.attr("commit") = api::commit;
    module.def("simulate", &simulate, nb::arg("scenario"), nb::arg("sweep"), nb::arg("trace").none(),
               nb::arg("html").none(), nb::arg("csv").none(), nb::arg("calibration").none(),
               nb::arg("explain"), nb::arg("unfolded"));
    module.def("compare", &compare, nb::arg("scenarios"));
    module.def("ablate", &ablate, nb::arg("scenario"), nb::arg("only") = std::vector<std::string>());
    module.def("plan", &plan, nb::arg("arguments"), nb::arg("progress").none());
    module.def("partition", &followed<&api::partition>, nb::arg("arguments"), nb::arg("progress").none());
    module.def("validate", &followed<&api::validate>, nb::arg("arguments"), nb::arg("progress").none());
    module.def("verify", &answered<&api::verify_certificate>, nb::arg("arguments"));
    module.def("export_plan", &answered<&api::export_plan>, nb::arg("arguments"));
    module.def("import_plan", &answered<&api::import_plan>, nb::arg("arguments"));
    module.def(
        "hardware",
        [](const std::string& name) { return answer_without_lock([&] { return api::hardware(name); }); },
        nb::arg("name"));
    module.def("to_toml", &to_toml, nb::arg("document"));
    module.def("parse_toml", &parse_toml, nb::arg("text"));
}
