#include "apps/smsim/calibrate/smsim_calibrate_network.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <ostream>

#include "apps/command.h"
#include "apps/options.h"
#include "core/diagnostics.h"
#include "core/document.h"
#include "core/text.h"
#include "validation/measured/nccl_tests.h"

namespace apps {

namespace {

std::string today() {
    const std::chrono::year_month_day date{
        std::chrono::floor<std::chrono::days>(std::chrono::system_clock::now())};
    return fmt::format("{:04}-{:02}-{:02}", int(date.year()), unsigned(date.month()), unsigned(date.day()));
}

void print(const validation::NetworkFit& fit, const validation::NcclTests& tests, std::ostream& out) {
    out << fmt::format("{} on {} ranks of {} nodes ({})\n", schedule::name_of(tests.collective), tests.ranks,
                       tests.nodes, tests.device.empty() ? "device not stated" : tests.device);
    for (const validation::NetworkFit::Row& row : fit.rows)
        out << fmt::format("  {:>9}  measured {:>9}, predicted {:>9} before and {:>9} now\n",
                           core::format(row.bytes), core::format(row.measured), core::format(row.before),
                           core::format(row.after));
    out << fmt::format("\nnetwork_efficiency {:.4g} -> {:.4g}, network_latency {} -> {}\n",
                       fit.efficiency_before, fit.efficiency, core::format(fit.latency_before),
                       core::format(fit.latency));
    out << fmt::format("mean error {:.1f} % before, {:.1f} % now\n", fit.error_before_pct, fit.error_pct);
}

}  // namespace

bool calibrates_network(const std::vector<std::string>& arguments) {
    return std::any_of(arguments.begin(), arguments.end(), [](const std::string& argument) {
        return argument == "--nccl-tests" || argument.starts_with("--nccl-tests=");
    });
}

int run_calibrate_network(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
    const bool as_json = wants_json(arguments);
    core::Diagnostics diagnostics;
    Options given(
        arguments,
        {.with_value = {"--nccl-tests", "--instance", "--collective", "--out"}, .flags = {"--json"}},
        diagnostics);
    const std::string file = given.text("--nccl-tests").value_or("");
    const std::optional<std::string> instance = given.text("--instance"), output = given.text("--out");
    if (!given.positional().empty())
        given.error("--nccl-tests", "measured steps and nccl-tests are two calibrations",
                    "leave out " + given.positional().front());
    if (!instance)
        given.error("--instance", "the test's instance type is not named", "--instance p4d.24xlarge");
    if (output) check_output("--out", *output, diagnostics);
    const std::optional<std::string> text = core::read_file(file, diagnostics);
    if (diagnostics.has_errors() || !text) return show(diagnostics, as_json, out, err);

    const std::optional<validation::NcclTests> tests =
        validation::read_nccl_tests(*text, file, given.text("--collective"), diagnostics);
    if (!tests) return show(diagnostics, as_json, out, err);
    core::Value cluster = core::Value::table();
    cluster["instance"] = *instance;
    const std::optional<validation::NetworkFit> fit = validation::fit_network(*tests, cluster, diagnostics);
    if (const int code = show(diagnostics, as_json, out, err); code != good || !fit)
        return code == good ? internal_failure : code;
    if (as_json) out << core::to_json(validation::to_value(*fit, *tests)) << '\n';
    else print(*fit, *tests, out);
    if (!output) return good;
    return write_outputs({{*output, validation::cluster_table(*fit, *tests, cluster, file, today())}},
                         as_json, err);
}

}  // namespace apps
