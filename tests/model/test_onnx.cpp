// ONNX graphs as models. Graphs of these tests are written through libonnx's protobuf API and read back
// through load_model.
#include "core/diagnostics.h"
#include "core/index/integers.h"
#include "tests/model/model_from_text.h"

#ifdef HAS_ONNX

#include <unistd.h>
#include <filesystem>
#include <fstream>

#include <onnx/onnx_pb.h>

#include "model/operators/cost.h"

namespace {

namespace fs = std::filesystem;

// A temporary .onnx file, gone with the test.
class File {
public:
    explicit File(const std::string& bytes) {
        static int count = 0;
        path_ = (fs::temp_directory_path() /
                 ("test_onnx_" + std::to_string(::getpid()) + "_" + std::to_string(count++) + ".onnx"))
                    .string();
        std::ofstream(path_, std::ios::binary) << bytes;
    }
    ~File() { fs::remove(path_); }
    const std::string& path() const { return path_; }

private:
    std::string path_;
};

struct Loaded {
    std::optional<model::ModelGraph> graph;
    std::string errors;
};

Loaded load(const std::string& bytes, const model::LoadOptions& options = {}) {
    const File file(bytes);
    core::Diagnostics diagnostics;
    Loaded result;
    result.graph = model::load_model(file.path(), options, diagnostics);
    result.errors = core::format(diagnostics);
    REQUIRE(result.graph.has_value() != diagnostics.has_errors());
    return result;
}

bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

// Writes graphs node by node; names of tensors are the handles.
class Writer {
public:
    explicit Writer(std::int64_t opset = 13) {
        model.set_ir_version(8);
        model.add_opset_import()->set_version(opset);
        model.mutable_graph()->set_name("test");
    }
    // Extents below zero are symbolic: -1 "batch", -2 "sequence".
    std::string input(const std::string& name, const std::vector<std::int64_t>& shape,
                      int type = onnx::TensorProto::FLOAT) {
        declare(*model.mutable_graph()->add_input(), name, shape, type);
        return name;
    }
    void output(const std::string& name) {
        declare(*model.mutable_graph()->add_output(), name, {}, onnx::TensorProto::FLOAT);
    }
    // A weight whose payload lies in a file that does not exist.
    std::string weight(const std::string& name, const std::vector<std::int64_t>& shape) {
        onnx::TensorProto* tensor = model.mutable_graph()->add_initializer();
        tensor->set_name(name);
        tensor->set_data_type(onnx::TensorProto::FLOAT);
        for (std::int64_t extent : shape) tensor->add_dims(extent);
        tensor->set_data_location(onnx::TensorProto::EXTERNAL);
        auto* entry = tensor->add_external_data();
        entry->set_key("location");
        entry->set_value("absent.bin");
        return name;
    }
    std::string scalar(const std::string& name, float value) {
        onnx::TensorProto* tensor = model.mutable_graph()->add_initializer();
        tensor->set_name(name);
        tensor->set_data_type(onnx::TensorProto::FLOAT);
        tensor->add_float_data(value);
        return name;
    }
    std::string integers(const std::string& name, const std::vector<std::int64_t>& values) {
        onnx::TensorProto* tensor = model.mutable_graph()->add_initializer();
        tensor->set_name(name);
        tensor->set_data_type(onnx::TensorProto::INT64);
        tensor->add_dims(static_cast<std::int64_t>(values.size()));
        for (std::int64_t value : values) tensor->add_int64_data(value);
        return name;
    }
    onnx::NodeProto& node(const std::string& type, const std::vector<std::string>& inputs,
                          const std::string& output) {
        onnx::NodeProto* added = model.mutable_graph()->add_node();
        added->set_op_type(type);
        added->set_name(output + "_node");
        for (const std::string& name : inputs) added->add_input(name);
        added->add_output(output);
        return *added;
    }
    std::string make(const std::string& type, const std::vector<std::string>& inputs,
                     const std::string& output) {
        node(type, inputs, output);
        return output;
    }
    static void set(onnx::NodeProto& node, const std::string& key, const std::vector<std::int64_t>& values) {
        onnx::AttributeProto* attribute = node.add_attribute();
        attribute->set_name(key);
        attribute->set_type(onnx::AttributeProto::INTS);
        for (std::int64_t value : values) attribute->add_ints(value);
    }
    // A graph inside the node, as the branches of If and the bodies of loops are.
    static onnx::GraphProto& graph_inside(onnx::NodeProto& node, const std::string& key) {
        onnx::AttributeProto* attribute = node.add_attribute();
        attribute->set_name(key);
        attribute->set_type(onnx::AttributeProto::GRAPH);
        attribute->mutable_g()->set_name(key);
        return *attribute->mutable_g();
    }
    static void set(onnx::NodeProto& node, const std::string& key, std::int64_t value) {
        onnx::AttributeProto* attribute = node.add_attribute();
        attribute->set_name(key);
        attribute->set_type(onnx::AttributeProto::INT);
        attribute->set_i(value);
    }
    static void set_text(onnx::NodeProto& node, const std::string& key, const std::string& text) {
        onnx::AttributeProto* attribute = node.add_attribute();
        attribute->set_name(key);
        attribute->set_type(onnx::AttributeProto::STRING);
        attribute->set_s(text);
    }
    std::string bytes() const { return model.SerializeAsString(); }

    onnx::ModelProto model;

private:
    static void declare(onnx::ValueInfoProto& info, const std::string& name,
                        const std::vector<std::int64_t>& shape, int type) {
        info.set_name(name);
        info.mutable_type()->mutable_tensor_type()->set_elem_type(type);
        if (shape.empty()) return;
        for (std::int64_t extent : shape) {
            auto* dimension = info.mutable_type()->mutable_tensor_type()->mutable_shape()->add_dim();
            if (extent >= 0) dimension->set_dim_value(extent);
            else dimension->set_dim_param(extent == -1 ? "batch" : "sequence");
        }
    }
};

// A light model of the shared collection, or nothing where it is absent.
std::optional<model::ModelGraph> shared_graph(const std::string& name) {
    const std::string path = std::string(SHARED_DIR) + "/reference/partitioning/graphs/onnx/" + name;
    if (!fs::exists(path)) {
        WARN("skipped: " << path << " is not there");
        return std::nullopt;
    }
    core::Diagnostics diagnostics;
    auto graph = model::load_model(path, {}, diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(graph);
    return graph;
}

// A pre-norm GPT as torch.onnx writes it at opset 13: layer norms and GELU taken apart, heads by Reshape and
// Transpose, shapes computed from Shape.
std::string gpt(std::int64_t layers, std::int64_t hidden, std::int64_t heads, std::int64_t vocabulary,
                std::int64_t positions) {
    Writer w;
    const std::string ids = w.input("input_ids", {-1, -2}, onnx::TensorProto::INT64);
    w.weight("wte", {vocabulary, hidden});
    w.weight("wpe", {positions, hidden});
    w.scalar("half", 0.5F);
    w.scalar("one", 1.0F);
    w.scalar("two", 2.0F);
    w.scalar("root2", 1.41421356F);
    w.scalar("epsilon", 1e-5F);
    w.scalar("root_d", 8.0F);
    w.integers("i0", {0});
    w.integers("i1", {1});
    w.integers("heads_shape", {0, 0, heads, hidden / heads});
    w.integers("merged_shape", {0, 0, hidden});
    w.make("Shape", {ids}, "ids_shape");
    w.make("Gather", {"ids_shape", "i1"}, "length");
    w.make("Slice", {"wpe", "i0", "length", "i0"}, "positions_used");
    w.make("Gather", {"wte", ids}, "embedded");
    std::string x = w.make("Add", {"embedded", "positions_used"}, "x0");
    const auto norm = [&](const std::string& name, const std::string& in) {
        Writer::set(w.node("ReduceMean", {in}, name + ".mean"), "axes", std::vector<std::int64_t>{-1});
        w.make("Sub", {in, name + ".mean"}, name + ".difference");
        w.make("Pow", {name + ".difference", "two"}, name + ".square");
        Writer::set(w.node("ReduceMean", {name + ".square"}, name + ".variance"), "axes",
                    std::vector<std::int64_t>{-1});
        w.make("Add", {name + ".variance", "epsilon"}, name + ".sum");
        w.make("Sqrt", {name + ".sum"}, name + ".root");
        w.make("Div", {name + ".difference", name + ".root"}, name + ".unit");
        w.make("Mul", {name + ".unit", w.weight(name + ".scale", {hidden})}, name + ".scaled");
        return w.make("Add", {name + ".scaled", w.weight(name + ".shift", {hidden})}, name);
    };
    const auto linear = [&](const std::string& name, const std::string& in, std::int64_t from,
                            std::int64_t to) {
        w.make("MatMul", {in, w.weight(name + ".weight", {from, to})}, name + ".product");
        return w.make("Add", {w.weight(name + ".bias", {to}), name + ".product"}, name);
    };
    for (std::int64_t layer = 0; layer < layers; ++layer) {
        const std::string p = "h" + std::to_string(layer) + ".";
        const std::string qkv = linear(p + "qkv", norm(p + "norm1", x), hidden, 3 * hidden);
        onnx::NodeProto& split = w.node("Split", {qkv}, p + "q");
        split.add_output(p + "k");
        split.add_output(p + "v");
        Writer::set(split, "axis", 2);
        for (const char* part : {"q", "k", "v"}) {
            w.make("Reshape", {p + part, "heads_shape"}, p + part + ".heads");
            Writer::set(w.node("Transpose", {p + part + ".heads"}, p + part + ".moved"), "perm",
                        std::vector<std::int64_t>{0, 2, part[0] == 'k' ? 3 : 1, part[0] == 'k' ? 1 : 3});
        }
        w.make("MatMul", {p + "q.moved", p + "k.moved"}, p + "scores");
        w.make("Div", {p + "scores", "root_d"}, p + "scaled");
        Writer::set(w.node("Softmax", {p + "scaled"}, p + "probabilities"), "axis", -1);
        w.make("MatMul", {p + "probabilities", p + "v.moved"}, p + "context");
        Writer::set(w.node("Transpose", {p + "context"}, p + "context.moved"), "perm",
                    std::vector<std::int64_t>{0, 2, 1, 3});
        w.make("Reshape", {p + "context.moved", "merged_shape"}, p + "merged");
        const std::string attended =
            w.make("Add", {linear(p + "output", p + "merged", hidden, hidden), x}, p + "attended");
        const std::string up = linear(p + "up", norm(p + "norm2", attended), hidden, 4 * hidden);
        w.make("Div", {up, "root2"}, p + "e1");
        w.make("Erf", {p + "e1"}, p + "e2");
        w.make("Add", {p + "e2", "one"}, p + "e3");
        w.make("Mul", {up, p + "e3"}, p + "e4");
        w.make("Mul", {p + "e4", "half"}, p + "gelu");
        x = w.make("Add", {linear(p + "down", p + "gelu", 4 * hidden, hidden), attended}, p + "out");
    }
    Writer::set(w.node("Transpose", {"wte"}, "wte_transposed"), "perm", std::vector<std::int64_t>{1, 0});
    w.make("MatMul", {norm("final", x), "wte_transposed"}, "logits");
    w.output("logits");
    return w.bytes();
}

// One convolution with this kernel and stride, to be broken in different ways.
Writer small_network() {
    Writer w;
    w.input("images", {-1, 3, 8, 8});
    onnx::NodeProto& conv = w.node("Conv", {"images", w.weight("filter", {4, 3, 3, 3})}, "maps");
    Writer::set(conv, "kernel_shape", std::vector<std::int64_t>{3, 3});
    w.make("Relu", {"maps"}, "active");
    w.make("GlobalAveragePool", {"active"}, "pooled");
    w.make("Flatten", {"pooled"}, "features");
    w.make("Gemm", {"features", w.weight("head", {4, 10}), w.weight("head_bias", {10})}, "scores");
    w.output("scores");
    return w;
}

}  // namespace

TEST_CASE("ONNX graphs of published networks have the published numbers of parameters") {
    struct Row {
        const char* file;
        std::int64_t parameters;
    };
    // torchvision's pages: ResNet-18 11,689,512; ResNet-50 25,557,032; VGG-19 143,667,240; DenseNet-121
    // 7,978,856; SqueezeNet 1.1 1,235,496. Caffe's models: AlexNet with two groups 60,965,224; GoogLeNet
    // without its auxiliary heads 6,998,552.
    for (const Row& row :
         {Row{"nnlqp/resnet18-v1-7-no-weight.onnx", 11689512}, Row{"light/light_resnet50.onnx", 25557032},
          Row{"light/light_vgg19.onnx", 143667240}, Row{"light/light_densenet121.onnx", 7978856},
          Row{"light/light_squeezenet.onnx", 1235496}, Row{"light/light_bvlc_alexnet.onnx", 60965224},
          Row{"light/light_inception_v1.onnx", 6998552}}) {
        INFO(row.file);
        if (const auto graph = shared_graph(row.file))
            CHECK(model::parameter_count(*graph) == row.parameters);
    }
}

TEST_CASE("ONNX graphs of published networks have the published multiply-adds") {
    struct Row {
        const char* file;
        double giga;
    };
    // torchvision's pages, GFLOPS (multiply-adds): ResNet-50 4.09, VGG-19 19.63, DenseNet-121 2.83.
    for (const Row& row : {Row{"light/light_resnet50.onnx", 4.09}, Row{"light/light_vgg19.onnx", 19.63},
                           Row{"light/light_densenet121.onnx", 2.83}}) {
        INFO(row.file);
        if (const auto graph = shared_graph(row.file))
            CHECK(model::forward_flops_per_sample(*graph).value / 2e9 == Approx(row.giga).epsilon(0.01));
    }
}

TEST_CASE("Every light ONNX model is read, cut into units, and crossed by one activation at each cut") {
    for (const char* name : {"bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50",
                             "shufflenet", "squeezenet", "vgg19", "zfnet512"}) {
        INFO(name);
        const auto graph = shared_graph(std::string("light/light_") + name + ".onnx");
        if (!graph) continue;
        CHECK(graph->units.size() >= 8);
        CHECK(graph->image_size >= 224);
        for (const model::Unit& unit : graph->units)
            if (unit.operators.begin > 0)
                CHECK(model::tensors_crossing(*graph, unit.operators.begin).size() == 1);
    }
}

TEST_CASE("ResNet-50 from ONNX costs what our own ResNet-50 costs") {
    const auto graph = shared_graph("light/light_resnet50.onnx");
    if (!graph) return;
    core::Diagnostics diagnostics;
    const auto own = model::load_model("resnet50", {}, diagnostics);
    REQUIRE(own);
    CHECK(model::parameter_count(*graph) == model::parameter_count(*own));
    CHECK(model::forward_flops_per_sample(*graph).value ==
          Approx(model::forward_flops_per_sample(*own).value).epsilon(1e-9));
}

TEST_CASE("A GPT exported node by node equals the built one in parameters and FLOPs") {
    model::LoadOptions options;
    options.sequence_length = 24;
    const Loaded loaded = load(gpt(3, 64, 4, 100, 32), options);
    INFO(loaded.errors);
    REQUIRE(loaded.graph);
    const model::ModelGraph& graph = *loaded.graph;
    const model::ModelGraph own = graph_of(
        "family = \"gpt\"\nlayers = 3\nhidden = 64\nheads = 4\nvocabulary = 100\nsequence_length = "
        "24\nmax_positions = 32\ndropout = 0.0\n");
    CHECK(model::parameter_count(graph) == model::parameter_count(own));
    CHECK(model::forward_flops_per_sample(graph).value ==
          Approx(model::forward_flops_per_sample(own).value).epsilon(1e-12));
    CHECK(graph.tokens_per_sample == 24);
    CHECK(graph.vocabulary == 100);
    // Backward of a product is two products: three times forward in all, less the products into nothing (none
    // here).
    const model::OperatorRange all{0, static_cast<std::int32_t>(graph.operators.size())};
    const double forward = model::phase_cost(graph, all, model::Phase::forward, {}).flops.value;
    const double backward = model::phase_cost(graph, all, model::Phase::backward_input, {}).flops.value +
                            model::phase_cost(graph, all, model::Phase::backward_weight, {}).flops.value;
    CHECK(backward == Approx(2 * forward).epsilon(1e-12));
    // The token table is read by the embedding and, transposed, by the head.
    const auto tied = model::tied_parameters(graph);
    REQUIRE(tied.size() == 1);
    CHECK(graph.parameter(tied[0].parameter).name == "wte");
    std::map<model::OperatorKind, int> kinds;
    for (const model::Operator& op : graph.operators) ++kinds[op.kind];
    CHECK(kinds[model::OperatorKind::layer_norm] == 7);
    CHECK(kinds[model::OperatorKind::gelu] == 3);
    CHECK(kinds[model::OperatorKind::linear] == 13);
    CHECK(kinds[model::OperatorKind::matrix_product] == 6);
    // Cut after each residual addition and nowhere inside a layer's branches.
    for (const model::Unit& unit : graph.units)
        if (unit.operators.begin > 0) CHECK(model::tensors_crossing(graph, unit.operators.begin).size() == 1);
    CHECK(graph.units.size() >= 4);
}

TEST_CASE("A recurrent layer is a projection of all tokens and a product a step and direction") {
    const auto [type, gates] = GENERATE(table<std::string, int>({{"LSTM", 4}, {"GRU", 3}, {"RNN", 1}}));
    const int directions = GENERATE(1, 2);
    const int steps = 12, width = 20, hidden = 8, classes = 10;
    Writer w(14);
    w.input("samples_first", {1, steps, width});  // as torch writes batch_first = True
    Writer::set(w.node("Transpose", {"samples_first"}, "x"), "perm", std::vector<std::int64_t>{1, 0, 2});
    w.weight("w", {directions, gates * hidden, width});
    w.weight("r", {directions, gates * hidden, hidden});
    w.weight("b", {directions, 2 * gates * hidden});
    w.weight("head", {hidden, classes});
    onnx::NodeProto& layer = w.node(type, {"x", "w", "r", "b"}, "y");
    Writer::set(layer, "hidden_size", hidden);
    if (directions == 2) Writer::set_text(layer, "direction", "bidirectional");
    w.make("MatMul", {"y", "head"}, "logits");
    w.output("logits");
    const Loaded loaded = load(w.bytes());
    INFO(type << " " << directions << "\n" << loaded.errors);
    REQUIRE(loaded.graph);
    CHECK(model::parameter_count(*loaded.graph) ==
          directions * gates * hidden * (width + hidden + 2) + hidden * classes);
    // Two operations for a multiply-add of each weight, but biases, in each step.
    CHECK(model::forward_flops_per_sample(*loaded.graph).value ==
          2.0 * steps * directions * (gates * hidden * (width + hidden) + hidden * classes));
}

TEST_CASE("A recurrent layer whose first dimension is taken for the batch is refused with what to export") {
    Writer w(14);
    w.input("x", {12, 1, 64});
    w.weight("w", {1, 256, 64});
    w.weight("r", {1, 256, 64});
    Writer::set(w.node("LSTM", {"x", "w", "r"}, "y"), "hidden_size", 64);
    w.output("y");
    const Loaded loaded = load(w.bytes());
    CHECK_FALSE(loaded.graph);
    CHECK(contains(loaded.errors, "y_node"));
    CHECK(contains(loaded.errors, "batch_first"));
}

TEST_CASE("Samples share the weights of a recurrence: more of them read these no more often") {
    Writer w(14);
    w.input("samples_first", {1, 12, 64});
    Writer::set(w.node("Transpose", {"samples_first"}, "x"), "perm", std::vector<std::int64_t>{1, 0, 2});
    w.weight("w", {1, 256, 64});
    w.weight("r", {1, 256, 64});
    Writer::set(w.node("LSTM", {"x", "w", "r"}, "y"), "hidden_size", 64);
    w.output("y");
    const Loaded loaded = load(w.bytes());
    INFO(loaded.errors);
    REQUIRE(loaded.graph);
    const auto read = [&](int samples) {
        model::CostContext context;
        context.micro_batch = samples;
        for (const std::int32_t o : core::indices(loaded.graph->operators))
            if (loaded.graph->operators[o].kind == model::OperatorKind::matrix_product)
                return model::kernels(*loaded.graph, model::OperatorId(o), model::Phase::forward, context)
                    .front();
        throw std::runtime_error("no product");
    };
    CHECK(read(8).batch == 12);
    CHECK(read(8).m == 8);
    CHECK(read(8).flops.value == 8 * read(1).flops.value);
    CHECK(read(8).read.value < 8 * read(1).read.value / 4);
}

TEST_CASE("Pads that the exporter computes are folded, and scattered values are written") {
    // As torch writes pad(x, (1, 2, 1, 2)): rows of (before, after) from the last dimension, turned over.
    Writer w(17);
    w.input("x", {1, 3, 30, 30});
    w.integers("given", {1, 2, 1, 2, 0, 0, 0, 0});
    w.integers("rows", {-1, 2});
    w.integers("minus_one", {-1});
    w.integers("first", {0});
    w.integers("end", {-9223372036854775807});
    w.make("Reshape", {"given", "rows"}, "pairs");
    w.make("Slice", {"pairs", "minus_one", "end", "first", "minus_one"}, "reversed");
    onnx::NodeProto& turn = w.node("Transpose", {"reversed"}, "turned");
    Writer::set(turn, "perm", std::vector<std::int64_t>{1, 0});
    w.make("Reshape", {"turned", "minus_one"}, "pads");
    w.make("Pad", {"x", "pads"}, "padded");
    w.weight("filter", {4, 3, 3, 3});
    w.make("Conv", {"padded", "filter"}, "features");
    w.output("features");
    const Loaded loaded = load(w.bytes());
    INFO(loaded.errors);
    REQUIRE(loaded.graph);
    // 33 x 33 padded, so 31 x 31 outputs of 4 filters with 27 weights.
    CHECK(model::forward_flops_per_sample(*loaded.graph).value == 2.0 * 31 * 31 * 4 * 27);

    Writer scattering(16);
    scattering.input("x", {1, 6, 16});
    scattering.weight("w", {16, 16});
    scattering.make("MatMul", {"x", "w"}, "y");
    scattering.integers("where", {0, 2});
    scattering.integers("one", {1, 1, 2});
    scattering.make("Reshape", {"where", "one"}, "indices");
    scattering.weight("updates", {1, 1, 16});
    scattering.make("ScatterND", {"y", "indices", "updates"}, "written");
    scattering.output("written");
    const Loaded scattered = load(scattering.bytes());
    INFO(scattered.errors);
    REQUIRE(scattered.graph);
    CHECK(model::parameter_count(*scattered.graph) == 16 * 16 + 16);
}

TEST_CASE("A fixed batch is divided out") {
    Writer w = small_network();
    const Loaded one = load(w.bytes());
    INFO(one.errors);
    REQUIRE(one.graph);
    w.model.mutable_graph()
        ->mutable_input(0)
        ->mutable_type()
        ->mutable_tensor_type()
        ->mutable_shape()
        ->mutable_dim(0)
        ->set_dim_value(6);
    const Loaded six = load(w.bytes());
    INFO(six.errors);
    REQUIRE(six.graph);
    CHECK(model::forward_flops_per_sample(*six.graph).value ==
          model::forward_flops_per_sample(*one.graph).value);
    // 2 x 6 x 6 outputs x 4 filters x 27 + 2 x 4 x 10
    CHECK(model::forward_flops_per_sample(*one.graph).value == 2.0 * 36 * 4 * 27 + 80);
    CHECK(model::parameter_count(*one.graph) == 4 * 27 + 40 + 10);
}

TEST_CASE("Operators of sets beyond libonnx's are read as what they say in older words") {
    // Set 18 gives Split a number of outputs and reductions their axes as an input, 20 has Gelu, 23
    // RMSNormalization; torch's default exporter writes all but the last.
    Writer w;
    w.model.mutable_opset_import(0)->set_version(23);
    w.input("tokens", {1, 6, 7});
    onnx::NodeProto& split = w.node("Split", {"tokens"}, "left");
    split.add_output("right");
    Writer::set(split, "axis", -1);
    Writer::set(split, "num_outputs", 2);
    w.make("MatMul", {"left", w.weight("a", {4, 8})}, "from_left");  // 7 in two: 4 and 3
    w.make("MatMul", {"right", w.weight("b", {3, 8})}, "from_right");
    w.make("Add", {"from_left", "from_right"}, "sum");
    w.make("Gelu", {"sum"}, "active");
    w.make("RMSNormalization", {"active", w.weight("scale", {8})}, "norm");
    w.make("Transpose", {"norm"}, "turned");
    w.model.mutable_graph()->mutable_node(w.model.graph().node_size() - 1)->clear_attribute();
    Writer::set(*w.model.mutable_graph()->mutable_node(w.model.graph().node_size() - 1), "perm",
                std::vector<std::int64_t>{0, 2, 1});
    // Scores of 8 x 6 by 6 x 8 with a stored mask, which is not trained.
    w.make("MatMul", {"turned", "norm"}, "scores");
    w.make("Add", {"scores", w.weight("mask", {1, 8, 8})}, "masked");
    w.make("Softmax", {"masked"}, "attention");
    w.integers("last", {-1});
    onnx::NodeProto& reduced = w.node("ReduceMax", {"attention", "last"}, "largest");
    Writer::set(reduced, "keepdims", 0);
    w.make("MatMul", {"largest", w.weight("head", {8, 5})}, "scored");
    w.output("scored");
    const Loaded loaded = load(w.bytes());
    INFO(loaded.errors);
    REQUIRE(loaded.graph);
    CHECK(model::parameter_count(*loaded.graph) == 4 * 8 + 3 * 8 + 8 + 8 * 5);
    // 6 tokens by 4 x 8 and by 3 x 8; 8 x 6 x 8; one row of 8 by 5
    CHECK(model::forward_flops_per_sample(*loaded.graph).value ==
          2.0 * 6 * (4 + 3) * 8 + 2.0 * 8 * 6 * 8 + 2.0 * 8 * 5);
    w.model.mutable_opset_import(0)->set_version(99);
    CHECK(load(w.bytes()).errors.find("operator set 99 is not supported") != std::string::npos);
}

TEST_CASE("Grouped convolutions count one group's inputs per output") {
    Writer w;
    w.input("images", {-1, 8, 10, 10});
    Writer::set(w.node("Conv", {"images", w.weight("filter", {8, 1, 3, 3})}, "maps"), "group", 8);
    w.output("maps");
    const Loaded loaded = load(w.bytes());
    INFO(loaded.errors);
    REQUIRE(loaded.graph);
    CHECK(model::forward_flops_per_sample(*loaded.graph).value == 2.0 * 64 * 8 * 9);
}

TEST_CASE("Convolutions that all have biases, without norms, are told to be folded ones perhaps") {
    const auto remarks = [](int convolutions, bool has_biases, bool has_norm) {
        Writer w;
        std::string x = w.input("images", {-1, 8, 10, 10});
        for (int i = 0; i < convolutions; ++i) {
            const std::string index = std::to_string(i);
            std::vector<std::string> inputs{x, w.weight("filter" + index, {8, 8, 1, 1})};
            if (has_biases) inputs.push_back(w.weight("bias" + index, {8}));
            x = w.make("Conv", inputs, "maps" + index);
        }
        if (has_norm)
            x = w.make("BatchNormalization",
                       {x, w.weight("scale", {8}), w.weight("shift", {8}), w.weight("mean", {8}),
                        w.weight("variance", {8})},
                       "normed");
        w.output(x);
        const Loaded loaded = load(w.bytes());
        INFO(loaded.errors);
        REQUIRE(loaded.graph);
        std::string all;
        for (const std::string& one : loaded.graph->assumptions) all += one + "\n";
        return all;
    };
    CHECK(contains(remarks(5, true, false), "all 5 convolutions have biases"));
    CHECK(contains(remarks(5, true, false), "TrainingMode.TRAINING"));
    CHECK(!contains(remarks(5, false, false), "have biases"));
    CHECK(!contains(remarks(5, true, true), "have biases"));
    CHECK(!contains(remarks(1, true, false), "have biases"));
}

TEST_CASE("Stored scores of every head are told to be a folded table perhaps") {
    const auto remarks = [](const std::vector<std::int64_t>& shape, bool has_softmax) {
        Writer w;
        w.input("scores", {-1, 3, 7, 7});
        const std::string sum = w.make("Add", {"scores", w.weight("positions", shape)}, "sum");
        const std::string last = has_softmax ? w.make("Softmax", {sum}, "probabilities") : sum;
        w.output(w.make("MatMul", {last, w.weight("head", {7, 5})}, "logits"));
        const Loaded loaded = load(w.bytes());
        INFO(loaded.errors);
        REQUIRE(loaded.graph);
        std::string all;
        for (const std::string& one : loaded.graph->assumptions) all += one + "\n";
        return all;
    };
    CHECK(contains(remarks({1, 3, 7, 7}, true), "147 stored scores of heads count as parameters"));
    CHECK(!contains(remarks({1, 3, 7, 7}, false), "stored scores of heads"));
    // One matrix for all heads is a mask.
    CHECK(contains(remarks({1, 1, 7, 7}, true), "are masks and not trained"));
}

TEST_CASE("What is wrong with an ONNX file is told with the node") {
    const std::string good = small_network().bytes();
    SECTION("a truncated file") {
        for (std::size_t size : {std::size_t(1), good.size() / 2, good.size() - 1}) {
            const Loaded loaded = load(good.substr(0, size));
            CHECK_FALSE(loaded.graph);
            CHECK_FALSE(loaded.errors.empty());
        }
        CHECK(contains(load(good.substr(0, good.size() - 1)).errors, "truncated"));
    }
    SECTION("noise") { CHECK(contains(load(std::string(1000, '\x7f')).errors, "not a sound ONNX file")); }
    SECTION("nothing") { CHECK(contains(load("").errors, "empty")); }
    SECTION("an operator set of the future") {
        Writer w = small_network();
        w.model.mutable_opset_import(0)->set_version(99);
        CHECK(contains(load(w.bytes()).errors, "operator set 99"));
    }
    SECTION("a cycle") {
        Writer w = small_network();
        w.model.mutable_graph()->mutable_node(0)->set_input(0, "active");
        const std::string errors = load(w.bytes()).errors;
        CHECK(contains(errors, "cyclic"));
        CHECK(contains(errors, "maps_node"));
        CHECK(contains(errors, "active_node"));
    }
    SECTION("an unknown operator, and how it is priced when allowed") {
        Writer w = small_network();
        w.model.mutable_graph()->mutable_node(1)->set_op_type("Frobnicate");
        const std::string errors = load(w.bytes()).errors;
        CHECK(contains(errors, "'Frobnicate'"));
        CHECK(contains(errors, "active_node"));
        model::LoadOptions options;
        options.allow_unknown = true;
        const Loaded loaded = load(w.bytes(), options);
        INFO(loaded.errors);
        REQUIRE(loaded.graph);
        for (std::size_t i = 0; i < loaded.graph->operators.size(); ++i) {
            if (loaded.graph->operators[i].kind != model::OperatorKind::unknown) continue;
            const auto kernels = model::kernels(
                *loaded.graph, model::OperatorId(static_cast<std::int32_t>(i)), model::Phase::forward, {});
            REQUIRE(kernels.size() == 1);
            CHECK(kernels[0].read.value == 4 * 36 * 2);  // 4 maps of 6 x 6 in bf16
            CHECK(kernels[0].written.value == 4 * 36 * 2);
        }
    }
    SECTION("an extent that nobody told") {
        const std::string errors = load(gpt(1, 64, 4, 100, 32)).errors;
        CHECK(contains(errors, "'sequence'"));
        CHECK(contains(errors, "'input_ids'"));
        CHECK(contains(errors, "--seq-len"));
    }
    SECTION("shapes that do not fit") {
        Writer w = small_network();
        w.model.mutable_graph()->mutable_initializer(1)->set_dims(0, 5);
        CHECK(contains(load(w.bytes()).errors, "scores_node"));
    }
    SECTION("a stride of zero") {
        Writer w = small_network();
        Writer::set(*w.model.mutable_graph()->mutable_node(0), "strides", std::vector<std::int64_t>{0, 0});
        CHECK(contains(load(w.bytes()).errors, "strides"));
    }
    SECTION(
        "a filter of more dimensions than what it goes over") {  // libonnx takes the kernel's shape from it
        for (const char* type : {"Conv", "ConvTranspose"}) {
            INFO(type);
            Writer w;
            w.input("image", {-1, 8, 10});
            w.node(type, {"image", w.weight("filter", {8, 8, 3, 3})}, "maps");
            w.output("maps");
            const std::string errors = load(w.bytes()).errors;
            CHECK(contains(errors, "maps_node"));
            CHECK(contains(errors, "3 dimensions, its filter 4"));
        }
    }
}

TEST_CASE("Weights larger than a constant are skipped, whatever they hold") {
    Writer w = small_network();
    onnx::TensorProto* head = w.model.mutable_graph()->mutable_initializer(1);
    head->clear_data_location();
    head->clear_external_data();
    head->set_raw_data(std::string(1 << 20, 'x'));  // even if it is no sound payload of 4 x 10 floats
    const Loaded loaded = load(w.bytes());
    INFO(loaded.errors);
    REQUIRE(loaded.graph);
    CHECK(model::parameter_count(*loaded.graph) == 4 * 27 + 40 + 10);
}

TEST_CASE("A [model] table may name an ONNX file") {
    const File file(gpt(1, 64, 4, 100, 32));
    CHECK(graph_of("config = \"" + file.path() + "\"\nsequence_length = 16\nallow_unknown = true\n")
              .tokens_per_sample == 16);
    CHECK(contains(errors_of("config = \"" + file.path() + "\"\nsequence_length = 16\nlayers = 3\n"),
                   "layers"));
}

TEST_CASE("Mutated ONNX files are refused or read, never fatal") {
    const std::string network = small_network().bytes(), transformer = gpt(1, 64, 4, 100, 32);
    std::uint64_t state = 7;
    const auto random = [&](std::size_t below) {
        state = state * 6364136223846793005ULL + 1442695040888963407ULL;
        return static_cast<std::size_t>((state >> 33) % below);
    };
    model::LoadOptions options;
    int read = 0;
    for (int i = 0; i < 400; ++i) {
        std::string bytes = i % 2 == 0 ? network : transformer;
        options.sequence_length = i % 2 == 0 ? std::nullopt : std::optional<std::int64_t>(8);
        options.allow_unknown = i % 4 < 2;
        for (std::size_t k = 0; k <= random(4); ++k)
            bytes[random(bytes.size())] = static_cast<char>(random(256));
        const Loaded loaded = load(bytes, options);
        if (!loaded.graph) continue;
        ++read;
        model::check(*loaded.graph);
        CHECK(model::forward_flops_per_sample(*loaded.graph).value >= 0);
    }
    CHECK(read > 0);
}

// Graphs that choose: branches, loops, boxes whose number depends on data; which stored tensors are trained.
namespace {

void declare_outputs(onnx::GraphProto& graph, const std::vector<std::string>& names) {
    for (const std::string& name : names) graph.add_output()->set_name(name);
}

onnx::NodeProto& add(onnx::GraphProto& graph, const std::string& type, const std::vector<std::string>& inputs,
                     const std::string& output) {
    onnx::NodeProto* node = graph.add_node();
    node->set_op_type(type);
    node->set_name(output + "_node");
    for (const std::string& name : inputs) node->add_input(name);
    node->add_output(output);
    return *node;
}

void give_weight(onnx::GraphProto& graph, const std::string& name, const std::vector<std::int64_t>& shape) {
    onnx::TensorProto* tensor = graph.add_initializer();
    tensor->set_name(name);
    tensor->set_data_type(onnx::TensorProto::FLOAT);
    for (std::int64_t extent : shape) tensor->add_dims(extent);
    tensor->set_data_location(onnx::TensorProto::EXTERNAL);
}

// images [3, 8, 8] -> Unsqueeze -> maps [1, 4, 8, 8]: a convolution of 3 x 3 with padding.
Writer one_image() {
    Writer w;
    w.input("image", {3, 8, 8});
    w.make("Unsqueeze", {"image", w.integers("axis0", {0})}, "images");
    onnx::NodeProto& conv = w.node("Conv", {"images", w.weight("filter", {4, 3, 3, 3})}, "maps");
    Writer::set(conv, "kernel_shape", std::vector<std::int64_t>{3, 3});
    Writer::set(conv, "pads", std::vector<std::int64_t>{1, 1, 1, 1});
    return w;
}

// A condition on sizes: is the first extent of `of` zero?
void add_emptiness(Writer& w, const std::string& of) {
    w.make("Shape", {of}, of + ".shape");
    w.make("Gather", {of + ".shape", w.integers(of + ".first", {0})}, of + ".count");
    w.make("Equal", {of + ".count", w.integers(of + ".zero", {0})}, of + ".is_empty");
}

std::string remarks_of(const model::ModelGraph& graph) {
    std::string all;
    for (const std::string& one : graph.assumptions) all += one + "\n";
    return all;
}

model::ModelGraph read_back(const Writer& w) {
    Loaded loaded = load(w.bytes());
    INFO(loaded.errors);
    REQUIRE(loaded.graph);
    return std::move(*loaded.graph);
}

}  // namespace

TEST_CASE("An image without a batch is one sample, whatever its channels") {
    Writer w = one_image();
    w.output("maps");
    const model::ModelGraph graph = read_back(w);
    // A product of 27 numbers for each of 4 x 64 values.
    CHECK(model::forward_flops_per_sample(graph).value >= 2.0 * 27 * 256);
    CHECK(model::forward_flops_per_sample(graph).value < 2.2 * 27 * 256);
    CHECK_FALSE(contains(remarks_of(graph), "everything is divided"));
}

TEST_CASE("Of If the branch is read that a condition on sizes chooses") {
    for (const bool negated : {false, true}) {
        INFO(negated);
        Writer w = one_image();
        add_emptiness(w, "images");
        if (negated) w.make("Not", {"images.is_empty"}, "images.is_full");
        onnx::NodeProto& branch = w.node("If", {negated ? "images.is_full" : "images.is_empty"}, "chosen");
        // Both branches use the same name for a tensor of their own, and one of the graph around them.
        for (const bool is_then : {true, false}) {
            onnx::GraphProto& inner = Writer::graph_inside(branch, is_then ? "then_branch" : "else_branch");
            give_weight(inner, "own", {is_then ? 5 : 7, 4, 1, 1});
            add(inner, "Conv", {"maps", "own"}, "result");
            declare_outputs(inner, {"result"});
        }
        w.output("chosen");
        const model::ModelGraph graph = read_back(w);
        CHECK(model::parameter_count(graph) == 4 * 27 + (negated ? 5 : 7) * 4);
        CHECK(contains(remarks_of(graph), "1 conditions that depend on sizes alone"));
    }
}

TEST_CASE("A condition that is computed from data is refused by its node and tensor") {
    Writer w = one_image();
    w.make("ReduceMax", {"maps"}, "largest");
    w.make("Greater", {"largest", w.scalar("threshold", 0.5F)}, "is_bright");
    onnx::NodeProto& branch = w.node("If", {"is_bright"}, "chosen");
    for (const char* name : {"then_branch", "else_branch"}) {
        onnx::GraphProto& inner = Writer::graph_inside(branch, name);
        add(inner, "Relu", {"maps"}, "result");
        declare_outputs(inner, {"result"});
    }
    w.output("chosen");
    const std::string errors = load(w.bytes()).errors;
    CHECK(contains(errors, "chosen_node"));
    CHECK(contains(errors, "'is_bright'"));
    CHECK(contains(errors, "export the branch that is trained"));
}

TEST_CASE("Sizes that depend on data are taken at the most that they can be, and said") {
    Writer w = one_image();
    w.integers("rows", {-1, 4});
    w.make("Reshape", {"maps", "rows"}, "boxes");  // [64, 4]
    w.make("ReduceMax", {"boxes"}, "unused");
    onnx::NodeProto& best = w.node("ReduceMax", {"boxes"}, "scores");
    Writer::set(best, "axes", std::vector<std::int64_t>{1});
    Writer::set(best, "keepdims", 0);  // [64]
    w.make("Greater", {"scores", w.scalar("threshold", 0.1F)}, "is_good");
    w.make("NonZero", {"is_good"}, "places");  // at most [1, 64]
    w.make("Squeeze", {"places", w.integers("axis", {0})}, "indices");
    w.make("Gather", {"boxes", "indices"}, "kept");          // [64, 4]
    w.make("Gather", {"scores", "indices"}, "kept_scores");  // [64]
    w.make("Unsqueeze", {"kept", "axis"}, "batched");
    w.make("Unsqueeze", {"kept_scores", w.integers("axes01", {0, 1})}, "batched_scores");
    w.make("NonMaxSuppression", {"batched", "batched_scores", w.integers("most", {10})}, "selected");
    w.make("Gather", {"selected", w.integers("third", {2})}, "third_column");
    onnx::NodeProto& column = *w.model.mutable_graph()->mutable_node(w.model.graph().node_size() - 1);
    Writer::set(column, "axis", 1);  // [10, 1]
    w.make("Squeeze", {"third_column", w.integers("axis1", {1})}, "chosen");
    w.make("Gather", {"kept", "chosen"}, "result");
    w.output("result");
    const model::ModelGraph graph = read_back(w);
    const std::string remarks = remarks_of(graph);
    CHECK(contains(remarks, "NonMaxSuppression (1), NonZero (1); the largest is 64"));
    CHECK(contains(remarks, "losses of a detection model"));
    // 10 boxes of 4 numbers are trained on.
    CHECK(std::any_of(graph.operators.begin(), graph.operators.end(), [&](const model::Operator& op) {
        return op.name == "loss.outputs" && graph.tensor(op.output).shape == std::vector<std::int64_t>{40, 1};
    }));
}

TEST_CASE("A head over regions costs a region's head as often as there are regions") {
    const auto flops = [](std::int64_t regions) {
        Writer w = one_image();
        w.weight("rois", {regions, 4});
        w.integers("of_image", std::vector<std::int64_t>(regions, 0));
        onnx::NodeProto& align = w.node("RoiAlign", {"maps", "rois", "of_image"}, "regions");
        Writer::set(align, "output_height", 6);
        Writer::set(align, "output_width", 6);
        Writer::set(align, "sampling_ratio", 2);
        onnx::NodeProto& head = w.node("Conv", {"regions", w.weight("head", {8, 4, 3, 3})}, "features");
        Writer::set(head, "kernel_shape", std::vector<std::int64_t>{3, 3});
        w.output("features");
        const model::ModelGraph graph = read_back(w);
        CHECK(model::parameter_count(graph) == 4 * 27 + 8 * 36);
        return model::forward_flops_per_sample(graph).value;
    };
    // 8 x 4 x 4 values a region, of 36 products each; the loss takes a few a value besides.
    const double per_region = 2.0 * 36 * 128;
    CHECK((flops(40) - flops(20)) / 20 == Approx(per_region).epsilon(0.1));
}

TEST_CASE("A loop is left out with what follows it where nothing of that is trained") {
    const auto looped = [](bool has_weight_inside, bool has_weight_after) {
        Writer w = one_image();
        onnx::NodeProto& loop = w.node("Loop", {w.integers("trips", {3}), "", "maps"}, "pasted");
        onnx::GraphProto& body = Writer::graph_inside(loop, "body");
        for (const char* name : {"i", "condition", "carried"}) body.add_input()->set_name(name);
        add(body, "Identity", {"condition"}, "again");
        if (has_weight_inside) {
            give_weight(body, "inner", {4, 4, 1, 1});
            add(body, "Conv", {"carried", "inner"}, "next");
        } else {
            add(body, "Relu", {"carried"}, "next");
        }
        declare_outputs(body, {"again", "next"});
        if (has_weight_after) w.make("Conv", {"pasted", w.weight("after", {2, 4, 1, 1})}, "result");
        else w.make("Relu", {"pasted"}, "result");
        w.output("result");
        return w;
    };
    const model::ModelGraph graph = read_back(looped(false, false));
    CHECK(model::parameter_count(graph) == 4 * 27);
    CHECK(contains(remarks_of(graph), "pasted_node"));
    CHECK(contains(remarks_of(graph), "left out with 1 nodes"));
    const std::string inside = load(looped(true, false).bytes()).errors;
    CHECK(contains(inside, "pasted_node"));
    CHECK(contains(inside, "'inner'"));
    const std::string after = load(looped(false, true).bytes()).errors;
    CHECK(contains(after, "result_node"));
    CHECK(contains(after, "'after'"));
}

TEST_CASE("The four vectors of a frozen norm are no parameters, folded or not") {
    SECTION("as torchvision's FrozenBatchNorm2d computes with them") {
        Writer w = one_image();
        for (const char* name : {"weight", "bias", "mean", "variance"})
            w.make("Reshape", {w.weight(std::string("norm.") + name, {4}), "channels"},
                   std::string(name) + "_4d");
        w.integers("channels", {1, -1, 1, 1});
        w.make("Add", {"variance_4d", w.scalar("epsilon", 1e-5F)}, "sum");
        w.make("Sqrt", {"sum"}, "root");
        w.make("Reciprocal", {"root"}, "inverse");
        w.make("Mul", {"weight_4d", "inverse"}, "scale");
        w.make("Mul", {"mean_4d", "scale"}, "scaled_mean");
        w.make("Sub", {"bias_4d", "scaled_mean"}, "shift");
        w.make("Mul", {"maps", "scale"}, "scaled");
        w.make("Add", {"scaled", "shift"}, "normed");
        w.output("normed");
        const model::ModelGraph graph = read_back(w);
        CHECK(model::parameter_count(graph) == 4 * 27);
        CHECK(contains(remarks_of(graph), "16 stored scales and shifts behind convolutions"));
    }
    SECTION("as TorchScript's exporter folds them, and a scale that a module names is trained") {
        for (const bool is_folded : {true, false}) {
            Writer w = one_image();
            const std::string name = is_folded ? "onnx::Mul_7" : "layer_scale";
            w.make("Mul", {"maps", w.weight(name, {1, 4, 1, 1})}, "scaled");
            w.output("scaled");
            CHECK(model::parameter_count(read_back(w)) == 4 * 27 + (is_folded ? 0 : 4));
        }
    }
}

TEST_CASE("Masks of windows are no parameters, and scores of heads are those of their table") {
    // Two windows of 2 x 2 tokens, 3 heads: scores [2, 3, 4, 4]; the table has (2 x 2 - 1)^2 rows a head.
    Writer w;
    w.input("x", {-1, 8, 4});
    w.make("MatMul", {"x", w.weight("projection", {4, 12})}, "projected");
    w.make("Reshape", {"projected", w.integers("shape", {1, 2, 3, 4, 4})}, "scores");
    w.make("Add", {"scores", w.weight("onnx::Add_9", {1, 3, 4, 4})}, "biased");
    w.make("Add", {"biased", w.weight("onnx::Add_10", {1, 2, 1, 4, 4})}, "masked");
    Writer::set(w.node("Softmax", {"masked"}, "probabilities"), "axis", -1);
    w.output("probabilities");
    // One softmax is the loss's own: another follows, so that the mask's stays in the graph.
    w.make("Relu", {"probabilities"}, "result");
    w.model.mutable_graph()->mutable_output(0)->set_name("result");
    const model::ModelGraph graph = read_back(w);
    CHECK(model::parameter_count(graph) == 48 + 9 * 3);
    CHECK(contains(remarks_of(graph), "48 stored scores of heads are taken for 27 parameters"));
    CHECK(contains(remarks_of(graph), "32 stored scores that are added in front of a softmax"));
}

TEST_CASE("A grid of coordinates of which weights compute biases is no parameter, learned queries are") {
    // Swin v2: biases of 2 heads for 3 x 3 differences of positions, by an MLP of 8 at their coordinates.
    const auto parameters = [](const std::vector<std::int64_t>& asked) {
        Writer w;
        w.input("x", {-1, 9, 2});
        w.make("MatMul", {w.weight("asked", asked), w.weight("in", {asked.back(), 8})}, "hidden");
        w.make("Relu", {"hidden"}, "active");
        w.make("MatMul", {"active", w.weight("out", {8, 2})}, "heads");
        w.make("ReduceSum", {"heads"}, "bias");
        w.make("Add", {"x", "bias"}, "biased");
        w.output(w.make("MatMul", {"biased", w.weight("head", {2, 5})}, "logits"));
        const model::ModelGraph graph = read_back(w);
        CHECK(contains(remarks_of(graph), "stored coordinates of grids") ==
              (model::parameter_count(graph) == asked.back() * 8 + 8 * 2 + 2 * 5));
        return model::parameter_count(graph);
    };
    CHECK(parameters({1, 3, 3, 2}) == 2 * 8 + 8 * 2 + 2 * 5);       // two axes, two coordinates
    CHECK(parameters({3, 3, 3, 3}) == 3 * 8 + 8 * 2 + 2 * 5);       // three of each
    CHECK(parameters({1, 9, 2}) == 18 + 2 * 8 + 8 * 2 + 2 * 5);     // one axis: queries of width 2
    CHECK(parameters({1, 3, 3, 4}) == 36 + 4 * 8 + 8 * 2 + 2 * 5);  // wider than it has axes
}

TEST_CASE("Vectors that TorchScript's exporter writes once count for each that they stand for") {
    Writer w = one_image();
    w.weight("first.bias", {4});
    w.make("Identity", {"first.bias"}, "second.bias");
    onnx::NodeProto& first = w.node("Conv", {"maps", w.weight("a", {4, 4, 1, 1}), "first.bias"}, "one");
    onnx::NodeProto& second = w.node("Conv", {"one", w.weight("b", {4, 4, 1, 1}), "second.bias"}, "two");
    for (onnx::NodeProto* node : {&first, &second})
        Writer::set(*node, "kernel_shape", std::vector<std::int64_t>{1, 1});
    w.output("two");
    CHECK(model::parameter_count(read_back(w)) == 4 * 27 + 2 * 16 + 2 * 4);
}

TEST_CASE("What torch.export calls a buffer is no parameter") {
    for (const bool is_buffer : {true, false}) {
        Writer w = one_image();
        w.make("Add", {"maps", w.weight("positions", {1, 4, 8, 8})}, "placed");
        w.output("placed");
        // Field 4 of ValueInfoProto, which an older libonnx does not know, holds key and value.
        const std::string key = "pkg.torch.export.graph_signature.InputSpec.kind",
                          value = is_buffer ? "BUFFER" : "PARAMETER";
        std::string entry = "\x0a" + std::string(1, static_cast<char>(key.size())) + key + "\x12" +
                            std::string(1, static_cast<char>(value.size())) + value;
        std::string info = "\x0a\x09positions\x22" + std::string(1, static_cast<char>(entry.size())) + entry;
        REQUIRE(w.model.mutable_graph()->add_value_info()->ParseFromString(info));
        CHECK(model::parameter_count(read_back(w)) == 4 * 27 + (is_buffer ? 0 : 256));
    }
}

TEST_CASE("An Einsum costs a product over all of its indices") {
    const auto loaded = [](const std::string& equation, const std::vector<std::int64_t>& weight) {
        Writer w;
        w.input("x", {-1, 6, 4});
        w.make("MatMul", {"x", w.weight("projection", {4, 4})}, "projected");
        Writer::set_text(w.node("Einsum", {"projected", w.weight("other", weight)}, "result"), "equation",
                         equation);
        w.output("result");
        return load(w.bytes());
    };
    const auto flops = [&](const std::string& equation, const std::vector<std::int64_t>& weight) {
        const Loaded result = loaded(equation, weight);
        INFO(result.errors);
        REQUIRE(result.graph);
        for (const model::Operator& op : result.graph->operators)
            if (op.kind == model::OperatorKind::matrix_product)
                return 2 * op.attributes.product.batch * op.attributes.product.m * op.attributes.product.n *
                       op.attributes.product.k;
        return std::int64_t(0);
    };
    CHECK(flops("bij, jk -> bik", {4, 5}) == 2 * 6 * 4 * 5);
    CHECK(flops("bij,ijk->bik", {6, 4, 5}) == 2 * 6 * 4 * 5);  // a matrix for each i
    CHECK(flops("bij,jk", {4, 5}) == 2 * 6 * 4 * 5);
    CHECK(contains(loaded("jk,kl->jl", {4, 5}).errors,
                   "result_node"));  // the first operand has three dimensions
    CHECK(contains(loaded("...ij,jk->...ik", {4, 5}).errors, "result_node"));
}

TEST_CASE("A part of a small table is a parameter, not a constant that was folded") {
    Writer w;
    w.input("x", {-1, 4, 8});
    onnx::TensorProto* table =
        w.model.mutable_graph()->add_initializer();  // with its payload: small enough to fold
    table->set_name("positions");
    table->set_data_type(onnx::TensorProto::FLOAT);
    for (const std::int64_t extent : {1, 6, 8}) table->add_dims(extent);
    for (int i = 0; i < 48; ++i) table->add_float_data(static_cast<float>(i));
    w.make("Slice", {"positions", w.integers("begin", {0}), w.integers("end", {4}), w.integers("along", {1})},
           "used");
    w.make("Add", {"x", "used"}, "placed");
    w.output("placed");
    CHECK(model::parameter_count(read_back(w)) == 48);
}

#else

TEST_CASE("Without libonnx an ONNX file is refused with what to install") {
    core::Diagnostics diagnostics;
    CHECK_FALSE(model::load_model("network.onnx", {}, diagnostics));
    CHECK(core::format(diagnostics).find("libonnx-dev") != std::string::npos);
}

#endif
