#include "apps/smsim/smsim_validate.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <ostream>

#include "api/validate.h"
#include "apps/command.h"

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
    api::Watch watch;
    if (isatty(STDERR_FILENO) != 0)
        watch.progress = [&err](const api::Progress& at) {
            if (at.done % 8 == 0 || at.done == at.all)
                err << fmt::format("\r  {} of {} rows{}", at.done, at.all,
                                   at.done == at.all ? "\r\033[K" : "")
                    << std::flush;
        };
    return show_reply(api::validate(arguments, watch), wants_json(arguments), out, err);
}

}  // namespace apps
