// Golden runs of the command line. Each case is a file of bad_input/ (or a command of runs/) with its
// expected exit code and output beside it (*.expected). SMSIM_UPDATE_GOLDEN=1 rewrites the expectations: read
// the difference before committing it.
#include <sys/wait.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

struct Outcome {
    int exit_code = -1;
    std::string output;  // stdout and stderr as they come
};

Outcome run(const std::string& command, const fs::path& directory) {
    const std::string line = "cd '" + directory.string() +
                             "' && export PATH='" BINARY_DIR "':\"$PATH\" && ( " + command +
                             " ) 2>&1 </dev/null";
    FILE* pipe = popen(line.c_str(), "r");
    REQUIRE(pipe != nullptr);
    Outcome outcome;
    char chunk[4096];
    for (std::size_t n; (n = fread(chunk, 1, sizeof chunk, pipe)) > 0;) outcome.output.append(chunk, n);
    const int status = pclose(pipe);
    outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return outcome;
}

std::string read(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<fs::path> files_of(const fs::path& directory, const std::string& prefix,
                               const std::string& extension) {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(directory))
        if (entry.path().extension() == extension && entry.path().filename().string().starts_with(prefix))
            files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    return files;
}

// Compares with the expectation beside the case, or writes it when asked to.
void compare(const fs::path& expectation, const std::string& text) {
    if (std::getenv("SMSIM_UPDATE_GOLDEN") != nullptr) std::ofstream(expectation, std::ios::binary) << text;
    CHECK(text == read(expectation));
}

const fs::path bad_input = SOURCE_DIR "/tests/golden/bad_input";

void expect_wrong_input(const std::string& command, const fs::path& file) {
    INFO(command);
    const Outcome outcome = run(command, bad_input);
    CHECK(outcome.exit_code == 2);
    CHECK(outcome.output.find("error: ") != std::string::npos);
    // The place: the file with a line, unless nothing in it can be pointed at (empty or unreadable as a
    // whole).
    CHECK(outcome.output.find(file.filename().string()) != std::string::npos);
    compare(fs::path(file.string() + ".expected"),
            "$ " + command + "\nexit " + std::to_string(outcome.exit_code) + "\n" + outcome.output);
    const Outcome as_json = run(command + " --json", bad_input);
    CHECK(as_json.exit_code == 2);
    CHECK(as_json.output.find("{") != std::string::npos);
    CHECK(as_json.output.find("\"errors\"") != std::string::npos);
}

}  // namespace

TEST_CASE("every malformed scenario ends with exit 2, the place, the key and a hint") {
    const std::vector<fs::path> files = files_of(bad_input, "scenario_", ".toml");
    REQUIRE(files.size() >= 40);
    for (const fs::path& file : files) expect_wrong_input("smsim " + file.filename().string(), file);
}

TEST_CASE("every malformed job ends with exit 2, the place, the key and a hint") {
    const std::vector<fs::path> files = files_of(bad_input, "job_", ".toml");
    REQUIRE(files.size() >= 14);
    for (const fs::path& file : files) expect_wrong_input("smsim job " + file.filename().string(), file);
}

TEST_CASE("every malformed plan is refused by the executor before anything is allocated") {
    const std::vector<fs::path> files = files_of(bad_input, "plan_", ".toml");
    REQUIRE(files.size() >= 10);
    for (const fs::path& file : files) expect_wrong_input("smexec " + file.filename().string(), file);
}

TEST_CASE("every malformed Hugging Face config ends with exit 2, the place, the key and a hint") {
    const std::vector<fs::path> files = files_of(bad_input, "config_", ".json");
    REQUIRE(files.size() >= 10);
    for (const fs::path& file : files) expect_wrong_input("smsim model " + file.filename().string(), file);
}

TEST_CASE("every malformed hardware profile ends with exit 2, the place, the key and a hint") {
    for (const fs::path& file : files_of(bad_input, "profile_", ".toml"))
        expect_wrong_input("smsim hardware ./" + file.filename().string(), file);
}

TEST_CASE("every malformed graph ends with exit 2, the place, the key and a hint") {
    int files = 0;
    for (const char* extension : {".json", ".toml", ".txt"})
        for (const fs::path& file : files_of(bad_input, "graph_", extension)) {
            expect_wrong_input("smplan partition --graph " + file.filename().string() +
                                   (std::string(extension) == ".txt" ? " --devices 2" : ""),
                               file);
            ++files;
        }
    CHECK(files >= 20);
}

TEST_CASE("ten megabytes of noise, deep nesting and a directory in place of a file are refused quickly") {
    const fs::path directory = fs::temp_directory_path() / ("smsim_golden_" + std::to_string(getpid()));
    fs::create_directories(directory / "folder.toml");
    std::uint32_t state = 12345;
    std::string noise(10u << 20, '\0');
    for (char& c : noise) c = static_cast<char>((state = state * 1664525u + 1013904223u) >> 24);
    std::ofstream(directory / "noise.toml", std::ios::binary) << noise;
    std::ofstream(directory / "noise.json", std::ios::binary) << noise;
    std::ofstream(directory / "deep.toml") << "a = " << std::string(100000, '[') << '\n';
    std::ofstream(directory / "deep.json") << std::string(100000, '[') << '\n';
    std::ofstream(directory / "dotted.toml") << [] {
        std::string key = "a";
        for (int i = 0; i < 50000; ++i) key += ".a";
        return key;
    }() << " = 1\n";
    for (const std::string command :
         {"smsim noise.toml", "smsim model noise.json", "smsim deep.toml", "smsim model deep.json",
          "smsim dotted.toml", "smsim folder.toml", "smsim model noise.toml", "smsim hardware ./noise.toml",
          "smsim missing.toml", "smexec noise.toml", "smexec deep.toml", "smexec missing.toml"}) {
        INFO(command);
        const Outcome outcome = run(command, directory);
        CHECK(outcome.exit_code == 2);
        CHECK(outcome.output.find("error: ") != std::string::npos);
        CHECK(outcome.output.size() < 4000);
    }
    fs::remove_all(directory);
}

TEST_CASE("every run of the command line prints what it printed before") {
    const fs::path runs = SOURCE_DIR "/tests/golden/runs";
    const std::vector<fs::path> files = files_of(runs, "", ".cmd");
    REQUIRE(!files.empty());
    for (const fs::path& file : files) {
        std::string command = read(file);
        while (!command.empty() && command.back() == '\n') command.pop_back();
        INFO(command);
        const Outcome outcome = run(command, SOURCE_DIR);
        compare(fs::path(file).replace_extension(".expected"),
                "$ " + command + "\nexit " + std::to_string(outcome.exit_code) + "\n" + outcome.output);
    }
}
