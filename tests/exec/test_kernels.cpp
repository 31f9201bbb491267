// Every kernel of every instruction set against a plain formula in double precision, and every gradient
// against finite differences of that formula.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <vector>

#include "core/diagnostics.h"
#include "core/random.h"
#include "exec/cpu/kernels.h"
#include "exec/unary.h"

namespace {

using exec::cpu::Kernels;
using exec::cpu::Unary;
using Doubles = std::vector<double>;
using Floats = std::vector<float>;

const std::vector<std::string> sets = {"generic", "avx2", "avx512"};

Doubles random_values(std::size_t count, std::uint64_t seed) {
    core::Random random(seed);
    Doubles values(count);
    for (double& value : values) value = static_cast<double>(static_cast<float>(random.normal()));
    return values;
}
Floats floats(const Doubles& values) { return {values.begin(), values.end()}; }

void check_near(const Floats& got, const Doubles& wanted, double tolerance = 2e-5) {
    REQUIRE(got.size() == wanted.size());
    double scale = 1e-3, worst = 0;
    for (const double value : wanted) scale = std::max(scale, std::abs(value));
    for (std::size_t i = 0; i < got.size(); ++i)
        worst = std::max(worst, std::abs(static_cast<double>(got[i]) - wanted[i]));
    CHECK(worst <= tolerance * scale);
}

// d(sum of weight_i f(x)_i) / dx by central differences: error O(step^2) of the formula's third derivative,
// about 1e-9 here.
Doubles slope(const std::function<Doubles(const Doubles&)>& f, Doubles x, const Doubles& weight) {
    constexpr double step = 1e-5;
    Doubles gradient(x.size());
    const auto value = [&] {
        const Doubles y = f(x);
        double sum = 0;
        for (std::size_t i = 0; i < y.size(); ++i) sum += weight[i] * y[i];
        return sum;
    };
    for (std::size_t i = 0; i < x.size(); ++i) {
        const double at = x[i];
        x[i] = at + step;
        const double above = value();
        x[i] = at - step;
        gradient[i] = (above - value()) / (2 * step);
        x[i] = at;
    }
    return gradient;
}

// Gradients are added to what is there: kernels start from ones, which are taken off again.
Floats ones(std::size_t count) { return Floats(count, 1.0f); }
Floats less_one(Floats values) {
    for (float& value : values) value -= 1.0f;
    return values;
}

double plain(Unary kind, double x) {
    switch (kind) {
        case Unary::gelu: return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
        case Unary::gelu_tanh:
            return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
        case Unary::relu: return std::max(0.0, x);
        case Unary::silu: return x / (1 + std::exp(-x));
        case Unary::tanh: return std::tanh(x);
    }
    return 0;
}

}  // namespace

TEST_CASE("matrix products of every shape and transposition are the sums they stand for") {
    for (const std::string& set : sets) {
        const Kernels* k = exec::cpu::find_kernels(set);
        if (!k) {
            WARN("skipped: this processor has no " << set);
            continue;
        }
        for (const auto& [m, n, depth] : std::vector<std::tuple<int, int, int>>{
                 {1, 1, 1}, {3, 5, 7}, {16, 16, 16}, {33, 17, 65}, {70, 90, 30}})
            for (const bool ta : {false, true})
                for (const bool tb : {false, true})
                    for (const bool adds : {false, true}) {
                        const Doubles a = random_values(static_cast<std::size_t>(m * depth), 1),
                                      b = random_values(static_cast<std::size_t>(n * depth), 2);
                        const int ldc = n + 3;
                        Floats c(static_cast<std::size_t>(m * ldc), 1.0f);
                        k->product(ta, tb, m, n, depth, 0.5f, floats(a).data(), ta ? m : depth,
                                   floats(b).data(), tb ? depth : n, c.data(), ldc, adds);
                        Doubles wanted(c.size(), 1.0);
                        for (int i = 0; i < m; ++i)
                            for (int j = 0; j < n; ++j) {
                                double sum = 0;
                                for (int p = 0; p < depth; ++p)
                                    sum += a[static_cast<std::size_t>(ta ? p * m + i : i * depth + p)] *
                                           b[static_cast<std::size_t>(tb ? j * depth + p : p * n + j)];
                                wanted[static_cast<std::size_t>(i * ldc + j)] =
                                    0.5 * sum + (adds ? 1.0 : 0.0);
                            }
                        INFO(set << " " << m << " x " << n << " x " << depth);
                        check_near(c, wanted);
                    }
    }
}

TEST_CASE("an operator that applies no elementwise function gets none") {
    using model::OperatorKind;
    const std::vector<std::pair<OperatorKind, Unary>> functions = {
        {OperatorKind::gelu, Unary::gelu}, {OperatorKind::gated_gelu, Unary::gelu},
        {OperatorKind::relu, Unary::relu}, {OperatorKind::silu, Unary::silu},
        {OperatorKind::tanh, Unary::tanh}, {OperatorKind::gated_silu, Unary::silu}};
    for (int i = 0; i <= static_cast<int>(OperatorKind::unknown); ++i) {
        const auto kind = static_cast<OperatorKind>(i);
        const auto wanted = std::find_if(functions.begin(), functions.end(),
                                         [&](const auto& entry) { return entry.first == kind; });
        INFO(model::name_of(kind));
        if (wanted == functions.end())
            CHECK_THROWS_AS(exec::unary_named<Unary>(kind, false), core::InternalError);
        else CHECK(exec::unary_named<Unary>(kind, false) == wanted->second);
    }
    CHECK(exec::unary_named<Unary>(OperatorKind::gelu, true) == Unary::gelu_tanh);
}

TEST_CASE("element-wise kernels are their formulas and their gradients are its slopes") {
    for (const std::string& set : sets) {
        const Kernels* k = exec::cpu::find_kernels(set);
        if (!k) continue;
        for (const Unary kind : {Unary::gelu, Unary::gelu_tanh, Unary::relu, Unary::silu, Unary::tanh}) {
            INFO(set << " function " << static_cast<int>(kind));
            Doubles x = random_values(2100, 3);
            for (double& value : x) value *= 3;
            const Doubles dy = random_values(x.size(), 4);
            Doubles y, dx;
            for (std::size_t i = 0; i < x.size(); ++i) {
                y.push_back(plain(kind, x[i]));
                dx.push_back(dy[i] * (plain(kind, x[i] + 1e-6) - plain(kind, x[i] - 1e-6)) / 2e-6);
            }
            Floats got(x.size()), gradient = ones(x.size());
            const auto count = static_cast<std::int64_t>(x.size());
            k->unary(kind, count, floats(x).data(), got.data());
            check_near(got, y, 1e-6);
            const bool saves_output = kind == Unary::relu || kind == Unary::tanh;
            k->unary_backward(kind, count, saves_output ? got.data() : floats(x).data(), floats(dy).data(),
                              gradient.data());
            check_near(less_one(gradient), dx, 1e-6);
        }
        const std::int64_t rows = 3, width = 5;
        const Doubles x = random_values(30, 5), dy = random_values(15, 6);
        const auto gated = [&](const Doubles& in) {
            Doubles y;
            for (std::size_t r = 0; r < 3; ++r)
                for (std::size_t c = 0; c < 5; ++c)
                    y.push_back(plain(Unary::silu, in[r * 10 + c]) * in[r * 10 + 5 + c]);
            return y;
        };
        Floats y(15), dx = ones(30);
        k->gated(Unary::silu, rows, width, floats(x).data(), y.data());
        check_near(y, gated(x));
        k->gated_backward(Unary::silu, rows, width, floats(x).data(), floats(dy).data(), dx.data());
        check_near(less_one(dx), slope(gated, x, dy));
    }
}

TEST_CASE("norms are their formulas and their gradients are its slopes") {
    const std::size_t rows = 3, width = 19;
    const Doubles x = random_values(rows * width, 7), scale = random_values(width, 8),
                  shift = random_values(width, 9), dy = random_values(rows * width, 10);
    const auto norm = [&](const Doubles& in, const Doubles& by, const Doubles& plus, bool has_mean) {
        Doubles y;
        for (std::size_t r = 0; r < rows; ++r) {
            double mean = 0, square = 0;
            for (std::size_t c = 0; has_mean && c < width; ++c)
                mean += in[r * width + c] / static_cast<double>(width);
            for (std::size_t c = 0; c < width; ++c)
                square += std::pow(in[r * width + c] - mean, 2) / static_cast<double>(width);
            for (std::size_t c = 0; c < width; ++c)
                y.push_back((in[r * width + c] - mean) / std::sqrt(square + 1e-5) * by[c] +
                            (has_mean ? plus[c] : 0));
        }
        return y;
    };
    for (const std::string& set : sets) {
        const Kernels* k = exec::cpu::find_kernels(set);
        if (!k) continue;
        for (const bool has_mean : {true, false}) {
            INFO(set << (has_mean ? " layer_norm" : " rms_norm"));
            const Floats fx = floats(x), fs = floats(scale), fb = floats(shift), fd = floats(dy);
            Floats y(x.size()), statistics(2 * rows), dx = ones(x.size()), dscale = ones(width),
                                                      dshift = ones(width);
            const std::int64_t r = rows, w = width;
            if (has_mean) {
                k->layer_norm(r, w, 1e-5f, fx.data(), fs.data(), fb.data(), y.data(), statistics.data());
                k->layer_norm_backward(r, w, fx.data(), statistics.data(), fs.data(), fd.data(), dx.data());
                k->layer_norm_weights(r, w, fx.data(), statistics.data(), fd.data(), dscale.data(),
                                      dshift.data());
                check_near(less_one(dshift),
                           slope([&](const Doubles& b) { return norm(x, scale, b, true); }, shift, dy));
            } else {
                k->rms_norm(r, w, 1e-5f, fx.data(), fs.data(), y.data(), statistics.data());
                k->rms_norm_backward(r, w, fx.data(), statistics.data(), fs.data(), fd.data(), dx.data());
                k->rms_norm_weights(r, w, fx.data(), statistics.data(), fd.data(), dscale.data());
            }
            check_near(y, norm(x, scale, shift, has_mean));
            check_near(less_one(dx),
                       slope([&](const Doubles& in) { return norm(in, scale, shift, has_mean); }, x, dy));
            check_near(less_one(dscale),
                       slope([&](const Doubles& s) { return norm(x, s, shift, has_mean); }, scale, dy));
        }
    }
}

TEST_CASE("batch norm is its formula over samples and pixels and its gradients are its slopes") {
    exec::cpu::ImageShape shape;
    shape.samples = 3;
    shape.channels = 4;
    shape.rows = 2;
    shape.columns = 5;
    const std::size_t samples = 3, channels = 4, pixels = 10, count = samples * channels * pixels;
    const Doubles x = random_values(count, 31), scale = random_values(channels, 32),
                  shift = random_values(channels, 33), dy = random_values(count, 34);
    const auto norm = [&](const Doubles& in, const Doubles& by, const Doubles& plus) {
        Doubles y(count);
        for (std::size_t c = 0; c < channels; ++c) {
            const auto each = [&](const auto& visit) {
                for (std::size_t s = 0; s < samples; ++s)
                    for (std::size_t p = 0; p < pixels; ++p) visit((s * channels + c) * pixels + p);
            };
            double mean = 0, square = 0;
            each([&](std::size_t i) { mean += in[i] / static_cast<double>(samples * pixels); });
            each([&](std::size_t i) {
                square += std::pow(in[i] - mean, 2) / static_cast<double>(samples * pixels);
            });
            each([&](std::size_t i) { y[i] = (in[i] - mean) / std::sqrt(square + 1e-5) * by[c] + plus[c]; });
        }
        return y;
    };
    for (const std::string& set : sets) {
        const Kernels* k = exec::cpu::find_kernels(set);
        if (!k) continue;
        INFO(set);
        const Floats fx = floats(x), fs = floats(scale), fb = floats(shift), fd = floats(dy);
        Floats y(count), statistics(2 * channels), dx = ones(count), dscale = ones(channels),
                                                   dshift = ones(channels);
        k->batch_norm(shape, 1e-5f, fx.data(), fs.data(), fb.data(), y.data(), statistics.data());
        check_near(y, norm(x, scale, shift));
        k->batch_norm_backward(shape, fx.data(), statistics.data(), fs.data(), fd.data(), dx.data());
        check_near(less_one(dx), slope([&](const Doubles& in) { return norm(in, scale, shift); }, x, dy));
        k->batch_norm_weights(shape, fx.data(), statistics.data(), fd.data(), dscale.data(), dshift.data());
        check_near(less_one(dscale), slope([&](const Doubles& by) { return norm(x, by, shift); }, scale, dy));
        check_near(less_one(dshift),
                   slope([&](const Doubles& plus) { return norm(x, scale, plus); }, shift, dy));
    }
}

TEST_CASE(
    "attention is its formula and its gradient is the slope, with probabilities saved or computed again") {
    for (const bool is_causal : {false, true})
        for (const std::int64_t tokens : {5, 70})  // one block of queries, and two
            for (const std::string& set : sets) {
                const Kernels* k = exec::cpu::find_kernels(set);
                if (!k || (tokens == 70 && set == "generic")) continue;
                exec::cpu::AttentionShape shape;
                shape.tokens = tokens;
                shape.heads = 2;
                shape.kv_heads = 1;
                shape.head_dimension = 4;
                shape.is_causal = is_causal;
                shape.scale = 0.5f;
                const std::size_t n = static_cast<std::size_t>(tokens), d = 4, row = 4 * d;
                const Doubles qkv = random_values(n * row, 11), dy = random_values(n * 2 * d, 12);
                const auto attend = [&](const Doubles& x) {
                    Doubles y(n * 2 * d, 0.0);
                    for (std::size_t h = 0; h < 2; ++h)
                        for (std::size_t i = 0; i < n; ++i) {
                            Doubles p(n, 0.0);
                            double sum = 0;
                            for (std::size_t j = 0; j < (is_causal ? i + 1 : n); ++j) {
                                double score = 0;
                                for (std::size_t c = 0; c < d; ++c)
                                    score += x[i * row + h * d + c] * x[j * row + 2 * d + c];
                                sum += p[j] = std::exp(0.5 * score);
                            }
                            for (std::size_t j = 0; j < n; ++j)
                                for (std::size_t c = 0; c < d; ++c)
                                    y[i * 2 * d + h * d + c] += p[j] / sum * x[j * row + 3 * d + c];
                        }
                    return y;
                };
                INFO(set << " causal " << is_causal << " tokens " << tokens);
                const Doubles wanted = slope(attend, qkv, dy);
                for (const bool saves : {false, true}) {
                    Floats y(dy.size()), dqkv = ones(qkv.size()), log_sums(2 * n), probabilities(2 * n * n);
                    exec::cpu::AttentionSaved saved;
                    (saves ? saved.probabilities : saved.log_sums) =
                        saves ? probabilities.data() : log_sums.data();
                    const Floats packed = floats(qkv), gradient = floats(dy);
                    k->attention(shape, packed.data(), packed.data(), y.data(), saved);
                    check_near(y, attend(qkv));
                    k->attention_backward(shape, packed.data(), packed.data(), saved, gradient.data(),
                                          dqkv.data(), dqkv.data(), nullptr);
                    check_near(less_one(dqkv), wanted);
                }
            }
}

TEST_CASE("convolution and pooling are their formulas and their gradients are its slopes") {
    exec::cpu::ImageShape s;
    s.samples = 2;
    s.channels = 2;
    s.rows = s.columns = 6;
    s.out_channels = 3;
    s.out_rows = s.out_columns = 3;
    s.kernel_y = s.kernel_x = 3;
    s.stride = 2;
    s.padding = 1;
    const Doubles x = random_values(2 * 2 * 36, 13), weight = random_values(3 * 2 * 9, 14),
                  bias = random_values(3, 15), dy = random_values(2 * 3 * 9, 16);
    const auto windows = [&](std::int64_t channels,
                             const std::function<void(std::size_t, std::size_t, std::size_t)>& each,
                             bool is_pool) {
        for (std::int64_t n = 0; n < 2; ++n)
            for (std::int64_t o = 0; o < channels; ++o)
                for (std::int64_t oy = 0; oy < 3; ++oy)
                    for (std::int64_t ox = 0; ox < 3; ++ox)
                        for (std::int64_t c = is_pool ? o : 0; c < (is_pool ? o + 1 : 2); ++c)
                            for (std::int64_t ky = 0; ky < 3; ++ky)
                                for (std::int64_t kx = 0; kx < 3; ++kx) {
                                    const std::int64_t y = 2 * oy + ky - 1, at = 2 * ox + kx - 1;
                                    if (y < 0 || y > 5 || at < 0 || at > 5) continue;
                                    each(static_cast<std::size_t>(((n * channels + o) * 3 + oy) * 3 + ox),
                                         static_cast<std::size_t>(((n * 2 + c) * 6 + y) * 6 + at),
                                         static_cast<std::size_t>(((o * 2 + c) * 3 + ky) * 3 + kx));
                                }
    };
    const auto convolve = [&](const Doubles& in, const Doubles& w, const Doubles& b) {
        Doubles y(54);
        for (std::size_t i = 0; i < y.size(); ++i) y[i] = b[i / 9 % 3];
        windows(3, [&](std::size_t o, std::size_t i, std::size_t at) { y[o] += in[i] * w[at]; }, false);
        return y;
    };
    const auto average = [&](const Doubles& in) {
        Doubles y(36, 0.0);
        windows(2, [&](std::size_t o, std::size_t i, std::size_t) { y[o] += in[i] / 9; }, true);
        return y;
    };
    const auto maximum = [&](const Doubles& in) {
        Doubles y(36, -1e9);
        windows(2, [&](std::size_t o, std::size_t i, std::size_t) { y[o] = std::max(y[o], in[i]); }, true);
        return y;
    };
    for (const std::string& set : sets) {
        const Kernels* k = exec::cpu::find_kernels(set);
        if (!k) continue;
        INFO(set);
        const Floats fx = floats(x), fw = floats(weight), fb = floats(bias), fd = floats(dy);
        Floats y(54), dx = ones(x.size()), dw = ones(weight.size()), db = ones(3);
        k->convolution(s, fx.data(), fw.data(), fb.data(), y.data());
        k->convolution_backward(s, fw.data(), fd.data(), dx.data());
        k->convolution_weights(s, fx.data(), fd.data(), dw.data(), db.data());
        check_near(y, convolve(x, weight, bias));
        check_near(less_one(dx), slope([&](const Doubles& in) { return convolve(in, weight, bias); }, x, dy));
        check_near(less_one(dw), slope([&](const Doubles& w) { return convolve(x, w, bias); }, weight, dy));
        check_near(less_one(db), slope([&](const Doubles& b) { return convolve(x, weight, b); }, bias, dy));

        exec::cpu::ImageShape pool = s;
        pool.out_channels = 2;
        const Doubles dp = random_values(36, 17);
        Floats averaged(36), largest(36), da = ones(x.size()), dm = ones(x.size());
        std::vector<std::int64_t> places(36);
        k->average_pool(pool, fx.data(), averaged.data());
        k->average_pool_backward(pool, floats(dp).data(), da.data());
        k->max_pool(pool, fx.data(), largest.data(), places.data());
        k->max_pool_backward(pool, places.data(), floats(dp).data(), dm.data());
        check_near(averaged, average(x));
        check_near(largest, maximum(x));
        check_near(less_one(da), slope(average, x, dp));
        check_near(less_one(dm), slope(maximum, x, dp));
    }
}

TEST_CASE("dropout drops what its key says, the same in every instruction set, at its rate") {
    constexpr std::int64_t count = 100000;
    const Floats x(count, 1.0f);
    std::vector<std::uint8_t> first_mask;
    for (const std::string& set : sets) {
        const Kernels* k = exec::cpu::find_kernels(set);
        if (!k) continue;
        Floats y(count);
        std::vector<std::uint8_t> mask(count);
        k->dropout(42, 7, count, 0.2f, x.data(), y.data(), mask.data());
        std::int64_t kept = 0;
        for (std::size_t i = 0; i < count; ++i) {
            kept += mask[i];
            REQUIRE(y[i] == (mask[i] ? 1.25f : 0.0f));
        }
        // Binomial: deviation sqrt(0.2 * 0.8 / 100000) = 0.13 %; five of them.
        CHECK(std::abs(static_cast<double>(kept) / count - 0.8) < 0.0064);
        if (first_mask.empty()) first_mask = mask;
        CHECK(mask == first_mask);
    }
}
