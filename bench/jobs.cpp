// Runs of a job: the 54 days of Llama 3 405B on 2,048 nodes with their 419 interruptions (arXiv 2407.21783,
// section 3.3.4), as often as a distribution takes them; and the same with steps of a hundredth, which takes
// no longer where the work is of the interruptions.
#include <fmt/core.h>

#include "bench/processor_time.h"
#include "jobs/job_distribution.h"

namespace {

void report(const char* what, std::int64_t finer) {
    jobs::JobModel model;
    model.nodes = 2048;
    model.steps = 466'560 * finer;
    model.step = core::seconds(10.0 / double(finer));
    model.checkpointing = jobs::Checkpointing{180 * finer, core::seconds(30), {}};
    model.checkpoint_write = core::seconds(30);
    model.failures = jobs::FailureRule();
    model.failures->node_mtbf = core::hours(54.0 * 24 * model.nodes / 419);
    model.failures->restart = core::seconds(300);
    constexpr int runs = 10'000;
    const double begin = processor_seconds();
    const jobs::JobDistribution jobs = jobs::simulate_job(model, {.runs = runs, .seed = 1, .threads = 1});
    const double seconds = processor_seconds() - begin;
    fmt::print("  {:<16} {:>7.0f} runs/s  {:>6.2f} M interruptions/s\n", what, runs / seconds,
               runs * jobs.interruptions.mean / seconds / 1e6);
}

}  // namespace

int main() {
    fmt::print("runs of a job, 54 days on 2,048 nodes with 419 interruptions\n");
    report("steps of 10 s", 1);
    report("steps of 0.1 s", 100);
}
