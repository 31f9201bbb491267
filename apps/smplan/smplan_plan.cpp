#include "apps/smplan/smplan_plan.h"

#include <algorithm>
#include <ostream>

#include <fmt/core.h>

#include "api/plan/plan_command.h"
#include "apps/command.h"
#include "apps/terminal.h"
#include "apps/termination.h"
#include "core/display/text_table.h"
#include "core/units.h"

namespace apps {

const char* const plan_help =
    "Usage: smplan --target INSTANCE[,INSTANCE...] [--nodes N | --max-nodes N] [--model MODEL] [--seq-len S] "
    "[--global-batch B]\n"
    "              [--objective speed|memory|cost|time-to-train|expected-cost|expected-time]\n"
    "              [--tokens T] [--deadline H] [--budget USD] [--finish-by TIME] [--confidence PCT] "
    "[--purchase KIND[,KIND...]]\n"
    "              [--top K] [--threads T] [--time-limit S] [--calibration FILE] [--out plan.toml] [--json]\n"
    "       smplan partition --graph FILE ...      place a costed graph (smplan partition --help)\n"
    "       smplan order plan.toml ...             search the compute order of a plan (smplan order --help)\n"
    "       smplan export plan.toml --to TARGET    write a plan in another tool's words (smplan export "
    "--help)\n"
    "\n"
    "Looks at every legal plan (data x tensor x pipeline x virtual stages x schedule x sharding x "
    "recomputation x micro-batch, and\n"
    "offload where activations do not fit), rejects what cannot fit memory, simulates what its bounds do not "
    "exclude, and ranks the\n"
    "rest.\n"
    "\n"
    "  --target LIST        instance types (smsim hardware lists them), families (p4d), patterns ('p*') or "
    "all;\n"
    "                       or a scenario or plan file, of which the [cluster] counts: an instance with\n"
    "                       other figures, or a cluster made to measure (docs/formats.md)\n"
    "  --set cluster.KEY=V  another figure, or a factor of the profile's, for every target: "
    "cluster.network_bandwidth=2x\n"
    "  --nodes N            exactly N nodes; without it and --max-nodes those of the target's file, else the "
    "smallest power of two\n"
    "                       on which the model fits\n"
    "  --max-nodes N        any number of nodes up to N; above 16 powers of two and N are searched, and the "
    "gap "
    "counts what a bound says of the others\n"
    "  --model MODEL        catalogue name, config.json, .onnx or .toml (default: llama-2-7b)\n"
    "  --seq-len S          tokens per sample (default: what the model was published with)\n"
    "  --global-batch B     samples per step (default: about 4 million tokens, Llama 2's; 256 images)\n"
    "  --objective O        speed (default), memory, cost or time-to-train; expected-cost or expected-time "
    "of "
    "the whole training\n"
    "                       with failures, spot reclaims and checkpoints, over clusters and ways to buy "
    "them:\n"
    "    --purchase LIST      on-demand, spot, reserved, capacity-block, sagemaker (default: the first "
    "four)\n"
    "    --price I:KIND=USD   an hour of a node of instance type I, instead of the profile's\n"
    "    --job FILE           its [job] table says what may go wrong (docs/jobs.md; default: published "
    "rates); "
    "--interval best\n"
    "                         writes checkpoints as often as is best instead of as the file says\n"
    "    --finish-by TIME     30d, 12h; and --budget USD: both with --confidence PCT of the runs (default "
    "90%)\n"
    "    --carbon KG          of CO2 a kWh of the boards' energy\n"
    "    --csv FILE, --picture FILE.svg   all offers, with the front of cost, time and risk; --pareto shows "
    "it "
    "alone\n"
    "  --tokens T           tokens of the whole training, e.g. 2e12 or 300B; --deadline in hours and "
    "--budget in USD "
    "are for all of them\n"
    "  --memory-margin PCT  keep so much of every device's memory free (default 0)\n"
    "  --top K              plans to show (default 5)\n"
    "  --pareto             the front of step time, cost and memory over all clusters instead; of "
    "--objective "
    "nothing is asked\n"
    "  --offload WHERE      where activations may go that do not fit: host (default), none, or disk with "
    "--offload-bandwidth 6GB/s,\n"
    "                       the rate of a node's disks together, each way\n"
    "  --optimizer-offload WHERE  where optimizers may be: auto (default: on the devices, and on the hosts "
    "where no "
    "plan fits so),\n"
    "                       none, host, or either\n"
    "  --parameter-offload WHERE  where parameters and gradients may be, with the optimizer: auto (on the "
    "hosts where no plan fits\n"
    "                       with all on the devices), none, host, or either\n"
    "  --threads T          default: all cores; the answer does not depend on it\n"
    "  --time-limit S       stop after the work of S seconds with the best so far and its gap (default 15); "
    "work is counted,\n"
    "                       not timed (two cores do about a second's in a second), so the answer does not "
    "depend on the load\n"
    "  --for TOOL[,TOOL...] search what the tool runs, priced as it runs it: the export of the answer always "
    "works\n"
    "                       (megatron, megatron-bridge, nemo, torchtitan, deepspeed, accelerate, smp-v1, "
    "smp-v2, smexec);\n"
    "                       of several the best of each\n"
    "  --tp --pp --dp --cp --ep --etp --micro-batch N[,N...], --schedule NAME[,...], --sharding "
    "none|optimizer|"
    "gradients|parameters,\n"
    "  --recompute none|selective|full, --precision fp32|tf32|fp16|bf16|fp8, --tensor-overlap N[,N...],\n"
    "  --context-communication all_gather|all_to_all|ring\n"
    "                       keep plans to these values; the answer says what that costs against all plans\n"
    "  --schedule auto      search the compute order of the plans found, for their own stage times, and keep "
    "it where it is faster\n"
    "  --calibration FILE   constants and site effects of one installation (smsim calibrate --help)\n"
    "  --out plan.toml      write the best plan, for smsim and smexec\n"
    "  --certificate FILE   write what was asked, excluded and simulated, for smplan verify\n"
    "  --csv FILE           the plans shown, or the front of --pareto, as a table for other programs\n"
    "  --html FILE          the candidates, why, and what they cost as a page of its own\n"
    "  --json               one JSON document on stdout\n"
    "\n"
    "Exit code 3 when no plan fits, with what is missing and what would make it fit.\n"
    "\n"
    "Example:\n"
    "  smplan --target p4d.24xlarge --nodes 16 --model llama-2-70b --global-batch 512 --out plan.toml\n";

namespace {

std::string objective_of(const std::vector<std::string>& arguments) {
    for (std::size_t i = 0; i < arguments.size(); ++i) {
        if (arguments[i] == "--objective" && i + 1 < arguments.size()) return arguments[i + 1];
        if (arguments[i].starts_with("--objective=")) return arguments[i].substr(arguments[i].find('=') + 1);
    }
    return "speed";
}

// "12,345 of 122,356 plans, best 1.9 min, gap 3.2 %, 4.1 s"
std::string line_of(const api::Progress& at, const std::string& objective) {
    std::string line =
        fmt::format("{} of {} plans", core::with_thousands(at.done), core::with_thousands(at.all));
    if (at.best) {
        const bool is_time = objective == "speed" || objective == "time-to-train";
        line += ", best " + (is_time                 ? core::format(core::Seconds(*at.best))
                             : objective == "memory" ? core::format(core::Bytes(*at.best))
                                                     : fmt::format("{:.4g} USD a step", *at.best));
        if (at.lower_bound && *at.best > 0)
            line += fmt::format(", gap {:.1f} %", 100 * std::max(0.0, 1 - *at.lower_bound / *at.best));
    }
    return line + fmt::format(", {:.1f} s", at.seconds);
}

}  // namespace

int run_plan_command(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
    for (const std::string& argument : arguments)
        if (argument == "--help") {
            out << plan_help;
            return good;
        }
    const bool as_json = wants_json(arguments);
    api::Watch watch;
    watch.width = text_width();
    // The first Ctrl-C ends the search with its best so far, the second one ends the process.
    const TerminationWatch termination;
    watch.is_stopped = [] { return TerminationWatch::wish().has_value(); };
    api::PlanReply reply;
    {
        ProgressLine progress(err, !as_json);
        if (progress.is_shown())
            watch.progress = [&progress, objective = objective_of(arguments)](const api::Progress& at) {
                progress.show(line_of(at, objective));
            };
        try {
            reply = api::plan(arguments, watch);
        } catch (const api::Stopped&) {
            return show_stopped("before a plan was found", "give the search more time", as_json, out, err);
        }
    }
    const int code = show_reply(reply, as_json, out, err);
    if (reply.is_stopped) err << "stopped: the best so far, with the gap that was left\n";
    return code;
}

}  // namespace apps
