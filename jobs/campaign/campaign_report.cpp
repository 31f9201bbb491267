#include <fmt/core.h>

#include "core/display/text_table.h"
#include "jobs/campaign/campaign.h"
#include "jobs/closed_form.h"

namespace jobs {

namespace {

// What queueing theory says of the wait, where it says anything: one group of one-node jobs with exponential
// arrivals and durations, and no start-up time.
std::optional<core::Seconds> theory(const Campaign& campaign) {
    if (campaign.groups.size() != 1 || campaign.cold_start.value > 0 || campaign.warm_start.value > 0)
        return std::nullopt;
    const CampaignGroup& group = campaign.groups.front();
    if (group.nodes != 1 || !group.duration || group.duration_spread != Spread::exponential ||
        group.arrival_spread != Spread::exponential || group.between_arrivals.value <= 0 ||
        *group.duration / group.between_arrivals >= campaign.nodes)
        return std::nullopt;
    return mean_wait(campaign.nodes, group.between_arrivals, *group.duration);
}

void put(core::Value& value, const std::string& name, const std::optional<Quantiles>& q) {
    value[name + "_mean"] = q ? core::Value(q->mean) : core::Value();
    value[name + "_p10"] = q ? core::Value(q->p10) : core::Value();
    value[name + "_p50"] = q ? core::Value(q->p50) : core::Value();
    value[name + "_p90"] = q ? core::Value(q->p90) : core::Value();
}

}  // namespace

core::Value to_value(const Campaign& campaign, const CampaignAnswer& answer) {
    core::Value value = core::Value::table();
    put(value, "makespan_hours", answer.makespan_hours);
    put(value, "usd", answer.usd);
    value["idle_share"] = answer.idle_share;
    value["utilisation"] = answer.utilisation;
    value["warm_share"] = answer.warm_share;
    const std::optional<core::Seconds> expected = theory(campaign);
    value["queueing_theory_wait_s"] = expected ? core::Value(expected->value) : core::Value();
    value["groups"] = core::Value::array();
    for (std::size_t g = 0; g < campaign.groups.size(); ++g) {
        core::Value group = core::Value::table();
        group["name"] = campaign.groups[g].name;
        group["jobs"] = campaign.groups[g].count;
        group["wait_s"] = answer.wait_s[g];
        group["response_s"] = answer.response_s[g];
        value["groups"].append(std::move(group));
    }
    return value;
}

std::string text_of(const Campaign& campaign, const CampaignAnswer& answer, const std::string& question) {
    std::string text = question.empty() ? "" : question + "\n\n";
    text +=
        fmt::format("Campaign on a pool of {} nodes, {} runs\n", campaign.nodes, campaign.simulation.runs);
    const Quantiles& hours = answer.makespan_hours;
    text += fmt::format("  all jobs done   {} hours (p10 {}, p90 {})\n", core::with_thousands(hours.mean),
                        core::with_thousands(hours.p10), core::with_thousands(hours.p90));
    if (answer.usd)
        text += fmt::format("  USD             {} (p10 {}, p90 {}), {:.1f} % of it for idle warm nodes\n",
                            core::with_thousands(answer.usd->mean), core::with_thousands(answer.usd->p10),
                            core::with_thousands(answer.usd->p90), 100 * answer.idle_share);
    else text += "  USD             unknown: no price\n";
    text += fmt::format("  nodes at work   {:.1f} % of the time; {:.1f} % of the starts were warm\n\n",
                        100 * answer.utilisation, 100 * answer.warm_share);
    text += fmt::format("  {:<24}{:>8}{:>8}{:>14}{:>20}\n", "group", "jobs", "nodes", "mean wait",
                        "arrival to end");
    for (std::size_t g = 0; g < campaign.groups.size(); ++g)
        text +=
            fmt::format("  {:<24}{:>8}{:>8}{:>14}{:>20}\n", campaign.groups[g].name, campaign.groups[g].count,
                        campaign.groups[g].nodes, core::format(core::seconds(answer.wait_s[g])),
                        core::format(core::seconds(answer.response_s[g])));
    if (const auto expected = theory(campaign))
        text += fmt::format("\nQueueing theory's wait (M/M/{}, Erlang C): {}\n", campaign.nodes,
                            core::format(*expected));
    return text;
}

}  // namespace jobs
