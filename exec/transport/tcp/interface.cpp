#include "exec/transport/tcp/interface.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>

#include <cerrno>
#include <cstring>
#include <set>
#include <vector>

#include <fmt/core.h>

#include "core/diagnostics.h"

namespace exec::transport {

namespace {

constexpr int waiting_callers = 1024;  // of one listen()

SocketAddress copy_of(const sockaddr* address) {
    SocketAddress result;
    result.length = address->sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    std::memcpy(&result.storage, address, result.length);
    return result;
}

// With the same address, whatever the port.
bool is_same(const SocketAddress& a, const SocketAddress& b) { return address_text(a) == address_text(b); }

struct NamedAddress {
    std::string interface;
    SocketAddress address;
};

// Those of version 4 first, which a name is more often known by.
std::vector<NamedAddress> own_addresses() {
    std::vector<NamedAddress> result;
    ifaddrs* all = nullptr;
    if (::getifaddrs(&all) != 0) fail_with_error("getifaddrs");
    for (const int family : {AF_INET, AF_INET6})
        for (const ifaddrs* one = all; one; one = one->ifa_next)
            if (one->ifa_addr && one->ifa_addr->sa_family == family)
                result.push_back({one->ifa_name, copy_of(one->ifa_addr)});
    ::freeifaddrs(all);
    return result;
}

std::vector<SocketAddress> addresses_named(const std::string& name, int flags) {
    addrinfo hints{}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = flags;
    std::vector<SocketAddress> result;
    if (::getaddrinfo(name.c_str(), nullptr, &hints, &found) != 0) return result;
    for (const int family : {AF_INET, AF_INET6})
        for (const addrinfo* one = found; one; one = one->ai_next)
            if (one->ai_family == family) result.push_back(copy_of(one->ai_addr));
    ::freeaddrinfo(found);
    return result;
}

bool is_here(const SocketAddress& address, const std::vector<NamedAddress>& here) {
    if (is_loopback(address)) return true;
    for (const NamedAddress& own : here)
        if (is_same(own.address, address)) return true;
    return false;
}

}  // namespace

ListeningAddress address_of_interface(const std::string& interface, core::Diagnostics& diagnostics) {
    if (interface == "all") return std::nullopt;
    const std::vector<NamedAddress> here = own_addresses();
    std::set<std::string> names;
    for (const NamedAddress& own : here) {
        if (own.interface == interface) return own.address;
        names.insert(own.interface);
    }
    for (const SocketAddress& address : addresses_named(interface, AI_NUMERICHOST))
        if (is_here(address, here)) return address;
    diagnostics.error({}, "--interface",
                      fmt::format("this host has no interface or address {}", core::in_quotes(interface)),
                      "its interfaces are " +
                          core::list_in_words(std::vector<std::string>(names.begin(), names.end())) +
                          "; all listens on every one");
    return std::nullopt;
}

ListeningAddress own_address(const std::string& name) {
    const std::vector<SocketAddress> numbers = addresses_named(name, AI_NUMERICHOST);
    const bool means_this_host = !numbers.empty() || name == "localhost";
    const std::vector<NamedAddress> here = own_addresses();
    for (const SocketAddress& address : numbers.empty() ? addresses_named(name, 0) : numbers)
        if (is_here(address, here) && (means_this_host || !is_loopback(address))) return address;
    return std::nullopt;
}

Socket listen_at(const ListeningAddress& address, int port) {
    SocketAddress where = address.value_or(SocketAddress{});
    // A caller may be gone before accept(), which must not wait then.
    constexpr int kind = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;
    Socket socket;
    if (address) {
        socket = Socket(::socket(where.storage.ss_family, kind, 0));
    } else {
        socket = Socket(::socket(AF_INET6, kind, 0));
        const int off = 0;
        if (socket.is_open()) {
            ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
            auto& six = reinterpret_cast<sockaddr_in6&>(where.storage);
            six.sin6_family = AF_INET6;
            six.sin6_addr = in6addr_any;
            where.length = sizeof six;
        } else {
            socket = Socket(::socket(AF_INET, kind, 0));
            auto& four = reinterpret_cast<sockaddr_in&>(where.storage);
            four.sin_family = AF_INET;
            four.sin_addr.s_addr = htonl(INADDR_ANY);
            where.length = sizeof four;
        }
    }
    if (!socket.is_open()) fail_with_error("socket");
    const int on = 1;
    ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    const std::uint16_t number = htons(static_cast<std::uint16_t>(port));
    if (where.storage.ss_family == AF_INET6)
        reinterpret_cast<sockaddr_in6&>(where.storage).sin6_port = number;
    else reinterpret_cast<sockaddr_in&>(where.storage).sin_port = number;
    if (::bind(socket.get(), where.get(), where.length) != 0)
        fail_with_error(port == 0 ? "bind"
                                  : fmt::format("rank 0 cannot listen at port {} (MASTER_PORT)", port));
    if (::listen(socket.get(), waiting_callers) != 0) fail_with_error("listen");
    return socket;
}

int port_of(const Socket& socket) {
    const SocketAddress address = local_address(socket);
    return ntohs(address.storage.ss_family == AF_INET6
                     ? reinterpret_cast<const sockaddr_in6&>(address.storage).sin6_port
                     : reinterpret_cast<const sockaddr_in&>(address.storage).sin_port);
}

}  // namespace exec::transport
