#include "apps/smplan/smplan_partition.h"

#include <algorithm>
#include <ostream>

#include <fmt/core.h>

#include "api/partition/partition_command.h"
#include "apps/command.h"
#include "apps/terminal.h"
#include "apps/termination.h"
#include "core/units.h"

namespace apps {

namespace {

const char* const partition_help =
    "Usage: smplan partition --graph FILE [--format FORMAT] [--devices K] [--cpus L] [--memory BYTES] "
    "[--micro-batches N]\n"
    "                        [--bandwidth B...] [--non-contiguous] [--algorithm A] [--time-limit S] [...] "
    "[--json]\n"
    "\n"
    "Places any graph on devices so that the largest stage load is least, and proves it: exact search with a "
    "lower bound.\n"
    "\n"
    "  --graph FILE       the graph; for models also a catalogue name or config.json\n"
    "  --format FORMAT    dnn-partitioning, pipedream, piper, onnx or toml (a costed graph, or a model); "
    "default: by content\n"
    "  --devices K        accelerators (default: the file's); pipedream: workers, of several levels of "
    "bandwidth innermost first, 4x4\n"
    "  --cpus L           CPU devices (dnn-partitioning and costed graphs; default: the file's)\n"
    "  --memory BYTES     of one accelerator, as a number or \"16GiB\" (default: the file's, or the "
    "target's)\n"
    "  --micro-batches N  of a step: stage s of p keeps activations of min(N, p - s) (piper: in a batch; "
    "default: the file's, models 1)\n"
    "  --bandwidth B...   bytes per second, as a number or \"25GiB/s\" (piper, costed graphs; pipedream: one "
    "a level, default 1e9)\n"
    "  --non-contiguous   stages need not be contiguous: local search, with a lower bound\n"
    "  --algorithm A      exact (default), or a baseline: smp_tree (SageMaker SMP v1), chain, multilevel (as "
    "METIS)\n"
    "  --optimize O       speed or memory: SMP's memory_weight 0.2 or 0.8; --memory-weight W sets it (0: "
    "time alone, 1: memory alone)\n"
    "  --time-limit S     stop after S seconds with the best so far and its gap\n"
    "\n"
    "Models (onnx, toml, config.json, catalogue names), priced as smsim prices them:\n"
    "  --target INSTANCE  instance type or measured profile (smexec profile --model); default p3.16xlarge\n"
    "  --granularity G    unit (default: layers, what smsim and smexec run), module (leaves with parameters) "
    "or operator\n"
    "  --tied T           together (tied parameters on one device) or copied (default: gradients summed)\n"
    "  --micro-batch B    samples (default 1); --seq-len S; --allow-unknown (operators without a mapping "
    "cost their bytes)\n"
    "\n"
    "Decisions:\n"
    "  --out FILE               save the decision with the graph's hash: a plan takes a model's as partition "
    "= \"FILE\"\n"
    "  --load-partition FILE    judge a saved or hand-made decision instead of searching; refused when the "
    "graph changed\n"
    "  --default-partition N    stage of what the loaded decision does not name\n"
    "  --devices-per-instance N for the cut report (default: the target's, else all on one)\n"
    "  --dot FILE, --svg FILE   the graph with its assignment\n"
    "  --json                   one JSON document on stdout\n"
    "\n"
    "Exit code 3 when no placement exists, with the reason.\n"
    "\n"
    "Example:\n"
    "  smplan partition --graph resnet50.onnx --target p3.16xlarge --devices 8 --micro-batch 32 "
    "--micro-batches 8 --out partition.toml\n";

// A bar with bound and gap while it is searched.
std::string bar_of(const api::Progress& at) {
    constexpr int width = 20;
    const double bound = at.lower_bound.value_or(0);
    const double share = at.best && *at.best > 0 ? bound / *at.best : 0;
    const int filled = static_cast<int>(std::clamp(share, 0.0, 1.0) * width);
    return fmt::format("[{}{}] bound {} of {}, gap {:.2f} %, {:.1f} s", std::string(filled, '#'),
                       std::string(width - filled, '.'), core::format(core::Seconds(bound)),
                       at.best ? core::format(core::Seconds(*at.best)) : "?", 100 * (1 - share), at.seconds);
}

}  // namespace

int run_partition_command(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
    const bool as_json = wants_json(arguments);
    if (std::find(arguments.begin(), arguments.end(), "--help") != arguments.end()) {
        out << partition_help;
        return good;
    }
    // The first Ctrl-C ends the search with its best so far, the second one ends the process.
    const TerminationWatch termination;
    api::Watch watch{.is_stopped = [] { return TerminationWatch::wish().has_value(); }};
    api::Reply reply;
    {
        ProgressLine progress(err, !as_json);
        if (progress.is_shown())
            watch.progress = [&progress](const api::Progress& at) { progress.show(bar_of(at)); };
        try {
            reply = api::partition(arguments, watch);
        } catch (const api::Stopped&) {
            return show_stopped("before a placement was found", "give the search more time", as_json, out,
                                err);
        }
    }
    const int code = show_reply(reply, as_json, out, err);
    if (reply.is_stopped) err << "stopped: the best so far, with the gap that was left\n";
    return code;
}

}  // namespace apps
