// A campaign: many jobs on one pool of instances, as hyper-parameter runs are. Jobs queue for nodes; a job
// whose nodes are still warm from another starts sooner, and keeping them warm is paid.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/diagnostics_fwd.h"
#include "core/units.h"
#include "core/value.h"
#include "jobs/job_distribution.h"
#include "jobs/job_model.h"

namespace jobs {

enum class Spread { fixed, exponential };  // of times about their mean
enum class Discipline { fifo, priority };  // neither takes nodes away from a job that runs

// Jobs that are alike.
struct CampaignGroup {
    std::string name;
    std::int64_t count = 1;
    int nodes = 1;
    int priority = 0;                       // greater goes first
    std::optional<core::Seconds> duration;  // left out: the scenario's [job], simulated for each
    Spread duration_spread = Spread::fixed;
    core::Seconds between_arrivals;  // zero: all are there at the beginning
    Spread arrival_spread = Spread::fixed;
};

struct Campaign {
    int nodes = 1;  // of the pool
    Discipline discipline = Discipline::fifo;
    core::Seconds cold_start;  // not paid, as instances are acquired
    core::Seconds warm_start;  // paid
    core::Seconds keep_alive;  // of a node after its job, paid; zero: no warm pool
    std::int64_t settle = 0;   // first jobs to be served that do not count in waits
    std::vector<CampaignGroup> groups;
    SimulationRule simulation{.runs = 100};
    // The nodes' price, and the model of jobs without a given duration.
    std::optional<core::DollarsPerSecond> price;
    std::optional<JobModel> job;
};

// Reads [campaign] with every key diagnosed; `job_nodes`: of the scenario's cluster, what a group takes
// unless it says otherwise.
std::optional<Campaign> read_campaign(const core::Value& table, int job_nodes,
                                      core::Diagnostics& diagnostics);

struct CampaignRun {
    core::Seconds makespan;    // until the last job ends
    core::Seconds busy, idle;  // node seconds that are paid: at work, kept warm
    std::int64_t warm_starts = 0, jobs = 0;
    std::vector<core::Seconds> wait;      // in the queue: mean of each group's jobs
    std::vector<core::Seconds> response;  // from arrival to end, likewise
};

CampaignRun simulate_campaign_run(const Campaign& campaign, std::uint64_t number);

struct CampaignAnswer {
    Quantiles makespan_hours;
    std::optional<Quantiles> usd;
    double idle_share = 0;                   // of what is paid
    double utilisation = 0;                  // node time at work of the pool's, until the last job ends
    double warm_share = 0;                   // of starts
    std::vector<double> wait_s, response_s;  // means by group
};

// The same answer for any number of threads.
CampaignAnswer simulate_campaign(const Campaign& campaign);

core::Value to_value(const Campaign& campaign, const CampaignAnswer& answer);
std::string text_of(const Campaign& campaign, const CampaignAnswer& answer, const std::string& question);

}  // namespace jobs
