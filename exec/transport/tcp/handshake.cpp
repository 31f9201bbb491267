#include "exec/transport/tcp/handshake.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "core/errors.h"

namespace exec::transport {

namespace {

static_assert(sizeof(Greeting) == 40 && sizeof(Answer) == 300 && sizeof(Verdict) == 36,
              "messages of the handshake have no holes, and one length on all machines");

template <class Message>
std::vector<std::byte> bytes_of(const Message& message) {
    static_assert(std::is_trivially_copyable_v<Message>);
    const std::span<const std::byte> bytes = std::as_bytes(std::span(&message, 1));
    return {bytes.begin(), bytes.end()};
}

// The role keeps a listener's own words from being sent back to it as a caller's.
Authenticator prove(const char (&role)[9], const Connection& connection, std::span<const std::byte> content) {
    std::vector<std::byte> message;
    const auto add = [&](std::span<const std::byte> bytes) {
        message.insert(message.end(), bytes.begin(), bytes.end());
    };
    add(std::as_bytes(std::span(role)));
    add(std::as_bytes(std::span(&connection.listener, 1)));
    add(connection.job);
    add(connection.caller_nonce);
    add(connection.listener_nonce);
    add(content);
    return authenticate(connection.token, message);
}

}  // namespace

std::span<const std::byte> key_of(const JobToken& token) { return std::as_bytes(std::span(token.secret)); }

Authenticator prove_caller(const Connection& connection, const Report& report) {
    return prove("caller  ", connection, std::as_bytes(std::span(&report, 1)));
}
Authenticator prove_listener(const Connection& connection, const Report& report) {
    return prove("listener", connection, std::as_bytes(std::span(&report, 1)));
}
Authenticator prove_content(const Connection& connection, std::span<const std::byte> content) {
    return prove("content ", connection, content);
}

ListenerHandshake::ListenerHandshake(const Connection& connection) : connection_(connection) {
    connection_.listener_nonce = random_nonce();
}

std::size_t ListenerHandshake::wanted() const {
    if (has_ended_) return 0;
    return (has_greeted_ ? sizeof(Answer) : sizeof(Greeting)) - pending_.size();
}

std::vector<std::byte> ListenerHandshake::take(std::span<const std::byte> bytes) {
    core::require(bytes.size() <= wanted(), "a handshake takes no more than it asked for");
    pending_.insert(pending_.end(), bytes.begin(), bytes.end());
    said_ += bytes.size();
    if (wanted() > 0) return {};
    return has_greeted_ ? judge() : greet();
}

std::vector<std::byte> ListenerHandshake::greet() {
    Greeting greeting;
    std::memcpy(&greeting, pending_.data(), sizeof greeting);
    pending_.clear();
    Greeting own;
    if (std::memcmp(greeting.magic, own.magic, sizeof own.magic) != 0) {
        has_ended_ = true;
        refusal_ = "it does not speak this version of this program's protocol";
        return {};
    }
    has_greeted_ = true;
    connection_.caller_nonce = greeting.nonce;
    own.nonce = connection_.listener_nonce;
    return bytes_of(own);
}

std::vector<std::byte> ListenerHandshake::judge() {
    Answer answer;
    std::memcpy(&answer, pending_.data(), sizeof answer);
    has_ended_ = true;
    Verdict verdict;
    if (!are_equal(answer.proof, prove_caller(connection_, answer.report))) {
        refusal_ = "it does not have this job's token";
        return bytes_of(verdict);
    }
    verdict.is_accepted = 1;
    verdict.proof = prove_listener(connection_, answer.report);
    report_ = answer.report;
    report_->host[sizeof report_->host - 1] = 0;
    return bytes_of(verdict);
}

}  // namespace exec::transport
