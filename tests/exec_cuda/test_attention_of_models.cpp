// What cuDNN says, on GPUs that are described, of the attention of every GPU scenario and of every model of
// the catalogue: a kernel both ways, or a reason.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>
#include <string>

#include "core/diagnostics.h"
#include "exec/cuda/operator/fused_parts.h"
#include "exec/cuda/operator/operators.h"
#include "model/load.h"
#include "model/reader/catalogue.h"
#include "sim/scenario.h"
#include "tests/exec_cuda/described_devices.h"

namespace {

using namespace described;

// As one rank of `tensor` calls it, in parts where the sequence is divided.
std::set<FusedAttentionShape> attention_of(const model::ModelGraph& graph, std::int64_t samples,
                                           std::int64_t tensor, bool drops) {
    std::set<FusedAttentionShape> shapes;
    for (const model::Operator& op : graph.operators) {
        if (op.kind != model::OperatorKind::attention || Operators::unsupported(graph, op)) continue;
        const model::Attributes& a = op.attributes;
        if (a.has_alibi || a.heads % tensor != 0) continue;
        AttentionShape shape;
        shape.samples = samples;
        shape.tokens = graph.tensor(op.inputs[0]).shape[0];
        shape.heads = a.heads / tensor;
        shape.kv_heads = std::max<std::int64_t>(1, a.kv_heads / tensor);
        shape.head_dimension = a.head_dimension;
        shape.is_causal = a.is_causal;
        shape.window = a.window;
        shape.scale = static_cast<float>(
            a.softmax_scale > 0 ? a.softmax_scale : 1.0 / std::sqrt(static_cast<double>(a.head_dimension)));
        const std::uint64_t somewhere = 0;
        if (drops && a.probability > 0) {
            shape.dropout = static_cast<float>(a.probability);
            shape.dropout_keys = shape.library_offset = &somewhere;
        }
        for (const FusedPart& part : fused_parts(shape)) shapes.insert(part.shape);
    }
    return shapes;
}

sim::Scenario scenario_at(const std::filesystem::path& path) {
    core::Diagnostics diagnostics;
    const auto document = sim::load_scenario_document(path.string(), diagnostics);
    REQUIRE(document);
    auto scenario = sim::read_scenario(*document, path.string(), diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(scenario);
    return *scenario;
}

}  // namespace

TEST_CASE("cuDNN has the attention of every GPU scenario on Ampere, Ada and Hopper, and none on a T4",
          "[plans]") {
    if (are_absent()) return;
    int scenarios = 0;
    for (const auto& file :
         std::filesystem::directory_iterator(std::filesystem::path(SOURCE_DIR) / "scenarios")) {
        if (file.path().filename().string().rfind("gpu_", 0) != 0) continue;
        ++scenarios;
        const sim::Scenario scenario = scenario_at(file.path());
        const schedule::Plan& plan = scenario.file.plan;
        const auto shapes = attention_of(scenario.graph, plan.micro_batch, plan.layout.tensor, true);
        CHECK_FALSE(shapes.empty());
        for (const FusedAttentionShape& shape : shapes) {
            for (const DescribedDevice& device : {a100, a10g, l4, h100}) {
                const auto reason = unsupported(device, shape);
                INFO(file.path() << " on " << device.name << ": " << (reason ? reason->reason : ""));
                CHECK_FALSE(reason);
            }
            CHECK(unsupported(t4, shape, Type::fp16));
        }
    }
    CHECK(scenarios >= 3);
}

// Heads of up to 128, a multiple of 8, both ways (cudnn-frontend 1.18, docs/operations/Attention.md); on
// Hopper up to 256 forward and back.
TEST_CASE("cuDNN has the attention of every model of the catalogue, or says why not", "[plans]") {
    if (are_absent()) return;
    std::map<FusedAttentionShape, std::string> shapes;
    for (const std::string& name : model::catalogue_names()) {
        core::Diagnostics diagnostics;
        const auto graph = model::load_model(name, {}, diagnostics);
        REQUIRE(graph);
        for (FusedAttentionShape shape : attention_of(*graph, 1, 1, false)) {
            // The number of heads decides nothing but through what they share.
            const std::int64_t group = shape.heads / shape.kv_heads;
            shape.kv_heads = shape.heads > group ? 2 : 1;
            shape.heads = group * shape.kv_heads;
            shape.query_row = shape.key_row = (shape.heads + 2 * shape.kv_heads) * shape.head_dimension;
            shape.output_row = shape.heads * shape.head_dimension;
            shape.query_sample = shape.key_sample = shape.queries * shape.query_row;
            shape.output_sample = shape.queries * shape.output_row;
            shapes.emplace(shape, name);
        }
    }
    CHECK(shapes.size() > 20);
    int taken = 0;
    for (const auto& [shape, name] : shapes)
        for (const DescribedDevice& device : {a100, h100}) {
            const auto reason = unsupported(device, shape);
            INFO(name << " on " << device.name << ", heads of " << shape.head_dimension << ", "
                      << shape.queries << " tokens, window " << shape.window << ": "
                      << (reason ? reason->reason : ""));
            const std::int64_t most = device.compute_major == 9 ? 256 : 128;
            if (shape.head_dimension <= most && shape.head_dimension % 8 == 0) CHECK_FALSE(reason);
            else CHECK((reason && !reason->reason.empty()));
            taken += !reason;
        }
    CHECK(taken > 40);
}
