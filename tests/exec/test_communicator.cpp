#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <numeric>
#include <thread>
#include <vector>

#include "exec/cpu/thread_communicator.h"
#include "exec/transport/collective.h"

namespace {

using schedule::CollectiveKind;

// Runs `work(communicator)` on every rank; failures come back as texts.
template <class Work>
std::vector<std::string> on_ranks(int ranks, core::Seconds limit, const Work& work) {
    exec::cpu::ThreadNetwork network(ranks, limit, false);
    std::vector<std::string> failures(static_cast<std::size_t>(ranks));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank)
        threads.emplace_back([&, rank] {
            const auto communicator = network.communicator(rank);
            try {
                work(*communicator);
            } catch (const std::exception& failure) {
                failures[static_cast<std::size_t>(rank)] = failure.what();
                network.stop(failure.what());
            }
            communicator->set_activity(nullptr);
        });
    for (std::thread& thread : threads) thread.join();
    return failures;
}

}  // namespace

TEST_CASE("every collective algorithm gives every member what its name says") {
    for (const schedule::CollectiveAlgorithm& algorithm : schedule::collective_algorithms())
        for (const int ranks : {1, 2, 3, 4, 5, 8})
            for (const CollectiveKind kind :
                 {CollectiveKind::all_reduce, CollectiveKind::all_gather, CollectiveKind::reduce_scatter}) {
                if (!algorithm.supports(kind, ranks, ranks)) continue;
                const schedule::Rounds rounds = algorithm.rounds(kind, ranks, ranks);
                constexpr std::size_t elements = 120;  // divisible by all group sizes but not by 7
                std::vector<std::vector<float>> results(static_cast<std::size_t>(ranks));
                std::vector<int> members(static_cast<std::size_t>(ranks));
                std::iota(members.begin(), members.end(), 0);
                const auto failures =
                    on_ranks(ranks, core::seconds(10), [&](exec::Communicator& communicator) {
                        const int self = communicator.rank();
                        std::vector<float> data(elements);
                        for (std::size_t i = 0; i < elements; ++i)
                            data[i] = static_cast<float>(static_cast<int>(i) + 1000 * self);
                        exec::perform(communicator, rounds, members, data, 1);
                        results[static_cast<std::size_t>(self)] = data;
                    });
                INFO(algorithm.name << " " << schedule::name_of(kind) << " over " << ranks);
                for (const std::string& failure : failures) CHECK(failure.empty());
                const std::size_t piece = elements / static_cast<std::size_t>(ranks);
                for (int rank = 0; rank < ranks; ++rank)
                    for (std::size_t i = 0; i < elements; ++i) {
                        const std::size_t owner = i / piece;
                        const bool is_own =
                            rounds.owned_piece.empty() ||
                            rounds.owned_piece[static_cast<std::size_t>(rank)] == static_cast<int>(owner);
                        // The sum over ranks r of i + 1000 r.
                        const float sum =
                            static_cast<float>(ranks * static_cast<int>(i) + 1000 * ranks * (ranks - 1) / 2);
                        const float got = results[static_cast<std::size_t>(rank)][i];
                        if (kind == CollectiveKind::all_reduce) CHECK(got == sum);
                        else if (kind == CollectiveKind::reduce_scatter && is_own) CHECK(got == sum);
                        else if (kind == CollectiveKind::all_gather) {
                            const auto source = static_cast<int>(std::find(rounds.owned_piece.begin(),
                                                                           rounds.owned_piece.end(),
                                                                           static_cast<int>(owner)) -
                                                                 rounds.owned_piece.begin());
                            CHECK(got == static_cast<float>(static_cast<int>(i) + 1000 * source));
                        }
                    }
            }
}

TEST_CASE("a rank that waits too long says who waits for whom, and stops the others") {
    const std::string first = "7 receive 2", second = "9 optimizer_step";
    const auto failures = on_ranks(3, core::milliseconds(200), [&](exec::Communicator& communicator) {
        float value = 0;
        if (communicator.rank() == 0) {
            communicator.set_activity(&first);
            communicator.receive(1, 5, {&value, 1}, exec::Arrival::overwrites);  // never sent
        } else if (communicator.rank() == 1) {
            communicator.set_activity(&second);
            std::this_thread::sleep_for(std::chrono::milliseconds(400));
        } else {
            communicator.receive(0, 6, {&value, 1}, exec::Arrival::overwrites);  // would wait for ever
        }
    });
    const bool names_it =
        failures[0].find("rank 0 waited 200 ms for a message of rank 1") != std::string::npos ||
        failures[2].find("rank 2 waited 200 ms") != std::string::npos;
    CHECK(names_it);
    CHECK_FALSE(failures[0].empty());
    CHECK_FALSE(failures[2].empty());
    CHECK(failures[1].empty());
    const std::string& told = failures[0];
    CHECK(told.find("rank 0 is at: 7 receive 2") != std::string::npos);
}

TEST_CASE("messages of equal tags arrive in order, others when they are asked for") {
    const auto failures = on_ranks(2, core::seconds(5), [](exec::Communicator& communicator) {
        const std::vector<float> values = {1, 2, 3};
        if (communicator.rank() == 0) {
            for (std::size_t i = 0; i < 3; ++i)
                communicator.start_send(1, i == 2 ? 8 : 7, std::span(values).subspan(i, 1),
                                        std::make_shared<int>(0));
            float done = 0;
            communicator.receive(1, 1, {&done, 1}, exec::Arrival::overwrites);
        } else {
            float got[3] = {0, 10, 0};
            communicator.receive(0, 8, {got + 2, 1}, exec::Arrival::overwrites);
            communicator.receive(0, 7, {got, 1}, exec::Arrival::overwrites);
            communicator.receive(0, 7, {got + 1, 1}, exec::Arrival::adds);
            if (got[0] != 1 || got[1] != 12 || got[2] != 3) throw std::runtime_error("wrong order");
            communicator.finish(communicator.start_send(0, 1, {got, 1}, nullptr));
        }
    });
    for (const std::string& failure : failures) CHECK(failure.empty());
}

TEST_CASE("once a rank has given up nobody reads its arrays any more") {
    // 64 MiB take some 10 ms to copy: most ranks give up while the array is being read, some before, some
    // after.
    constexpr std::size_t elements = std::size_t{1} << 24;
    std::vector<float> sent(elements), got(elements);
    int begun = 0;
    for (int after_ms = 0; after_ms < 12; ++after_ms) {
        const exec::Arrival arrival = after_ms % 2 == 0 ? exec::Arrival::overwrites : exec::Arrival::adds;
        std::fill(sent.begin(), sent.end(), 1.0f);
        std::fill(got.begin(), got.end(), 0.0f);
        std::atomic<bool> is_asked{false}, was_read{false};
        const auto failures = on_ranks(3, core::seconds(20), [&](exec::Communicator& communicator) {
            if (communicator.rank() == 0) {
                communicator.start_send(1, 5, sent, nullptr);
                communicator.start_send(2, 5, sent, nullptr);
                while (!is_asked) std::this_thread::yield();
                std::this_thread::sleep_for(std::chrono::milliseconds(after_ms));
                communicator.give_up("rank 0 has no memory");
                std::fill(sent.begin(), sent.end(), 2.0f);  // what the next owner of this memory does
                throw exec::Stopped("rank 0 has no memory");
            }
            if (communicator.rank() == 1) {
                is_asked = true;
                communicator.receive(0, 5, got, arrival);
                was_read = true;
                return;
            }
            float value = 0;
            communicator.receive(0, 6, {&value, 1}, exec::Arrival::overwrites);  // sleeps until it is stopped
        });
        begun += was_read;
        INFO("given up after " << after_ms << " ms");
        CHECK(failures[1] == (was_read ? "" : "rank 0 has no memory"));
        CHECK(std::count(got.begin(), got.end(), was_read ? 1.0f : 0.0f) ==
              static_cast<std::ptrdiff_t>(elements));
        CHECK(failures[2] == "rank 0 has no memory");
    }
    CHECK(begun > 0);
}

TEST_CASE("what a rank sent before it gave up is not found by who asks later, and nothing is sent after it") {
    const auto kept = std::make_shared<int>(0);
    std::atomic<bool> is_gone{false};
    const auto failures = on_ranks(2, core::seconds(5), [&](exec::Communicator& communicator) {
        float value = 0;
        if (communicator.rank() == 0) {
            communicator.start_send(1, 5, {&value, 1}, kept);
            communicator.give_up("no memory");
            const bool is_kept = kept.use_count() > 1;  // its keeper is to be let go while its owner is there
            is_gone = true;
            if (is_kept) throw std::runtime_error("still kept");
            communicator.start_send(1, 5, {&value, 1}, kept);
            return;
        }
        while (!is_gone) std::this_thread::yield();
        communicator.receive(0, 5, {&value, 1}, exec::Arrival::overwrites);
    });
    CHECK(failures == std::vector<std::string>{"no memory", "no memory"});
    CHECK(kept.use_count() == 1);
}
