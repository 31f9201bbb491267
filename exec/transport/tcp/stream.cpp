#include "exec/transport/tcp/stream.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include <fmt/core.h>

namespace exec::transport {

namespace {

using Clock = std::chrono::steady_clock;

bool wait_for(int descriptor, short events, const Deadline& deadline) {
    pollfd polled{descriptor, events, 0};
    int ready = 0;
    do ready = ::poll(&polled, 1, deadline.milliseconds());
    while (ready < 0 && errno == EINTR);
    return ready > 0;
}

// Why there is no connection, or an open socket.
Socket connect_once(const addrinfo& candidate, const std::optional<SocketAddress>& source,
                    const Deadline& deadline, std::string& failure) {
    if (source && source->storage.ss_family != candidate.ai_family) return Socket();
    Socket socket(::socket(candidate.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!socket.is_open()) return socket;
    if (source && ::bind(socket.get(), source->get(), source->length) != 0) {
        failure = fmt::format("calling from {}: {}", address_text(*source), std::strerror(errno));
        return Socket();
    }
    // A host that answers nothing at all would keep a plain connect() for two minutes.
    const int left = std::max(1, deadline.milliseconds());
    const timeval limit{left / 1000, left % 1000 * 1000}, none{};
    ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    if (::connect(socket.get(), candidate.ai_addr, candidate.ai_addrlen) == 0) {
        ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &none, sizeof none);
        return socket;
    }
    failure = errno == EINPROGRESS ? "no answer" : std::strerror(errno);
    return Socket();
}

}  // namespace

void fail_with_error(const std::string& what) {
    throw core::MachineError(fmt::format("{}: {}", what, std::strerror(errno)));
}

Deadline::Deadline(core::Seconds limit)
    : end_(Clock::now() +
           std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(limit.value))) {}

int Deadline::milliseconds() const {
    using std::chrono::milliseconds;
    const auto left = std::chrono::duration_cast<milliseconds>(end_ - Clock::now());
    return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 1'000'000'000));
}

bool Deadline::is_past() const { return Clock::now() >= end_; }

bool receive_all(int descriptor, void* into, std::size_t bytes, const Deadline& deadline) {
    auto* at = static_cast<std::byte*>(into);
    while (bytes > 0) {
        if (!wait_for(descriptor, POLLIN, deadline)) return false;
        const ssize_t got = ::recv(descriptor, at, bytes, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        at += got;
        bytes -= got;
    }
    return true;
}

bool send_all(int descriptor, const void* from, std::size_t bytes) {
    const auto* at = static_cast<const std::byte*>(from);
    while (bytes > 0) {
        const ssize_t sent = ::send(descriptor, at, bytes, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) return false;
        at += sent;
        bytes -= sent;
    }
    return true;
}

Socket connect_to(const std::string& address, int port, const std::optional<SocketAddress>& source,
                  const Deadline& deadline, const std::string& whom) {
    std::string last = "nobody answers";
    do {
        addrinfo hints{}, *found = nullptr;
        hints.ai_socktype = SOCK_STREAM;
        const int error = ::getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found);
        if (error != 0) last = ::gai_strerror(error);
        Socket socket;
        for (const addrinfo* candidate = found; candidate && !socket.is_open();
             candidate = candidate->ai_next)
            socket = connect_once(*candidate, source, deadline, last);
        if (found) ::freeaddrinfo(found);
        if (socket.is_open()) return socket;
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    } while (!deadline.is_past());
    throw core::MachineError(fmt::format("no connection to {} at {}:{}: {}", whom, address, port, last));
}

void prepare(const Socket& socket) {
    const int on = 1;
    ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    // A host that vanished without a word is noticed within some twenty seconds.
    const int idle = 5, interval = 5, count = 3;
    const unsigned int unacknowledged_milliseconds = 20000;
    ::setsockopt(socket.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    ::setsockopt(socket.get(), IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    ::setsockopt(socket.get(), IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    ::setsockopt(socket.get(), IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
    ::setsockopt(socket.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &unacknowledged_milliseconds,
                 sizeof unacknowledged_milliseconds);
}

SocketAddress local_address(const Socket& socket) {
    SocketAddress address;
    address.length = sizeof address.storage;
    if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address.storage), &address.length) != 0)
        fail_with_error("getsockname");
    return address;
}

std::optional<SocketAddress> peer_address(const Socket& socket) {
    SocketAddress address;
    address.length = sizeof address.storage;
    if (::getpeername(socket.get(), reinterpret_cast<sockaddr*>(&address.storage), &address.length) != 0)
        return std::nullopt;
    // A listener of version 6 sees those of version 4 as mapped addresses, by which nobody else knows them.
    const auto& six = reinterpret_cast<const sockaddr_in6&>(address.storage);
    if (address.storage.ss_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&six.sin6_addr)) return address;
    sockaddr_in four{};
    four.sin_family = AF_INET;
    four.sin_port = six.sin6_port;
    std::memcpy(&four.sin_addr, six.sin6_addr.s6_addr + 12, sizeof four.sin_addr);
    SocketAddress plain;
    plain.length = sizeof four;
    std::memcpy(&plain.storage, &four, sizeof four);
    return plain;
}

bool is_loopback(const SocketAddress& address) {
    if (address.storage.ss_family == AF_INET)
        return ntohl(reinterpret_cast<const sockaddr_in&>(address.storage).sin_addr.s_addr) >> 24 == 127;
    if (address.storage.ss_family != AF_INET6) return false;
    const in6_addr& six = reinterpret_cast<const sockaddr_in6&>(address.storage).sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(&six) || (IN6_IS_ADDR_V4MAPPED(&six) && six.s6_addr[12] == 127);
}

std::string address_text(const SocketAddress& address) {
    char text[64] = {};
    if (::getnameinfo(address.get(), address.length, text, sizeof text, nullptr, 0, NI_NUMERICHOST) != 0)
        return "an unknown address";
    return text;
}

}  // namespace exec::transport
