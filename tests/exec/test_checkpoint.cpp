#include <sys/resource.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "core/diagnostics.h"
#include "exec/checkpoint/checkpoint.h"
#include "exec/checkpoint/checksum.h"
#include "tests/exec/tiny.h"

namespace {

namespace fs = std::filesystem;

struct Folder {
    Folder() {
        char name[] = "/tmp/smexec-checkpoint-XXXXXX";
        path = ::mkdtemp(name);
    }
    ~Folder() { fs::remove_all(path); }
    std::string path;
};

exec::RunResult train(const schedule::Plan& plan, const model::ModelGraph& graph, exec::RunOptions options) {
    options.time_limit = core::seconds(20);
    options.keeps_state = true;
    return exec::run(tiny::program_of(plan, graph), graph, tiny::data_of(graph), options);
}

// `plan` trains `before` steps, `after` goes on from its checkpoint to step `total`.
exec::RunResult interrupted(const schedule::Plan& plan, const schedule::Plan& after,
                            const model::ModelGraph& graph, int before, int total) {
    const Folder folder;
    exec::RunOptions first;
    first.steps = before;
    first.checkpoints.directory = folder.path;
    train(plan, graph, first);
    core::Diagnostics diagnostics;
    exec::RunOptions second;
    second.resumed = exec::Checkpoint::open(folder.path, std::nullopt, diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(second.resumed);
    CHECK(second.resumed->manifest().step == before);
    CHECK(second.resumed->manifest().next_sample == before * plan.global_batch());
    CHECK(second.resumed->manifest().losses.size() == static_cast<std::size_t>(before));
    second.first_step = before;
    second.sample_offset = second.resumed->manifest().next_sample - before * after.global_batch();
    second.steps = total - before;
    return train(after, graph, second);
}

schedule::Plan adam_plan() {
    schedule::Plan plan = tiny::plan();
    plan.optimizer.kind = schedule::OptimizerKind::adamw;
    plan.optimizer.learning_rate = 1e-2;
    plan.optimizer.weight_decay = 0.1;
    return plan;
}

void flip_byte(const std::string& path, std::int64_t at) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(at);
    const char byte = static_cast<char>(file.get() ^ 0x10);
    file.seekp(at);
    file.put(byte);
}

std::string failure_of(const std::string& directory, std::optional<std::int64_t> step = std::nullopt) {
    core::Diagnostics diagnostics;
    CHECK(exec::Checkpoint::open(directory, step, diagnostics) == nullptr);
    return core::format(diagnostics);
}

}  // namespace

TEST_CASE("the manifest of a long training is read back: half a million losses are more than 8 MiB") {
    const Folder folder;
    exec::CheckpointManifest manifest;
    manifest.step = 500000;
    manifest.model = "tiny";
    manifest.data = "synthetic";
    for (int step = 0; step < 500000; ++step) manifest.losses.push_back(1.0 / (3 + step));
    const std::string text = exec::text_of(manifest);
    CHECK(text.size() > (8u << 20));
    exec::write_manifest(folder.path, text);
    std::string failure;
    const auto read = exec::read_manifest(folder.path, failure);
    INFO(failure);
    REQUIRE(read);
    CHECK(read->losses == manifest.losses);
    CHECK(read->step == 500000);
}

TEST_CASE("checksums are those of XXH64") {
    const auto of = [](const std::string& text) { return exec::checksum(std::as_bytes(std::span(text))); };
    CHECK(of("") == 0xEF46DB3751D8E999);  // xxHash's own self-test values: empty input and "abc" with seed 0
    CHECK(of("abc") == 0x44BC2CF5AD770999);
    const std::string all = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    for (std::size_t length = 1; length <= all.size(); ++length)
        CHECK(of(all.substr(0, length)) != of(all.substr(0, length - 1)));
}

TEST_CASE("training that was interrupted goes on to the same bits") {
    schedule::Plan plan = adam_plan();
    const model::ModelGraph graph = tiny::gpt(4, "dropout = 0.1");
    SECTION("pipeline 2 x data 2, sharded in every way") {
        plan.layout.pipeline = plan.layout.data = 2;
        plan.sharding = GENERATE(schedule::Sharding::none, schedule::Sharding::optimizer,
                                 schedule::Sharding::gradients, schedule::Sharding::parameters);
    }
    SECTION("tensor 2 with sequence parallelism") {
        plan.layout.tensor = 2;
        plan.sequence_parallel = true;
    }
    SECTION("hybrid sharding: 2 of 4 replicas") {
        plan.layout.data = 4;
        plan.shard_degree = 2;
        plan.sharding = schedule::Sharding::gradients;
    }
    SECTION("momentum") {
        plan.optimizer.kind = schedule::OptimizerKind::sgd;
        plan.optimizer.momentum = 0.9;
    }
    SECTION("the optimizer on hosts") {
        plan.layout.data = 2;
        plan.sharding = GENERATE(schedule::Sharding::none, schedule::Sharding::optimizer);
        plan.optimizer_offload = schedule::Offload::host;
    }
    SECTION("all state on hosts") {
        plan.layout.data = 2;
        plan.sharding = schedule::Sharding::parameters;
        plan.optimizer_offload = plan.parameter_offload = schedule::Offload::host;
    }
    SECTION("LAMB") {
        plan.optimizer.kind = schedule::OptimizerKind::lamb;
        plan.layout.pipeline = plan.layout.data = 2;
        plan.sharding = GENERATE(schedule::Sharding::none, schedule::Sharding::optimizer);
    }
    SECTION("PipeDream, whose stages hold versions of their weights") {
        plan.layout.pipeline = 2;
        plan.schedule = "pipedream";
    }
    SECTION("2BW") {
        plan.layout.pipeline = 2;
        plan.schedule = "pipedream-2bw";
        plan.schedule_parameters = schedule::GroupParameters{2};
    }
    SECTION("both directions at once") {
        plan.schedule = GENERATE(as<std::string>{}, "chimera", "dualpipe");
        plan.layout.pipeline = 2;
    }
    SECTION("bf16 with fp32 master parameters") {
        plan.precision = {core::DataType::bf16, core::DataType::bf16, core::DataType::fp32, true};
        plan.layout.pipeline = plan.layout.data = 2;
        plan.sharding = GENERATE(schedule::Sharding::none, schedule::Sharding::parameters);
    }
    exec::RunOptions whole;
    whole.steps = 5;
    const exec::RunResult unbroken = train(plan, graph, whole),
                          resumed = interrupted(plan, plan, graph, 2, 5);
    CHECK(resumed.losses == std::vector<double>(unbroken.losses.begin() + 2, unbroken.losses.end()));
    CHECK(resumed.parameters == unbroken.parameters);
}

TEST_CASE("a checkpoint of one plan is gone on with by another, up to rounding") {
    schedule::Plan plan = adam_plan();
    plan.optimizer.kind = schedule::OptimizerKind::sgd;  // Adam magnifies rounding of small gradients
    plan.optimizer.learning_rate = 0.1;
    plan.optimizer.momentum = 0.9;
    plan.layout.data = 2;
    plan.sharding = GENERATE(schedule::Sharding::none, schedule::Sharding::parameters);
    schedule::Plan other = plan;
    SECTION("another data-parallel degree") {
        other.layout.data = 4;
        other.micro_batches = 2;
    }
    SECTION("another partition") {
        other.layout.data = 1;
        other.layout.pipeline = other.layout.tensor = 2;
        other.sharding = schedule::Sharding::none;
        other.micro_batches = 8;
    }
    SECTION("LAMB: moments go where the parameters go, and norms are of whole ones") {
        other.layout.data = 1;
        other.layout.pipeline = other.layout.tensor = 2;
        other.sharding = schedule::Sharding::none;
        other.micro_batches = 8;
        plan.optimizer = {.kind = schedule::OptimizerKind::lamb,
                          .learning_rate = 0.02,
                          .epsilon = 1e-3,
                          .weight_decay = 0.1};
        other.optimizer = plan.optimizer;
    }
    SECTION("another batch: no sample is seen twice or left out") { other.micro_batches = 1; }
    const model::ModelGraph graph = tiny::gpt();
    const exec::RunResult resumed = interrupted(plan, other, graph, 3, 5);
    if (other.global_batch() == plan.global_batch()) {
        exec::RunOptions whole;
        whole.steps = 5;
        const exec::RunResult unbroken = train(plan, graph, whole);
        for (std::size_t i = 0; i < 2; ++i)
            CHECK(resumed.losses[i] == Approx(unbroken.losses[i + 3]).epsilon(1e-5));
    } else {
        // Step 3 begins with sample 3 x 16, as a run of the smaller batch does after 12 of its steps of 4.
        schedule::Plan small = other;
        const exec::RunResult same_samples = [&] {
            const Folder folder;
            exec::RunOptions first;
            first.steps = 3;
            first.checkpoints.directory = folder.path;
            train(plan, graph, first);
            core::Diagnostics diagnostics;
            exec::RunOptions second;
            second.resumed = exec::Checkpoint::open(folder.path, std::nullopt, diagnostics);
            second.first_step = 3 * plan.global_batch() / small.global_batch();
            second.steps = 2;
            return train(small, graph, second);
        }();
        CHECK(resumed.losses == same_samples.losses);
    }
}

TEST_CASE("only the newest checkpoints are kept, and what a killed run left half done goes") {
    const Folder folder;
    fs::create_directories(folder.path + "/step-00000001.partial");
    exec::RunOptions options;
    options.steps = 7;
    options.checkpoints = {folder.path, 2, 2};
    train(tiny::plan(), tiny::gpt(2), options);
    CHECK(exec::committed_steps(folder.path) == std::vector<std::int64_t>{6, 7});
    CHECK_FALSE(fs::exists(folder.path + "/step-00000001.partial"));
}

TEST_CASE("evaluating a checkpoint leaves the folder as it is") {
    const Folder folder;
    const model::ModelGraph graph = tiny::gpt(2);
    schedule::Plan plan = adam_plan();
    exec::RunOptions training;
    training.steps = 2;
    training.checkpoints.directory = folder.path;
    const exec::RunResult trained = train(plan, graph, training);
    plan.schedule = "forward-only";
    for (int steps : {1, 2, 3}) {
        core::Diagnostics diagnostics;
        exec::RunOptions options;
        options.resumed = exec::Checkpoint::open(folder.path, std::nullopt, diagnostics);
        REQUIRE(options.resumed);
        options.first_step = 2;
        options.steps = steps;
        options.checkpoints = {folder.path, 1, 2};
        const exec::RunResult evaluated = train(plan, graph, options);
        CHECK(evaluated.losses.size() == static_cast<std::size_t>(steps));
        CHECK(evaluated.parameters == trained.parameters);
        CHECK(exec::committed_steps(folder.path) == std::vector<std::int64_t>{2});
    }
}

TEST_CASE("a checkpoint that only lacked its name gets it") {
    const Folder folder;
    exec::RunOptions options;
    options.steps = 2;
    options.checkpoints.directory = folder.path;
    train(tiny::plan(), tiny::gpt(2), options);
    const std::string place = exec::checkpoint_folder(folder.path, 2);
    fs::rename(place, place + ".partial");
    SECTION("and counts before it has it") {
        CHECK(exec::committed_steps(folder.path) == std::vector<std::int64_t>{2});
        core::Diagnostics diagnostics;
        CHECK(exec::Checkpoint::open(folder.path, std::nullopt, diagnostics));
        CHECK(exec::Checkpoint::open(folder.path, 2, diagnostics));
        CHECK(fs::exists(place + ".partial"));  // who reads does not write
        exec::tidy_checkpoints(folder.path);
        CHECK(fs::exists(place));
        CHECK_FALSE(fs::exists(place + ".partial"));
        CHECK(exec::committed_steps(folder.path) == std::vector<std::int64_t>{2});
    }
    SECTION("unless its manifest is damaged") {
        flip_byte(place + ".partial/manifest.json", 40);
        CHECK(exec::committed_steps(folder.path).empty());
        exec::tidy_checkpoints(folder.path);
        CHECK(fs::is_empty(folder.path));
    }
}

TEST_CASE("a truncated, altered or missing file of a checkpoint is named, and the older one that is whole") {
    const Folder folder;
    exec::RunOptions options;
    options.steps = 4;
    options.checkpoints = {folder.path, 2, 2};
    schedule::Plan plan = tiny::plan();
    plan.layout.pipeline = 2;
    train(plan, tiny::gpt(2), options);
    const std::string newest = exec::checkpoint_folder(folder.path, 4),
                      file = newest + "/rank-0001.safetensors", manifest = newest + "/manifest.json";
    std::string words;
    SECTION("truncated") {
        fs::resize_file(file, fs::file_size(file) - 5);
        words = "it is truncated";
    }
    SECTION("one bit of a value") {
        flip_byte(file, static_cast<std::int64_t>(fs::file_size(file)) / 2);
        words = "its checksum is";
    }
    SECTION("missing") {
        fs::remove(file);
        words = "No such file";
    }
    SECTION("one bit of the manifest") {
        flip_byte(manifest, static_cast<std::int64_t>(fs::file_size(manifest)) / 3);
        words = "damaged";
    }
    SECTION("an empty manifest") {
        fs::resize_file(manifest, 0);
        words = "damaged";
    }
    const std::string told = failure_of(folder.path);
    INFO(told);
    CHECK(told.find(words == "damaged" ? manifest : file) != std::string::npos);
    CHECK(told.find(words) != std::string::npos);
    CHECK(told.find("--from-step 2") != std::string::npos);
    core::Diagnostics diagnostics;
    CHECK(exec::Checkpoint::open(folder.path, 2, diagnostics));
    CHECK(failure_of(folder.path, 3).find("there are those of 2 or 4") != std::string::npos);
    CHECK(failure_of(folder.path + "/nowhere").find("there is no checkpoint") != std::string::npos);
}

TEST_CASE("a full disk ends the run with the file's name and leaves the committed checkpoint as it was") {
    const Folder folder;
    schedule::Plan plan = tiny::plan();
    plan.layout.data = 2;
    exec::RunOptions options;
    options.steps = 2;
    options.checkpoints.directory = folder.path;
    train(plan, tiny::gpt(2), options);
    rlimit before{};
    REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
    const rlimit small{4096, before.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
    options.steps = 4;
    std::string told;
    try {
        train(plan, tiny::gpt(2), options);
    } catch (const core::MachineError& failure) {
        told = failure.what();
    }
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
    INFO(told);
    CHECK(told.find("rank-0000.safetensors.writing: File too large") != std::string::npos);
    CHECK(exec::committed_steps(folder.path) == std::vector<std::int64_t>{2});
    core::Diagnostics diagnostics;
    CHECK(exec::Checkpoint::open(folder.path, std::nullopt, diagnostics));
}
