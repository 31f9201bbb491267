// How two ends of a new connection prove to each other that they are of one job, before either believes a
// word: each sends a number that was never used, and answers the other's with an authenticator under the
// job's token. What was recorded proves nothing later; nothing that a stranger sends has a length of its own.
//
//   caller                                        listener
//   Greeting { magic, nonce }               ->
//                                           <-    Greeting { magic, nonce }
//   Answer { report, authenticator }        ->
//                                           <-    Verdict { is_accepted, authenticator }
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "exec/transport/authentication/authentication.h"
#include "exec/transport/job_token.h"

namespace exec::transport {

struct Greeting {
    char magic[8] = {'s', 'm', 'e', 'x', 'e', 'c', '0', '2'};
    Nonce nonce{};
};

// Who a caller says it is. To rank 0, before ranks have their numbers: by the launcher's.
struct Report {
    std::int32_t rank = 0, size = 0;
    std::int32_t port = 0;  // where this rank listens
    char host[256] = {};
};

struct Answer {
    Report report;
    Authenticator proof{};
};

struct Verdict {
    std::uint32_t is_accepted = 0;
    Authenticator proof{};  // of an acceptance
};

// What both ends know of a connection: what is proven for one holds for no other.
struct Connection {
    std::span<const std::byte> token;
    Nonce job{};                // made by rank 0 for one start; zero before a rank knows it
    std::int32_t listener = 0;  // the rank that is called
    Nonce caller_nonce{}, listener_nonce{};
};

std::span<const std::byte> key_of(const JobToken& token);
Authenticator prove_caller(const Connection& connection, const Report& report);
Authenticator prove_listener(const Connection& connection, const Report& report);
// Of bytes that rank 0 sends after its verdict.
Authenticator prove_content(const Connection& connection, std::span<const std::byte> content);

// The listener's side, without a socket: bytes in, bytes out.
class ListenerHandshake {
public:
    explicit ListenerHandshake(const Connection& connection);

    // How many more bytes this side waits for; 0 = it has come to its end.
    std::size_t wanted() const;
    // At most as many as wanted. What is to be sent in return.
    std::vector<std::byte> take(std::span<const std::byte> bytes);

    // At the end: the caller, or why it is none of this job.
    const std::optional<Report>& report() const { return report_; }
    const std::string& refusal() const { return refusal_; }
    const Connection& connection() const { return connection_; }
    std::size_t said() const { return said_; }  // bytes so far

private:
    std::vector<std::byte> greet();
    std::vector<std::byte> judge();

    Connection connection_;
    std::vector<std::byte> pending_;
    bool has_greeted_ = false, has_ended_ = false;
    std::size_t said_ = 0;
    std::optional<Report> report_;
    std::string refusal_;
};

}  // namespace exec::transport
