#include "exec/checkpoint/durable_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include <fmt/core.h>

#include "core/errors.h"
#include "exec/file_descriptor.h"

namespace exec {

namespace {

// A file beyond the limit of RLIMIT_FSIZE is an error like a full disk, not the end of the process.
class IgnoredSizeSignal {
public:
    IgnoredSizeSignal() {
        sigset_t wanted;
        sigemptyset(&wanted);
        sigaddset(&wanted, SIGXFSZ);
        pthread_sigmask(SIG_BLOCK, &wanted, &before_);
    }
    ~IgnoredSizeSignal() {
        // One that came is taken away before it could be delivered.
        sigset_t wanted;
        sigemptyset(&wanted);
        sigaddset(&wanted, SIGXFSZ);
        const timespec at_once{};
        while (sigtimedwait(&wanted, nullptr, &at_once) > 0) {
        }
        pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    }

private:
    sigset_t before_;
};

}  // namespace

void throw_system_error(const std::string& what, const std::string& path) {
    throw core::MachineError(fmt::format("{} {}: {}", what, path, std::strerror(errno)));
}

void synchronize_directory(const std::string& path) {
    const FileDescriptor directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!directory.is_open() || ::fsync(directory.get()) != 0) throw_system_error("synchronising", path);
}

void write_durably(const std::string& folder, const std::string& name, FileParts parts) {
    const std::string path = folder + "/" + name, temporary = path + ".writing";
    const IgnoredSizeSignal ignored;
    {
        const FileDescriptor file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
        if (!file.is_open()) throw_system_error("creating", temporary);
        for (std::span<const std::byte> rest : parts)
            while (!rest.empty()) {
                const ssize_t bytes = ::write(file.get(), rest.data(), rest.size());
                if (bytes < 0 && errno == EINTR) continue;
                if (bytes < 0) throw_system_error("writing", temporary);
                rest = rest.subspan(bytes);
            }
        if (::fsync(file.get()) != 0) throw_system_error("synchronising", temporary);
    }
    if (::rename(temporary.c_str(), path.c_str()) != 0) throw_system_error("renaming", temporary);
    synchronize_directory(folder);
}

}  // namespace exec
