#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <numeric>
#include <thread>
#include <vector>

#include "core/errors.h"
#include "exec/runtime/rank_run.h"
#include "exec/transport/collective.h"
#include "exec/transport/exchange.h"
#include "exec/transport/process_communicator.h"
#include "exec/transport/tcp/socket_wire.h"
#include "tests/exec/tiny.h"

namespace {

using exec::transport::ProcessCommunicator;

// Wires of some ranks in this process, joined two by two as TCP would.
std::vector<std::unique_ptr<exec::transport::Wire>> joined_wires(int ranks) {
    const auto n = static_cast<std::size_t>(ranks);
    std::vector<std::vector<std::optional<int>>> sockets(n, std::vector<std::optional<int>>(n));
    for (std::size_t a = 0; a < n; ++a)
        for (std::size_t b = a + 1; b < n; ++b) {
            int ends[2];
            REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
            sockets[a][b] = ends[0];
            sockets[b][a] = ends[1];
        }
    std::vector<std::unique_ptr<exec::transport::Wire>> wires;
    for (std::size_t r = 0; r < n; ++r)
        wires.push_back(exec::transport::make_socket_wire(static_cast<int>(r), sockets[r]));
    return wires;
}

template <class Work>
std::vector<std::string> on_processes(int ranks, core::Seconds limit, const Work& work) {
    auto wires = joined_wires(ranks);
    std::vector<std::string> names, failures(static_cast<std::size_t>(ranks));
    for (int r = 0; r < ranks; ++r) names.push_back("rank " + std::to_string(r));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank)
        threads.emplace_back([&, rank] {
            ProcessCommunicator communicator(std::move(wires[static_cast<std::size_t>(rank)]), names, limit,
                                             false);
            try {
                work(communicator);
                communicator.leave(core::seconds(2));
            } catch (const std::exception& failure) {
                failures[static_cast<std::size_t>(rank)] = failure.what();
                communicator.give_up(failure.what());
            }
        });
    for (std::thread& thread : threads) thread.join();
    return failures;
}

}  // namespace

TEST_CASE("collectives between processes give every member what their name says, short and long") {
    using schedule::CollectiveKind;
    for (const int ranks : {2, 3, 4})
        for (const std::size_t elements : {std::size_t(12), std::size_t(240000)})
            for (const CollectiveKind kind : {CollectiveKind::all_reduce, CollectiveKind::all_gather}) {
                const schedule::Rounds rounds =
                    schedule::find_collective_algorithm("ring")->rounds(kind, ranks, ranks);
                std::vector<int> members(static_cast<std::size_t>(ranks));
                std::iota(members.begin(), members.end(), 0);
                const auto failures =
                    on_processes(ranks, core::seconds(20), [&](ProcessCommunicator& communicator) {
                        const int self = communicator.rank();
                        std::vector<float> data(elements);
                        for (std::size_t i = 0; i < elements; ++i)
                            data[i] = static_cast<float>(static_cast<int>(i % 1000) + 1000 * self);
                        exec::perform(communicator, rounds, members, data, 1);
                        const std::size_t piece = elements / static_cast<std::size_t>(ranks);
                        for (std::size_t i = 0; i < elements; ++i) {
                            const auto position = static_cast<int>(i % 1000);
                            // All-reduce: the sum over r of position + 1000 r. All-gather: piece j comes from
                            // member j.
                            const int expected = kind == CollectiveKind::all_reduce
                                                     ? ranks * position + 1000 * ranks * (ranks - 1) / 2
                                                     : position + 1000 * static_cast<int>(i / piece);
                            if (data[i] != static_cast<float>(expected))
                                throw std::runtime_error("element " + std::to_string(i) + " is wrong");
                        }
                    });
                INFO(ranks << " ranks, " << elements << " elements, " << schedule::name_of(kind));
                for (const std::string& failure : failures) CHECK(failure == "");
            }
}

TEST_CASE("what arrives before it is asked for waits; equal tags keep their order") {
    const auto failures = on_processes(2, core::seconds(10), [](ProcessCommunicator& communicator) {
        std::vector<float> values(50000);
        std::iota(values.begin(), values.end(), 0.0f);
        if (communicator.rank() == 0) {
            for (std::size_t i = 0; i < 3; ++i)
                communicator.start_send(1, i == 2 ? 8 : 7, std::span(values).subspan(i, 40000), nullptr);
            float done = 0;
            communicator.receive(1, 1, {&done, 1}, exec::Arrival::overwrites);
        } else {
            std::this_thread::sleep_for(std::chrono::milliseconds(50));
            std::vector<float> got(40000, 10);
            communicator.receive(0, 8, got, exec::Arrival::overwrites);
            if (got[0] != 2) throw std::runtime_error("wrong message for tag 8");
            communicator.receive(0, 7, got, exec::Arrival::adds);
            if (got[0] != 2 || got[1] != 4) throw std::runtime_error("wrong first message for tag 7");
            communicator.receive(0, 7, got, exec::Arrival::overwrites);
            if (got[0] != 1) throw std::runtime_error("wrong second message for tag 7");
            communicator.finish(communicator.start_send(0, 1, {got.data(), 1}, nullptr));
        }
    });
    for (const std::string& failure : failures) CHECK(failure == "");
}

TEST_CASE("a process that waits too long names itself, its instruction and everybody else's") {
    const std::string first = "7 receive 2", second = "9 optimizer_step";
    const auto failures = on_processes(3, core::milliseconds(200), [&](ProcessCommunicator& communicator) {
        float value = 0;
        if (communicator.rank() == 0) {
            communicator.set_activity(&first);
            communicator.receive(1, 5, {&value, 1}, exec::Arrival::overwrites);  // never sent
        } else {
            communicator.set_activity(&second);
            std::this_thread::sleep_for(std::chrono::milliseconds(600));
            communicator.finish(
                communicator.start_send(0, 99, {&value, 1}, nullptr));  // notices that all was stopped
        }
    });
    CHECK(failures[0].find("rank 0 waited 200 ms for a message of rank 1") == 0);
    CHECK(failures[0].find("rank 0 is at: 7 receive 2") != std::string::npos);
    CHECK(failures[0].find("rank 1 is at: 9 optimizer_step") != std::string::npos);
    CHECK(failures[1] == failures[0]);
    CHECK(failures[2] == failures[0]);
}

TEST_CASE(
    "a process that has performed its last instruction says so, though the texts of its instructions are "
    "gone") {
    const model::ModelGraph graph = tiny::gpt(2);
    schedule::Plan plan = tiny::plan();
    plan.layout.data = 2;
    const schedule::Program program = tiny::program_of(plan, graph);
    const auto failures = on_processes(2, core::milliseconds(300), [&](ProcessCommunicator& communicator) {
        const exec::InputReader inputs(graph, tiny::data_of(graph));
        exec::RunOptions options;
        communicator.set_time_limit(core::seconds(20));
        {
            const exec::RunPreparation preparation = exec::prepare_run(program, graph);
            exec::run_rank(program, graph, inputs, options, communicator, preparation, communicator.rank(),
                           2);
        }
        communicator.set_time_limit(core::milliseconds(300));
        float value = 0;
        if (communicator.rank() == 0)
            communicator.receive(1, 5, {&value, 1}, exec::Arrival::overwrites);  // never sent
        std::this_thread::sleep_for(std::chrono::milliseconds(1500));
        communicator.finish(
            communicator.start_send(0, 99, {&value, 1}, nullptr));  // notices that all was stopped
    });
    CHECK(failures[0].find("rank 0 waited 300 ms for a message of rank 1") == 0);
    CHECK(failures[0].find("rank 0 is at: no instruction") != std::string::npos);
    CHECK(failures[0].find("rank 1 is at: no instruction") != std::string::npos);
}

TEST_CASE(
    "a patient process waits for one that is busy, not for one that does not answer, and only while it is "
    "patient") {
    SECTION("busy, five times as long as the limit") {
        const auto failures = on_processes(2, core::milliseconds(200), [](ProcessCommunicator& communicator) {
            float value = 3;
            if (communicator.rank() == 0) {
                std::this_thread::sleep_for(std::chrono::milliseconds(1000));
                communicator.finish(communicator.start_send(1, 5, {&value, 1}, nullptr));
                std::this_thread::sleep_for(std::chrono::milliseconds(600));
                communicator.finish(
                    communicator.start_send(1, 99, {&value, 1}, nullptr));  // notices that all was stopped
            } else {
                communicator.set_patient(true);
                communicator.receive(0, 5, {&value, 1}, exec::Arrival::overwrites);
                communicator.set_patient(false);
                communicator.receive(0, 6, {&value, 1}, exec::Arrival::overwrites);  // never sent
            }
        });
        CHECK(failures[1].find("rank 1 waited 200 ms for a message of rank 0") == 0);
        CHECK(failures[0] == failures[1]);
    }
    SECTION("silent") {
        int ends[2];
        REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) ==
                0);  // nobody reads the other end, as nobody does for a stopped process
        ProcessCommunicator communicator(exec::transport::make_socket_wire(1, {ends[0], std::nullopt}),
                                         {"rank 0", "rank 1"}, core::milliseconds(200), false);
        communicator.set_patient(true);
        float value = 0;
        std::string told;
        try {
            communicator.receive(0, 5, {&value, 1}, exec::Arrival::overwrites);
        } catch (const core::MachineError& failure) {
            told = failure.what();
            communicator.give_up(told);
        }
        CHECK(told.find("rank 1 waited 200 ms for a message of rank 0") == 0);
        CHECK(told.find("rank 0 does not answer") != std::string::npos);
        ::close(ends[1]);
    }
}

TEST_CASE("frames that were read ahead when a turn ended are taken without another byte from their sender") {
    struct Frame {
        std::uint32_t magic = 0x534D5031, kind = 0;
        std::uint64_t tag = 0, bytes = sizeof(float) * 10;
        float values[10] = {};
    };
    // As many bytes as a turn takes (8 MiB), in whole read-ahead buffers.
    constexpr std::size_t frames = 8 * 1024 * 1024 / sizeof(Frame);
    static_assert(sizeof(Frame) == 64);
    std::vector<Frame> sent(frames);
    for (std::size_t i = 0; i < frames; ++i) {
        sent[i].tag = i;
        sent[i].values[0] = static_cast<float>(i);
    }
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    const int room = 256 * 1024 * 1024;
    static_cast<void>(::setsockopt(ends[1], SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof room));
    if (::send(ends[1], sent.data(), frames * sizeof(Frame), MSG_DONTWAIT) !=
        static_cast<ssize_t>(frames * sizeof(Frame))) {
        WARN("skipped: this user may not have so large a socket buffer");
        ::close(ends[0]);
        ::close(ends[1]);
        return;
    }
    ProcessCommunicator communicator(exec::transport::make_socket_wire(0, {std::nullopt, ends[0]}),
                                     {"rank 0", "rank 1"}, core::seconds(5), false);
    std::size_t right = 0;
    for (std::size_t i = 0; i < frames; ++i) {
        float values[10];
        communicator.receive(1, i, values, exec::Arrival::overwrites);
        right += values[0] == static_cast<float>(i);
    }
    CHECK(right == frames);
    ::close(ends[1]);
}

TEST_CASE("a process that is gone is named at once by everybody that is left") {
    const auto begin = std::chrono::steady_clock::now();
    auto wires = joined_wires(3);
    wires[1].reset();  // its sockets close, as the kernel closes those of a killed process
    std::vector<std::string> told(3);
    std::vector<std::thread> threads;
    for (const int rank : {0, 2})
        threads.emplace_back([&, rank] {
            ProcessCommunicator communicator(std::move(wires[static_cast<std::size_t>(rank)]),
                                             {"rank 0", "rank 1", "rank 2"}, core::seconds(60), false);
            float value = 0;
            try {
                communicator.receive(rank == 0 ? 2 : 0, 5, {&value, 1},
                                     exec::Arrival::overwrites);  // not even from the lost one
            } catch (const exec::Stopped& stopped) {
                told[static_cast<std::size_t>(rank)] = stopped.what();
            }
            CHECK(communicator.is_speaker() == (rank == 0));
        });
    for (std::thread& thread : threads) thread.join();
    CHECK(told[0].find("rank 1 is gone") == 0);
    CHECK(told[2].find("rank 1 is gone") == 0);
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(50));  // of 60 s to wait
}

TEST_CASE("half a frame, and bytes that are none, end a wait with who sent them") {
    // The header of socket_wire.cpp: magic, kind, tag, bytes.
    struct {
        std::uint32_t magic = 0x534D5031, kind = 0;
        std::uint64_t tag = 5, bytes = 4096;
    } header;
    std::string sent, words = "rank 1 is gone: its connection closed";
    const auto header_and = [&](std::size_t payload) {
        return std::string(reinterpret_cast<const char*>(&header), sizeof header) + std::string(payload, 'x');
    };
    SECTION("nothing") {}
    SECTION("half a header") { sent = header_and(0).substr(0, 11); }
    SECTION("a header without its payload") { sent = header_and(0); }
    SECTION("half a payload") { sent = header_and(1000); }
    SECTION("a whole frame for somebody else, then half of the awaited one") {
        header.tag = 6;
        sent = header_and(4096);
        header.tag = 5;
        sent += header_and(4095);
    }
    SECTION("another protocol") {
        sent = "GET / HTTP/1.1\r\nHost: here\r\n\r\n";
        words = "does not speak this program's protocol";
    }
    SECTION("a kind that is none") {
        header.kind = 77;
        sent = header_and(0);
        words = "does not speak this program's protocol";
    }
    SECTION("words longer than any") {
        header.kind = 1;
        header.bytes = std::uint64_t{1} << 40;
        sent = header_and(0);
        words = "it announces a message of";
    }
    SECTION("an array longer than any memory") {
        header.bytes = ~std::uint64_t{0};
        sent = header_and(0);
        words = "it announces a message of";
    }
    std::optional<std::uint64_t> longest;
    SECTION("an array longer than any of the Program") {
        longest = 4095;
        sent = header_and(4096);
        words = "it announces a message of 4096 bytes, where none has more than 4095";
    }
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    REQUIRE(::send(ends[1], sent.data(), sent.size(), 0) == static_cast<ssize_t>(sent.size()));
    ::close(ends[1]);
    const auto begin = std::chrono::steady_clock::now();
    std::unique_ptr<exec::transport::Wire> wire =
        exec::transport::make_socket_wire(0, {std::nullopt, ends[0]});
    if (longest) wire->limit_data(*longest);
    ProcessCommunicator communicator(std::move(wire), {"rank 0", "rank 1"}, core::seconds(60), false);
    std::vector<float> into(1024);
    std::string told;
    try {
        communicator.receive(1, 5, into, exec::Arrival::overwrites);
    } catch (const exec::Stopped& stopped) {
        told = stopped.what();
        communicator.give_up(told);
    }
    CHECK(told.find("rank 1 is gone: ") == 0);
    CHECK(told.find(words) != std::string::npos);
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(50));  // of 60 s to wait
}

TEST_CASE("texts of any length travel between ranks") {
    const auto failures = on_processes(3, core::seconds(10), [](ProcessCommunicator& communicator) {
        const std::string own(static_cast<std::size_t>(communicator.rank()) * 12345, 'a');
        const std::vector<std::string> all = exec::gather_texts(communicator, 1, own);
        if (communicator.rank() == 0)
            for (std::size_t r = 0; r < 3; ++r)
                if (all[r] != std::string(r * 12345, 'a')) throw std::runtime_error("wrong text");
        if (exec::broadcast_text(communicator, 2, communicator.rank() == 0 ? "yes" : "") != "yes")
            throw std::runtime_error("wrong broadcast");
    });
    for (const std::string& failure : failures) CHECK(failure == "");
}
