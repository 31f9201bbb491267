// A POSIX file descriptor that is closed with its owner: a file's or a socket's.
#pragma once

#include <unistd.h>

#include <optional>
#include <utility>

namespace exec {

class FileDescriptor {
public:
    FileDescriptor() = default;
    // Takes over what open(), socket() and their like return; a negative number is their failure, and leaves
    // this one closed.
    explicit FileDescriptor(int result) {
        if (result >= 0) descriptor_ = result;
    }
    FileDescriptor(FileDescriptor&& other) noexcept : descriptor_(std::exchange(other.descriptor_, {})) {}
    FileDescriptor& operator=(FileDescriptor&& other) noexcept {
        std::swap(descriptor_, other.descriptor_);
        return *this;
    }
    ~FileDescriptor() { close(); }

    bool is_open() const { return descriptor_.has_value(); }
    // Of an open one only.
    int get() const { return descriptor_.value(); }
    int release() { return std::exchange(descriptor_, {}).value(); }
    void close() {
        if (descriptor_) ::close(*descriptor_);
        descriptor_.reset();
    }

private:
    std::optional<int> descriptor_;
};

}  // namespace exec
