// A training on one cluster, bought in one way: on demand, on spot, reserved or as a capacity block; what it
// is expected to cost and to take with all that may interrupt it.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "cluster/profile/supply.h"
#include "core/diagnostics_fwd.h"
#include "core/units.h"
#include "core/value.h"
#include "jobs/job.h"
#include "jobs/job_distribution.h"
#include "jobs/job_model.h"
#include "sim/scenario.h"

namespace jobs {

// What holds for every offer.
struct OfferTerms {
    // The step time, the purchase and the price are each offer's own.
    Job job;
    // Checkpoints as often as Daly's formula says for the offer's cluster, instead of the job's interval.
    bool chooses_interval = true;
    Goals goals;
    core::Value table = core::Value::table();  // [job], for the places of diagnostics
};

// Terms for which nobody gave a [job] table: interruptions and recoveries that were published of others, each
// told by `assumptions_of_published_terms`. Lacks the length of the training.
Job published_terms();
std::vector<std::string> assumptions_of_published_terms();

struct Offer {
    Purchase purchase = Purchase::on_demand;
    JobModel model;
    JobDistribution distribution;
    std::optional<double> kilowatt_hours;  // of all boards at their limit while they are held; mean
    std::vector<std::string> assumptions;  // beside those of the model
};

struct NotOffered {
    std::string reason;  // "p5en.48xlarge has no spot price"
};

// `planned`: the scenario of the plan on its cluster; `step`: of the plan, as predicted. `price`: of a node,
// instead of the profile's. Nothing with diagnostics where the job does not make sense for the plan.
std::optional<std::variant<Offer, NotOffered>> make_offer(const sim::Scenario& planned, core::Seconds step,
                                                          Purchase purchase,
                                                          std::optional<core::DollarsPerSecond> price,
                                                          const cluster::Supply& supply,
                                                          const OfferTerms& terms,
                                                          core::Diagnostics& diagnostics);

// Share of the runs that meet all goals; nothing without goals.
std::optional<double> chance_of(const Offer& offer);
// The share of runs that miss the goals. Without goals: the standard deviation of the time, as a share of its
// mean.
double risk_of(const Offer& offer);

}  // namespace jobs
