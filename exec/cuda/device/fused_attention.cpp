#include "exec/cuda/device/fused_attention.cuh"

#include <algorithm>
#include <set>
#include <tuple>
#include <unordered_map>

#include <fmt/core.h>

#include "core/errors.h"
#include "exec/cuda/device/library_check.cuh"
#include "model/model_graph.h"

#ifdef SMSIM_HAS_CUDNN_FRONTEND
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>
#endif

namespace exec::cuda {

#ifdef SMSIM_HAS_CUDNN_FRONTEND

namespace fe = cudnn_frontend;

namespace {

enum Place : std::int64_t {
    query = 1,
    key,
    value,
    output,
    statistics,
    output_gradient,
    query_gradient,
    key_gradient,
    value_gradient,
    seed,
    offset
};
using Key = std::tuple<bool, Type, FusedAttentionShape>;
using Addresses = std::unordered_map<fe::graph::Tensor_attributes::uid_t, void*>;

struct Prepared {
    std::shared_ptr<fe::graph::Graph> graph;
    std::int64_t workspace = 0;
};

void expect(fe::error_t error, const char* call) {
    if (error.is_bad()) throw core::MachineError(fmt::format("{} failed: {}", call, error.get_message()));
}

// cuDNN takes any strides of [samples, heads, tokens, head].
Prepared prepare(cudnnHandle_t handle, bool is_backward, Type type, const FusedAttentionShape& s) {
    Prepared result;
    result.graph = std::make_shared<fe::graph::Graph>();
    fe::graph::Graph& graph = *result.graph;
    graph.set_io_data_type(type == Type::bf16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    using Extents = std::vector<std::int64_t>;
    const auto strides = [&](std::int64_t sample, std::int64_t row) {
        return Extents{sample, s.head_dimension, row, 1};
    };
    const Extents query_strides = strides(s.query_sample, s.query_row),
                  key_strides = strides(s.key_sample, s.key_row),
                  output_strides = strides(s.output_sample, s.output_row);
    const Extents queries{s.samples, s.heads, s.queries, s.head_dimension},
        keys{s.samples, s.kv_heads, s.keys, s.head_dimension};
    const Extents sums{s.samples, s.heads, s.queries, 1}, sum_strides{s.heads * s.queries, s.queries, 1, 1};
    const auto tensor = [&](const char* name, Place place, const Extents& dims, const Extents& apart) {
        return graph.tensor(
            fe::graph::Tensor_attributes().set_name(name).set_uid(place).set_dim(dims).set_stride(apart));
    };
    const auto number = [&](const char* name, Place place) {
        return graph.tensor(fe::graph::Tensor_attributes()
                                .set_name(name)
                                .set_uid(place)
                                .set_dim({1, 1, 1, 1})
                                .set_stride({1, 1, 1, 1})
                                .set_data_type(fe::DataType_t::INT64));
    };
    const auto choose = [&](auto& options) {
        options.set_attn_scale(s.scale);
        // As many queries as keys: both alignments are one, and only this one is taken with dropout.
        if (s.is_causal && s.queries == s.keys) options.set_causal_mask(true);
        else if (s.is_causal) options.set_causal_mask_bottom_right(true);
        if (s.dropout > 0) options.set_dropout(s.dropout, number("seed", seed), number("offset", offset));
    };
    const auto q = tensor("q", query, queries, query_strides), k = tensor("k", key, keys, key_strides),
               v = tensor("v", value, keys, key_strides);
    if (!is_backward) {
        auto options = fe::graph::SDPA_attributes().set_name("attention").set_generate_stats(true);
        choose(options);
        const auto [o, stats] = graph.sdpa(q, k, v, options);
        o->set_output(true).set_uid(output).set_dim(queries).set_stride(output_strides);
        stats->set_output(true)
            .set_uid(statistics)
            .set_data_type(fe::DataType_t::FLOAT)
            .set_dim(sums)
            .set_stride(sum_strides);
    } else {
        const auto o = tensor("o", output, queries, output_strides),
                   gradient = tensor("do", output_gradient, queries, output_strides);
        const auto stats = graph.tensor(fe::graph::Tensor_attributes()
                                            .set_name("stats")
                                            .set_uid(statistics)
                                            .set_dim(sums)
                                            .set_stride(sum_strides)
                                            .set_data_type(fe::DataType_t::FLOAT));
        auto options = fe::graph::SDPA_backward_attributes().set_name("attention_backward");
        choose(options);
        const auto [dq, dk, dv] = graph.sdpa_backward(q, k, v, o, gradient, stats, options);
        dq->set_output(true).set_uid(query_gradient).set_dim(queries).set_stride(query_strides);
        dk->set_output(true).set_uid(key_gradient).set_dim(keys).set_stride(key_strides);
        dv->set_output(true).set_uid(value_gradient).set_dim(keys).set_stride(key_strides);
    }
    expect(graph.build(handle, {fe::HeurMode_t::A}),
           is_backward ? "building cuDNN's attention backward" : "building cuDNN's attention");
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
    Prepared* find_or_none(cudnnHandle_t handle, bool is_backward, Type type, const FusedAttentionShape& s) {
        const Key key = key_of(is_backward, type, s);
        if (refused.contains(key)) return nullptr;
        try {
            return &find(handle, is_backward, type, s);
        } catch (const core::MachineError&) {
            refused.insert(key);
            return nullptr;
        }
    }

    static Key key_of(bool is_backward, Type type, const FusedAttentionShape& s) {
        return {is_backward, type, s};
    }

    Prepared& find(cudnnHandle_t handle, bool is_backward, Type type, const FusedAttentionShape& s) {
        const Key key = key_of(is_backward, type, s);
        auto found = prepared.find(key);
        if (found == prepared.end()) {
            found = prepared.emplace(key, prepare(handle, is_backward, type, s)).first;
            if (found->second.workspace >
                workspace_bytes) {  // in the first step only; freeing waits for the device
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

// cuDNN's support matrix: half precision from Ampere on, head dimensions in multiples of 8 up to 128 in both
// directions; a mask aligned with the last of more keys than queries not together with dropout
// (cudnn-frontend 1.18, sdpa_support_surface.h). What else it refuses it says when it is asked.
bool FusedAttention::takes(Type type, const FusedAttentionShape& s) const {
    if (type == Type::fp32 || compute_major_ < 8 || s.head_dimension % 8 != 0 || s.head_dimension > 128 ||
        s.queries > s.keys)
        return false;
    if (s.dropout > 0 && s.is_causal && s.queries != s.keys) return false;
    return graphs_->find_or_none(handle_, false, type, s) && graphs_->find_or_none(handle_, true, type, s);
}

namespace {

Addresses addresses_of(const FusedAttentionShape& s, const FusedAttentionArrays& a) {
    const auto at = [](const void* address) { return const_cast<void*>(address); };
    Addresses bindings{{query, at(a.queries)},
                       {key, at(a.keys)},
                       {value, at(a.values)},
                       {output, a.output},
                       {statistics, a.log_sums}};
    if (s.dropout > 0) {
        bindings[seed] = at(a.seed);
        bindings[offset] = at(a.offset);
    }
    return bindings;
}

}  // namespace

void FusedAttention::forward(Stream stream, Type type, const FusedAttentionShape& s,
                             const FusedAttentionArrays& arrays) {
    Prepared& prepared = graphs_->find(handle_, false, type, s);
    Addresses bindings = addresses_of(s, arrays);
    check(cudnnSetStream(handle_, static_cast<cudaStream_t>(stream)), "cudnnSetStream");
    expect(prepared.graph->execute(handle_, bindings, graphs_->workspace), "cuDNN's attention");
}

void FusedAttention::backward(Stream stream, Type type, const FusedAttentionShape& s,
                              const FusedAttentionArrays& arrays, const FusedAttentionGradients& gradients) {
    Prepared& prepared = graphs_->find(handle_, true, type, s);
    Addresses bindings = addresses_of(s, arrays);
    bindings[output_gradient] = const_cast<void*>(gradients.output);
    bindings[query_gradient] = gradients.queries;
    bindings[key_gradient] = gradients.keys;
    bindings[value_gradient] = gradients.values;
    check(cudnnSetStream(handle_, static_cast<cudaStream_t>(stream)), "cudnnSetStream");
    expect(prepared.graph->execute(handle_, bindings, graphs_->workspace), "cuDNN's attention backward");
}

#else

struct FusedAttention::Graphs {};

FusedAttention::FusedAttention(cudnnHandle_t handle, int compute_major)
    : handle_(handle), compute_major_(compute_major) {}
FusedAttention::~FusedAttention() = default;
bool FusedAttention::takes(Type, const FusedAttentionShape&) const {
    return static_cast<void>(handle_), static_cast<void>(compute_major_), false;
}
void FusedAttention::forward(Stream, Type, const FusedAttentionShape&, const FusedAttentionArrays&) {}
void FusedAttention::backward(Stream, Type, const FusedAttentionShape&, const FusedAttentionArrays&,
                              const FusedAttentionGradients&) {}

#endif

}  // namespace exec::cuda
