// Matrix units as the emulation has them, against what PTX says of each thread's share, and products of
// experts where there are none.
#include <catch2/catch.hpp>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "core/random.h"
#include "exec/cuda/body/expert_products.h"

namespace {

using namespace exec::cuda;
using emulation::EmulatedThread;
using host_body::Bf16;
using host_body::Fp16;
using host_body::Tf32;

// Small whole numbers: their products and sums are exact in every precision here.
template <class T>
std::vector<T> whole_numbers(std::size_t count, std::uint64_t seed) {
    core::Random random(seed);
    std::vector<T> numbers(count);
    for (T& number : numbers) number = host_body::from_float<T>(static_cast<float>(random.below(9)) - 4.0f);
    return numbers;
}

template <class T>
std::uint32_t word(T low, T high) {
    return std::uint32_t{low.bits} | std::uint32_t{high.bits} << 16;
}

// As processors without matrix units for halves run it.
struct PlainThread : EmulatedThread {
    static constexpr bool has_no_matrix_units = true;
};

template <class T>
void check_fragments() {
    constexpr int m = 16, n = 8, k = 16;
    const std::vector<T> a = whole_numbers<T>(m * k, 1), b = whole_numbers<T>(k * n, 2);
    std::vector<float> sums(m * n, 0.0f);
    emulation::emulate(1, 32, 0, true, [&](const EmulatedThread& t) {
        // PTX ISA 8.7, "Matrix fragments for mma.m16n8k16", .f16 and .bf16: of the i-th half of a,
        // i = 0 ... 7, the row is groupID where i is 0, 1, 4 or 5, else groupID + 8, the column
        // 2 threadID_in_group + i % 2, and 8 more from i = 4 on; of the i-th of b, i = 0 ... 3, the row is
        // 2 threadID_in_group + i % 2, and 8 more from i = 2 on, the column groupID; of the i-th sum the row
        // is groupID, and 8 more from i = 2 on.
        const int group = t.thread() / 4, in_group = t.thread() % 4;
        const auto left = [&](int i) {
            const int row = i % 4 < 2 ? group : group + 8, column = 2 * in_group + i % 2 + (i >= 4 ? 8 : 0);
            return a[static_cast<std::size_t>(row * k + column)];
        };
        const auto right = [&](int i) {
            const int row = 2 * in_group + i % 2 + (i >= 2 ? 8 : 0);
            return b[static_cast<std::size_t>(row * n + group)];
        };
        float own[4] = {1, 1, 1, 1};
        host_body::multiply_matrices<T>(
            t, own,
            {word(left(0), left(1)), word(left(2), left(3)), word(left(4), left(5)), word(left(6), left(7))},
            word(right(0), right(1)), word(right(2), right(3)));
        for (int i = 0; i < 4; ++i)
            sums[static_cast<std::size_t>((group + (i >= 2 ? 8 : 0)) * n + 2 * in_group + i % 2)] = own[i];
    });
    for (int row = 0; row < m; ++row)
        for (int column = 0; column < n; ++column) {
            float expected = 1;
            for (int i = 0; i < k; ++i)
                expected += host_body::to_float(a[static_cast<std::size_t>(row * k + i)]) *
                            host_body::to_float(b[static_cast<std::size_t>(i * n + column)]);
            CHECK(sums[static_cast<std::size_t>(row * n + column)] == expected);
        }
}

void check_tf32_fragments() {
    constexpr int m = 16, n = 8, k = 8;
    const std::vector<float> a = whole_numbers<float>(m * k, 5), b = whole_numbers<float>(k * n, 6);
    std::vector<float> sums(m * n, 0.0f);
    emulation::emulate(1, 32, 0, true, [&](const EmulatedThread& t) {
        // PTX ISA 8.7, "Matrix fragments for mma.m16n8k8", .tf32: of the i-th number of a, i = 0 ... 3, the
        // row is groupID where i is even, else groupID + 8, the column threadID_in_group, and 4 more from
        // i = 2 on; of the i-th of b the row is threadID_in_group, and 4 more for i = 1, the column groupID.
        const int group = t.thread() / 4, in_group = t.thread() % 4;
        std::uint32_t left[4], right[2];
        for (int i = 0; i < 4; ++i)
            left[i] = host_body::rounded_to_tf32(
                a[static_cast<std::size_t>((group + i % 2 * 8) * k + in_group + i / 2 * 4)]);
        for (int i = 0; i < 2; ++i)
            right[i] =
                host_body::rounded_to_tf32(b[static_cast<std::size_t>((in_group + i * 4) * n + group)]);
        float own[4] = {0, 0, 0, 0};
        host_body::multiply_matrices<Tf32>(t, own, left, right[0], right[1]);
        for (int i = 0; i < 4; ++i)
            sums[static_cast<std::size_t>((group + (i >= 2 ? 8 : 0)) * n + 2 * in_group + i % 2)] = own[i];
    });
    for (int row = 0; row < m; ++row)
        for (int column = 0; column < n; ++column) {
            float expected = 0;
            for (int i = 0; i < k; ++i)
                expected +=
                    a[static_cast<std::size_t>(row * k + i)] * b[static_cast<std::size_t>(i * n + column)];
            CHECK(sums[static_cast<std::size_t>(row * n + column)] == expected);
        }
}

// Two experts, the second of more rows than a tile, with and without matrix units.
template <class T, bool transposes>
void check_without_units() {
    const std::vector<std::int64_t> rows{5, 131};
    const std::int64_t n = 40, k = 72, total = 136;
    const std::vector<T> a = whole_numbers<T>(total * k, 3), weights = whole_numbers<T>(2 * n * k, 4);
    std::vector<std::int32_t> table(6);
    host_body::known_expert_table(nullptr, rows, table.data());
    CHECK(table == std::vector<std::int32_t>{0, 5, 136, 0, 1, 3});
    using Body = host_body::ExpertProducts<T, transposes>;
    const auto run = [&](bool has_units) {
        std::vector<T> c(static_cast<std::size_t>(total * n));
        const Body body{
            {2, 2, total, table.data()}, n, k, 1, a.data(), weights.data(), c.data(), false, true, true};
        emulation::emulate(3, host_body::tile_threads, Body::shared, true, [&](const EmulatedThread& t) {
            if (has_units) body(t);
            else body(PlainThread{t});
        });
        std::vector<float> result;
        for (const T x : c) result.push_back(host_body::to_float(x));
        return result;
    };
    const std::vector<float> plain = run(false);
    CHECK(plain == run(true));
    for (std::int64_t row = 0; row < total; ++row)
        for (std::int64_t column = 0; column < n; ++column) {
            float expected = 0;
            const T* weight = weights.data() + (row < 5 ? 0 : n * k);
            for (std::int64_t i = 0; i < k; ++i)
                expected += host_body::to_float(a[static_cast<std::size_t>(row * k + i)]) *
                            host_body::to_float(weight[transposes ? column * k + i : i * n + column]);
            // Sums of whole numbers are exact; what is kept of them is rounded.
            const float kept = host_body::to_float(host_body::from_float<T>(expected));
            if (plain[static_cast<std::size_t>(row * n + column)] != kept)
                FAIL("row " << row << ", column " << column << ": "
                            << plain[static_cast<std::size_t>(row * n + column)] << " instead of " << kept);
        }
}

// Gradients of weights, whose rows come in three blocks of each expert.
template <class T>
std::vector<float> gradients_of_experts(emulation::ThreadOrder order) {
    const std::vector<std::int64_t> rows{70, 3, 0, 41, 140, 1};
    const std::int64_t m = 136, n = 24, total = 255, experts = 2;
    core::Random random(7);
    std::vector<T> a(static_cast<std::size_t>(total * m)), b(static_cast<std::size_t>(total * n));
    for (std::vector<T>* operand : {&a, &b})
        for (T& value : *operand) value = host_body::from_float<T>(static_cast<float>(random.normal()));
    std::vector<std::int32_t> table(14);
    host_body::known_expert_table(nullptr, rows, table.data());
    std::vector<float> gradients(static_cast<std::size_t>(experts * m * n));
    const emulation::ScopedThreadOrder scope(order, 3);
    const Type type = std::is_same_v<T, Bf16> ? Type::bf16 : Type::fp32;
    host_body::expert_weight_gradients(nullptr, type, std::is_same_v<T, Tf32>,
                                       {6, experts, total, table.data()}, m, n, a.data(), b.data(),
                                       {gradients.data(), Type::fp32, false});
    return gradients;
}
template <class T>
void check_order() {
    const std::vector<float> ascending = gradients_of_experts<T>(emulation::ThreadOrder::ascending);
    CHECK(ascending == gradients_of_experts<T>(emulation::ThreadOrder::descending));
    CHECK(ascending == gradients_of_experts<T>(emulation::ThreadOrder::random));
}

}  // namespace

TEST_CASE("gradients of experts have the same bits in whatever order threads and blocks run") {
    check_order<float>();
    check_order<Tf32>();
    check_order<Bf16>();
}

TEST_CASE("emulated matrix units give every thread the share that PTX says") {
    check_fragments<Bf16>();
    check_fragments<Fp16>();
    check_tf32_fragments();
}

TEST_CASE("what is multiplied in tf32 is rounded to ten bits of fraction, ties away from zero") {
    const auto rounded = [](float x) {
        const std::uint32_t bits = host_body::rounded_to_tf32(x);
        float result = 0;
        std::memcpy(&result, &bits, sizeof result);
        return result;
    };
    CHECK(rounded(1 + 0x1p-10f) == 1 + 0x1p-10f);
    CHECK(rounded(1 + 0x1p-11f) == 1 + 0x1p-10f);
    CHECK(rounded(-1 - 0x1p-11f) == -1 - 0x1p-10f);
    CHECK(rounded(1 + 0x1p-12f + 0x1p-13f) == 1);
    CHECK(rounded(2 - 0x1p-12f) == 2);
    CHECK(rounded(0) == 0);
    CHECK(rounded(INFINITY) == INFINITY);
    CHECK(std::isnan(rounded(NAN)));
}

TEST_CASE("products of experts are the same without matrix units") {
    check_without_units<Bf16, true>();
    check_without_units<Bf16, false>();
    check_without_units<Fp16, true>();
    check_without_units<Fp16, false>();
    check_without_units<Tf32, true>();
    check_without_units<Tf32, false>();
}
