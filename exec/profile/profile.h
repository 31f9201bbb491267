// Measures this machine with the executor's own kernels, as a hardware profile for the simulator.
#pragma once

#include <memory>
#include <vector>

#include "cluster/topology.h"
#include "exec/data.h"
#include "exec/profile/exchange_profile.h"
#include "model/model_fwd.h"
#include "schedule/program/program.h"

namespace exec {

// What a plan's operators take on this machine while as many ranks work as the plan has (no more than cores):
// memory bandwidth and clock are shared.
struct PlanProfile {
    std::vector<cluster::MeasuredOperator> operators;  // one entry a signature
    core::BytesPerSecond update_bandwidth;    // of the optimizer step, counting gradient, state and parameter
                                              // traffic; zero without one
    core::BytesPerSecond link_bandwidth;      // of an array from rank to rank, all ranks exchanging at once
    core::Seconds link_latency;               // of a message of a few bytes
    std::vector<MeasuredExchange> exchanges;  // of the plan's own, between threads; links are for the others
    std::vector<MeasuredExchange> handling;   // what a rank does around a collective itself: keys packed and
                                              // put in order, gradients added up
    // Of all operators' time in a step to what is typical: quantiles of 10 and 90 % over the profiled steps.
    double low_share = 1, high_share = 1;
    core::Seconds probe;                // RunResult::probe while the operators were measured
    core::FlopsPerSecond product_rate;  // of a large matrix product on one core, all that would work at work:
                                        // the peak behind MFU
};
// Every rank performs its list for a second or two without its peers, as many at a time as there are cores:
// operators as they are in the run, with its arrays, its order and its caches, but nothing that one rank
// waits for another.
// `times_exchanges` false: ranks are not threads, and their exchanges are timed by time_exchanges.
PlanProfile profile_plan(const schedule::Program& program, const model::ModelGraph& graph,
                         std::shared_ptr<const DataSource> data, bool times_exchanges = true);

// The instance with these figures in place of its own.
void apply(const PlanProfile& profile, cluster::InstanceType& instance);

// This machine: matrix products over sizes, streaming bandwidth with one and with all cores busy, exchange
// between cores. `base` tells cores and memory (hardware_profiles/local-cpu.toml). Takes some ten seconds.
cluster::InstanceType profile_machine(cluster::InstanceType base, const std::string& date);

}  // namespace exec
