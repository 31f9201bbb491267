#include "exec/oracle/reference_operators.h"

#include <algorithm>
#include <cmath>

#include <fmt/core.h>

#include "core/errors.h"
#include "exec/cpu/kernels.h"
#include "exec/oracle/reference_activation.h"
#include "exec/oracle/reference_mixture.h"
#include "model/model_graph.h"

namespace exec::oracle {

using model::Operator;
using model::OperatorKind;
using model::TensorId;
using std::size_t;

namespace {

struct View {
    Context& context;
    const Operator& op;
    const model::Attributes& a = op.attributes;

    size_t at(TensorId id) const { return id.index; }
    Array& x(size_t i = 0) { return context.values[at(op.inputs[i])]; }
    const std::vector<std::int64_t>& ids(size_t i) { return context.ids[at(op.inputs[i])]; }
    Array& y() { return context.values[at(op.output)]; }
    const Array& dy() { return context.gradients[at(op.output)]; }
    const std::vector<std::int64_t>& shape(TensorId id) const { return context.graph.tensor(id).shape; }
    size_t elements(TensorId id) const { return context.samples * model::element_count(shape(id)); }
    Array& dx(size_t i = 0) {
        Array& gradient = context.gradients[at(op.inputs[i])];
        if (gradient.empty()) gradient.assign(elements(op.inputs[i]), 0.0);
        return gradient;
    }
    bool wants(size_t i) const {
        const model::Tensor& tensor = context.graph.tensor(op.inputs[i]);
        return tensor.is_activation && context.graph.op(tensor.producer).kind != OperatorKind::input;
    }
    const Array& parameter(size_t i) const { return (*context.parameters)[op.parameters[i].index]; }
    Array& dparameter(size_t i) const { return (*context.parameter_gradients)[op.parameters[i].index]; }
    size_t width() const { return shape(op.output).back(); }
    size_t rows() { return elements(op.output) / width(); }
    size_t tokens() const { return shape(op.output)[0]; }
};

double activation(const Operator& op, double x) {
    return activation_of(op.kind, op.attributes.is_tanh_approximation, x);
}
double activation_slope(const Operator& op, double x) {
    return slope_of_activation(op.kind, op.attributes.is_tanh_approximation, x);
}

// A hash has 32 bits that decide: an element is dropped when they are below probability times 2^32.
constexpr double hash_values = 4294967296.0;
bool drops(std::uint64_t key, size_t element, double probability) {
    return (cpu::counter_hash(key, element) >> 32) <
           std::floor((static_cast<float>(probability)) * hash_values);
}

// Below every score and every pixel; as a score its exponential is 0. Finite, so that no difference of two of
// them is a NaN.
constexpr double below_all = -1e300;

// Groups of elements that are normalised together; `index(group, i)` is the index of the i-th element of a
// group.
struct Norm {
    size_t groups, size;
    bool has_mean;
    double epsilon;
};
template <class Index, class Factor>
void norm_forward(const Norm& n, const Array& x, Array& y, const Index& index, const Factor& write) {
    for (size_t g = 0; g < n.groups; ++g) {
        double mean = 0, square = 0;
        for (size_t i = 0; n.has_mean && i < n.size; ++i) mean += x[index(g, i)] / n.size;
        for (size_t i = 0; i < n.size; ++i)
            square += (x[index(g, i)] - mean) * (x[index(g, i)] - mean) / n.size;
        const double deviation = std::sqrt(square + n.epsilon);
        for (size_t i = 0; i < n.size; ++i) y[index(g, i)] = write(g, i, (x[index(g, i)] - mean) / deviation);
    }
}
// `scaled(g, i)` is dy times scale; `take(g, i, normalised, dy)` gets what the parameters' gradients need.
template <class Index, class Scale, class Take>
void norm_backward(const Norm& n, const Array& x, const Array& dy, Array* dx, const Index& index,
                   const Scale& scale, const Take& take) {
    for (size_t g = 0; g < n.groups; ++g) {
        double mean = 0, square = 0, sum = 0, product = 0;
        for (size_t i = 0; n.has_mean && i < n.size; ++i) mean += x[index(g, i)] / n.size;
        for (size_t i = 0; i < n.size; ++i)
            square += (x[index(g, i)] - mean) * (x[index(g, i)] - mean) / n.size;
        const double deviation = std::sqrt(square + n.epsilon);
        for (size_t i = 0; i < n.size; ++i) {
            const double normalised = (x[index(g, i)] - mean) / deviation, gradient = dy[index(g, i)];
            take(g, i, normalised, gradient);
            sum += gradient * scale(g, i) / n.size;
            product += gradient * scale(g, i) * normalised / n.size;
        }
        for (size_t i = 0; dx && i < n.size; ++i) {
            const double normalised = (x[index(g, i)] - mean) / deviation;
            (*dx)[index(g, i)] +=
                (dy[index(g, i)] * scale(g, i) - (n.has_mean ? sum : 0) - normalised * product) / deviation;
        }
    }
}

void norm(View v, bool is_backward) {
    const Operator& op = v.op;
    if (op.kind == OperatorKind::batch_norm) {
        const std::vector<std::int64_t>& shape = v.shape(op.output);
        const size_t channels = shape[0], pixels = shape[1] * shape[2];
        const Norm n{channels, v.context.samples * pixels, true, v.a.epsilon};
        const auto index = [&](size_t g, size_t i) {
            return (i / pixels * channels + g) * pixels + i % pixels;
        };
        if (!is_backward)
            return norm_forward(n, v.x(), v.y(), index, [&](size_t g, size_t, double z) {
                return z * v.parameter(0)[g] + v.parameter(1)[g];
            });
        Array* dx = v.wants(0) ? &v.dx() : nullptr;
        return norm_backward(
            n, v.x(), v.dy(), dx, index, [&](size_t g, size_t) { return v.parameter(0)[g]; },
            [&](size_t g, size_t, double z, double gradient) {
                v.dparameter(0)[g] += gradient * z;
                v.dparameter(1)[g] += gradient;
            });
    }
    const bool is_layer_norm = op.kind == OperatorKind::layer_norm, has_shift = is_layer_norm && v.a.has_bias;
    const Norm n{v.rows(), v.width(), is_layer_norm, v.a.epsilon};
    const auto index = [&](size_t g, size_t i) { return g * n.size + i; };
    if (!is_backward)
        return norm_forward(n, v.x(), v.y(), index, [&](size_t, size_t i, double z) {
            return z * v.parameter(0)[i] + (has_shift ? v.parameter(1)[i] : 0.0);
        });
    Array* dx = v.wants(0) ? &v.dx() : nullptr;
    norm_backward(
        n, v.x(), v.dy(), dx, index, [&](size_t, size_t i) { return v.parameter(0)[i]; },
        [&](size_t, size_t i, double z, double gradient) {
            v.dparameter(0)[i] += gradient * z;
            if (has_shift) v.dparameter(1)[i] += gradient;
        });
}

// One head of one sample: what attention computes, and its gradients.
struct Head {
    size_t tokens, keys, d;
    Array q, k, v;
    const Array* bias = nullptr;  // [buckets, heads]

    // T5: exact near, by logarithm beyond; ahead of the query in a second half unless attention is causal.
    static size_t bucket(const model::Attributes& a, size_t query, size_t key) {
        const double position = key;
        double ahead = position - query, count = a.relative_buckets, first = 0.0;
        if (!a.is_causal) {
            count = std::floor(count / 2);
            if (ahead > 0) first = count;
        } else {
            ahead = std::min(ahead, 0.0);
        }
        const double away = std::abs(ahead), exact = std::floor(count / 2);
        if (away < exact) return static_cast<size_t>(first + away);
        const double scaled = exact + std::floor(std::log(away / exact) /
                                                 std::log(a.relative_distance / exact) * (count - exact));
        return static_cast<size_t>(first + std::min(scaled, count - 1));
    }

    Array weights(const model::Attributes& a, std::int64_t head) const {
        const double scale = a.softmax_scale > 0 ? a.softmax_scale : 1 / std::sqrt(d);
        Array p = product(tokens, keys, d, q, transposed(keys, d, k));
        for (size_t i = 0; i < tokens; ++i) {
            double maximum = below_all, sum = 0;
            for (size_t j = 0; j < keys; ++j) {
                double& score = p[i * keys + j];
                const std::int64_t row = i, column = j;
                const bool is_seen = (!a.is_causal || j <= i) && (a.window == 0 || row - column < a.window);
                score = is_seen ? score * scale + (a.has_alibi ? slope(a.heads, head) * (column - row) : 0.0)
                                : below_all;
                if (bias) score += (*bias)[bucket(a, i, j) * a.heads + head];
                maximum = std::max(maximum, score);
            }
            for (size_t j = 0; j < keys; ++j) sum += p[i * keys + j] = std::exp(p[i * keys + j] - maximum);
            for (size_t j = 0; j < keys; ++j) p[i * keys + j] /= sum;
        }
        return p;
    }
    static double slope(std::int64_t heads, std::int64_t head) {
        std::int64_t power = 1;
        while (power * 2 <= heads) power *= 2;
        return head < power ? std::pow(2.0, -8.0 * (head + 1) / power)
                            : std::pow(2.0, -4.0 * (2 * (head - power) + 1) / power);
    }
};

class Attention {
public:
    explicit Attention(View& view)
        : v(view),
          a(view.op.attributes),
          tokens(view.tokens()),
          keys(a.is_cross_attention ? view.shape(view.op.inputs[1])[0] : view.shape(view.op.output)[0]),
          d(a.head_dimension),
          memory(a.is_cross_attention ? 1 : 0),
          stride((a.heads + (a.is_cross_attention ? 0 : 2 * a.kv_heads)) * d),
          key_stride(a.is_cross_attention ? (2 * a.kv_heads) * d : stride) {}

    void run(bool is_backward) {
        if (is_backward && !v.wants(0)) return;
        const size_t first_key = a.is_cross_attention ? 0 : a.heads, kv_heads = a.kv_heads;
        for (std::int64_t sample = 0; sample < v.context.samples; ++sample)
            for (std::int64_t head = 0; head < a.heads; ++head) {
                const size_t s = sample, q = head, kv = head / (a.heads / a.kv_heads);
                const size_t k = first_key + kv, value = first_key + kv_heads + kv, row = a.heads * d;
                const Array query = read(v.x(), s * tokens, tokens, q, stride),
                            key = read(v.x(memory), s * keys, keys, k, key_stride);
                const Head h{tokens,
                             keys,
                             d,
                             turned(normalised(query, 0), 1),
                             turned(normalised(key, 1), 1),
                             read(v.x(memory), s * keys, keys, value, key_stride),
                             a.has_relative_bias ? &v.parameter(0) : nullptr};
                const Array p = h.weights(a, head), dropped = drop(p, sample, head);
                const std::int64_t n = tokens, m = keys, width = d;
                if (!is_backward) {
                    write(v.y(), product(n, width, m, dropped, h.v), s * tokens, q, row);
                    continue;
                }
                const Array dy = read(v.dy(), s * tokens, tokens, q, row);
                Array dp = drop(product(n, m, width, dy, transposed(m, width, h.v)), sample, head);
                const double scale = a.softmax_scale > 0 ? a.softmax_scale : 1 / std::sqrt(d);
                for (size_t i = 0; i < tokens; ++i) {
                    double sum = 0;
                    for (size_t j = 0; j < keys; ++j) sum += p[i * keys + j] * dp[i * keys + j];
                    for (size_t j = 0; j < keys; ++j) {
                        const double score = p[i * keys + j] * (dp[i * keys + j] - sum);
                        if (h.bias) v.dparameter(0)[Head::bucket(a, i, j) * a.heads + q] += score;
                        dp[i * keys + j] = scale * score;
                    }
                }
                write(v.dx(), normalised_back(query, turned(product(n, width, m, dp, h.k), -1), 0),
                      s * tokens, q, stride);
                write(v.dx(memory),
                      normalised_back(key, turned(product(m, width, n, transposed(n, m, dp), h.q), -1), 1),
                      s * keys, k, key_stride);
                write(v.dx(memory), product(m, width, n, transposed(n, m, dropped), dy), s * keys, value,
                      key_stride);
            }
    }

private:
    // One head of rows [first, first + count) of packed rows.
    Array read(const Array& packed, size_t first, size_t count, size_t head, size_t row) const {
        Array result(count * d);
        for (size_t t = 0; t < count; ++t)
            for (size_t i = 0; i < d; ++i) result[t * d + i] = packed[(first + t) * row + head * d + i];
        return result;
    }
    void write(Array& packed, const Array& values, size_t first, size_t head, size_t row) const {
        for (size_t t = 0; t < values.size() / d; ++t)
            for (size_t i = 0; i < d; ++i) packed[(first + t) * row + head * d + i] += values[t * d + i];
    }
    Array turned(Array x, double direction) const {
        if (!a.is_rotary) return x;
        const size_t half = static_cast<size_t>(a.rotary_fraction * d) / 2;
        for (size_t t = 0; t < tokens; ++t)
            for (size_t i = 0; i < half; ++i) {
                const double angle = direction * t * std::pow(a.rotary_base, -static_cast<double>(i) / half);
                const double first = x[t * d + i], second = x[t * d + half + i];
                x[t * d + i] = first * std::cos(angle) - second * std::sin(angle);
                x[t * d + half + i] = second * std::cos(angle) + first * std::sin(angle);
            }
        return x;
    }
    // Rows of one head over their root mean squares, times parameter `scale`.
    Norm head_norm(const Array& x) const { return {x.size() / d, d, false, a.epsilon}; }
    Array normalised(const Array& x, std::int32_t scale) const {
        if (a.query_key_norm == model::QueryKeyNorm::none) return x;
        Array y(x.size());
        norm_forward(
            head_norm(x), x, y, [&](size_t row, size_t i) { return row * d + i; },
            [&](size_t, size_t i, double z) { return z * v.parameter(scale)[i]; });
        return y;
    }
    Array normalised_back(const Array& x, const Array& dy, std::int32_t scale) const {
        if (a.query_key_norm == model::QueryKeyNorm::none) return dy;
        Array dx(x.size());
        norm_backward(
            head_norm(x), x, dy, &dx, [&](size_t row, size_t i) { return row * d + i; },
            [&](size_t, size_t i) { return v.parameter(scale)[i]; },
            [&](size_t, size_t i, double z, double gradient) { v.dparameter(scale)[i] += gradient * z; });
        return dx;
    }
    Array drop(Array p, std::int64_t sample, std::int64_t head) const {
        if (a.probability == 0 || !v.context.is_training) return p;
        const std::uint64_t key =
            v.context.mask_keys[v.context.graph.tensor(v.op.output).producer.index][sample];
        for (size_t i = 0; i < p.size(); ++i)
            p[i] = drops(key, head * tokens * keys + i, a.probability) ? 0 : p[i] / (1 - a.probability);
        return p;
    }

    View& v;
    const model::Attributes& a;
    const size_t tokens, keys, d, memory, stride, key_stride;
};

// Calls each(output element, input element, weight element) for every product of a convolution, or of a
// window (weight element = index in the window).
template <class Each>
void windows(View& v, bool is_convolution, const Each& each) {
    const std::vector<std::int64_t>&in = v.shape(v.op.inputs[0]), &out = v.shape(v.op.output);
    for (std::int64_t s = 0; s < v.context.samples; ++s)
        for (std::int64_t o = 0; o < out[0]; ++o)
            for (std::int64_t oy = 0; oy < out[1]; ++oy)
                for (std::int64_t ox = 0; ox < out[2]; ++ox)
                    for (std::int64_t c = is_convolution ? 0 : o; c < (is_convolution ? in[0] : o + 1); ++c)
                        for (std::int64_t ky = 0; ky < v.a.kernel_y; ++ky)
                            for (std::int64_t kx = 0; kx < v.a.kernel_x; ++kx) {
                                const std::int64_t y = oy * v.a.stride + ky - v.a.padding,
                                                   x = ox * v.a.stride + kx - v.a.padding;
                                if (y < 0 || y >= in[1] || x < 0 || x >= in[2]) continue;
                                each(((s * out[0] + o) * out[1] + oy) * out[2] + ox,
                                     ((s * in[0] + c) * in[1] + y) * in[2] + x,
                                     ((o * in[0] + c) * v.a.kernel_y + ky) * v.a.kernel_x + kx);
                            }
}

void linear(View v, bool is_backward) {
    const std::int64_t rows = v.rows(), n = v.width(), k = v.shape(v.op.inputs[0]).back();
    Array x = v.x();
    for (double& value : x) value *= v.a.input_scale;
    if (!is_backward) {
        v.y() = product(rows, n, k, x, transposed(n, k, v.parameter(0)));
        for (size_t i = 0; v.a.has_bias && i < v.y().size(); ++i) v.y()[i] += v.parameter(1)[i % v.width()];
        return;
    }
    const Array weight_gradient = product(n, k, rows, transposed(rows, n, v.dy()), x);
    for (size_t i = 0; i < weight_gradient.size(); ++i) v.dparameter(0)[i] += weight_gradient[i];
    for (size_t i = 0; v.a.has_bias && i < v.dy().size(); ++i) v.dparameter(1)[i % v.width()] += v.dy()[i];
    if (!v.wants(0)) return;
    const Array gradient = product(rows, k, n, v.dy(), v.parameter(0));
    Array& dx = v.dx();
    for (size_t i = 0; i < gradient.size(); ++i) dx[i] += v.a.input_scale * gradient[i];
}

void cross_entropy(View v, bool is_backward) {
    const Array& logits = v.x();
    const size_t classes = v.shape(v.op.inputs[0]).back(), rows = logits.size() / classes;
    double loss = 0;
    for (size_t r = 0; r < rows; ++r) {
        const double* row = logits.data() + r * classes;
        const size_t label = v.ids(2)[r];
        const double maximum = *std::max_element(row, row + classes);
        double sum = 0;
        for (size_t c = 0; c < classes; ++c) sum += std::exp(row[c] - maximum);
        loss += (maximum + std::log(sum) - row[label]) / rows;
        if (!is_backward) continue;
        for (size_t c = 0; c < classes; ++c)
            v.dx()[r * classes + c] +=
                v.context.loss_weight / rows * (std::exp(row[c] - maximum) / sum - (c == label ? 1.0 : 0.0));
    }
    if (!is_backward) std::fill(v.y().begin(), v.y().end(), loss);
}

// Operators that move or add up rows: each(output row, input row, factor).
template <class Each>
void moved_rows(View& v, const Each& each) {
    const size_t in = v.shape(v.op.inputs[0])[0], out = v.tokens();
    for (std::int64_t s = 0; s < v.context.samples; ++s)
        for (size_t r = 0; r < out; ++r) {
            if (v.op.kind == OperatorKind::select_first_token) each(s * out + r, s * in, 1.0);
            else if (v.op.kind == OperatorKind::select_positions)
                each(s * out + r, s * in + v.ids(1)[s * out + r], 1.0);
            else
                for (size_t t = 0; t < in; ++t) each(s * out + r, s * in + t, 1.0 / in);
        }
}

// Calls add(dx) with the gradient of every input that has one.
template <class Add>
void for_each_gradient(View& v, const Add& add) {
    for (size_t input = 0; input < v.op.inputs.size(); ++input)
        if (v.wants(input)) add(v.dx(input));
}

void gated_backward(View& v, const Array& dy, Array& dx) {
    const size_t width = v.width();
    for (size_t i = 0; i < dy.size(); ++i) {
        const size_t gate = i / width * 2 * width + i % width;
        dx[gate] += dy[i] * activation_slope(v.op, v.x()[gate]) * v.x()[gate + width];
        dx[gate + width] += dy[i] * activation(v.op, v.x()[gate]);
    }
}

void dropout_backward(View& v, const std::vector<std::uint64_t>& keys, const Array& dy, Array& dx) {
    const size_t per_sample = dy.size() / v.context.samples;
    for (size_t i = 0; i < dy.size(); ++i)
        if (!drops(keys[i / per_sample], i % per_sample, v.a.probability))
            dx[i] += dy[i] / (1 - v.a.probability);
}

void convolution_backward(View& v, const Array& dy) {
    Array* dx = v.wants(0) ? &v.dx() : nullptr;
    windows(v, true, [&](size_t o, size_t i, size_t w) {
        v.dparameter(0)[w] += dy[o] * v.x()[i];
        if (dx) (*dx)[i] += dy[o] * v.parameter(0)[w];
    });
    const size_t pixels = v.shape(v.op.output)[1] * v.shape(v.op.output)[2],
                 channels = v.shape(v.op.output)[0];
    for (size_t i = 0; v.a.has_bias && i < dy.size(); ++i) v.dparameter(1)[i / pixels % channels] += dy[i];
}

// The gradient of an output goes to the first of the equal maxima of its window.
void max_pool_backward(View& v, const Array& dy, Array& dx) {
    std::vector<char> is_taken(dy.size(), 0);
    windows(v, false, [&](size_t o, size_t i, size_t) {
        if (is_taken[o] || v.x()[i] != v.y()[o]) return;
        is_taken[o] = 1;
        dx[i] += dy[o];
    });
}

void transpose_backward(View& v, const Array& dy, Array& dx) {
    const size_t leading = v.shape(v.op.inputs[0])[0], per_sample = dy.size() / v.context.samples,
                 rest = per_sample / leading;
    for (size_t i = 0; i < dy.size(); ++i)
        dx[i] += dy[i / per_sample * per_sample + i % rest * leading + i % per_sample / rest];
}

core::InternalError without_reference(const Operator& op, const char* what) {
    return core::InternalError(fmt::format("the reference has no {} for operator {} of kind {}", what,
                                           op.name, model::name_of(op.kind)));
}

}  // namespace

void forward(Context& context, model::OperatorId id) {
    View v{context, context.graph.op(id)};
    const Operator& op = v.op;
    if (op.kind == OperatorKind::input) return;
    Array& y = v.y();
    y.assign(v.elements(op.output), 0.0);
    const size_t width = v.width();
    switch (op.kind) {
        case OperatorKind::flatten:
        case OperatorKind::reshape:
        case OperatorKind::parallel_enter:
        case OperatorKind::parallel_exit: y = v.x(); return;
        case OperatorKind::embedding:
            for (size_t i = 0; i < y.size(); ++i)
                y[i] = v.parameter(0)[v.ids(0)[i / width] * width + i % width];
            return;
        case OperatorKind::position_embedding:
            for (size_t i = 0; i < y.size(); ++i)
                y[i] = v.x()[i] +
                       v.parameter(
                           0)[(i / width % v.tokens() + op.attributes.position_offset) * width + i % width];
            return;
        case OperatorKind::linear: linear(v, false); return;
        case OperatorKind::layer_norm:
        case OperatorKind::rms_norm:
        case OperatorKind::batch_norm: norm(v, false); return;
        case OperatorKind::attention: Attention(v).run(false); return;
        case OperatorKind::gelu:
        case OperatorKind::relu:
        case OperatorKind::silu:
        case OperatorKind::tanh:
            for (size_t i = 0; i < y.size(); ++i) y[i] = activation(op, v.x()[i]);
            return;
        case OperatorKind::gated_silu:
        case OperatorKind::gated_gelu:
            for (size_t i = 0; i < y.size(); ++i) {
                const size_t gate = i / width * 2 * width + i % width;
                y[i] = activation(op, v.x()[gate]) * v.x()[gate + width];
            }
            return;
        case OperatorKind::dropout: {
            const size_t per_sample = y.size() / context.samples;
            for (size_t i = 0; i < y.size(); ++i)
                y[i] = !context.is_training ? v.x()[i]
                       : drops(context.mask_keys[id.index][i / per_sample], i % per_sample,
                               op.attributes.probability)
                           ? 0
                           : v.x()[i] / (1 - op.attributes.probability);
            return;
        }
        case OperatorKind::add:
            for (size_t i = 0; i < y.size(); ++i) y[i] = v.x(0)[i] + v.x(1)[i];
            return;
        case OperatorKind::conv2d: {
            windows(v, true, [&](size_t o, size_t i, size_t w) { y[o] += v.x()[i] * v.parameter(0)[w]; });
            const size_t pixels = v.shape(op.output)[1] * v.shape(op.output)[2],
                         channels = v.shape(op.output)[0];
            for (size_t i = 0; op.attributes.has_bias && i < y.size(); ++i)
                y[i] += v.parameter(1)[i / pixels % channels];
            return;
        }
        case OperatorKind::max_pool:
            std::fill(y.begin(), y.end(), below_all);
            windows(v, false, [&](size_t o, size_t i, size_t) { y[o] = std::max(y[o], v.x()[i]); });
            return;
        case OperatorKind::average_pool:
            windows(v, false, [&](size_t o, size_t i, size_t) {
                y[o] += v.x()[i] / (op.attributes.kernel_y * op.attributes.kernel_x);
            });
            return;
        case OperatorKind::transpose: {
            const size_t leading = v.shape(op.inputs[0])[0], per_sample = y.size() / context.samples,
                         rest = per_sample / leading;
            for (size_t i = 0; i < y.size(); ++i)
                y[i / per_sample * per_sample + i % rest * leading + i % per_sample / rest] = v.x()[i];
            return;
        }
        case OperatorKind::average_tokens:
        case OperatorKind::select_first_token:
        case OperatorKind::select_positions:
            moved_rows(v, [&](size_t o, size_t i, double factor) {
                for (size_t c = 0; c < width; ++c) y[o * width + c] += factor * v.x()[i * width + c];
            });
            return;
        case OperatorKind::loss_statistics: return;  // cross_entropy does without
        case OperatorKind::cross_entropy: cross_entropy(v, false); return;
        case OperatorKind::router:
        case OperatorKind::dispatch:
        case OperatorKind::experts:
        case OperatorKind::combine: mixture_forward(context, op); return;
        case OperatorKind::input:  // returned above
        case OperatorKind::prepend_token:
        case OperatorKind::merge_patches:
        case OperatorKind::matrix_product:
        case OperatorKind::elementwise:
        case OperatorKind::softmax:
        case OperatorKind::normalization:
        case OperatorKind::reduce:
        case OperatorKind::concat:
        case OperatorKind::permute:
        case OperatorKind::slice:
        case OperatorKind::gather:
        case OperatorKind::pooling:
        case OperatorKind::convolution:
        case OperatorKind::unknown: break;
    }
    throw without_reference(op, "values");
}

void backward(Context& context, model::OperatorId id) {
    View v{context, context.graph.op(id)};
    const Operator& op = v.op;
    if (op.kind == OperatorKind::cross_entropy) return cross_entropy(v, true);
    if (op.kind == OperatorKind::input || v.dy().empty()) return;
    const Array dy = v.dy();  // a copy: an operator may read one tensor twice
    const size_t width = v.width();
    switch (op.kind) {
        case OperatorKind::embedding:
            for (size_t i = 0; i < dy.size(); ++i)
                v.dparameter(0)[v.ids(0)[i / width] * width + i % width] += dy[i];
            return;
        case OperatorKind::position_embedding:
            for (size_t i = 0; i < dy.size(); ++i) {
                v.dparameter(
                    0)[(i / width % v.tokens() + op.attributes.position_offset) * width + i % width] += dy[i];
                v.dx()[i] += dy[i];
            }
            return;
        case OperatorKind::linear: linear(v, true); return;
        case OperatorKind::layer_norm:
        case OperatorKind::rms_norm:
        case OperatorKind::batch_norm: norm(v, true); return;
        case OperatorKind::attention: Attention(v).run(true); return;
        case OperatorKind::router:
        case OperatorKind::dispatch:
        case OperatorKind::experts:
        case OperatorKind::combine: mixture_backward(context, op); return;
        case OperatorKind::conv2d: convolution_backward(v, dy); return;
        case OperatorKind::flatten:
        case OperatorKind::reshape:
        case OperatorKind::parallel_enter:
        case OperatorKind::parallel_exit:
        case OperatorKind::add:
            for_each_gradient(v, [&](Array& dx) {
                for (size_t i = 0; i < dy.size(); ++i) dx[i] += dy[i];
            });
            return;
        case OperatorKind::gelu:
        case OperatorKind::relu:
        case OperatorKind::silu:
        case OperatorKind::tanh:
            for_each_gradient(v, [&](Array& dx) {
                for (size_t i = 0; i < dy.size(); ++i) dx[i] += dy[i] * activation_slope(op, v.x()[i]);
            });
            return;
        case OperatorKind::gated_silu:
        case OperatorKind::gated_gelu:
            for_each_gradient(v, [&](Array& dx) { gated_backward(v, dy, dx); });
            return;
        case OperatorKind::dropout:
            for_each_gradient(v,
                              [&](Array& dx) { dropout_backward(v, context.mask_keys[id.index], dy, dx); });
            return;
        case OperatorKind::max_pool:
            for_each_gradient(v, [&](Array& dx) { max_pool_backward(v, dy, dx); });
            return;
        case OperatorKind::average_pool:
            for_each_gradient(v, [&](Array& dx) {
                windows(v, false, [&](size_t o, size_t i, size_t) {
                    dx[i] += dy[o] / (op.attributes.kernel_y * op.attributes.kernel_x);
                });
            });
            return;
        case OperatorKind::transpose:
            for_each_gradient(v, [&](Array& dx) { transpose_backward(v, dy, dx); });
            return;
        // Of select_positions the second input is ids and has no gradient.
        case OperatorKind::average_tokens:
        case OperatorKind::select_first_token:
        case OperatorKind::select_positions:
            for_each_gradient(v, [&](Array& dx) {
                moved_rows(v, [&](size_t o, size_t i, double factor) {
                    for (size_t c = 0; c < width; ++c) dx[i * width + c] += factor * dy[o * width + c];
                });
            });
            return;
        case OperatorKind::input:          // returned above
        case OperatorKind::cross_entropy:  // returned above
        // The gradient of the statistics is part of cross_entropy's.
        case OperatorKind::loss_statistics:
        case OperatorKind::prepend_token:
        case OperatorKind::merge_patches:
        case OperatorKind::matrix_product:
        case OperatorKind::elementwise:
        case OperatorKind::softmax:
        case OperatorKind::normalization:
        case OperatorKind::reduce:
        case OperatorKind::concat:
        case OperatorKind::permute:
        case OperatorKind::slice:
        case OperatorKind::gather:
        case OperatorKind::pooling:
        case OperatorKind::convolution:
        case OperatorKind::unknown: break;
    }
    throw without_reference(op, "gradient");
}

}  // namespace exec::oracle
