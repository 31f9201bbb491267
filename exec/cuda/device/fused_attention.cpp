#include "exec/cuda/device/fused_attention.cuh"

#include <algorithm>
#include <set>
#include <tuple>
#include <unordered_map>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "exec/cuda/device/library_check.cuh"

#ifdef SMSIM_HAS_CUDNN_FRONTEND
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>
#endif

namespace exec::cuda {

#ifdef SMSIM_HAS_CUDNN_FRONTEND

namespace fe = cudnn_frontend;

namespace {

enum Place : std::int64_t { query = 1, key, value, output, statistics, output_gradient, query_gradient, key_gradient, value_gradient };
using Key = std::tuple<bool, Type, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, bool, float>;

struct Prepared {
    std::shared_ptr<fe::graph::Graph> graph;
    std::int64_t workspace = 0;
};

void expect(fe::error_t error, const char* call) {
    if (error.is_bad()) throw core::MachineError(fmt::format("{} failed: {}", call, error.get_message()));
}

// q, k and v are interleaved in the rows of one array; cuDNN takes any strides: [samples, heads, tokens, head].
Prepared prepare(cudnnHandle_t handle, bool is_backward, Type type, const AttentionShape& s) {
    Prepared result;
    result.graph = std::make_shared<fe::graph::Graph>();
    fe::graph::Graph& graph = *result.graph;
    graph.set_io_data_type(type == Type::bf16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    const std::vector<std::int64_t> packed{s.tokens * s.row(), s.head_dimension, s.row(), 1};
    const std::vector<std::int64_t> plain{s.tokens * s.heads * s.head_dimension, s.head_dimension, s.heads * s.head_dimension, 1};
    const std::vector<std::int64_t> queries{s.samples, s.heads, s.tokens, s.head_dimension}, keys{s.samples, s.kv_heads, s.tokens, s.head_dimension};
    const std::vector<std::int64_t> sums{s.samples, s.heads, s.tokens, 1}, sum_strides{s.heads * s.tokens, s.tokens, 1, 1};
    const auto tensor = [&](const char* name, Place place, const std::vector<std::int64_t>& dims, const std::vector<std::int64_t>& strides) {
        return graph.tensor(fe::graph::Tensor_attributes().set_name(name).set_uid(place).set_dim(dims).set_stride(strides));
    };
    const auto q = tensor("q", query, queries, packed), k = tensor("k", key, keys, packed), v = tensor("v", value, keys, packed);
    if (!is_backward) {
        auto options = fe::graph::SDPA_attributes().set_name("attention").set_generate_stats(true).set_causal_mask(s.is_causal).set_attn_scale(s.scale);
        const auto [o, stats] = graph.sdpa(q, k, v, options);
        o->set_output(true).set_uid(output).set_dim(queries).set_stride(plain);
        stats->set_output(true).set_uid(statistics).set_data_type(fe::DataType_t::FLOAT).set_dim(sums).set_stride(sum_strides);
    } else {
        const auto o = tensor("o", output, queries, plain), gradient = tensor("do", output_gradient, queries, plain);
        const auto stats = graph.tensor(
            fe::graph::Tensor_attributes().set_name("stats").set_uid(statistics).set_dim(sums).set_stride(sum_strides).set_data_type(fe::DataType_t::FLOAT));
        auto options = fe::graph::SDPA_backward_attributes().set_name("attention_backward").set_causal_mask(s.is_causal).set_attn_scale(s.scale);
        const auto [dq, dk, dv] = graph.sdpa_backward(q, k, v, o, gradient, stats, options);
        dq->set_output(true).set_uid(query_gradient).set_dim(queries).set_stride(packed);
        dk->set_output(true).set_uid(key_gradient).set_dim(keys).set_stride(packed);
        dv->set_output(true).set_uid(value_gradient).set_dim(keys).set_stride(packed);
    }
    expect(graph.build(handle, {fe::HeurMode_t::A}), is_backward ? "building cuDNN's attention backward" : "building cuDNN's attention");
    expect(graph.get_workspace_size(result.workspace), "the workspace of cuDNN's attention");
    return result;
}

}  // namespace

struct FusedAttention::Graphs {
    std::map<Key, Prepared> prepared;
    std::set<Key> refused;
    void* workspace = nullptr;
    std::int64_t workspace_bytes = 0;

    // Null when cuDNN has no kernel for it.
    Prepared* find_or_none(cudnnHandle_t handle, bool is_backward, Type type, const AttentionShape& s) {
        const Key key = key_of(is_backward, type, s);
        if (refused.contains(key)) return nullptr;
        try {
            return &find(handle, is_backward, type, s);
        } catch (const core::MachineError&) {
            refused.insert(key);
            return nullptr;
        }
    }

    static Key key_of(bool is_backward, Type type, const AttentionShape& s) {
        return {is_backward, type, s.samples, s.tokens, s.heads, s.kv_heads, s.head_dimension, s.is_causal, s.scale};
    }

    Prepared& find(cudnnHandle_t handle, bool is_backward, Type type, const AttentionShape& s) {
        const Key key = key_of(is_backward, type, s);
        auto found = prepared.find(key);
        if (found == prepared.end()) {
            found = prepared.emplace(key, prepare(handle, is_backward, type, s)).first;
            if (found->second.workspace > workspace_bytes) {  // in the first step only; freeing waits for the device
                check(cudaFree(workspace), "cudaFree");
                workspace_bytes = found->second.workspace;
                check(cudaMalloc(&workspace, static_cast<std::size_t>(workspace_bytes)), "cudaMalloc");
            }
        }
        return found->second;
    }
};

FusedAttention::FusedAttention(cudnnHandle_t handle, int compute_major)
    : handle_(handle), compute_major_(compute_major), graphs_(std::make_unique<Graphs>()) {}

FusedAttention::~FusedAttention() { cudaFree(graphs_->workspace); }

// cuDNN's support matrix: half precision from Ampere on, head dimensions in multiples of 8 up to 128 in both directions. Windows, ALiBi, our own dropout and
// sequences divided over ranks are for our kernels.
bool FusedAttention::takes(Type type, const AttentionShape& s) const {
    if (type == Type::fp32 || compute_major_ < 8 || s.head_dimension % 8 != 0 || s.head_dimension > 128 || s.window != 0 || s.alibi_slopes || s.dropout != 0 ||
        s.keys > 0)
        return false;
    return graphs_->find_or_none(handle_, false, type, s) && graphs_->find_or_none(handle_, true, type, s);
}

namespace {

char* heads_at(void* qkv, std::int64_t head, const AttentionShape& s) { return static_cast<char*>(qkv) + head * s.head_dimension * 2; }

}  // namespace

void FusedAttention::forward(Stream stream, Type type, const AttentionShape& s, const void* qkv, void* y, float* log_sums) {
    Prepared& prepared = graphs_->find(handle_, false, type, s);
    void* in = const_cast<void*>(qkv);
    std::unordered_map<fe::graph::Tensor_attributes::uid_t, void*> places{{query, in},
                                                                          {key, heads_at(in, s.heads, s)},
                                                                          {value, heads_at(in, s.heads + s.kv_heads, s)},
                                                                          {output, y},
                                                                          {statistics, log_sums}};
    check(cudnnSetStream(handle_, static_cast<cudaStream_t>(stream)), "cudnnSetStream");
    expect(prepared.graph->execute(handle_, places, graphs_->workspace), "cuDNN's attention");
}

void FusedAttention::backward(Stream stream, Type type, const AttentionShape& s, const void* qkv, const void* y, const float* log_sums, const void* dy,
                              void* dqkv) {
    Prepared& prepared = graphs_->find(handle_, true, type, s);
    void* in = const_cast<void*>(qkv);
    std::unordered_map<fe::graph::Tensor_attributes::uid_t, void*> places{{query, in},
                                                                          {key, heads_at(in, s.heads, s)},
                                                                          {value, heads_at(in, s.heads + s.kv_heads, s)},
                                                                          {output, const_cast<void*>(y)},
                                                                          {statistics, const_cast<float*>(log_sums)},
                                                                          {output_gradient, const_cast<void*>(dy)},
                                                                          {query_gradient, dqkv},
                                                                          {key_gradient, heads_at(dqkv, s.heads, s)},
                                                                          {value_gradient, heads_at(dqkv, s.heads + s.kv_heads, s)}};
    check(cudnnSetStream(handle_, static_cast<cudaStream_t>(stream)), "cudnnSetStream");
    expect(prepared.graph->execute(handle_, places, graphs_->workspace), "cuDNN's attention backward");
}

#else

struct FusedAttention::Graphs {};

FusedAttention::FusedAttention(cudnnHandle_t handle, int compute_major) : handle_(handle), compute_major_(compute_major) {}
FusedAttention::~FusedAttention() = default;
bool FusedAttention::takes(Type, const AttentionShape&) const { return static_cast<void>(handle_), static_cast<void>(compute_major_), false; }
void FusedAttention::forward(Stream, Type, const AttentionShape&, const void*, void*, float*) {}
void FusedAttention::backward(Stream, Type, const AttentionShape&, const void*, const void*, const float*, const void*, void*) {}

#endif

}  // namespace exec::cuda
