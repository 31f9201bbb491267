// The facade for a page: one question in, one answer out, both JSON. Like the Python package's extension it
// computes nothing of its own.
#include <emscripten.h>

#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "api/compare.h"
#include "api/exchange.h"
#include "api/hardware.h"
#include "api/plan/plan_command.h"
#include "api/simulate.h"
#include "api/version.h"
#include "core/diagnostics.h"
#include "core/document.h"
#include "core/errors.h"
#include "model/load.h"

// Hands the worker a line of JSON; asks it whether the work is to end with the best so far.
// clang-format off
EM_JS(void, tell_progress, (const char* line), {
    if (Module.onProgress) Module.onProgress(JSON.parse(UTF8ToString(line)));
});
EM_JS(int, is_stop_wanted, (), { return Module.isStopped && Module.isStopped() ? 1 : 0; });
// clang-format on

namespace {

const char* name_of(api::Outcome outcome) {
    switch (outcome) {
        case api::Outcome::good: return "good";
        case api::Outcome::wrong_input: return "wrong_input";
        case api::Outcome::no_plan: return "no_plan";
    }
    throw core::InternalError("broken promise: every outcome has a name");
}

core::Value to_value(const api::Reply& reply) {
    core::Value answer = core::Value::table();
    answer["outcome"] = name_of(reply.outcome);
    answer["document"] = reply.document;
    answer["text"] = reply.text;
    answer["said"] = core::format(reply.diagnostics);
    answer["files"] = core::Value::table();
    for (const api::OutputFile& file : reply.files) answer["files"][file.path] = file.content;
    return answer;
}

std::string text_in(const core::Value& question, const char* key) {
    const core::Value* const found = question.find(key);
    return found ? found->string() : std::string();
}

std::vector<std::string> texts_in(const core::Value& question, const char* key) {
    std::vector<std::string> texts;
    if (const core::Value* const found = question.find(key))
        for (const core::Value& item : found->items()) texts.push_back(item.string());
    return texts;
}

// The text of a scenario or plan, as if it lay in the page's working folder. Mistakes name it
// "scenario.toml".
api::ScenarioSource source_of(const core::Value& given, core::Diagnostics& diagnostics) {
    api::ScenarioSource source{.path = "scenario.toml"};
    source.tree = core::parse_toml(text_in(given, "toml"), source.path, diagnostics);
    source.set = texts_in(given, "set");
    source.name = text_in(given, "name");
    return source;
}

core::Value simulate(const core::Value& question) {
    core::Diagnostics diagnostics;
    api::SimulateRequest request{.scenario = source_of(question, diagnostics)};
    if (!request.scenario.tree) return to_value(api::refusal(std::move(diagnostics)));
    request.explains = question.find("explain") != nullptr;
    if (question.find("timeline")) request.timeline = text_in(question, "timeline");
    return to_value(api::simulate(request, std::move(diagnostics)));
}

core::Value compare(const core::Value& question) {
    core::Diagnostics diagnostics;
    std::vector<api::ScenarioSource> sources;
    for (const core::Value& given : question.find("scenarios")->items())
        sources.push_back(source_of(given, diagnostics));
    return to_value(api::compare(sources, std::move(diagnostics)));
}

core::Value to_value(const api::Progress& at) {
    core::Value told = core::Value::table();
    told["done"] = at.done;
    told["all"] = at.all;
    told["best"] = at.best ? core::Value(*at.best) : core::Value();
    told["lower_bound"] = at.lower_bound ? core::Value(*at.lower_bound) : core::Value();
    told["seconds"] = at.seconds;
    return told;
}

core::Value plan(const core::Value& question) {
    // The search reports many times a second, the page shows ten of them.
    constexpr double seconds_between = 0.1;
    std::optional<double> told;
    const api::Watch watch{.progress =
                               [&](const api::Progress& at) {
                                   if (told && at.seconds - *told < seconds_between) return;
                                   told = at.seconds;
                                   tell_progress(core::to_json(to_value(at)).c_str());
                               },
                           .is_stopped = [] { return is_stop_wanted() != 0; }};
    const api::PlanReply reply = api::plan(texts_in(question, "arguments"), watch);
    core::Value answer = to_value(reply);
    answer["plan_files"] = core::Value(reply.plan_files);
    answer["is_stopped"] = reply.is_stopped;
    return answer;
}

// What a person may choose from, and which version answers.
core::Value known() {
    core::Value answer = to_value(api::hardware(""));
    answer["models"] = core::Value(model::catalogue_names());
    answer["version"] = api::version;
    answer["commit"] = api::commit;
    return answer;
}

core::Value answer_to(const core::Value& question) {
    const std::string asked = text_in(question, "ask");
    if (asked == "known") return known();
    if (asked == "hardware") return to_value(api::hardware(text_in(question, "name")));
    if (asked == "plan") return plan(question);
    if (asked == "simulate") return simulate(question);
    if (asked == "compare") return compare(question);
    if (asked == "export") return to_value(api::export_plan(texts_in(question, "arguments")));
    throw core::InternalError("the page asks for " + core::in_quotes(asked) + ", which no function answers");
}

core::Value without_answer(const char* outcome, const std::string& what) {
    core::Value answer = core::Value::table();
    answer["outcome"] = outcome;
    answer["said"] = what;
    return answer;
}

std::string answer_in_text(const char* text) {
    try {
        core::Diagnostics diagnostics;
        const std::optional<core::Value> question = core::parse_json(text, "question", diagnostics);
        if (!question) return core::to_json(without_answer("failure", core::format(diagnostics)));
        return core::to_json(answer_to(*question));
    } catch (const api::Stopped&) {
        return core::to_json(without_answer("stopped", "stopped before a plan was found"));
    } catch (const std::exception& error) {
        return core::to_json(without_answer("failure", error.what()));
    }
}

}  // namespace

extern "C" {

// `question` is UTF-8. The answer is valid until the next call.
EMSCRIPTEN_KEEPALIVE const char* smsim_answer(const char* question) {
    static std::string answer;
    answer = answer_in_text(question);
    return answer.c_str();
}
}
