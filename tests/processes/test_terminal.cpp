// The line of progress on a terminal: a pseudo-terminal of a given width, and what a person sees on it.
#include <algorithm>

#include "tests/processes/terminal.h"

namespace {

using namespace processes;
using Catch::Contains;

// What stands on a screen after `written`: carriage returns, line feeds, "erase to the end of the line", and
// the wrap behind the last column.
std::vector<std::string> screen(const std::string& written, std::size_t columns) {
    std::vector<std::string> lines(1);
    std::size_t row = 0, column = 0;
    for (std::size_t i = 0; i < written.size(); ++i) {
        const char c = written[i];
        if (c == '\r') column = 0;
        else if (c == '\n') ++row;
        else if (written.compare(i, 3, "\x1b[K") == 0) {
            lines[row].resize(std::min(lines[row].size(), column));
            i += 2;
        } else {
            if (column == columns) {
                ++row;
                column = 0;
            }
            lines.resize(std::max(lines.size(), row + 1));
            lines[row].resize(std::max(lines[row].size(), column + 1), ' ');
            lines[row][column++] = c;
        }
        lines.resize(std::max(lines.size(), row + 1));
    }
    return lines;
}

int lines_with(const std::vector<std::string>& lines, const std::string& text) {
    return static_cast<int>(std::count_if(lines.begin(), lines.end(), [&](const std::string& line) {
        return line.find(text) != std::string::npos;
    }));
}

struct Training {
    Folder folder;
    std::string plan = write_plan(folder.path + "/plan.toml", {"gpt", "", "data_parallel = 2", ""});
    std::vector<std::string> command(const std::vector<std::string>& more = {}) const {
        std::vector<std::string> all = {smexec,    plan, "--no-compare", "--ranks-from", "threads",
                                        "--steps", "30"};
        all.insert(all.end(), more.begin(), more.end());
        return all;
    }
};

}  // namespace

TEST_CASE("a terminal shows one line of progress, drawn anew at every step and gone at the end") {
    const Training training;
    const int columns = GENERATE(200, 80, 24, 9);
    const Session session = on_terminal(training.command(), columns, {"TERM=xterm"});
    CHECK(session.code == 0);
    if (columns > 12) CHECK_THAT(session.written, Contains("\r\x1b[Kstep 17/30"));
    // While it goes on, the line is never longer than the terminal: it would wrap, and stay.
    std::size_t longest = 0;
    for (std::size_t at = session.written.find("\r\x1b[Kstep "); at != std::string::npos;
         at = session.written.find("\r\x1b[Kstep ", at + 1))
        longest = std::max(longest, session.written.find('\r', at + 4) - at - 4);
    CHECK(longest > 4);
    CHECK(longest < static_cast<std::size_t>(columns));
    const std::vector<std::string> seen = screen(session.written, static_cast<std::size_t>(columns));
    CHECK(lines_with(seen, "step 1/30") + lines_with(seen, "step 29/30") + lines_with(seen, "step 30/30") ==
          0);
    if (columns == 200) CHECK(lines_with(seen, "30 steps: median") == 1);
}

TEST_CASE("what is told during a training stands above the line of progress") {
    const Training training;
    const Session session =
        on_terminal(training.command({"--checkpoint", training.folder.path + "/states", "--every", "10"}),
                    120, {"TERM=xterm"});
    CHECK(session.code == 0);
    const std::vector<std::string> seen = screen(session.written, 120);
    for (const char* step : {"step-00000010", "step-00000020", "step-00000030"})
        CHECK(lines_with(
                  seen, std::string("checkpoint written: ") + training.folder.path + "/states/" + step) == 1);
    CHECK(lines_with(seen, "/30  loss") == 0);
}

TEST_CASE("a training that a signal ends leaves its message alone on the line") {
    const Training training;
    std::vector<std::string> command =
        training.command({"--checkpoint", training.folder.path + "/states", "--every", "1000"});
    *std::find(command.begin(), command.end(), "30") = "100000";
    const Session session = on_terminal(command, 300, {"TERM=xterm"}, Interruption{SIGTERM, "step 5/"});
    CHECK(session.code == 4);
    const std::vector<std::string> seen = screen(session.written, 300);
    CHECK(lines_with(seen, "/100000  loss") == 0);
    const auto told = std::find_if(seen.begin(), seen.end(), [](const std::string& line) {
        return line.find("training ended after step") != std::string::npos;
    });
    REQUIRE(told != seen.end());
    CHECK(told->starts_with("SIGTERM"));
}

TEST_CASE("no colours are written, and nothing is drawn where a line cannot be drawn anew") {
    const Training training;
    for (const std::vector<std::string>& environment :
         {std::vector<std::string>{"TERM=xterm-256color", "NO_COLOR=1"}, {"TERM=xterm-256color"}}) {
        const Session session = on_terminal(training.command(), 80, environment);
        CHECK(session.code == 0);
        CHECK_THAT(session.written, Contains("step 17/30"));
        for (std::size_t at = session.written.find('\x1b'); at != std::string::npos;
             at = session.written.find('\x1b', at + 1))
            CHECK(session.written.compare(at, 3, "\x1b[K") == 0);
    }
    for (const std::vector<std::string>& environment :
         {std::vector<std::string>{"TERM=dumb"}, std::vector<std::string>{"TERM="}}) {
        const Session session = on_terminal(training.command(), 80, environment);
        CHECK(session.code == 0);
        CHECK(session.written.find('\x1b') == std::string::npos);
        CHECK(session.written.find("step 17/30") == std::string::npos);
    }
    const Session as_json = on_terminal(training.command({"--json"}), 80, {"TERM=xterm"});
    CHECK(as_json.code == 0);
    CHECK(as_json.written.find('\x1b') == std::string::npos);
}

TEST_CASE("no answer has a line of several words that is wider than the terminal") {
    const std::string smsim = BINARY_DIR "/smsim", smplan = BINARY_DIR "/smplan";
    const std::string scenarios = SOURCE_DIR "/scenarios/";
    const int columns = GENERATE(80, 100);
    const std::vector<std::vector<std::string>> commands = {
        {smsim, scenarios + "llama2_7b_p4d.toml", "--explain"},
        {smsim, scenarios + "llama2_7b_p4d.toml", "--sweep", "plan.micro_batch=1,2,4"},
        {smsim, "schedule", "interleaved-1f1b", "--stages", "8", "--chunks", "2", "--micro-batches", "32",
         "--print"},
        {smsim, "schedule", "zb-h1", "--stages", "4", "--micro-batches", "12", "--with", "transfers",
         "--print"},
        {smsim, "schedule", "--list"},
        {smsim, "job", scenarios + "job_spot_bert_p3dn.toml", "--set", "job.simulation.runs=20"},
        {smsim, "campaign", scenarios + "job_campaign_bert.toml"},
        {smsim, "compare", scenarios + "bert_large_p3.toml", scenarios + "bert_large_p3dn.toml"},
        {smsim, "ablate", scenarios + "llama2_7b_p4d.toml"},
        {smsim, "hardware"},
        {smsim, "hardware", "p4d.24xlarge"},
        {smsim, "hardware", "p3.16xlarge"},
        {smsim, "hardware", "g4dn.metal"},
        {smsim, "model", "llama-2-7b"},
        {smsim, "model", "resnet50", "--operators"},
        {smsim, "frameworks"},
        {smsim, "frameworks", "megatron-lm"},
        {smplan, "partition", "--graph", "gpt2", "--devices", "4"},
        {smplan, "--target", "p3.16xlarge", "--nodes", "1", "--model", "gpt2", "--global-batch", "64"},
        {smsim},
        {smplan},
        {smexec},
        {smsim, "--help"},
        {smplan, "--help"},
        {smexec, "--help"}};
    for (const std::vector<std::string>& command : commands) {
        const Session session = on_terminal(command, columns, {"TERM=xterm", "NO_COLOR=1"});
        std::string said;
        for (const std::string& word : command) said += word + ' ';
        INFO(said);
        CHECK(session.code != -1);
        std::istringstream lines(session.written);
        for (std::string line; std::getline(lines, line);) {
            while (!line.empty() && line.back() == '\r') line.pop_back();
            if (const std::size_t drawn = line.rfind("\x1b[K"); drawn != std::string::npos)
                line.erase(0, drawn + 3);
            const std::size_t begin = line.find_first_not_of(' ');
            const bool is_one_word = begin == std::string::npos || line.find(' ', begin) == std::string::npos;
            INFO(line);
            CHECK((is_one_word || line.size() <= static_cast<std::size_t>(columns)));
        }
    }
}
