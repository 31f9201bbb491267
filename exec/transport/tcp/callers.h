// Who calls while ranks join: each has its handshake to itself, none is waited for alone, and none can end
// the job. A caller may be a program of another kind, a rank that ends half-way, or one with ill intent.
#pragma once

#include <chrono>
#include <functional>
#include <list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "exec/transport/tcp/handshake.h"
#include "exec/transport/tcp/stream.h"

namespace exec::transport {

class Callers {
public:
    using Tell = std::function<void(const std::string&)>;

    // `connection`: what is common to all of this listener's. `ranks`: how many callers there should be.
    Callers(const Socket& listener, const Connection& connection, int ranks, Tell tell);

    // Ranks that are connected already: when one of them goes, those that wait for others are told.
    void watch(int descriptor, std::string who) { watched_.emplace_back(descriptor, std::move(who)); }

    struct Caller {
        Socket socket;
        Connection connection;
        Report report;
    };
    // The next that has proven that it is of this job; none when time is up. Throws core::MachineError when a
    // watched rank is gone.
    std::optional<Caller> next(const Deadline& deadline);

    // A caller that proved its token and is let go all the same.
    void drop(const Caller& caller, const std::string& why);

private:
    struct Pending {
        Socket socket;
        std::string from;
        ListenerHandshake handshake;
        std::chrono::steady_clock::time_point until;
    };
    using Position = std::list<Pending>::iterator;

    void accept();
    void drop_late();
    void drop(Position pending, const std::string& why);
    void tell(const std::string& from, const std::string& why);
    // What it has said; the caller once all is said and proven.
    std::optional<Caller> hear(Position pending);
    int wait_milliseconds(const Deadline& deadline) const;

    const Socket& listener_;
    const Connection connection_;
    const std::size_t most_pending_;
    const Tell tell_;
    int told_ = 0;
    std::list<Pending> pending_;  // the oldest first
    std::vector<std::pair<int, std::string>> watched_;
};

}  // namespace exec::transport
