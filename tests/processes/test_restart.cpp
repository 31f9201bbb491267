// Trainings that nobody watches: a loop that says --resume until the exit code is 0 comes to the same bits
// as an unbroken run, whatever ends a run in between.
#include <algorithm>

#include "tests/processes/processes.h"

namespace {

using namespace processes;
using Catch::Contains;

struct Training {
    Folder folder;
    std::string states = folder.path + "/states";
    std::string plan = write_plan(folder.path + "/plan.toml", {"gpt", "", "pipeline_parallel = 2", ""});

    std::vector<std::string> command(int steps, const std::vector<std::string>& more = {}) const {
        std::vector<std::string> arguments = {
            smexec, plan, "--no-compare", "--steps", std::to_string(steps), "--checkpoint", states};
        arguments.insert(arguments.end(), more.begin(), more.end());
        return arguments;
    }
    Process in_threads(int steps, std::vector<std::string> more = {}) const {
        more.insert(more.end(), {"--ranks-from", "threads"});
        return run(command(steps, more), folder.path + "/log");
    }
    std::vector<double> unbroken(int steps) const {
        const std::string other = folder.path + "/unbroken";
        REQUIRE(run({smexec, plan, "--no-compare", "--ranks-from", "threads", "--steps",
                     std::to_string(steps), "--checkpoint", other},
                    folder.path + "/log")
                    .code() == 0);
        return losses_of(other);
    }
};

void flip_byte(const std::string& path) {
    const auto middle = static_cast<std::streamoff>(fs::file_size(path) / 2);
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(middle);
    const char byte = static_cast<char>(file.get() ^ 0x10);
    file.seekp(middle);
    file.put(byte);
}

// Waits until the folder has a checkpoint of at least this step: the run is then under way.
bool reaches(const std::string& states, std::int64_t step) {
    const Clock::time_point deadline = Clock::now() + std::chrono::seconds(30);
    while (Clock::now() < deadline) {
        const std::vector<std::int64_t> steps = exec::committed_steps(states);
        if (!steps.empty() && steps.back() >= step) return true;
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
}

}  // namespace

TEST_CASE("--resume of a finished training is good, runs nothing and says so") {
    const Training training;
    REQUIRE(training.in_threads(6).code() == 0);
    const fs::file_time_type written = fs::last_write_time(exec::checkpoint_folder(training.states, 6));
    for (const int steps : {6, 4}) {
        const Process again = training.in_threads(steps, {"--resume"});
        CHECK(again.code() == 0);
        CHECK_THAT(content_of(again.out), Contains("the training is finished") && Contains("holds step 6"));
    }
    const Process document = training.in_threads(6, {"--resume", "--json"});
    CHECK(document.code() == 0);
    CHECK_THAT(content_of(document.out), Contains("\"finished\": true") || Contains("\"finished\":true"));
    CHECK(fs::last_write_time(exec::checkpoint_folder(training.states, 6)) == written);
    std::vector<Process> ranks = start_ranks(training.command(6, {"--resume"}), 2, training.folder.path);
    REQUIRE(wait_for_all(ranks, std::chrono::seconds(30)));
    for (const Process& rank : ranks) CHECK(rank.code() == 0);
    CHECK_THAT(content_of(ranks[0].out), Contains("the training is finished"));
}

TEST_CASE("a loop that always says --resume begins where there is no checkpoint yet") {
    const Training training;
    const Process first = training.in_threads(3, {"--resume"});
    CHECK(first.code() == 0);
    CHECK_THAT(content_of(first.err),
               Contains("there is no checkpoint in") && Contains("begins at the beginning"));
    CHECK(losses_of(training.states) == training.unbroken(3));
}

TEST_CASE("a damaged newest checkpoint falls back to the one before, for all ranks alike") {
    const Training training;
    REQUIRE(training.in_threads(6, {"--every", "2"}).code() == 0);
    const std::string newest = exec::checkpoint_folder(training.states, 6);
    flip_byte(newest + "/rank-0001.safetensors");
    SECTION("as threads") {
        const Process again = training.in_threads(8, {"--resume", "--every", "2"});
        CHECK(again.code() == 0);
        CHECK_THAT(content_of(again.err), Contains("warning") &&
                                              Contains("rank-0001.safetensors is damaged") &&
                                              Contains("training goes on from step 4"));
    }
    SECTION("as processes") {
        std::vector<Process> ranks =
            start_ranks(training.command(8, {"--resume", "--every", "2"}), 2, training.folder.path);
        REQUIRE(wait_for_all(ranks, std::chrono::seconds(30)));
        for (const Process& rank : ranks) CHECK(rank.code() == 0);
        CHECK_THAT(content_of(ranks[0].err), Contains("training goes on from step 4"));
        CHECK(content_of(ranks[1].err).empty());
    }
    SECTION("asked for by its step it is refused") {
        const Process again = training.in_threads(8, {"--resume", "--from-step", "6"});
        CHECK(again.code() == 2);
        CHECK_THAT(content_of(again.err), Contains("--from-step 4"));
        return;
    }
    CHECK(fs::exists(exec::damaged_folder(training.states, 6)));
    CHECK(exec::committed_steps(training.states) == std::vector<std::int64_t>{6, 8});
    CHECK(losses_of(training.states) == training.unbroken(8));
}

TEST_CASE("ranks that find different newest checkpoints whole agree on the newest that all of them do") {
    const Training training;
    REQUIRE(training.in_threads(6, {"--every", "2"}).code() == 0);
    // What rank 1 reads of the folder is damaged; a file system's cache may do so on one host.
    const std::string other = training.folder.path + "/as rank 1 sees it";
    fs::copy(training.states, other, fs::copy_options::recursive);
    const bool is_rank_0_wrong = GENERATE(false, true);
    // A rank reads its own stage's arrays alone.
    const std::string file = is_rank_0_wrong ? "rank-0000.safetensors" : "rank-0001.safetensors";
    flip_byte(exec::checkpoint_folder(other, 6) + "/" + file);
    // Step 4 is the last one wanted, so nothing is written into either folder.
    const std::vector<std::string> own = training.command(4, {"--resume"});
    std::vector<std::string> second = own;
    *std::find(second.begin(), second.end(), training.states) = other;
    std::vector<Process> ranks = is_rank_0_wrong ? start_ranks(own, 2, training.folder.path, {second, own})
                                                 : start_ranks(own, 2, training.folder.path, {own, second});
    REQUIRE(wait_for_all(ranks, std::chrono::seconds(30)));
    INFO(content_of(ranks[0].err));
    for (const Process& rank : ranks) CHECK(rank.code() == 0);
    CHECK_THAT(content_of(ranks[0].out), Contains("holds step 4"));
    CHECK_THAT(content_of(ranks[0].err), Contains(is_rank_0_wrong ? "rank-0000.safetensors is damaged"
                                                                  : "step 6 is not whole for every rank"));
}

TEST_CASE("where no checkpoint is whole nothing is begun anew") {
    const Training training;
    REQUIRE(training.in_threads(4, {"--every", "2"}).code() == 0);
    for (const int step : {2, 4})
        flip_byte(exec::checkpoint_folder(training.states, step) + "/manifest.json");
    const Process again = training.in_threads(6, {"--resume"});
    CHECK(again.code() == 2);
    CHECK_THAT(content_of(again.err), Contains("damaged") && Contains("no older checkpoint is whole"));
    CHECK(exec::committed_steps(training.states) == std::vector<std::int64_t>{2, 4});
}

TEST_CASE("a signal ends training with a checkpoint, and --resume goes on to the same bits") {
    const Training training;
    const int steps = 4000;
    const auto [signal, name] =
        GENERATE(std::pair{SIGTERM, "SIGTERM"}, std::pair{SIGINT, "SIGINT"}, std::pair{SIGUSR1, "SIGUSR1"});
    const std::vector<std::string> command = training.command(steps, {"--resume", "--every", "50"});
    std::vector<Process> processes;
    SECTION("ranks as threads") {
        std::vector<std::string> threads = command;
        threads.insert(threads.end(), {"--ranks-from", "threads"});
        processes.push_back(start(threads, {}, training.folder.path + "/log"));
        REQUIRE(reaches(training.states, 50));
        ::kill(processes[0].id, signal);
    }
    SECTION("all ranks get it") {
        processes = start_ranks(command, 2, training.folder.path);
        REQUIRE(reaches(training.states, 50));
        for (const Process& one : processes) ::kill(one.id, signal);
    }
    SECTION("one rank gets it") {
        processes = start_ranks(command, 2, training.folder.path);
        REQUIRE(reaches(training.states, 50));
        ::kill(processes[1].id, signal);
    }
    SECTION("twice within a second, as launchers forward what the group got") {
        processes = start_ranks(command, 2, training.folder.path);
        REQUIRE(reaches(training.states, 50));
        for (int i = 0; i < 2; ++i)
            for (const Process& one : processes) ::kill(one.id, signal);
    }
    REQUIRE(wait_for_all(processes, std::chrono::seconds(30)));
    INFO(content_of(processes[0].out) << content_of(processes[0].err));
    for (const Process& one : processes) CHECK(one.code() == 4);
    const std::int64_t newest = exec::committed_steps(training.states).back();
    CHECK(newest < steps);
    CHECK_THAT(content_of(processes[0].err),
               Contains(fmt::format("{}: training ended after step {}", name, newest)) &&
                   Contains(exec::checkpoint_folder(training.states, newest)));
    const int until = static_cast<int>(newest) + 3;
    REQUIRE(training.in_threads(until, {"--resume"}).code() == 0);
    CHECK(losses_of(training.states) == training.unbroken(until));
}

TEST_CASE("a signal before the first step leaves a checkpoint of step 0, a second one ends at once") {
    const Training training;
    SECTION("one signal, while the prediction is made") {
        std::vector<Process> process = {start({smexec, training.plan, "--ranks-from", "threads", "--json",
                                               "--steps", "1000000", "--checkpoint", training.states},
                                              {}, training.folder.path + "/log")};
        const Clock::time_point deadline = Clock::now() + std::chrono::seconds(20);
        while (!fs::exists(training.states + "/job.lock") && Clock::now() < deadline)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        ::kill(process[0].id, SIGTERM);
        REQUIRE(wait_for_all(process, std::chrono::seconds(60)));
        CHECK(process[0].code() == 4);
        REQUIRE_FALSE(exec::committed_steps(training.states).empty());
        CHECK_THAT(content_of(process[0].out), Contains("interrupted") && Contains("SIGTERM"));
        REQUIRE(training.in_threads(3, {"--resume"}).code() == 0);
        if (exec::committed_steps(training.states).back() == 3)
            CHECK(losses_of(training.states) == training.unbroken(3));
    }
    SECTION("without a folder the signal does what it always does") {
        std::vector<Process> process = {
            start({smexec, training.plan, "--ranks-from", "threads", "--no-compare", "--steps", "1000000"},
                  {}, training.folder.path + "/log")};
        std::this_thread::sleep_for(std::chrono::seconds(1));
        ::kill(process[0].id, SIGTERM);
        REQUIRE(wait_for_all(process, std::chrono::seconds(5)));
        CHECK(WIFSIGNALED(process[0].status));
    }
    SECTION("two signals to a rank whose peer stands still") {
        std::vector<Process> ranks =
            start_ranks(training.command(1000000, {"--every", "50"}), 2, training.folder.path);
        REQUIRE(reaches(training.states, 50));
        ::kill(ranks[1].id, SIGSTOP);
        ::kill(ranks[0].id, SIGTERM);
        std::this_thread::sleep_for(std::chrono::milliseconds(1500));
        ::kill(ranks[0].id, SIGTERM);
        std::vector<Process> first = {ranks[0]};
        CHECK(wait_for_all(first, std::chrono::seconds(5)));
        CHECK(WIFSIGNALED(first[0].status));
        ::kill(ranks[1].id, SIGKILL);
        std::vector<Process> second = {ranks[1]};
        CHECK(wait_for_all(second, std::chrono::seconds(5)));
    }
}

TEST_CASE("mpirun's ranks end with a checkpoint when mpirun forwards SIGUSR1") {
    if (!has_mpirun()) {
        WARN("skipped: no mpirun on this machine");
        return;
    }
    const Training training;
    std::vector<std::string> arguments = mpirun(2);
    for (const std::string& one : training.command(1000000, {"--every", "50"})) arguments.push_back(one);
    std::vector<Process> job = {start(arguments, {}, training.folder.path + "/mpirun")};
    if (!reaches(training.states, 50)) {
        const bool has_ended = wait_for_all(job, std::chrono::seconds(5));
        if (has_ended && content_of(job[0].err).find("this build has no MPI") != std::string::npos) {
            WARN("skipped: this build has no MPI");
            return;
        }
        FAIL("no checkpoint: " << content_of(job[0].err));
    }
    ::kill(job[0].id, SIGUSR1);
    REQUIRE(wait_for_all(job, std::chrono::seconds(30)));
    CHECK(job[0].code() == 4);
    CHECK_THAT(content_of(job[0].err), Contains("SIGUSR1: training ended after step"));
    const int until = static_cast<int>(exec::committed_steps(training.states).back()) + 2;
    REQUIRE(training.in_threads(until, {"--resume"}).code() == 0);
    CHECK(losses_of(training.states) == training.unbroken(until));
}

TEST_CASE("two jobs in one folder of checkpoints are told apart; a killed job leaves no lock behind") {
    const Training training;
    std::vector<Process> first = {
        start(training.command(1000000, {"--every", "50", "--ranks-from", "threads"}), {},
              training.folder.path + "/first")};
    REQUIRE(reaches(training.states, 50));
    const Process second = training.in_threads(8, {"--resume"});
    CHECK(second.code() == 2);
    CHECK_THAT(content_of(second.err),
               Contains("is in use by another job: process " + std::to_string(first[0].id)) &&
                   Contains("name another folder"));
    ::kill(first[0].id, SIGKILL);
    REQUIRE(wait_for_all(first, std::chrono::seconds(10)));
    const int until = static_cast<int>(exec::committed_steps(training.states).back()) + 2;
    CHECK(training.in_threads(until, {"--resume"}).code() == 0);
}
