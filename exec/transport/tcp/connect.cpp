// How ranks find each other: every rank reports to rank 0, which answers with a table of the addresses at
// which ranks listen. Nothing is believed before the other end has proven that it is of the same job
// (handshake.h).
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <thread>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "core/errors.h"
#include "core/index/integers.h"
#include "exec/transport/tcp/callers.h"
#include "exec/transport/tcp/handshake.h"
#include "exec/transport/tcp/interface.h"
#include "exec/transport/tcp/socket_wire.h"
#include "exec/transport/tcp/stream.h"

namespace exec::transport {

namespace {

[[noreturn]] void fail(const std::string& what) { throw core::MachineError(what); }

// Where a rank listens, in rank 0's table.
struct Entry {
    std::int32_t launch_rank = 0, port = 0;
    char host[256] = {};
    char address[64] = {};  // empty: rank 0's host, at the address by which one reaches rank 0
};

// What rank 0 tells all ranks, by new rank.
struct Table {
    Nonce job{};  // of this start: what is said in another proves nothing here
    std::vector<Entry> entries;

    std::vector<std::byte> bytes() const {
        std::vector<std::byte> result(job.begin(), job.end());
        const std::span<const std::byte> rows = std::as_bytes(std::span(entries));
        result.insert(result.end(), rows.begin(), rows.end());
        return result;
    }
};

void set_text(char* at, std::size_t size, const std::string& text) {
    std::snprintf(at, size, "%s", text.c_str());
}

std::string own_host() {
    char name[256] = {};
    if (::gethostname(name, sizeof name - 1) != 0) return "unknown";
    return name;
}

// Empty on the loopback interface: the peer is on this host, and has no address there that another host could
// use.
std::string address_of_peer(const Socket& socket) {
    const std::optional<SocketAddress> address = peer_address(socket);
    if (!address || is_loopback(*address)) return {};
    return address_text(*address);
}

enum class Reception { accepted, refused, closed };

// The caller's side of the handshake. `connection` gets both numbers.
Reception introduce(const Socket& socket, Connection& connection, const Report& report,
                    const Deadline& deadline) {
    Greeting own, other;
    own.nonce = connection.caller_nonce = random_nonce();
    if (!send_all(socket.get(), &own, sizeof own) ||
        !receive_all(socket.get(), &other, sizeof other, deadline))
        return Reception::closed;
    if (std::memcmp(other.magic, own.magic, sizeof own.magic) != 0) return Reception::refused;
    connection.listener_nonce = other.nonce;
    const Answer answer{report, prove_caller(connection, report)};
    Verdict verdict;
    if (!send_all(socket.get(), &answer, sizeof answer) ||
        !receive_all(socket.get(), &verdict, sizeof verdict, deadline))
        return Reception::closed;
    return verdict.is_accepted == 1 && are_equal(verdict.proof, prove_listener(connection, report))
               ? Reception::accepted
               : Reception::refused;
}

[[noreturn]] void fail_refused(const std::string& whom) {
    fail(
        fmt::format("{} and this rank do not have the same job token, or what listens there is another "
                    "program: SMEXEC_TOKEN or the token file must be the same for all ranks",
                    whom));
}

struct Member {
    Report report;
    Socket socket;
    Connection connection;
    std::string address;
};

// Why an authenticated report is of no rank that rank 0 waits for.
std::optional<std::string> contradiction(const Launch& launch, const std::vector<Member>& members,
                                         const Report& report) {
    const std::string host = core::in_quotes(report.host);
    if (report.size != launch.size || report.rank < 1 || report.rank >= launch.size)
        return fmt::format("a process on {} says it is rank {} of {}; rank 0 knows {} ranks", host,
                           report.rank, report.size, launch.size);
    if (members[report.rank].socket.is_open())
        return fmt::format("two processes say they are rank {}: on {} and on {}", report.rank,
                           core::in_quotes(members[report.rank].report.host), host);
    if (report.port < 1 || report.port > 65535)
        return fmt::format("a process on {} says it listens at port {}", host, report.port);
    return std::nullopt;
}

// Rank 0's part: the reports of all ranks, by launch rank.
std::vector<Member> collect(const Launch& launch, const Socket& listener, const JoinOptions& options) {
    std::vector<Member> members(launch.size);
    Callers callers(listener, {key_of(options.token), {}, 0, {}, {}}, launch.size, options.tell);
    for (int missing = launch.size - 1; missing > 0;) {
        // Every rank that comes shows that the launcher is still at work.
        Deadline deadline(options.limit);
        std::optional<Callers::Caller> caller = callers.next(deadline);
        while (caller && !options.token.is_given()) {
            // Without a token a stranger can say so: it is let go, and the wait goes on.
            const std::optional<std::string> why = contradiction(launch, members, caller->report);
            if (!why) break;
            callers.drop(*caller, *why);
            caller = callers.next(deadline);
        }
        if (!caller) {
            std::string absent;
            for (int r = 1; r < launch.size; ++r)
                if (!members[r].socket.is_open()) absent += fmt::format(" {}", r);
            fail(fmt::format("of {} ranks these did not report to rank 0 in time:{}", launch.size, absent));
        }
        if (const auto why = contradiction(launch, members, caller->report)) fail(*why);
        Member& member = members[caller->report.rank];
        member.report = caller->report;
        member.socket = std::move(caller->socket);
        member.connection = caller->connection;
        member.address = address_of_peer(member.socket);
        prepare(member.socket);
        callers.watch(member.socket.get(),
                      fmt::format("rank {} on {}", member.report.rank, member.report.host));
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

// Rank 0: all ranks are there, and are told where the others listen. Sockets by new rank.
Table gather(const Launch& launch, const Socket& listener, const JoinOptions& options,
             std::vector<Socket>& sockets) {
    std::vector<Member> members = collect(launch, listener, options);
    set_text(members[0].report.host, sizeof members[0].report.host, own_host());
    Table table{random_nonce(), table_of(members)};
    const std::vector<std::byte> content = table.bytes();
    for (std::size_t i = 1; i < sockets.size(); ++i) {
        const Member& member = members[table.entries[i].launch_rank];
        const Authenticator proof = prove_content(member.connection, content);
        if (!send_all(member.socket.get(), content.data(), content.size()) ||
            !send_all(member.socket.get(), &proof, sizeof proof))
            fail(fmt::format("rank {} is gone before the start", table.entries[i].launch_rank));
        sockets[i] = std::move(members[table.entries[i].launch_rank].socket);
    }
    return table;
}

// Another rank: reports to rank 0 and learns where the others listen. `listener` is opened where they need
// it.
Table report_to_first(const Launch& launch, const JoinOptions& options, const ListeningAddress& source,
                      Socket& listener, Socket& first) {
    const std::string whom = fmt::format("rank 0 at {}:{}", launch.address, launch.port);
    Connection connection{key_of(options.token), {}, 0, {}, {}};
    const auto attempt = [&](core::Seconds limit) {
        const Deadline deadline(limit);
        first = connect_to(launch.address, launch.port, source, deadline, "rank 0");
        // On rank 0's own host others reach this rank as they reach rank 0.
        const SocketAddress here = local_address(first);
        if (source || options.interface) listener = listen_at(source, 0);
        else listener = listen_at(is_loopback(here) ? own_address(launch.address) : here, 0);
        Report report;
        report.rank = launch.rank;
        report.size = launch.size;
        report.port = port_of(listener);
        set_text(report.host, sizeof report.host, own_host());
        return introduce(first, connection, report, deadline);
    };
    Reception reception = attempt(options.limit);
    // Rank 0 lets callers go when too many come at a time.
    for (int again = 0; reception == Reception::closed && again < 3; ++again)
        reception = attempt(core::seconds(1));
    if (reception == Reception::refused) fail_refused(whom);
    prepare(first);
    Table table{{}, std::vector<Entry>(launch.size)};
    std::vector<std::byte> content(sizeof table.job + launch.size * sizeof(Entry));
    Authenticator proof;
    // Rank 0 waits for every rank as long, and says by closing that it does not any more.
    const Deadline all_there(options.limit * launch.size + core::seconds(10));
    if (reception == Reception::closed ||
        !receive_all(first.get(), content.data(), content.size(), all_there) ||
        !receive_all(first.get(), &proof, sizeof proof, all_there))
        fail(fmt::format("{} closed the connection: not all ranks came, or it says why", whom));
    if (!are_equal(proof, prove_content(connection, content))) fail_refused(whom);
    std::memcpy(table.job.data(), content.data(), sizeof table.job);
    std::memcpy(table.entries.data(), content.data() + sizeof table.job, content.size() - sizeof table.job);
    for (Entry& entry : table.entries) {
        entry.host[sizeof entry.host - 1] = 0;
        entry.address[sizeof entry.address - 1] = 0;
    }
    return table;
}

// Calls every rank between rank 0 and this one.
void call_lower(const Launch& launch, const JoinOptions& options, const ListeningAddress& source,
                const Table& table, std::size_t own, std::vector<Socket>& sockets) {
    for (std::size_t lower = 1; lower < own; ++lower) {
        const Deadline deadline(options.limit);
        const Entry& entry = table.entries[lower];
        // Debian's /etc/hosts gives a host's own name the address 127.0.1.1: ranks beside rank 0 reach it
        // there, others by the network's address for that name.
        const std::string address = entry.address[0] == 0 ? launch.address : entry.address;
        const std::string whom = fmt::format("rank {}", lower);
        Connection connection{key_of(options.token), table.job, static_cast<std::int32_t>(lower), {}, {}};
        Report report;
        report.rank = static_cast<std::int32_t>(own);
        report.size = launch.size;
        Reception reception = Reception::closed;
        for (int again = 0; reception == Reception::closed && again < 3; ++again) {
            sockets[lower] = connect_to(address, entry.port, source, deadline, whom);
            reception = introduce(sockets[lower], connection, report, deadline);
        }
        if (reception == Reception::refused) fail_refused(whom);
        if (reception == Reception::closed) fail(whom + " is gone before the start");
    }
}

// Answers every higher rank's call.
void answer_higher(const Launch& launch, const JoinOptions& options, const Socket& listener,
                   const Table& table, std::size_t own, std::vector<Socket>& sockets) {
    const auto number = static_cast<std::int32_t>(own);
    Callers callers(listener, {key_of(options.token), table.job, number, {}, {}}, launch.size, options.tell);
    for (std::size_t i = 0; i < own; ++i) callers.watch(sockets[i].get(), fmt::format("rank {}", i));
    for (std::size_t missing = own == 0 ? 0 : sockets.size() - 1 - own; missing > 0;) {
        Deadline deadline(options.limit);
        std::optional<Callers::Caller> caller = callers.next(deadline);
        const auto is_awaited = [&](const Report& report) {
            return report.rank > number && report.rank < launch.size && !sockets[report.rank].is_open();
        };
        while (caller && !is_awaited(caller->report)) {
            callers.drop(*caller, fmt::format("it says it is rank {}, which is not awaited here",
                                              caller->report.rank));
            caller = callers.next(deadline);
        }
        if (!caller) fail(fmt::format("rank {}: not all higher ranks connected in time", own));
        callers.watch(caller->socket.get(), fmt::format("rank {}", caller->report.rank));
        sockets[caller->report.rank] = std::move(caller->socket);
        --missing;
    }
}

}  // namespace

std::unique_ptr<Wire> connect_all(const Launch& launch, const JoinOptions& options,
                                  std::vector<std::string>& hosts) {
    const std::size_t size = launch.size;
    std::vector<Socket> sockets(size);  // by new rank
    core::Diagnostics diagnostics;
    const ListeningAddress chosen =
        options.interface ? address_of_interface(*options.interface, diagnostics) : std::nullopt;
    if (diagnostics.has_errors()) fail(diagnostics.entries().front().message);
    Socket listener;
    Table table;
    if (launch.rank == 0) {
        listener = listen_at(options.interface ? chosen : own_address(launch.address), launch.port);
        table = gather(launch, listener, options, sockets);
    } else {
        table = report_to_first(launch, options, chosen, listener, sockets[0]);
    }
    const std::size_t own =
        std::find_if(table.entries.begin(), table.entries.end(),
                     [&](const Entry& entry) { return entry.launch_rank == launch.rank; }) -
        table.entries.begin();
    core::require(own < size, "rank 0's table has every rank");
    call_lower(launch, options, chosen, table, own, sockets);
    answer_higher(launch, options, listener, table, own, sockets);
    hosts.clear();
    std::vector<std::optional<int>> descriptors;
    for (std::size_t i = 0; i < size; ++i) {
        hosts.emplace_back(table.entries[i].host);
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
