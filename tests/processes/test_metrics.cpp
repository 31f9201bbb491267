// What a training writes while it goes on.
#include <cmath>

#include "core/document.h"
#include "tests/processes/processes.h"

namespace {

using namespace processes;
using Catch::Contains;

std::vector<core::Value> lines_of(const std::string& path) {
    std::vector<core::Value> lines;
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
        core::Diagnostics diagnostics;
        const auto value = core::parse_json(line, path, diagnostics);
        INFO(line);
        REQUIRE(value);
        lines.push_back(*value);
    }
    return lines;
}

std::vector<std::int64_t> steps_of(const std::string& path, const std::string& event) {
    std::vector<std::int64_t> steps;
    for (const core::Value& line : lines_of(path))
        if (line.find("event")->string() == event) steps.push_back(line.find("step")->integer());
    return steps;
}

std::vector<std::int64_t> upto(std::int64_t last, std::int64_t every = 1) {
    std::vector<std::int64_t> steps;
    for (std::int64_t step = every; step <= last; step += every) steps.push_back(step);
    return steps;
}

struct Training {
    Folder folder;
    std::string metrics = folder.path + "/metrics.jsonl", states = folder.path + "/states";
    std::string plan =
        write_plan(folder.path + "/plan.toml", {"gpt", "", "pipeline_parallel = 2",
                                                "gradient_clipping = 1.0\neval_data_format = \"synthetic\"\n"
                                                "eval_every = 4\neval_batches = 2"});
    std::vector<std::string> command(int steps, const std::vector<std::string>& more = {}) const {
        std::vector<std::string> arguments = {
            smexec, plan, "--no-compare", "--steps", std::to_string(steps), "--metrics", metrics};
        arguments.insert(arguments.end(), more.begin(), more.end());
        return arguments;
    }
    Process in_threads(int steps, std::vector<std::string> more = {}) const {
        more.insert(more.end(), {"--ranks-from", "threads"});
        return run(command(steps, more), folder.path + "/log");
    }
};

}  // namespace

TEST_CASE("metrics have a line for every step and evaluation, whichever rank knows the loss") {
    const Training training;
    std::vector<double> losses;
    SECTION("threads") {
        REQUIRE(training.in_threads(6, {"--checkpoint", training.states, "--every", "2"}).code() == 0);
    }
    SECTION("processes, of which rank 1 has the last stage") {
        std::vector<Process> ranks = start_ranks(
            training.command(6, {"--checkpoint", training.states, "--every", "2"}), 2, training.folder.path);
        REQUIRE(wait_for_all(ranks, std::chrono::seconds(60)));
        REQUIRE(ranks[0].code() == 0);
    }
    CHECK(steps_of(training.metrics, "start") == std::vector<std::int64_t>{0});
    CHECK(steps_of(training.metrics, "step") == upto(6));
    CHECK(steps_of(training.metrics, "evaluation") == std::vector<std::int64_t>{4, 6});
    CHECK(steps_of(training.metrics, "checkpoint") == upto(6, 2));
    CHECK(steps_of(training.metrics, "end") == std::vector<std::int64_t>{6});
    for (const core::Value& line : lines_of(training.metrics)) {
        if (line.find("event")->string() != "step") continue;
        losses.push_back(line.find("loss")->number());
        CHECK(line.find("learning_rate")->number() == 1e-3);
        CHECK(line.find("gradient_norm")->number() > 0);
        // 4 micro-batches of 2 samples of 8 tokens.
        CHECK(line.find("tokens_per_s")->number() ==
              Approx(4 * 2 * 8 / line.find("step_s")->number()).epsilon(1e-9));
    }
    CHECK(losses == losses_of(training.states));
}

TEST_CASE("metrics of a training that was killed and resumed have every step once") {
    const Training training;
    const std::vector<std::string> checkpoints = {"--checkpoint", training.states, "--every", "3",
                                                  "--resume"};
    REQUIRE(training.in_threads(6, checkpoints).code() == 0);
    {  // as a kill leaves it: steps after the newest checkpoint, the last line cut off
        std::ofstream file(training.metrics, std::ios::app);
        file << R"({"event":"step","step":7,"loss":1.5,"time":"2026-11-23T00:00:00Z"})" << '\n'
             << R"({"event":"evaluation","step":8,"loss":1.5,"time":"2026-11-23T00:00:00Z"})" << '\n'
             << R"({"event":"step","st)";
    }
    REQUIRE(training.in_threads(10, checkpoints).code() == 0);
    CHECK(steps_of(training.metrics, "step") == upto(10));
    CHECK(steps_of(training.metrics, "evaluation") == std::vector<std::int64_t>{4, 6, 8, 10});
    CHECK(steps_of(training.metrics, "resume") == std::vector<std::int64_t>{6});
    CHECK_THAT(content_of(training.metrics), !Contains("\"loss\":1.5"));

    const std::string before = content_of(training.metrics);
    const Process anew = training.in_threads(10, {"--checkpoint", training.folder.path + "/other"});
    CHECK(anew.code() == 2);
    CHECK_THAT(content_of(anew.err), Contains("has the metrics of a training, and this one begins anew"));
    CHECK(content_of(training.metrics) == before);
    std::ofstream(training.metrics) << "step,loss\n1,2.5\n";
    const Process strange = training.in_threads(12, checkpoints);
    CHECK(strange.code() == 2);
    CHECK_THAT(content_of(strange.err), Contains("metrics.jsonl:1") && Contains("is no file of metrics"));
}
