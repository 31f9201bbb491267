// cuDNN's attention of a shape as a graph of its frontend, for a device that is there or that is described.
// For files of this folder, where cudnn-frontend is.
#pragma once

#include <memory>

#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

#include "exec/cuda/machine.h"

namespace exec::cuda {
namespace {

namespace fe = cudnn_frontend;

// By what arrays are bound to the graph.
enum AttentionArray : std::int64_t {
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

// Not built yet. cuDNN takes any strides of [samples, heads, tokens, head].
inline std::shared_ptr<fe::graph::Graph> attention_graph(bool is_backward, Type type,
                                                         const FusedAttentionShape& s) {
    const auto result = std::make_shared<fe::graph::Graph>();
    fe::graph::Graph& graph = *result;
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
    const auto tensor = [&](const char* name, AttentionArray place, const Extents& dims,
                            const Extents& apart) {
        return graph.tensor(
            fe::graph::Tensor_attributes().set_name(name).set_uid(place).set_dim(dims).set_stride(apart));
    };
    const auto number = [&](const char* name, AttentionArray place) {
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
        if (s.window > 0) options.set_diagonal_band_left_bound(static_cast<int>(s.window));
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
    return result;
}

}  // namespace
}  // namespace exec::cuda
