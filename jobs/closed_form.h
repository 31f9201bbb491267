// What theory says of jobs and queues: beside a simulation's answer, and to hold it against.
#pragma once

#include <optional>

#include "core/units.h"

namespace jobs {

// J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, FGCS 22 (2006).
struct PeriodicCheckpoints {
    core::Seconds computing;  // in all
    core::Seconds interval;   // of computing between two checkpoints
    core::Seconds write;      // of one, in which the training waits
    core::Seconds mtbf;       // of the whole cluster, exponential law
    core::Seconds restart;    // may itself be interrupted
    core::Seconds detect;     // before each restart; ours, 0 in the paper
};

// (M + D) e^(R/M) (e^((t+d)/M) - 1) W/t, Daly's equation 13 with D = 0. Every failure costs D, then restarts
// of R of which the last is not interrupted: their mean is D e^(R/M) + M (e^(R/M) - 1).
core::Seconds expected_time(const PeriodicCheckpoints& checkpoints);

// sqrt(2 d M): J. W. Young, A first order approximation to the optimum checkpoint interval, CACM 17 (1974).
core::Seconds young_interval(core::Seconds write, core::Seconds mtbf);
// sqrt(2 d M) (1 + sqrt(d / 2M) / 3 + d / 2M / 9) - d for d < 2M, else M: Daly's equation 37.
core::Seconds daly_interval(core::Seconds write, core::Seconds mtbf);

// Probability that a customer waits, with `servers` servers and `load` = arrival rate times mean service time
// (A. K. Erlang, 1917). Needs load < servers.
double erlang_c(int servers, double load);
// Mean wait of a customer of M/M/c: C(c, a) service / (c - a).
core::Seconds mean_wait(int servers, core::Seconds between_arrivals, core::Seconds service);

}  // namespace jobs
