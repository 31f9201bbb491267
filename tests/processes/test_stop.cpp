// Ctrl-C during long work of smplan and smsim: what there is so far is answered.
#include "core/document.h"
#include "tests/processes/terminal.h"

namespace {

using namespace processes;
using Catch::Contains;

const std::string smplan = BINARY_DIR "/smplan", smsim = BINARY_DIR "/smsim";

// Chains between a fork and a join: some (length + 1) ^ chains sets of nodes that stages may begin at.
std::string write_fork_and_join(const std::string& path, int chains, int length) {
    std::ofstream file(path);
    file << "version = 1\n[graph]\ndevices = 16\nbandwidth = \"1GB/s\"\n";
    file << "[[node]]\nname = \"fork\"\ntime = \"1ms\"\noutput = \"1MB\"\n";
    std::string ends;
    for (int chain = 0; chain < chains; ++chain) {
        std::string before = "fork";
        for (int i = 0; i < length; ++i) {
            const std::string name = fmt::format("c{}_{}", chain, i);
            file << fmt::format(
                "[[node]]\nname = \"{}\"\ntime = \"{}us\"\ninputs = [\"{}\"]\noutput = \"{}kB\"\n", name,
                1000 + (chain * 37 + i * 91) % 1500, before, 1 + (chain * 7 + i * 3) % 900);
            before = name;
        }
        ends += fmt::format("{}\"{}\"", chain ? ", " : "", before);
    }
    file << "[[node]]\nname = \"join\"\ntime = \"1ms\"\ninputs = [" << ends << "]\n";
    return path;
}

// The rows of a file of measurements again and again, each with an id of its own.
std::string write_runs(const std::string& path, int copies) {
    std::ifstream few(SOURCE_DIR "/tests/golden/runs/own_runs.csv");
    std::ofstream many(path);
    std::string line;
    std::getline(few, line);
    many << line << '\n';
    std::vector<std::string> rows;
    while (std::getline(few, line))
        if (!line.empty()) rows.push_back(line.substr(line.find(',')));
    int id = 0;
    for (int copy = 0; copy < copies; ++copy)
        for (const std::string& row : rows) many << "RUN-" << id++ << row << '\n';
    return path;
}

core::Value document_in(const std::string& written) {
    core::Diagnostics diagnostics;
    const auto document = core::parse_json(written, "stdout", diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(document);
    return *document;
}

}  // namespace

TEST_CASE("Ctrl-C ends smplan partition with the best placement so far and its gap") {
    const Folder folder;
    const std::string graph = write_fork_and_join(folder.path + "/graph.toml", 12, 12);
    const Session session = on_terminal({smplan, "partition", "--graph", graph, "--time-limit", "300"}, 80,
                                        {"TERM=xterm"}, Interruption{SIGINT, "bound "});
    CHECK(session.code == 0);
    CHECK_THAT(session.written, Contains("largest load") && Contains("lower bound") && Contains("gap"));
    CHECK_THAT(session.written, Contains("stopped: the best so far, with the gap that was left"));
    CHECK_THAT(session.written, !Contains("proven optimal"));
}

TEST_CASE("an interrupted smplan partition --json answers with a placement whose bound holds") {
    const Folder folder;
    const std::string graph = write_fork_and_join(folder.path + "/graph.toml", 12, 12);
    std::vector<Process> one = {start(
        {smplan, "partition", "--graph", graph, "--time-limit", "300", "--json"}, {}, folder.path + "/log")};
    std::this_thread::sleep_for(std::chrono::seconds(2));
    ::kill(one[0].id, SIGINT);
    REQUIRE(wait_for_all(one, std::chrono::seconds(60)));
    CHECK(one[0].code() == 0);
    const core::Value answer = document_in(content_of(one[0].out));
    CHECK_FALSE(answer.find("proven_optimal")->boolean());
    CHECK(answer.find("lower_bound")->number() > 0);
    CHECK(answer.find("lower_bound")->number() <= answer.find("objective")->number());
    std::size_t nodes = 0;
    for (const core::Value& stage : answer.find("stages")->items()) nodes += stage.find("nodes")->size();
    CHECK(nodes == 12 * 12 + 2);
}

TEST_CASE("Ctrl-C ends smsim validate with the rows so far, which is not the whole: exit code 3") {
    const Folder folder;
    const int copies = 5000;
    const std::string runs = write_runs(folder.path + "/runs.csv", copies);
    const std::string clusters = SOURCE_DIR "/tests/golden/runs/own_clusters.csv";
    const Interruption ctrl_c{SIGINT, fmt::format(" of {} rows", 4 * copies)};
    SECTION("as text") {
        const Session session =
            on_terminal({smsim, "validate", runs, "--clusters", clusters}, 80, {"TERM=xterm"}, ctrl_c);
        CHECK(session.code == 3);
        CHECK_THAT(session.written, Contains("stopped after") && Contains("macro average"));
    }
    SECTION("as JSON") {
        const std::string command = fmt::format("exec {} validate {} --clusters {} --json > {}/answer.json",
                                                smsim, runs, clusters, folder.path);
        const Session session = on_terminal({"/bin/sh", "-c", command}, 80, {"TERM=xterm"}, ctrl_c);
        CHECK(session.code == 3);
        const core::Value answer = document_in(content_of(folder.path + "/answer.json"));
        // Every row of the file is there or counted as left out.
        const auto rows = static_cast<std::int64_t>(answer.find("rows")->size());
        const std::int64_t left_out = answer.find("rows_left_out")->integer();
        CHECK(rows > 0);
        CHECK(left_out > 0);
        CHECK(rows + left_out == 4 * copies);
    }
}
