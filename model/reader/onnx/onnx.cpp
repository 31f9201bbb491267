// From libonnx's messages to the plain graph: node by node, shapes inferred and constants evaluated on the
// way, so that every problem is told with its node.
#include <algorithm>
#include <unordered_map>

#include <fmt/core.h>
#include <onnx/onnx_pb.h>

#include "core/diagnostics.h"
#include "core/index/integers.h"
#include "model/reader/onnx/onnx_graph.h"
#include "model/reader/onnx/onnx_inference.h"
#include "model/reader/onnx/onnx_inputs.h"
#include "model/reader/onnx/onnx_skeleton.h"
#include "model/reader/onnx/onnx_tensor.h"

namespace model {

namespace {

constexpr std::int64_t oldest_opset = 7;  // before it broadcasting was an attribute
constexpr int most_nodes = 200000;
constexpr std::size_t most_problems = 10;
constexpr std::int64_t largest_extent = std::int64_t(1) << 32;
constexpr double most_tensor_elements = 281474976710656.0;  // 2^48: a product of shapes stays below 2^63

class Importer {
public:
    Importer(const onnx::ModelProto& model, const std::string& path, const LoadOptions& options,
             core::Diagnostics& diagnostics, const std::string& key)
        : model_(model),
          source_(model.graph()),
          options_(options),
          diagnostics_(diagnostics),
          place_{path, 0, 0},
          key_(key) {}

    std::optional<OnnxGraph> run() {
        if (!check_opset()) return std::nullopt;
        if (!list_values() || !list_nodes()) return std::nullopt;
        if (const std::string cycle = sort_nodes(graph_, order_); !cycle.empty()) {
            error("the graph is cyclic: each of these nodes waits for the next, the last for the first: " +
                      cycle,
                  "a model is a graph without cycles");
            return std::nullopt;
        }
        if (!fix_inputs()) return std::nullopt;
        read_declared_types();
        if (!infer()) return std::nullopt;
        for (const std::int32_t n : core::indices(graph_.nodes)) {
            for (int input : graph_.nodes[n].inputs)
                if (input >= 0) {
                    std::vector<int>& consumers = graph_.value(input).consumers;
                    if (consumers.empty() || consumers.back() != n) consumers.push_back(n);
                }
            for (int output : graph_.nodes[n].outputs)
                if (output >= 0) graph_.value(output).producer = n;
        }
        return std::move(graph_);
    }

private:
    // At most a screenful: one broken export can break every node.
    bool error(std::string message, std::string hint = {}) {
        if (++problems_ <= most_problems)
            diagnostics_.error(place_, key_, std::move(message), std::move(hint));
        return false;
    }

    bool check_opset() {
        for (const onnx::OperatorSetIdProto& import : model_.opset_import()) {
            const std::string domain = import.domain() == "ai.onnx" ? "" : import.domain();
            opsets_[domain] = import.version();
        }
        if (!opsets_.contains(""))
            return error("the file imports no operator set",
                         "an ONNX model names the version of its operators in opset_import");
        graph_.opset = opsets_[""];
        if (graph_.opset < oldest_opset || graph_.opset > newest_onnx_opset())
            return error(fmt::format("operator set {} is not supported: {} to {} are", graph_.opset,
                                     oldest_opset, newest_onnx_opset()),
                         graph_.opset > newest_onnx_opset()
                             ? "export with a lower opset_version, or build against a newer libonnx"
                             : "convert it with onnx.version_converter");
        if (source_.node_size() == 0) return error("the graph has no nodes", "an ONNX model is expected");
        if (source_.node_size() > most_nodes)
            return error(
                fmt::format("the graph has {} nodes; at most {} are read", source_.node_size(), most_nodes));
        return true;
    }

    int value_named(const std::string& name) {
        const auto [entry, is_new] = ids_.try_emplace(name, core::count_of(graph_.values));
        if (is_new) {
            graph_.values.emplace_back().name = name;
            types_.emplace_back();
            element_types_.push_back(0);
            constants_.emplace_back();
            is_defined_.push_back(false);
        }
        return entry->second;
    }

    bool define(int id) {
        if (is_defined_[id])
            return error(fmt::format("tensor {} is made twice", core::in_quotes(graph_.value(id).name, 100)));
        is_defined_[id] = true;
        return true;
    }

    // Takes over a type whose extents are all known.
    bool adopt(int id, const onnx::TypeProto& type) {
        OnnxValue& value = graph_.value(id);
        if (!type.has_tensor_type()) return false;
        const onnx::TypeProto::Tensor& tensor = type.tensor_type();
        element_types_[id] = tensor.elem_type();
        value.type = onnx_type_of(tensor.elem_type());
        types_[id] = type;
        if (!tensor.has_shape()) return false;
        std::vector<std::int64_t> shape;
        double count = 1;
        for (const onnx::TensorShapeProto_Dimension& dimension : tensor.shape().dim()) {
            if (!dimension.has_dim_value() || dimension.dim_value() < 0 ||
                dimension.dim_value() > largest_extent)
                return false;
            shape.push_back(dimension.dim_value());
            count *= dimension.dim_value();
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
        const std::size_t i = id;
        OnnxValue& value = graph_.value(id);
        switch (element_types_[i]) {
            case onnx::TensorProto::FLOAT:
            case onnx::TensorProto::DOUBLE:
            case onnx::TensorProto::INT64:
            case onnx::TensorProto::INT32:
            case onnx::TensorProto::BOOL:
                constants_[i] = tensor_of(data, value.shape, element_types_[i]);
                break;
            // Of protobuf's element types, which are integers of the file: no other is folded further.
            default: break;
        }
        value.data = std::move(data);
    }

    bool take_constant(int id, const onnx::TensorProto& tensor) {
        const std::vector<std::int64_t> shape(tensor.dims().begin(), tensor.dims().end());
        if (!adopt(id, tensor.data_type(), shape))
            return error(fmt::format("tensor {} has no sound shape or type",
                                     core::in_quotes(graph_.value(id).name, 100)));
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
            is_good = define(id) &&
                      adopt(id, sparse.values().data_type(), {sparse.dims().begin(), sparse.dims().end()}) &&
                      is_good;
            graph_.value(id).is_initializer = true;
        }
        for (const onnx::ValueInfoProto& input : source_.input()) {
            const int id = value_named(input.name());
            if (graph_.value(id).is_initializer)
                continue;  // before IR version 4 every weight was listed as an input as well
            is_good = define(id) && is_good;
            graph_.value(id).is_input = true;
            graph_.inputs.push_back(id);
        }
        if (graph_.inputs.empty()) is_good = error("the graph has no input that is not a weight");
        return is_good;
    }

    bool list_nodes() {
        bool is_good = true;
        std::map<std::string, std::pair<std::string, int>> unmapped;  // type -> first node, how many
        for (int n = 0; n < source_.node_size(); ++n) {
            const onnx::NodeProto& from = source_.node(n);
            OnnxNode to;
            to.type = from.op_type();
            to.domain = from.domain() == "ai.onnx" ? "" : from.domain();
            to.name = !from.name().empty()                                ? from.name()
                      : from.output_size() > 0 && !from.output(0).empty() ? from.output(0)
                                                                          : fmt::format("#{}", n);
            for (const std::string& input : from.input())
                to.inputs.push_back(input.empty() ? -1 : value_named(input));
            for (const std::string& output : from.output()) {
                to.outputs.push_back(output.empty() ? -1 : value_named(output));
                if (!output.empty()) is_good = define(to.outputs.back()) && is_good;
            }
            for (const onnx::AttributeProto& attribute : from.attribute())
                to.attributes[attribute.name()] = attribute_of(attribute);
            if (!options_.allow_unknown && !(to.domain.empty() && has_mapping(to))) {
                auto& entry = unmapped[to.domain.empty() ? to.type : to.domain + "." + to.type];
                if (entry.second++ == 0) entry.first = to.name;
            }
            graph_.nodes.push_back(std::move(to));
            order_.push_back(n);
        }
        for (const auto& [type, entry] : unmapped)
            is_good = error(
                fmt::format("operator {} of node {} has no counterpart here{}", core::in_quotes(type),
                            core::in_quotes(entry.first, 100),
                            entry.second > 1
                                ? fmt::format(" (nor have {} more nodes of this type)", entry.second - 1)
                                : ""),
                "allow_unknown = true (smsim model --allow-unknown) prices it by the bytes it reads and "
                "writes");
        for (const OnnxNode& node : graph_.nodes)
            for (int input : node.inputs)
                if (input >= 0 && !is_defined_[input])
                    is_good = error(fmt::format("{} reads tensor {}, which nothing makes", describe(node),
                                                core::in_quotes(graph_.value(input).name, 100)));
        for (const onnx::ValueInfoProto& output : source_.output()) {
            const auto found = ids_.find(output.name());
            if (found == ids_.end() || !is_defined_[found->second]) {
                is_good =
                    error(fmt::format("output {} is made by no node", core::in_quotes(output.name(), 100)));
                continue;
            }
            graph_.value(found->second).is_output = true;
            graph_.outputs.push_back(found->second);
        }
        if (source_.output_size() == 0) is_good = error("the graph has no output");
        return is_good;
    }

    const onnx::ValueInfoProto* info_of_input(int id) const {
        for (const onnx::ValueInfoProto& input : source_.input())
            if (input.name() == graph_.value(id).name) return &input;
        return nullptr;
    }

    // The first problem with an input ends the import once all inputs are told.
    bool fix_inputs() {
        std::vector<OnnxDeclaredInput> declared;
        for (int id : graph_.inputs) {
            OnnxDeclaredInput& input = declared.emplace_back();
            input.name = graph_.value(id).name;
            const onnx::ValueInfoProto* info = info_of_input(id);
            if (!info || !info->type().has_tensor_type() || !info->type().tensor_type().has_shape()) continue;
            const onnx::TypeProto::Tensor& tensor = info->type().tensor_type();
            input.has_shape = true;
            input.type = onnx_type_of(tensor.elem_type());
            for (const onnx::TensorShapeProto_Dimension& dimension : tensor.shape().dim())
                input.extents.push_back({dimension.has_dim_value()
                                             ? std::optional<std::int64_t>(dimension.dim_value())
                                             : std::nullopt,
                                         dimension.dim_param()});
        }
        OnnxFixedInputs fixed = fix_onnx_inputs(declared, options_);
        for (OnnxInputProblem& problem : fixed.problems)
            error(std::move(problem.message), std::move(problem.hint));
        symbols_ = std::move(fixed.symbols);
        graph_.batch = fixed.batch;
        if (!fixed.assumption.empty()) graph_.assumptions.push_back(fixed.assumption);
        bool is_good = fixed.problems.empty();
        for (std::size_t i = 0; i < fixed.shapes.size(); ++i) {
            const int id = graph_.inputs[i];
            if (!declared[i].has_shape) continue;
            if (!adopt(id, info_of_input(id)->type().tensor_type().elem_type(), fixed.shapes[i]))
                is_good =
                    error(fmt::format("input {} has no sound shape", core::in_quotes(declared[i].name, 100)));
        }
        return is_good;
    }

    void read_declared_types() {
        const auto declare = [&](const onnx::ValueInfoProto& info) {
            const auto found = ids_.find(info.name());
            if (found == ids_.end() || !info.type().has_tensor_type() ||
                !info.type().tensor_type().has_shape())
                return;
            onnx::TypeProto type = info.type();
            for (onnx::TensorShapeProto_Dimension& dimension :
                 *type.mutable_tensor_type()->mutable_shape()->mutable_dim()) {
                const auto known = symbols_.find(dimension.dim_param());
                if (!dimension.has_dim_value() && known != symbols_.end())
                    dimension.set_dim_value(known->second);
            }
            declared_[found->second] = std::move(type);
        };
        for (const onnx::ValueInfoProto& info : source_.value_info()) declare(info);
        for (const onnx::ValueInfoProto& info : source_.output()) declare(info);
    }

    bool infer_outputs(const OnnxNode& node, const onnx::NodeProto& proto) {
        std::vector<const onnx::TypeProto*> types;
        std::vector<const onnx::TensorProto*> data;
        for (int input : node.inputs) {
            const std::size_t i = input;
            types.push_back(input < 0 ? nullptr : &types_[i]);
            data.push_back(input < 0 || !constants_[i] ? nullptr : &*constants_[i]);
        }
        const auto opset = opsets_.find(node.domain);
        const OnnxInference inferred =
            model::infer_outputs(graph_, node, proto, opset == opsets_.end() ? 0 : opset->second,
                                 std::move(types), std::move(data));
        if (!inferred.is_known && node.domain.empty() && !options_.allow_unknown)
            return error(fmt::format("{}: operator set {} has no operator {}", describe(node), graph_.opset,
                                     core::in_quotes(node.type)),
                         "is opset_import right? allow_unknown = true (smsim model --allow-unknown) prices "
                         "it by its bytes");
        if (!inferred.problem.empty())
            return error(fmt::format("{}: {}", describe(node), inferred.problem),
                         "inputs, attributes and operator set must fit");
        for (std::size_t i = 0; i < node.outputs.size() && i < inferred.types.size(); ++i)
            if (node.outputs[i] >= 0) adopt(node.outputs[i], inferred.types[i]);
        for (std::size_t i = 0; i < node.outputs.size(); ++i) {
            const int output = node.outputs[i];
            if (output < 0 || graph_.value(output).has_shape) continue;
            if (const auto declared = declared_.find(output);
                declared != declared_.end() && adopt(output, declared->second))
                continue;
            const bool is_known = inferred.is_known && node.domain.empty() && has_mapping(node);
            if (options_.allow_unknown && !is_known && node.input(0) >= 0 &&
                graph_.value(node.inputs[0]).has_shape) {
                adopt(output, types_[node.inputs[0]]);
                graph_.assumptions.push_back(
                    fmt::format("the shape of {} of {} is not told: taken as its first input's",
                                core::in_quotes(graph_.value(output).name, 100), describe(node)));
                continue;
            }
            // Only what is read further on must be known.
            if (i > 0 && !is_read_[output]) continue;
            return error(fmt::format("{}: the shape of its output {} is unknown", describe(node),
                                     core::in_quotes(graph_.value(output).name, 100)),
                         "export with fixed dimensions, or run onnx.shape_inference and keep value_info");
        }
        return true;
    }

    bool infer() {
        is_read_.assign(graph_.values.size(), false);
        for (const OnnxNode& node : graph_.nodes)
            for (int input : node.inputs)
                if (input >= 0) is_read_[input] = true;
        for (int output : graph_.outputs) is_read_[output] = true;
        bool is_good = true;
        for (std::size_t n = 0; n < graph_.nodes.size(); ++n) {
            const OnnxNode& node = graph_.nodes[n];
            const onnx::NodeProto& proto = source_.node(order_[n]);
            // Behind a problem that is told already.
            if (std::any_of(node.inputs.begin(), node.inputs.end(),
                            [&](int input) { return input >= 0 && !graph_.value(input).has_shape; })) {
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
            if (attribute.name() == "value" && attribute.type() == onnx::AttributeProto::TENSOR)
                return take_constant(node.output(), attribute.t());
            const OnnxAttribute plain = attribute_of(attribute);
            const bool is_list = attribute.name() == "value_ints" || attribute.name() == "value_floats";
            if (!is_list && attribute.name() != "value_int" && attribute.name() != "value_float") continue;
            std::vector<double> data = plain.reals;
            for (std::int64_t x : plain.integers) data.push_back(x);
            const bool is_integer = attribute.name() == "value_int" || attribute.name() == "value_ints";
            if (data.size() > most_onnx_constant_elements || (!is_list && data.size() != 1)) break;
            std::vector<std::int64_t> shape;
            if (is_list) shape.push_back(data.size());
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

std::optional<OnnxGraph> read_onnx_graph(const std::string& path, const LoadOptions& options,
                                         core::Diagnostics& diagnostics, const core::SourceLocation& referrer,
                                         const std::string& key) {
    const std::optional<std::string> bytes = onnx_skeleton(path, diagnostics, referrer, key);
    if (!bytes) return std::nullopt;
    onnx::ModelProto model;
    if (!model.ParseFromString(*bytes) || !model.has_graph()) {
        diagnostics.error({path, 0, 0}, key, "not an ONNX model: there is no graph in it",
                          "a file written by torch.onnx.export or onnx.save is expected");
        return std::nullopt;
    }
    return Importer(model, path, options, diagnostics, key).run();
}

}  // namespace model
