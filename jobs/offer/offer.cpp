#include "jobs/offer/offer.h"

#include <algorithm>
#include <cmath>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "core/errors.h"
#include "jobs/closed_form.h"
#include "jobs/resolve_job.h"

namespace jobs {

namespace {

constexpr core::Seconds day = core::hours(24);

// Llama 3 405B, arXiv 2407.21783 (July 2024), section 3.3.4: 419 unexpected interruptions in 54 days on 2,048
// nodes of 8 H100.
constexpr core::Seconds published_node_mtbf = day * (54.0 * 2048 / 419);
// MegaScale, arXiv 2402.15627 (February 2024), section 6.3: detection and diagnosis in less than 10 minutes
// on average, caught up with the progress before the crash within 15 minutes.
constexpr core::Seconds published_detection = core::seconds(600);
constexpr core::Seconds published_restart = core::seconds(900);
// Amazon FSx for Lustre User Guide, Performance (2024): persistent SSD file systems of 1.2 TiB and more, at
// most 1,000 MB/s for each TiB.
constexpr core::BytesPerSecond smallest_lustre = core::BytesPerSecond(1.2e9);
// No public figure was found: the same as in the shipped scenarios.
constexpr core::Seconds assumed_wait = core::seconds(1800);
// AWS's worst class, "above 20 %", has no upper limit.
constexpr double assumed_open_class = 0.3;

// Amazon EC2 User Guide, Capacity Blocks for ML (2025): bought for 1 to 14 days, or for multiples of 7 days
// up to 182; at most 64 instances a block and 256 in all; paid ahead.
constexpr core::Seconds longest_in_days = day * 14.0, week = day * 7.0, longest_block = day * 182.0;
constexpr int most_block_nodes = 256;

class Offering {
public:
    Offering(const sim::Scenario& planned, core::Seconds step, Purchase purchase, const OfferTerms& terms,
             const cluster::Supply& supply, core::Diagnostics& diagnostics)
        : planned_(planned), terms_(terms), supply_(supply), diagnostics_(diagnostics), job_(terms.job) {
        offer_.purchase = job_.purchase = purchase;
        job_.step_time = step;
    }

    std::optional<std::variant<Offer, NotOffered>> make(std::optional<core::DollarsPerSecond> price) {
        const std::string& name = planned_.cluster.instance.name;
        if (price) job_.bill.node = price;
        if (!job_.bill.node && !cluster::find_price(planned_.cluster.instance, name_of(job_.purchase)))
            return NotOffered{fmt::format("{} has no {} price", name, name_of(job_.purchase))};
        if (job_.purchase != Purchase::spot) job_.spot.reset();
        else if (!job_.spot && !take_reclaims())
            return NotOffered{fmt::format("nothing is known of how often {} is reclaimed", name)};
        if (job_.spot && (job_.elastic || job_.warm_pool))
            return NotOffered{"elastic jobs and warm pools on spot are not modelled"};
        if (terms_.chooses_interval && job_.checkpoint) {
            job_.checkpoint->interval.reset();
            job_.checkpoint->every = std::int64_t{1} << 60;  // after the last step, for now
        }
        std::optional<ResolvedJob> resolved = resolve_job(job_, planned_, terms_.table, diagnostics_);
        if (!resolved) return std::nullopt;
        offer_.model = std::move(resolved->model);
        if (terms_.chooses_interval) choose_interval();
        if (job_.purchase == Purchase::capacity_block)
            if (std::optional<NotOffered> no = bill_whole_days()) return *no;
        offer_.distribution = simulate_job(offer_.model, job_.simulation, terms_.goals);
        if (offer_.distribution.unfinished > 0)
            return NotOffered{fmt::format("on {} x {} the job does not end: it is interrupted too often",
                                          planned_.cluster.nodes, name)};
        count_energy();
        return std::move(offer_);
    }

private:
    bool take_reclaims() {
        if (!supply_.reclaims) return false;
        const cluster::ReclaimClass& reclaims = *supply_.reclaims;
        const double share = reclaims.most ? (reclaims.least + *reclaims.most) / 2 : assumed_open_class;
        job_.spot.emplace();
        job_.spot->node_mean_time = mean_time_of_share(share);
        job_.spot->notice = core::seconds(120);  // as [job.spot] without the key
        job_.spot->wait = assumed_wait;
        job_.spot->wait_law = WaitLaw::exponential;
        if (job_.failures) job_.spot->restart = job_.failures->restart;
        offer_.assumptions.push_back(fmt::format(
            "{:g} % of spot {} are reclaimed within a month, {} of the class ({}, {}), and capacity is back "
            "after {} on average",
            100 * share, planned_.cluster.instance.name,
            reclaims.most ? "the middle" : "50 % above the limit", reclaims.source, reclaims.date,
            core::format(assumed_wait)));
        return true;
    }

    void choose_interval() {
        if (!offer_.model.checkpointing) return;
        Checkpointing& checkpointing = *offer_.model.checkpointing;
        const std::optional<core::Seconds> mtbf = offer_.model.cluster_mtbf();
        if (!mtbf) return;
        const core::Seconds step = offer_.model.step;
        const core::Seconds interval = daly_interval(checkpointing.blocking, *mtbf);
        // One is written beside the training before the next one begins.
        const core::Seconds least = std::max(interval, checkpointing.beside);
        checkpointing.every =
            std::clamp<std::int64_t>(std::int64_t(std::ceil(least / step)), 1, offer_.model.steps);
    }

    std::optional<NotOffered> bill_whole_days() {
        const core::Seconds least = offer_.model.undisturbed();
        if (offer_.model.nodes > most_block_nodes)
            return NotOffered{fmt::format("capacity blocks have at most {} instances", most_block_nodes)};
        if (least > longest_block) return NotOffered{"capacity blocks last 182 days at most"};
        Prices& prices = offer_.model.prices;
        prices.minimum = std::max(prices.minimum, day);
        prices.increment = least > longest_in_days ? week : day;
        offer_.assumptions.push_back(
            "a capacity block is paid by whole days, beyond 14 days by whole weeks, and is extended where "
            "the "
            "job is late (Amazon EC2 User Guide, Capacity Blocks for ML, 2025)");
        return std::nullopt;
    }

    void count_energy() {
        if (!supply_.board_watts) return;
        constexpr double watts_per_kilowatt = 1000;
        const cluster::Cluster& cluster = planned_.cluster;
        const JobDistribution& distribution = offer_.distribution;
        const double held =
            distribution.hours.mean - distribution.waiting_hours - offer_.model.acquire / core::hours(1);
        offer_.kilowatt_hours = held * offer_.model.held_nodes() * cluster.instance.devices *
                                *supply_.board_watts / watts_per_kilowatt;
    }

    const sim::Scenario& planned_;
    const OfferTerms& terms_;
    const cluster::Supply& supply_;
    core::Diagnostics& diagnostics_;
    Job job_;
    Offer offer_;
};

}  // namespace

Job published_terms() {
    Job job;
    job.failures.emplace();
    job.failures->node_mtbf = published_node_mtbf;
    job.failures->detect = published_detection;
    job.failures->restart = published_restart;
    job.checkpoint.emplace();
    job.checkpoint->bandwidth = smallest_lustre;
    job.simulation.runs = 2000;
    return job;
}

std::vector<std::string> assumptions_of_published_terms() {
    return {
        fmt::format("a node fails once in {}, as Llama 3's did (arXiv 2407.21783: 419 interruptions in 54 "
                    "days on 2,048 nodes)",
                    core::format(published_node_mtbf)),
        fmt::format("{} until a failure is detected, {} to restart (arXiv 2402.15627, section 6.3: at most "
                    "so long)",
                    core::format(published_detection), core::format(published_restart)),
        fmt::format("checkpoints are written at {}, the most of the smallest FSx for Lustre file system "
                    "(Amazon's User Guide, 2024), as often as Daly's formula says",
                    core::format(smallest_lustre)),
        "data, image and start-up take no time (--job FILE says otherwise, and all of the above)"};
}

std::optional<std::variant<Offer, NotOffered>> make_offer(const sim::Scenario& planned, core::Seconds step,
                                                          Purchase purchase,
                                                          std::optional<core::DollarsPerSecond> price,
                                                          const cluster::Supply& supply,
                                                          const OfferTerms& terms,
                                                          core::Diagnostics& diagnostics) {
    return Offering(planned, step, purchase, terms, supply, diagnostics).make(price);
}

std::optional<double> chance_of(const Offer& offer) {
    const Chances& chances = offer.distribution.chances;
    if (chances.both) return chances.both;
    return chances.in_time ? chances.in_time : chances.within_budget;
}

double risk_of(const Offer& offer) {
    if (const std::optional<double> chance = chance_of(offer)) return 1 - *chance;
    const JobDistribution& distribution = offer.distribution;
    constexpr double both_sides_95_pct = 1.96;  // of hours_mean_error, in standard errors
    const double deviation =
        distribution.hours_mean_error / both_sides_95_pct * std::sqrt(double(distribution.runs));
    return deviation / distribution.hours.mean;
}

}  // namespace jobs
