// libonnx 1.12 (Debian 12) ends at operator set 17, 1.14 (Ubuntu 24.04) at 19, torch 2.15 exports 20 by
// default. Operators are defined anew where something changed, so a node of a newer set is inferred as the
// newest version that libonnx has, after what changed is said in that version's words.
#include "model/reader/onnx/library/onnx_inference.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <memory>

#include <fmt/core.h>
#include <onnx/checker.h>
#include <onnx/defs/schema.h>
#include <onnx/defs/shape_inference.h>
#include <onnx/onnx_pb.h>

#include "core/diagnostics.h"
#include "model/reader/onnx/library/onnx_tensor.h"

namespace model {

namespace {

constexpr std::int64_t newest_said_in_older_words = 23;

std::int64_t newest_of_library() {
    const auto& domains = onnx::OpSchemaRegistry::DomainToVersionRange::Instance().Map();
    const auto found = domains.find(onnx::ONNX_DOMAIN);
    return found == domains.end() ? 0 : found->second.second;
}

// A node as an operator's inference function sees it.
class NodeContext final : public onnx::InferenceContext {
public:
    NodeContext(const onnx::NodeProto& node, std::vector<const onnx::TypeProto*> inputs,
                std::vector<const onnx::TensorProto*> data)
        : node_(node), inputs_(std::move(inputs)), data_(std::move(data)), outputs_(node.output_size()) {}

    const onnx::AttributeProto* getAttribute(const std::string& name) const override {
        for (const onnx::AttributeProto& attribute : node_.attribute())
            if (attribute.name() == name) return &attribute;
        return nullptr;
    }
    std::size_t getNumInputs() const override { return inputs_.size(); }
    const onnx::TypeProto* getInputType(std::size_t i) const override {
        return i < inputs_.size() ? inputs_[i] : nullptr;
    }
    const onnx::TensorProto* getInputData(std::size_t i) const override {
        return i < data_.size() ? data_[i] : nullptr;
    }
    std::size_t getNumOutputs() const override { return outputs_.size(); }
    onnx::TypeProto* getOutputType(std::size_t i) override {
        if (i >= outputs_.size()) throw onnx::InferenceError("no such output");
        return &outputs_[i];
    }
    onnx::GraphInferencer* getGraphAttributeInferencer(const std::string&) override {
        throw onnx::InferenceError("graphs inside nodes are not inferred");
    }
    const onnx::SparseTensorProto* getInputSparseData(std::size_t) const override { return nullptr; }
    const onnx::TensorShapeProto* getSymbolicInput(std::size_t) const override { return nullptr; }

    std::vector<onnx::TypeProto> take_outputs() { return std::move(outputs_); }

private:
    const onnx::NodeProto& node_;
    std::vector<const onnx::TypeProto*> inputs_;
    std::vector<const onnx::TensorProto*> data_;
    std::vector<onnx::TypeProto> outputs_;
};

bool is_any_of(const std::string& text, std::initializer_list<const char*> words) {
    return std::any_of(words.begin(), words.end(), [&](const char* word) { return text == word; });
}

// Where kernel_shape is absent, inference takes it from the filter and indexes with it by the input's
// dimensions.
std::string unsound_filter(const OnnxGraph& graph, const OnnxNode& node) {
    if (!is_any_of(node.type, {"Conv", "ConvTranspose", "ConvInteger", "QLinearConv"})) return {};
    const int input = node.input(0), filter = node.input(node.type == "QLinearConv" ? 3 : 1);
    if (input < 0 || filter < 0) return {};
    const std::size_t rank = graph.value(input).shape.size(), filter_rank = graph.value(filter).shape.size();
    return rank == filter_rank ? ""
                               : fmt::format("its input has {} dimensions, its filter {}", rank, filter_rank);
}

// Checks the values that inference functions divide by or index with unchecked. Returns the fault, or an
// empty text.
std::string unsound_attribute(const OnnxGraph& graph, const OnnxNode& node) {
    for (const char* key : {"strides", "dilations", "kernel_shape", "group", "blocksize", "num_outputs",
                            "num_groups", "hidden_size"})
        for (std::int64_t x : node.integers(key))
            if (x < 1 || x > (1 << 24)) return fmt::format("{} = {} must be from 1 to 2^24", key, x);
    for (const char* key :
         {"pads", "output_padding", "output_shape", "split", "axis", "axes", "batch_axis", "time_axis"})
        for (std::int64_t x : node.integers(key))
            if (x < -(std::int64_t(1) << 32) || x > (std::int64_t(1) << 32))
                return fmt::format("{} = {} is out of range", key, x);
    const std::vector<std::int64_t> order = node.integers("perm");
    if (order.empty()) return {};
    std::vector<std::int64_t> sorted = order;
    std::sort(sorted.begin(), sorted.end());
    for (std::size_t i = 0; i < sorted.size(); ++i)
        if (sorted[i] != static_cast<std::int64_t>(i)) return "perm is no permutation";
    const int input = node.input(0);
    if (input >= 0 && graph.value(input).shape.size() != order.size())
        return fmt::format("perm has {} entries for {} dimensions", order.size(),
                           graph.value(input).shape.size());
    return {};
}

// A node in the words of libonnx's newest operator set.
struct OlderWords {
    onnx::NodeProto node;
    std::vector<const onnx::TypeProto*> types;
    std::vector<const onnx::TensorProto*> data;
    std::unique_ptr<onnx::TensorProto> own_data;  // what types and data may point to
    std::unique_ptr<onnx::TypeProto> own_type;
    bool is_like_first_input = false;  // newer than libonnx, and of the shape of what it reads

    void drop(const char* name) {
        auto* attributes = node.mutable_attribute();
        for (int i = attributes->size(); i-- > 0;)
            if (attributes->Get(i).name() == name) attributes->DeleteSubrange(i, 1);
    }
    void read_second(std::vector<double> values) {
        const std::vector<std::int64_t> shape{std::ssize(values)};
        own_data = std::make_unique<onnx::TensorProto>(tensor_of(values, shape, onnx::TensorProto::INT64));
        own_type = std::make_unique<onnx::TypeProto>();
        own_type->mutable_tensor_type()->set_elem_type(onnx::TensorProto::INT64);
        own_type->mutable_tensor_type()->mutable_shape()->add_dim()->set_dim_value(shape[0]);
        types.resize(2);
        data.resize(2);
        types[1] = own_type.get();
        data[1] = own_data.get();
        while (node.input_size() < 2) node.add_input();
        node.set_input(1, "split");
    }
};

// Split since 18: num_outputs pieces of equal extent, the last one smaller where it must be.
void say_split(const OnnxGraph& graph, const OnnxNode& node, OlderWords& words) {
    words.drop("num_outputs");
    if (node.input(1) >= 0 || node.input(0) < 0) return;
    const std::vector<std::int64_t>& shape = graph.value(node.input(0)).shape;
    const std::int64_t rank = shape.size(), pieces = node.outputs.size();
    std::int64_t axis = node.integer("axis", 0);
    if (axis < 0) axis += rank;
    if (axis < 0 || axis >= rank || pieces < 1) return;
    const std::int64_t extent = shape[axis], piece = (extent + pieces - 1) / pieces;
    if (extent % pieces == 0 || extent <= piece * (pieces - 1)) return;
    std::vector<double> extents(pieces - 1, piece);
    extents.push_back(extent - piece * (pieces - 1));
    words.read_second(std::move(extents));
}

// Reductions since 18 read their axes as an input, ReduceSum since 13.
void say_reduction(const OnnxGraph& graph, const OnnxNode& node, OlderWords& words) {
    const bool is_noop = node.integer("noop_with_empty_axes", 0) != 0;
    words.drop("noop_with_empty_axes");
    const int axes = node.input(1);
    const bool is_constant = axes >= 0 && graph.value(axes).data.has_value();
    if (axes >= 0 && !is_constant) return;  // refused by its number of inputs
    if (is_noop && (axes < 0 || graph.value(axes).data->empty())) words.is_like_first_input = true;
    if (node.inputs.size() > 1) words.node.mutable_input()->DeleteSubrange(1, words.node.input_size() - 1);
    words.types.resize(std::min<std::size_t>(words.types.size(), 1));
    words.data.resize(words.types.size());
    if (axes < 0 || graph.value(axes).data->empty()) return;
    onnx::AttributeProto* attribute = words.node.add_attribute();
    attribute->set_name("axes");
    attribute->set_type(onnx::AttributeProto::INTS);
    for (double x : *graph.value(axes).data)
        attribute->add_ints(static_cast<std::int64_t>(std::clamp(x, -1e9, 1e9)));
}

// `schema`: the newest that libonnx has of the operator, or null. What it knows is left as it is.
OlderWords in_older_words(const OnnxGraph& graph, const OnnxNode& node, const onnx::NodeProto& proto,
                          const onnx::OpSchema* schema, std::vector<const onnx::TypeProto*> types,
                          std::vector<const onnx::TensorProto*> data) {
    const auto knows = [&](const char* attribute) {
        return schema && schema->attributes().contains(attribute);
    };
    OlderWords words;
    words.node = proto;
    words.types = std::move(types);
    words.data = std::move(data);
    const std::string& type = node.type;
    if (type == "Split" && !knows("num_outputs")) say_split(graph, node, words);
    else if (type.starts_with("Reduce") && knows("axes")) say_reduction(graph, node, words);
    else if (type == "Cast" && !knows("saturate")) words.drop("saturate");  // of fp8 alone
    else if (type == "Resize" && !knows("antialias")) words.drop("antialias");
    else if (type == "AveragePool" && !knows("dilations") && node.attributes.contains("dilations")) {
        const std::vector<std::int64_t> dilations = node.integers("dilations");
        if (std::all_of(dilations.begin(), dilations.end(), [](std::int64_t d) { return d == 1; }))
            words.drop("dilations");
    } else if (is_any_of(type, {"Gelu", "GroupNormalization", "RMSNormalization"})) {
        words.is_like_first_input = true;
    }
    return words;
}

}  // namespace

std::int64_t newest_onnx_opset() { return std::max(newest_of_library(), newest_said_in_older_words); }

OnnxInference infer_outputs(const OnnxGraph& graph, const OnnxNode& node, const onnx::NodeProto& proto,
                            std::int64_t opset, std::vector<const onnx::TypeProto*> types,
                            std::vector<const onnx::TensorProto*> data) {
    OnnxInference result;
    const bool is_standard = node.domain.empty(), is_newer = is_standard && opset > newest_of_library();
    // These two are functions since operator set 12, and libonnx 1.12 infers nothing of functions: they have
    // the shapes of what they are made of.
    const std::string name = !is_standard                    ? node.type
                             : node.type == "GreaterOrEqual" ? "Greater"
                             : node.type == "LessOrEqual"    ? "Less"
                                                             : node.type;
    const int version =
        static_cast<int>(is_newer ? newest_of_library() : std::min<std::int64_t>(opset, 1 << 20));
    const onnx::OpSchema* schema =
        opset < 1 ? nullptr : onnx::OpSchemaRegistry::Schema(name, version, node.domain);
    // torch's fall-back to set 17 leaves num_outputs where it is.
    const bool is_said_anew = is_newer || (is_standard && node.type == "Split" && opset < 18 &&
                                           node.attributes.contains("num_outputs"));
    OlderWords words;
    if (is_said_anew) words = in_older_words(graph, node, proto, schema, std::move(types), std::move(data));
    result.is_known = schema || words.is_like_first_input;
    if (!result.is_known) return result;
    result.problem = unsound_attribute(graph, node);
    if (result.problem.empty()) result.problem = unsound_filter(graph, node);
    if (!result.problem.empty()) return result;
    if (words.is_like_first_input) {
        result.types.resize(node.outputs.size());
        if (!words.types.empty() && words.types[0] && !result.types.empty())
            result.types[0] = *words.types[0];
        return result;
    }
    const onnx::NodeProto& said = is_said_anew ? words.node : proto;
    NodeContext context(said, std::move(is_said_anew ? words.types : types),
                        std::move(is_said_anew ? words.data : data));
    try {
        schema->Verify(said);
        schema->GetTypeAndShapeInferenceFunction()(context);
    } catch (const std::exception& problem) {
        // The first line tells; the rest is the library's context.
        std::string text = problem.what();
        text.resize(std::min(text.find('\n'), text.size()));
        result.problem = core::in_quotes(text, 300);
        return result;
    }
    result.types = context.take_outputs();
    return result;
}

}  // namespace model
