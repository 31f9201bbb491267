// Ranks as processes of the tool itself: started, waited for, read.
#pragma once

#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <fmt/core.h>
#include <catch2/catch.hpp>

#include "core/diagnostics.h"
#include "exec/checkpoint/checkpoint.h"

namespace processes {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

inline const std::string smexec = BINARY_DIR "/smexec";

struct Folder {
    Folder() {
        char name[] = "/tmp/smexec-processes-XXXXXX";
        path = ::mkdtemp(name);
    }
    ~Folder() { fs::remove_all(path); }
    std::string path;
};

inline std::string content_of(const std::string& path) {
    std::ifstream file(path);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

inline int free_port() {
    const int descriptor = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    REQUIRE(::bind(descriptor, reinterpret_cast<sockaddr*>(&address), length) == 0);
    REQUIRE(::getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &length) == 0);
    ::close(descriptor);
    return ntohs(address.sin_port);
}

struct Process {
    pid_t id = 0;
    int status = 0;
    bool has_ended = false;
    std::string out, err;  // files

    bool was_killed() const { return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL; }
    int code() const { return WIFEXITED(status) ? WEXITSTATUS(status) : -1; }
};

inline Process start(const std::vector<std::string>& arguments, const std::vector<std::string>& environment,
                     const std::string& output) {
    Process process;
    process.out = output + ".out";
    process.err = output + ".err";
    process.id = ::fork();
    REQUIRE(process.id >= 0);
    if (process.id == 0) {
        ::setpgid(0, 0);
        ::dup2(::open(process.out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644), 1);
        ::dup2(::open(process.err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644), 2);
        for (const std::string& variable : environment) ::putenv(const_cast<char*>(variable.c_str()));
        std::vector<char*> pointers;
        for (const std::string& argument : arguments) pointers.push_back(const_cast<char*>(argument.c_str()));
        pointers.push_back(nullptr);
        ::execvp(pointers[0], pointers.data());
        ::_exit(127);
    }
    return process;
}

// Whether all of them end within the limit.
inline bool have_all_ended(std::vector<Process>& processes, std::chrono::milliseconds limit) {
    const Clock::time_point deadline = Clock::now() + limit;
    while (true) {
        bool all = true;
        for (Process& process : processes) {
            if (!process.has_ended)
                process.has_ended = ::waitpid(process.id, &process.status, WNOHANG) == process.id;
            all = all && process.has_ended;
        }
        if (all || Clock::now() > deadline) return all;
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
}

// True when all ended in time; the rest is killed.
inline bool wait_for_all(std::vector<Process>& processes, std::chrono::milliseconds limit) {
    if (have_all_ended(processes, limit)) return true;
    for (Process& process : processes)
        if (!process.has_ended) {
            ::kill(process.id, SIGKILL);
            ::waitpid(process.id, &process.status, 0);
        }
    return false;
}

// One process a rank, joined over TCP.
inline std::vector<Process> start_ranks(const std::vector<std::string>& arguments, int ranks,
                                        const std::string& folder,
                                        const std::vector<std::vector<std::string>>& special = {}) {
    const int port = free_port();
    std::vector<Process> processes;
    for (int rank = 0; rank < ranks; ++rank) {
        const auto r = static_cast<std::size_t>(rank);
        processes.push_back(start(r < special.size() && !special[r].empty() ? special[r] : arguments,
                                  {fmt::format("RANK={}", rank), fmt::format("WORLD_SIZE={}", ranks),
                                   "MASTER_ADDR=127.0.0.1", fmt::format("MASTER_PORT={}", port)},
                                  fmt::format("{}/rank{}", folder, rank)));
    }
    return processes;
}

inline std::vector<double> losses_of(const std::string& checkpoints) {
    core::Diagnostics diagnostics;
    const auto checkpoint = exec::Checkpoint::open(checkpoints, std::nullopt, diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(checkpoint);
    return checkpoint->manifest().losses;
}

inline bool has_mpirun() { return std::system("command -v mpirun >/dev/null 2>&1") == 0; }

inline std::vector<std::string> mpirun(int ranks) {
    return {"mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none",
            "-n",     std::to_string(ranks)};
}

// A command that is waited for.
inline Process run(const std::vector<std::string>& arguments, const std::string& output) {
    std::vector<Process> one = {start(arguments, {}, output)};
    REQUIRE(wait_for_all(one, std::chrono::seconds(60)));
    return one[0];
}

// A small model: `family` with its own keys, and the plan's degrees.
struct TinyPlan {
    std::string family = "gpt", model = "", plan = "", training = "", cluster = "instance = \"local-cpu\"";
};
inline std::string write_plan(const std::string& path, const TinyPlan& tiny) {
    const bool is_gpt = tiny.family == "gpt";
    std::ofstream(path)
        << "version = 1\n[model]\nfamily = \"" << tiny.family
        << "\"\nname = \"tiny\"\nhidden = 16\nlayers = 4\nheads = 4\nvocabulary = 30\nmax_positions = 8\n"
        << "sequence_length = 8\n"
        << (is_gpt ? "" : "ffn = 24\nkv_heads = 2\n") << tiny.model << "\n[cluster]\n"
        << tiny.cluster << "\n[plan]\nmicro_batch = 2\n"
        << (tiny.plan.find("micro_batches") == std::string::npos ? "micro_batches = 4\n" : "")
        << (tiny.plan.find("precision") == std::string::npos ? "precision = \"fp32\"\n" : "") << tiny.plan
        << "\n[training]\nsteps = 40\n"
        << (tiny.training.find("learning_rate") == std::string::npos ? "learning_rate = 1e-3\n" : "")
        << tiny.training << "\n";
    return path;
}

}  // namespace processes
