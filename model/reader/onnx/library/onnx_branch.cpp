#include "model/reader/onnx/library/onnx_branch.h"

#include <onnx/onnx_pb.h>

namespace model {

namespace {

std::set<std::string> names_made_in(const onnx::GraphProto& graph) {
    std::set<std::string> names;
    for (const onnx::ValueInfoProto& input : graph.input()) names.insert(input.name());
    for (const onnx::TensorProto& tensor : graph.initializer()) names.insert(tensor.name());
    for (const onnx::SparseTensorProto& sparse : graph.sparse_initializer())
        names.insert(sparse.values().name());
    for (const onnx::NodeProto& node : graph.node())
        for (const std::string& output : node.output()) names.insert(output);
    return names;
}

// What the graph reads and does not make. An output may be a tensor from outside as well.
std::set<std::string> names_read_outside(const onnx::GraphProto& graph) {
    std::set<std::string> read;
    for (const onnx::NodeProto& node : graph.node()) {
        for (const std::string& input : node.input())
            if (!input.empty()) read.insert(input);
        read.merge(names_from_outside(node));
    }
    for (const onnx::ValueInfoProto& output : graph.output()) read.insert(output.name());
    for (const std::string& name : names_made_in(graph)) read.erase(name);
    return read;
}

// Gives every name in `own` the prefix, in the nodes and in the graphs inside them (a graph inside may not
// use a name of the graph around it anew).
void rename(onnx::GraphProto& graph, const std::set<std::string>& own, const std::string& prefix) {
    const auto renamed = [&](std::string* name) {
        if (own.contains(*name)) *name = prefix + *name;
    };
    for (onnx::ValueInfoProto& info : *graph.mutable_input()) renamed(info.mutable_name());
    for (onnx::ValueInfoProto& info : *graph.mutable_output()) renamed(info.mutable_name());
    for (onnx::ValueInfoProto& info : *graph.mutable_value_info()) renamed(info.mutable_name());
    for (onnx::TensorProto& tensor : *graph.mutable_initializer()) renamed(tensor.mutable_name());
    for (onnx::SparseTensorProto& sparse : *graph.mutable_sparse_initializer())
        renamed(sparse.mutable_values()->mutable_name());
    for (onnx::NodeProto& node : *graph.mutable_node()) {
        for (std::string& name : *node.mutable_input()) renamed(&name);
        for (std::string& name : *node.mutable_output()) renamed(&name);
        for (onnx::AttributeProto& attribute : *node.mutable_attribute())
            if (attribute.has_g()) rename(*attribute.mutable_g(), own, prefix);
    }
}

}  // namespace

std::set<std::string> names_from_outside(const onnx::NodeProto& node) {
    std::set<std::string> names;
    for (const onnx::AttributeProto& attribute : node.attribute()) {
        if (attribute.has_g()) names.merge(names_read_outside(attribute.g()));
        for (const onnx::GraphProto& graph : attribute.graphs()) names.merge(names_read_outside(graph));
    }
    return names;
}

std::string weight_inside(const onnx::NodeProto& node) {
    static const std::set<std::string> products{"MatMul", "Gemm", "Conv", "ConvTranspose",
                                                "LSTM",   "GRU",  "RNN"};
    for (const onnx::AttributeProto& attribute : node.attribute()) {
        if (!attribute.has_g()) continue;
        for (const onnx::NodeProto& inner : attribute.g().node()) {
            const bool is_product = products.contains(inner.op_type());
            if (is_product) return inner.input_size() > 1 ? inner.input(1) : inner.op_type();
            if (std::string name = weight_inside(inner); !name.empty()) return name;
        }
    }
    return {};
}

onnx::GraphProto inlined_branch(const onnx::NodeProto& node, bool is_then, const std::string& prefix) {
    const char* wanted = is_then ? "then_branch" : "else_branch";
    for (const onnx::AttributeProto& attribute : node.attribute()) {
        if (attribute.name() != wanted || !attribute.has_g() ||
            attribute.g().output_size() != node.output_size())
            continue;
        onnx::GraphProto branch = attribute.g();
        rename(branch, names_made_in(branch), prefix);
        for (int i = 0; i < node.output_size(); ++i) {
            if (node.output(i).empty()) continue;
            onnx::NodeProto* result = branch.add_node();
            result->set_op_type("Identity");
            result->set_name(prefix + "result");
            result->add_input(branch.output(i).name());
            result->add_output(node.output(i));
        }
        return branch;
    }
    return {};
}

}  // namespace model
