// How ranks find each other: every rank reports to rank 0, which answers with a table of the addresses at
// which ranks listen.
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <optional>
#include <thread>

#include <fmt/core.h>

#include "core/errors.h"
#include "core/index/integers.h"
#include "exec/file_descriptor.h"
#include "exec/transport/tcp/socket_wire.h"

namespace exec::transport {

namespace {

using Clock = std::chrono::steady_clock;

using Socket = FileDescriptor;

[[noreturn]] void fail(const std::string& what) { throw core::MachineError(what); }
[[noreturn]] void fail_with_error(const std::string& what) {
    fail(fmt::format("{}: {}", what, std::strerror(errno)));
}

// Fixed-size words of the bootstrap; a program of another kind that connects is told apart by the first.
struct Report {
    char magic[8] = {'s', 'm', 'e', 'x', 'e', 'c', '0', '1'};
    std::int32_t rank = 0, size = 0;
    std::int32_t port = 0;  // where this rank listens
    char host[256] = {};
};
struct Entry {
    std::int32_t launch_rank = 0, port = 0;
    char host[256] = {};
    char address[64] = {};  // empty: rank 0's host, at the address by which one reaches rank 0
};

class Deadline {
public:
    explicit Deadline(core::Seconds limit)
        : end_(Clock::now() +
               std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(limit.value))) {}
    int milliseconds() const {
        return static_cast<int>(std::max<std::int64_t>(
            0, std::chrono::duration_cast<std::chrono::milliseconds>(end_ - Clock::now()).count()));
    }
    bool is_past() const { return Clock::now() >= end_; }

private:
    Clock::time_point end_;
};

bool wait_for(int descriptor, short events, const Deadline& deadline) {
    pollfd polled{descriptor, events, 0};
    int ready = 0;
    do ready = ::poll(&polled, 1, deadline.milliseconds());
    while (ready < 0 && errno == EINTR);
    return ready > 0;
}

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

Socket listen_at(int port) {
    // A caller may be gone before accept(), which must not wait then.
    Socket socket(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const bool has_version_6 = socket.is_open();
    if (!has_version_6) socket = Socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket.is_open()) fail_with_error("socket");
    const int on = 1, off = 0;
    ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    int bound = -1;
    if (has_version_6) {
        ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
        sockaddr_in6 address{};
        address.sin6_family = AF_INET6;
        address.sin6_addr = in6addr_any;
        address.sin6_port = htons(static_cast<std::uint16_t>(port));
        bound = ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
    } else {
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_ANY);
        address.sin_port = htons(static_cast<std::uint16_t>(port));
        bound = ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
    }
    if (bound != 0) fail_with_error(fmt::format("rank 0 cannot listen at port {} (MASTER_PORT)", port));
    if (::listen(socket.get(), 1024) != 0) fail_with_error("listen");
    return socket;
}

int port_of(const Socket& socket) {
    sockaddr_storage address{};
    socklen_t length = sizeof address;
    if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0)
        fail_with_error("getsockname");
    return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                               : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

bool is_loopback(const sockaddr_storage& address) {
    if (address.ss_family == AF_INET)
        return ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr) >> 24 == 127;
    if (address.ss_family != AF_INET6) return false;
    const in6_addr& six = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(&six) || (IN6_IS_ADDR_V4MAPPED(&six) && six.s6_addr[12] == 127);
}

// Empty on the loopback interface: the peer is on this host, and has no address there that another host could
// use.
std::string address_of_peer(const Socket& socket) {
    sockaddr_storage address{};
    socklen_t length = sizeof address;
    char text[64] = {};
    const bool is_known = ::getpeername(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0;
    if (is_known && is_loopback(address)) return {};
    if (!is_known || ::getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, text, sizeof text,
                                   nullptr, 0, NI_NUMERICHOST) != 0)
        fail_with_error("getpeername");
    return text;
}

// Connections whose first words are still coming. A caller may be a program of another kind that sends
// nothing, or a rank that ends half-way: no caller is waited for alone.
class PendingConnections {
public:
    explicit PendingConnections(const Socket& listener) : listener_(listener) {}

    // Ranks that are connected already: when one of them goes, those that wait for others are told.
    void watch(int descriptor, std::string who) { watched_.emplace_back(descriptor, std::move(who)); }

    // The next caller that has said all of `hello`; none when time is up.
    template <class Hello>
    Socket next(Hello& hello, const Deadline& deadline) {
        while (true) {
            std::vector<pollfd> polled = {{listener_.get(), POLLIN, 0}};
            for (const Caller& caller : callers_) polled.push_back({caller.socket.get(), POLLIN, 0});
            for (const auto& [descriptor, who] : watched_) polled.push_back({descriptor, POLLRDHUP, 0});
            const int ready = ::poll(polled.data(), polled.size(), deadline.milliseconds());
            if (ready < 0 && errno != EINTR) fail_with_error("poll");
            if (ready == 0) return Socket();
            if (ready < 0) continue;
            for (std::size_t i = 0; i < watched_.size(); ++i)
                if (polled[1 + callers_.size() + i].revents != 0)
                    fail(fmt::format("{} is gone before the start", watched_[i].second));
            for (std::size_t i = callers_.size(); i-- > 0;) {
                if (polled[1 + i].revents == 0) continue;
                Caller& caller = callers_[i];
                std::byte part[sizeof(Hello)];
                const ssize_t got =
                    ::recv(caller.socket.get(), part, sizeof(Hello) - caller.said.size(), MSG_DONTWAIT);
                if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
                if (got > 0) caller.said.insert(caller.said.end(), part, part + got);
                if (got > 0 && caller.said.size() < sizeof(Hello)) continue;
                Socket socket = std::move(caller.socket);
                if (got > 0) std::memcpy(&hello, caller.said.data(), sizeof hello);
                callers_.erase(callers_.begin() + i);
                if (got > 0) return socket;
            }
            if (polled[0].revents == 0) continue;
            const int accepted = ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC);
            if (accepted >= 0) callers_.push_back({Socket(accepted), {}});
            else if (errno != EINTR && errno != ECONNABORTED && errno != EAGAIN) fail_with_error("accept");
        }
    }

private:
    struct Caller {
        Socket socket;
        std::vector<std::byte> said;
    };
    const Socket& listener_;
    std::vector<Caller> callers_;
    std::vector<std::pair<int, std::string>> watched_;
};

// Tries again until a process listens there.
Socket connect_to(const std::string& address, int port, const Deadline& deadline, const std::string& whom) {
    std::string last = "nobody answers";
    do {
        addrinfo hints{}, *found = nullptr;
        hints.ai_socktype = SOCK_STREAM;
        const int error = ::getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found);
        if (error != 0) last = ::gai_strerror(error);
        for (const addrinfo* candidate = found; candidate; candidate = candidate->ai_next) {
            Socket socket(::socket(candidate->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
            if (!socket.is_open()) continue;
            // A host that answers nothing at all would keep a plain connect() for two minutes.
            const int left = std::max(1, deadline.milliseconds());
            const timeval limit{left / 1000, left % 1000 * 1000}, none{};
            ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
            if (::connect(socket.get(), candidate->ai_addr, candidate->ai_addrlen) == 0) {
                ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &none, sizeof none);
                ::freeaddrinfo(found);
                return socket;
            }
            last = errno == EINPROGRESS ? "no answer" : std::strerror(errno);
        }
        if (found) ::freeaddrinfo(found);
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    } while (!deadline.is_past());
    fail(fmt::format("no connection to {} at {}:{}: {}", whom, address, port, last));
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

void set_text(char* at, std::size_t size, const std::string& text) {
    std::snprintf(at, size, "%s", text.c_str());
}

std::string own_host() {
    char name[256] = {};
    if (::gethostname(name, sizeof name - 1) != 0) return "unknown";
    return name;
}

struct Member {
    Report report;
    Socket socket;
    std::string address;
};

// Rank 0's part: the reports of all ranks, by launch rank.
std::vector<Member> collect(const Launch& launch, const Socket& listener, const Deadline& deadline) {
    std::vector<Member> members(launch.size);
    PendingConnections pending(listener);
    for (int missing = launch.size - 1; missing > 0;) {
        Report report;
        Socket socket = pending.next(report, deadline);
        if (!socket.is_open()) {
            std::string absent;
            for (int r = 1; r < launch.size; ++r)
                if (!members[r].socket.is_open()) absent += fmt::format(" {}", r);
            fail(fmt::format("of {} ranks these did not report to rank 0 in time:{}", launch.size, absent));
        }
        if (std::memcmp(report.magic, Report{}.magic, sizeof report.magic) != 0) continue;
        report.host[sizeof report.host - 1] = 0;
        if (report.size != launch.size || report.rank < 1 || report.rank >= launch.size)
            fail(fmt::format("a process on {} says it is rank {} of {}; rank 0 knows {} ranks", report.host,
                             report.rank, report.size, launch.size));
        Member& member = members[report.rank];
        if (member.socket.is_open())
            fail(fmt::format("two processes say they are rank {}: on {} and on {}", report.rank,
                             member.report.host, report.host));
        member.address = address_of_peer(socket);
        member.report = report;
        member.socket = std::move(socket);
        pending.watch(member.socket.get(), fmt::format("rank {} on {}", report.rank, report.host));
        --missing;
    }
    return members;
}

std::vector<Entry> table_of(const std::vector<Member>& members) {
    std::map<std::string, int> first_seen;
    std::vector<std::pair<int, int>> order;  // (host, launch rank)
    for (const std::int32_t r : core::indices(members))
        order.emplace_back(
            first_seen.emplace(members[r].report.host, core::count_of(first_seen)).first->second, r);
    std::sort(order.begin(), order.end());
    std::vector<Entry> table;
    for (const auto& [host, launch_rank] : order) {
        const Member& member = members[launch_rank];
        Entry& entry = table.emplace_back();
        entry.launch_rank = launch_rank;
        entry.port = member.report.port;
        set_text(entry.host, sizeof entry.host, member.report.host);
        set_text(entry.address, sizeof entry.address, member.address);
    }
    return table;
}

}  // namespace

std::unique_ptr<Wire> connect_all(const Launch& launch, core::Seconds time_limit,
                                  std::vector<std::string>& hosts) {
    const Deadline deadline(time_limit);
    const auto size = static_cast<std::size_t>(launch.size);
    std::vector<Entry> table(size);
    std::vector<Socket> sockets(size);  // by new rank
    const Socket listener = listen_at(launch.rank == 0 ? launch.port : 0);
    if (launch.rank == 0) {
        std::vector<Member> members = collect(launch, listener, deadline);
        set_text(members[0].report.host, sizeof members[0].report.host, own_host());
        table = table_of(members);
        for (std::size_t i = 1; i < size; ++i) {
            sockets[i] = std::move(members[table[i].launch_rank].socket);
            if (!send_all(sockets[i].get(), table.data(), size * sizeof(Entry)))
                fail(fmt::format("rank {} is gone before the start", table[i].launch_rank));
        }
    } else {
        Socket first = connect_to(launch.address, launch.port, deadline, "rank 0");
        Report report;
        report.rank = launch.rank;
        report.size = launch.size;
        report.port = port_of(listener);
        set_text(report.host, sizeof report.host, own_host());
        if (!send_all(first.get(), &report, sizeof report) ||
            !receive_all(first.get(), table.data(), size * sizeof(Entry), deadline))
            fail(fmt::format("rank 0 at {}:{} closed the connection: not all ranks came, or it is no smexec",
                             launch.address, launch.port));
        sockets[0] = std::move(first);
    }
    const auto own = static_cast<std::size_t>(
        std::find_if(table.begin(), table.end(),
                     [&](const Entry& entry) { return entry.launch_rank == launch.rank; }) -
        table.begin());
    core::require(own < size, "rank 0's table has every rank");
    for (std::size_t lower = 1; lower < own; ++lower) {
        // Debian's /etc/hosts gives a host's own name the address 127.0.1.1: ranks beside rank 0 reach it
        // there, others by the network's address for that name.
        const std::string address = table[lower].address[0] == 0 ? launch.address : table[lower].address;
        sockets[lower] = connect_to(address, table[lower].port, deadline, fmt::format("rank {}", lower));
        const auto number = static_cast<std::int32_t>(own);
        if (!send_all(sockets[lower].get(), &number, sizeof number))
            fail(fmt::format("rank {} is gone before the start", lower));
    }
    PendingConnections pending(listener);
    for (std::size_t i = 0; i < own; ++i) pending.watch(sockets[i].get(), fmt::format("rank {}", i));
    for (std::size_t missing = own == 0 ? 0 : size - 1 - own; missing > 0;) {
        std::int32_t number = -1;
        Socket socket = pending.next(number, deadline);
        if (!socket.is_open()) fail(fmt::format("rank {}: not all higher ranks connected in time", own));
        // Something that is no rank is let go.
        if (number <= static_cast<std::int32_t>(own) || number >= launch.size || sockets[number].is_open())
            continue;
        pending.watch(socket.get(), fmt::format("rank {}", number));
        sockets[number] = std::move(socket);
        --missing;
    }
    hosts.clear();
    std::vector<std::optional<int>> descriptors;
    for (std::size_t i = 0; i < size; ++i) {
        hosts.emplace_back(table[i].host);
        if (i == own) {
            descriptors.push_back(std::nullopt);
            continue;
        }
        prepare(sockets[i]);
        descriptors.push_back(sockets[i].release());
    }
    return make_socket_wire(static_cast<int>(own), std::move(descriptors));
}

}  // namespace exec::transport
