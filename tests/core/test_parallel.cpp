#include "core/parallel.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <stdexcept>
#include <string>
#include <vector>

TEST_CASE("every item is worked at once, by threads of the numbers there are") {
    for (const int threads : {1, 2, 5, 64})
        for (const std::size_t count : {0u, 1u, 2u, 7u, 1000u}) {
            std::vector<std::atomic<int>> visits(count);
            std::atomic<int> strangers{0};
            core::for_each_in_parallel(count, threads, [&](std::size_t item, int thread) {
                ++visits[item];
                strangers += thread < 0 || thread >= threads;
            });
            for (const std::atomic<int>& visit : visits) CHECK(visit == 1);
            CHECK(strangers == 0);
        }
}

TEST_CASE("an exception in one item comes to the caller, and ends the work") {
    for (const int threads : {1, 4}) {
        std::atomic<int> begun{0};
        std::string told;
        try {
            core::for_each_in_parallel(1000, threads, [&](std::size_t item, int) {
                ++begun;
                if (item == 10) throw std::runtime_error("item 10");
            });
        } catch (const std::runtime_error& failure) {
            told = failure.what();
        }
        CHECK(told == "item 10");
        if (threads == 1) CHECK(begun == 11);
    }
}
