#include "exec/checkpoint/checkpoint_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>

#include <fmt/core.h>

#include "core/errors.h"

namespace exec {

namespace {

constexpr std::chrono::milliseconds between_attempts(50);

std::string holder_in(int descriptor) {
    std::array<char, 512> text{};
    const ssize_t bytes = ::pread(descriptor, text.data(), text.size(), 0);
    std::string words(text.data(), bytes > 0 ? bytes : 0);
    words.resize(std::min(words.find('\n'), words.size()));
    return words.empty() ? "another process" : words;
}

// For those who find it locked; a lock without a name is a lock too.
void sign(int descriptor) {
    std::array<char, 256> host{};
    if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '?';
    const std::string text = fmt::format("process {} on {}\n", ::getpid(), host.data());
    if (::ftruncate(descriptor, 0) == 0)
        static_cast<void>(::pwrite(descriptor, text.data(), text.size(), 0) > 0);
}

}  // namespace

CheckpointLock lock_checkpoints(const std::string& directory, core::Seconds patience) {
    std::error_code error;
    std::filesystem::create_directories(directory, error);
    if (error) throw core::MachineError(fmt::format("creating {}: {}", directory, error.message()));
    const std::string path = directory + "/job.lock";
    FileDescriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
    if (!file.is_open()) throw core::MachineError(fmt::format("opening {}: {}", path, std::strerror(errno)));
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(patience.value);
    CheckpointLock lock;
    while (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
        if (errno == EINTR) continue;
        if (errno != EWOULDBLOCK) {
            lock.unavailable = fmt::format("locking {}: {}", path, std::strerror(errno));
            return lock;
        }
        if (std::chrono::steady_clock::now() >= deadline) {
            lock.holder = holder_in(file.get());
            return lock;
        }
        std::this_thread::sleep_for(between_attempts);
    }
    sign(file.get());
    lock.held = std::move(file);
    return lock;
}

}  // namespace exec
