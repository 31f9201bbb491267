#include "apps/smsim/smsim_validate.h"

#include <algorithm>
#include <cstddef>
#include <ostream>

#include <fmt/core.h>

#include "api/validate.h"
#include "apps/command.h"
#include "apps/terminal.h"
#include "apps/termination.h"
#include "core/display/text_table.h"

namespace apps {

namespace {

const char* const help =
    "Usage: smsim validate FILE.csv --clusters clusters.csv [--sweeps sweeps.csv] [--worst N] [--explain ID] "
    "[--constant NAME=VALUE]... [--calibration FILE] [--html FILE] [--json]\n"
    "\n"
    "Predicts every row of a file of published measurements and scores the predictions: per group and macro "
    "mean absolute\n"
    "percentage error, median, bias, 95th percentile; peak memory; rank correlation and regret over sweeps.\n"
    "A row that cannot be predicted says why and counts as 100 %.\n"
    "\n"
    "  --clusters FILE  hardware the rows ran on\n"
    "  --sweeps FILE    rows that are alternatives of one another\n"
    "  --worst N        show the N worst rows (default 10)\n"
    "  --explain ID     one row instead of all: where its predicted time goes, and what it rests on\n"
    "  --constant N=V   another value of a constant of the cost model (docs/accuracy.md lists them)\n"
    "  --calibration F  what smsim calibrate learned of an installation (not with --constant)\n"
    "  --html FILE      a page of its own: predicted against measured by group, every row\n"
    "  --json           one JSON document on stdout\n"
    "\n"
    "Example:\n"
    "  smsim validate measurements.csv --clusters clusters.csv --sweeps sweeps.csv\n";

}  // namespace

int run_validate_command(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
    if (std::find(arguments.begin(), arguments.end(), "--help") != arguments.end()) {
        out << help;
        return good;
    }
    const bool as_json = wants_json(arguments);
    // The first Ctrl-C ends it with the rows so far, the second one ends the process.
    const TerminationWatch termination;
    api::Watch watch{.is_stopped = [] { return TerminationWatch::wish().has_value(); }};
    api::Reply reply;
    std::size_t rows = 0;
    {
        ProgressLine progress(err, true);
        watch.progress = [&](const api::Progress& at) {
            rows = at.done;
            progress.show(fmt::format("{} of {} rows", at.done, at.all));
        };
        try {
            reply = api::validate(arguments, watch);
        } catch (const api::Stopped&) {
            return show_stopped("before a row was predicted", "", as_json, out, err);
        }
    }
    const int code = show_reply(reply, as_json, out, err);
    if (reply.is_stopped)
        err << fmt::format("stopped after {} rows: the scores are of these\n", core::with_thousands(rows));
    return code;
}

}  // namespace apps
