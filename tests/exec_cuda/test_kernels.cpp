// Every kernel of ours against the CPU's, over random shapes, in every precision: on the host thread by
// thread, and on a GPU where there is one.
//
// Inputs are rounded to the precision first, so that what is left is the kernel's own arithmetic (fp32, in
// another order) and the rounding of results: half a unit in the last place (2^-24, 2^-9 in bf16, 2^-12 in
// fp16 of the value). Sums over n terms are allowed sqrt(n) of it, and gradients that are added to what is
// there one more rounding.
#include <catch2/catch.hpp>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <numeric>

#include "core/errors.h"
#include "core/random.h"
#include "exec/context_parallel.h"
#include "exec/cpu/kernels.h"
#include "exec/cpu/mixture.h"
#include "exec/cuda/body/emulated.h"
#include "exec/cuda/device/device.h"
#include "exec/cuda/device/open.h"
#include "exec/cuda/operator/fused_parts.h"
#include "exec/cuda/operator/precision.h"
#include "tests/exec_cuda/emulated_machine.h"

namespace {

using namespace exec::cuda;
namespace cpu = exec::cpu;

core::DataType data_type(Type type) {
    return type == Type::bf16   ? core::DataType::bf16
           : type == Type::fp16 ? core::DataType::fp16
                                : core::DataType::fp32;
}
double unit(Type type) { return type == Type::bf16 ? 0x1p-8 : type == Type::fp16 ? 0x1p-11 : 0x1p-22; }

class Bench {
public:
    Bench(Machine& machine, std::uint64_t seed)
        : machine(machine),
          k(machine.kernels()),
          s(machine.stream(schedule::Stream::compute)),
          random(seed) {}
    ~Bench() {
        machine.synchronize();
        for (void* block : blocks_) machine.release(block);
    }

    // On the device; `host` becomes what the precision makes of it.
    void* put(Type type, std::vector<float>& host) {
        void* to = room(host.size() * size_of(type));
        std::vector<char> bytes(host.size() * size_of(type));
        to_precision(data_type(type), host, bytes.data());
        from_precision(data_type(type), bytes.data(), host);
        machine.upload_now(to, bytes.data(), bytes.size());
        return to;
    }
    template <class T>
    T* put_raw(const std::vector<T>& host) {
        auto* to = static_cast<T*>(room(host.size() * sizeof(T)));
        machine.upload_now(to, host.data(), host.size() * sizeof(T));
        return to;
    }
    void* room(std::size_t bytes) {
        blocks_.push_back(machine.allocate(std::max<std::size_t>(256, bytes)));
        return blocks_.back();
    }
    std::vector<float> get(Type type, const void* from, std::size_t count) {
        machine.synchronize();
        std::vector<char> bytes(count * size_of(type));
        machine.download_now(bytes.data(), from, bytes.size());
        std::vector<float> host(count);
        from_precision(data_type(type), bytes.data(), host);
        return host;
    }
    std::vector<float> normal(std::int64_t count, double deviation = 1) {
        std::vector<float> values(static_cast<std::size_t>(count));
        for (float& value : values) value = static_cast<float>(deviation * random.normal());
        return values;
    }
    std::int64_t between(std::int64_t low, std::int64_t high) {
        return low + static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(high - low + 1)));
    }

    Machine& machine;
    const Kernels& k;
    const Stream s;
    core::Random random;

private:
    std::vector<void*> blocks_;
};

// Largest difference, relative to the largest expected value, in units of the precision.
void near(const char* what, Type type, const std::vector<float>& got, const std::vector<float>& expected,
          double units) {
    REQUIRE(got.size() == expected.size());
    double largest = 1e-6, worst = 0;
    for (const float value : expected) largest = std::max(largest, std::fabs(static_cast<double>(value)));
    bool is_number = true;
    for (std::size_t i = 0; i < got.size(); ++i) {
        is_number = is_number && std::isfinite(got[i]);
        worst = std::max(worst, std::fabs(static_cast<double>(got[i]) - static_cast<double>(expected[i])));
    }
    INFO(what << " in " << core::name_of(data_type(type)));
    CHECK(is_number);
    CHECK(worst / largest / unit(type) <= units);
}

void check_elementwise(Bench& b, Type type) {
    const std::int64_t count = b.between(1, 3000), rows = b.between(1, 9), width = b.between(1, 70);
    std::vector<float> x = b.normal(count), y = b.normal(count), z = b.normal(count), expected(x.size());
    const void *dx = b.put(type, x), *dy = b.put(type, y);
    void* dz = b.put(type, z);
    void* out = b.room(static_cast<std::size_t>(count) * 4);
    b.k.add(b.s, type, count, dx, dy, out);
    cpu::kernels().add(count, x.data(), y.data(), expected.data());
    near("add", type, b.get(type, out, x.size()), expected, 1);
    b.k.scale(b.s, type, count, 0.5f, dx, dz, true);
    for (std::size_t i = 0; i < x.size(); ++i) expected[i] = z[i] + 0.5f * x[i];
    near("scale", type, b.get(type, dz, x.size()), expected, 1);
    for (const auto& [own, theirs] : {std::pair{Unary::gelu, cpu::Unary::gelu},
                                      {Unary::gelu_tanh, cpu::Unary::gelu_tanh},
                                      {Unary::relu, cpu::Unary::relu},
                                      {Unary::silu, cpu::Unary::silu},
                                      {Unary::tanh, cpu::Unary::tanh}}) {
        b.k.unary(b.s, type, own, count, dx, out);
        cpu::kernels().unary(theirs, count, x.data(), expected.data());
        near("unary", type, b.get(type, out, x.size()), expected, 4);
        b.k.unary_backward(b.s, type, own, count, dx, dy, out, false);
        std::fill(expected.begin(), expected.end(), 0.0f);
        cpu::kernels().unary_backward(theirs, count, x.data(), y.data(), expected.data());
        near("unary backward", type, b.get(type, out, x.size()), expected, 4);
    }
    std::vector<float> pair = b.normal(rows * 2 * width), gradient = b.normal(rows * width),
                       gated(gradient.size()), both(pair.size(), 0.0f);
    const void *dpair = b.put(type, pair), *dgradient = b.put(type, gradient);
    void* wide = b.room(pair.size() * 4);
    b.k.gated(b.s, type, Unary::silu, rows, width, dpair, out = b.room(gated.size() * 4));
    cpu::kernels().gated(cpu::Unary::silu, rows, width, pair.data(), gated.data());
    near("gated", type, b.get(type, out, gated.size()), gated, 4);
    b.k.gated_backward(b.s, type, Unary::silu, rows, width, dpair, dgradient, wide, false);
    cpu::kernels().gated_backward(cpu::Unary::silu, rows, width, pair.data(), gradient.data(), both.data());
    near("gated backward", type, b.get(type, wide, both.size()), both, 4);
}

void check_dropout(Bench& b, Type type) {
    const std::int64_t samples = b.between(1, 3), tokens = b.between(1, 9), width = b.between(1, 40),
                       rows = samples * tokens;
    std::vector<float> x = b.normal(rows * width), residual = b.normal(rows * width), expected(x.size());
    std::vector<std::uint64_t> keys;
    for (std::int64_t i = 0; i < samples; ++i) keys.push_back(b.random.next());
    const void *dx = b.put(type, x), *dresidual = b.put(type, residual);
    void* out = b.room(x.size() * 4);
    auto* mask = static_cast<std::uint8_t*>(b.room(x.size()));
    b.k.dropout(b.s, type, {rows, width, tokens, width, 0, 0, 0.3f, b.put_raw(keys)}, dx, dresidual, out,
                mask);
    std::vector<std::uint8_t> kept(x.size());
    for (std::int64_t r = 0; r < rows; ++r)
        cpu::kernels().dropout(keys[static_cast<std::size_t>(r / tokens)], r % tokens * width, width, 0.3f,
                               x.data() + r * width, expected.data() + r * width, kept.data() + r * width);
    for (std::size_t i = 0; i < x.size(); ++i) expected[i] += residual[i];
    near("dropout and residual", type, b.get(type, out, x.size()), expected, 1);
    b.k.dropout_backward(b.s, type, rows * width, 0.3f, mask, dx, out, false);
    std::fill(expected.begin(), expected.end(), 0.0f);
    cpu::kernels().dropout_backward(rows * width, 0.3f, kept.data(), x.data(), expected.data());
    near("dropout backward", type, b.get(type, out, x.size()), expected, 1);
}

void check_norms(Bench& b, Type type) {
    // Rows of a warp and of a block, in registers and not.
    const std::int64_t choice = b.between(0, 5), rows = b.between(1, choice < 3 ? 20 : 70);
    const std::int64_t width = choice == 0  ? b.between(1025, 1300)
                               : choice < 3 ? 8 * b.between(65, choice == 1 ? 600 : 300)
                                            : 8 * b.between(1, 20) + (choice == 3 ? 3 : 0);
    std::vector<float> x = b.normal(rows * width), scale = b.normal(width), shift = b.normal(width),
                       dy = b.normal(rows * width), y(x.size()), dx(x.size());
    const void *in = b.put(type, x), *gradient = b.put(type, dy);
    const Values factors{b.put(Type::fp32, scale), Type::fp32}, offsets{b.put(type, shift), type};
    void *out = b.room(x.size() * 4), *workspace = b.room(norm_workspace(rows, width));
    auto* statistics = static_cast<float*>(b.room(static_cast<std::size_t>(rows) * 8));
    std::vector<float> kept(static_cast<std::size_t>(2 * rows)), start = b.normal(width), dscale = start,
                                                                 dshift = start;
    const double units = 8 + std::sqrt(static_cast<double>(rows));
    for (const bool is_layer : {true, false}) {
        std::fill(dx.begin(), dx.end(), 0.0f);
        std::vector<float> first = start, second = start;
        void *dfirst = b.put(Type::fp32, first), *dsecond = b.put(Type::fp32, second);
        dscale = dshift = start;
        if (is_layer) {
            b.k.layer_norm(b.s, type, rows, width, 1e-5f, in, factors, offsets, out, statistics);
            cpu::kernels().layer_norm(rows, width, 1e-5f, x.data(), scale.data(), shift.data(), y.data(),
                                      kept.data());
            near("layer norm", type, b.get(type, out, x.size()), y, 8);
            b.k.layer_norm_backward(b.s, type, rows, width, in, statistics, factors, gradient, out, nullptr);
            cpu::kernels().layer_norm_backward(rows, width, x.data(), kept.data(), scale.data(), dy.data(),
                                               dx.data());
            cpu::kernels().layer_norm_weights(rows, width, x.data(), kept.data(), dy.data(), dscale.data(),
                                              dshift.data());
        } else {
            b.k.rms_norm(b.s, type, rows, width, 1e-5f, in, factors, out, statistics);
            cpu::kernels().rms_norm(rows, width, 1e-5f, x.data(), scale.data(), y.data(), kept.data());
            near("rms norm", type, b.get(type, out, x.size()), y, 8);
            b.k.rms_norm_backward(b.s, type, rows, width, in, statistics, factors, gradient, out, nullptr);
            cpu::kernels().rms_norm_backward(rows, width, x.data(), kept.data(), scale.data(), dy.data(),
                                             dx.data());
            cpu::kernels().rms_norm_weights(rows, width, x.data(), kept.data(), dy.data(), dscale.data());
        }
        near("norm backward", type, b.get(type, out, x.size()), dx, 16);
        // Added to another array.
        if (is_layer)
            b.k.layer_norm_backward(b.s, type, rows, width, in, statistics, factors, gradient, out, in);
        else b.k.rms_norm_backward(b.s, type, rows, width, in, statistics, factors, gradient, out, in);
        for (std::size_t i = 0; i < dx.size(); ++i) dx[i] += x[i];
        near("norm backward that adds", type, b.get(type, out, x.size()), dx, 16);
        b.k.norm_weights(b.s, type, is_layer, rows, width, in, statistics, gradient, {dfirst, Type::fp32},
                         is_layer ? Sums{dsecond, Type::fp32} : Sums{}, workspace);
        near("norm scale", Type::fp32, b.get(Type::fp32, dfirst, scale.size()), dscale, 16 * units);
        if (is_layer)
            near("norm shift", Type::fp32, b.get(Type::fp32, dsecond, scale.size()), dshift, 16 * units);
    }
    std::vector<float> sum = start, expected = start;
    void* dsum = b.put(Type::fp32, sum);
    b.k.column_sums(b.s, type, rows, width, gradient, {dsum, Type::fp32}, workspace);
    cpu::kernels().sum_rows(rows, width, dy.data(), expected.data());
    near("column sums", Type::fp32, b.get(Type::fp32, dsum, sum.size()), expected, 4 * units);
    std::fill(expected.begin(), expected.end(), 0.0f);
    b.k.column_sums(b.s, type, rows, width, gradient, {dsum, Type::fp32, false}, workspace);
    cpu::kernels().sum_rows(rows, width, dy.data(), expected.data());
    near("column sums that are new", Type::fp32, b.get(Type::fp32, dsum, sum.size()), expected, 4 * units);
}

// Against the launches whose work they do: a sum and its norm to the bit, all gradients of a norm within the
// rounding of sums in another order.
void check_fused_norms(Bench& b, Type type) {
    constexpr std::int64_t widths[] = {8, 24, 100, 768, 1000, 2048, 4104, 8192};
    const std::int64_t width = widths[b.between(0, 7)], rows = b.between(1, width > 2000 ? 20 : 70);
    const auto elements = static_cast<std::size_t>(rows * width), columns = static_cast<std::size_t>(width);
    std::vector<float> x = b.normal(rows * width), residual = b.normal(rows * width), scale = b.normal(width),
                       shift = b.normal(width), dy = b.normal(rows * width), start = b.normal(width);
    const void *in = b.put(type, x), *other = b.put(type, residual), *gradient = b.put(type, dy);
    const Values factors{b.put(Type::fp32, scale), Type::fp32};
    void *sum = b.room(elements * 4), *both = b.room(elements * 4), *y = b.room(elements * 4),
         *result = b.room(elements * 4), *workspace = b.room(norm_gradients_workspace(rows, width));
    auto *statistics = static_cast<float*>(b.room(static_cast<std::size_t>(rows) * 8)),
         *kept = static_cast<float*>(b.room(static_cast<std::size_t>(rows) * 8));
    for (const bool is_layer : {true, false}) {
        const Values offsets = is_layer ? Values{b.put(type, shift), type} : Values{};
        b.k.add(b.s, type, rows * width, in, other, sum);
        if (is_layer) b.k.layer_norm(b.s, type, rows, width, 1e-5f, sum, factors, offsets, y, statistics);
        else b.k.rms_norm(b.s, type, rows, width, 1e-5f, sum, factors, y, statistics);
        b.k.add_and_norm(b.s, type, is_layer, rows, width, 1e-5f, in, other, both, factors, offsets, result,
                         kept);
        near("sum before a norm", type, b.get(type, both, elements), b.get(type, sum, elements), 0);
        near("norm of a sum", type, b.get(type, result, elements), b.get(type, y, elements), 0);
        const auto numbers = static_cast<std::size_t>(is_layer ? 2 * rows : rows);
        near("its statistics", Type::fp32, b.get(Type::fp32, kept, numbers),
             b.get(Type::fp32, statistics, numbers), 0);

        const void* base = b.between(0, 1) ? in : nullptr;
        const bool accumulates = b.between(0, 1) != 0;
        const auto sums = [&](void* data) { return Sums{data, Type::fp32, accumulates}; };
        std::vector<float> begin = start;
        void *dscale = b.put(Type::fp32, begin), *dshift = b.put(Type::fp32, begin),
             *dscale_of_both = b.put(Type::fp32, begin), *dshift_of_both = b.put(Type::fp32, begin);
        if (is_layer)
            b.k.layer_norm_backward(b.s, type, rows, width, sum, statistics, factors, gradient, y, base);
        else b.k.rms_norm_backward(b.s, type, rows, width, sum, statistics, factors, gradient, y, base);
        b.k.norm_weights(b.s, type, is_layer, rows, width, sum, statistics, gradient, sums(dscale),
                         is_layer ? sums(dshift) : Sums{}, workspace);
        b.k.norm_gradients(b.s, type, is_layer, rows, width, sum, statistics, factors, gradient, result, base,
                           sums(dscale_of_both), is_layer ? sums(dshift_of_both) : Sums{}, workspace);
        near("a norm's input's gradient beside the others", type, b.get(type, result, elements),
             b.get(type, y, elements), 2);
        const double units = 8 + std::sqrt(static_cast<double>(rows));
        near("a norm's scale's gradient beside the others", Type::fp32,
             b.get(Type::fp32, dscale_of_both, columns), b.get(Type::fp32, dscale, columns), units);
        near("a norm's shift's gradient beside the others", Type::fp32,
             b.get(Type::fp32, dshift_of_both, columns), b.get(Type::fp32, dshift, columns), units);
    }
}

void check_embedding(Bench& b, Type type) {
    // Of many rows the search goes in several parts.
    const std::int64_t rows = type == Type::bf16 && b.between(0, 3) == 0 ? b.between(2050, 2200)
                                                                         : b.between(1, 600),
                       width = b.between(1, rows > 600 ? 3 : 40), table = b.between(1, 30),
                       first = b.between(0, 5), tokens = b.between(1, 9);
    std::vector<std::int64_t> ids;
    for (std::int64_t r = 0; r < rows; ++r) ids.push_back(b.between(0, table + 8));
    std::vector<float> values = b.normal(table * width), dy = b.normal(rows * width), y(dy.size(), 0.0f),
                       dtable = b.normal(table * width);
    const std::int64_t* places = b.put_raw(ids);
    const Values parameter{b.put(type, values), type};
    void* out = b.room(dy.size() * 4);
    b.k.embedding(b.s, type, rows, width, first, table, places, parameter, out);
    const void* gradient = b.put(type, dy);
    void* sums = b.put(Type::fp32, dtable);
    b.k.embedding_weight(b.s, type, rows, width, first, table, places, gradient, {sums, Type::fp32},
                         b.room(embedding_workspace(rows, width)));
    for (std::int64_t r = 0; r < rows; ++r) {
        const std::int64_t id = ids[static_cast<std::size_t>(r)] - first;
        if (id < 0 || id >= table) continue;
        for (std::int64_t c = 0; c < width; ++c) {
            y[static_cast<std::size_t>(r * width + c)] = values[static_cast<std::size_t>(id * width + c)];
            dtable[static_cast<std::size_t>(id * width + c)] += dy[static_cast<std::size_t>(r * width + c)];
        }
    }
    near("embedding", type, b.get(type, out, y.size()), y, 0);
    near("embedding weight", Type::fp32, b.get(Type::fp32, sums, dtable.size()), dtable, 64);
    std::vector<float> learned = b.normal((tokens + 2) * width), dlearned = b.normal((tokens + 2) * width),
                       x = b.normal(rows * width), placed = x;
    const std::int64_t first_row = b.between(0, 7);
    const void* in = b.put(type, x);
    b.k.positions(b.s, type, rows, width, tokens, {}, first_row, 2, in, {b.put(type, learned), type}, out);
    void* dlearned_sums = b.put(Type::fp32, dlearned);
    b.k.positions_weight(b.s, type, rows, width, tokens, {}, first_row, 2, gradient,
                         {dlearned_sums, Type::fp32});
    for (std::int64_t i = 0; i < rows * width; ++i) {
        const auto at = static_cast<std::size_t>(((first_row + i / width) % tokens + 2) * width + i % width);
        placed[static_cast<std::size_t>(i)] = x[static_cast<std::size_t>(i)] + learned[at];
        dlearned[at] += dy[static_cast<std::size_t>(i)];
    }
    near("positions", type, b.get(type, out, placed.size()), placed, 1);
    near("positions weight", Type::fp32, b.get(Type::fp32, dlearned_sums, dlearned.size()), dlearned, 64);
}

// Routing is the CPU's to the row; what is moved and summed is written out here.
void check_mixture(Bench& b, Type type) {
    const std::int64_t experts = b.between(1, 9), chosen = b.between(1, std::min<std::int64_t>(3, experts)),
                       hidden = b.between(0, 1) ? 16 : b.between(1, 40);
    // Of many tokens counting goes in several rounds.
    const std::int64_t tokens = b.between(0, 4) == 0 ? b.between(1500, 2500) : b.between(1, 200);
    model::Attributes mixture;
    mixture.experts = experts;
    mixture.experts_per_token = chosen;
    mixture.capacity_factor = b.between(0, 1) ? 0.0 : 0.8;
    const RoutingShape shape{tokens, experts, chosen, hidden, model::expert_capacity(mixture, tokens)};
    std::vector<float> logits = b.normal(tokens * experts), probabilities(logits.size());
    for (std::int64_t t = 0; t < tokens; ++t) {
        float sum = 0;
        for (std::int64_t e = 0; e < experts; ++e)
            sum += std::exp(logits[static_cast<std::size_t>(t * experts + e)]);
        for (std::int64_t e = 0; e < experts; ++e)
            probabilities[static_cast<std::size_t>(t * experts + e)] =
                std::exp(logits[static_cast<std::size_t>(t * experts + e)]) / sum;
    }
    void* own = b.room(probabilities.size() * 4);
    b.k.router_softmax(b.s, type, tokens, experts, b.put_raw(logits), own);
    near("router's softmax", type, b.get(type, own, probabilities.size()), probabilities, 2);
    const void* p = b.put(type, probabilities);
    const cpu::Routing expected = cpu::route(mixture, tokens, probabilities.data());
    void* routing = b.room(routing_workspace(shape));
    b.k.route(b.s, type, shape, p, routing);
    auto* counts = static_cast<float*>(b.room(static_cast<std::size_t>(experts) * 4));
    for (const bool is_limited : {false, true}) {
        b.k.expert_counts(b.s, shape, routing, is_limited, counts);
        const std::vector<float> counted = b.get(Type::fp32, counts, static_cast<std::size_t>(experts));
        const std::vector<std::int64_t>& wanted = is_limited ? expected.rows : expected.chosen;
        for (std::size_t e = 0; e < counted.size(); ++e)
            CHECK(static_cast<std::int64_t>(counted[e]) == wanted[e]);
    }
    // The table of products: first rows, then first tiles of 128 rows.
    auto* table = static_cast<std::int32_t*>(b.room(expert_table_bytes(experts)));
    b.k.expert_table(b.s, shape, routing, table);
    std::vector<std::int32_t> placed(static_cast<std::size_t>(2 * (experts + 1))), wanted(placed.size(), 0);
    b.machine.synchronize();
    b.machine.download_now(placed.data(), table, placed.size() * sizeof(std::int32_t));
    for (std::size_t e = 0; e < expected.rows.size(); ++e) {
        wanted[e + 1] = wanted[e] + static_cast<std::int32_t>(expected.rows[e]);
        const std::size_t tile = expected.rows.size() + 1 + e;
        wanted[tile + 1] = wanted[tile] + static_cast<std::int32_t>((expected.rows[e] + 127) / 128);
    }
    CHECK(placed == wanted);
    const std::int64_t copies = tokens * chosen;
    std::vector<float> x = b.normal(tokens * hidden), worked = b.normal(copies * hidden),
                       dy = b.normal(tokens * hidden), start = b.normal(tokens * hidden);
    const void *in = b.put(type, x), *back = b.put(type, worked), *gradient = b.put(type, dy);
    std::vector<float> sent(worked.size(), 0.0f), combined(x.size(), 0.0f), dsent(worked.size(), 0.0f),
        dp(probabilities.size(), 0.0f), gathered;
    void* base = b.put(type, start);
    gathered = start;
    for (std::int64_t t = 0; t < tokens; ++t) {
        std::vector<float> dweight(static_cast<std::size_t>(chosen), 0.0f);
        float mean = 0, sum = 0;
        for (std::int64_t j = 0; j < chosen; ++j) {
            const auto copy = static_cast<std::size_t>(t * chosen + j);
            sum += probabilities[static_cast<std::size_t>(t * experts + expected.expert[copy])];
            const std::int64_t row = expected.row[copy];
            if (row < 0) continue;
            for (std::int64_t c = 0; c < hidden; ++c) {
                const auto to = static_cast<std::size_t>(t * hidden + c),
                           from = static_cast<std::size_t>(row * hidden + c);
                sent[from] = x[to];
                combined[to] += expected.weight[copy] * worked[from];
                gathered[to] += worked[from];
                dsent[from] = expected.weight[copy] * dy[to];
                dweight[static_cast<std::size_t>(j)] += dy[to] * worked[from];
            }
            mean += dweight[static_cast<std::size_t>(j)] * expected.weight[copy];
        }
        for (std::int64_t j = 0; j < chosen; ++j)
            dp[static_cast<std::size_t>(t * experts +
                                        expected.expert[static_cast<std::size_t>(t * chosen + j)])] +=
                chosen > 1 ? (dweight[static_cast<std::size_t>(j)] - mean) / sum
                           : dweight[static_cast<std::size_t>(j)];
    }
    void *out = b.room(sent.size() * 4), *result = b.room(x.size() * 4), *dout = b.room(sent.size() * 4),
         *dprobabilities = b.room(dp.size() * 4);
    for (void* cleared : {out, dout}) b.machine.fill_zero(b.s, cleared, sent.size() * size_of(type));
    b.machine.fill_zero(b.s, dprobabilities, dp.size() * size_of(type));
    b.k.dispatch(b.s, type, shape, routing, in, out);
    near("dispatch", type, b.get(type, out, sent.size()), sent, 0);
    b.k.combine(b.s, type, shape, routing, back, result);
    near("combine", type, b.get(type, result, combined.size()), combined, 4);
    b.k.dispatch_backward(b.s, type, shape, routing, back, base, true);
    near("dispatch backward", type, b.get(type, base, gathered.size()), gathered, 4);
    b.k.combine_backward(b.s, type, shape, routing, back, p, gradient, dout, dprobabilities, false);
    near("combine backward", type, b.get(type, dout, dsent.size()), dsent, 2);
    near("combine backward, probabilities", type, b.get(type, dprobabilities, dp.size()), dp, 32);
    // Through the softmax, with a share for every choice.
    std::vector<float> chosen_of_all(static_cast<std::size_t>(experts)), dlogits(probabilities.size()),
        g = b.normal(tokens * experts);
    for (std::size_t e = 0; e < chosen_of_all.size(); ++e) chosen_of_all[e] = static_cast<float>(e + 1);
    const void* incoming = b.put(type, g);
    for (std::int64_t t = 0; t < tokens; ++t) {
        float mean = 0;
        const auto at = [&](std::int64_t e) { return static_cast<std::size_t>(t * experts + e); };
        const auto of = [&](std::int64_t e) {
            return g[at(e)] + 0.25f * chosen_of_all[static_cast<std::size_t>(e)];
        };
        for (std::int64_t e = 0; e < experts; ++e) mean += probabilities[at(e)] * of(e);
        for (std::int64_t e = 0; e < experts; ++e) dlogits[at(e)] = probabilities[at(e)] * (of(e) - mean);
    }
    void* turned = b.room(dlogits.size() * 4);
    b.k.router_gradient(b.s, type, tokens, experts, 0.25f, nullptr, b.put_raw(chosen_of_all), p, incoming,
                        turned);
    near("router's gradient", type, b.get(type, turned, dlogits.size()), dlogits, 16);
}

// All experts' products in one launch against a product for each block of rows: blocks of several sources,
// empty ones, of one row, of more than a tile; extents that fill tiles, and that no vector divides.
void check_expert_products(Bench& b, Type type, bool uses_tf32) {
    const std::int64_t experts = b.between(1, 4), blocks = experts * b.between(1, 3);
    const auto extent = [&] { return b.between(0, 1) ? 8 * b.between(1, 20) : b.between(1, 140); };
    const std::int64_t n = extent(), k = extent();
    std::vector<std::int64_t> rows;
    for (std::int64_t i = 0; i < blocks; ++i)
        rows.push_back(b.between(0, 2) == 0   ? 0
                       : b.between(0, 4) == 0 ? b.between(100, 300)
                                              : b.between(1, 40));
    const std::int64_t total = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
    auto* table = static_cast<std::int32_t*>(b.room(expert_table_bytes(blocks)));
    b.k.known_expert_table(b.s, rows, table);
    // More may come than did: what is launched for it does nothing.
    const ExpertBlocks of{blocks, experts, total + b.between(0, 200), table};
    const auto count = [](std::int64_t a, std::int64_t c) { return static_cast<std::size_t>(a * c); };
    std::vector<float> x = b.normal(total * k), y = b.normal(total * n), weights = b.normal(experts * n * k);
    for (std::vector<float>* operand : {&x, &y, &weights})
        for (float& value : *operand)  // numbers of tf32 have ten bits of fraction
            if (uses_tf32) {
                int exponent = 0;
                value =
                    std::ldexp(std::nearbyint(std::ldexp(std::frexp(value, &exponent), 11)), exponent - 11);
            }
    const void *dx = b.put(type, x), *dy = b.put(type, y), *dw = b.put(type, weights);
    const auto each_block = [&](const auto& product) {
        std::int64_t first = 0;
        for (std::int64_t i = 0; i < blocks; ++i) {
            const std::int64_t own = rows[static_cast<std::size_t>(i)];
            if (own > 0) product(i % experts, first, own);
            first += own;
        }
    };
    for (const bool adds : {false, true}) {
        std::vector<float> c = b.normal(total * n), input = b.normal(total * k), expected = c;
        void *dc = b.put(type, c), *dinput = b.put(type, input);
        expected = c;
        b.k.expert_products(b.s, type, uses_tf32, of, n, k, dx, dw, true, dc, adds);
        each_block([&](std::int64_t e, std::int64_t first, std::int64_t own) {
            cpu::kernels().product(false, true, own, n, k, 1, &x[count(first, k)], k,
                                   &weights[count(e, n * k)], k, &expected[count(first, n)], n, adds);
        });
        near("products of experts", type, b.get(type, dc, expected.size()), expected, 16);
        expected = input;
        b.k.expert_products(b.s, type, uses_tf32, of, k, n, dy, dw, false, dinput, adds);
        each_block([&](std::int64_t e, std::int64_t first, std::int64_t own) {
            cpu::kernels().product(false, false, own, k, n, 1, &y[count(first, n)], n,
                                   &weights[count(e, n * k)], k, &expected[count(first, k)], k, adds);
        });
        near("input gradients of experts", type, b.get(type, dinput, expected.size()), expected, 16);
        for (const Type gradient_type : {type, Type::fp32}) {
            std::vector<float> gradients = b.normal(experts * n * k);
            void* dgradients = b.put(gradient_type, gradients);
            expected = gradients;
            if (!adds) std::fill(expected.begin(), expected.end(), 0.0f);
            b.k.expert_weight_gradients(b.s, type, uses_tf32, of, n, k, dy, dx,
                                        {dgradients, gradient_type, adds});
            each_block([&](std::int64_t e, std::int64_t first, std::int64_t own) {
                cpu::kernels().product(true, false, n, k, own, 1, &y[count(first, n)], n, &x[count(first, k)],
                                       k, &expected[count(e, n * k)], k, true);
            });
            near("weight gradients of experts", gradient_type,
                 b.get(gradient_type, dgradients, expected.size()), expected, 16);
        }
    }
}

void check_expert_products(Bench& b, Type type) {
    check_expert_products(b, type, false);
    if (type == Type::fp32) check_expert_products(b, type, true);
}

void check_loss(Bench& b, Type type) {
    const std::int64_t rows = b.between(1, 40),
                       columns = b.between(0, 2) == 0 ? 8 * b.between(600, 640) : b.between(2, 300),
                       valid = b.between(1, columns);
    std::vector<float> logits = b.normal(rows * columns, 3), expected(logits.size(), 0.0f), p(logits.size());
    std::vector<std::int64_t> labels;
    for (std::int64_t r = 0; r < rows; ++r) labels.push_back(b.between(0, valid - 1));
    const ClassShape shape{rows, columns, valid, 0, 1};
    const void* in = b.put(type, logits);
    const std::int64_t* classes = b.put_raw(labels);
    auto* statistics = static_cast<float*>(b.room(static_cast<std::size_t>(rows) * 12));
    auto* probabilities = static_cast<float*>(b.room(logits.size() * 4));
    auto* loss = static_cast<float*>(b.room(8));
    void* out = b.room(logits.size() * 4);
    b.k.loss_statistics(b.s, type, shape, in, classes, statistics, b.room(loss_workspace(shape)));
    b.k.cross_entropy(b.s, type, shape, in, statistics, loss, 2, probabilities);
    std::vector<float> kept(static_cast<std::size_t>(3 * rows)), sums;
    cpu::kernels().loss_statistics(rows, columns, valid, 0, logits.data(), labels.data(), kept.data());
    near("loss statistics", Type::fp32, b.get(Type::fp32, statistics, kept.size()), kept, 64);
    double mean = 0;
    for (std::int64_t r = 0; r < rows; ++r) {
        sums.push_back(kept[static_cast<std::size_t>(3 * r)] +
                       std::log(kept[static_cast<std::size_t>(3 * r + 1)]));
        mean += (sums.back() - kept[static_cast<std::size_t>(3 * r + 2)]) / static_cast<double>(rows);
    }
    near("cross-entropy", Type::fp32, b.get(Type::fp32, loss, 2),
         {static_cast<float>(mean), static_cast<float>(mean)}, 64);
    cpu::kernels().softmax(rows, columns, valid, logits.data(), sums.data(), p.data());
    near("probabilities", Type::fp32, b.get(Type::fp32, probabilities, p.size()), p, 64);
    cpu::kernels().cross_entropy_backward(rows, columns, 0, valid, 0.25f, p.data(), labels.data(),
                                          expected.data());
    for (const float* from : {static_cast<const float*>(nullptr), static_cast<const float*>(probabilities)}) {
        b.k.cross_entropy_backward(b.s, type, shape, 0.25f, nullptr, in, statistics, from, classes, out,
                                   false);
        near("cross-entropy backward", type, b.get(type, out, expected.size()), expected, 64);
    }
    void* own = b.put(type, logits);
    b.k.cross_entropy_backward(b.s, type, shape, 0.25f, nullptr, own, statistics, nullptr, classes, own,
                               false);
    near("cross-entropy backward in place", type, b.get(type, own, expected.size()), expected, 64);
}

// The same with the tokens of a class next to one another.
void check_loss_across(Bench& b, Type type) {
    const std::int64_t rows = 8 * b.between(1, b.between(0, 2) == 0 ? 40 : 5), columns = b.between(2, 300),
                       valid = b.between(1, columns);
    std::vector<float> logits = b.normal(rows * columns, 3), p(logits.size()), expected(logits.size(), 0.0f);
    std::vector<std::int64_t> labels;
    for (std::int64_t r = 0; r < rows; ++r) labels.push_back(b.between(0, valid - 1));
    const auto turned = [&](const std::vector<float>& from, std::int64_t lines) {
        std::vector<float> to(from.size());
        const auto width = static_cast<std::int64_t>(from.size()) / lines;
        for (std::int64_t i = 0; i < lines; ++i)
            for (std::int64_t j = 0; j < width; ++j)
                to[static_cast<std::size_t>(j * lines + i)] = from[static_cast<std::size_t>(i * width + j)];
        return to;
    };
    std::vector<float> across = turned(logits, rows);
    const void* in = b.put(type, across);
    logits = turned(across, columns);  // as rounded
    ClassShape shape{rows, columns, valid, 0, 1};
    shape.is_across = true;
    const std::int64_t* classes = b.put_raw(labels);
    auto* statistics = static_cast<float*>(b.room(static_cast<std::size_t>(rows) * 12));
    auto* probabilities = static_cast<float*>(b.room(logits.size() * 4));
    auto* loss = static_cast<float*>(b.room(8));
    void* out = b.room(logits.size() * 4);
    b.k.loss_statistics(b.s, type, shape, in, classes, statistics, b.room(loss_workspace(shape)));
    b.k.cross_entropy(b.s, type, shape, in, statistics, loss, 1, probabilities);
    std::vector<float> kept(static_cast<std::size_t>(3 * rows)), sums;
    cpu::kernels().loss_statistics(rows, columns, valid, 0, logits.data(), labels.data(), kept.data());
    near("loss statistics across", Type::fp32, b.get(Type::fp32, statistics, kept.size()), kept, 64);
    for (std::int64_t r = 0; r < rows; ++r)
        sums.push_back(kept[static_cast<std::size_t>(3 * r)] +
                       std::log(kept[static_cast<std::size_t>(3 * r + 1)]));
    cpu::kernels().softmax(rows, columns, valid, logits.data(), sums.data(), p.data());
    near("probabilities across", Type::fp32, turned(b.get(Type::fp32, probabilities, p.size()), columns), p,
         64);
    cpu::kernels().cross_entropy_backward(rows, columns, 0, valid, 0.25f, p.data(), labels.data(),
                                          expected.data());
    for (const float* from : {static_cast<const float*>(nullptr), static_cast<const float*>(probabilities)}) {
        b.k.cross_entropy_backward(b.s, type, shape, 0.25f, nullptr, in, statistics, from, classes, out,
                                   false);
        near("cross-entropy backward across", type, turned(b.get(type, out, expected.size()), columns),
             expected, 64);
    }
    void* own = b.put(type, across);
    b.k.cross_entropy_backward(b.s, type, shape, 0.25f, nullptr, own, statistics, nullptr, classes, own,
                               false);
    near("cross-entropy backward across in place", type, turned(b.get(type, own, expected.size()), columns),
         expected, 64);
}

struct AttentionCase {
    AttentionShape own;
    cpu::AttentionShape theirs;
};
AttentionCase random_attention(Bench& b, std::vector<std::uint64_t>& keys, std::vector<float>& slopes) {
    AttentionCase c;
    c.own.samples = b.between(1, 2);
    c.own.tokens = b.between(1, 75);
    c.own.kv_heads = b.between(1, 2);
    c.own.heads = c.own.kv_heads * b.between(1, 2);
    c.own.head_dimension = b.between(0, 3) == 0 ? 72 : 4 * b.between(1, 8);
    c.own.is_causal = b.between(0, 3) > 0;
    c.own.window = c.own.is_causal && b.between(0, 2) == 0 ? b.between(1, 40) : 0;
    c.own.scale = 0.3f;
    c.theirs = {c.own.samples,        c.own.tokens,    c.own.heads,  c.own.kv_heads,
                c.own.head_dimension, c.own.is_causal, c.own.window, c.own.scale};
    if (b.between(0, 1)) {
        for (std::int64_t h = 0; h < c.own.heads; ++h) slopes.push_back(0.25f / static_cast<float>(h + 1));
        c.own.alibi_slopes = b.put_raw(slopes);
        c.theirs.alibi_slopes = slopes.data();
    }
    if (b.between(0, 1)) {
        for (std::int64_t i = 0; i < c.own.samples; ++i) keys.push_back(b.random.next());
        c.own.dropout = c.theirs.dropout = 0.2f;
        c.own.dropout_keys = b.put_raw(keys);
        c.theirs.dropout_keys = keys.data();
        c.own.first_head = c.theirs.first_head = 3;
    }
    return c;
}

// Some of a sequence's queries, keys and values in rows of their own.
void check_attention_of_places(Bench& b, Type type, AttentionCase c,
                               const std::vector<std::int32_t>& places) {
    const std::int64_t d = c.own.head_dimension;
    c.theirs.keys = c.own.keys;
    c.theirs.tokens = c.own.tokens;
    c.theirs.whole_sequence = c.own.whole_sequence;
    c.theirs.places = places.data();
    c.theirs.query_row = c.own.row();
    const std::int64_t rows = c.own.samples * c.own.tokens, scores = rows * c.own.heads,
                       memory_size = c.own.samples * c.own.keys * c.own.key_row();
    std::vector<float> qkv = b.normal(rows * c.own.row()), keys = b.normal(memory_size),
                       dy = b.normal(rows * c.own.heads * d);
    const void *in = b.put(type, qkv), *memory = b.put(type, keys), *gradient = b.put(type, dy);
    std::vector<float> y(dy.size()), sums(static_cast<std::size_t>(scores)), dqkv(qkv.size(), 0.0f),
        dkeys(keys.size(), 0.0f);
    cpu::kernels().attention(c.theirs, qkv.data(), keys.data(), y.data(),
                             {sums.data(), nullptr, nullptr, nullptr});
    cpu::kernels().attention_backward(c.theirs, qkv.data(), keys.data(),
                                      {sums.data(), nullptr, nullptr, nullptr}, dy.data(), dqkv.data(),
                                      dkeys.data(), nullptr);
    void *out = b.room(y.size() * 4), *result = b.room(qkv.size() * 4), *key_result = b.room(keys.size() * 4),
         *workspace = b.room(sums.size() * 4);
    auto* log_sums = static_cast<float*>(b.room(sums.size() * 4));
    b.machine.fill_zero(b.s, result, qkv.size() * size_of(type));
    b.k.attention(b.s, type, c.own, in, memory, out, log_sums);
    near("attention of a part", type, b.get(type, out, y.size()), y, 32);
    b.k.attention_backward(b.s, type, c.own, in, memory, out, log_sums, gradient, result, key_result,
                           workspace);
    near("attention backward of a part", type, b.get(type, result, dqkv.size()), dqkv, 64);
    near("attention backward of a part, keys", type, b.get(type, key_result, dkeys.size()), dkeys, 64);
    if (fused_attention_unsupported(b.machine, type, c.own)) return;
    fused_attention(b.machine, b.s, type, c.own, in, memory, out, log_sums);
    near("fused attention of a part", type, b.get(type, out, y.size()), y, 16);
    b.machine.fill_zero(b.s, result, qkv.size() * size_of(type));
    void* room = b.room(fused_workspace(c.own, type));
    fused_attention_backward(b.machine, b.s, type, c.own, in, memory, out, log_sums, gradient, result,
                             key_result, room);
    near("fused attention backward of a part", type, b.get(type, result, dqkv.size()), dqkv, 32);
    near("fused attention backward of a part, keys", type, b.get(type, key_result, dkeys.size()), dkeys, 32);
}

// Two parts of the queries of a sequence, keys and values of all of it.
void check_divided_attention(Bench& b, Type type, AttentionCase c) {
    const std::int64_t degree = b.between(1, 3), rank = b.between(0, degree - 1), part = b.between(1, 12);
    c.own.keys = 2 * degree * part;
    c.own.tokens = 2 * part;
    c.own.token_range = {part, rank * part, (2 * degree - 1 - rank) * part};
    check_attention_of_places(
        b, type, c, exec::places_of_tokens(c.own.keys, static_cast<int>(degree), static_cast<int>(rank)));
}

// Two parts of the queries of a sequence, to their own keys and values and then to those of another rank.
void check_attention_in_ring(Bench& b, Type type, AttentionCase c) {
    const std::int64_t degree = b.between(2, 4), rank = b.between(0, degree - 1), part = b.between(1, 12),
                       other = (rank + b.between(1, degree - 1)) % degree, d = c.own.head_dimension;
    const auto range_of = [&](std::int64_t r) {
        return TokenRange{part, r * part, (2 * degree - 1 - r) * part};
    };
    const auto places_of = [&](std::int64_t r) {
        return exec::places_of_tokens(2 * degree * part, static_cast<int>(degree), static_cast<int>(r));
    };
    c.own.window = c.theirs.window = 0;
    c.own.tokens = c.own.keys = c.theirs.tokens = c.theirs.keys = 2 * part;
    c.own.whole_sequence = c.theirs.whole_sequence = 2 * degree * part;
    c.own.token_range = range_of(rank);
    c.theirs.query_row = c.own.row();
    const std::vector<std::int32_t> places = places_of(rank);
    c.theirs.places = places.data();
    const std::int64_t rows = c.own.samples * c.own.tokens, scores = rows * c.own.heads,
                       memory_size = rows * c.own.key_row();
    std::vector<float> qkv = b.normal(rows * c.own.row()), dy = b.normal(rows * c.own.heads * d);
    const void *in = b.put(type, qkv), *gradient = b.put(type, dy);
    std::vector<float> y(dy.size()), sums(static_cast<std::size_t>(scores));
    void *out = b.room(y.size() * 4), *found = b.room(y.size() * 4), *result = b.room(qkv.size() * 4),
         *key_result = b.room(memory_size * 4), *workspace = b.room(sums.size() * 4);
    auto *log_sums = static_cast<float*>(b.room(sums.size() * 4)),
         *found_sums = static_cast<float*>(b.room(sums.size() * 4));
    for (const std::int64_t from : {rank, other}) {
        std::vector<float> keys = b.normal(memory_size);
        const std::vector<std::int32_t> key_places = places_of(from);
        const void* memory = b.put(type, keys);
        c.own.key_range = range_of(from);
        c.theirs.key_places = key_places.data();
        c.theirs.joins = from != rank;
        cpu::kernels().attention(c.theirs, qkv.data(), keys.data(), y.data(),
                                 {sums.data(), nullptr, nullptr, nullptr});
        if (from == rank) {
            b.k.attention(b.s, type, c.own, in, memory, out, log_sums);
        } else {
            b.k.attention(b.s, type, c.own, in, memory, found, found_sums);
            b.k.merge_attention(b.s, type, c.own, 0, c.own.tokens, found, found_sums, out, log_sums);
        }
        near("attention in a ring", type, b.get(type, out, y.size()), y, 32);
        near("sums in a ring", Type::fp32, b.get(Type::fp32, log_sums, sums.size()), sums, 64);
        std::vector<float> dqkv(qkv.size(), 0.0f), dkeys(keys.size(), 0.0f);
        const cpu::AttentionSaved saved{sums.data(), nullptr, nullptr, nullptr, y.data()};
        cpu::kernels().attention_backward(c.theirs, qkv.data(), keys.data(), saved, dy.data(), dqkv.data(),
                                          dkeys.data(), nullptr);
        b.machine.fill_zero(b.s, result, qkv.size() * size_of(type));
        b.k.attention_backward(b.s, type, c.own, in, memory, out, log_sums, gradient, result, key_result,
                               workspace);
        near("attention backward in a ring", type, b.get(type, result, dqkv.size()), dqkv, 64);
        near("attention backward in a ring, keys", type, b.get(type, key_result, dkeys.size()), dkeys, 64);
    }
}

// The queries of a segment of a sequence, keys and values of it and of those before.
void check_attention_of_segment(Bench& b, Type type, AttentionCase c) {
    const std::int64_t segments = b.between(2, 4), segment = b.between(1, segments - 1);
    c.own.tokens = b.between(1, 40);
    c.own.keys = (segment + 1) * c.own.tokens;
    c.own.whole_sequence = segments * c.own.tokens;
    c.own.token_range = {c.own.tokens, segment * c.own.tokens, 0};
    c.own.is_causal = c.theirs.is_causal = true;
    std::vector<std::int32_t> places(static_cast<std::size_t>(c.own.tokens));
    std::iota(places.begin(), places.end(), static_cast<std::int32_t>(segment * c.own.tokens));
    check_attention_of_places(b, type, c, places);
}

void check_columns(Bench& b, Type type) {
    // Multiples of eight go in packs of 16 bytes, others element by element.
    const std::int64_t unit_width = b.between(0, 1) ? 8 : 1;
    ColumnMove move{b.between(1, 3), b.between(1, 9), unit_width * b.between(1, 6)};
    move.from_row = move.width + unit_width * b.between(0, 3);
    move.from_sample = move.rows * move.from_row + unit_width * b.between(0, 5);
    move.to_row = move.width + unit_width * b.between(0, 3);
    move.to_sample = move.rows * move.to_row + unit_width * b.between(0, 5);
    std::vector<float> x = b.normal(move.samples * move.from_sample),
                       y = b.normal(move.samples * move.to_sample);
    const void* from = b.put(type, x);
    for (const bool accumulates : {false, true}) {
        void* to = b.put(type, y);
        std::vector<float> expected = y;
        for (std::int64_t sample = 0; sample < move.samples; ++sample)
            for (std::int64_t row = 0; row < move.rows; ++row)
                for (std::int64_t c = 0; c < move.width; ++c) {
                    float& at =
                        expected[static_cast<std::size_t>(sample * move.to_sample + row * move.to_row + c)];
                    at = x[static_cast<std::size_t>(sample * move.from_sample + row * move.from_row + c)] +
                         (accumulates ? at : 0.0f);
                }
        b.k.move_columns(b.s, type, move, from, to, accumulates);
        near("columns", type, b.get(type, to, y.size()), expected, 1);
    }
}

void check_attention(Bench& b, Type type) {
    std::vector<std::uint64_t> keys;
    std::vector<float> slopes;
    const AttentionCase c = random_attention(b, keys, slopes);
    const std::int64_t rows = c.own.samples * c.own.tokens, scores = rows * c.own.heads;
    std::vector<float> qkv = b.normal(rows * c.own.row()),
                       dy = b.normal(rows * c.own.heads * c.own.head_dimension);
    const void *in = b.put(type, qkv), *gradient = b.put(type, dy);
    std::vector<float> y(dy.size()), sums(static_cast<std::size_t>(scores)), dqkv(qkv.size(), 0.0f);
    cpu::kernels().attention(c.theirs, qkv.data(), qkv.data(), y.data(),
                             {sums.data(), nullptr, nullptr, nullptr});
    cpu::kernels().attention_backward(c.theirs, qkv.data(), qkv.data(),
                                      {sums.data(), nullptr, nullptr, nullptr}, dy.data(), dqkv.data(),
                                      dqkv.data(), nullptr);
    void *out = b.room(y.size() * 4), *result = b.room(qkv.size() * 4), *workspace = b.room(sums.size() * 4);
    auto* log_sums = static_cast<float*>(b.room(sums.size() * 4));
    b.k.attention(b.s, type, c.own, in, nullptr, out, log_sums);
    near("attention", type, b.get(type, out, y.size()), y, 32);
    near("attention's logarithms of sums", Type::fp32, b.get(Type::fp32, log_sums, sums.size()), sums, 64);
    b.k.attention_backward(b.s, type, c.own, in, nullptr, out, log_sums, gradient, result, nullptr,
                           workspace);
    near("attention backward", type, b.get(type, result, dqkv.size()), dqkv, 64);
    AttentionCase plain = c;  // what libraries take too
    plain.own.window = plain.theirs.window = 0;
    plain.own.alibi_slopes = plain.theirs.alibi_slopes = nullptr;
    plain.own.dropout = plain.theirs.dropout = 0;
    for (const AttentionCase& one : {c, plain}) {
        check_divided_attention(b, type, one);
        check_attention_in_ring(b, type, one);
        check_attention_of_segment(b, type, one);
    }
    if (fused_attention_unsupported(b.machine, type, c.own)) return;
    fused_attention(b.machine, b.s, type, c.own, in, nullptr, out, log_sums);
    near("fused attention", type, b.get(type, out, y.size()), y, 16);
    near("fused attention's logarithms of sums", Type::fp32, b.get(Type::fp32, log_sums, sums.size()), sums,
         1 << 14);
    fused_attention_backward(b.machine, b.s, type, c.own, in, nullptr, out, log_sums, gradient, result,
                             nullptr, nullptr);
    near("fused attention backward", type, b.get(type, result, dqkv.size()), dqkv, 32);
}

void check_rotation(Bench& b, Type type) {
    // Heads of 8 are turned element by element, heads of 32 in packs of 16 bytes; of both a whole head or
    // half of it.
    const std::int64_t head = b.between(0, 1) ? 8 : 32;
    RotationShape shape{2, b.between(1, 9), 4, 2, head, b.between(0, 1) ? head : head / 2};
    std::vector<float> cosines, sines;
    for (std::int64_t i = 0; i < shape.tokens * shape.dimension / 2; ++i) {
        cosines.push_back(static_cast<float>(std::cos(0.3 * static_cast<double>(i))));
        sines.push_back(static_cast<float>(std::sin(0.3 * static_cast<double>(i))));
    }
    shape.cosines = b.put_raw(cosines);
    shape.sines = b.put_raw(sines);
    const std::int64_t width = 8 * head, half = shape.dimension / 2;
    std::vector<float> x = b.normal(2 * shape.tokens * width), expected = x;
    const void* in = b.put(type, x);
    expected = x;
    for (std::int64_t row = 0; row < 2 * shape.tokens; ++row)
        for (std::int64_t h = 0; h < 6; ++h)  // four of queries, two of keys; values stay
            for (std::int64_t c = 0; c < half; ++c) {
                const auto first = static_cast<std::size_t>(row * width + h * head + c),
                           second = first + static_cast<std::size_t>(half);
                const auto pair = static_cast<std::size_t>(row % shape.tokens * half + c);
                expected[first] = x[first] * cosines[pair] - x[second] * sines[pair];
                expected[second] = x[second] * cosines[pair] + x[first] * sines[pair];
            }
    void *turned = b.room(x.size() * 4), *back = b.room(x.size() * 4);
    b.k.rotate(b.s, type, shape, false, in, turned, false);
    near("rotation", type, b.get(type, turned, x.size()), expected, 2);
    b.k.rotate(b.s, type, shape, true, turned, back, false);
    near("rotation there and back", type, b.get(type, back, x.size()), x, 4);
    // In place the same bits, and values are not touched.
    void* own = b.put(type, x);
    b.k.rotate_in_place(b.s, type, shape, false, own);
    near("rotation in place", type, b.get(type, own, x.size()), b.get(type, turned, x.size()), 0);
    b.k.rotate_in_place(b.s, type, shape, true, own);
    near("rotation in place and back", type, b.get(type, own, x.size()), b.get(type, back, x.size()), 0);
}

// Moves and sums over tokens: places are written out here.
void check_tokens(Bench& b, Type type) {
    const std::int64_t samples = b.between(1, 3), tokens = b.between(1, 9), width = b.between(1, 40),
                       selected = b.between(1, 5);
    std::vector<float> x = b.normal(samples * tokens * width), start = b.normal(samples * tokens * width);
    const void* in = b.put(type, x);
    const auto at = [&](std::int64_t sample, std::int64_t token, std::int64_t c) {
        return static_cast<std::size_t>((sample * tokens + token) * width + c);
    };
    void* out = b.put(type, start);
    std::vector<float> turned(x.size()), sums = start;
    for (std::int64_t s = 0; s < samples; ++s)
        for (std::int64_t k = 0; k < tokens; ++k)
            for (std::int64_t c = 0; c < width; ++c)
                turned[static_cast<std::size_t>((s * width + c) * tokens + k)] = x[at(s, k, c)];
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += turned[i];
    b.k.transpose(b.s, type, samples, tokens, width, in, out, true);
    near("transpose that adds", type, b.get(type, out, sums.size()), sums, 1);
    b.k.transpose(b.s, type, samples, tokens, width, in, out, false);
    near("transpose", type, b.get(type, out, turned.size()), turned, 0);

    std::vector<float> means(static_cast<std::size_t>(samples * width), 0.0f),
        dmeans = b.normal(samples * width), spread = start;
    for (std::int64_t s = 0; s < samples; ++s)
        for (std::int64_t k = 0; k < tokens; ++k)
            for (std::int64_t c = 0; c < width; ++c)
                means[static_cast<std::size_t>(s * width + c)] += x[at(s, k, c)] / static_cast<float>(tokens);
    void* mean = b.room(means.size() * 4);
    b.k.average_tokens(b.s, type, samples, tokens, width, in, mean);
    near("average of tokens", type, b.get(type, mean, means.size()), means, 8);
    const void* gradient = b.put(type, dmeans);
    for (std::int64_t s = 0; s < samples; ++s)
        for (std::int64_t k = 0; k < tokens; ++k)
            for (std::int64_t c = 0; c < width; ++c)
                spread[at(s, k, c)] +=
                    dmeans[static_cast<std::size_t>(s * width + c)] / static_cast<float>(tokens);
    out = b.put(type, start);
    b.k.average_tokens_backward(b.s, type, samples, tokens, width, gradient, out, true);
    near("average of tokens backward", type, b.get(type, out, spread.size()), spread, 1);

    // Positions may repeat: their gradients add up.
    for (const bool is_first : {true, false}) {
        const std::int64_t each = is_first ? 1 : selected;
        std::vector<std::int64_t> positions;
        for (std::int64_t r = 0; r < samples * each; ++r)
            positions.push_back(is_first ? 0 : b.between(0, tokens - 1));
        const std::int64_t* places = is_first ? nullptr : b.put_raw(positions);
        std::vector<float> taken(static_cast<std::size_t>(samples * each * width)),
            dtaken = b.normal(samples * each * width), dx(x.size(), 0.0f);
        const void* dout = b.put(type, dtaken);
        for (std::int64_t r = 0; r < samples * each; ++r)
            for (std::int64_t c = 0; c < width; ++c) {
                taken[static_cast<std::size_t>(r * width + c)] =
                    x[at(r / each, positions[static_cast<std::size_t>(r)], c)];
                dx[at(r / each, positions[static_cast<std::size_t>(r)], c)] +=
                    dtaken[static_cast<std::size_t>(r * width + c)];
            }
        void *chosen = b.room(taken.size() * 4), *back = b.room(dx.size() * 4);
        b.k.select(b.s, type, samples * each, each, tokens, width, places, in, chosen);
        near("selected tokens", type, b.get(type, chosen, taken.size()), taken, 0);
        b.machine.fill_zero(b.s, back, dx.size() * size_of(type));
        b.k.select_backward(b.s, type, samples * each, each, tokens, width, places, dout, back);
        near("selected tokens backward", type, b.get(type, back, dx.size()), dx, 4);
    }
}

void check_images(Bench& b, Type type) {
    ImageShape s;
    s.samples = b.between(1, 3);
    s.channels = s.out_channels = b.between(1, 4);
    s.rows = b.between(3, 9);
    s.columns = b.between(3, 9);
    s.kernel_y = s.kernel_x = b.between(1, 3);
    s.stride = b.between(1, 2);
    s.padding = b.between(0, s.kernel_y / 2);
    s.out_rows = (s.rows + 2 * s.padding - s.kernel_y) / s.stride + 1;
    s.out_columns = (s.columns + 2 * s.padding - s.kernel_x) / s.stride + 1;
    const cpu::ImageShape t{s.samples,     s.channels, s.rows,     s.columns, s.out_channels, s.out_rows,
                            s.out_columns, s.kernel_y, s.kernel_x, s.stride,  s.padding};
    const std::int64_t in_count = s.samples * s.channels * s.rows * s.columns,
                       out_count = s.samples * s.channels * s.out_rows * s.out_columns;
    std::vector<float> x = b.normal(in_count), dy = b.normal(out_count), y(dy.size()), dx(x.size(), 0.0f);
    std::vector<std::int64_t> places(dy.size());
    const void *in = b.put(type, x), *gradient = b.put(type, dy);
    void *out = b.room(y.size() * 4), *back = b.room(x.size() * 4);
    auto* positions = static_cast<std::int64_t*>(b.room(places.size() * 8));
    b.k.max_pool(b.s, type, s, in, out, positions);
    b.k.max_pool_backward(b.s, type, s, positions, gradient, back, false);
    cpu::kernels().max_pool(t, x.data(), y.data(), places.data());
    cpu::kernels().max_pool_backward(t, places.data(), dy.data(), dx.data());
    near("max pool", type, b.get(type, out, y.size()), y, 0);
    near("max pool backward", type, b.get(type, back, dx.size()), dx, 2);
    b.k.average_pool(b.s, type, s, in, out);
    b.k.average_pool_backward(b.s, type, s, gradient, back, false);
    std::fill(dx.begin(), dx.end(), 0.0f);
    cpu::kernels().average_pool(t, x.data(), y.data());
    cpu::kernels().average_pool_backward(t, dy.data(), dx.data());
    near("average pool", type, b.get(type, out, y.size()), y, 4);
    near("average pool backward", type, b.get(type, back, dx.size()), dx, 4);

    std::vector<float> scale = b.normal(s.channels), shift = b.normal(s.channels), dz = b.normal(in_count),
                       z(x.size()), dscale(scale.size(), 0.0f), dshift(scale.size(), 0.0f),
                       kept(2 * scale.size());
    std::fill(dx.begin(), dx.end(), 0.0f);
    const Values factors{b.put(Type::fp32, scale), Type::fp32}, offsets{b.put(Type::fp32, shift), Type::fp32};
    auto* statistics = static_cast<float*>(b.room(kept.size() * 4));
    const void* dzed = b.put(type, dz);
    void *first = b.put(Type::fp32, dscale), *second = b.put(Type::fp32, dshift);
    b.k.batch_norm(b.s, type, s, 1e-5f, in, factors, offsets, back, statistics);
    cpu::kernels().batch_norm(t, 1e-5f, x.data(), scale.data(), shift.data(), z.data(), kept.data());
    near("batch norm", type, b.get(type, back, z.size()), z, 8);
    b.k.batch_norm_backward(b.s, type, s, in, statistics, factors, dzed, back, false);
    b.k.batch_norm_weights(b.s, type, s, in, statistics, dzed, {first, Type::fp32}, {second, Type::fp32});
    cpu::kernels().batch_norm_backward(t, x.data(), kept.data(), scale.data(), dz.data(), dx.data());
    cpu::kernels().batch_norm_weights(t, x.data(), kept.data(), dz.data(), dscale.data(), dshift.data());
    near("batch norm backward", type, b.get(type, back, dx.size()), dx, 32);
    near("batch norm scale", Type::fp32, b.get(Type::fp32, first, dscale.size()), dscale, 256);
    near("batch norm shift", Type::fp32, b.get(Type::fp32, second, dshift.size()), dshift, 256);

    // The bias of a convolution: one number a channel.
    std::vector<float> bias = b.normal(s.channels), biased = dy, dbias = b.normal(s.channels);
    const Values added{b.put(type, bias), type};
    void *image = b.put(type, biased), *dsum = b.put(Type::fp32, dbias);
    const std::int64_t pixels = s.out_rows * s.out_columns;
    b.k.channel_sums(b.s, type, s, gradient, {dsum, Type::fp32});
    b.k.add_channel_bias(b.s, type, s, added, image);
    for (std::int64_t i = 0; i < out_count; ++i) {
        const auto channel = static_cast<std::size_t>(i / pixels % s.channels);
        dbias[channel] += dy[static_cast<std::size_t>(i)];
        biased[static_cast<std::size_t>(i)] += bias[channel];
    }
    near("channel bias", type, b.get(type, image, biased.size()), biased, 1);
    near("channel sums", Type::fp32, b.get(Type::fp32, dsum, dbias.size()), dbias, 64);
}

void check_update(Bench& b, Type type) {
    const std::vector<std::int64_t> counts{b.between(1, 40), b.between(8190, 8200), b.between(1, 3)};
    StepFactors f{1e-2f, 0.9f, 0.99f, 1e-8f,    0.9f,     1e-2f / (1 - 0.9f), 1 / std::sqrt(1 - 0.99f),
                  2.0f,  1.0f, 0.5f,  1 - 0.9f, 1 - 0.99f};
    for (const bool is_adam : {true, false}) {
        std::vector<DeviceRange> ranges;
        std::vector<UpdateChunk> chunks;
        std::vector<std::vector<float>> parameters, gradients, masters, firsts, seconds;
        for (std::size_t i = 0; i < counts.size(); ++i) {
            for (auto* list : {&parameters, &gradients, &masters, &firsts, &seconds})
                list->push_back(b.normal(counts[i], 0.1));
            masters.back() = parameters.back();
            for (float& value : seconds.back()) value = std::fabs(value);
            ranges.push_back({b.put(type, parameters.back()), b.put(type, gradients.back()),
                              static_cast<float*>(b.put(Type::fp32, masters.back())),
                              static_cast<float*>(b.put(Type::fp32, firsts.back())),
                              static_cast<float*>(b.put(Type::fp32, seconds.back())), counts[i],
                              i == 1 ? 0.1f : 0.0f});
            for (std::int64_t begin = 0; begin < counts[i]; begin += update_chunk)
                chunks.push_back({static_cast<std::int32_t>(i), begin});
        }
        const auto chunk_count = static_cast<std::int64_t>(chunks.size());
        const DeviceRange* device_ranges = b.put_raw(ranges);
        const UpdateChunk* device_chunks = b.put_raw(chunks);
        const StepFactors* factors = b.put_raw(std::vector<StepFactors>{f});
        auto* partials = static_cast<float*>(b.room(chunks.size() * 8));
        auto* norm = static_cast<float*>(b.room(8));
        b.k.gradient_norm(b.s, type, device_ranges, device_chunks, chunk_count, factors, partials, norm);
        double squares = 0;
        for (const auto& list : gradients)
            for (const float g : list) squares += 0.25 * static_cast<double>(g) * static_cast<double>(g);
        const std::vector<float> got = b.get(Type::fp32, norm, 2);
        CHECK(got[0] == Approx(squares).epsilon(1e-4));
        CHECK(got[1] == 0.0f);
        // Some rounds clip to half of the norm: the kernel writes the clipped gradients back.
        const bool clips = b.between(0, 1) == 1;
        b.k.update(b.s, is_adam ? UpdateRule::adam : UpdateRule::sgd, type, type, device_ranges,
                   device_chunks, chunk_count, factors, norm + 1, clips ? norm : nullptr);
        const float clip = clips ? std::min(1.0f, f.largest_norm / (std::sqrt(got[0]) + 1e-6f)) : 1.0f;
        for (std::size_t i = 0; i < counts.size(); ++i) {
            std::vector<float> halved = gradients[i];
            for (float& g : halved) g *= clip;
            if (clip < 1)
                near("clipped gradient", type, b.get(type, ranges[i].gradient, halved.size()), halved, 1);
            for (float& g : halved) g /= f.loss_scale;
            if (is_adam)
                cpu::kernels().adam(counts[i],
                                    {1e-2f, 0.9f, 0.99f, 1e-8f, ranges[i].weight_decay, 1 - 0.9f, 1 - 0.99f,
                                     true, 1 - 0.9f, 1 - 0.99f},
                                    halved.data(), masters[i].data(), firsts[i].data(), seconds[i].data());
            else
                cpu::kernels().sgd(counts[i], 1e-2f, 0.9f, ranges[i].weight_decay, halved.data(),
                                   masters[i].data(), firsts[i].data());
            near("master", Type::fp32, b.get(Type::fp32, ranges[i].master, masters[i].size()), masters[i],
                 16);
            near("parameter", type, b.get(type, ranges[i].parameter, masters[i].size()), masters[i],
                 type == Type::fp32 ? 16 : 1);
            near("first state", Type::fp32, b.get(Type::fp32, ranges[i].first, masters[i].size()), firsts[i],
                 16);
        }
    }
}

// Some ranges have other places in their bucket than in the table, one is counted by another rank, and of one
// place this rank has nothing.
void check_lamb(Bench& b, Type type) {
    const std::vector<std::int64_t> counts{b.between(1, 40), b.between(8190, 8200), b.between(1, 3),
                                           b.between(16384, 20000)};
    const std::vector<std::int32_t> places{3, 0, 1, 4};
    constexpr std::size_t bucket = 5, uncounted = 2;
    StepFactors f{1e-2f, 0.9f, 0.99f, 1e-6f,    0,        1 / (1 - 0.9f), 1 / std::sqrt(1 - 0.99f),
                  2.0f,  0,    0.5f,  1 - 0.9f, 1 - 0.99f};
    const bool has_master = type != Type::fp32 || b.between(0, 1) == 1, clips = b.between(0, 1) == 1;
    std::vector<DeviceRange> ranges;
    std::vector<UpdateChunk> chunks;
    std::vector<std::vector<float>> parameters, gradients, firsts, seconds;
    for (std::size_t i = 0; i < counts.size(); ++i) {
        for (auto* list : {&parameters, &gradients, &firsts, &seconds})
            list->push_back(b.normal(counts[i], 0.1));
        for (float& value : seconds.back()) value = std::fabs(value);
        void* const rounded = b.put(type, parameters.back());
        ranges.push_back({rounded, b.put(type, gradients.back()),
                          has_master ? static_cast<float*>(b.put(Type::fp32, parameters.back())) : nullptr,
                          static_cast<float*>(b.put(Type::fp32, firsts.back())),
                          static_cast<float*>(b.put(Type::fp32, seconds.back())), counts[i],
                          i % 2 ? 0.1f : 0.0f, places[i], i == uncounted ? 0 : 1,
                          static_cast<std::int64_t>(chunks.size())});
        for (std::int64_t begin = 0; begin < counts[i]; begin += update_chunk)
            chunks.push_back({static_cast<std::int32_t>(i), begin});
    }
    const auto chunk_count = static_cast<std::int64_t>(chunks.size()),
               range_count = static_cast<std::int64_t>(ranges.size());
    const DeviceRange* device_ranges = b.put_raw(ranges);
    const UpdateChunk* device_chunks = b.put_raw(chunks);
    const StepFactors* factors = b.put_raw(std::vector<StepFactors>{f});
    auto* partials = static_cast<float*>(b.room(chunks.size() * 8));
    const std::vector<float> norm{1.0f, 0.0f,
                                  1.0f};  // clipped: squares 1, to half; no gradient is bad; one is
    const float* device_norm = b.put_raw(norm);
    std::vector<float> untouched(2 * bucket, -7.0f);
    auto* sums = static_cast<float*>(b.put(Type::fp32, untouched));
    const auto take = [&](const float* bad) {
        b.k.update_norms(b.s, type, type, device_ranges, range_count, device_chunks, chunk_count, factors,
                         bad, clips ? device_norm : nullptr, partials, sums);
    };
    take(device_norm + 2);
    b.k.lamb(b.s, type, device_ranges, device_chunks, chunk_count, factors, device_norm + 2, sums);
    CHECK(b.get(Type::fp32, sums, untouched.size()) == untouched);
    for (std::size_t i = 0; i < counts.size(); ++i) {
        CHECK(b.get(Type::fp32, ranges[i].first, firsts[i].size()) == firsts[i]);
        CHECK(b.get(type, ranges[i].parameter, firsts[i].size()) == parameters[i]);
    }
    take(device_norm + 1);
    const std::vector<float> got = b.get(Type::fp32, sums, untouched.size());
    std::vector<double> squares(2 * bucket, 0.0);
    squares[2 * 2] = squares[2 * 2 + 1] = -7;  // nothing of place 2
    std::vector<cpu::AdamStep> steps(
        counts.size(), {1e-2f, 0.9f, 0.99f, 1e-6f, 0, 1 - 0.9f, 1 - 0.99f, false, 1 - 0.9f, 1 - 0.99f});
    for (std::size_t i = 0; i < counts.size(); ++i) {
        std::vector<float> g = gradients[i];
        if (clips) {
            for (float& value : g) value *= 0.5f / (1 + 1e-6f);
            near("clipped gradient", type, b.get(type, ranges[i].gradient, g.size()), g, 1);
        }
        for (float& value : g) value /= f.loss_scale;
        steps[i].weight_decay = ranges[i].weight_decay;
        double of_range[2] = {};
        cpu::kernels().lamb_norms(counts[i], steps[i], g.data(), parameters[i].data(), firsts[i].data(),
                                  seconds[i].data(), of_range);
        near("first moment", Type::fp32, b.get(Type::fp32, ranges[i].first, g.size()), firsts[i], 16);
        near("second moment", Type::fp32, b.get(Type::fp32, ranges[i].second, g.size()), seconds[i], 16);
        for (std::size_t s = 0; s < 2; ++s)
            squares[2 * static_cast<std::size_t>(places[i]) + s] = i == uncounted ? 0 : of_range[s];
    }
    for (std::size_t s = 0; s < squares.size(); ++s) CHECK(got[s] == Approx(squares[s]).epsilon(1e-5));
    // Sums as they come back from the other ranks.
    std::vector<float> whole(2 * bucket);
    for (std::size_t s = 0; s < whole.size(); ++s) whole[s] = s % 2 ? 4.0f : 9.0f;
    whole[2 * 3] = 0;  // a parameter of zeros
    b.k.lamb(b.s, type, device_ranges, device_chunks, chunk_count, factors, device_norm + 1,
             static_cast<float*>(b.put(Type::fp32, whole)));
    for (std::size_t i = 0; i < counts.size(); ++i) {
        cpu::kernels().lamb(counts[i], steps[i], 1e-2f * (places[i] == 3 ? 1.0f : 1.5f), parameters[i].data(),
                            firsts[i].data(), seconds[i].data());
        if (has_master)
            near("master", Type::fp32, b.get(Type::fp32, ranges[i].master, parameters[i].size()),
                 parameters[i], 16);
        near("parameter", type, b.get(type, ranges[i].parameter, parameters[i].size()), parameters[i],
             type == Type::fp32 ? 16 : 1);
    }
}

void check_products(Bench& b, Type type) {
    const std::int64_t m = b.between(1, 40), n = 8 * b.between(1, 6), k = 8 * b.between(1, 6);
    for (const auto& [ta, tb] : {std::pair{false, true}, {false, false}, {true, false}}) {
        std::vector<float> x = b.normal(m * k), w = b.normal(k * n), c = b.normal(m * n), bias = b.normal(n),
                           expected = c;
        Product p;
        p.in = p.out = type;
        p.transpose_a = ta;
        p.transpose_b = tb;
        p.m = m;
        p.n = n;
        p.k = k;
        p.a = b.put(type, x);
        p.b = b.put(type, w);
        p.lda = ta ? m : k;
        p.ldb = tb ? k : n;
        p.c = b.put(type, c);
        p.ldc = n;
        p.accumulates = ta;
        p.bias = tb ? b.put(type, bias) : nullptr;
        expected = c;
        b.machine.product(b.s, p);
        cpu::kernels().product(ta, tb, m, n, k, 1, x.data(), p.lda, w.data(), p.ldb, expected.data(), n, ta);
        if (tb) cpu::kernels().add_row(m, n, bias.data(), expected.data());
        near("product", type, b.get(type, p.c, expected.size()), expected, 16);

        // Added to another array, which stays.
        std::vector<float> residual = b.normal(m * n);
        Product added = p;
        added.accumulates = false;
        added.addend = b.put(type, residual);
        b.machine.product(b.s, added);
        std::fill(expected.begin(), expected.end(), 0.0f);
        cpu::kernels().product(ta, tb, m, n, k, 1, x.data(), p.lda, w.data(), p.ldb, expected.data(), n,
                               false);
        if (tb) cpu::kernels().add_row(m, n, bias.data(), expected.data());
        const std::vector<float> plain = expected;
        for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += residual[i];
        near("product added to an array", type, b.get(type, p.c, expected.size()), expected, 16);

        if (Product with = p; tb) {
            with.before_gelu = b.room(expected.size() * 4);
            if (!b.machine.offers(with)) continue;
            b.machine.product(b.s, with);
            near("product before its GELU", type, b.get(type, with.before_gelu, plain.size()), plain, 16);
            cpu::kernels().unary(cpu::Unary::gelu_tanh, m * n, plain.data(), expected.data());
            near("GELU with a product", type, b.get(type, with.c, expected.size()), expected, 24);
        } else if (!ta) {
            with.gelu_input = added.addend;
            if (!b.machine.offers(with)) continue;
            b.machine.product(b.s, with);
            std::fill(expected.begin(), expected.end(), 0.0f);
            cpu::kernels().unary_backward(cpu::Unary::gelu_tanh, m * n, residual.data(), plain.data(),
                                          expected.data());
            near("GELU backward with a product", type, b.get(type, with.c, expected.size()), expected, 24);
        } else {
            with.accumulates = false;
            with.row_sums = b.room(static_cast<std::size_t>(m) * 4);
            try {  // whether it pays or not
                b.machine.product(b.s, with);
            } catch (const core::MachineError&) {
                continue;
            }
            near("product beside sums of rows", type, b.get(type, with.c, plain.size()), plain, 16);
            std::vector<float> sums(static_cast<std::size_t>(m), 0.0f);
            cpu::kernels().sum_rows(k, m, x.data(), sums.data());
            near("sums of rows beside a product", type, b.get(type, with.row_sums, sums.size()), sums, 16);
        }
    }
}

// The library's convolutions (here loops) against sums written out: input and weight gradients are the
// derivatives of the forward sum.
void check_convolutions(Bench& b, Type type) {
    ImageShape s;
    s.samples = b.between(1, 2);
    s.channels = b.between(1, 3);
    s.out_channels = b.between(1, 4);
    s.rows = s.columns = b.between(4, 8);
    s.kernel_y = s.kernel_x = b.between(1, 3);
    s.stride = b.between(1, 2);
    s.padding = s.kernel_y / 2;
    s.out_rows = s.out_columns = (s.rows + 2 * s.padding - s.kernel_y) / s.stride + 1;
    const std::int64_t kernel = s.channels * s.kernel_y * s.kernel_x;
    std::vector<float> x = b.normal(s.samples * s.channels * s.rows * s.columns),
                       w = b.normal(s.out_channels * kernel),
                       dy = b.normal(s.samples * s.out_channels * s.out_rows * s.out_columns),
                       dw = b.normal(s.out_channels * kernel);
    const void *in = b.put(type, x), *weight = b.put(type, w), *gradient = b.put(type, dy);
    void *out = b.room(dy.size() * 4), *back = b.room(x.size() * 4), *dweight = b.put(type, dw);
    b.machine.convolution(b.s, ConvolutionPass::forward, type, s, in, weight, out, false);
    b.machine.convolution(b.s, ConvolutionPass::input, type, s, gradient, weight, back, false);
    b.machine.convolution(b.s, ConvolutionPass::weight, type, s, in, gradient, dweight, true);
    std::vector<float> y(dy.size(), 0.0f), dx(x.size(), 0.0f);
    for (std::int64_t n = 0; n < s.samples; ++n)
        for (std::int64_t o = 0; o < s.out_channels; ++o)
            for (std::int64_t r = 0; r < s.out_rows; ++r)
                for (std::int64_t q = 0; q < s.out_columns; ++q)
                    for (std::int64_t c = 0; c < s.channels; ++c)
                        for (std::int64_t i = 0; i < s.kernel_y; ++i)
                            for (std::int64_t j = 0; j < s.kernel_x; ++j) {
                                const std::int64_t row = r * s.stride - s.padding + i,
                                                   column = q * s.stride - s.padding + j;
                                if (row < 0 || row >= s.rows || column < 0 || column >= s.columns) continue;
                                const auto from = static_cast<std::size_t>(
                                    ((n * s.channels + c) * s.rows + row) * s.columns + column);
                                const auto to = static_cast<std::size_t>(
                                    ((n * s.out_channels + o) * s.out_rows + r) * s.out_columns + q);
                                const auto by = static_cast<std::size_t>(
                                    o * kernel + (c * s.kernel_y + i) * s.kernel_x + j);
                                y[to] += x[from] * w[by];
                                dx[from] += dy[to] * w[by];
                                dw[by] += x[from] * dy[to];
                            }
    near("convolution", type, b.get(type, out, y.size()), y, 32);
    near("convolution backward to its input", type, b.get(type, back, dx.size()), dx, 32);
    near("convolution backward to its weight", type, b.get(type, dweight, dw.size()), dw, 32);
}

// Octets are exact: scales are powers of two, and the host's conversion is told apart from the device's
// nowhere.
void check_float8(Bench& b, Type type) {
    const std::int64_t kind = b.between(0, 5);
    // Beyond a square of 128 in one direction, and in neither; whole packs and not.
    const std::int64_t rows =
        kind < 3 ? 16 * b.between(1, kind == 0 ? 10 : 4) : b.between(1, kind == 3 ? 150 : 40);
    const std::int64_t columns =
        kind < 3 ? 16 * b.between(1, kind == 1 ? 10 : 4) : b.between(1, kind == 4 ? 150 : 40);
    std::vector<float> x = b.normal(rows * columns, std::exp2(static_cast<double>(b.between(-12, 12))));
    if (kind == 5) std::fill(x.begin(), x.end(), 0.0f);
    if (kind == 2) x[x.size() / 2] = b.between(0, 1) == 0 ? INFINITY : NAN;
    const void* in = b.put(type, x);
    auto *partials = static_cast<float*>(b.room(float8_partials * sizeof(float))),
         *unscale = static_cast<float*>(b.room(sizeof(float)));
    float most = 0;
    for (const float value : x) most = std::max(most, std::isfinite(value) ? std::fabs(value) : INFINITY);
    for (const exec::Float8 format : {exec::Float8::e4m3, exec::Float8::e5m2})
        for (const auto& [has_plain, has_turned] : {std::pair{true, true}, {true, false}, {false, true}}) {
            CAPTURE(rows, columns, has_plain, has_turned);
            auto* plain = static_cast<std::uint8_t*>(has_plain ? b.room(x.size()) : nullptr);
            auto* turned = static_cast<std::uint8_t*>(has_turned ? b.room(x.size()) : nullptr);
            b.k.largest_magnitudes(b.s, type, rows * columns, in, partials);
            b.k.cast_to_float8(b.s, type, format, rows, columns, in, partials, unscale, plain, turned);
            const float scale = exec::float8_scale(format, most);
            CHECK(b.get(Type::fp32, unscale, 1)[0] == 1 / scale);
            std::vector<std::uint8_t> got_plain(x.size()), got_turned(x.size());
            b.machine.synchronize();
            if (plain) b.machine.download_now(got_plain.data(), plain, x.size());
            if (turned) b.machine.download_now(got_turned.data(), turned, x.size());
            std::int64_t wrong = 0;
            for (std::int64_t r = 0; r < rows; ++r)
                for (std::int64_t c = 0; c < columns; ++c) {
                    const float value = x[static_cast<std::size_t>(r * columns + c)] * scale;
                    const auto is_same = [&](std::uint8_t got) {
                        return std::isnan(value) ? std::isnan(exec::from_float8(format, got))
                                                 : got == exec::to_float8(format, value);
                    };
                    wrong += plain && !is_same(got_plain[static_cast<std::size_t>(r * columns + c)]);
                    wrong += turned && !is_same(got_turned[static_cast<std::size_t>(c * rows + r)]);
                }
            CHECK(wrong == 0);
        }
}

// Octets beside a norm's or gated activation's result: those of two passes over it, whatever was guessed.
void check_octets(Bench& b, Type type) {
    if (type != Type::bf16) return;  // what plans in fp8 store
    constexpr std::int64_t widths[] = {8, 24, 100, 768, 1000, 2048, 4104, 8192};
    const std::int64_t width = widths[b.between(0, 7)], rows = b.between(1, width > 2000 ? 20 : 70),
                       count = rows * width;
    const auto elements = static_cast<std::size_t>(count);
    std::vector<float> x = b.normal(2 * count, std::exp2(static_cast<double>(b.between(-6, 6)))),
                       residual = b.normal(count), scale = b.normal(width, b.between(0, 5) == 0 ? 0.0 : 3.0),
                       shift = b.normal(width);
    const void *in = b.put(type, x), *other = b.put(type, residual);
    const Values factors{b.put(Type::fp32, scale), Type::fp32};
    void *y = b.room(2 * elements), *expected = b.room(2 * elements), *sum = b.room(2 * elements);
    auto *numbers = static_cast<float*>(b.room(3 * sizeof(float))),
         *statistics = static_cast<float*>(b.room(static_cast<std::size_t>(rows) * 8));
    const CastAlong cast{numbers, numbers + 1, static_cast<std::uint8_t*>(b.room(elements)),
                         static_cast<float*>(b.room(along_partials * sizeof(float)))};
    const auto wrong_octets = [&](float with_scale) {
        const std::vector<float> values = b.get(type, expected, elements);
        std::vector<std::uint8_t> octets(elements);
        b.machine.download_now(octets.data(), cast.octets, elements);
        std::int64_t wrong = 0;
        for (std::size_t i = 0; i < elements; ++i)
            wrong += octets[i] != exec::to_float8(exec::Float8::e4m3, values[i] * with_scale);
        return wrong;
    };
    const auto check = [&](const char* what, const auto& perform) {
        CAPTURE(what, rows, width);
        float most = 0;
        for (const float value : b.get(type, expected, elements)) most = std::max(most, std::fabs(value));
        const float right = exec::float8_scale(exec::Float8::e4m3, most);
        for (const float guess : {std::nanf(""), 0.0f, 2 * right, right, right}) {
            CAPTURE(guess);
            std::vector<float> begin{guess, 0.0f, 0.0f};
            b.machine.upload_now(numbers, begin.data(), 3 * sizeof(float));
            perform();
            near(what, type, b.get(type, y, elements), b.get(type, expected, elements), 0);
            if (guess == right) CHECK(wrong_octets(right) == 0);  // by the pass itself
            b.k.confirm_octets(b.s, count, y, cast, numbers + 2);
            CHECK(wrong_octets(right) == 0);
            CHECK(b.get(Type::fp32, numbers, 3)[2] == 1 / right);
            CHECK(b.get(Type::fp32, numbers, 3)[0] == right);
        }
    };
    for (const bool is_layer : {true, false}) {
        const Values offsets = is_layer ? Values{b.put(type, shift), type} : Values{};
        if (is_layer)
            b.k.layer_norm(b.s, type, rows, width, 1e-5f, in, factors, offsets, expected, statistics);
        else b.k.rms_norm(b.s, type, rows, width, 1e-5f, in, factors, expected, statistics);
        const auto norm = [&](const NormTerms& terms) {
            b.k.norm_with_octets(b.s, is_layer, rows, width, 1e-5f, terms, factors, offsets, y, statistics,
                                 cast);
        };
        check("a norm with octets", [&] { norm({in, nullptr, nullptr}); });
        b.k.add_and_norm(b.s, type, is_layer, rows, width, 1e-5f, in, other, sum, factors, offsets, expected,
                         statistics);
        check("a norm of a sum with octets", [&] { norm({in, other, sum}); });
    }
    for (const Unary kind : {Unary::silu, Unary::gelu}) {
        b.k.gated(b.s, type, kind, rows, width, in, expected);
        check("a gated activation with octets",
              [&] { b.k.gated_with_octets(b.s, kind, rows, width, in, y, cast); });
    }
}

// c [m, n] = a [m, k] b^T [n, k] of operands rounded to fp8: equal to that product, and as near to the
// product of what they were as rounding lets it be.
void check_float8_products(Bench& b, Type type) {
    const std::int64_t m = 16 * b.between(1, 3), n = 16 * b.between(1, 3), k = 16 * b.between(1, 4);
    for (const auto& [a_format, b_format] :
         {std::pair{exec::Float8::e4m3, exec::Float8::e4m3}, {exec::Float8::e5m2, exec::Float8::e4m3}}) {
        std::vector<float> x = b.normal(m * k, 1e-3), w = b.normal(n * k, 20), c = b.normal(m * n, 0.1);
        const auto octets = [&](exec::Float8 format, const void* from, std::int64_t rows,
                                const float*& unscale) {
            auto *partials = static_cast<float*>(b.room(float8_partials * sizeof(float))),
                 *back = static_cast<float*>(b.room(sizeof(float)));
            auto* to = static_cast<std::uint8_t*>(b.room(static_cast<std::size_t>(rows * k)));
            b.k.largest_magnitudes(b.s, type, rows * k, from, partials);
            b.k.cast_to_float8(b.s, type, format, rows, k, from, partials, back, to, nullptr);
            unscale = back;
            return to;
        };
        Product half;
        half.in = half.out = type;
        half.transpose_b = true;
        half.m = m;
        half.n = n;
        half.k = half.lda = half.ldb = k;
        half.ldc = n;
        half.a = b.put(type, x);
        half.b = b.put(type, w);
        half.c = b.put(type, c);
        half.accumulates = a_format == exec::Float8::e5m2;
        Product p = half;
        p.in_fp8 = true;
        p.a_format = a_format;
        p.b_format = b_format;
        p.a = octets(a_format, half.a, m, p.a_unscale);
        p.b = octets(b_format, half.b, n, p.b_unscale);
        p.accumulates_fast = a_format == exec::Float8::e4m3;
        const bool is_offered = b.machine.offers_fp8(p, half);
        const DeviceReport report = probe_device();
        if (type == Type::bf16 && (!report.available || has_fp8(report))) CHECK(is_offered);
        if (!is_offered) continue;
        b.machine.product(b.s, p);
        std::vector<float> low_x = x, low_w = w, expected(c.size(), 0.0f);
        exec::round_to_float8(a_format, m * k, low_x.data());
        exec::round_to_float8(b_format, n * k, low_w.data());
        if (half.accumulates) expected = c;
        cpu::kernels().product(false, true, m, n, k, 1, low_x.data(), k, low_w.data(), k, expected.data(), n,
                               half.accumulates);
        const std::vector<float> got = b.get(type, p.c, expected.size());
        near("product in fp8", type, got, expected,
             16 + (type == Type::fp32 ? 0x1p12 : 0));  // fast sums keep 14 bits on Hopper

        // What goes along with it: bias and GELU there, the GELU's slope back.
        if (Product with = p; a_format == exec::Float8::e4m3) {
            std::vector<float> bias = b.normal(n, 0.1), sums = expected, activated(expected.size());
            with.bias = b.put(type, bias);
            with.before_gelu = b.room(expected.size() * 4);
            with.c = b.room(expected.size() * 4);
            if (type != Type::fp32 && b.machine.offers(with)) {
                b.machine.product(b.s, with);
                cpu::kernels().add_row(m, n, bias.data(), sums.data());
                cpu::kernels().unary(cpu::Unary::gelu_tanh, m * n, sums.data(), activated.data());
                near("product in fp8 before its GELU", type, b.get(type, with.before_gelu, sums.size()), sums,
                     16);
                near("GELU with a product in fp8", type, b.get(type, with.c, sums.size()), activated, 24);
            }
        } else {
            std::vector<float> input = b.normal(m * n), back(input.size(), 0.0f), sums = expected;
            for (std::size_t i = 0; i < sums.size(); ++i) sums[i] -= c[i];
            with.accumulates = false;
            with.gelu_input = b.put(type, input);
            with.c = b.room(expected.size() * 4);
            if (type != Type::fp32 && b.machine.offers(with)) {
                b.machine.product(b.s, with);
                cpu::kernels().unary_backward(cpu::Unary::gelu_tanh, m * n, input.data(), sums.data(),
                                              back.data());
                near("slope of a GELU with a product in fp8", type, b.get(type, with.c, back.size()), back,
                     24);
            }
        }

        // Against double precision on what was rounded: half a unit of each element's last place, or of the
        // smallest normal number's.
        const auto off = [](exec::Float8 format, const std::vector<float>& of, std::size_t i, float most) {
            const double half_unit = format == exec::Float8::e4m3 ? 0x1p-4 : 0x1p-3,
                         floor = format == exec::Float8::e4m3 ? 0x1p-10 : 0x1p-17;
            return std::max(half_unit * std::fabs(static_cast<double>(of[i])),
                            floor / static_cast<double>(exec::float8_scale(format, most)));
        };
        float most_x = 0, most_w = 0;
        for (const float value : x) most_x = std::max(most_x, std::fabs(value));
        for (const float value : w) most_w = std::max(most_w, std::fabs(value));
        double squares = 0, differences = 0;
        bool is_within = true;
        for (std::int64_t i = 0; i < m; ++i)
            for (std::int64_t j = 0; j < n; ++j) {
                const auto at = static_cast<std::size_t>(i * n + j);
                double sum = half.accumulates ? static_cast<double>(c[at]) : 0.0, allowed = 0;
                for (std::int64_t t = 0; t < k; ++t) {
                    const auto l = static_cast<std::size_t>(i * k + t),
                               r = static_cast<std::size_t>(j * k + t);
                    const double left = std::fabs(static_cast<double>(x[l])),
                                 right = std::fabs(static_cast<double>(w[r]));
                    sum += static_cast<double>(x[l]) * static_cast<double>(w[r]);
                    allowed += (left + off(a_format, x, l, most_x)) * (right + off(b_format, w, r, most_w)) -
                               left * right;
                }
                const double difference = static_cast<double>(got[at]) - sum;
                is_within = is_within &&
                            std::fabs(difference) <= allowed + 16 * unit(type) * (std::fabs(sum) + allowed);
                squares += sum * sum;
                differences += difference * difference;
            }
        CHECK(is_within);
        // A rounding is off by 2^-4 (2^-3) at most and by some 0.42 of that in the root of the mean square,
        // of two operands; sums of many terms keep that share.
        CHECK(std::sqrt(differences / squares) < (a_format == exec::Float8::e4m3 ? 0x1p-4 : 0x1p-3));
    }
}

struct Family {
    const char* name;
    void (*check)(Bench&, Type);
};
constexpr Family families[] = {{"elementwise", check_elementwise},
                               {"dropout", check_dropout},
                               {"norms", check_norms},
                               {"fused norms", check_fused_norms},
                               {"embedding", check_embedding},
                               {"loss", check_loss},
                               {"mixture", check_mixture},
                               {"expert products", check_expert_products},
                               {"loss across", check_loss_across},
                               {"attention", check_attention},
                               {"columns", check_columns},
                               {"rotation", check_rotation},
                               {"tokens", check_tokens},
                               {"images", check_images},
                               {"update", check_update},
                               {"lamb", check_lamb},
                               {"products", check_products},
                               {"float8", check_float8},
                               {"octets", check_octets},
                               {"products in float8", check_float8_products},
                               {"convolutions", check_convolutions}};

void check_family(Machine& machine, const Family& family, int rounds) {
    for (int round = 0; round < rounds; ++round)
        for (const Type type : {Type::fp32, Type::bf16, Type::fp16}) {
            Bench b(machine, 1000 + static_cast<std::uint64_t>(round));
            CAPTURE(round, family.name);
            family.check(b, type);
        }
}

// Sanitizers take some hundred times as long: fewer rounds for them.
int device_rounds() {
    const char* text = std::getenv("SMSIM_KERNEL_ROUNDS");
    return text ? std::max(1, std::atoi(text)) : 20;
}

}  // namespace

TEST_CASE("every kernel of ours computes what the CPU's does, thread by thread on the host") {
    emulated::Emulated machine;
    machine.fuses_attention = true;
    for (const Family& family : families) check_family(machine, family, 6);
    CHECK(machine.fused_attentions() >=
          2 * 2 * 6 * 3);  // both ways, divided and a segment, in every round and precision
}

TEST_CASE("no kernel's result depends on the order in which threads and blocks run") {
    using exec::cuda::emulation::ScopedThreadOrder;
    using exec::cuda::emulation::ThreadOrder;
    for (const auto& [order, seed] :
         {std::pair{ThreadOrder::descending, 1u}, {ThreadOrder::random, 2u}, {ThreadOrder::random, 3u}}) {
        const ScopedThreadOrder scope(order, seed);
        emulated::Emulated machine;
        machine.fuses_attention = true;
        for (const Family& family : families) check_family(machine, family, 2);
    }
}

// That the test above can fail: threads that read their neighbour's number without a barrier between.
TEST_CASE("a kernel without the barrier that it needs differs from one order of threads to another") {
    using namespace exec::cuda::emulation;
    const auto sum_of_neighbours = [](bool waits) {
        std::vector<float> result(64);
        emulate(1, 64, 64 * sizeof(float), true, [&](const EmulatedThread& t) {
            auto* shared = t.shared<float>();
            shared[t.thread()] = static_cast<float>(t.thread());
            if (waits) t.synchronize();
            const float left = shared[(t.thread() + 63) % 64];
            result[static_cast<std::size_t>(t.thread())] = left == left ? left : -1.0f;
        });
        return result;
    };
    const std::vector<float> right = sum_of_neighbours(true), ascending = sum_of_neighbours(false);
    const ScopedThreadOrder scope(ThreadOrder::descending);
    CHECK(sum_of_neighbours(true) == right);
    CHECK(sum_of_neighbours(false) != ascending);
    CHECK(sum_of_neighbours(false) != right);
}

// For tests/gpu/check.sh, which gives each a process of its own.
TEST_CASE("the families of kernels", "[.families]") {
    for (const Family& family : families) std::printf("family %s\n", family.name);
    CHECK(std::size(families) > 0);
}

// A section for each family: one that fails or throws does not keep the others from being tried.
TEST_CASE("every kernel of ours computes what the CPU's does on a GPU", "[device]") {
    if (const DeviceReport report = probe_device(); !report.available) {
        WARN("skipped: " + describe(report));
        return;
    }
    static const std::shared_ptr<Machine> machine = open_machine(0);
    for (const Family& family : families) DYNAMIC_SECTION(family.name) {
            check_family(*machine, family, device_rounds());
        }
}

TEST_CASE("products are right by whichever algorithm is the fastest", "[device]") {
    if (const DeviceReport report = probe_device(); !report.available) {
        WARN("skipped: " + describe(report));
        return;
    }
    const std::shared_ptr<Machine> machine = open_machine(0, true);
    check_family(*machine, {"products", check_products}, device_rounds());
}

TEST_CASE("cuDNN's fused attention takes the shapes of the usual models", "[device]") {
    const DeviceReport report = probe_device();
    if (!report.available || report.compute_major < 8) {
        WARN("skipped: " + describe(report));
        return;
    }
    const std::shared_ptr<Machine> machine = open_machine(0);
    for (const auto& [tokens, heads, kv_heads, head] :
         {std::tuple{1024, 12, 12, 64}, {1024, 25, 25, 64}, {2048, 32, 4, 64}, {4096, 32, 8, 128}}) {
        AttentionShape shape;
        shape.samples = 2;
        shape.tokens = tokens;
        shape.heads = heads;
        shape.kv_heads = kv_heads;
        shape.head_dimension = head;
        shape.is_causal = true;
        shape.scale = 0.125f;
        CAPTURE(tokens, heads, kv_heads, head);
        CHECK_FALSE(fused_attention_unsupported(*machine, Type::bf16, shape));
        // Parts of a sequence whose keys lie apart: a rank's of four, and the last of four segments; and
        // whole ones with dropout.
        AttentionShape part = shape;
        part.keys = tokens;
        part.tokens = tokens / 4;
        part.token_range = {tokens / 8, tokens / 8, 6 * (tokens / 8)};
        CHECK_FALSE(fused_attention_unsupported(*machine, Type::bf16, part));
        part.token_range = {tokens / 4, 3 * (tokens / 4), 0};
        CHECK_FALSE(fused_attention_unsupported(*machine, Type::bf16, part));
        const std::uint64_t somewhere = 0;
        shape.dropout = 0.1f;
        shape.dropout_keys = shape.library_offset = &somewhere;
        CHECK_FALSE(fused_attention_unsupported(*machine, Type::bf16, shape));
    }
}

TEST_CASE("every number of bf16 and fp16 is kept, and others go to the nearest, ties to even") {
    for (const core::DataType type : {core::DataType::bf16, core::DataType::fp16})
        for (std::uint32_t bits = 0; bits < 65536; ++bits) {
            const auto half = static_cast<std::uint16_t>(bits);
            float value = 0;
            from_precision(type, &half, {&value, 1});
            if (std::isnan(value)) continue;
            std::uint16_t back = 0;
            to_precision(type, {&value, 1}, &back);
            if (back != half) FAIL(core::name_of(type) << " " << bits << " comes back as " << back);
        }
    std::uint16_t half = 0;
    const float tie = 1.0f + 0x1p-8f,
                above = 1.0f + 0x1.8p-7f;  // between 1 and 1 + 2^-7; between 1 + 2^-7 and 1 + 2^-6
    to_precision(core::DataType::bf16, {&tie, 1}, &half);
    CHECK(half == 0x3F80);
    to_precision(core::DataType::bf16, {&above, 1}, &half);
    CHECK(half == 0x3F82);
}
