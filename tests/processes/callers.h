// Callers that are no processes of the tool: a rank's side of the handshake, spoken by a test.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <thread>

#include <catch2/catch.hpp>

#include "exec/transport/tcp/handshake.h"
#include "tests/processes/processes.h"

namespace processes {

// Connects to a port of this machine as soon as somebody listens there; -1 when nobody does in time.
inline int try_to_connect(int port, std::chrono::milliseconds limit) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    const Clock::time_point deadline = Clock::now() + limit;
    do {
        // Ranks started later must not hold it too.
        const int descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (::connect(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0)
            return descriptor;
        ::close(descriptor);
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    } while (Clock::now() < deadline);
    return -1;
}

inline int connect_to(int port) {
    const int descriptor = try_to_connect(port, std::chrono::seconds(20));
    if (descriptor < 0) FAIL("nobody listens at port " << port);
    return descriptor;
}

inline void say(int descriptor, const void* words, std::size_t bytes) {
    REQUIRE(::send(descriptor, words, bytes, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes));
}

inline exec::transport::Report report_of(int rank, int size) {
    exec::transport::Report report;
    report.rank = rank;
    report.size = size;
    report.port = 40000 + rank;
    std::strcpy(report.host, "elsewhere");
    return report;
}

// What a caller sends, as far as it comes; what rank 0 says to it.
struct Introduction {
    exec::transport::Greeting greeting;
    exec::transport::Answer answer;
    exec::transport::Verdict verdict;
    bool was_accepted = false;
};

// A rank's side, with that token. Stops where the other end closes.
inline Introduction introduce(int descriptor, const exec::transport::Report& report,
                              const std::string& token = "") {
    Introduction said;
    exec::transport::Greeting other;
    said.greeting.nonce = exec::transport::random_nonce();
    say(descriptor, &said.greeting, sizeof said.greeting);
    if (::recv(descriptor, &other, sizeof other, MSG_WAITALL) != static_cast<ssize_t>(sizeof other))
        return said;
    const exec::transport::Connection connection{
        std::as_bytes(std::span(token)), {}, 0, said.greeting.nonce, other.nonce};
    said.answer = {report, exec::transport::prove_caller(connection, report)};
    say(descriptor, &said.answer, sizeof said.answer);
    said.was_accepted = ::recv(descriptor, &said.verdict, sizeof said.verdict, MSG_WAITALL) ==
                            static_cast<ssize_t>(sizeof said.verdict) &&
                        said.verdict.is_accepted == 1;
    return said;
}

}  // namespace processes
