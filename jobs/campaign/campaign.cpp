#include "jobs/campaign/campaign.h"

#include <algorithm>
#include <cmath>
#include <queue>

#include "core/errors.h"
#include "core/parallel.h"
#include "core/random.h"
#include "jobs/job_run.h"

namespace jobs {

namespace {

double drawn(core::Random& random, core::Seconds mean, Spread spread) {
    switch (spread) {
        case Spread::fixed: return mean.value;
        case Spread::exponential: return -mean.value * std::log(1.0 - random.uniform());
    }
    throw core::InternalError("broken promise: every spread of times can be drawn");
}

struct QueuedJob {
    double arrival = 0;
    double duration = 0;
    std::size_t group = 0;
    std::uint64_t number = 0;  // of all jobs, in the order of groups: breaks ties
};

// Who is served next: `true` when `a` comes after `b`.
struct ComesLater {
    const Campaign* campaign;
    bool operator()(const QueuedJob& a, const QueuedJob& b) const {
        if (campaign->discipline == Discipline::priority) {
            const int of_a = campaign->groups[a.group].priority, of_b = campaign->groups[b.group].priority;
            if (of_a != of_b) return of_a < of_b;
        }
        return a.arrival != b.arrival ? a.arrival > b.arrival : a.number > b.number;
    }
};

struct Ending {
    double at = 0;
    int nodes = 0;
    bool operator>(const Ending& other) const { return at > other.at; }
};

std::vector<QueuedJob> draw_jobs(const Campaign& campaign, std::uint64_t number) {
    std::vector<QueuedJob> jobs;
    const std::uint64_t seed = core::mix64(core::mix64(campaign.simulation.seed) + number);
    for (std::size_t g = 0; g < campaign.groups.size(); ++g) {
        const CampaignGroup& group = campaign.groups[g];
        core::Random arrivals(core::mix64(seed + 2 * g)), durations(core::mix64(seed + 2 * g + 1));
        double arrival = 0;
        for (std::int64_t i = 0; i < group.count; ++i) {
            if (i > 0 || group.arrival_spread == Spread::exponential)
                arrival += drawn(arrivals, group.between_arrivals, group.arrival_spread);
            QueuedJob job{arrival, 0, g, jobs.size()};
            if (group.duration) {
                job.duration = drawn(durations, *group.duration, group.duration_spread);
            } else {
                const JobRun run = simulate_run(*campaign.job, seed, job.number);
                job.duration = (run.total - campaign.job->acquire).value;
            }
            jobs.push_back(job);
        }
    }
    std::stable_sort(jobs.begin(), jobs.end(),
                     [](const QueuedJob& a, const QueuedJob& b) { return a.arrival < b.arrival; });
    return jobs;
}

class Pool {
public:
    explicit Pool(const Campaign& campaign)
        : campaign_(campaign), free_(campaign.nodes), waiting_(ComesLater{&campaign}) {
        result_.wait.resize(campaign.groups.size());
        result_.response.resize(campaign.groups.size());
        counted_.resize(campaign.groups.size());
    }

    CampaignRun run(const std::vector<QueuedJob>& jobs) {
        std::size_t next = 0;
        while (next < jobs.size() || !endings_.empty()) {
            const bool ends_first =
                !endings_.empty() && (next == jobs.size() || endings_.top().at <= jobs[next].arrival);
            if (ends_first) {
                const Ending ending = endings_.top();
                endings_.pop();
                give_back(ending);
            } else {
                waiting_.push(jobs[next]);
                now_ = jobs[next++].arrival;
            }
            // What ends or comes at the same moment does so before anyone is served.
            if (!endings_.empty() && endings_.top().at == now_) continue;
            if (next < jobs.size() && jobs[next].arrival == now_) continue;
            while (!waiting_.empty() && campaign_.groups[waiting_.top().group].nodes <= free_) serve();
        }
        for (double since : warm_) result_.idle += core::seconds(kept_warm(since, now_ + keep_alive()));
        for (std::size_t g = 0; g < counted_.size(); ++g)
            if (counted_[g] > 0) {
                result_.wait[g] /= double(counted_[g]);
                result_.response[g] /= double(counted_[g]);
            }
        return std::move(result_);
    }

private:
    double keep_alive() const { return campaign_.keep_alive.value; }
    double kept_warm(double since, double until) const { return std::min(keep_alive(), until - since); }

    void give_back(const Ending& ending) {
        now_ = ending.at;
        free_ += ending.nodes;
        result_.makespan = std::max(result_.makespan, core::seconds(now_));
        if (keep_alive() > 0) warm_.insert(warm_.end(), std::size_t(ending.nodes), now_);
    }

    // The nodes used last are taken first, so that others get cold and cost no more.
    bool take(int nodes) {
        free_ -= nodes;
        bool are_warm = keep_alive() > 0;
        for (int i = 0; i < nodes; ++i) {
            if (warm_.empty()) return false;
            const double since = warm_.back();
            warm_.pop_back();
            result_.idle += core::seconds(kept_warm(since, now_));
            are_warm = are_warm && now_ - since <= keep_alive();
        }
        return are_warm;
    }

    void serve() {
        const QueuedJob job = waiting_.top();
        waiting_.pop();
        const int nodes = campaign_.groups[job.group].nodes;
        const bool is_warm = take(nodes);
        const double paid = (is_warm ? campaign_.warm_start.value : 0) + job.duration;
        const double end = now_ + paid + (is_warm ? 0 : campaign_.cold_start.value);
        result_.busy += core::seconds(paid * nodes);
        result_.warm_starts += is_warm;
        endings_.push({end, nodes});
        if (result_.jobs++ < campaign_.settle) return;
        ++counted_[job.group];
        result_.wait[job.group] += core::seconds(now_ - job.arrival);
        result_.response[job.group] += core::seconds(end - job.arrival);
    }

    const Campaign& campaign_;
    int free_;
    double now_ = 0;
    std::priority_queue<QueuedJob, std::vector<QueuedJob>, ComesLater> waiting_;
    std::priority_queue<Ending, std::vector<Ending>, std::greater<>> endings_;
    std::vector<double> warm_;  // free nodes: when their job ended, ascending
    std::vector<std::int64_t> counted_;
    CampaignRun result_;
};

}  // namespace

CampaignRun simulate_campaign_run(const Campaign& campaign, std::uint64_t number) {
    for (const CampaignGroup& group : campaign.groups) {
        core::require(group.nodes <= campaign.nodes, "every job of a campaign fits into its pool");
        core::require(group.duration || campaign.job, "every job of a campaign has a duration");
    }
    return Pool(campaign).run(draw_jobs(campaign, number));
}

CampaignAnswer simulate_campaign(const Campaign& campaign) {
    std::vector<CampaignRun> runs(std::size_t(campaign.simulation.runs));
    core::for_each_in_parallel(runs.size(), campaign.simulation.threads,
                               [&](std::size_t i, int) { runs[i] = simulate_campaign_run(campaign, i); });
    CampaignAnswer answer;
    answer.wait_s.resize(campaign.groups.size());
    answer.response_s.resize(campaign.groups.size());
    std::vector<double> hours, usd;
    core::Seconds busy, idle, pool;
    double warm = 0, started = 0;
    for (const CampaignRun& run : runs) {
        hours.push_back(run.makespan / core::hours(1));
        if (campaign.price) usd.push_back((*campaign.price * (run.busy + run.idle)).value);
        busy += run.busy;
        idle += run.idle;
        pool += run.makespan * campaign.nodes;
        warm += double(run.warm_starts);
        started += double(run.jobs);
        for (std::size_t g = 0; g < campaign.groups.size(); ++g) {
            answer.wait_s[g] += run.wait[g].value / double(runs.size());
            answer.response_s[g] += run.response[g].value / double(runs.size());
        }
    }
    answer.makespan_hours = quantiles_of(std::move(hours));
    if (campaign.price) answer.usd = quantiles_of(std::move(usd));
    if ((busy + idle).value > 0) answer.idle_share = idle / (busy + idle);
    if (pool.value > 0) answer.utilisation = busy / pool;
    answer.warm_share = warm / started;
    return answer;
}

}  // namespace jobs
