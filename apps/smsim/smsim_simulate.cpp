#include "apps/smsim/smsim_simulate.h"

#include <ostream>
#include <utility>

#include <fmt/core.h>

#include "api/simulate.h"
#include "apps/command.h"
#include "apps/options.h"
#include "apps/terminal.h"
#include "core/diagnostics.h"

namespace apps {

namespace {

const char* const help =
    "Usage: smsim SCENARIO.toml [--set KEY=VALUE]... [--sweep KEY=A,B,C]... [--explain] [--trace FILE] "
    "[--html FILE] [--csv FILE] [--calibration FILE] [--json]\n"
    "\n"
    "Predicts one training step of a scenario: time, throughput, memory per rank, cost, and where the time "
    "goes.\n"
    "\n"
    "  --set KEY=VALUE      change a key of the scenario: plan.micro_batch=2, cluster.nodes=32, "
    "cluster.instance=p4de.24xlarge\n"
    "  --sweep KEY=A,B,C    one prediction for each value; several sweeps are combined\n"
    "  --explain            time by kind of operator, communication by link (exposed or hidden), and how the "
    "step moves with every figure it rests on\n"
    "  --trace FILE         timeline as Chrome trace JSON, for ui.perfetto.dev (not with --sweep)\n"
    "  --html FILE          the answer with its timeline as a page of its own (not with --sweep)\n"
    "  --csv FILE           the figures as a table, one line a prediction\n"
    "  --unfolded           every rank on its own instead of one for all that do the same (not with "
    "--sweep)\n"
    "  --calibration FILE   constants and site effects of one installation, as smsim calibrate writes them\n"
    "  --json               one JSON document on stdout\n"
    "\n"
    "Exit codes: 0 good, 1 internal failure, 2 wrong input, 3 the plan does not fit into memory, 4 machine "
    "failure.\n"
    "\n"
    "Example:\n"
    "  smsim scenarios/llama2_7b_p4d.toml --set plan.recompute=full --sweep plan.micro_batch=1,2,4 --csv "
    "sweep.csv\n";

struct Request {
    api::SimulateRequest asked;  // its scenario is empty only where --help or a diagnostic ends the command
    bool wants_help = false;
};

Request read_arguments(const std::vector<std::string>& arguments, core::Diagnostics& diagnostics) {
    Options options(arguments,
                    {{"--set", "--sweep", "--trace", "--html", "--csv", "--calibration"},
                     {"--explain", "--unfolded", "--json", "--help"}},
                    diagnostics);
    Request request;
    request.wants_help = options.has("--help");
    api::SimulateRequest& asked = request.asked;
    asked.width = text_width();
    asked.explains = options.has("--explain");
    asked.is_unfolded = options.has("--unfolded");
    asked.scenario.set = options.all("--set");
    asked.sweep = options.all("--sweep");
    asked.calibration = options.text("--calibration");
    if (request.wants_help) return request;
    asked.scenario.path = options.only_positional("SCENARIO.toml", "scenario",
                                                  "smsim SCENARIO.toml; smsim --help shows an example");
    for (const auto& [name, path] : {std::pair("--trace", &asked.trace), std::pair("--html", &asked.html),
                                     std::pair("--csv", &asked.csv)}) {
        if (!options.has(name)) continue;
        *path = options.text(name).value_or("");
        check_output(name, **path, diagnostics);
    }
    if (asked.sweep.empty()) return request;
    if (asked.is_unfolded)
        options.error("--unfolded", "--unfolded: a sweep is folded", "leave out one of the two");
    for (const char* name : {"--trace", "--html", "--explain"})
        if (options.has(name))
            options.error(name, fmt::format("{}: a sweep has no single timeline", name),
                          "leave out --sweep, or use --set for the one point to draw");
    return request;
}

}  // namespace

int run_simulate_command(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
    core::Diagnostics diagnostics;
    const Request request = read_arguments(arguments, diagnostics);
    if (request.wants_help) {
        out << help;
        return good;
    }
    if (request.asked.scenario.path.empty()) return show(diagnostics, wants_json(arguments), out, err);
    return show_reply(api::simulate(request.asked, std::move(diagnostics)), wants_json(arguments), out, err);
}

}  // namespace apps
