// A job: a whole training from the request for instances to their release, as the [job] table of a scenario
// says it. What the table leaves open (step time, bytes of a checkpoint, price) follows from the scenario:
// jobs/job_model.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/diagnostics_fwd.h"
#include "core/units.h"
#include "core/value.h"

namespace jobs {

// Which of an instance's prices is paid; the words are those of hardware profiles.
enum class Purchase { on_demand, spot, reserved, sagemaker, capacity_block };
inline constexpr Purchase all_purchases[] = {Purchase::on_demand, Purchase::spot, Purchase::reserved,
                                             Purchase::sagemaker, Purchase::capacity_block};
std::string_view name_of(Purchase purchase);

// Time until a node fails: from the mean alone, or with a shape.
enum class Law { exponential, weibull };
enum class WaitLaw { fixed, exponential };

// What is moved at the start or the end: a time, or bytes at the rate that all nodes together reach.
struct Transfer {
    std::optional<core::Seconds> time;
    std::optional<core::Bytes> bytes;  // upload: left out, those of a checkpoint
    std::optional<core::BytesPerSecond> bandwidth;
};

struct EvaluationRule {
    std::int64_t every = 0;               // steps between two evaluations
    std::optional<std::int64_t> batches;  // global batches of one evaluation, forward only ...
    std::optional<core::Seconds> time;    // ... or how long it takes
};

struct CheckpointRule {
    std::optional<core::Seconds> interval;  // of computing, to the end of the step in which it is over ...
    std::optional<std::int64_t> every;      // ... or in steps
    std::optional<core::Seconds> write;     // how long one takes, or the rate of the storage for all nodes:
    std::optional<core::BytesPerSecond> bandwidth;
    std::optional<core::Bytes> bytes;  // left out: the plan's parameters and optimizer state
    bool is_asynchronous = false;      // written beside the training ...
    core::Seconds snapshot;            // ... which waits only this long, for a copy in host memory
};

// Nodes fail independently of each other; the training stops when one does.
struct FailureRule {
    core::Seconds node_mtbf;  // mean time between failures of one node
    Law law = Law::exponential;
    double shape = 1;       // of the Weibull law: below 1 young nodes fail more often
    core::Seconds age;      // of all nodes at the start; a replaced node is new
    core::Seconds detect;   // until the failure is noticed; what fails meanwhile changes nothing
    core::Seconds restart;  // from there to the next step: replace, initialise, load; may be interrupted
};

// Instances are reclaimed independently of each other; then all of the job's are given back.
struct SpotRule {
    core::Seconds node_mean_time;  // between two reclaims of one node
    core::Seconds notice;          // ahead of a reclaim
    bool saves_on_notice = true;   // a checkpoint is written where the notice is long enough
    core::Seconds wait;            // until there is capacity again; not paid
    WaitLaw wait_law = WaitLaw::fixed;
    std::optional<core::Seconds> restart;  // left out: image, data and warm-up again
};

// One device or one node's network is slower than the others, and steps vary.
struct StragglerRule {
    std::optional<double> device_speed;   // of one device, as a share of the others'
    std::optional<double> network_speed;  // of one node's network
    double jitter = 0;                    // deviation of one rank's step time, as a share of its mean
};

// A job that goes on with the nodes that are left.
struct ElasticRule {
    int spares = 0;         // nodes held beside those that work
    core::Seconds replace;  // until a failed node is there again
    int least_nodes = 1;    // with fewer the job waits
    // To convert the state and go on with more or fewer nodes; left out: reading a checkpoint.
    std::optional<core::Seconds> reconfigure;
    bool replans = false;  // on fewer nodes the best plan that a search finds, not only fewer replicas
};

struct BillRule {
    std::optional<core::DollarsPerSecond> node;  // instead of the profile's price
    core::Seconds minimum = core::seconds(60);
    core::Seconds increment = core::seconds(1);
    core::DollarsPerSecond storage;  // while the job lasts
};

struct WarmPoolRule {
    core::Seconds keep_alive;            // after the job, paid
    std::optional<core::Seconds> start;  // the job begins with instances of a pool, after this long
};

struct SimulationRule {
    std::int64_t runs = 10000;
    std::uint64_t seed = 1;
    int threads = 0;  // 0: one a core; the answer is the same for any
};

struct Job {
    std::optional<std::int64_t> steps;
    std::optional<double> tokens;
    std::optional<core::Seconds> step_time;  // left out: predicted
    Purchase purchase = Purchase::on_demand;
    core::Seconds acquire;  // from the request until the instances are there; not paid
    std::optional<Transfer> image, data;
    core::Seconds warm_up;
    std::optional<EvaluationRule> evaluation;
    std::optional<CheckpointRule> checkpoint;
    std::optional<Transfer> upload;
    core::Seconds release;
    std::optional<FailureRule> failures;
    std::optional<SpotRule> spot;
    std::optional<StragglerRule> stragglers;
    std::optional<ElasticRule> elastic;
    BillRule bill;
    std::optional<WarmPoolRule> warm_pool;
    SimulationRule simulation;
    std::optional<core::Seconds> finish_by;
    std::optional<core::Dollars> budget;
};

// Reads the [job] table with every key diagnosed; docs/formats.md lists them.
std::optional<Job> read_job(const core::Value& table, core::Diagnostics& diagnostics);

// The mean time between two reclaims of a node when so large a share of instances (above 0, below 1) is
// reclaimed within 30 days, and reclaims are memoryless.
core::Seconds mean_time_of_share(double share);

// "300B", "1.4T", "500M", "2e9": a count of tokens; nothing for any other text.
std::optional<double> parse_token_count(std::string_view text);

}  // namespace jobs
