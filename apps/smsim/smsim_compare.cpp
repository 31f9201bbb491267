#include "apps/smsim/smsim_compare.h"

#include <ostream>
#include <utility>

#include "api/compare.h"
#include "apps/command.h"
#include "apps/options.h"
#include "core/diagnostics.h"

namespace apps {

namespace {

const char* const compare_help =
    "Usage: smsim compare A.toml B.toml [C.toml]... [--set KEY=VALUE]... [--json]\n"
    "\n"
    "Why is B faster than A? The difference of their steps, divided over the keys in which they differ: the\n"
    "mean over all orders of changing them one by one (Shapley values), so that the parts add up and depend\n"
    "on no order. Keys that make a valid plan only together are one part. Further files are compared with "
    "A.\n"
    "\n"
    "  --set KEY=VALUE      change a key of every scenario\n"
    "  --json               one JSON document: step_time_s[], parts[] {key, seconds} of A and B,\n"
    "                       comparisons[] of A and each other file\n"
    "\n"
    "Exit codes: 0 good, 1 internal failure, 2 wrong input, 4 machine failure.\n"
    "\n"
    "Example:\n"
    "  smsim compare scenarios/bert_large_p3.toml scenarios/bert_large_p3dn.toml\n";

const char* const ablate_help =
    "Usage: smsim ablate SCENARIO.toml [--only NAME[,NAME...]] [--set KEY=VALUE]... [--json]\n"
    "\n"
    "What each optimisation of the plan is worth: every one switched off alone, and one after another from\n"
    "none to all (attention, overlap, communication, schedule, recomputation, sharding, precision, "
    "framework).\n"
    "\n"
    "  --only NAME,...      these alone, added in this order\n"
    "  --set KEY=VALUE      change a key of the scenario\n"
    "  --json               one JSON document: step_time_s, without[], added[]\n"
    "\n"
    "Exit codes: 0 good, 1 internal failure, 2 wrong input, 3 the plan does not fit into memory, 4 machine\n"
    "failure.\n"
    "\n"
    "Example:\n"
    "  smsim ablate scenarios/llama2_7b_p4d.toml\n";

struct Request {
    std::vector<api::ScenarioSource> scenarios = {};
    std::vector<std::string> only = {};
    bool wants_help = false;
};

Request read_arguments(const std::vector<std::string>& arguments, const OptionNames& names,
                       core::Diagnostics& diagnostics) {
    Options options(arguments, names, diagnostics);
    Request request{.only = options.list("--only"), .wants_help = options.has("--help")};
    for (const std::string& file : options.positional())
        request.scenarios.push_back({.path = file, .set = options.all("--set")});
    return request;
}

}  // namespace

int run_compare_command(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
    core::Diagnostics diagnostics;
    const Request request = read_arguments(arguments, {{"--set"}, {"--json", "--help"}}, diagnostics);
    if (request.wants_help) {
        out << compare_help;
        return good;
    }
    return show_reply(api::compare(request.scenarios, std::move(diagnostics)), wants_json(arguments), out,
                      err);
}

int run_ablate_command(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
    core::Diagnostics diagnostics;
    const Request request =
        read_arguments(arguments, {{"--set", "--only"}, {"--json", "--help"}}, diagnostics);
    if (request.wants_help) {
        out << ablate_help;
        return good;
    }
    if (request.scenarios.size() == 1)
        return show_reply(api::ablate(request.scenarios.front(), request.only, std::move(diagnostics)),
                          wants_json(arguments), out, err);
    diagnostics.error({}, "scenario", "one scenario is needed",
                      "smsim ablate SCENARIO.toml; smsim ablate --help shows an example");
    return show(diagnostics, wants_json(arguments), out, err);
}

}  // namespace apps
