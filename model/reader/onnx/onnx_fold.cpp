// Constant evaluation of the small integer arithmetic that exporters write around Reshape, Slice and Expand.
#include <algorithm>
#include <cmath>

#include "core/diagnostics.h"
#include "model/reader/onnx/onnx_graph.h"

namespace model {

namespace {

using Data = std::vector<double>;
using Shape = std::vector<std::int64_t>;

constexpr std::int64_t most_elements =
    8192;  // position ids and masks of common sequences stay; nothing larger decides a shape

// Index in an operand of element `index` of the broadcast result.
std::size_t broadcast_index(std::int64_t index, const Shape& result, const Shape& operand) {
    std::int64_t offset = 0, stride = 1;
    const std::size_t shift = result.size() - operand.size();
    for (std::size_t d = result.size(); d-- > 0;) {
        const std::int64_t coordinate = index % result[d];
        index /= result[d];
        if (d < shift) continue;
        const std::int64_t extent = operand[d - shift];
        if (extent != 1) offset += coordinate * stride;
        stride *= extent;
    }
    return offset;
}

class Folder {
public:
    Folder(const OnnxGraph& g, const OnnxNode& n) : graph(g), node(n) {}

    std::optional<Data> run() const {
        if (node.output() < 0) return std::nullopt;
        const OnnxValue& output = graph.value(node.output());
        if (!output.has_shape) return std::nullopt;
        std::int64_t count = 1;
        for (std::int64_t extent : output.shape) {
            if (extent < 0 || extent > most_elements) return std::nullopt;
            count *= extent;
            if (count > most_elements) return std::nullopt;
        }
        std::optional<Data> result = evaluate(output.shape, count);
        if (!result || std::ssize(*result) != count) return std::nullopt;
        if (output.type != OnnxType::floating && output.type != OnnxType::other)
            for (double& x : *result) x = std::trunc(x);
        return result;
    }

private:
    const Data* data(std::size_t i) const {
        const int id = node.input(i);
        return id < 0 || !graph.value(id).data ? nullptr : &*graph.value(id).data;
    }
    const Shape& shape(std::size_t i) const { return graph.value(node.input(i)).shape; }

    std::optional<Data> evaluate(const Shape& result, std::int64_t count) const {
        const std::string& type = node.type;
        if (type == "Shape" || type == "Size") return shape_of_input();
        if (type == "ConstantOfShape") {
            const auto value = node.attributes.find("value");
            return Data(count, value == node.attributes.end() || value->second.reals.empty()
                                   ? 0.0
                                   : value->second.reals[0]);
        }
        for (std::size_t i = 0; i < node.inputs.size(); ++i)
            if (node.inputs[i] >= 0 && !data(i)) return std::nullopt;
        if (node.inputs.empty() || !data(0)) return std::nullopt;
        for (const char* same : {"Identity", "Cast", "Squeeze", "Unsqueeze", "Reshape", "Flatten"})
            if (type == same) return *data(0);
        if (type == "Concat") {
            if (result.size() != 1) return std::nullopt;
            Data all;
            for (std::size_t i = 0; i < node.inputs.size(); ++i)
                all.insert(all.end(), data(i)->begin(), data(i)->end());
            return all;
        }
        if (type == "Gather") return gather();
        if (type == "Slice") return slice();
        if (type == "Transpose") return transpose();
        if (type == "Range") {
            if (data(0)->size() != 1 || !data(1) || data(1)->size() != 1 || !data(2) || data(2)->size() != 1)
                return std::nullopt;
            Data all;
            for (std::int64_t i = 0; i < count; ++i) all.push_back((*data(0))[0] + i * (*data(2))[0]);
            return all;
        }
        if (type.starts_with("Reduce") && count == 1) return reduced();
        if (type == "Expand") return elementwise(result, count, 1, [](const double* x) { return x[0]; });
        if (type == "Where")
            return elementwise(result, count, 3, [](const double* x) { return x[0] != 0 ? x[1] : x[2]; });
        if (node.inputs.size() == 1) return unary();
        return binary(result, count);
    }

    // Of all elements.
    std::optional<Data> reduced() const {
        const Data& all = *data(0);
        if (all.empty() && node.type != "ReduceProd") return std::nullopt;
        if (node.type == "ReduceMin") return Data{*std::min_element(all.begin(), all.end())};
        if (node.type == "ReduceMax") return Data{*std::max_element(all.begin(), all.end())};
        const bool is_product = node.type == "ReduceProd";
        if (!is_product && node.type != "ReduceSum" && node.type != "ReduceMean") return std::nullopt;
        double result = is_product ? 1 : 0;
        for (const double x : all) result = is_product ? result * x : result + x;
        return Data{node.type == "ReduceMean" ? result / static_cast<double>(all.size()) : result};
    }

    std::optional<Data> shape_of_input() const {
        if (node.input(0) < 0 || !graph.value(node.inputs[0]).has_shape) return std::nullopt;
        const Shape& s = shape(0);
        if (node.type == "Size") {
            double count = 1;
            for (std::int64_t extent : s) count *= extent;
            return Data{count};
        }
        const auto rank = std::ssize(s);
        std::int64_t start = node.integer("start", 0), end = node.integer("end", rank);
        start = std::clamp<std::int64_t>(start < 0 ? start + rank : start, 0, rank);
        end = std::clamp<std::int64_t>(end < 0 ? end + rank : end, 0, rank);
        Data extents;
        for (std::int64_t i = start; i < end; ++i) extents.push_back(s[i]);
        return extents;
    }

    std::optional<Data> gather() const {
        if (shape(0).size() != 1 || !data(1)) return std::nullopt;
        const auto extent = static_cast<double>(data(0)->size());
        Data chosen;
        for (double index : *data(1)) {
            if (index < 0) index += extent;
            if (!(index >= 0 && index < extent)) return std::nullopt;
            chosen.push_back((*data(0))[index]);
        }
        return chosen;
    }

    // Along one axis.
    std::optional<Data> slice() const {
        const Shape& extents = shape(0);
        double start = 0, end = 0, step = 1, axis = 0;
        if (node.inputs.size() >= 3) {
            for (const std::size_t i : {1, 2, 3, 4})
                if ((i < 3 && !data(i)) || (data(i) && data(i)->size() != 1)) return std::nullopt;
            start = (*data(1))[0];
            end = (*data(2))[0];
            if (data(3)) axis = (*data(3))[0];
            if (data(4)) step = (*data(4))[0];
        } else {
            const std::vector<std::int64_t> starts = node.integers("starts"), ends = node.integers("ends"),
                                            axes = node.integers("axes");
            if (starts.size() != 1 || ends.size() != 1 || axes.size() > 1) return std::nullopt;
            start = starts[0];
            end = ends[0];
            if (!axes.empty()) axis = axes[0];
        }
        if (axis < 0) axis += static_cast<double>(extents.size());
        std::size_t along = 0;
        while (along < extents.size() && static_cast<double>(along) != axis) ++along;
        if (along == extents.size()) return std::nullopt;
        const auto extent = static_cast<double>(extents[along]);
        if (start < 0) start += extent;
        if (end < 0) end += extent;
        std::vector<std::int64_t> chosen;
        if (step >= 1)
            for (double i = std::max(start, 0.0); i < std::min(end, extent); i += step)
                chosen.push_back(static_cast<std::int64_t>(i));
        else if (step <= -1)
            for (double i = std::min(start, extent - 1); i > std::max(end, -1.0); i += step)
                chosen.push_back(static_cast<std::int64_t>(i));
        else return std::nullopt;
        std::int64_t outer = 1, inner = 1;
        for (std::size_t d = 0; d < extents.size(); ++d)
            if (d != along) (d < along ? outer : inner) *= extents[d];
        Data result;
        for (std::int64_t o = 0; o < outer; ++o)
            for (const std::int64_t c : chosen)
                for (std::int64_t i = 0; i < inner; ++i)
                    result.push_back((*data(0))[(o * extents[along] + c) * inner + i]);
        return result;
    }

    // Of a matrix: exporters turn rows of (before, after) into pads.
    std::optional<Data> transpose() const {
        const Shape& extents = shape(0);
        if (extents.size() != 2) return std::nullopt;
        const std::vector<std::int64_t> order = node.integers("perm");
        if (order == std::vector<std::int64_t>{0, 1}) return *data(0);
        Data result;
        for (std::int64_t column = 0; column < extents[1]; ++column)
            for (std::int64_t row = 0; row < extents[0]; ++row)
                result.push_back((*data(0))[row * extents[1] + column]);
        return result;
    }

    template <typename Function>
    std::optional<Data> elementwise(const Shape& result, std::int64_t count, std::size_t operands,
                                    Function function) const {
        if (node.inputs.size() < operands) return std::nullopt;
        for (std::size_t k = 0; k < operands; ++k) {
            if (!data(k) || shape(k).size() > result.size()) return std::nullopt;
            for (std::size_t d = 0; d < shape(k).size(); ++d) {
                const std::int64_t extent = shape(k)[d];
                if (extent != 1 && extent != result[d + result.size() - shape(k).size()]) return std::nullopt;
            }
        }
        Data all;
        all.reserve(count);
        for (std::int64_t i = 0; i < count; ++i) {
            double x[3] = {0, 0, 0};
            for (std::size_t k = 0; k < operands; ++k)
                x[k] = (*data(k))[broadcast_index(i, result, shape(k))];
            all.push_back(function(x));
        }
        return all;
    }

    std::optional<Data> unary() const {
        Data all = *data(0);
        const std::string& type = node.type;
        for (double& x : all) {
            if (type == "Neg") x = -x;
            else if (type == "Floor") x = std::floor(x);
            else if (type == "Ceil") x = std::ceil(x);
            else if (type == "Abs") x = std::abs(x);
            else if (type == "Sqrt") x = std::sqrt(x);
            else if (type == "Not") x = x == 0;
            else if (type == "Reciprocal") x = 1 / x;
            else if (type == "Exp") x = std::exp(x);
            else if (type == "Log") x = std::log(x);
            else if (type == "Round") x = std::nearbyint(x);
            else return std::nullopt;
        }
        return all;
    }

    std::optional<Data> binary(const Shape& result, std::int64_t count) const {
        if (node.inputs.size() != 2) return std::nullopt;
        const bool is_integer = graph.value(node.inputs[0]).type == OnnxType::integer;
        const std::string& type = node.type;
        const auto apply = [&](auto function) {
            return elementwise(result, count, 2,
                               [&](const double* x) -> double { return function(x[0], x[1]); });
        };
        if (type == "Add") return apply([](double a, double b) { return a + b; });
        if (type == "Sub") return apply([](double a, double b) { return a - b; });
        if (type == "Mul") return apply([](double a, double b) { return a * b; });
        if (type == "Min") return apply([](double a, double b) { return std::min(a, b); });
        if (type == "Max") return apply([](double a, double b) { return std::max(a, b); });
        if (type == "Pow") return apply([](double a, double b) { return std::pow(a, b); });
        if (type == "Equal") return apply([](double a, double b) { return a == b ? 1.0 : 0.0; });
        if (type == "Greater") return apply([](double a, double b) { return a > b ? 1.0 : 0.0; });
        if (type == "GreaterOrEqual") return apply([](double a, double b) { return a >= b ? 1.0 : 0.0; });
        if (type == "LessOrEqual") return apply([](double a, double b) { return a <= b ? 1.0 : 0.0; });
        if (type == "Less") return apply([](double a, double b) { return a < b ? 1.0 : 0.0; });
        if (type == "And") return apply([](double a, double b) { return a != 0 && b != 0 ? 1.0 : 0.0; });
        if (type == "Xor") return apply([](double a, double b) { return (a != 0) != (b != 0) ? 1.0 : 0.0; });
        if (type == "Or") return apply([](double a, double b) { return a != 0 || b != 0 ? 1.0 : 0.0; });
        if (type == "Div" || type == "Mod") {
            if (!data(1) || std::find(data(1)->begin(), data(1)->end(), 0.0) != data(1)->end())
                return std::nullopt;
            if (type == "Mod") return apply([](double a, double b) { return a - b * std::floor(a / b); });
            return apply([&](double a, double b) { return is_integer ? std::trunc(a / b) : a / b; });
        }
        return std::nullopt;
    }

    const OnnxGraph& graph;
    const OnnxNode& node;
};

}  // namespace

std::optional<std::vector<double>> fold(const OnnxGraph& graph, const OnnxNode& node) {
    return Folder(graph, node).run();
}

std::string describe(const OnnxNode& node) {
    const std::string type =
        node.domain.empty() || node.domain == "ai.onnx" ? node.type : node.domain + "." + node.type;
    return core::in_quotes(type).substr(1, core::in_quotes(type).size() - 2) + " node " +
           core::in_quotes(node.name, 100);
}

}  // namespace model
