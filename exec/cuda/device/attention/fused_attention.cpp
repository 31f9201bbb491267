#include "exec/cuda/device/attention/fused_attention.cuh"

#include <algorithm>
#include <tuple>
#include <unordered_map>

#include <fmt/core.h>

#include "core/errors.h"
#include "exec/cuda/device/library_check.cuh"
#include "model/model_graph.h"

#ifdef SMSIM_HAS_CUDNN_FRONTEND
#include "exec/cuda/device/attention/attention_graph.cuh"
#endif

namespace exec::cuda {

#ifdef SMSIM_HAS_CUDNN_FRONTEND

namespace {

using Key = std::tuple<bool, Type, FusedAttentionShape>;
using Addresses = std::unordered_map<fe::graph::Tensor_attributes::uid_t, void*>;

struct Prepared {
    std::shared_ptr<fe::graph::Graph> graph;
    std::int64_t workspace = 0;
};

void expect(fe::error_t error, const char* call) {
    if (error.is_bad()) throw core::MachineError(fmt::format("{} failed: {}", call, error.get_message()));
}

Prepared prepare(cudnnHandle_t handle, bool is_backward, Type type, const FusedAttentionShape& s) {
    Prepared result{attention_graph(is_backward, type, s)};
    expect(result.graph->build(handle, {fe::HeurMode_t::A}),
           is_backward ? "building cuDNN's attention backward" : "building cuDNN's attention");
    expect(result.graph->get_workspace_size(result.workspace), "the workspace of cuDNN's attention");
    return result;
}

}  // namespace

struct FusedAttention::Graphs {
    std::map<Key, Prepared> prepared;
    std::map<Key, core::Unsupported> refused;
    void* workspace = nullptr;
    std::int64_t workspace_bytes = 0;

    // Why cuDNN has no kernel for it, in its own words.
    std::optional<core::Unsupported> unsupported(cudnnHandle_t handle, bool is_backward, Type type,
                                                 const FusedAttentionShape& s) {
        const Key key = key_of(is_backward, type, s);
        if (const auto known = refused.find(key); known != refused.end()) return known->second;
        try {
            find(handle, is_backward, type, s);
            return std::nullopt;
        } catch (const core::MachineError& failure) {
            return refused.emplace(key, core::Unsupported{failure.what()}).first->second;
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

// Half precision from Ampere on; what else cuDNN refuses it says when it is asked (cudnn-frontend 1.18,
// sdpa_support_surface.h, and the backend's own tables).
std::optional<core::Unsupported> FusedAttention::unsupported(Type type, const FusedAttentionShape& s) const {
    if (type == Type::fp32) return core::Unsupported{"fp32: cuDNN's fused attention takes bf16 and fp16"};
    if (compute_major_ < 8)
        return core::Unsupported{
            fmt::format("compute {}.x: cuDNN's fused attention begins with 8.0", compute_major_)};
    if (auto forward = graphs_->unsupported(handle_, false, type, s)) return forward;
    return graphs_->unsupported(handle_, true, type, s);
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
std::optional<core::Unsupported> FusedAttention::unsupported(Type, const FusedAttentionShape&) const {
    static_cast<void>(handle_), static_cast<void>(compute_major_);
    return core::Unsupported{"this program was built without cudnn-frontend"};
}
void FusedAttention::forward(Stream, Type, const FusedAttentionShape&, const FusedAttentionArrays&) {}
void FusedAttention::backward(Stream, Type, const FusedAttentionShape&, const FusedAttentionArrays&,
                              const FusedAttentionGradients&) {}

#endif

}  // namespace exec::cuda
