// FLOPs, bytes and saved activations against closed forms of the literature.
#include "core/diagnostics.h"
#include "tests/model/model_from_text.h"

#include <fmt/core.h>

#include <set>

#include "model/operators/cost.h"
#include "model/segment.h"

using model::CostContext;
using model::Phase;

namespace {

struct GptShape {
    double b, s, h, a, v;
    int layers;
};

std::string gpt(const GptShape& g, double dropout) {
    return fmt::format(
        "family = \"gpt\"\nhidden = {}\nlayers = {}\nheads = {}\nvocabulary = {}\nmax_positions = "
        "{}\ndropout = {}\nattention_dropout = {}\n",
        g.h, g.layers, g.a, g.v, g.s, dropout, dropout);
}

model::OperatorRange unit(const model::ModelGraph& graph, const std::string& name) {
    for (const model::Unit& unit : graph.units)
        if (unit.name == name) return unit.operators;
    FAIL("no unit " << name);
    return {};
}

// The union of what a range keeps, and of that what selective recomputation drops.
std::pair<double, double> saved_bytes(const model::ModelGraph& graph, model::OperatorRange range,
                                      const CostContext& context) {
    std::set<model::TensorId> tensors;
    double saved_context = 0, recomputable = 0;
    for (std::int32_t i = range.begin; i < range.end; ++i) {
        const model::SavedForBackward saved = model::saved_for_backward(graph, model::OperatorId(i), context);
        tensors.insert(saved.tensors.begin(), saved.tensors.end());
        saved_context += saved.saved_context.value;
        recomputable += saved.recomputable_context.value;
    }
    for (model::TensorId tensor : tensors) saved_context += model::tensor_bytes(graph, tensor, context).value;
    return {saved_context, recomputable};
}

const GptShape shapes[] = {
    {1, 128, 256, 4, 512, 2}, {4, 1024, 1024, 16, 51200, 3}, {2, 2048, 6144, 48, 50304, 2}};

}  // namespace

TEST_CASE(
    "a GPT layer keeps sbh(34 + 5as/h) bytes, divided by tensor and sequence parallelism as Korthikanti et "
    "al. count") {
    for (const GptShape& g : shapes) {
        const model::ModelGraph graph = graph_of(gpt(g, 0.1));
        const model::OperatorRange layer = unit(graph, "layers.1");
        for (int t : {1, 2, 4}) {
            CostContext context;
            context.micro_batch = static_cast<std::int64_t>(g.b);
            context.compute = core::DataType::fp16;
            context.attention = model::AttentionImplementation::unfused;
            context.tensor_parallel = t;
            const double sbh = g.s * g.b * g.h;
            // The paper leaves out the two norms' means and deviations: 2 norms x 2 numbers x 4 bytes a
            // token.
            const double statistics = 16 * g.s * g.b;
            INFO("h " << g.h << " t " << t);
            const auto [whole, scores] = saved_bytes(graph, layer, context);
            // arXiv 2205.05198, equation 2: sbh(10 + 24/t + 5as/(ht)).
            CHECK(whole - statistics ==
                  Approx(sbh * (10 + 24.0 / t + 5 * g.a * g.s / (g.h * t))).epsilon(1e-12));
            // Section 5: selective recomputation drops 5as^2b/t.
            CHECK(scores == Approx(5 * g.a * g.s * g.s * g.b / t).epsilon(1e-12));
            context.sequence_parallel = true;
            // Equation 4: sbh/t (34 + 5as/h).
            CHECK(saved_bytes(graph, layer, context).first - statistics / t ==
                  Approx(sbh / t * (34 + 5 * g.a * g.s / g.h)).epsilon(1e-12));
        }
    }
}

TEST_CASE("flash attention keeps q, k, v, its output and one statistic a row instead of the scores") {
    const GptShape g = shapes[1];
    const model::ModelGraph graph = graph_of(gpt(g, 0));
    CostContext context;
    context.compute = core::DataType::bf16;
    // Without dropout: norm inputs and outputs 8, q k v 6, output 2, GeLU input 8 and output 8 bytes per
    // token and hidden unit; norms 16 and log-sum-exp 4a bytes a token.
    CHECK(saved_bytes(graph, unit(graph, "layers.1"), context).first ==
          Approx(g.s * (32 * g.h + 16 + 4 * g.a)));
}

TEST_CASE("a GPT costs 24bsh^2 + 4bs^2h FLOPs a layer and 2bshV in the head") {
    for (const GptShape& g : shapes) {
        const model::ModelGraph graph = graph_of(gpt(g, 0.1));
        const double expected = g.layers * (24 * g.s * g.h * g.h + 4 * g.s * g.s * g.h) + 2 * g.s * g.h * g.v;
        CHECK(model::forward_flops_per_sample(graph).value == Approx(expected).epsilon(1e-13));

        // Every implementation of attention, and the tensor-parallel shares together, do the same products;
        // the micro-batch multiplies.
        for (auto attention :
             {model::AttentionImplementation::unfused, model::AttentionImplementation::fused_softmax,
              model::AttentionImplementation::flash})
            for (int t : {1, 2, 4}) {
                CostContext context;
                context.micro_batch = 3;
                context.tensor_parallel = t;
                context.attention = attention;
                const model::OperatorRange all{0, static_cast<std::int32_t>(graph.operators.size())};
                CHECK(t * model::phase_cost(graph, all, Phase::forward, context).flops.value ==
                      Approx(3 * expected).epsilon(1e-13));
                // Backward: each linear twice, in two separate phases; attention's two products twice, or 2.5
                // times where flash makes the scores again.
                const double linears = g.layers * 24 * g.s * g.h * g.h + 2 * g.s * g.h * g.v,
                             core = g.layers * 4 * g.s * g.s * g.h;
                const double factor = attention == model::AttentionImplementation::flash ? 2.5 : 2.0;
                CHECK(t * model::phase_cost(graph, all, Phase::backward_input, context).flops.value ==
                      Approx(3 * (linears + factor * core)).epsilon(1e-13));
                CHECK(t * model::phase_cost(graph, all, Phase::backward_weight, context).flops.value ==
                      Approx(3 * linears).epsilon(1e-13));
            }
    }
}

TEST_CASE(
    "a linear is three products: tokens x outputs x inputs forward, tokens x inputs x outputs and outputs x "
    "inputs x tokens backward") {
    const model::ModelGraph graph = graph_of(gpt(shapes[0], 0));
    const model::OperatorRange layer = unit(graph, "layers.0");
    for (std::int32_t i = layer.begin; i < layer.end; ++i) {
        const model::Operator& op = graph.operators[static_cast<std::size_t>(i)];
        if (op.name != "layers.0.mlp.up") continue;
        CostContext context;
        context.micro_batch = 2;
        context.tensor_parallel = 2;
        const auto product = [&](Phase phase) {
            return model::kernels(graph, model::OperatorId(i), phase, context).at(0);
        };
        // s = 128, h = 256, 4h / t = 512.
        const model::Kernel forward = product(Phase::forward), input = product(Phase::backward_input),
                            weight = product(Phase::backward_weight);
        CHECK(std::make_tuple(forward.m, forward.n, forward.k) == std::make_tuple(256, 512, 256));
        CHECK(std::make_tuple(input.m, input.n, input.k) == std::make_tuple(256, 256, 512));
        CHECK(std::make_tuple(weight.m, weight.n, weight.k) == std::make_tuple(512, 256, 256));
        // bf16: x 256x256, W 512x256, bias 512 read; y 256x512 written.
        CHECK(forward.read.value == 2.0 * (256 * 256 + 512 * 256 + 512));
        CHECK(forward.written.value == 2.0 * 256 * 512);
        return;
    }
    FAIL("no mlp.up");
}

TEST_CASE("eager cross-entropy moves 36 bytes a logit in 16 bits, 24 in fp32; fused 6 and 12") {
    const GptShape g = shapes[1];
    const model::ModelGraph graph = graph_of(gpt(g, 0));
    const double logits = g.s * g.v;
    const auto moved = [&](core::DataType type, bool is_fused) {
        CostContext context;
        context.compute = type;
        context.fused_cross_entropy = is_fused;
        double bytes = 0;
        const auto end = static_cast<std::int32_t>(graph.operators.size());
        for (std::int32_t i = 0; i < end; ++i) {
            const auto kind = graph.operators[static_cast<std::size_t>(i)].kind;
            if (kind != model::OperatorKind::loss_statistics && kind != model::OperatorKind::cross_entropy)
                continue;
            for (Phase phase : {Phase::forward, Phase::backward_input}) {
                const model::PhaseCost cost = model::phase_cost(graph, {i, i + 1}, phase, context);
                bytes += cost.read.value + cost.written.value;
            }
        }
        return bytes / logits;
    };
    // A few bytes a token for the statistics beside them.
    CHECK(moved(core::DataType::bf16, false) == Approx(36).epsilon(1e-3));
    CHECK(moved(core::DataType::fp32, false) == Approx(24).epsilon(1e-3));
    CHECK(moved(core::DataType::bf16, true) == Approx(6).epsilon(1e-3));
    CHECK(moved(core::DataType::fp32, true) == Approx(12).epsilon(1e-3));
}

TEST_CASE("ResNet-50 does 4.089 billion multiply-adds on an image of 224 pixels") {
    // torchvision's table of weights: ResNet50_Weights GFLOPS 4.09 (multiply-adds).
    core::Diagnostics diagnostics;
    const auto graph = model::load_model("resnet50", {}, diagnostics);
    REQUIRE(graph);
    CHECK(model::forward_flops_per_sample(*graph).value / 2 == Approx(4.089e9).epsilon(1e-4));
    // The stem's convolution has no gradient to send back to the images.
    for (std::size_t i = 0; i < graph->operators.size(); ++i)
        if (graph->operators[i].name == "stem.conv.conv") {
            CHECK(model::kernels(*graph, model::OperatorId(static_cast<std::int32_t>(i)),
                                 Phase::backward_input, {})
                      .empty());
            const auto weight = model::kernels(*graph, model::OperatorId(static_cast<std::int32_t>(i)),
                                               Phase::backward_weight, {});
            REQUIRE(weight.size() == 1);
            CHECK(weight[0].k == 112 * 112);
        }
}

TEST_CASE("vision models do the published multiply-adds") {
    // torchvision's tables of weights: vit_b_16 17.56, swin_t 4.49 and wide_resnet50_2 11.4 billion; swin's
    // table leaves nothing out but the windows' score bias.
    for (const auto& [name, billions, tolerance] :
         {std::make_tuple("vit-base-16", 17.56, 0.005), std::make_tuple("swin-t", 4.49, 0.01),
          std::make_tuple("wide-resnet50-2", 11.4, 0.005)}) {
        core::Diagnostics diagnostics;
        const auto graph = model::load_model(std::string(name), {}, diagnostics);
        REQUIRE(graph);
        INFO(name);
        CHECK(model::forward_flops_per_sample(*graph).value / 2e9 == Approx(billions).epsilon(tolerance));
    }
}

TEST_CASE(
    "a mixture of experts costs its router and the chosen experts' products, wherever the experts live") {
    // h 64, ffn 128, 8 experts, 2 a token, 32 tokens: per layer router 2*32*64*8, experts 32*2 copies *
    // (2*64*256 + 2*128*64).
    const model::ModelGraph graph = graph_of(
        "family = \"mixtral\"\nhidden = 64\nlayers = 1\nheads = 4\nkv_heads = 2\nffn = 128\nvocabulary = "
        "100\nsequence_length = 32\n"
        "experts = 8\nexperts_per_token = 2\n");
    for (std::size_t i = 0; i < graph.operators.size(); ++i) {
        if (graph.operators[i].kind != model::OperatorKind::router) continue;
        const auto index = static_cast<std::int32_t>(i);  // router, dispatch, experts, combine
        for (int expert_parallel : {1, 2, 4}) {
            CostContext context;
            context.expert_parallel = expert_parallel;
            const double experts = 64.0 * (2 * 64 * 256 + 2 * 128 * 64), router = 2.0 * 32 * 64 * 8;
            CHECK(model::phase_cost(graph, {index, index + 4}, Phase::forward, context).flops.value ==
                  experts + router);
            CHECK(model::phase_cost(graph, {index, index + 4}, Phase::backward_weight, context).flops.value ==
                  experts + router);
            CHECK(model::parameter_elements(graph, graph.operators[i + 2].parameters[0], context) ==
                  8 * 256 * 64 / expert_parallel);
        }
        // Activations made again read what the forward's read, 64 rows of 256, and write 128 of each row.
        CostContext kept, again;
        again.remakes_expert_activation = true;
        const model::PhaseCost before = model::phase_cost(graph, {index + 2, index + 3},
                                                          Phase::backward_input, kept),
                               after = model::phase_cost(graph, {index + 2, index + 3}, Phase::backward_input,
                                                         again);
        CHECK(after.kernels == before.kernels + 1);
        CHECK(after.flops == before.flops);
        CHECK((after.read - before.read).value == 64 * 256 * 2);
        CHECK((after.written - before.written).value == 64 * 128 * 2);
        return;
    }
    FAIL("no mixture");
}

TEST_CASE("grouped-query attention reads fewer keys and values but does the same products") {
    const auto at = [](int kv_heads) {
        return graph_of(
            fmt::format("family = \"llama\"\nhidden = 256\nlayers = 1\nheads = 8\nkv_heads = {}\nffn = "
                        "512\nvocabulary = 100\nsequence_length = 64\n",
                        kv_heads));
    };
    const auto flash = [](const model::ModelGraph& graph) {
        for (std::size_t i = 0; i < graph.operators.size(); ++i)
            if (graph.operators[i].kind == model::OperatorKind::attention)
                for (const model::Kernel& kernel : model::kernels(
                         graph, model::OperatorId(static_cast<std::int32_t>(i)), Phase::forward, {}))
                    if (kernel.kind == model::KernelKind::attention) return kernel;
        return model::Kernel{};
    };
    const model::Kernel all = flash(at(8)), grouped = flash(at(2));
    CHECK(all.flops == grouped.flops);
    // q of 64 x 256, k and v of 64 x (kv_heads 32) each, bf16.
    CHECK(all.read.value == 2.0 * (64 * 256 + 2 * 64 * 256));
    CHECK(grouped.read.value == 2.0 * (64 * 256 + 2 * 64 * 64));
    CHECK(all.is_causal);
}

TEST_CASE(
    "parts of a sequence, one from each end, share the work of causal attention evenly; segments from the "
    "front do the less the earlier they come") {
    const model::ModelGraph graph = graph_of(
        "family = \"gpt\"\nhidden = 64\nlayers = 1\nheads = 4\nvocabulary = 100\nsequence_length = "
        "256\nmax_positions = 256\n");
    // Scores that the mask leaves, of all 256 x 256: half of them (in the limit of long sequences).
    const auto worked = [](const model::ModelGraph& of, int context_parallel) {
        CostContext context;
        context.context_parallel = context_parallel;
        for (std::size_t i = 0; i < of.operators.size(); ++i)
            for (const model::Kernel& kernel :
                 model::kernels(of, model::OperatorId(static_cast<std::int32_t>(i)), Phase::forward, context))
                if (kernel.kind == model::KernelKind::attention)
                    return kernel.flops.value * kernel.visible_share;
        return 0.0;
    };
    const double whole = worked(graph, 1);
    CHECK(whole == Approx(4.0 * 256 * 256 * 64 / 2));
    for (const int parts : {2, 4, 8}) CHECK(worked(graph, parts) == Approx(whole / parts));
    // Four segments: the i-th sees 64 i keys before it and half of its own square, 64 x 64 (i + 1/2).
    double sum = 0;
    const model::SegmentGraphs segments(graph, 4);
    for (std::size_t i = 0; i < segments.size(); ++i) {
        CHECK(worked(segments[i], 1) == Approx(4.0 * 64 * 64 * (static_cast<double>(i) + 0.5) * 64));
        sum += worked(segments[i], 1);
    }
    CHECK(sum == Approx(whole));
    // Each number of them is made once, of each graph.
    const model::ModelGraph other = graph;
    model::KnownSegmentGraphs known;
    CHECK(&known.of(graph, 4) == &known.of(graph, 4));
    CHECK(&known.of(graph, 4) != &known.of(graph, 2));
    CHECK(&known.of(graph, 4) != &known.of(other, 4));
    CHECK(&known.of(graph, 1)[0] == &graph);
    for (std::size_t i = 0; i < segments.size(); ++i)
        CHECK(worked(known.of(graph, 4)[i], 1) == worked(segments[i], 1));
}

TEST_CASE("a sliding window bounds the keys of every query") {
    const model::ModelGraph graph = graph_of(
        "family = \"mistral\"\nhidden = 64\nlayers = 1\nheads = 4\nffn = 128\nvocabulary = "
        "100\nsequence_length = 256\nwindow = 32\n");
    // Linears: qkv 3 h^2, output h^2, gate and up 2 h f, down h f, head h V; scores against 32 keys.
    const double linears = 2.0 * 256 * (4 * 64 * 64 + 3 * 64 * 128 + 64 * 100);
    CHECK(model::forward_flops_per_sample(graph).value == Approx(linears + 4.0 * 256 * 32 * 64));
    // Unfused attention computes and keeps the probabilities of all 256 x 256 pairs of its 4 heads all the
    // same: the window is a mask.
    for (std::size_t i = 0; i < graph.operators.size(); ++i) {
        if (graph.operators[i].kind != model::OperatorKind::attention) continue;
        CostContext context;
        context.compute = core::DataType::fp32;
        context.attention = model::AttentionImplementation::unfused;
        const model::OperatorId id(static_cast<std::int32_t>(i));
        CHECK(model::saved_for_backward(graph, id, context).saved_context.value == 4.0 * 4 * 256 * 256);
        double flops = 0;
        for (const model::Kernel& kernel : model::kernels(graph, id, model::Phase::forward, context))
            flops += kernel.flops.value;
        CHECK(flops == 2 * 2.0 * 4 * 256 * 256 * 16);
        context.attention = model::AttentionImplementation::flash;
        CHECK(model::kernels(graph, id, model::Phase::forward, context).back().flops.value ==
              2 * 2.0 * 4 * 256 * 32 * 16);
    }
}

TEST_CASE(
    "rows begin at odd places where they end in an odd number of words or keys, not where their number is "
    "odd") {
    const model::ModelGraph graph = graph_of(
        "family = \"mixtral\"\nhidden = 64\nlayers = 1\nheads = 4\nffn = 128\nexperts = 4\nexperts_per_token "
        "= 2\nvocabulary = 101\nsequence_length = 252\n");
    CostContext context;
    context.compute = core::DataType::bf16;
    context.attention = model::AttentionImplementation::unfused;
    int found = 0;
    for (std::size_t i = 0; i < graph.operators.size(); ++i)
        for (const model::Phase phase :
             {model::Phase::forward, model::Phase::backward_input, model::Phase::backward_weight})
            for (const model::Kernel& kernel :
                 model::kernels(graph, model::OperatorId(static_cast<std::int32_t>(i)), phase, context)) {
                if (kernel.kind != model::KernelKind::matrix_product) continue;
                const model::OperatorKind kind = graph.operators[i].kind;
                INFO(kernel.what << " of " << graph.operators[i].name);
                // Scores have rows of 252 = 4 x 63 keys; all products of attention read or write them. The
                // logits' rows are 101 words; nothing else is odd: samples, tokens of an expert (126) and
                // depth of gradients of weights are no rows. The router has 4 experts.
                const bool has_words = kind == model::OperatorKind::linear &&
                                       graph.tensor(graph.operators[i].output).shape.back() == 101;
                const std::int64_t expected =
                    kind == model::OperatorKind::attention || kind == model::OperatorKind::router ? 4
                    : has_words                                                                   ? 1
                                                                                                  : 8;
                CHECK(kernel.alignment == expected);
                ++found;
            }
    CHECK(found > 20);
}

TEST_CASE("frozen layers keep nothing for a backward pass that they have not") {
    const model::ModelGraph graph = graph_of("family = \"mask_rcnn\"\nimage_size = 256\nregions = 64\n");
    int frozen = 0, kept = 0;
    for (std::size_t i = 0; i < graph.operators.size(); ++i) {
        const model::SavedForBackward saved =
            model::saved_for_backward(graph, model::OperatorId(static_cast<std::int32_t>(i)), {});
        const bool is_nothing =
            saved.tensors.empty() && saved.saved_context.value == 0 && saved.recomputable_context.value == 0;
        if (graph.operators[i].attributes.is_frozen) {
            ++frozen;
            CHECK(is_nothing);
        } else {
            kept += !is_nothing;
        }
    }
    CHECK(frozen > 10);
    CHECK(kept > 50);
}

TEST_CASE("eager GPT kernels of a layer: the memory-bound bytes of the hidden stream, counted by hand") {
    const GptShape g = shapes[1];
    const model::ModelGraph graph = graph_of(gpt(g, 0.1));
    const model::OperatorRange layer = unit(graph, "layers.1");
    const auto hidden_bytes = [&](model::AttentionImplementation attention, bool is_fused) {
        CostContext context;
        context.compute = core::DataType::fp16;
        context.attention = attention;
        context.fused_dropout_add = is_fused;
        double bytes = 0;
        for (std::int32_t i = layer.begin; i < layer.end; ++i) {
            const model::OperatorKind kind = graph.operators[static_cast<std::size_t>(i)].kind;
            if (kind == model::OperatorKind::linear || kind == model::OperatorKind::attention) continue;
            const model::PhaseCost cost = model::phase_cost(graph, {i, i + 1}, Phase::forward, context);
            bytes += cost.read.value + cost.written.value;
        }
        return bytes / (g.s * g.h);
    };
    // Per token and hidden unit: 2 norms x 4, 2 dropouts x 5, 2 additions x 6, GeLU 4 x 4 bytes; norms'
    // parameters and statistics a few parts in a thousand.
    CHECK(hidden_bytes(model::AttentionImplementation::unfused, false) ==
          Approx(8 + 10 + 12 + 16).epsilon(2e-3));
    // Dropout inside the addition: 7 bytes instead of 11, twice.
    CHECK(hidden_bytes(model::AttentionImplementation::unfused, true) == Approx(8 + 14 + 16).epsilon(2e-3));
}

TEST_CASE("unfused attention moves the scores 6 times forward in passes of their own; fused 2") {
    // a s^2 scores of 2 bytes; q, k, v and output sh each.
    const GptShape g = shapes[1];
    const model::ModelGraph graph = graph_of(gpt(g, 0));
    const model::OperatorRange layer = unit(graph, "layers.0");
    const auto moved = [&](model::AttentionImplementation attention) {
        CostContext context;
        context.compute = core::DataType::fp16;
        context.attention = attention;
        double bytes = 0;
        for (std::int32_t i = layer.begin; i < layer.end; ++i)
            if (graph.operators[static_cast<std::size_t>(i)].kind == model::OperatorKind::attention)
                for (const model::Kernel& kernel :
                     model::kernels(graph, model::OperatorId(i), Phase::forward, context))
                    if (kernel.kind == model::KernelKind::memory)
                        bytes += kernel.read.value + kernel.written.value;
        return bytes;
    };
    const double scores = 2 * g.a * g.s * g.s, hidden = 2 * g.s * g.h;
    // scale, mask, softmax: read and written each; heads split (q, k, v) and merged (output).
    CHECK(moved(model::AttentionImplementation::unfused) == Approx(6 * scores + 6 * hidden + 2 * hidden));
    CHECK(moved(model::AttentionImplementation::fused_softmax) == Approx(2 * scores + 2 * hidden));
    CHECK(moved(model::AttentionImplementation::flash) == 0);
}

TEST_CASE(
    "the shares of a tensor-parallel group are the whole: parameters, and activations under sequence "
    "parallelism") {
    for (const char* name :
         {"gpt-tiny", "llama-tiny", "pythia-410m", "bloom-560m", "t5-small", "mixtral-8x7b"}) {
        core::Diagnostics diagnostics;
        const auto graph = model::load_model(name, {}, diagnostics);
        REQUIRE(graph);
        INFO(name);
        const int t = 2;
        REQUIRE_FALSE(model::tensor_parallel_unsupported(*graph, t));
        CostContext whole, part;
        part.tensor_parallel = t;
        part.sequence_parallel = true;
        for (std::size_t i = 0; i < graph->parameters.size(); ++i) {
            const model::ParameterId id(static_cast<std::int32_t>(i));
            const int copies = graph->parameter(id).split_dimension ? t : 1;
            CHECK(copies * model::parameter_elements(*graph, id, part) ==
                  model::parameter_elements(*graph, id, whole));
        }
        for (std::size_t i = 0; i < graph->tensors.size(); ++i) {
            const model::TensorId id(static_cast<std::int32_t>(i));
            const model::Tensor& tensor = graph->tensor(id);
            const model::Operator& producer = graph->op(tensor.producer);
            const bool is_shared = tensor.split == model::TensorSplit::split ||
                                   (tensor.is_activation && !producer.in_parallel_region);
            CHECK((is_shared ? t : 1) * model::tensor_bytes(*graph, id, part).value ==
                  model::tensor_bytes(*graph, id, whole).value);
        }
    }
}
