// How ranks find each other, and what is said when they do not: wrong variables, strangers, ranks that go
// before the start, folders and files that will not do.
#include "tests/core/sanitizers.h"
#include "tests/processes/callers.h"
#include "tests/processes/processes.h"

namespace {

using namespace processes;
using Catch::Contains;
using Catch::StartsWith;
using exec::transport::Report;

// One process of the tool with a launcher's variables.
Process run_with(const std::vector<std::string>& environment, const std::vector<std::string>& arguments,
                 const std::string& output) {
    std::vector<Process> one = {start(arguments, environment, output)};
    REQUIRE(wait_for_all(one, std::chrono::seconds(60)));
    return one[0];
}

int errors_in(const std::string& text) {
    int count = 0;
    for (std::size_t at = text.find("error: "); at != std::string::npos; at = text.find("error: ", at + 1))
        ++count;
    return count;
}

std::vector<std::string> rank_variables(const std::string& rank, const std::string& size, int port) {
    return {"RANK=" + rank, "WORLD_SIZE=" + size, "MASTER_ADDR=127.0.0.1",
            "MASTER_PORT=" + std::to_string(port)};
}

struct Job {
    Folder folder;
    std::string plan = write_plan(folder.path + "/plan.toml", {"gpt", "", "pipeline_parallel = 2", ""});
    std::string three = write_plan(folder.path + "/three.toml", {"gpt", "", "data_parallel = 3", ""});
    int port = free_port();

    std::string token;  // empty: the launcher gives none

    std::vector<std::string> variables(int r, int size) const {
        std::vector<std::string> result = rank_variables(std::to_string(r), std::to_string(size), port);
        if (!token.empty()) result.push_back("SMEXEC_TOKEN=" + token);
        return result;
    }
    Process rank(int r, int size, const std::string& of_plan) const {
        return start({smexec, of_plan, "--no-compare", "--steps", "2", "--time-limit", "30"},
                     variables(r, size), fmt::format("{}/rank{}", folder.path, r));
    }
};

}  // namespace

TEST_CASE("wrong variables of a launcher are one message and exit code 2") {
    const Job job;
    const struct {
        std::vector<std::string> variables;
        const char* words;
    } cases[] = {
        {rank_variables("-1", "2", job.port), "RANK = '-1'"},
        {rank_variables("2", "2", job.port), "RANK = '2'"},
        {rank_variables("one", "2", job.port), "RANK = 'one'"},
        {rank_variables("0", "0", job.port), "WORLD_SIZE = '0'"},
        {rank_variables("0", "-2", job.port), "WORLD_SIZE = '-2'"},
        {rank_variables("0", "99999999999999999999", job.port), "WORLD_SIZE = '99999999999999999999'"},
        {rank_variables("0", "2x", job.port), "WORLD_SIZE = '2x'"},
        {rank_variables("0", "2", 70000), "MASTER_PORT = '70000'"},
        {{"RANK=0", "WORLD_SIZE=2"}, "MASTER_ADDR is not set"},
        {{"SLURM_PROCID=4", "SLURM_STEP_NUM_TASKS=4", "SLURM_STEP_NODELIST=n1"}, "SLURM_PROCID = '4'"},
        {{"SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=many", "SLURM_STEP_NODELIST=n1"},
         "SLURM_STEP_NUM_TASKS = 'many'"},
        {{"SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=2"}, "MASTER_ADDR is not set"},
    };
    for (const auto& one : cases) {
        const Process process =
            run_with(one.variables, {smexec, job.plan, "--no-compare"}, job.folder.path + "/log");
        const std::string told = content_of(process.err);
        INFO(told);
        CHECK(process.code() == 2);
        CHECK_THAT(told, Contains(one.words));
        CHECK(errors_in(told) == 1);
        CHECK(content_of(process.out).empty());
    }
}

TEST_CASE("strangers at rank 0's port, silent or talking, keep no rank from starting") {
    const Job job;
    std::vector<Process> ranks = {job.rank(0, 2, job.plan)};
    const int silent = connect_to(job.port), half = connect_to(job.port), gone = connect_to(job.port),
              other = connect_to(job.port);
    const exec::transport::Greeting greeting;
    say(half, &greeting, 20);
    say(gone, &greeting, 5);
    ::close(gone);
    const std::string words(276, 'x');
    say(other, words.data(), words.size());
    ranks.push_back(job.rank(1, 2, job.plan));
    CHECK(wait_for_all(ranks, std::chrono::seconds(25)));
    INFO(content_of(ranks[0].err));
    CHECK(ranks[0].code() == 0);
    CHECK(ranks[1].code() == 0);
    for (const int descriptor : {silent, half, other}) ::close(descriptor);
}

TEST_CASE("a rank that goes before the start is named, and the others end at once") {
    const Job job;
    std::vector<Process> ranks = {job.rank(0, 3, job.three)};
    // Rank 2 reports and goes, while rank 0 still waits for rank 1.
    const int second = connect_to(job.port);
    introduce(second, report_of(2, 3));
    SECTION("before all have come") {
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        ::close(second);
        CHECK(wait_for_all(ranks, std::chrono::seconds(15)));
        CHECK(ranks[0].code() == 4);
        CHECK_THAT(content_of(ranks[0].err), Contains("rank 2 on elsewhere is gone before the start"));
    }
    SECTION("when it knows who listens where") {
        ranks.push_back(job.rank(1, 3, job.three));
        char first = 0;
        REQUIRE(::recv(second, &first, 1, 0) == 1);  // of the table
        ::close(second);
        CHECK(wait_for_all(ranks, std::chrono::seconds(15)));
        CHECK(ranks[0].code() == 4);
        CHECK(ranks[1].code() == 4);
        INFO(content_of(ranks[0].err) << content_of(ranks[1].err));
        CHECK_THAT(content_of(ranks[0].err), Contains("is gone"));
    }
    CHECK(errors_in(content_of(ranks[0].err)) == 1);
}

TEST_CASE("ranks beside rank 0 are announced without the loopback address at which it sees them") {
    const Job job;
    std::vector<Process> ranks = {job.rank(0, 3, job.three)};
    const int one = connect_to(job.port), two = connect_to(job.port);
    introduce(one, report_of(1, 3));
    introduce(two, report_of(2, 3));
    // exec/transport/tcp/connect.cpp; on another host 127.0.0.1 is somebody else.
    struct Entry {
        std::int32_t launch_rank, port;
        char host[256], address[64];
    };
    struct {
        exec::transport::Nonce job;
        Entry rows[3];
    } content = {};
    REQUIRE(::recv(two, &content, sizeof content, MSG_WAITALL) == static_cast<ssize_t>(sizeof content));
    const auto& table = content.rows;
    for (int r = 1; r < 3; ++r) {
        CHECK(table[r].launch_rank == r);
        CHECK(table[r].port == 40000 + r);
        CHECK(std::string(table[r].address).empty());
    }
    ::close(one);
    ::close(two);
    CHECK(wait_for_all(ranks, std::chrono::seconds(15)));
}

TEST_CASE("processes of one job that disagree on how many they are, or who, are told apart") {
    if (!exec::transport::can_authenticate()) {
        WARN("skipped: this build has no libcrypto");
        return;
    }
    Job job;
    job.token = "correct horse battery staple";
    std::string words;
    Report report = report_of(1, 3);
    SECTION("how many") {
        report.size = 5;
        words = "says it is rank 1 of 5; rank 0 knows 3 ranks";
    }
    SECTION("who") { words = "two processes say they are rank 1"; }
    std::vector<Process> ranks = {job.rank(0, 3, job.three)};
    const int one = connect_to(job.port), two = connect_to(job.port);
    introduce(one, report, job.token);
    if (report.size == 3) introduce(two, report, job.token);
    CHECK(wait_for_all(ranks, std::chrono::seconds(15)));
    CHECK(ranks[0].code() == 4);
    CHECK_THAT(content_of(ranks[0].err), Contains(words));
    ::close(one);
    ::close(two);
}

TEST_CASE("nobody to talk to is said with the address, in time") {
    const Job job;
    const std::vector<std::string> command = {smexec, job.plan, "--no-compare", "--time-limit", "1"};
    const Process lonely = run_with(rank_variables("0", "2", job.port), command, job.folder.path + "/a");
    CHECK(lonely.code() == 4);
    CHECK_THAT(content_of(lonely.err), Contains("of 2 ranks these did not report to rank 0 in time: 1"));
    const Process lost = run_with(rank_variables("1", "2", job.port), command, job.folder.path + "/b");
    CHECK(lost.code() == 4);
    CHECK_THAT(content_of(lost.err),
               Contains(fmt::format("no connection to rank 0 at 127.0.0.1:{}", job.port)));
}

TEST_CASE("a folder that checkpoints cannot be written into is said before training") {
    const Job job;
    const auto told = [&](std::vector<std::string> before, const std::string& checkpoints) {
        before.insert(before.end(), {smexec, job.plan, "--no-compare", "--ranks-from", "threads", "--steps",
                                     "1000000", "--checkpoint", checkpoints});
        const Process process = run(before, job.folder.path + "/log");
        CHECK(process.code() == 2);
        const std::string text = content_of(process.err);
        CHECK(errors_in(text) == 1);
        return text;
    };
    CHECK_THAT(told({}, job.plan), Contains("--checkpoint") && Contains("plan.toml is no folder"));
    CHECK_THAT(told({}, job.plan + "/below"), Contains("plan.toml is no folder"));
    const std::string closed = job.folder.path + "/closed";
    fs::create_directory(closed);
    fs::permissions(closed, fs::perms::owner_read | fs::perms::owner_exec | fs::perms::others_read |
                                fs::perms::others_exec);
    std::vector<std::string> as_user;
    if (::geteuid() == 0) {  // who may write everywhere
        as_user = {"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"};
        fs::permissions(job.folder.path, fs::perms::all);
        std::vector<std::string> probe = as_user;
        probe.insert(probe.end(), {"test", "-x", smexec});
        if (run(probe, job.folder.path + "/probe").code() != 0) {
            WARN("skipped: no other user may run the program here");
            return;
        }
    }
    CHECK_THAT(told(as_user, closed), Contains("closed cannot be written: Permission denied"));
    CHECK_THAT(told(as_user, closed + "/a/b"), Contains("closed cannot be written: Permission denied"));
}

TEST_CASE("a text shorter than a sequence is refused with both lengths") {
    const Job job;
    const std::string text = job.folder.path + "/text";
    std::ofstream(text) << "abcdefgh";  // 8 tokens and the label of the last one take 9
    const std::string plan =
        write_plan(job.folder.path + "/bytes.toml", {"gpt", "", "pipeline_parallel = 2", ""});
    for (const auto& [file, words] : {std::pair{text, "has 8 bytes, a sample takes 9"},
                                      std::pair{job.folder.path + "/absent", "absent"}}) {
        const Process process = run({smexec, plan, "--no-compare", "--ranks-from", "threads", "--data", file},
                                    job.folder.path + "/log");
        CHECK(process.code() == 2);
        CHECK_THAT(content_of(process.err), Contains(words));
        CHECK(errors_in(content_of(process.err)) == 1);
    }
}

TEST_CASE(
    "a folder with later checkpoints of another training is refused, or they are set aside on request") {
    const Folder folder;
    const std::string plan = write_plan(folder.path + "/plan.toml", {"gpt", "", "pipeline_parallel = 2", ""}),
                      other = write_plan(folder.path + "/other.toml",
                                         {"gpt", "", "pipeline_parallel = 2", "seed = 5"}),
                      evaluation =
                          write_plan(folder.path + "/evaluation.toml",
                                     {"gpt", "", "pipeline_parallel = 2\nschedule = \"forward-only\"", ""}),
                      states = folder.path + "/states";
    const auto train = [&](const std::string& of_plan, const std::vector<std::string>& more) {
        std::vector<std::string> arguments = {smexec,    of_plan, "--no-compare", "--ranks-from", "threads",
                                              "--every", "2",     "--checkpoint", states};
        arguments.insert(arguments.end(), more.begin(), more.end());
        return run(arguments, folder.path + "/log");
    };
    const auto told = [&](const Process& process) {
        CHECK(process.code() == 2);
        CHECK(errors_in(content_of(process.err)) == 1);
        return content_of(process.err);
    };
    REQUIRE(train(plan, {"--steps", "6"}).code() == 0);
    REQUIRE(exec::committed_steps(states) == std::vector<std::int64_t>{4, 6});
    const std::vector<double> losses = losses_of(states);

    CHECK_THAT(told(train(other, {"--steps", "3"})), Contains("has checkpoints of step 4, 6 already") &&
                                                         Contains("--resume") && Contains("--set-aside"));
    CHECK_THAT(told(train(plan, {"--steps", "5", "--resume", "--from-step", "4"})),
               Contains("has checkpoints of step 6, after step 4") && Contains("--set-aside"));
    CHECK(exec::committed_steps(states) == std::vector<std::int64_t>{4, 6});
    // An evaluation writes nothing, so nothing is in its way.
    CHECK(train(evaluation, {"--steps", "5", "--resume", "--from-step", "4"}).code() == 0);
    CHECK(exec::committed_steps(states) == std::vector<std::int64_t>{4, 6});

    REQUIRE(train(plan, {"--steps", "5", "--resume", "--from-step", "4", "--set-aside"}).code() == 0);
    CHECK(exec::committed_steps(states) == std::vector<std::int64_t>{4, 5});
    CHECK(exec::committed_steps(states + "/set-aside-1") == std::vector<std::int64_t>{6});
    CHECK(losses_of(states + "/set-aside-1") == losses);

    REQUIRE(train(other, {"--steps", "3", "--set-aside"}).code() == 0);
    CHECK(exec::committed_steps(states) == std::vector<std::int64_t>{2, 3});
    CHECK(exec::committed_steps(states + "/set-aside-2") == std::vector<std::int64_t>{4, 5});
    CHECK(losses_of(states + "/set-aside-1") == losses);

    // What was set aside can be gone on with.
    std::vector<std::string> again = {
        smexec,    plan, "--no-compare", "--ranks-from", "threads",
        "--steps", "7",  "--resume",     "--checkpoint", states + "/set-aside-1"};
    CHECK(run(again, folder.path + "/log").code() == 0);
    CHECK(losses_of(states + "/set-aside-1").size() == 7);
}

TEST_CASE("the reference that rank 0 trains alone is not held against the time limit") {
    const Folder folder;
    const std::string plan = folder.path + "/plan.toml";
    std::ofstream(plan) << "version = 1\n[model]\nfamily = \"gpt\"\nhidden = 64\nlayers = 4\nheads = "
                           "4\nvocabulary = 128\nmax_positions = 64\nsequence_length = 64\n"
                           "[cluster]\ninstance = \"local-cpu\"\n[plan]\nprecision = \"fp32\"\nmicro_batch = "
                           "2\nmicro_batches = 2\ndata_parallel = 2\n";
    // Some 8 s of one core for the reference, with sanitizers 20; a step of the ranks takes some
    // milliseconds.
    const char* const steps = is_sanitized ? "5" : "100";
    const auto begin = std::chrono::steady_clock::now();
    std::vector<Process> ranks = start_ranks(
        {smexec, plan, "--no-compare", "--check", "--steps", steps, "--time-limit", "4"}, 2, folder.path);
    REQUIRE(wait_for_all(ranks, std::chrono::seconds(240)));
    if (std::chrono::steady_clock::now() - begin < std::chrono::seconds(5))
        WARN("nothing shown: this machine trained the reference within the time limit");
    INFO(content_of(ranks[0].out) << content_of(ranks[0].err) << content_of(ranks[1].err));
    CHECK(ranks[0].code() == 0);
    CHECK(ranks[1].code() == 0);
}

TEST_CASE("a machine that gives no more threads ends the job with a message") {
    if (is_sanitized) {
        WARN("skipped: sanitizers need more address space than the limit leaves");
        return;
    }
    const Folder folder;
    const std::string plan = write_plan(folder.path + "/plan.toml", {"gpt", "", "data_parallel = 400", ""});
    // A thread's stack takes 8 MiB of it.
    const Process process = run(
        {"sh", "-c",
         fmt::format(
             "ulimit -s 8192 && ulimit -v 2000000 && exec {} {} --no-compare --ranks-from threads --steps 1",
             smexec, plan)},
        folder.path + "/log");
    INFO(content_of(process.err));
    CHECK(process.code() == 4);
    CHECK_THAT(content_of(process.err), Contains("starting a thread for rank ") && Contains(" of 400: "));
    CHECK(errors_in(content_of(process.err)) == 1);
}

TEST_CASE(
    "data are known by their content: moved they are resumed with, changed they are refused, and ranks that "
    "read others are told apart") {
    const Folder folder;
    const auto write = [&](const std::string& name, const std::string& text) {
        fs::create_directories(fs::path(folder.path + "/" + name).parent_path());
        std::ofstream(folder.path + "/" + name) << text;
        return folder.path + "/" + name;
    };
    const std::string plan = folder.path + "/plan.toml",
                      text = "the quick brown fox jumps over the lazy dog, and the dog sleeps on\n";
    write_plan(plan, {"gpt", "", "pipeline_parallel = 2", ""});
    std::string content = content_of(plan);
    content.replace(content.find("vocabulary = 30"), 15, "vocabulary = 256");
    std::ofstream(plan) << content;
    const std::string first = write("text", text), moved = write("elsewhere/text", text),
                      changed = write("changed", "T" + text.substr(1));
    const auto train = [&](const std::string& data, const std::vector<std::string>& more) {
        std::vector<std::string> arguments = {
            smexec,    plan,           "--no-compare",          "--ranks-from",
            "threads", "--checkpoint", folder.path + "/states", "--data",
            data};
        arguments.insert(arguments.end(), more.begin(), more.end());
        return run(arguments, folder.path + "/log");
    };
    REQUIRE(train(first, {"--steps", "2"}).code() == 0);
    CHECK(train(moved, {"--steps", "3", "--resume"}).code() == 0);
    CHECK(train(changed, {"--steps", "4", "--resume"}).code() == 2);
    CHECK_THAT(content_of(folder.path + "/log.err"), Contains("the checkpoint was trained on 67 bytes of ") &&
                                                         Contains("now it is 67 bytes of ") &&
                                                         Contains("xxh64"));

    const auto ranks_with = [&](const std::string& second) {
        const std::vector<std::string> common = {smexec, plan,           "--no-compare", "--steps",
                                                 "2",    "--time-limit", "20",           "--data"};
        std::vector<std::string> own = common, other = common;
        own.push_back(first);
        other.push_back(second);
        std::vector<Process> ranks = start_ranks(own, 2, folder.path, {{}, other});
        REQUIRE(wait_for_all(ranks, std::chrono::seconds(60)));
        CHECK(ranks[0].code() == ranks[1].code());
        return ranks[0];
    };
    CHECK(ranks_with(moved).code() == 0);
    const Process differs = ranks_with(changed);
    CHECK(differs.code() == 2);
    CHECK_THAT(content_of(differs.err),
               Contains("would run another training than rank 0: data 67 bytes, xxh64 "));
}

TEST_CASE(
    "--check follows the plan: evaluation, asynchronous schedules, and resumed training as long as nothing "
    "else has changed") {
    const Folder folder;
    const std::string untied = "tied_embeddings = false";
    const auto check = [&](const TinyPlan& tiny, const std::vector<std::string>& more) {
        std::vector<std::string> arguments = {smexec,         write_plan(folder.path + "/plan.toml", tiny),
                                              "--no-compare", "--check",
                                              "--json",       "--ranks-from",
                                              "threads"};
        arguments.insert(arguments.end(), more.begin(), more.end());
        return run(arguments, folder.path + "/log");
    };
    for (const std::string schedule : {"forward-only", "pipedream", "pipedream-2bw", "1f1b"}) {
        const Process process =
            check({"gpt", untied, fmt::format("pipeline_parallel = 2\nschedule = \"{}\"", schedule), ""},
                  {"--steps", "3"});
        INFO(schedule << content_of(process.out) << content_of(process.err));
        CHECK(process.code() == 0);
    }
    const std::string states = folder.path + "/states";
    const TinyPlan trained = {"gpt", "", "pipeline_parallel = 2", "weight_decay = 0.1"},
                   divided = {"gpt", "", "data_parallel = 2\nmicro_batches = 2", "weight_decay = 0.1"},
                   otherwise = {"gpt", "", "pipeline_parallel = 2", "weight_decay = 0.2"};
    REQUIRE(check(trained, {"--steps", "2", "--checkpoint", states}).code() == 0);
    CHECK(check(trained, {"--steps", "3", "--checkpoint", states, "--resume"}).code() == 0);
    CHECK(check(divided, {"--steps", "4", "--checkpoint", states, "--resume"}).code() ==
          0);  // the same batch on other ranks
    const Process changed = check(otherwise, {"--steps", "5", "--checkpoint", states, "--resume"});
    CHECK(changed.code() == 2);
    CHECK_THAT(content_of(changed.out),
               Contains("\"--check\"") && Contains("weight decay 0.1") && Contains("weight decay 0.2"));
    const Process evaluated = check({"gpt", "", "pipeline_parallel = 2\nschedule = \"forward-only\"", ""},
                                    {"--steps", "5", "--checkpoint", states, "--resume"});
    CHECK(evaluated.code() == 2);
    // Once the recipe has changed no reference follows, even when it is the first one again.
    REQUIRE(run({smexec, write_plan(folder.path + "/plan.toml", otherwise), "--no-compare", "--ranks-from",
                 "threads", "--steps", "5", "--checkpoint", states, "--resume"},
                folder.path + "/log")
                .code() == 0);
    CHECK(check(otherwise, {"--steps", "6", "--checkpoint", states, "--resume"}).code() == 2);
    CHECK(check(trained, {"--steps", "6", "--checkpoint", states, "--resume"}).code() == 2);
}

TEST_CASE("a plan that does not fit is one document with --json") {
    const Folder folder;
    const std::string plan = folder.path + "/plan.toml";
    std::ofstream(plan)
        << "version = 1\n[model]\nname = \"gpt3-175b\"\n[cluster]\ninstance = "
           "\"local-cpu\"\n[plan]\npipeline_parallel = 2\nmicro_batch = 1\nmicro_batches = 2\n"
           "precision = \"fp32\"\n";
    for (const bool as_json : {false, true}) {
        std::vector<std::string> arguments = {smexec, plan, "--no-compare", "--ranks-from", "threads"};
        if (as_json) arguments.push_back("--json");
        const Process process = run(arguments, folder.path + "/log");
        const std::string out = content_of(process.out), err = content_of(process.err);
        INFO(out << err);
        CHECK(process.code() == 3);
        CHECK_THAT(as_json ? out : err,
                   Contains("does not fit: parameters, gradients and optimizer state of 2 ranks take"));
        CHECK((as_json ? err : out).empty());
        if (as_json) CHECK_THAT(out, StartsWith("{") && Contains("\"errors\""));
    }
}

TEST_CASE("a trace that cannot be written is refused before training") {
    const Job job;
    for (const auto& [path, words] :
         {std::pair{job.folder.path + "/absent/trace.json", "absent does not exist"},
          std::pair{job.folder.path, "it is a folder"},
          std::pair{job.plan + "/trace.json", "plan.toml is no folder"}}) {
        const Process process = run({smexec, job.plan, "--no-compare", "--ranks-from", "threads", "--steps",
                                     "1000000", "--trace", path},
                                    job.folder.path + "/log");
        CHECK(process.code() == 2);
        CHECK_THAT(content_of(process.err), Contains("--trace") && Contains(words));
        CHECK(content_of(process.out).empty());
    }
}

TEST_CASE("a profile that cannot be written is refused before measuring") {
    const Folder folder;
    const Process process =
        run({smexec, "profile", "--ranks-from", "threads", "--out", folder.path + "/absent/here.toml"},
            folder.path + "/log");
    CHECK(process.code() == 2);
    CHECK_THAT(content_of(process.err), Contains("--out") && Contains("absent"));

    std::vector<Process> ranks =
        start_ranks({smexec, "profile", "--out", folder.path + "/absent/here.toml"}, 2, folder.path);
    REQUIRE(wait_for_all(ranks, std::chrono::seconds(60)));
    CHECK(ranks[0].code() == 2);
    CHECK(ranks[1].code() == 2);
    CHECK_THAT(content_of(ranks[0].err), Contains("absent does not exist"));
    CHECK(content_of(ranks[1].err).empty());
}

TEST_CASE("a wrong option under a launcher is told by rank 0 alone") {
    const Job job;
    const std::vector<std::string> good = {smexec, job.plan, "--no-compare", "--steps", "2", "--json"},
                                   wrong = {smexec, job.plan, "--no-compare", "--steps", "two", "--json"};
    SECTION("given to all") {
        std::vector<Process> ranks = start_ranks(wrong, 2, job.folder.path);
        REQUIRE(wait_for_all(ranks, std::chrono::seconds(30)));
        for (const Process& rank : ranks) CHECK(rank.code() == 2);
        CHECK_THAT(content_of(ranks[0].out), Contains("--steps"));
        CHECK(content_of(ranks[1].out) + content_of(ranks[1].err) == "");
    }
    SECTION("given to another") {
        std::vector<Process> ranks = start_ranks(good, 2, job.folder.path, {{}, wrong});
        REQUIRE(wait_for_all(ranks, std::chrono::seconds(30)));
        for (const Process& rank : ranks) CHECK(rank.code() == 2);
        CHECK_THAT(content_of(ranks[0].out), Contains("rank 1 on ") && Contains("--steps"));
        CHECK(content_of(ranks[1].out) + content_of(ranks[1].err) == "");
    }
}
