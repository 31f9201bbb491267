// The one file that includes libonnx: parses, checks and infers shapes node by node with the operators' own inference functions (onnx/defs), with constants
// evaluated on the way, so that every problem is told with its node.
#include <algorithm>
#include <bit>
#include <cctype>
#include <cmath>
#include <cstring>
#include <functional>
#include <queue>
#include <unordered_map>

#include <fmt/core.h>
#include <onnx/checker.h>
#include <onnx/defs/schema.h>
#include <onnx/defs/shape_inference.h>
#include <onnx/onnx_pb.h>

#include "model/reader/onnx_graph.h"
#include "model/reader/onnx_skeleton.h"

namespace model {

namespace {

constexpr std::int64_t oldest_opset = 7;  // before it broadcasting was an attribute
constexpr int most_nodes = 200000;
constexpr std::size_t most_problems = 10;
constexpr std::int64_t largest_extent = std::int64_t(1) << 32;
constexpr double most_tensor_elements = 281474976710656.0;  // 2^48: a product of shapes stays below 2^63
constexpr std::int64_t most_constant_elements = 8192;

OnnxType type_of(int element) {
    switch (element) {
        case onnx::TensorProto::FLOAT:
        case onnx::TensorProto::DOUBLE:
        case onnx::TensorProto::FLOAT16:
        case onnx::TensorProto::BFLOAT16: return OnnxType::floating;
        case onnx::TensorProto::BOOL: return OnnxType::boolean;
        case onnx::TensorProto::INT8:
        case onnx::TensorProto::INT16:
        case onnx::TensorProto::INT32:
        case onnx::TensorProto::INT64:
        case onnx::TensorProto::UINT8:
        case onnx::TensorProto::UINT16:
        case onnx::TensorProto::UINT32:
        case onnx::TensorProto::UINT64: return OnnxType::integer;
        default: return OnnxType::other;
    }
}

template <typename T>
void append_raw(const std::string& raw, std::vector<double>& data) {
    for (std::size_t i = 0; i + sizeof(T) <= raw.size(); i += sizeof(T)) {
        T x;
        std::memcpy(&x, raw.data() + i, sizeof x);  // ONNX is little endian, as every machine we build for
        data.push_back(static_cast<double>(x));
    }
}

// Elements of a small constant, if they are in the file and as many as its dimensions say.
std::optional<std::vector<double>> data_of(const onnx::TensorProto& tensor) {
    double count = 1;
    for (std::int64_t extent : tensor.dims()) count *= static_cast<double>(extent);
    if (!(count >= 0 && count <= most_constant_elements) || tensor.data_location() == onnx::TensorProto::EXTERNAL) return std::nullopt;
    std::vector<double> data;
    const std::string& raw = tensor.raw_data();
    switch (tensor.data_type()) {
        case onnx::TensorProto::FLOAT:
            append_raw<float>(raw, data);
            data.insert(data.end(), tensor.float_data().begin(), tensor.float_data().end());
            break;
        case onnx::TensorProto::DOUBLE:
            append_raw<double>(raw, data);
            data.insert(data.end(), tensor.double_data().begin(), tensor.double_data().end());
            break;
        case onnx::TensorProto::INT64:
            append_raw<std::int64_t>(raw, data);
            for (std::int64_t x : tensor.int64_data()) data.push_back(static_cast<double>(x));
            break;
        case onnx::TensorProto::INT32:
            append_raw<std::int32_t>(raw, data);
            data.insert(data.end(), tensor.int32_data().begin(), tensor.int32_data().end());
            break;
        case onnx::TensorProto::BOOL:
            append_raw<std::uint8_t>(raw, data);
            data.insert(data.end(), tensor.int32_data().begin(), tensor.int32_data().end());
            break;
        default: return std::nullopt;
    }
    if (static_cast<double>(data.size()) != count) return std::nullopt;
    return data;
}

std::int64_t integer_of(double x) {
    if (!(x > -9.2e18)) return std::numeric_limits<std::int64_t>::min();
    if (x > 9.2e18) return std::numeric_limits<std::int64_t>::max();
    return static_cast<std::int64_t>(x);
}

onnx::TensorProto tensor_of(const std::vector<double>& data, const std::vector<std::int64_t>& shape, int element) {
    onnx::TensorProto tensor;
    tensor.set_data_type(element);
    for (std::int64_t extent : shape) tensor.add_dims(extent);
    for (double x : data) switch (element) {
            case onnx::TensorProto::FLOAT: tensor.add_float_data(static_cast<float>(x)); break;
            case onnx::TensorProto::DOUBLE: tensor.add_double_data(x); break;
            case onnx::TensorProto::INT64: tensor.add_int64_data(integer_of(x)); break;
            default: tensor.add_int32_data(static_cast<std::int32_t>(std::clamp(x, -2147483648.0, 2147483647.0))); break;
        }
    return tensor;
}

// What an operator's inference function sees of its node.
class NodeContext final : public onnx::InferenceContext {
public:
    NodeContext(const onnx::NodeProto& node, std::vector<const onnx::TypeProto*> inputs, std::vector<const onnx::TensorProto*> data)
        : node_(node), inputs_(std::move(inputs)), data_(std::move(data)), outputs_(static_cast<std::size_t>(node.output_size())) {}

    const onnx::AttributeProto* getAttribute(const std::string& name) const override {
        for (const onnx::AttributeProto& attribute : node_.attribute())
            if (attribute.name() == name) return &attribute;
        return nullptr;
    }
    std::size_t getNumInputs() const override { return inputs_.size(); }
    const onnx::TypeProto* getInputType(std::size_t i) const override { return i < inputs_.size() ? inputs_[i] : nullptr; }
    const onnx::TensorProto* getInputData(std::size_t i) const override { return i < data_.size() ? data_[i] : nullptr; }
    std::size_t getNumOutputs() const override { return outputs_.size(); }
    onnx::TypeProto* getOutputType(std::size_t i) override {
        if (i >= outputs_.size()) throw onnx::InferenceError("no such output");
        return &outputs_[i];
    }
    onnx::GraphInferencer* getGraphAttributeInferencer(const std::string&) override { throw onnx::InferenceError("graphs inside nodes are not inferred"); }
    const onnx::SparseTensorProto* getInputSparseData(std::size_t) const override { return nullptr; }
    const onnx::TensorShapeProto* getSymbolicInput(std::size_t) const override { return nullptr; }

private:
    const onnx::NodeProto& node_;
    std::vector<const onnx::TypeProto*> inputs_;
    std::vector<const onnx::TensorProto*> data_;
    std::vector<onnx::TypeProto> outputs_;
};

std::string lower(std::string text) {
    for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return text;
}

bool contains_any(const std::string& text, std::initializer_list<const char*> words) {
    return std::any_of(words.begin(), words.end(), [&](const char* word) { return text.find(word) != std::string::npos; });
}

class Importer {
public:
    Importer(const onnx::ModelProto& model, const std::string& path, const LoadOptions& options, core::Diagnostics& diagnostics, const std::string& key)
        : model_(model), source_(model.graph()), options_(options), diagnostics_(diagnostics), place_{path, 0, 0}, key_(key) {}

    std::optional<OnnxGraph> run() {
        if (!check_opset()) return std::nullopt;
        if (!list_values() || !list_nodes() || !sort_nodes()) return std::nullopt;
        if (!fix_inputs()) return std::nullopt;
        read_declared_types();
        if (!infer()) return std::nullopt;
        for (std::size_t n = 0; n < graph_.nodes.size(); ++n) {
            for (int input : graph_.nodes[n].inputs)
                if (input >= 0) {
                    std::vector<int>& consumers = graph_.value(input).consumers;
                    if (consumers.empty() || consumers.back() != static_cast<int>(n)) consumers.push_back(static_cast<int>(n));
                }
            for (int output : graph_.nodes[n].outputs)
                if (output >= 0) graph_.value(output).producer = static_cast<int>(n);
        }
        return std::move(graph_);
    }

private:
    // At most a screenful: one broken export can break every node.
    bool error(std::string message, std::string hint = {}) {
        if (++problems_ <= most_problems) diagnostics_.error(place_, key_, std::move(message), std::move(hint));
        return false;
    }

    static std::int64_t newest_opset() {
        const auto& domains = onnx::OpSchemaRegistry::DomainToVersionRange::Instance().Map();
        const auto found = domains.find(onnx::ONNX_DOMAIN);
        return found == domains.end() ? 0 : found->second.second;
    }

    bool check_opset() {
        for (const onnx::OperatorSetIdProto& import : model_.opset_import()) {
            const std::string domain = import.domain() == "ai.onnx" ? "" : import.domain();
            opsets_[domain] = import.version();
        }
        if (!opsets_.contains("")) return error("the file imports no operator set", "an ONNX model names the version of its operators in opset_import");
        graph_.opset = opsets_[""];
        if (graph_.opset < oldest_opset || graph_.opset > newest_opset())
            return error(fmt::format("operator set {} is not supported: {} to {} are", graph_.opset, oldest_opset, newest_opset()),
                         graph_.opset > newest_opset() ? "export with a lower opset_version, or build against a newer libonnx"
                                                       : "convert it with onnx.version_converter");
        if (source_.node_size() == 0) return error("the graph has no nodes", "an ONNX model is expected");
        if (source_.node_size() > most_nodes) return error(fmt::format("the graph has {} nodes; at most {} are read", source_.node_size(), most_nodes));
        return true;
    }

    int value_named(const std::string& name) {
        const auto [place, is_new] = ids_.try_emplace(name, static_cast<int>(graph_.values.size()));
        if (is_new) {
            graph_.values.emplace_back().name = name;
            types_.emplace_back();
            element_types_.push_back(0);
            constants_.emplace_back();
            is_defined_.push_back(false);
        }
        return place->second;
    }

    bool define(int id) {
        if (is_defined_[static_cast<std::size_t>(id)]) return error(fmt::format("tensor {} is made twice", core::in_quotes(graph_.value(id).name, 100)));
        is_defined_[static_cast<std::size_t>(id)] = true;
        return true;
    }

    // Takes over a type whose extents are all known.
    bool adopt(int id, const onnx::TypeProto& type) {
        OnnxValue& value = graph_.value(id);
        if (!type.has_tensor_type()) return false;
        const onnx::TypeProto::Tensor& tensor = type.tensor_type();
        element_types_[static_cast<std::size_t>(id)] = tensor.elem_type();
        value.type = type_of(tensor.elem_type());
        types_[static_cast<std::size_t>(id)] = type;
        if (!tensor.has_shape()) return false;
        std::vector<std::int64_t> shape;
        double count = 1;
        for (const onnx::TensorShapeProto_Dimension& dimension : tensor.shape().dim()) {
            if (!dimension.has_dim_value() || dimension.dim_value() < 0 || dimension.dim_value() > largest_extent) return false;
            shape.push_back(dimension.dim_value());
            count *= static_cast<double>(dimension.dim_value());
        }
        if (count > most_tensor_elements || shape.size() > 32) return false;
        value.shape = std::move(shape);
        value.has_shape = true;
        return true;
    }

    bool adopt(int id, int element, const std::vector<std::int64_t>& shape) {
        onnx::TypeProto type;
        type.mutable_tensor_type()->set_elem_type(element);
        onnx::TensorShapeProto* dimensions = type.mutable_tensor_type()->mutable_shape();
        for (std::int64_t extent : shape) dimensions->add_dim()->set_dim_value(extent);
        return adopt(id, type);
    }

    void set_data(int id, std::vector<double> data) {
        const auto i = static_cast<std::size_t>(id);
        OnnxValue& value = graph_.value(id);
        switch (element_types_[i]) {
            case onnx::TensorProto::FLOAT:
            case onnx::TensorProto::DOUBLE:
            case onnx::TensorProto::INT64:
            case onnx::TensorProto::INT32:
            case onnx::TensorProto::BOOL: constants_[i] = tensor_of(data, value.shape, element_types_[i]); break;
            default: break;
        }
        value.data = std::move(data);
    }

    bool take_constant(int id, const onnx::TensorProto& tensor) {
        const std::vector<std::int64_t> shape(tensor.dims().begin(), tensor.dims().end());
        if (!adopt(id, tensor.data_type(), shape))
            return error(fmt::format("tensor {} has no sound shape or type", core::in_quotes(graph_.value(id).name, 100)));
        if (auto data = data_of(tensor)) set_data(id, std::move(*data));
        return true;
    }

    bool list_values() {
        bool is_good = true;
        for (const onnx::TensorProto& tensor : source_.initializer()) {
            const int id = value_named(tensor.name());
            is_good = define(id) && take_constant(id, tensor) && is_good;
            graph_.value(id).is_initializer = true;
        }
        for (const onnx::SparseTensorProto& sparse : source_.sparse_initializer()) {
            const int id = value_named(sparse.values().name());
            is_good = define(id) && adopt(id, sparse.values().data_type(), {sparse.dims().begin(), sparse.dims().end()}) && is_good;
            graph_.value(id).is_initializer = true;
        }
        for (const onnx::ValueInfoProto& input : source_.input()) {
            const int id = value_named(input.name());
            if (graph_.value(id).is_initializer) continue;  // before IR version 4 every weight was listed as an input as well
            is_good = define(id) && is_good;
            graph_.value(id).is_input = true;
            graph_.inputs.push_back(id);
        }
        if (graph_.inputs.empty()) is_good = error("the graph has no input that is not a weight");
        return is_good;
    }

    static OnnxAttribute attribute_of(const onnx::AttributeProto& from) {
        OnnxAttribute to;
        if (from.type() == onnx::AttributeProto::INT) to.integers = {from.i()};
        if (from.type() == onnx::AttributeProto::INTS) to.integers.assign(from.ints().begin(), from.ints().end());
        if (from.type() == onnx::AttributeProto::FLOAT) to.reals = {from.f()};
        if (from.type() == onnx::AttributeProto::FLOATS) to.reals.assign(from.floats().begin(), from.floats().end());
        if (from.type() == onnx::AttributeProto::STRING) to.text = from.s();
        if (from.type() == onnx::AttributeProto::TENSOR)
            if (auto data = data_of(from.t())) to.reals = std::move(*data);
        return to;
    }

    bool list_nodes() {
        bool is_good = true;
        std::map<std::string, std::pair<std::string, int>> unmapped;  // type -> first node, how many
        for (int n = 0; n < source_.node_size(); ++n) {
            const onnx::NodeProto& from = source_.node(n);
            OnnxNode to;
            to.type = from.op_type();
            to.domain = from.domain() == "ai.onnx" ? "" : from.domain();
            to.name = !from.name().empty() ? from.name() : from.output_size() > 0 && !from.output(0).empty() ? from.output(0) : fmt::format("#{}", n);
            for (const std::string& input : from.input()) to.inputs.push_back(input.empty() ? -1 : value_named(input));
            for (const std::string& output : from.output()) {
                to.outputs.push_back(output.empty() ? -1 : value_named(output));
                if (!output.empty()) is_good = define(to.outputs.back()) && is_good;
            }
            for (const onnx::AttributeProto& attribute : from.attribute()) to.attributes[attribute.name()] = attribute_of(attribute);
            if (!options_.allow_unknown && !(to.domain.empty() && has_mapping(to))) {
                auto& entry = unmapped[to.domain.empty() ? to.type : to.domain + "." + to.type];
                if (entry.second++ == 0) entry.first = to.name;
            }
            graph_.nodes.push_back(std::move(to));
            order_.push_back(n);
        }
        for (const auto& [type, entry] : unmapped)
            is_good = error(fmt::format("operator {} of node {} has no counterpart here{}", core::in_quotes(type), core::in_quotes(entry.first, 100),
                                        entry.second > 1 ? fmt::format(" (nor have {} more nodes of this type)", entry.second - 1) : ""),
                            "allow_unknown = true (smsim model --allow-unknown) prices it by the bytes it reads and writes");
        for (const OnnxNode& node : graph_.nodes)
            for (int input : node.inputs)
                if (input >= 0 && !is_defined_[static_cast<std::size_t>(input)])
                    is_good = error(fmt::format("{} reads tensor {}, which nothing makes", describe(node), core::in_quotes(graph_.value(input).name, 100)));
        for (const onnx::ValueInfoProto& output : source_.output()) {
            const auto found = ids_.find(output.name());
            if (found == ids_.end() || !is_defined_[static_cast<std::size_t>(found->second)]) {
                is_good = error(fmt::format("output {} is made by no node", core::in_quotes(output.name(), 100)));
                continue;
            }
            graph_.value(found->second).is_output = true;
            graph_.outputs.push_back(found->second);
        }
        if (source_.output_size() == 0) is_good = error("the graph has no output");
        return is_good;
    }

    // Topological, earliest first; what remains lies on or behind a cycle.
    bool sort_nodes() {
        const std::size_t count = graph_.nodes.size();
        std::vector<int> producer(graph_.values.size(), -1), missing(count, 0);
        std::vector<std::vector<int>> readers(count);
        for (std::size_t n = 0; n < count; ++n)
            for (int output : graph_.nodes[n].outputs)
                if (output >= 0) producer[static_cast<std::size_t>(output)] = static_cast<int>(n);
        for (std::size_t n = 0; n < count; ++n)
            for (int input : graph_.nodes[n].inputs)
                if (input >= 0 && producer[static_cast<std::size_t>(input)] >= 0) {
                    readers[static_cast<std::size_t>(producer[static_cast<std::size_t>(input)])].push_back(static_cast<int>(n));
                    ++missing[n];
                }
        std::priority_queue<int, std::vector<int>, std::greater<>> ready;
        for (std::size_t n = 0; n < count; ++n)
            if (missing[n] == 0) ready.push(static_cast<int>(n));
        order_.clear();
        while (!ready.empty()) {
            const int n = ready.top();
            ready.pop();
            order_.push_back(n);
            for (int reader : readers[static_cast<std::size_t>(n)])
                if (--missing[static_cast<std::size_t>(reader)] == 0) ready.push(reader);
        }
        if (order_.size() != count) {
            // Walk back along unfinished producers until a node repeats: that loop is the cycle.
            std::size_t node = 0;
            while (missing[node] == 0) ++node;
            std::vector<int> seen(count, -1), path;
            while (seen[node] < 0) {
                seen[node] = static_cast<int>(path.size());
                path.push_back(static_cast<int>(node));
                for (int input : graph_.nodes[node].inputs) {
                    const int from = input < 0 ? -1 : producer[static_cast<std::size_t>(input)];
                    if (from >= 0 && missing[static_cast<std::size_t>(from)] > 0) {
                        node = static_cast<std::size_t>(from);
                        break;
                    }
                }
            }
            std::string names;
            for (std::size_t i = static_cast<std::size_t>(seen[node]); i < path.size() && i < static_cast<std::size_t>(seen[node]) + 6; ++i)
                names += (names.empty() ? "" : ", ") + describe(graph_.nodes[static_cast<std::size_t>(path[i])]);
            return error("the graph is cyclic: each of these nodes waits for the next, the last for the first: " + names, "a model is a graph without cycles");
        }
        std::vector<OnnxNode> sorted;
        sorted.reserve(count);
        for (int n : order_) sorted.push_back(std::move(graph_.nodes[static_cast<std::size_t>(n)]));
        graph_.nodes = std::move(sorted);
        return true;
    }

    const onnx::ValueInfoProto* info_of_input(int id) const {
        for (const onnx::ValueInfoProto& input : source_.input())
            if (input.name() == graph_.value(id).name) return &input;
        return nullptr;
    }

    static bool is_sequence_name(const std::string& name) { return contains_any(lower(name), {"seq", "length", "time", "token"}); }
    static bool is_batch_name(const std::string& name) {
        const std::string text = lower(name);
        return contains_any(text, {"batch"}) || text == "n" || text == "b" || text == "bs";
    }

    // Symbolic batches become one sample; other symbolic extents come from the options or are errors.
    bool fix_inputs() {
        bool is_good = true;
        std::int64_t fixed_batch = 0;
        bool has_symbolic_batch = false, differ = false;
        for (int id : graph_.inputs) {
            const onnx::ValueInfoProto* info = info_of_input(id);
            const std::string name = core::in_quotes(graph_.value(id).name, 100);
            if (!info || !info->type().has_tensor_type() || !info->type().tensor_type().has_shape()) {
                is_good = error(fmt::format("input {} has no tensor shape", name), "declare its shape when exporting");
                continue;
            }
            const onnx::TypeProto::Tensor& tensor = info->type().tensor_type();
            const OnnxType type = type_of(tensor.elem_type());
            const int rank = tensor.shape().dim_size();
            int batch_axis = -1;
            for (int d = 0; d < rank; ++d)
                if (batch_axis < 0 && tensor.shape().dim(d).has_dim_param() && is_batch_name(tensor.shape().dim(d).dim_param())) batch_axis = d;
            if (batch_axis < 0 && rank > 0 && !tensor.shape().dim(0).has_dim_value() && !is_sequence_name(tensor.shape().dim(0).dim_param())) batch_axis = 0;
            has_symbolic_batch = has_symbolic_batch || batch_axis >= 0;

            std::vector<std::int64_t> shape;
            for (int d = 0; d < rank; ++d) {
                const onnx::TensorShapeProto_Dimension& dimension = tensor.shape().dim(d);
                const bool is_image = type == OnnxType::floating && rank == 4 && d >= 2;
                const bool is_sequence = !is_image && d != batch_axis && d > 0 &&
                                         (is_sequence_name(dimension.dim_param()) || (type == OnnxType::integer && d == 1) || (rank == 3 && d == 1));
                std::optional<std::int64_t> wanted;
                if (is_image) wanted = options_.image_size;
                else if (is_sequence) wanted = options_.sequence_length;
                const char* option = is_image ? "image_size (--image-size)" : "sequence_length (--seq-len)";
                if (d == batch_axis && !dimension.has_dim_value()) {
                    shape.push_back(1);
                } else if (dimension.has_dim_value()) {
                    shape.push_back(dimension.dim_value());
                    if (wanted && *wanted != dimension.dim_value())
                        is_good = error(fmt::format("{} = {} cannot be set: dimension {} of input {} is fixed at {}",
                                                    is_image ? "image_size" : "sequence_length", *wanted, d, name, dimension.dim_value()),
                                        "export with a dynamic axis there");
                } else if (const auto known = symbols_.find(dimension.dim_param()); !dimension.dim_param().empty() && known != symbols_.end()) {
                    shape.push_back(known->second);
                } else if (wanted && !contains_any(lower(dimension.dim_param()), {"past"})) {
                    shape.push_back(*wanted);
                } else {
                    const std::string symbol = dimension.dim_param().empty() ? "" : " (" + core::in_quotes(dimension.dim_param()) + ")";
                    is_good = error(fmt::format("dimension {}{} of input {} is not fixed", d, symbol, name),
                                    is_image || is_sequence ? fmt::format("give {}", option) : "export with this dimension fixed");
                    shape.push_back(1);
                }
                if (!dimension.has_dim_value() && !dimension.dim_param().empty()) symbols_[dimension.dim_param()] = shape.back();
                if (shape.back() < 1 || shape.back() > (std::int64_t(1) << 28))
                    is_good = error(fmt::format("dimension {} of input {} is {}; it must be from 1 to 2^28", d, name, shape.back()));
            }
            if (rank >= 2 && batch_axis < 0) {
                differ = differ || (fixed_batch != 0 && fixed_batch != shape[0]);
                fixed_batch = shape[0];
            }
            if (!adopt(id, tensor.elem_type(), shape)) is_good = error(fmt::format("input {} has no sound shape", name));
        }
        if (!has_symbolic_batch && !differ && fixed_batch > 1) {
            graph_.batch = fixed_batch;
            graph_.assumptions.push_back(fmt::format("dimension 0 of the inputs, {}, is the batch: everything is divided by it", fixed_batch));
        }
        return is_good;
    }

    void read_declared_types() {
        const auto declare = [&](const onnx::ValueInfoProto& info) {
            const auto found = ids_.find(info.name());
            if (found == ids_.end() || !info.type().has_tensor_type() || !info.type().tensor_type().has_shape()) return;
            onnx::TypeProto type = info.type();
            for (onnx::TensorShapeProto_Dimension& dimension : *type.mutable_tensor_type()->mutable_shape()->mutable_dim()) {
                const auto known = symbols_.find(dimension.dim_param());
                if (!dimension.has_dim_value() && known != symbols_.end()) dimension.set_dim_value(known->second);
            }
            declared_[found->second] = std::move(type);
        };
        for (const onnx::ValueInfoProto& info : source_.value_info()) declare(info);
        for (const onnx::ValueInfoProto& info : source_.output()) declare(info);
    }

    // What inference functions divide by or index with, unchecked.
    bool has_sound_attributes(const OnnxNode& node) {
        for (const char* key : {"strides", "dilations", "kernel_shape", "group", "blocksize", "num_outputs", "num_groups", "hidden_size"})
            for (std::int64_t x : node.integers(key))
                if (x < 1 || x > (1 << 24)) return error(fmt::format("{}: {} = {} must be from 1 to 2^24", describe(node), key, x));
        for (const char* key : {"pads", "output_padding", "output_shape", "split", "axis", "axes", "starts", "ends", "batch_axis", "time_axis"})
            for (std::int64_t x : node.integers(key))
                if ((x < -(std::int64_t(1) << 32) || x > (std::int64_t(1) << 32)) && std::strcmp(key, "ends") != 0 && std::strcmp(key, "starts") != 0)
                    return error(fmt::format("{}: {} = {} is out of range", describe(node), key, x));
        if (const std::vector<std::int64_t> order = node.integers("perm"); !order.empty()) {
            std::vector<std::int64_t> sorted = order;
            std::sort(sorted.begin(), sorted.end());
            const int input = node.input(0);
            for (std::size_t i = 0; i < sorted.size(); ++i)
                if (sorted[i] != static_cast<std::int64_t>(i)) return error(fmt::format("{}: perm is no permutation", describe(node)));
            if (input >= 0 && graph_.value(input).shape.size() != order.size())
                return error(fmt::format("{}: perm has {} entries for {} dimensions", describe(node), order.size(), graph_.value(input).shape.size()));
        }
        return true;
    }

    bool infer_outputs(const OnnxNode& node, const onnx::NodeProto& proto) {
        const auto opset = opsets_.find(node.domain);
        // These two are functions since operator set 12, and libonnx 1.12 infers nothing of functions: they have the shapes of what they are made of.
        const std::string name = !node.domain.empty() ? node.type : node.type == "GreaterOrEqual" ? "Greater" : node.type == "LessOrEqual" ? "Less" : node.type;
        const onnx::OpSchema* schema = opset == opsets_.end() ? nullptr : onnx::OpSchemaRegistry::Schema(name, static_cast<int>(opset->second), node.domain);
        if (!schema && node.domain.empty() && !options_.allow_unknown)
            return error(fmt::format("{}: operator set {} has no operator {}", describe(node), graph_.opset, core::in_quotes(node.type)),
                         "is opset_import right? allow_unknown = true (smsim model --allow-unknown) prices it by its bytes");
        if (schema) {
            if (!has_sound_attributes(node)) return false;
            std::vector<const onnx::TypeProto*> types;
            std::vector<const onnx::TensorProto*> data;
            for (int input : node.inputs) {
                const auto i = static_cast<std::size_t>(input);
                types.push_back(input < 0 ? nullptr : &types_[i]);
                data.push_back(input < 0 || !constants_[i] ? nullptr : &*constants_[i]);
            }
            NodeContext context(proto, std::move(types), std::move(data));
            try {
                schema->Verify(proto);
                schema->GetTypeAndShapeInferenceFunction()(context);
            } catch (const std::exception& problem) {
                // The first line tells; the rest is the library's context.
                std::string words = problem.what();
                words.resize(std::min(words.find('\n'), words.size()));
                return error(fmt::format("{}: {}", describe(node), core::in_quotes(words, 300)), "inputs, attributes and operator set must fit");
            }
            for (std::size_t i = 0; i < node.outputs.size(); ++i)
                if (node.outputs[i] >= 0) adopt(node.outputs[i], *context.getOutputType(i));
        }
        for (std::size_t i = 0; i < node.outputs.size(); ++i) {
            const int output = node.outputs[i];
            if (output < 0 || graph_.value(output).has_shape) continue;
            if (const auto declared = declared_.find(output); declared != declared_.end() && adopt(output, declared->second)) continue;
            const bool is_known = schema && node.domain.empty() && has_mapping(node);
            if (options_.allow_unknown && !is_known && node.input(0) >= 0 && graph_.value(node.inputs[0]).has_shape) {
                adopt(output, types_[static_cast<std::size_t>(node.inputs[0])]);
                graph_.assumptions.push_back(fmt::format("the shape of {} of {} is not told: taken as its first input's",
                                                         core::in_quotes(graph_.value(output).name, 100), describe(node)));
                continue;
            }
            // Only what is read further on must be known.
            if (i > 0 && !is_read_[static_cast<std::size_t>(output)]) continue;
            return error(fmt::format("{}: the shape of its output {} is unknown", describe(node), core::in_quotes(graph_.value(output).name, 100)),
                         "export with fixed dimensions, or run onnx.shape_inference and keep value_info");
        }
        return true;
    }

    bool infer() {
        is_read_.assign(graph_.values.size(), false);
        for (const OnnxNode& node : graph_.nodes)
            for (int input : node.inputs)
                if (input >= 0) is_read_[static_cast<std::size_t>(input)] = true;
        for (int output : graph_.outputs) is_read_[static_cast<std::size_t>(output)] = true;
        bool is_good = true;
        for (std::size_t n = 0; n < graph_.nodes.size(); ++n) {
            const OnnxNode& node = graph_.nodes[n];
            const onnx::NodeProto& proto = source_.node(order_[n]);
            // Behind a problem that is told already.
            if (std::any_of(node.inputs.begin(), node.inputs.end(), [&](int input) { return input >= 0 && !graph_.value(input).has_shape; })) {
                if (is_good) return error(fmt::format("{} reads a tensor of unknown shape", describe(node)));
                continue;
            }
            if (node.type == "Constant" && node.domain.empty() && node.output() >= 0) {
                is_good = read_constant(node, proto) && is_good;
                continue;
            }
            if (!infer_outputs(node, proto)) {
                is_good = false;
                continue;
            }
            if (node.domain.empty())
                if (auto data = fold(graph_, node)) set_data(node.output(), std::move(*data));
        }
        return is_good;
    }

    bool read_constant(const OnnxNode& node, const onnx::NodeProto& proto) {
        for (const onnx::AttributeProto& attribute : proto.attribute()) {
            if (attribute.name() == "value" && attribute.type() == onnx::AttributeProto::TENSOR) return take_constant(node.output(), attribute.t());
            const OnnxAttribute plain = attribute_of(attribute);
            const bool is_list = attribute.name() == "value_ints" || attribute.name() == "value_floats";
            if (!is_list && attribute.name() != "value_int" && attribute.name() != "value_float") continue;
            std::vector<double> data = plain.reals;
            for (std::int64_t x : plain.integers) data.push_back(static_cast<double>(x));
            const bool is_integer = attribute.name() == "value_int" || attribute.name() == "value_ints";
            if (data.size() > most_constant_elements || (!is_list && data.size() != 1)) break;
            std::vector<std::int64_t> shape;
            if (is_list) shape.push_back(static_cast<std::int64_t>(data.size()));
            adopt(node.output(), is_integer ? onnx::TensorProto::INT64 : onnx::TensorProto::FLOAT, shape);
            set_data(node.output(), std::move(data));
            return true;
        }
        return error(fmt::format("{} has no value that can be read", describe(node)));
    }

    const onnx::ModelProto& model_;
    const onnx::GraphProto& source_;
    const LoadOptions& options_;
    core::Diagnostics& diagnostics_;
    const core::SourceLocation place_;
    const std::string key_;
    OnnxGraph graph_;
    std::map<std::string, std::int64_t> opsets_, symbols_;
    std::unordered_map<std::string, int> ids_;
    std::vector<onnx::TypeProto> types_;
    std::vector<int> element_types_;
    std::vector<std::optional<onnx::TensorProto>> constants_;
    std::vector<bool> is_defined_, is_read_;
    std::vector<int> order_;  // of the file's nodes
    std::map<int, onnx::TypeProto> declared_;
    std::size_t problems_ = 0;
};

}  // namespace

std::optional<OnnxGraph> read_onnx_graph(const std::string& path, const LoadOptions& options, core::Diagnostics& diagnostics,
                                         const core::SourceLocation& referrer, const std::string& key) {
    const std::optional<std::string> bytes = onnx_skeleton(path, diagnostics, referrer, key);
    if (!bytes) return std::nullopt;
    onnx::ModelProto model;
    if (!model.ParseFromString(*bytes) || !model.has_graph()) {
        diagnostics.error({path, 0, 0}, key, "not an ONNX model: there is no graph in it", "a file written by torch.onnx.export or onnx.save is expected");
        return std::nullopt;
    }
    return Importer(model, path, options, diagnostics, key).run();
}

}  // namespace model
