// What cuDNN says of the attention of usual models on GPUs that are described, not there: does it have a
// kernel, forward and backward? (docs/gpu.md tells what stands in for the driver.)
#include <catch2/catch.hpp>

#include <optional>
#include <string>
#include <vector>

#include "tests/exec_cuda/described_devices.h"

namespace {

using namespace exec::cuda;
using namespace described;

// A model's attention as ranks lay it out: queries, keys and values of a token side by side.
FusedAttentionShape shape_of(std::int64_t tokens, std::int64_t heads, std::int64_t kv_heads,
                             std::int64_t head, std::int64_t window = 0) {
    FusedAttentionShape s;
    s.samples = 2;
    s.queries = s.keys = tokens;
    s.heads = heads;
    s.kv_heads = kv_heads;
    s.head_dimension = head;
    s.is_causal = true;
    s.window = window;
    s.scale = 0.1f;
    s.query_row = s.key_row = (heads + 2 * kv_heads) * head;
    s.output_row = heads * head;
    s.query_sample = s.key_sample = tokens * s.query_row;
    s.output_sample = tokens * s.output_row;
    return s;
}

// Queries of the last quarter of a sequence: of a rank of a context-parallel group, or a segment.
FusedAttentionShape last_quarter(FusedAttentionShape s) {
    s.queries /= 4;
    s.query_sample /= 4;
    s.output_sample /= 4;
    s.key_row = 2 * s.kv_heads * s.head_dimension;
    s.key_sample = s.keys * s.key_row;
    return s;
}

struct Model {
    const char* name;
    FusedAttentionShape shape;
};
// Of scenarios/gpu_*.toml and of models that people train.
const std::vector<Model> models = {{"GPT-2 124M", shape_of(1024, 12, 12, 64)},
                                   {"GPT-2 1.5B", shape_of(1024, 25, 25, 64)},
                                   {"Llama of 1.1 billion", shape_of(2048, 32, 4, 64)},
                                   {"Llama-3 8B", shape_of(8192, 32, 8, 128)},
                                   {"Llama-3 70B on 8 tensor ranks", shape_of(8192, 8, 1, 128)},
                                   {"GPT-3 175B on 8 tensor ranks", shape_of(2048, 12, 12, 128)},
                                   {"Mistral 7B, a window of 4096", shape_of(8192, 32, 8, 128, 4096)}};

}  // namespace

TEST_CASE("cuDNN has attention for usual models on Ampere, Ada and Hopper, in parts and with windows too",
          "[plans]") {
    if (are_absent()) return;
    for (const DescribedDevice& device : {a100, a10g, l4, h100})
        for (const Model& model : models)
            for (const FusedAttentionShape& shape : {model.shape, last_quarter(model.shape)}) {
                const auto reason = unsupported(device, shape);
                INFO(device.name << ", " << model.name << ", queries " << shape.queries << ": "
                                 << (reason ? reason->reason : ""));
                CHECK_FALSE(reason);
            }
}

TEST_CASE("cuDNN has heads of 256 on Hopper, and says why not elsewhere", "[plans]") {
    if (are_absent()) return;
    const FusedAttentionShape gemma = shape_of(4096, 16, 8, 256);
    const auto on_hopper = unsupported(h100, gemma), on_ampere = unsupported(a100, gemma),
               on_turing = unsupported(t4, models.front().shape, Type::fp16);
    INFO((on_hopper ? on_hopper->reason : ""));
    CHECK_FALSE(on_hopper);
    REQUIRE(on_ampere);
    CHECK(on_ampere->reason.find("128") != std::string::npos);  // in its backward
    REQUIRE(on_turing);
    CHECK_FALSE(on_turing->reason.empty());
}

TEST_CASE("cuDNN drops in attention of whole sequences, not beside a mask aligned with the last keys",
          "[plans]") {
    if (are_absent()) return;
    FusedAttentionShape dropping = models.front().shape;
    dropping.dropout = 0.1f;
    CHECK_FALSE(unsupported(h100, dropping));
    CHECK(unsupported(h100, last_quarter(dropping)));
}
