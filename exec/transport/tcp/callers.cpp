#include "exec/transport/tcp/callers.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include <fmt/core.h>

namespace exec::transport {

namespace {

using Clock = std::chrono::steady_clock;

// A handshake takes two round trips; a rank on a busy machine may be slow with them.
constexpr std::chrono::seconds handshake_limit(10);
// Callers at a time beyond the ranks: more descriptors than that are not given to strangers.
constexpr std::size_t most_strangers = 64;
constexpr int most_told = 20;

}  // namespace

Callers::Callers(const Socket& listener, const Connection& connection, int ranks, Tell tell)
    : listener_(listener),
      connection_(connection),
      most_pending_(most_strangers + 2 * std::max(0, ranks)),
      tell_(std::move(tell)) {}

std::optional<Callers::Caller> Callers::next(const Deadline& deadline) {
    while (true) {
        drop_late();
        std::vector<pollfd> polled = {{listener_.get(), POLLIN, 0}};
        for (const auto& [descriptor, who] : watched_) polled.push_back({descriptor, POLLRDHUP, 0});
        for (const Pending& one : pending_) polled.push_back({one.socket.get(), POLLIN, 0});
        const int ready = ::poll(polled.data(), polled.size(), wait_milliseconds(deadline));
        if (ready < 0 && errno != EINTR) fail_with_error("poll");
        if (ready <= 0) {
            if (ready == 0 && deadline.is_past()) return std::nullopt;
            continue;
        }
        for (std::size_t i = 0; i < watched_.size(); ++i)
            if (polled[1 + i].revents != 0)
                throw core::MachineError(fmt::format("{} is gone before the start", watched_[i].second));
        std::size_t i = 1 + watched_.size();
        for (Position one = pending_.begin(); one != pending_.end();) {
            const Position current = one++;
            if (polled[i++].revents == 0) continue;
            if (std::optional<Caller> caller = hear(current)) return caller;
        }
        if (polled[0].revents != 0) accept();
    }
}

int Callers::wait_milliseconds(const Deadline& deadline) const {
    int wait = deadline.milliseconds();
    if (pending_.empty()) return wait;
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(pending_.front().until - Clock::now()).count();
    return std::min<int>(wait, static_cast<int>(std::max<std::int64_t>(0, left)));
}

void Callers::drop_late() {
    while (!pending_.empty() && pending_.front().until <= Clock::now())
        drop(pending_.begin(), fmt::format("it said {} bytes in {} s, and not all that a rank says",
                                           pending_.front().handshake.said(), handshake_limit.count()));
}

void Callers::accept() {
    Socket socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket.is_open()) {
        // No descriptors are left: those who wait longest without a word give theirs.
        if ((errno == EMFILE || errno == ENFILE) && !pending_.empty())
            drop(pending_.begin(), "too many callers at a time");
        else if (errno != EINTR && errno != ECONNABORTED && errno != EAGAIN) fail_with_error("accept");
        return;
    }
    if (pending_.size() >= most_pending_) drop(pending_.begin(), "too many callers at a time");
    const std::optional<SocketAddress> address = peer_address(socket);
    pending_.push_back({std::move(socket), address ? address_text(*address) : "an unknown address",
                        ListenerHandshake(connection_), Clock::now() + handshake_limit});
}

std::optional<Callers::Caller> Callers::hear(Position pending) {
    std::array<std::byte, sizeof(Answer)> part;
    const std::size_t wanted = std::min(part.size(), pending->handshake.wanted());
    const ssize_t got = ::recv(pending->socket.get(), part.data(), wanted, MSG_DONTWAIT);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) return std::nullopt;
    if (got <= 0) {
        drop(pending, fmt::format("it went after {} bytes", pending->handshake.said()));
        return std::nullopt;
    }
    const std::vector<std::byte> reply =
        pending->handshake.take(std::span<const std::byte>(part.data(), got));
    // A new connection takes that much without waiting.
    if (!reply.empty() && ::send(pending->socket.get(), reply.data(), reply.size(),
                                 MSG_DONTWAIT | MSG_NOSIGNAL) != std::ssize(reply)) {
        drop(pending, "it does not take an answer");
        return std::nullopt;
    }
    if (pending->handshake.wanted() > 0) return std::nullopt;
    if (!pending->handshake.report()) {
        drop(pending, pending->handshake.refusal());
        return std::nullopt;
    }
    Caller caller{std::move(pending->socket), pending->handshake.connection(), *pending->handshake.report()};
    pending_.erase(pending);
    return caller;
}

void Callers::drop(Position pending, const std::string& why) {
    tell(pending->from, why);
    pending_.erase(pending);
}

void Callers::drop(const Caller& caller, const std::string& why) {
    const std::optional<SocketAddress> address = peer_address(caller.socket);
    tell(address ? address_text(*address) : "an unknown address", why);
}

void Callers::tell(const std::string& from, const std::string& why) {
    if (!tell_ || told_ > most_told) return;
    if (told_++ < most_told)
        tell_(fmt::format("a caller at {} is no rank of this job and was dropped: {}", from, why));
    else tell_("more callers were dropped");
}

}  // namespace exec::transport
