#include "apps/smsim/smsim_frameworks.h"

#include <algorithm>
#include <filesystem>
#include <ostream>

#include <fmt/core.h>

#include "apps/command.h"
#include "apps/lint.h"
#include "apps/options.h"
#include "apps/terminal.h"
#include "core/diagnostics.h"
#include "core/document.h"
#include "sim/cost/framework/describe_framework.h"
#include "sim/cost/framework/framework_catalogue.h"

namespace apps {

namespace {

const char* const help =
    "Usage: smsim frameworks [NAME] [--json]\n"
    "       smsim frameworks --lint [FILE.toml] [--json]\n"
    "\n"
    "Lists the framework profiles that plans may name, or shows one: what the training code does, with the\n"
    "source and date of every fact and the profile that states it.\n"
    "\n"
    "  --lint   check the shipped files, or FILE.toml beside them: every fact needs a source and a date, or "
    "a\n"
    "           constant of the cost model (exit 2 when one has none)\n"
    "  --json   one JSON document on stdout\n"
    "\n"
    "Example:\n"
    "  smsim frameworks pytorch-fsdp\n";

// A file of one's own stands in for the shipped one of its name, as in a folder that SMSIM_FRAMEWORK_PROFILES
// names.
std::vector<std::string> linted_files(const std::string& own) {
    std::vector<std::string> files = sim::framework_files();
    if (own.empty()) return files;
    const auto name_of = [](const std::string& path) { return std::filesystem::path(path).filename(); };
    std::erase_if(files, [&](const std::string& file) { return name_of(file) == name_of(own); });
    files.push_back(own);
    return files;
}

int lint(const std::string& own, bool as_json, std::ostream& out, std::ostream& err) {
    core::Diagnostics diagnostics;
    const std::vector<std::string> files = linted_files(own);
    const sim::FrameworkCatalogue catalogue = sim::FrameworkCatalogue::read(files, diagnostics);
    if (const int code = show(diagnostics, as_json, out, err); code != good) return code;
    show_clean(files,
               fmt::format("{} profiles in {} files: every fact has its source and date",
                           catalogue.profiles().size(), files.size()),
               as_json, out);
    return good;
}

}  // namespace

int run_frameworks_command(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
    const bool as_json = wants_json(arguments);
    core::Diagnostics diagnostics;
    Options options(arguments, {.with_value = {}, .flags = {"--help", "--json", "--lint"}}, diagnostics);
    if (options.has("--help")) {
        out << help;
        return good;
    }
    const std::string name = options.only_positional("NAME", "profile", "see smsim frameworks --help", false);
    if (diagnostics.has_errors()) return show(diagnostics, as_json, out, err);
    if (options.has("--lint")) return lint(name, as_json, out, err);
    const sim::FrameworkCatalogue& catalogue = sim::framework_catalogue();
    if (!name.empty()) {
        sim::check_framework(name, diagnostics, {}, "NAME");
        if (const int code = show(diagnostics, as_json, out, err); code != good) return code;
        const sim::FrameworkProfile& profile = sim::framework_profile(name);
        if (as_json) out << core::to_json(sim::describe_to_value(profile)) << '\n';
        else out << for_stdout(sim::describe(profile));
        return good;
    }
    if (as_json) out << core::to_json(sim::list_to_value(catalogue)) << '\n';
    else out << for_stdout(sim::describe_list(catalogue));
    return good;
}

}  // namespace apps
