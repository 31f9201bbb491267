#include <catch2/catch.hpp>
#include <cmath>

#include "jobs/job_distribution.h"
#include "jobs/job_run.h"
#include "tests/jobs/example_job.h"

using core::hours;
using core::seconds;
using jobs::JobDistribution;
using jobs::JobModel;
using jobs_test::DalyJob;
using jobs_test::model_of;

namespace {

// Written from Daly's paper, not from jobs/closed_form.h: M e^(R/M) (e^((t+d)/M) - 1) W/t, in hours.
double daly_hours(const DalyJob& job) {
    const double mtbf = job.node_mtbf_hours * 3600 / job.nodes;
    const double computing = double(job.steps) * job.step, interval = double(job.every) * job.step;
    return mtbf * std::exp(job.restart / mtbf) * (std::exp((interval + job.write) / mtbf) - 1) * computing /
           interval / 3600;
}

}  // namespace

TEST_CASE("the mean time with exponential failures is Daly's") {
    const std::vector<DalyJob> cases = {
        {40'000, 10, 500, 180, 60, 600, 2},     // the cluster fails every 250 h
        {100'000, 10, 2000, 720, 300, 300, 2},  // every 1000 h
        {20'000, 10, 100, 90, 30, 1200, 2},     // every 50 h
        {50'000, 4, 20, 900, 120, 900, 4},      // every 5 h: intervals of an hour
        {10'000, 10, 8, 300, 60, 1800, 8},      // every hour, restarts of half of one: most are interrupted
    };
    for (const DalyJob& job : cases) {
        const JobDistribution d = jobs::simulate_job(model_of(job), {.runs = 4000, .seed = 3});
        INFO(job.node_mtbf_hours << " h a node, mean " << d.hours.mean << " +- " << d.hours_mean_error);
        CHECK(d.hours.mean == Approx(daly_hours(job)).epsilon(0.01));
        // The claimed error of the mean holds: twice as much is 1 in 10,000. The last interval is shorter.
        CHECK(std::abs(d.hours.mean - daly_hours(job)) < 2 * d.hours_mean_error + 0.002 * daly_hours(job));
    }
}

TEST_CASE("a job that nothing interrupts takes the sum of its parts, to the bit") {
    JobModel model = model_of({1234, 0.3, 500, 100, 7.7, 60, 3});
    model.failures.reset();
    model.acquire = seconds(241.3);
    model.image = seconds(17.1);
    model.data = seconds(1003.9);
    model.warm_up = seconds(61.7);
    model.evaluating = jobs::Evaluating{250, seconds(11.1)};
    model.upload = seconds(33.3);
    model.release = seconds(5.7);
    // 12 checkpoints after whole hundreds and one at the end; evaluations after 250, 500, 750, 1000.
    const double training = 1234 * 0.3 + 4 * 11.1 + 13 * 7.7;
    const double sum = 241.3 + (17.1 + 1003.9 + 61.7) + training + 33.3 + 5.7;
    const JobDistribution d = jobs::simulate_job(model, {.runs = 1001, .seed = 9});
    for (double value : {d.hours.mean, d.hours.p10, d.hours.p50, d.hours.p90}) CHECK(value == sum / 3600);
    CHECK(jobs::simulate_run(model, 9, 4).total.value == sum);
    CHECK(model.undisturbed().value == sum);
    CHECK(d.interruptions.mean == 0);
}

TEST_CASE("no rate of failures or reclaims shortens a job") {
    for (double mtbf : {1e7, 1000.0, 100.0, 20.0})
        for (bool is_asynchronous : {false, true})
            for (bool is_spot : {false, true}) {
                JobModel model = model_of({3000, 7, mtbf, 250, 40, 300, 4});
                model.image = seconds(60);
                model.upload = seconds(120);
                model.evaluating = jobs::Evaluating{300, seconds(90)};
                if (is_asynchronous) model.checkpointing = jobs::Checkpointing{250, seconds(3), seconds(40)};
                if (is_spot) {
                    model.spot = jobs::SpotRule();
                    model.spot->node_mean_time = hours(mtbf);
                    model.spot->notice = seconds(120);
                    model.spot->wait = seconds(200);
                    model.spot->restart = seconds(300);
                }
                for (std::uint64_t run = 0; run < 300; ++run) {
                    const jobs::JobRun result = jobs::simulate_run(model, 1, run);
                    if (result.total >= model.undisturbed()) continue;
                    INFO("MTBF " << mtbf << ", run " << run);
                    CHECK(result.total.value >= model.undisturbed().value);
                }
            }
}

TEST_CASE("an elastic job is never sooner done than one without failures, and its chart has no gaps") {
    for (int spares : {0, 1})
        for (int least : {1, 3, 4})
            for (double mtbf : {400.0, 40.0, 15.0}) {
                JobModel model = model_of({3000, 7, mtbf, 250, 40, 300, 4});
                model.checkpointing = jobs::Checkpointing{250, seconds(3), seconds(40)};
                model.evaluating = jobs::Evaluating{300, seconds(90)};
                model.failures->detect = seconds(60);
                model.elastic = jobs::ElasticRule{spares, hours(2), least, seconds(30)};
                // No form with two nodes: three are the fewest but one.
                model.step_of_nodes = {std::nullopt, seconds(28), std::nullopt, seconds(10), seconds(7)};
                for (std::uint64_t number = 0; number < 200; ++number) {
                    std::vector<jobs::Stretch> stretches;
                    const jobs::JobRun run = jobs::simulate_run(model, 1, number, {.stretches = &stretches});
                    INFO(spares << " spares, at least " << least << ", MTBF " << mtbf << ", run " << number);
                    if (run.total < model.undisturbed()) CHECK(run.total.value >= model.undisturbed().value);
                    double clock = 0;
                    for (const jobs::Stretch& stretch : stretches) {
                        // A wait ends at the moment a node is back: begin and length may round.
                        if (std::abs(stretch.begin.value - clock) > 1e-6)
                            CHECK(stretch.begin.value == Approx(clock).margin(1e-6));
                        clock = stretch.end.value;
                    }
                    if (std::abs(clock - run.total.value) > 1e-6 * clock)
                        CHECK(clock == Approx(run.total.value).epsilon(1e-6));
                }
            }
}

TEST_CASE("what a run does fills its time without gaps, and its losses add up") {
    JobModel model = model_of({3000, 7, 30, 250, 40, 300, 4});
    model.acquire = seconds(100);
    model.data = seconds(500);
    model.upload = seconds(70);
    for (std::uint64_t number = 0; number < 50; ++number) {
        std::vector<jobs::Stretch> stretches;
        const jobs::JobRun run = jobs::simulate_run(model, 2, number, {.stretches = &stretches});
        double lost = 0;
        CHECK(stretches.front().begin.value == 0);
        CHECK(stretches.back().end.value == Approx(run.total.value).epsilon(1e-12));
        for (std::size_t i = 0; i < stretches.size(); ++i) {
            if (i > 0) CHECK(stretches[i].begin.value == stretches[i - 1].end.value);
            if (stretches[i].kind == jobs::StretchKind::lost)
                lost += (stretches[i].end - stretches[i].begin).value;
        }
        CHECK(lost == Approx(run.lost.value).margin(1e-6));
        const double extra = (run.lost + run.detecting + run.restarting + run.waiting).value;
        CHECK(run.total.value == Approx(model.undisturbed().value + extra).epsilon(1e-12));
    }
}

TEST_CASE("without checkpoints a failure costs everything since the beginning") {
    // Daly's segment is the whole training: M e^(R/M) (e^(W/M) - 1).
    JobModel model = model_of({1000, 36, 40, 1, 0, 900, 2});
    model.checkpointing.reset();
    const double mtbf = 20, computing = 10, restart = 0.25;  // hours
    const double want = mtbf * std::exp(restart / mtbf) * (std::exp(computing / mtbf) - 1);
    const JobDistribution d = jobs::simulate_job(model, {.runs = 20'000, .seed = 1});
    CHECK(d.hours.mean == Approx(want).epsilon(0.01));
}

TEST_CASE("detection lengthens the mean as its closed form says") {
    const DalyJob job{20'000, 10, 100, 90, 30, 1200, 2};
    JobModel model = model_of(job);
    model.failures->detect = seconds(600);
    // Every failure costs D before its restart: (M + D) instead of M before the rest of Daly's formula.
    const double mtbf = job.node_mtbf_hours * 3600 / job.nodes;
    const double want = daly_hours(job) * (mtbf + 600) / mtbf;
    CHECK(jobs::simulate_job(model, {.runs = 20'000, .seed = 5}).hours.mean == Approx(want).epsilon(0.002));
}

TEST_CASE("Weibull's law with shape 1 is the exponential") {
    const DalyJob job{20'000, 10, 100, 90, 30, 1200, 8};
    JobModel model = model_of(job);
    model.failures->law = jobs::Law::weibull;
    model.failures->shape = 1;
    CHECK(jobs::simulate_job(model, {.runs = 10'000, .seed = 5}).hours.mean ==
          Approx(daly_hours(job)).epsilon(0.005));
}

TEST_CASE("Weibull nodes fail once an MTBF in the long run, and in their first life by its law") {
    // One node, replaced at once, for many lives: failures a time come near 1 / MTBF whatever the shape
    // (renewal theorem); within the first life P(no failure by x) is e^-(x/scale)^k.
    for (double shape : {0.7, 1.5}) {
        JobModel model = model_of({1000, 36, 100, 10, 0, 0, 1});
        model.failures->law = jobs::Law::weibull;
        model.failures->shape = shape;
        int untouched = 0;
        constexpr int runs = 20'000;
        for (std::uint64_t run = 0; run < runs; ++run)
            untouched += jobs::simulate_run(model, 8, run).failures == 0;
        const double scale = 100 / std::tgamma(1 + 1 / shape);
        CHECK(double(untouched) / runs == Approx(std::exp(-std::pow(10 / scale, shape))).margin(0.01));
        JobModel longer = model_of({50'000'000, 36, 100, 10, 0, 0, 1});
        longer.failures = model.failures;
        // Some 5000 lives, each with a deviation of at most 1.5 MTBF: the count's is 2.1 %.
        const jobs::JobRun run = jobs::simulate_run(longer, 4, 0);
        CHECK(double(run.failures) == Approx(run.total.value / 3600 / 100).epsilon(0.06));
    }
}

TEST_CASE("the first failure of many Weibull nodes is the least of as many draws") {
    // P(none of n fails by x) = e^(-n (x/scale)^k); with age a: e^(-n (((a+x)/scale)^k - (a/scale)^k)).
    constexpr double shape = 1.8, mtbf = 1000;
    const double scale = mtbf / std::tgamma(1 + 1 / shape);
    for (double age : {0.0, 500.0}) {
        JobModel model = model_of({1000, 36, mtbf, 10, 0, 0, 30});
        model.failures->law = jobs::Law::weibull;
        model.failures->shape = shape;
        model.failures->age = hours(age);
        int untouched = 0;
        constexpr int runs = 20'000;
        for (std::uint64_t run = 0; run < runs; ++run)
            untouched += jobs::simulate_run(model, 6, run).failures == 0;
        const double hazard = std::pow((age + 10) / scale, shape) - std::pow(age / scale, shape);
        CHECK(double(untouched) / runs == Approx(std::exp(-30 * hazard)).margin(0.012));
    }
}

TEST_CASE("a notice long enough for a checkpoint saves the work since the last one") {
    JobModel model = model_of({2000, 18, 1, 500, 60, 0, 1});
    model.failures.reset();
    model.spot = jobs::SpotRule();
    model.spot->node_mean_time = hours(4);
    model.spot->notice = seconds(120);
    model.spot->restart = seconds(300);
    const auto lost = [&](bool saves) {
        model.spot->saves_on_notice = saves;
        return jobs::simulate_job(model, {.runs = 2000, .seed = 1});
    };
    const JobDistribution saved = lost(true), unsaved = lost(false);
    // A step of 18 s is lost at most, nine on average; without, half of an interval of 9060 s and more.
    CHECK(saved.lost_hours / saved.reclaims_mean == Approx(9.0 / 3600).margin(18.0 / 3600));
    CHECK(unsaved.lost_hours / unsaved.reclaims_mean > 3000.0 / 3600);
    CHECK(saved.hours.mean < unsaved.hours.mean);
    model.checkpoint_write = seconds(121);  // longer than the notice: nothing can be saved
    CHECK(lost(true).hours.mean == lost(false).hours.mean);
}

TEST_CASE("the answer is the same for any number of threads, and another for another seed") {
    const JobModel model = model_of({20'000, 10, 100, 90, 30, 1200, 2});
    const JobDistribution one = jobs::simulate_job(model, {.runs = 1000, .seed = 7, .threads = 1});
    for (int threads : {2, 5}) {
        const JobDistribution many = jobs::simulate_job(model, {.runs = 1000, .seed = 7, .threads = threads});
        CHECK(many.hours.mean == one.hours.mean);
        CHECK(many.hours.p90 == one.hours.p90);
        CHECK(many.goodput.p10 == one.goodput.p10);
        CHECK(many.median_run == one.median_run);
    }
    CHECK(jobs::simulate_job(model, {.runs = 1000, .seed = 8}).hours.mean != one.hours.mean);
}

TEST_CASE("a bill is of whole seconds, at least the minimum, for every node and what it is kept alive") {
    JobModel model = model_of({100, 0.103, 1, 1000, 0, 0, 4});
    model.failures.reset();
    model.acquire = seconds(300);                    // not paid
    model.prices.node = core::dollars_per_hour(36);  // a cent a second
    model.prices.increment = seconds(1);
    const jobs::JobRun run = jobs::simulate_run(model, 1, 0);
    CHECK(run.billed.value == 11);  // of 10.3
    CHECK(run.usd->value == Approx(4 * 0.11));
    model.prices.minimum = seconds(60);
    CHECK(jobs::simulate_run(model, 1, 0).usd->value == Approx(4 * 0.60));
    model.keep_alive = seconds(1800);
    CHECK(jobs::simulate_run(model, 1, 0).usd->value == Approx(4 * 18.60));
    model.prices.node.reset();
    CHECK_FALSE(jobs::simulate_run(model, 1, 0).usd.has_value());
}

TEST_CASE("a job that is interrupted for ever is told to be, by the first of its runs") {
    // An interval of ten MTBFs: e^10 attempts each would still end; of forty they would not.
    const JobModel model = model_of({40'000, 36, 1, 4000, 0, 0, 1});
    const JobDistribution d = jobs::simulate_job(model, {.runs = 10'000, .seed = 1, .threads = 1});
    CHECK(d.unfinished == 1);  // the others, of a million interruptions each, are not begun
    const jobs::JobRun run = jobs::simulate_run(model, 1, 0, {.most_interruptions = 1000});
    CHECK_FALSE(run.is_finished);
    CHECK(run.failures == 1000);
}

TEST_CASE("the work of a run grows with its interruptions, not with its steps") {
    // Llama 3 405B (arXiv 2407.21783, section 3.3.4): 419 unexpected interruptions in 54 days on 2,048 nodes.
    const DalyJob job{466'560, 10, 54.0 * 24 * 2048 / 419, 180, 30, 300, 2048};
    // As many interruptions in a hundred times as many steps, each a hundredth.
    DalyJob finer = job;
    finer.steps *= 100;
    finer.step /= 100;
    finer.every *= 100;
    for (const DalyJob& each : {job, finer}) {
        std::vector<jobs::Stretch> stretches;
        const jobs::JobRun run = jobs::simulate_run(model_of(each), 1, 0, {.stretches = &stretches});
        INFO(run.failures << " failures, " << stretches.size() << " stretches");
        CHECK(run.failures > 300);
        // Training, what of it is lost, detecting, restarting and waiting.
        CHECK(stretches.size() <= 5 * std::size_t(run.failures + 1) + 8);
    }
}
