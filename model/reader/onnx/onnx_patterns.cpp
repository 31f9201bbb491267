#include "model/reader/onnx/onnx_patterns.h"

#include "core/index/integers.h"

#include <cmath>
#include <initializer_list>

namespace model {

namespace {

// Exporters round constants, to fp16 at worst: by 2^-11 of themselves.
constexpr double constant_tolerance = 2e-3;  // relative
// GELU in parts: x / 2 (1 + erf(x / sqrt(2))), or x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) (arXiv
// 1606.08415).
constexpr double root_of_two = 1.4142135, inverse_root_of_two = 0.70710678,
                 root_of_two_over_pi = 0.7978845608, cubic_factor = 0.044715;

bool near(double a, double b) { return std::abs(a - b) < constant_tolerance * std::abs(b); }

// A match is tried in full before anything is marked; inner values must have no reader outside the group.
class Finder {
public:
    explicit Finder(const OnnxGraph& g) : graph(g), is_fixed_(g.values.size(), true) {
        found_.is_absorbed.assign(g.nodes.size(), 0);
        for (int input : g.inputs) is_fixed_[input] = false;
        for (const OnnxNode& node : g.nodes)
            for (int input : node.inputs)
                if (input >= 0 && !is_fixed(input))
                    for (int output : node.outputs)
                        if (output >= 0) is_fixed_[output] = false;
    }

    OnnxPatterns run() {
        for (int n = 0; n < core::count_of(graph.nodes); ++n) {
            const OnnxNode& node = graph.nodes[n];
            if (!node.domain.empty()) continue;
            if (node.type == "Erf") gelu(n, false);
            else if (node.type == "Tanh") gelu(n, true);
            else if (node.type == "Sqrt") norm(n);
            else if (node.type == "Sigmoid") silu(n);
            else if (node.type == "BatchNormalization") batch_norm(n);
            else if (node.type == "MatMul") product(n);
        }
        return std::move(found_);
    }

private:
    bool is_fixed(int value) const { return is_fixed_[value]; }
    const OnnxNode& node(int n) const { return graph.nodes[n]; }
    // The node of that type that makes the value, or -1.
    int made_by(int value, const char* type) const {
        if (value < 0) return -1;
        const int n = graph.value(value).producer;
        return n >= 0 && node(n).type == type && node(n).domain.empty() && node(n).output() == value ? n : -1;
    }
    // The one reader of the value, if it has that type, or -1.
    int read_by(int value, const char* type) const {
        if (value < 0 || graph.value(value).is_output || graph.value(value).consumers.size() != 1) return -1;
        const int n = graph.value(value).consumers[0];
        return node(n).type == type && node(n).domain.empty() && node(n).output() >= 0 ? n : -1;
    }
    int other(int n, int value) const {
        const OnnxNode& pair = node(n);
        if (pair.inputs.size() != 2) return -1;
        return pair.inputs[0] == value ? pair.inputs[1] : pair.inputs[0];
    }
    bool is_scalar(int value, double wanted) const {
        if (value < 0 || !graph.value(value).data || graph.value(value).data->size() != 1) return false;
        return near((*graph.value(value).data)[0], wanted);
    }
    // The operand beside a scalar constant of that value, or -1.
    int beside(int n, double constant) const {
        if (n < 0 || node(n).inputs.size() != 2) return -1;
        if (is_scalar(node(n).inputs[1], constant)) return node(n).inputs[0];
        if (is_scalar(node(n).inputs[0], constant)) return node(n).inputs[1];
        return -1;
    }
    std::int64_t elements(int value) const {
        std::int64_t count = 1;
        for (std::int64_t extent : graph.value(value).shape) count *= extent;
        return count;
    }
    // A weight along one axis, of that many elements.
    bool is_weight(int value, std::int64_t count) const {
        return value >= 0 && is_fixed(value) && graph.value(value).type == OnnxType::floating && count > 0 &&
               elements(value) == count;
    }
    std::int64_t last_extent(int value) const {
        return graph.value(value).shape.empty() ? 0 : graph.value(value).shape.back();
    }

    bool mark(OnnxPattern pattern, int last, std::initializer_list<int> absorbed) {
        for (int n : absorbed)
            if (n >= 0 && found_.is_absorbed[n]) return false;
        if (found_.is_absorbed[last] || found_.at_last.contains(last)) return false;
        for (int n : absorbed)
            if (n >= 0 && n != last && found_.at_last.contains(n)) return false;
        for (int n : absorbed)
            if (n >= 0 && n != last) found_.is_absorbed[n] = 1;
        found_.at_last[last] = std::move(pattern);
        return true;
    }

    // x/2 (1 + erf(x / sqrt 2)), and x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) (arXiv 1606.08415), in the
    // orders exporters write.
    void gelu(int n, bool is_tanh) {
        int x = -1;
        int inner[4] = {-1, -1, -1, -1};
        const int argument = node(n).input(0);
        if (!is_tanh) {
            inner[0] = made_by(argument, "Div");
            x = beside(inner[0], root_of_two);
            if (x < 0) x = beside(inner[0] = made_by(argument, "Mul"), inverse_root_of_two);
        } else {
            inner[0] = made_by(argument, "Mul");
            const int sum = beside(inner[0], root_of_two_over_pi);
            inner[1] = made_by(sum, "Add");
            if (inner[1] < 0) return;
            for (int cubic : node(inner[1]).inputs) {
                const int product = made_by(cubic, "Mul");
                const int power = made_by(beside(product, cubic_factor), "Pow");
                if (power < 0 || !is_scalar(node(power).input(1), 3)) continue;
                x = node(power).input(0);
                inner[2] = product;
                inner[3] = power;
            }
            if (x < 0 || other(inner[1], node(inner[2]).output()) != x || read_by(sum, "Mul") < 0) return;
        }
        if (x < 0 || is_fixed(x) || read_by(argument, node(n).type.c_str()) != n) return;
        const int plus = read_by(node(n).output(), "Add");
        if (plus < 0 || beside(plus, 1) < 0) return;
        const int first = read_by(node(plus).output(), "Mul");
        if (first < 0) return;
        OnnxPattern pattern;
        pattern.kind = is_tanh ? OnnxPattern::Kind::gelu_tanh : OnnxPattern::Kind::gelu;
        pattern.first = n;
        pattern.input = x;
        const int factor = other(first, node(plus).output());
        const int second = read_by(node(first).output(), "Mul");
        if (factor == x && second >= 0 && is_scalar(other(second, node(first).output()), 0.5))
            mark(pattern, second, {n, inner[0], inner[1], inner[2], inner[3], plus, first});
        else if (is_scalar(factor, 0.5) && second >= 0 && other(second, node(first).output()) == x)
            mark(pattern, second, {n, inner[0], inner[1], inner[2], inner[3], plus, first});
        else if (const int half = made_by(factor, "Mul");
                 half >= 0 && beside(half, 0.5) == x && read_by(factor, "Mul") == first)
            mark(pattern, first, {n, inner[0], inner[1], inner[2], inner[3], plus, half});
    }

    bool averages_last(int reduce) const {
        if (reduce < 0) return false;
        const OnnxNode& r = node(reduce);
        if (r.input(0) < 0) return false;
        std::vector<std::int64_t> axes = r.integers("axes");
        if (axes.empty() && r.input(1) >= 0 && graph.value(r.inputs[1]).data)
            for (double x : *graph.value(r.inputs[1]).data) axes.push_back(static_cast<std::int64_t>(x));
        const auto rank = std::ssize(graph.value(r.input(0)).shape);
        return axes.size() == 1 && (axes[0] == -1 || axes[0] == rank - 1);
    }

    // (x - mean) / sqrt(mean((x - mean)^2) + epsilon) scale + shift, and without the mean RMS norm (arXiv
    // 1910.07467).
    void norm(int root) {
        const int plus = made_by(node(root).input(0), "Add");
        if (plus < 0) return;
        int mean_square = -1, epsilon = -1;
        for (int operand : node(plus).inputs) {
            if (operand >= 0 && graph.value(operand).data && graph.value(operand).data->size() == 1)
                epsilon = operand;
            else mean_square = made_by(operand, "ReduceMean");
        }
        if (!averages_last(mean_square) || epsilon < 0) return;
        const int square = node(mean_square).input(0);
        int power = made_by(square, "Pow"), difference = -1;
        if (power >= 0 && is_scalar(node(power).input(1), 2)) {
            difference = node(power).input(0);
        } else {
            power = made_by(square, "Mul");
            if (power < 0 || node(power).input(0) != node(power).input(1)) return;
            difference = node(power).input(0);
        }
        if (difference < 0) return;
        OnnxPattern pattern;
        pattern.epsilon = (*graph.value(epsilon).data)[0];
        pattern.first = root;
        const int minus = made_by(difference, "Sub");
        const int mean = minus < 0 ? -1 : made_by(node(minus).input(1), "ReduceMean");
        if (averages_last(mean) && node(mean).input(0) == node(minus).input(0)) {
            pattern.kind = OnnxPattern::Kind::layer_norm;
            pattern.input = node(minus).input(0);
            if (pattern.input < 0) return;
            const int divide = read_by(node(root).output(), "Div");
            if (divide < 0 || node(divide).input(1) != node(root).output()) return;
            // Older exporters subtract twice.
            int again = -1;
            if (node(divide).input(0) != difference) {
                again = made_by(node(divide).input(0), "Sub");
                if (again < 0 || node(again).input(0) != pattern.input ||
                    node(again).input(1) != node(mean).output())
                    return;
            }
            const int scale = read_by(node(divide).output(), "Mul");
            const int weight = scale < 0 ? -1 : other(scale, node(divide).output());
            if (!is_weight(weight, last_extent(pattern.input))) return;
            pattern.parameters = {weight};
            const int shift = read_by(node(scale).output(), "Add");
            const int bias = shift < 0 ? -1 : other(shift, node(scale).output());
            if (is_weight(bias, last_extent(pattern.input))) {
                pattern.parameters.push_back(bias);
                mark(pattern, shift, {root, plus, mean_square, power, minus, mean, divide, again, scale});
            } else {
                mark(pattern, scale, {root, plus, mean_square, power, minus, mean, divide, again});
            }
            return;
        }
        pattern.kind = OnnxPattern::Kind::rms_norm;
        pattern.input = difference;
        int inverse = read_by(node(root).output(), "Reciprocal");
        if (inverse < 0) inverse = read_by(node(root).output(), "Div");
        if (inverse < 0) return;
        int scaled = inverse;  // x / root in one
        if (node(inverse).type == "Reciprocal" || beside(inverse, 1) >= 0)
            scaled = read_by(node(inverse).output(), "Mul");
        if (scaled < 0 || (node(scaled).input(0) != pattern.input && node(scaled).input(1) != pattern.input))
            return;
        int result = node(scaled).output();
        const int cast = read_by(result, "Cast");
        if (cast >= 0) result = node(cast).output();
        const int scale = read_by(result, "Mul");
        const int weight = scale < 0 ? -1 : other(scale, result);
        if (!is_weight(weight, last_extent(pattern.input))) return;
        pattern.parameters = {weight};
        mark(pattern, scale, {root, plus, mean_square, power, inverse, scaled, cast});
    }

    void silu(int n) {
        const int x = node(n).input(0), multiply = read_by(node(n).output(), "Mul");
        if (x < 0 || is_fixed(x) || multiply < 0 || other(multiply, node(n).output()) != x) return;
        OnnxPattern pattern;
        pattern.kind = OnnxPattern::Kind::silu;
        pattern.first = n;
        pattern.input = x;
        mark(pattern, multiply, {n});
    }

    // Caffe's BatchNorm has no affine part; its Scale layer follows, and converters fill the norm's own scale
    // and shift with ones and zeros.
    void batch_norm(int n) {
        const int x = node(n).input(0);
        if (x < 0 || graph.value(x).shape.size() < 2 || is_fixed(x)) return;
        const std::int64_t channels = graph.value(x).shape[1];
        const int scale = read_by(node(n).output(), "Mul");
        const int weight = scale < 0 ? -1 : other(scale, node(n).output());
        if (!is_weight(weight, channels)) return;
        const int shift = read_by(node(scale).output(), "Add");
        const int bias = shift < 0 ? -1 : other(shift, node(scale).output());
        if (!is_weight(bias, channels)) return;
        OnnxPattern pattern;
        pattern.kind = OnnxPattern::Kind::scaled_batch_norm;
        pattern.first = n;
        pattern.input = x;
        pattern.parameters = {weight, bias};
        mark(pattern, shift, {n, scale});
    }

    void product(int n) {
        const int x = node(n).input(0), weight = node(n).input(1);
        if (x < 0 || weight < 0 || is_fixed(x) || !is_fixed(weight) || graph.value(weight).shape.size() != 2)
            return;
        const int plus = read_by(node(n).output(), "Add");
        const int bias = plus < 0 ? -1 : other(plus, node(n).output());
        if (!is_weight(bias, graph.value(weight).shape[1]) || last_extent(bias) != elements(bias)) return;
        OnnxPattern pattern;
        pattern.kind = OnnxPattern::Kind::biased_product;
        pattern.first = n;
        pattern.input = x;
        pattern.parameters = {bias};
        mark(pattern, plus, {n});
    }

    const OnnxGraph& graph;
    std::vector<bool> is_fixed_;  // follows from weights and constants alone
    OnnxPatterns found_;
};

}  // namespace

OnnxPatterns find_patterns(const OnnxGraph& graph) { return Finder(graph).run(); }

}  // namespace model
