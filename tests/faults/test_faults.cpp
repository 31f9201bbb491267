// Ranks as processes that die at random moments: everybody else ends within seconds with a message, nothing
// committed is lost, and what is resumed is what an unbroken run would have been. The seed is printed;
// SMSIM_FAULT_SEED repeats it, SMSIM_KILLS, SMSIM_MPI_KILLS and SMSIM_INTERRUPTIONS change how many.
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <thread>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "core/random.h"
#include "exec/checkpoint/checkpoint.h"
#include "tests/processes/processes.h"

namespace {

using namespace processes;

std::string write_plan(const std::string& folder, const std::string& name, const std::string& degrees,
                       const std::string& model = "hidden = 16") {
    const std::string path = folder + "/" + name;
    std::ofstream(path) << "version = 1\n[model]\nfamily = \"gpt\"\nname = \"tiny\"\n"
                        << model
                        << "\nlayers = 2\nheads = 4\nvocabulary = 30\nmax_positions = 8\nsequence_length = "
                           "8\n[cluster]\ninstance = \"local-cpu\"\n"
                           "[plan]\nprecision = \"fp32\"\nmicro_batch = 1\nmicro_batches = 4\n"
                        << degrees << "\n[training]\nsteps = 40\nlearning_rate = 1e-3\n";
    return path;
}

std::int64_t newest(const std::string& checkpoints) {
    const std::vector<std::int64_t> steps = exec::committed_steps(checkpoints);
    return steps.empty() ? 0 : steps.back();
}

int from_environment(const char* name, int otherwise) {
    const char* const text = std::getenv(name);
    return text ? std::atoi(text) : otherwise;
}

std::uint64_t chosen_seed() {
    const char* const text = std::getenv("SMSIM_FAULT_SEED");
    return text ? std::strtoull(text, nullptr, 10) : std::random_device{}();
}

std::vector<pid_t> children_of(pid_t parent) {
    std::vector<pid_t> children;
    for (const fs::directory_entry& entry : fs::directory_iterator("/proc")) {
        const std::string name = entry.path().filename();
        if (name.find_first_not_of("0123456789") != std::string::npos) continue;
        const std::string status = content_of(entry.path() / "stat");
        const std::size_t end = status.rfind(')');
        if (end == std::string::npos || status.find("(smexec)") == std::string::npos) continue;
        std::istringstream rest(status.substr(end + 1));
        std::string state;
        pid_t of = 0;
        rest >> state >> of;
        if (of == parent && state != "Z") children.push_back(static_cast<pid_t>(std::stol(name)));
    }
    return children;
}

// Ten ways to divide the tiny model over two ranks.
const std::vector<std::string>& plans() {
    static const std::vector<std::string> all = {"pipeline_parallel = 2",
                                                 "pipeline_parallel = 2\nschedule = \"gpipe\"",
                                                 "pipeline_parallel = 2\nschedule = \"zb-h1\"",
                                                 "pipeline_parallel = 2\nschedule = \"chimera\"",
                                                 "data_parallel = 2",
                                                 "data_parallel = 2\nsharding = \"optimizer\"",
                                                 "data_parallel = 2\nsharding = \"gradients\"",
                                                 "data_parallel = 2\nsharding = \"parameters\"",
                                                 "tensor_parallel = 2",
                                                 "tensor_parallel = 2\nsequence_parallel = true"};
    return all;
}

bool has_partial(const std::string& states) {
    std::error_code none;
    for (const fs::directory_entry& entry : fs::directory_iterator(states, none))
        if (entry.path().filename().string().ends_with(".partial")) return true;
    return false;
}

// What a finished training came to: losses, and the sums of its files, whose headers have those of all
// arrays, the optimizer's too.
struct State {
    std::vector<double> losses;
    std::vector<std::uint64_t> checksums;
};
State state_of(const std::string& states) {
    core::Diagnostics diagnostics;
    const auto checkpoint = exec::Checkpoint::open(states, std::nullopt, diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(checkpoint);
    State state{checkpoint->manifest().losses, {}};
    for (const exec::CheckpointFile& file : checkpoint->manifest().files)
        state.checksums.push_back(file.checksum);
    return state;
}

struct Interruptions {
    int all = 0, by_signal = 0, while_writing = 0, left_partial = 0, damaged = 0, trainings = 0;
};

// SIGTERM to one rank or to all, SIGKILL to one or to all: at a random moment, or in two of five cases as
// soon as a checkpoint is being written.
void end_at_random(const std::vector<Process>& ranks, const std::string& states, core::Random& random,
                   Interruptions& count) {
    std::this_thread::sleep_for(std::chrono::microseconds(20000 + random.below(600000)));
    if (random.below(5) < 2) {
        const Clock::time_point deadline = Clock::now() + std::chrono::milliseconds(500);
        while (!has_partial(states) && Clock::now() < deadline) std::this_thread::yield();
        count.while_writing += has_partial(states);
    }
    const std::uint64_t way = random.below(4), victim = random.below(2);
    for (std::uint64_t r = 0; r < 2; ++r)
        if (way % 2 == 1 || r == victim) ::kill(ranks[r].id, way < 2 ? SIGTERM : SIGKILL);
}

}  // namespace

TEST_CASE(
    "ranks killed at random moments: the job ends, nothing committed is lost, and the losses are those of an "
    "unbroken run") {
    const Folder folder;
    const std::string plan = write_plan(folder.path, "plan.toml", "pipeline_parallel = 2");
    const int steps = 40;
    const std::vector<std::string> common = {
        smexec,    plan, "--no-compare", "--json", "--steps",     std::to_string(steps),
        "--every", "5",  "--time-limit", "5",      "--checkpoint"};
    const auto with = [&](const std::string& checkpoints, bool resumes) {
        std::vector<std::string> arguments = common;
        arguments.push_back(checkpoints);
        if (resumes) arguments.push_back("--resume");
        return arguments;
    };
    std::vector<Process> unbroken = start_ranks(with(folder.path + "/unbroken", false), 2, folder.path);
    REQUIRE(wait_for_all(unbroken, std::chrono::seconds(60)));
    REQUIRE(unbroken[0].code() == 0);
    const std::vector<double> expected = losses_of(folder.path + "/unbroken");
    REQUIRE(expected.size() == static_cast<std::size_t>(steps));

    const std::uint64_t seed = chosen_seed();
    const int wanted = from_environment("SMSIM_KILLS", 12);
    WARN("SMSIM_FAULT_SEED=" << seed);
    core::Random random(seed);
    const std::string checkpoints = folder.path + "/broken";
    int kills = 0, completed = 0;
    double slowest = 0;
    while (kills < wanted) {
        const std::int64_t before = newest(checkpoints);
        if (before == steps) {
            CHECK(losses_of(checkpoints) == expected);
            ++completed;
            fs::remove_all(checkpoints);
            continue;
        }
        std::vector<Process> ranks = start_ranks(with(checkpoints, before > 0), 2, folder.path);
        std::this_thread::sleep_for(std::chrono::microseconds(random.below(300000)));
        const std::size_t victim = random.below(2), other = 1 - victim;
        ::kill(ranks[victim].id, SIGKILL);
        const Clock::time_point killed = Clock::now();
        REQUIRE(wait_for_all(ranks, std::chrono::seconds(20)));
        const double seconds = std::chrono::duration<double>(Clock::now() - killed).count();
        CHECK(newest(checkpoints) >= before);
        if (!ranks[victim].was_killed()) continue;  // it had come to its end
        ++kills;
        if (ranks[other].code() == 0) continue;  // only the goodbye was missing
        slowest = std::max(slowest, seconds);
        INFO("kill " << kills << " of rank " << victim << " after " << seconds << " s; rank " << other
                     << " said: " << content_of(ranks[other].out) << content_of(ranks[other].err));
        CHECK(ranks[other].code() == 4);
        // The one that is left tells why, whichever it is.
        const std::string told = content_of(ranks[other].out);
        CHECK((told.find(fmt::format("rank {} is gone", victim)) != std::string::npos ||
               told.find("rank 0 at 127.0.0.1") != std::string::npos ||
               told.find("did not report to rank 0") != std::string::npos ||
               told.find("no connection to rank 0") != std::string::npos ||
               told.find("is gone before the start") != std::string::npos));
    }
    if (newest(checkpoints) < steps) {
        std::vector<Process> last = start_ranks(with(checkpoints, newest(checkpoints) > 0), 2, folder.path);
        REQUIRE(wait_for_all(last, std::chrono::seconds(60)));
        CHECK(last[0].code() == 0);
    }
    CHECK(losses_of(checkpoints) == expected);
    WARN(kills << " kills, " << completed + 1 << " trainings completed, slowest end " << slowest
               << " s after the kill");
}

TEST_CASE(
    "a loop that says --resume until it is good comes to the bits of an unbroken run, whatever ends a run") {
    const Folder folder;
    const std::string states = folder.path + "/states";
    const int steps = 400;
    core::Random random(chosen_seed());
    const int wanted = from_environment("SMSIM_INTERRUPTIONS", 12);
    Interruptions count;
    const std::vector<std::string>& all = plans();
    for (std::size_t p = 0; p < all.size(); ++p) {
        const std::string plan = write_plan(folder.path, "plan.toml", all[p]);
        const auto command = [&](const std::string& place) {
            return std::vector<std::string>{
                smexec, plan,           "--no-compare", "--steps",  std::to_string(steps), "--every",
                "20",   "--time-limit", "10",           "--resume", "--checkpoint",        place};
        };
        std::vector<Process> unbroken = start_ranks(command(folder.path + "/unbroken"), 2, folder.path);
        REQUIRE(wait_for_all(unbroken, std::chrono::seconds(60)));
        INFO(all[p] << ": " << content_of(unbroken[0].err));
        const State expected = state_of(folder.path + "/unbroken");
        REQUIRE(expected.losses.size() == static_cast<std::size_t>(steps));
        fs::remove_all(folder.path + "/unbroken");
        const int until = wanted * static_cast<int>(p + 1) / static_cast<int>(all.size());
        // One training after the other until enough were ended in between.
        while (count.all < until) {
            bool is_good = false;
            while (!is_good) {
                std::vector<Process> ranks = start_ranks(command(states), 2, folder.path);
                if (count.all < until) end_at_random(ranks, states, random, count);
                REQUIRE(wait_for_all(ranks, std::chrono::seconds(60)));
                INFO(content_of(ranks[0].err) << content_of(ranks[1].err));
                is_good = ranks[0].code() == 0 && ranks[1].code() == 0;
                // What a person would have to look at must not come of it.
                for (const Process& rank : ranks)
                    CHECK((WIFSIGNALED(rank.status) || rank.code() == 0 || rank.code() == 4));
                if (is_good) continue;
                ++count.all;
                count.by_signal += ranks[0].code() == 4 && ranks[1].code() == 4;
                count.left_partial += has_partial(states);
                // Now and then the disk is at fault too.
                const std::vector<std::int64_t> there = exec::committed_steps(states);
                if (there.size() < 2 || random.below(4) != 0) continue;
                // A checkpoint that only lacks its name is left as it is.
                const std::string file =
                    exec::checkpoint_folder(states, there.back()) + "/rank-0001.safetensors";
                if (!fs::exists(file)) continue;
                fs::resize_file(file, 100);
                ++count.damaged;
            }
            const State reached = state_of(states);
            CHECK(reached.losses == expected.losses);
            CHECK(reached.checksums == expected.checksums);
            fs::remove_all(states);
            ++count.trainings;
        }
    }
    WARN(count.all << " interruptions over " << all.size() << " plans, " << count.while_writing
                   << " begun while a checkpoint was being written, " << count.left_partial
                   << " that left one half written, " << count.by_signal
                   << " with exit code 4 on both ranks, " << count.damaged << " damaged checkpoints, "
                   << count.trainings << " trainings");
}

TEST_CASE("ranks of mpirun killed at random moments: the job ends and goes on to the same losses") {
    if (!has_mpirun()) {
        WARN("skipped: no mpirun on this machine");
        return;
    }
    const Folder folder;
    const std::string plan = write_plan(folder.path, "plan.toml", "pipeline_parallel = 2");
    const auto with = [&](const std::string& checkpoints, bool resumes) {
        std::vector<std::string> arguments = mpirun(2);
        for (const std::string& argument :
             {smexec, plan, std::string("--no-compare"), std::string("--json"), std::string("--every"),
              std::string("5"), std::string("--checkpoint"), checkpoints})
            arguments.push_back(argument);
        if (resumes) arguments.push_back("--resume");
        return arguments;
    };
    std::vector<Process> unbroken = {
        start(with(folder.path + "/unbroken", false), {}, folder.path + "/mpirun")};
    REQUIRE(wait_for_all(unbroken, std::chrono::seconds(60)));
    INFO(content_of(unbroken[0].err));
    if (content_of(unbroken[0].out).find("this build has no MPI") != std::string::npos) {
        WARN("skipped: this build has no MPI");
        return;
    }
    REQUIRE(unbroken[0].code() == 0);
    const std::vector<double> expected = losses_of(folder.path + "/unbroken");
    const std::uint64_t seed = chosen_seed();
    WARN("SMSIM_FAULT_SEED=" << seed);
    core::Random random(seed);
    const std::string checkpoints = folder.path + "/broken";
    int kills = 0, hung_launches = 0;
    for (int attempt = 0; kills < from_environment("SMSIM_MPI_KILLS", 6) && attempt < 100; ++attempt) {
        const std::int64_t before = newest(checkpoints);
        if (before == 40) {
            CHECK(losses_of(checkpoints) == expected);
            fs::remove_all(checkpoints);
            continue;
        }
        std::vector<Process> job = {start(with(checkpoints, before > 0), {}, folder.path + "/mpirun")};
        std::vector<pid_t> ranks;
        for (const Clock::time_point begin = Clock::now();
             ranks.size() < 2 && Clock::now() - begin < std::chrono::seconds(10);) {
            ranks = children_of(job[0].id);
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        std::this_thread::sleep_for(std::chrono::microseconds(random.below(400000)));
        if (ranks.size() == 2 && ::kill(ranks[random.below(2)], SIGKILL) == 0) ++kills;
        if (!have_all_ended(job, std::chrono::seconds(30))) {
            // Open MPI 4.1's mpirun may wait for ever for a rank that is killed while it is launched: it has
            // not even reaped it. That no rank of ours is left is what we answer for.
            REQUIRE(children_of(job[0].id).empty());
            ++hung_launches;
            wait_for_all(job, std::chrono::milliseconds(0));  // which ends it
        }
        CHECK(newest(checkpoints) >= before);
        if (job[0].code() != 0 && !WIFSIGNALED(job[0].status))
            CHECK_FALSE(content_of(job[0].err).empty());  // mpirun names the signal
    }
    if (newest(checkpoints) < 40) {
        std::vector<Process> last = {
            start(with(checkpoints, newest(checkpoints) > 0), {}, folder.path + "/mpirun")};
        REQUIRE(wait_for_all(last, std::chrono::seconds(60)));
        CHECK(last[0].code() == 0);
    }
    CHECK(losses_of(checkpoints) == expected);
    WARN(kills << " kills under mpirun, " << hung_launches << " of them while it launched, which it hung on");
}

TEST_CASE("ranks that would run different Programs are told apart before the start, by one of them") {
    const Folder folder;
    const std::string plan = write_plan(folder.path, "a.toml", "pipeline_parallel = 2"),
                      other = write_plan(folder.path, "b.toml", "data_parallel = 2"),
                      wider = write_plan(folder.path, "c.toml", "pipeline_parallel = 2", "hidden = 32");
    const auto command = [&](const std::string& path) {
        return std::vector<std::string>{smexec, path, "--no-compare"};
    };
    std::string words;
    std::vector<std::string> second;
    SECTION("another plan") {
        second = command(other);
        words = "program ";
    }
    SECTION("another model") {
        second = command(wider);
        words = "model ";
    }
    SECTION("other steps") {
        second = command(plan);
        second.insert(second.end(), {"--steps", "7"});
        words = "steps 7 instead of 40";
    }
    SECTION("no plan") {
        second = command(folder.path + "/nothing.toml");
        words = "nothing.toml";
    }
    const Clock::time_point begin = Clock::now();
    std::vector<Process> ranks = start_ranks(command(plan), 2, folder.path, {{}, second});
    REQUIRE(wait_for_all(ranks, std::chrono::seconds(30)));
    CHECK(Clock::now() - begin < std::chrono::seconds(15));
    CHECK(ranks[0].code() == 2);
    CHECK(ranks[1].code() == 2);
    const std::string told = content_of(ranks[0].err);
    INFO(told);
    CHECK(told.find("rank 1 on ") != std::string::npos);
    CHECK(told.find(words) != std::string::npos);
    CHECK(content_of(ranks[1].err).empty());
    CHECK(content_of(ranks[1].out).empty());
}

TEST_CASE("a rank that stands still is named with its instruction by those who wait for it") {
    const Folder folder;
    const std::string plan = write_plan(folder.path, "plan.toml", "pipeline_parallel = 2");
    std::vector<Process> ranks = start_ranks(
        {smexec, plan, "--no-compare", "--steps", "1000000", "--time-limit", "4"}, 2, folder.path);
    std::this_thread::sleep_for(std::chrono::milliseconds(3500));  // a busy machine starts processes late
    ::kill(ranks[1].id, SIGSTOP);
    std::vector<Process> first = {ranks[0]};
    CHECK(wait_for_all(first, std::chrono::seconds(20)));
    ::kill(ranks[1].id, SIGCONT);
    std::vector<Process> second = {ranks[1]};
    CHECK(wait_for_all(second, std::chrono::seconds(20)));
    CHECK(first[0].code() == 4);
    CHECK(second[0].code() == 4);
    const std::string told = content_of(first[0].err);
    INFO(told);
    CHECK(told.find("rank 0 waited 4 s for a message of rank 1") != std::string::npos);
    CHECK(told.find("rank 0 is at: ") != std::string::npos);
    CHECK(told.find("rank 1 does not answer") != std::string::npos);
}
