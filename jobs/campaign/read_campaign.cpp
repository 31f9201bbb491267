#include "core/diagnostics.h"
#include "core/reader.h"
#include "jobs/campaign/campaign.h"

namespace jobs {

namespace {

constexpr std::int64_t most_jobs = 1'000'000;  // of a campaign

Spread read_spread(core::TableReader& reader, std::string_view key) {
    return reader.optional_choice(key, {"fixed", "exponential"}) == "exponential" ? Spread::exponential
                                                                                  : Spread::fixed;
}

CampaignGroup read_group(core::TableReader& reader, std::size_t number, int job_nodes, int pool_nodes) {
    CampaignGroup group;
    group.name = reader.string("name", "group " + std::to_string(number + 1));
    group.count = reader.required_integer("count", {.least = 1, .greatest = most_jobs});
    group.nodes = int(reader.integer("nodes", job_nodes, {.least = 1, .greatest = 1'000'000}));
    if (group.nodes > pool_nodes)
        reader.error("nodes",
                     "a job of " + std::to_string(group.nodes) + " nodes never fits into a pool of " +
                         std::to_string(pool_nodes),
                     "make campaign.nodes larger, or the job smaller");
    group.priority = int(reader.integer("priority", 0, {.least = -1000, .greatest = 1000}));
    group.duration = reader.optional_seconds("duration");
    group.duration_spread = read_spread(reader, "duration_law");
    if (reader.has("duration_law") && !reader.has("duration"))
        reader.error("duration_law", "duration_law says how a given duration varies",
                     "add duration, or leave it out: the scenario's [job] varies by itself");
    group.between_arrivals = reader.optional_seconds("between_arrivals").value_or(core::Seconds());
    group.arrival_spread = read_spread(reader, "arrival_law");
    if (reader.has("arrival_law") && !reader.has("between_arrivals"))
        reader.error("arrival_law", "arrival_law says how the time between arrivals varies",
                     "add between_arrivals, or leave it out: all are there at the beginning");
    reader.finish();
    return group;
}

}  // namespace

std::optional<Campaign> read_campaign(const core::Value& table, int job_nodes,
                                      core::Diagnostics& diagnostics) {
    const std::size_t errors = diagnostics.error_count();
    core::TableReader reader(table, "campaign", diagnostics);
    Campaign campaign;
    campaign.nodes = int(reader.required_integer("nodes", {.least = 1, .greatest = 1'000'000}));
    campaign.discipline = reader.optional_choice("discipline", {"fifo", "priority"}) == "priority"
                              ? Discipline::priority
                              : Discipline::fifo;
    campaign.cold_start = reader.optional_seconds("cold_start").value_or(core::Seconds());
    campaign.warm_start = reader.optional_seconds("warm_start").value_or(core::Seconds());
    campaign.keep_alive = reader.optional_seconds("keep_alive").value_or(core::Seconds());
    if (reader.has("warm_start") && !reader.has("keep_alive"))
        reader.error("warm_start", "nothing is warm without campaign.keep_alive",
                     "add keep_alive = \"30min\"");
    campaign.settle = reader.integer("settle", 0, {.least = 0, .greatest = most_jobs});
    campaign.simulation.runs = reader.integer("runs", 100, {.least = 1, .greatest = 1'000'000});
    campaign.simulation.seed = std::uint64_t(reader.integer("seed", 1, {.least = 0}));
    campaign.simulation.threads = int(reader.integer("threads", 0, {.least = 0, .greatest = 1024}));
    std::int64_t jobs = 0;
    if (const core::Value* groups = reader.required_array("group"))
        for (const core::Value& item : groups->items()) {
            const std::size_t number = campaign.groups.size();
            core::TableReader group(item, "campaign.group[" + std::to_string(number) + "]", diagnostics);
            campaign.groups.push_back(read_group(group, number, job_nodes, campaign.nodes));
            jobs += campaign.groups.back().count;
        }
    if (reader.has("group") && campaign.groups.empty())
        reader.error("group", "a campaign without jobs", "add [[campaign.group]] with count = 10");
    // As many jobs as a few seconds simulate.
    constexpr std::int64_t most_in_all = 100'000'000;
    if (jobs > most_jobs || jobs * campaign.simulation.runs > most_in_all)
        reader.error("runs",
                     std::to_string(jobs) + " jobs in " + std::to_string(campaign.simulation.runs) +
                         " runs are too many to simulate",
                     "give at most a million jobs, and a hundred million in all runs together");
    if (campaign.settle >= jobs && campaign.settle > 0)
        reader.error("settle", "campaign.settle leaves no job to count", "give fewer than the jobs");
    reader.finish();
    if (diagnostics.error_count() > errors) return std::nullopt;
    return campaign;
}

}  // namespace jobs
