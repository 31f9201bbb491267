#include "apps/smsim/smsim_hardware.h"

#include <ostream>

#include <fmt/core.h>

#include "api/hardware.h"
#include "apps/command.h"
#include "apps/lint.h"
#include "apps/options.h"
#include "apps/terminal.h"
#include "cluster/profile/load.h"
#include "core/diagnostics.h"

namespace apps {

namespace {

const char* const help =
    "Usage: smsim hardware [NAME | FILE.toml] [--json]\n"
    "       smsim hardware --lint [NAME | FILE.toml] [--json]\n"
    "\n"
    "Lists the hardware profiles, or shows one with its topology and the source and date of every figure.\n"
    "\n"
    "  --lint   check profiles: every number needs a source and a date (exit 2 when one has none)\n"
    "  --json   one JSON document on stdout\n"
    "\n"
    "Example:\n"
    "  smsim hardware p4d.24xlarge\n";

}  // namespace

int run_hardware_command(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
    const bool as_json = wants_json(arguments);
    core::Diagnostics diagnostics;
    Options options(arguments, {.with_value = {}, .flags = {"--help", "--json", "--lint"}}, diagnostics);
    if (options.has("--help")) {
        out << help;
        return good;
    }
    const std::string name = options.only_positional("NAME", "profile", "see smsim hardware --help", false);
    if (diagnostics.has_errors()) return show(diagnostics, as_json, out, err);
    if (options.has("--lint")) {
        std::vector<std::string> files = cluster::profile_files();
        if (!name.empty()) {
            const std::string path = cluster::profile_path(name);
            files = {path.empty() ? name : path};
        }
        for (const std::string& file : files) cluster::lint_profile(file, diagnostics);
        if (const int code = show(diagnostics, as_json, out, err); code != good) return code;
        show_clean(files, fmt::format("{} profiles: every figure has its source and date", files.size()),
                   as_json, out);
        return good;
    }
    return show_reply(api::hardware(name, text_width()), as_json, out, err);
}

}  // namespace apps
