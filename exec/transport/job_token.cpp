#include "exec/transport/job_token.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "exec/file_descriptor.h"
#include "exec/transport/authentication/authentication.h"

namespace exec::transport {

namespace {

// 128 bits in hexadecimal digits are 32 characters; words of a person may be denser, but not half as long.
constexpr std::size_t fewest_characters = 16, most_characters = 4096;

const char* const how = "openssl rand -hex 32 makes a good one";

std::string trimmed(std::string text) {
    while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' '))
        text.pop_back();
    return text;
}

// A file of its owner's alone, there as a whole or not at all.
void make_file(const std::string& path) {
    const std::string temporary = fmt::format("{}.{}", path, ::getpid());
    const std::string text = make_token().secret + "\n";
    {
        const FileDescriptor file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
        if (!file.is_open())
            throw core::MachineError(fmt::format("creating {}: {}", temporary, std::strerror(errno)));
        if (::write(file.get(), text.data(), text.size()) != std::ssize(text))
            throw core::MachineError(fmt::format("writing {}: {}", temporary, std::strerror(errno)));
    }
    const bool is_made = ::link(temporary.c_str(), path.c_str()) == 0 || errno == EEXIST;
    const int error = errno;
    ::unlink(temporary.c_str());
    if (!is_made) throw core::MachineError(fmt::format("creating {}: {}", path, std::strerror(error)));
}

void check(const std::string& secret, const std::string& key, core::Diagnostics& diagnostics) {
    if (secret.size() < fewest_characters || secret.size() > most_characters)
        diagnostics.error({}, key, fmt::format("the job's token has {} characters", secret.size()),
                          fmt::format("it takes {} to {}: {}", fewest_characters, most_characters, how));
    else if (!can_authenticate())
        diagnostics.error({}, key, "this build has no libcrypto, without which a token proves nothing",
                          "install libssl-dev and build again");
}

std::string read_file(const std::string& path, core::Diagnostics& diagnostics) {
    const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    struct stat status{};
    if (!file.is_open() || ::fstat(file.get(), &status) != 0) {
        diagnostics.error({}, "--token-file",
                          fmt::format("{}: {}", core::in_quotes(path), std::strerror(errno)),
                          "name the file with the job's token; rank 0 makes one that is not there");
        return {};
    }
    if ((status.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
        diagnostics.error({}, "--token-file",
                          fmt::format("others than its owner may use {}", core::in_quotes(path)),
                          fmt::format("chmod 600 {}", path));
        return {};
    }
    std::array<char, most_characters + 1> text{};
    const ssize_t bytes = ::read(file.get(), text.data(), text.size());
    return trimmed(std::string(text.data(), bytes > 0 ? bytes : 0));
}

}  // namespace

JobToken make_token() {
    JobToken token;
    for (const std::byte one : random_nonce())
        token.secret += fmt::format("{:02x}", std::to_integer<unsigned int>(one));
    return token;
}

JobToken find_token(const Launch& launch, const std::optional<std::string>& file, core::Seconds limit,
                    const Environment& environment, core::Diagnostics& diagnostics) {
    JobToken token;
    if (launch.is_mpi) return token;  // MPI joins its ranks itself
    const std::optional<std::string> own = environment("SMEXEC_TOKEN");
    if (!file && own) {
        token.secret = trimmed(*own);
        check(token.secret, "SMEXEC_TOKEN", diagnostics);
        return token;
    }
    const std::optional<std::string> path = file ? file : environment("SMEXEC_TOKEN_FILE");
    if (!path) return token;
    if (launch.rank == 0 && ::access(path->c_str(), F_OK) != 0) make_file(*path);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(limit.value);
    while (::access(path->c_str(), F_OK) != 0 && std::chrono::steady_clock::now() < deadline)
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
    token.secret = read_file(*path, diagnostics);
    if (!diagnostics.has_errors()) check(token.secret, "--token-file", diagnostics);
    return token;
}

}  // namespace exec::transport
