// From libonnx's messages to the plain graph: node by node, shapes inferred and constants evaluated on the
// way, so that every problem is told with its node.
#include <algorithm>
#include <memory>
#include <unordered_map>

#include <fmt/core.h>
#include <fmt/format.h>
#include <onnx/onnx_pb.h>

#include "core/diagnostics.h"
#include "core/index/integers.h"
#include "model/operator.h"
#include "model/reader/onnx/library/onnx_branch.h"
#include "model/reader/onnx/library/onnx_inference.h"
#include "model/reader/onnx/library/onnx_tensor.h"
#include "model/reader/onnx/onnx_graph.h"
#include "model/reader/onnx/onnx_inputs.h"
#include "model/reader/onnx/onnx_sizes.h"
#include "model/reader/onnx/onnx_skeleton.h"

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
        if (!list_graph()) return std::nullopt;
        if (const std::string cycle = sort_nodes(graph_, order_); !cycle.empty()) {
            error("the graph is cyclic: each of these nodes waits for the next, the last for the first: " +
                      cycle,
                  "a model is a graph without cycles");
            return std::nullopt;
        }
        if (!fix_inputs()) return std::nullopt;
        read_declared_types(source_);
        if (!infer() || !choose_outputs()) return std::nullopt;
        describe_bounds();
        forget_channels_as_batch();
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
            is_read_.push_back(false);
            is_cut_.push_back(false);
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

    // Weights of the graph or of a branch.
    bool list_weights(const onnx::GraphProto& from) {
        bool is_good = true;
        for (const onnx::TensorProto& tensor : from.initializer()) {
            const int id = value_named(tensor.name());
            is_good = define(id) && take_constant(id, tensor) && is_good;
            graph_.value(id).is_initializer = true;
        }
        for (const onnx::SparseTensorProto& sparse : from.sparse_initializer()) {
            const int id = value_named(sparse.values().name());
            is_good = define(id) &&
                      adopt(id, sparse.values().data_type(), {sparse.dims().begin(), sparse.dims().end()}) &&
                      is_good;
            graph_.value(id).is_initializer = true;
        }
        return is_good;
    }

    bool list_inputs() {
        bool is_good = true;
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

    bool list_node(const onnx::NodeProto& from, std::vector<OnnxNode>& nodes) {
        bool is_good = true;
        OnnxNode to;
        to.type = from.op_type();
        to.domain = from.domain() == "ai.onnx" ? "" : from.domain();
        to.name = !from.name().empty()                                ? from.name()
                  : from.output_size() > 0 && !from.output(0).empty() ? from.output(0)
                                                                      : fmt::format("#{}", nodes.size());
        for (const std::string& input : from.input())
            to.inputs.push_back(input.empty() ? -1 : value_named(input));
        for (const std::string& name : names_from_outside(from)) to.inputs.push_back(value_named(name));
        for (const std::string& output : from.output()) {
            to.outputs.push_back(output.empty() ? -1 : value_named(output));
            if (!output.empty()) is_good = define(to.outputs.back()) && is_good;
        }
        for (const onnx::AttributeProto& attribute : from.attribute())
            to.attributes[attribute.name()] = attribute_of(attribute);
        nodes.push_back(std::move(to));
        return is_good;
    }

    // Names what has no counterpart and tensors that nothing makes.
    bool check_nodes(const std::vector<OnnxNode>& nodes) {
        bool is_good = true;
        std::map<std::string, std::pair<std::string, int>> unmapped;  // type -> first node, how many
        for (const OnnxNode& node : nodes)
            if (!options_.allow_unknown && !(node.domain.empty() && has_mapping(node))) {
                auto& entry = unmapped[node.domain.empty() ? node.type : node.domain + "." + node.type];
                if (entry.second++ == 0) entry.first = node.name;
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
        for (const OnnxNode& node : nodes)
            for (int input : node.inputs)
                if (input >= 0 && !is_defined_[input])
                    is_good = error(fmt::format("{} reads tensor {}, which nothing makes", describe(node),
                                                core::in_quotes(graph_.value(input).name, 100)));
        return is_good;
    }

    bool list_graph() {
        bool is_good = list_weights(source_);
        is_good = list_inputs() && is_good;
        if (!is_good) return false;
        for (int n = 0; n < source_.node_size(); ++n) {
            is_good = list_node(source_.node(n), graph_.nodes) && is_good;
            order_.push_back(n);
        }
        is_good = check_nodes(graph_.nodes) && is_good;
        for (const onnx::ValueInfoProto& output : source_.output()) {
            const auto found = ids_.find(output.name());
            if (found == ids_.end() || !is_defined_[found->second]) {
                is_good =
                    error(fmt::format("output {} is made by no node", core::in_quotes(output.name(), 100)));
                continue;
            }
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
        batch_assumption_ = fixed.assumption;
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

    // torch.export lists every parameter and buffer in value_info, and says in its metadata which one it is.
    // The metadata are field 4 of ValueInfoProto since IR version 10, unknown to an older libonnx.
    void read_kind(const onnx::ValueInfoProto& info) {
        const auto found = ids_.find(info.name());
        if (found == ids_.end()) return;
        const std::optional<std::string> kind = input_kind_of(info);
        if (!kind) return;
        graph_.value(found->second).is_parameter = *kind == "PARAMETER";
        graph_.lists_parameters = true;
    }

    void read_declared_types(const onnx::GraphProto& from) {
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
        for (const onnx::ValueInfoProto& info : from.value_info()) {
            declare(info);
            read_kind(info);
        }
        for (const onnx::ValueInfoProto& info : from.output()) declare(info);
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
            if (i < inferred.types.size() && adopt_largest(node, output, inferred.types[i])) continue;
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

    // Extents that depend on data, at the most that they can be.
    bool adopt_largest(const OnnxNode& node, int output, onnx::TypeProto type) {
        const std::optional<std::vector<std::int64_t>> largest = largest_shape(graph_, node);
        if (!largest || !type.has_tensor_type()) return false;
        onnx::TensorShapeProto* shape = type.mutable_tensor_type()->mutable_shape();
        while (shape->dim_size() < core::count_of(*largest)) shape->add_dim();
        if (shape->dim_size() != core::count_of(*largest)) return false;
        for (int d = 0; d < shape->dim_size(); ++d)
            if (!shape->dim(d).has_dim_value()) shape->mutable_dim(d)->set_dim_value((*largest)[d]);
        if (!adopt(output, type)) return false;
        if (output == node.output() && node.type != "Einsum") {
            ++bounded_[node.type];
            const std::vector<std::int64_t>& taken = graph_.value(output).shape;
            largest_extent_ = std::max(largest_extent_, *std::max_element(taken.begin(), taken.end()));
        }
        return true;
    }

    void describe_bounds() {
        if (bounded_.empty()) return;
        std::string types;
        for (const auto& [type, count] : bounded_)
            types += fmt::format("{}{} ({})", types.empty() ? "" : ", ", type, count);
        graph_.assumptions.push_back(fmt::format(
            "sizes that depend on data are taken at the most that they can be in this export: {}; "
            "the largest is {}",
            types, largest_extent_));
    }

    bool infer() {
        std::vector<OnnxNode> nodes = std::move(graph_.nodes);
        graph_.nodes.clear();
        std::vector<const onnx::NodeProto*> protos;
        for (const int n : order_) protos.push_back(&source_.node(n));
        note_readers(nodes);
        for (int output : graph_.outputs) is_read_[output] = true;
        return infer_nodes(std::move(nodes), protos);
    }

    void note_readers(const std::vector<OnnxNode>& nodes) {
        for (const OnnxNode& node : nodes)
            for (int input : node.inputs)
                if (input >= 0) is_read_[input] = true;
    }

    // In order; protos are of the same nodes. What is inferred joins the graph.
    bool infer_nodes(std::vector<OnnxNode> nodes, const std::vector<const onnx::NodeProto*>& protos) {
        bool is_good = true;
        for (std::size_t n = 0; n < nodes.size(); ++n) {
            OnnxNode& node = nodes[n];
            const bool is_standard = node.domain.empty();
            if (is_behind_cut(node)) {
                is_good = leave_out(node) && is_good;
                continue;
            }
            // Behind a problem that is told already.
            if (std::any_of(node.inputs.begin(), node.inputs.end(),
                            [&](int input) { return input >= 0 && !graph_.value(input).has_shape; })) {
                if (is_good) return error(fmt::format("{} reads a tensor of unknown shape", describe(node)));
                continue;
            }
            if (is_standard && node.type == "If") {
                is_good = take_branch(node, *protos[n]) && is_good;
            } else if (is_standard && (node.type == "Loop" || node.type == "Scan")) {
                is_good = cut(node, *protos[n]) && is_good;
            } else if (is_standard && node.type == "Constant" && node.output() >= 0) {
                is_good = read_constant(node, *protos[n]) && is_good;
                graph_.nodes.push_back(std::move(node));
            } else if (infer_outputs(node, *protos[n])) {
                if (is_standard)
                    if (auto data = fold(graph_, node)) set_data(node.output(), std::move(*data));
                graph_.nodes.push_back(std::move(node));
            } else {
                is_good = false;
            }
        }
        return is_good;
    }

    // The branch that a constant condition chooses, in place of the node.
    bool take_branch(const OnnxNode& node, const onnx::NodeProto& proto) {
        const int condition = node.input(0);
        if (condition < 0 || !graph_.value(condition).data || graph_.value(condition).data->size() != 1)
            return error(
                fmt::format("{} chooses a branch by {}, which is computed from the data", describe(node),
                            condition < 0 ? "nothing" : core::in_quotes(graph_.value(condition).name, 100)),
                "export the branch that is trained, with fixed sizes of the inputs: conditions on "
                "sizes are then constant");
        const bool is_then = (*graph_.value(condition).data)[0] != 0;
        const onnx::GraphProto& branch = *branches_.emplace_back(std::make_unique<onnx::GraphProto>(
            inlined_branch(proto, is_then, fmt::format("{}#{}/", node.name, branches_.size()))));
        if (branch.node_size() == 0)
            return error(fmt::format("{} has no sound {} branch", describe(node), is_then ? "then" : "else"));
        taken_nodes_ += branch.node_size();
        if (taken_nodes_ > most_nodes)
            return error(fmt::format("the branches of the graph have more than {} nodes", most_nodes));
        for (int output : node.outputs)
            if (output >= 0) is_defined_[output] = false;  // by nodes of the branch
        bool is_good = list_weights(branch);
        std::vector<OnnxNode> nodes;
        std::vector<const onnx::NodeProto*> protos;
        for (const onnx::NodeProto& inner : branch.node()) {
            is_good = list_node(inner, nodes) && is_good;
            protos.push_back(&inner);
        }
        if (!(check_nodes(nodes) && is_good)) return false;
        note_readers(nodes);
        read_declared_types(branch);
        ++taken_branches_;
        return infer_nodes(std::move(nodes), protos);
    }

    // Loops are left out with all that follows them, as long as nothing of that is trained.
    bool cut(const OnnxNode& node, const onnx::NodeProto& proto) {
        if (const std::string weight = weight_inside(proto); !weight.empty())
            return error(fmt::format("{} repeats a graph that multiplies by {}: loops of trained layers are "
                                     "not read",
                                     describe(node), core::in_quotes(weight, 100)),
                         "export with the loop unrolled: by tracing with a fixed length, not by scripting");
        for (int output : node.outputs)
            if (output >= 0) is_cut_[output] = true;
        for (int input : node.inputs)
            if (input >= 0 && graph_.value(input).type == OnnxType::floating && !graph_.value(input).data &&
                !graph_.value(input).is_initializer)
                ends_.push_back(input);
        cut_at_.push_back(describe(node));
        return true;
    }

    bool is_behind_cut(const OnnxNode& node) const {
        return std::any_of(node.inputs.begin(), node.inputs.end(),
                           [&](int input) { return input >= 0 && is_cut_[input]; });
    }

    bool leave_out(const OnnxNode& node) {
        ++left_out_;
        for (int output : node.outputs)
            if (output >= 0) is_cut_[output] = true;
        for (int input : node.inputs) {
            if (input < 0 || !graph_.value(input).is_initializer) continue;
            const OnnxValue& weight = graph_.value(input);
            if (weight.type == OnnxType::floating && weight.shape.size() > 1 &&
                element_count(weight.shape) > 1)
                return error(
                    fmt::format("{} reads weight {} and follows {}: loops are left out, what follows "
                                "them is not trained",
                                describe(node), core::in_quotes(weight.name, 100), cut_at_.front()),
                    "export with the loop unrolled: by tracing with a fixed length, not by scripting");
        }
        return true;
    }

    // Outputs that are left out give way to what the loops in front of them read.
    bool choose_outputs() {
        std::erase_if(graph_.outputs, [&](int output) { return is_cut_[output]; });
        for (const int end : ends_)
            if (std::find(graph_.outputs.begin(), graph_.outputs.end(), end) == graph_.outputs.end())
                graph_.outputs.push_back(end);
        for (const int output : graph_.outputs) graph_.value(output).is_output = true;
        if (!cut_at_.empty())
            graph_.assumptions.push_back(fmt::format(
                "{} is left out with {} nodes that follow it, which read no weights: what it reads "
                "is taken for an output",
                fmt::join(cut_at_, ", "), left_out_));
        if (taken_branches_ > 0)
            graph_.assumptions.push_back(
                fmt::format("{} conditions that depend on sizes alone are decided, and their branches taken",
                            taken_branches_));
        return !graph_.outputs.empty() ||
               error("no output is left in front of the loops", "export the network in front of them");
    }

    // An image without a batch, [channels, y, x]: the first convolution then reads one image.
    void forget_channels_as_batch() {
        const auto first = std::find_if(graph_.nodes.begin(), graph_.nodes.end(), [](const OnnxNode& node) {
            return node.type == "Conv" && node.domain.empty() && node.input(0) >= 0;
        });
        if (graph_.batch == 1 || first == graph_.nodes.end()) return;
        const std::vector<std::int64_t>& shape = graph_.value(first->inputs[0]).shape;
        if (shape.empty() || shape[0] != 1) return;
        graph_.batch = 1;
        std::erase(graph_.assumptions, batch_assumption_);
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
    std::vector<bool> is_defined_, is_read_, is_cut_;
    std::vector<int> order_;  // of the file's nodes
    std::map<int, onnx::TypeProto> declared_;
    std::size_t problems_ = 0;
    std::string batch_assumption_;
    std::map<std::string, int> bounded_;  // type -> nodes
    std::int64_t largest_extent_ = 0;
    std::vector<std::unique_ptr<onnx::GraphProto>> branches_;
    int taken_branches_ = 0, taken_nodes_ = 0, left_out_ = 0;
    std::vector<std::string> cut_at_;
    std::vector<int> ends_;  // what loops read
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
