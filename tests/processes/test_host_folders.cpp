// Ranks whose hosts share no folder: each writes its files into its own, and a training goes on as long as
// every file lies in one of them, to the bits of an unbroken run.
#include <algorithm>
#include <map>
#include <random>

#include "core/random.h"
#include "tests/processes/processes.h"

namespace {

using namespace processes;
using Catch::Contains;

// What a training came to: the losses, and each file's sum, which covers those of all its arrays.
struct State {
    std::vector<double> losses;
    std::map<std::string, std::uint64_t> files;
    friend bool operator==(const State&, const State&) = default;
};

State state_of(const exec::CheckpointManifest& manifest) {
    State state{manifest.losses, {}};
    for (const exec::CheckpointFile& file : manifest.files) state.files[file.name] = file.checksum;
    return state;
}

struct Training {
    Folder folder;
    int ranks = 2;
    std::vector<int> hosts = {0, 1};  // by rank
    std::string plan;

    explicit Training(const std::string& degrees, std::vector<int> of_rank = {0, 1})
        : ranks(static_cast<int>(of_rank.size())),
          hosts(std::move(of_rank)),
          plan(write_plan(folder.path + "/plan.toml",
                          {"gpt", "dropout = 0.1", degrees, "optimizer = \"adamw\""})) {}

    std::string at(int host) const { return fmt::format("{}/host{}", folder.path, host); }
    std::vector<std::vector<std::string>> commands(int steps, const std::vector<std::string>& more) const {
        std::vector<std::vector<std::string>> all;
        for (int rank = 0; rank < ranks; ++rank) {
            all.push_back({smexec, plan, "--no-compare", "--steps", std::to_string(steps), "--checkpoint",
                           at(hosts[rank]), "--checkpoint-local", "--time-limit", "20"});
            all.back().insert(all.back().end(), more.begin(), more.end());
        }
        return all;
    }
    std::vector<Process> start(int steps, const std::vector<std::string>& more = {}) const {
        return start_ranks({}, ranks, folder.path, commands(steps, more));
    }
    int train(int steps, const std::vector<std::string>& more = {}) const {
        std::vector<Process> all = start(steps, more);
        REQUIRE(wait_for_all(all, std::chrono::seconds(60)));
        for (const Process& rank : all) CHECK(rank.code() == all[0].code());
        return all[0].code();
    }
    std::string told() const { return content_of(folder.path + "/rank0.err"); }
    exec::CheckpointManifest manifest(int host, std::int64_t step) const {
        std::string failure;
        const auto read = exec::read_manifest(exec::checkpoint_folder(at(host), step), failure);
        INFO(failure);
        REQUIRE(read);
        return *read;
    }
    State state(std::int64_t step) const { return state_of(manifest(0, step)); }
    // Of threads, whose ranks share one folder.
    State unbroken(int steps) const {
        const std::string other = folder.path + "/unbroken";
        fs::remove_all(other);
        REQUIRE(run({smexec, plan, "--no-compare", "--ranks-from", "threads", "--steps",
                     std::to_string(steps), "--checkpoint", other},
                    folder.path + "/log")
                    .code() == 0);
        std::string failure;
        return state_of(*exec::read_manifest(exec::checkpoint_folder(other, steps), failure));
    }
};

bool holds(const std::string& host, std::int64_t step, const std::string& file) {
    return fs::exists(exec::checkpoint_folder(host, step) + "/" + file);
}

void flip_byte(const std::string& path) {
    const auto middle = static_cast<std::streamoff>(fs::file_size(path) * 3 / 4);
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(middle);
    const char byte = static_cast<char>(file.get() ^ 0x10);
    file.seekp(middle);
    file.put(byte);
}

}  // namespace

TEST_CASE("each host has its ranks' files and a manifest of all; what goes on comes to the same bits") {
    const std::string degrees =
        GENERATE("pipeline_parallel = 2\ndata_parallel = 2\nsharding = \"optimizer\"", "data_parallel = 4",
                 "data_parallel = 2\ntensor_parallel = 2\nsharding = \"parameters\"",
                 "pipeline_parallel = 4\nschedule = \"1f1b\"", "tensor_parallel = 2\npipeline_parallel = 2");
    const Training training(degrees, {0, 0, 1, 1});
    INFO(degrees);
    CHECK(training.train(4) == 0);
    for (const int host : {0, 1})
        for (int rank = 0; rank < 4; ++rank)
            CHECK(holds(training.at(host), 4, fmt::format("rank-{:04}.safetensors", rank)) ==
                  (training.hosts[rank] == host));
    CHECK(state_of(training.manifest(0, 4)) == state_of(training.manifest(1, 4)));
    CHECK_THAT(training.manifest(1, 4).places[0], Contains(training.at(0)));
    CHECK_THAT(training.manifest(0, 4).places[3], Contains(training.at(1)));
    CHECK(training.train(9, {"--resume", "--every", "2"}) == 0);
    CHECK(training.state(9) == training.unbroken(9));
}

TEST_CASE("folders of hosts that come back in another order, or with another plan, are found again") {
    const std::string first = "data_parallel = 2\nsharding = \"optimizer\"";
    Training training(first);
    CHECK(training.train(4) == 0);
    training.hosts = {1, 0};
    CHECK(training.train(6, {"--resume"}) == 0);
    CHECK(training.state(6) == training.unbroken(6));
    // As a pipeline each rank needs what the other host has.
    write_plan(training.plan,
               {"gpt", "dropout = 0.1", "pipeline_parallel = 2\nmicro_batches = 8", "optimizer = \"adamw\""});
    CHECK(training.train(8, {"--resume"}) == 0);
    CHECK_THAT(content_of(training.folder.path + "/rank0.out") + training.told(),
               Contains("was written by pipeline 1 x data 2"));
    const std::vector<double> unbroken = training.unbroken(8).losses, losses = training.state(8).losses;
    REQUIRE(losses.size() == 8);
    for (std::size_t i = 0; i < 8; ++i) CHECK(losses[i] == Approx(unbroken[i]).epsilon(1e-5));
}

TEST_CASE("the loss of a host's disk is told with the files that are gone and where they were") {
    const Training training("pipeline_parallel = 2");
    CHECK(training.train(4) == 0);
    fs::rename(training.at(1), training.folder.path + "/elsewhere");
    CHECK(training.train(6, {"--resume"}) == 2);
    CHECK_THAT(training.told(),
               Contains("rank-0001.safetensors of step 4 was written to") && Contains(training.at(1)) &&
                   Contains("in no folder of this job's hosts") && Contains("--checkpoint-copies 2"));
    CHECK(holds(training.at(0), 4, "rank-0000.safetensors"));  // nothing is taken away
    // Copied into another host's folder they are found.
    fs::copy(training.folder.path + "/elsewhere/step-00000004/rank-0001.safetensors",
             training.at(0) + "/step-00000004");
    CHECK(training.train(6, {"--resume"}) == 0);
    CHECK(training.state(6) == training.unbroken(6));
}

TEST_CASE("with two copies of every file a training survives the loss of any one host") {
    const std::string degrees = GENERATE("data_parallel = 3\nsharding = \"optimizer\"\nmicro_batches = 2",
                                         "data_parallel = 3\nsharding = \"parameters\"\nmicro_batches = 2");
    const int lost = GENERATE(0, 1, 2);
    const Training training(degrees, {0, 1, 2});
    const std::vector<std::string> copies = {"--checkpoint-copies", "2", "--every", "2"};
    CHECK(training.train(5, copies) == 0);
    CHECK(holds(training.at(1), 5, "rank-0000.safetensors"));
    CHECK(holds(training.at(0), 5, "rank-0002.safetensors"));
    CHECK_FALSE(holds(training.at(2), 5, "rank-0000.safetensors"));
    fs::remove_all(training.at(lost));
    std::vector<std::string> again = copies;
    again.emplace_back("--resume");
    CHECK(training.train(8, again) == 0);
    CHECK(training.state(8) == training.unbroken(8));
}

TEST_CASE("a run that was killed while hosts named a checkpoint goes on from it") {
    const Training training("data_parallel = 2\nsharding = \"optimizer\"");
    CHECK(training.train(6, {"--every", "3"}) == 0);
    const int unnamed = GENERATE(0, 1);
    const std::string place = exec::checkpoint_folder(training.at(unnamed), 6);
    fs::remove(place + "/manifest.json");
    fs::rename(place, place + ".partial");
    CHECK(training.train(8, {"--resume", "--every", "1"}) == 0);
    CHECK(training.told().find("--resume") == std::string::npos);  // no warning: nothing was lost
    CHECK(training.state(8) == training.unbroken(8));
}

TEST_CASE("a damaged file of one host is an older checkpoint for all, or its copy elsewhere") {
    const Training training("pipeline_parallel = 2");
    const bool has_copies = GENERATE(false, true);
    const std::vector<std::string> more = {"--every", "2", "--checkpoint-copies", has_copies ? "2" : "1"};
    CHECK(training.train(6, more) == 0);
    flip_byte(exec::checkpoint_folder(training.at(1), 6) + "/rank-0001.safetensors");
    std::vector<std::string> again = more;
    again.emplace_back("--resume");
    CHECK(training.train(9, again) == 0);
    if (!has_copies)
        CHECK_THAT(training.told(),
                   Contains("rank-0001.safetensors is damaged") && Contains("training goes on from step 4"));
    CHECK(training.state(9) == training.unbroken(9));
}

TEST_CASE("copies that went with a host are made again when training goes on, or has ended") {
    const int lost = GENERATE(0, 1, 2);
    const bool goes_on = GENERATE(false, true);
    const Training training("data_parallel = 3\nsharding = \"optimizer\"\nmicro_batches = 2", {0, 1, 2});
    const std::vector<std::string> more = {"--checkpoint-copies", "2", "--resume"};
    CHECK(training.train(4, more) == 0);
    const State expected = training.state(4);
    fs::remove_all(training.at(lost));
    // Ends before its first checkpoint, or has nothing to do.
    std::vector<std::string> again = more;
    if (goes_on) again.insert(again.end(), {"--metrics", training.folder.path + "/none/here.jsonl"});
    CHECK(training.train(goes_on ? 5 : 4, again) == (goes_on ? 2 : 0));
    CHECK_THAT(training.told(),
               Contains("lay in fewer folders than --checkpoint-copies 2: copied") || Contains("here.jsonl"));
    CHECK(state_of(training.manifest(lost, 4)) == expected);
    // Whichever other host is lost next, nothing is.
    fs::remove_all(training.at((lost + 1) % 3));
    CHECK(training.train(8, more) == 0);
    CHECK(training.state(8) == training.unbroken(8));
}

TEST_CASE("a checkpoint of another training is not taken for a place of copies") {
    const Training training("pipeline_parallel = 2");
    CHECK(training.train(4, {"--checkpoint-copies", "2"}) == 0);
    Training other("pipeline_parallel = 2");
    other.plan = write_plan(other.folder.path + "/plan.toml",
                            {"gpt", "dropout = 0.2", "pipeline_parallel = 2", "optimizer = \"adamw\""});
    CHECK(other.train(4, {"--checkpoint-copies", "2"}) == 0);
    fs::remove_all(training.at(0));
    fs::copy(other.at(0), training.at(0), fs::copy_options::recursive);
    const auto manifests = [&] {
        return std::pair(content_of(training.at(0) + "/step-00000004/manifest.json"),
                         content_of(training.at(1) + "/step-00000004/manifest.json"));
    };
    const auto before = manifests();
    CHECK(before.first != before.second);
    (void)training.train(4, {"--checkpoint-copies", "2", "--resume"});  // with either of them
    CHECK(manifests() == before);
}

TEST_CASE("local folders that do not fit the job are refused") {
    const Training training("data_parallel = 2", {0, 0});
    CHECK(training.train(2, {"--checkpoint-copies", "2"}) == 2);
    CHECK_THAT(training.told(), Contains("but the hosts of this job have 1"));
    // One folder for both: they find out, and write it once.
    CHECK(training.train(2) == 0);
    CHECK(training.train(4, {"--resume"}) == 0);
    CHECK(training.state(4) == training.unbroken(4));
    CHECK(training.train(3) == 2);  // begins anew beside later steps
    CHECK_THAT(training.told(), Contains("has checkpoints of step 2, 4 already"));
    CHECK(training.train(6, {"--resume", "--from-step", "3"}) == 2);
    CHECK_THAT(training.told(), Contains("there is no checkpoint"));
    CHECK(training.train(5, {"--resume", "--from-step", "2", "--set-aside"}) == 0);
    CHECK(fs::exists(training.at(0) + "/set-aside-1/step-00000004"));
    CHECK(training.state(5) == training.unbroken(5));
    // A rank that was started otherwise is told, not waited for.
    std::vector<std::vector<std::string>> mixed = training.commands(6, {"--resume"});
    std::erase(mixed[1], "--checkpoint-local");
    std::vector<Process> ranks = start_ranks({}, 2, training.folder.path, mixed);
    REQUIRE(wait_for_all(ranks, std::chrono::seconds(15)));
    for (const Process& rank : ranks) CHECK(rank.code() == 2);
    CHECK_THAT(training.told(), Contains("some ranks were started with --checkpoint-local, some without"));
    const Process threads = run({smexec, training.plan, "--ranks-from", "threads", "--checkpoint",
                                 training.at(5), "--checkpoint-local"},
                                training.folder.path + "/log");
    CHECK(threads.code() == 2);
    CHECK_THAT(content_of(threads.err), Contains("threads share one folder"));
}

TEST_CASE("ranks with folders of their own, killed at any moment, come to the bits of an unbroken run") {
    const char* const chosen = std::getenv("SMSIM_FAULT_SEED");
    const std::uint64_t seed = chosen ? std::strtoull(chosen, nullptr, 10) : std::random_device{}();
    const char* const asked = std::getenv("SMSIM_INTERRUPTIONS");
    const int interruptions = asked ? std::atoi(asked) : 12;
    INFO("SMSIM_FAULT_SEED=" << seed);
    core::Random random(seed);
    const std::vector<std::string> plans = {
        "pipeline_parallel = 2", "data_parallel = 2\nsharding = \"optimizer\"",
        "data_parallel = 2\nsharding = \"parameters\"", "tensor_parallel = 2\nsequence_parallel = true"};
    constexpr int steps = 120;
    int done = 0, lost = 0, partial = 0;
    for (std::size_t p = 0; done < interruptions; ++p) {
        const Training training(plans[p % plans.size()]);
        const State expected = training.unbroken(steps);
        const std::vector<std::string> more = {"--resume", "--every", "2", "--checkpoint-copies", "2"};
        int code = -1;
        for (int tries = 0; code != 0; ++tries) {
            REQUIRE(tries < 200);
            std::vector<Process> ranks = training.start(steps, more);
            if (tries < 6 && !have_all_ended(ranks, std::chrono::milliseconds(40 + random.below(500)))) {
                const std::uint64_t way = random.below(4), victim = random.below(2);
                for (std::uint64_t r = 0; r < 2; ++r)
                    if (way % 2 == 1 || r == victim) ::kill(ranks[r].id, way < 2 ? SIGTERM : SIGKILL);
                ++done;
            }
            REQUIRE(wait_for_all(ranks, std::chrono::seconds(150)));  // busy disks are slow to synchronise
            code = std::max(ranks[0].code(), ranks[1].code());
            if (ranks[0].was_killed() || ranks[1].was_killed()) code = -1;
            for (const Process& rank : ranks) {
                INFO(content_of(rank.err));
                CHECK(rank.code() != 2);  // what would stop a loop
                CHECK(rank.code() != 1);
            }
            for (const int host : {0, 1})
                for (const std::int64_t step : exec::begun_steps(training.at(host)))
                    partial += fs::exists(exec::partial_folder(training.at(host), step));
            // A host is replaced: its disk is empty.
            if (code != 0 && random.below(3) == 0 && !exec::committed_steps(training.at(0)).empty()) {
                fs::remove_all(training.at(static_cast<int>(random.below(2))));
                ++lost;
            }
        }
        CHECK(training.state(steps) == expected);
    }
    WARN(fmt::format("{} interruptions, {} hosts lost, {} checkpoints left half written", done, lost,
                     partial));
}
