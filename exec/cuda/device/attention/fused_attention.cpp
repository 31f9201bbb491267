#include "exec/cuda/device/attention/fused_attention.cuh"

#include <algorithm>
#include <limits>
#include <optional>
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
    std::optional<std::int64_t> engine = {};  // where measured; else cuDNN's first
};

void expect(fe::error_t error, const char* call) {
    if (error.is_bad()) throw core::MachineError(fmt::format("{} failed: {}", call, error.get_message()));
}

// Everything that the choice of an engine depends on, but for the card and the versions.
std::string name_of(bool is_backward, Type type, const FusedAttentionShape& s) {
    return fmt::format("attention:{}:{}:{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}", is_backward,
                       static_cast<int>(type), s.samples, s.queries, s.keys, s.heads, s.kv_heads,
                       s.head_dimension, s.is_causal, s.window, s.scale, s.dropout, s.query_row,
                       s.query_sample, s.key_row, s.key_sample, s.output_row, s.output_sample);
}

// Arrays for a measurement of both directions.
class TemporaryArrays {
public:
    TemporaryArrays(Type type, const FusedAttentionShape& s)
        : element_(size_of(type)),
          queries_(s.samples * s.query_sample * element_),
          keys_(s.samples * s.key_sample * element_),
          values_(s.samples * s.key_sample * element_),
          outputs_(s.samples * s.output_sample * element_),
          gradients_((s.samples * (s.query_sample + 2 * s.key_sample + s.output_sample)) * element_),
          sums_(s.samples * s.heads * s.queries * sizeof(float) + 512),
          bindings_{{query, queries_.get()},
                    {key, keys_.get()},
                    {value, values_.get()},
                    {output, outputs_.get()},
                    {statistics, sums_.get()},
                    {output_gradient, gradients_.get()},
                    {query_gradient, after(s.samples * s.output_sample)},
                    {key_gradient, after(s.samples * (s.output_sample + s.query_sample))},
                    {value_gradient, after(s.samples * (s.output_sample + s.query_sample + s.key_sample))}} {
        if (s.dropout > 0) bindings_[seed] = bindings_[offset] = sums_.get();
    }
    bool are_there() const {
        return queries_.get() && keys_.get() && values_.get() && outputs_.get() && gradients_.get() &&
               sums_.get();
    }
    Addresses& bindings() { return bindings_; }

private:
    void* after(std::int64_t elements) const { return gradients_.get() + elements * element_; }

    const std::size_t element_;
    const Temporary queries_, keys_, values_, outputs_, gradients_, sums_;
    Addresses bindings_;
};

// Of cuDNN's engines for a graph the one that was the fastest, or that was kept as such; nothing: none could
// be measured.
std::optional<std::int64_t> fastest_engine(cudnnHandle_t handle, fe::graph::Graph& graph, Tuner& tuner,
                                           const std::string& key, Type type, const FusedAttentionShape& s) {
    const std::int64_t engines = graph.get_execution_plan_count();
    const auto name_at = [&](std::int64_t i) {
        std::string name;
        return graph.get_plan_name_at_index(i, name).is_good() ? name : std::string();
    };
    if (const std::optional<std::string> kept = tuner.find(key))
        for (std::int64_t i = 0; i < engines; ++i)
            if (name_at(i) == *kept && graph.build_plan_at_index(i).is_good()) return i;
    TemporaryArrays arrays(type, s);
    if (!arrays.are_there()) return std::nullopt;
    std::optional<std::int64_t> best;
    float least = std::numeric_limits<float>::max();
    check(cudnnSetStream(handle, nullptr), "cudnnSetStream");
    for (std::int64_t i = 0; i < engines; ++i) {
        if (graph.build_plan_at_index(i).is_bad()) continue;
        const Temporary workspace(std::max<std::int64_t>(256, graph.get_workspace_size_plan_at_index(i)));
        const auto perform = [&] {
            return graph.execute_plan_at_index(handle, arrays.bindings(), workspace.get(), i);
        };
        if (!workspace.get() || perform().is_bad()) continue;
        const float time = milliseconds_of([&] { static_cast<void>(perform()); });
        if (best && time >= clearly_faster * least) continue;
        best = i;
        least = time;
    }
    if (best) tuner.put(key, name_at(*best));
    return best;
}

Prepared prepare(cudnnHandle_t handle, bool is_backward, Type type, const FusedAttentionShape& s,
                 Tuner& tuner) {
    const char* const what =
        is_backward ? "building cuDNN's attention backward" : "building cuDNN's attention";
    Prepared result{attention_graph(is_backward, type, s)};
    fe::graph::Graph& graph = *result.graph;
    if (tuner.measures()) {
        expect(graph.validate(), what);
        expect(graph.build_operation_graph(handle), what);
        expect(graph.create_execution_plans({fe::HeurMode_t::A}), what);
        const std::optional<std::int64_t> engine =
            fastest_engine(handle, graph, tuner, name_of(is_backward, type, s), type, s);
        // The one built last is the one performed.
        if (engine) expect(graph.build_plan_at_index(*engine), what);
        result.engine = engine;
        if (engine) result.workspace = graph.get_workspace_size_plan_at_index(*engine);
        if (engine) return result;
        result.graph = attention_graph(is_backward, type, s);
    }
    expect(result.graph->build(handle, {fe::HeurMode_t::A}), what);
    expect(result.graph->get_workspace_size(result.workspace), "the workspace of cuDNN's attention");
    return result;
}

fe::error_t perform(cudnnHandle_t handle, Prepared& prepared, Addresses& bindings, void* workspace) {
    if (prepared.engine)
        return prepared.graph->execute_plan_at_index(handle, bindings, workspace, *prepared.engine);
    return prepared.graph->execute(handle, bindings, workspace);
}

}  // namespace

struct FusedAttention::Graphs {
    std::map<Key, Prepared> prepared;
    std::map<Key, core::Unsupported> refused;
    Workspace& workspace;
    Tuner& tuner;

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
            found = prepared.emplace(key, prepare(handle, is_backward, type, s, tuner)).first;
            workspace.need(found->second.workspace);
        }
        return found->second;
    }
};

FusedAttention::FusedAttention(cudnnHandle_t handle, int compute_major, Workspace& workspace, Tuner& tuner)
    : handle_(handle),
      compute_major_(compute_major),
      workspace_(workspace),
      tuner_(tuner),
      graphs_(new Graphs{{}, {}, workspace_, tuner_}) {}

FusedAttention::~FusedAttention() = default;

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
    expect(perform(handle_, prepared, bindings, workspace_.get(prepared.workspace)), "cuDNN's attention");
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
    expect(perform(handle_, prepared, bindings, workspace_.get(prepared.workspace)),
           "cuDNN's attention backward");
}

#else

struct FusedAttention::Graphs {};

FusedAttention::FusedAttention(cudnnHandle_t handle, int compute_major, Workspace& workspace, Tuner& tuner)
    : handle_(handle), compute_major_(compute_major), workspace_(workspace), tuner_(tuner) {}
FusedAttention::~FusedAttention() = default;
std::optional<core::Unsupported> FusedAttention::unsupported(Type, const FusedAttentionShape&) const {
    static_cast<void>(handle_), static_cast<void>(compute_major_);
    static_cast<void>(workspace_), static_cast<void>(tuner_);
    return core::Unsupported{"this program was built without cudnn-frontend"};
}
void FusedAttention::forward(Stream, Type, const FusedAttentionShape&, const FusedAttentionArrays&) {}
void FusedAttention::backward(Stream, Type, const FusedAttentionShape&, const FusedAttentionArrays&,
                              const FusedAttentionGradients&) {}

#endif

}  // namespace exec::cuda
