#include "apps/smsim/smsim_campaign.h"

#include <algorithm>
#include <optional>
#include <ostream>

#include "apps/command.h"
#include "apps/options.h"
#include "apps/smsim/job_scenario.h"
#include "apps/smsim/plan_on_nodes.h"
#include "apps/terminal.h"
#include "cluster/topology.h"
#include "core/diagnostics.h"
#include "core/document.h"
#include "jobs/campaign/campaign.h"
#include "jobs/resolve_job.h"

namespace apps {

namespace {

const char* const help =
    "Usage: smsim campaign SCENARIO.toml [--set KEY=VALUE]... [--json]\n"
    "\n"
    "Many jobs on one pool of instances, from the [campaign] table of a scenario: how long they queue, when\n"
    "all are done, what is paid, how much of it for idle instances of a warm pool. docs/jobs.md says what "
    "is\n"
    "modelled.\n"
    "\n"
    "  --set KEY=VALUE      change a key of the scenario: campaign.nodes=16, campaign.keep_alive=1h\n"
    "  --json               one JSON document on stdout\n"
    "\n"
    "Exit codes: 0 good, 1 internal failure, 2 wrong input, 3 the plan does not fit into memory, 4 machine\n"
    "failure.\n"
    "\n"
    "Example:\n"
    "  smsim campaign scenarios/job_campaign_bert.toml --set campaign.keep_alive=0s\n";

bool needs_job(const jobs::Campaign& campaign) {
    return std::any_of(campaign.groups.begin(), campaign.groups.end(),
                       [](const jobs::CampaignGroup& group) { return !group.duration; });
}

// What the campaign takes from the rest of the scenario; false when it is not there or does not fit.
bool complete(jobs::Campaign& campaign, const JobScenario& task, core::Diagnostics& diagnostics,
              std::optional<std::string>& does_not_fit) {
    const core::Value* table = task.document.find("job");
    if (!task.job) {
        campaign.price = cluster::find_price(task.scenario.cluster.instance, "on-demand");
        if (!needs_job(campaign)) return true;
        diagnostics.error(task.document.find("campaign")->location, "campaign.group",
                          "a group has no duration, and the scenario no [job]",
                          "add duration = \"1h\" to the group, or a [job] table");
        return false;
    }
    std::optional<jobs::ResolvedJob> resolved =
        jobs::resolve_job(*task.job, task.scenario, *table, diagnostics,
                          plan_on_nodes(task.scenario, task.job->simulation.threads));
    if (!resolved) return false;
    does_not_fit = resolved->does_not_fit;
    if (does_not_fit) return false;
    campaign.price = resolved->model.prices.node;
    campaign.job = std::move(resolved->model);
    campaign.job->keep_alive = {};  // the campaign's pool keeps nodes alive
    return true;
}

}  // namespace

int run_campaign_command(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
    const bool as_json = wants_json(arguments);
    core::Diagnostics diagnostics;
    Options options(arguments, {{"--set"}, {"--json", "--help"}}, diagnostics);
    if (options.has("--help")) {
        out << help;
        return good;
    }
    const std::string path = options.only_positional(
        "SCENARIO.toml", "scenario", "smsim campaign SCENARIO.toml; smsim campaign --help shows an example");
    std::optional<JobScenario> task;
    if (!path.empty()) task = read_job_scenario(path, options.all("--set"), diagnostics);
    std::optional<jobs::Campaign> campaign;
    if (task) {
        if (const core::Value* table = task->document.find("campaign"))
            campaign = jobs::read_campaign(*table, task->scenario.cluster.nodes, diagnostics);
        else
            diagnostics.error(task->document.location, "campaign", "the scenario has no [campaign] table",
                              "add one with nodes and [[campaign.group]] (docs/jobs.md)");
    }
    std::optional<std::string> does_not_fit;
    const bool is_complete = campaign && complete(*campaign, *task, diagnostics, does_not_fit);
    if (does_not_fit) {
        diagnostics.error({}, "campaign", "the plan does not fit into memory: " + *does_not_fit,
                          "give the groups a duration, or change the plan");
        show(diagnostics, as_json, out, err);
        return no_plan;
    }
    if (!is_complete || diagnostics.has_errors()) return show(diagnostics, as_json, out, err);
    if (!as_json) err << core::format(diagnostics);
    const jobs::CampaignAnswer answer = jobs::simulate_campaign(*campaign);
    if (as_json) out << core::to_json(jobs::to_value(*campaign, answer)) << '\n';
    else out << for_stdout(jobs::text_of(*campaign, answer, task->scenario.question));
    return good;
}

}  // namespace apps
