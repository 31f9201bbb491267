// Blocking work with one TCP connection, before it becomes part of a wire.
#pragma once

#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>

#include "core/errors.h"
#include "core/units.h"
#include "exec/file_descriptor.h"

namespace exec::transport {

using Socket = FileDescriptor;

struct SocketAddress {
    sockaddr_storage storage{};
    socklen_t length = 0;
    const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

// core::MachineError with the system's words after `what`.
[[noreturn]] void fail_with_error(const std::string& what);

class Deadline {
public:
    explicit Deadline(core::Seconds limit);
    int milliseconds() const;  // left
    bool is_past() const;

private:
    std::chrono::steady_clock::time_point end_;
};

// False when the peer closes, or time is up.
bool receive_all(int descriptor, void* into, std::size_t bytes, const Deadline& deadline);
// False when the peer is gone.
bool send_all(int descriptor, const void* from, std::size_t bytes);

// Tries again until a process listens there. `source`: the address of this host to call from. Throws
// core::MachineError that names `whom` when time is up.
Socket connect_to(const std::string& address, int port, const std::optional<SocketAddress>& source,
                  const Deadline& deadline, const std::string& whom);
// Sends at once, and notices a host that vanished without a word.
void prepare(const Socket& socket);

SocketAddress local_address(const Socket& socket);
bool is_loopback(const SocketAddress& address);
std::string address_text(const SocketAddress& address);
// Of the other end; nothing when it is gone already.
std::optional<SocketAddress> peer_address(const Socket& socket);

}  // namespace exec::transport
