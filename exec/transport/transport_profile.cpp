#include "exec/transport/transport_profile.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>

#include <fmt/core.h>

#include "cluster/profile/load.h"
#include "core/diagnostics.h"
#include "exec/transport/authentication/authentication.h"
#include "exec/transport/job_token.h"
#include "exec/transport/mpi/mpi_wire.h"

namespace exec::transport {

namespace {

namespace fs = std::filesystem;

class TemporaryFolder {
public:
    TemporaryFolder() {
        std::error_code failure;
        path_ = (fs::temp_directory_path(failure) / "smexec-links-XXXXXX").string();
        if (failure || ::mkdtemp(path_.data()) == nullptr)
            throw core::MachineError(fmt::format("no folder for temporary files: {}", std::strerror(errno)));
    }
    ~TemporaryFolder() {
        std::error_code ignored;
        fs::remove_all(path_, ignored);
    }
    TemporaryFolder(const TemporaryFolder&) = delete;
    TemporaryFolder& operator=(const TemporaryFolder&) = delete;
    std::string file(const std::string& name) const { return path_ + "/" + name; }

private:
    std::string path_;
};

// A port that was free a moment ago. Where another process takes it in between, the connection fails with a
// message.
int free_port() {
    const int descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    const bool is_bound = descriptor >= 0 &&
                          ::bind(descriptor, reinterpret_cast<sockaddr*>(&address), length) == 0 &&
                          ::getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &length) == 0;
    if (descriptor >= 0) ::close(descriptor);
    if (!is_bound)
        throw core::MachineError(
            fmt::format("no port for a connection to this machine: {}", std::strerror(errno)));
    return ntohs(address.sin_port);
}

pid_t start(const std::vector<std::string>& command, const std::vector<std::string>& environment,
            const std::string& log) {
    // Everything is made before the fork: between it and exec a child of a process with threads may only make
    // system calls.
    std::vector<std::string> variables = environment;
    for (char** one = environ; *one != nullptr; ++one) variables.emplace_back(*one);
    std::vector<char*> arguments, values;
    for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
    for (std::string& variable : variables) values.push_back(variable.data());
    arguments.push_back(nullptr);
    values.push_back(nullptr);
    const pid_t id = ::fork();
    if (id < 0) throw core::MachineError(fmt::format("starting {}: {}", command[0], std::strerror(errno)));
    if (id == 0) {
        ::setpgid(0, 0);
        const int output = ::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
        ::dup2(output, 1);
        ::dup2(output, 2);
        ::execvpe(arguments[0], arguments.data(), values.data());
        ::_exit(127);
    }
    return id;
}

// True when all ended well within the limit.
bool wait_for(std::vector<pid_t> processes, core::Seconds limit) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(limit.value);
    bool is_good = true;
    while (!processes.empty() && std::chrono::steady_clock::now() < deadline) {
        std::erase_if(processes, [&](pid_t id) {
            int status = 0;
            if (::waitpid(id, &status, WNOHANG) != id) return false;
            is_good = is_good && WIFEXITED(status) && WEXITSTATUS(status) == 0;
            return true;
        });
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    for (const pid_t id : processes) {
        ::kill(-id, SIGKILL);
        ::waitpid(id, nullptr, 0);
    }
    return is_good && processes.empty();
}

MeasuredTransport measure(const std::string& name, const std::vector<std::vector<std::string>>& commands,
                          const std::vector<std::vector<std::string>>& environments,
                          const TemporaryFolder& folder, const std::string& file, core::Seconds limit) {
    MeasuredTransport result;
    result.name = name;
    std::vector<pid_t> processes;
    for (std::size_t i = 0; i < commands.size(); ++i)
        processes.push_back(start(commands[i], environments[i], folder.file(fmt::format("{}.{}", name, i))));
    if (!wait_for(std::move(processes), limit)) {
        result.failure =
            fmt::format("two ranks joined by {} did not come to an end in {}", name, core::format(limit));
        return result;
    }
    core::Diagnostics diagnostics;
    const std::optional<cluster::InstanceType> measured = cluster::load_instance(file, diagnostics);
    if (!measured || !measured->transports.contains(name))
        result.failure = fmt::format("two ranks joined by {} left no measurement", name);
    else result.rate = measured->transports.at(name);
    return result;
}

bool has_program(const std::string& name) {
    const char* const path = std::getenv("PATH");
    std::string_view rest = path ? path : "";
    while (!rest.empty()) {
        const std::size_t end = std::min(rest.find(':'), rest.size());
        if (::access((std::string(rest.substr(0, end)) + "/" + name).c_str(), X_OK) == 0) return true;
        rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    return false;
}

}  // namespace

std::vector<MeasuredTransport> measure_transports(const std::vector<std::string>& command,
                                                  core::Seconds time_limit) {
    const TemporaryFolder folder;
    const auto with = [&](std::vector<std::string> words, const char* ranks_from, const std::string& file) {
        words.insert(words.end(), command.begin(), command.end());
        words.insert(words.end(), {file, "--ranks-from", ranks_from});
        return words;
    };
    std::vector<MeasuredTransport> result;
    const std::string tcp = folder.file("tcp.toml"), mpi = folder.file("mpi.toml"),
                      port = fmt::format("MASTER_PORT={}", free_port());
    const std::string token = can_authenticate() ? make_token().secret : std::string();
    const auto rank = [&](int r) {
        return std::vector<std::string>{fmt::format("RANK={}", r), "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1",
                                        port, "SMEXEC_TOKEN=" + token};
    };
    result.push_back(measure("tcp", {with({}, "env", tcp), with({}, "env", tcp)}, {rank(0), rank(1)}, folder,
                             tcp, time_limit));
    if (!mpi::is_available()) {
        result.push_back({"mpi", {}, "this build has no MPI"});
    } else if (!has_program("mpirun")) {
        result.push_back({"mpi", {}, "there is no mpirun on this machine"});
    } else {
        // Ranks keep themselves on cores; a container's only user is root.
        const std::vector<std::string> mpirun = {
            "mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "2"};
        result.push_back(measure("mpi", {with(mpirun, "mpi", mpi)}, {{}}, folder, mpi, time_limit));
    }
    return result;
}

}  // namespace exec::transport
