#include "model/operators/attention_cost.h"

#include "model/operators/element_bytes.h"
#include "model/operators/kernel_list.h"
#include "model/operators/rank_share.h"

namespace model {

namespace {

struct Sizes {
    AttentionShape shape;
    double element = 0, scores = 0;   // bytes; elements of all score matrices
    double query = 0, key_value = 0;  // bytes of q, and of k and v together
    double own_key_value = 0;         // of the latter, those of this segment of the sequence
    double own_key = 0;               // and the keys among them
    double output = 0, statistics = 0;
    double bias = 0;         // bytes of the expanded relative bias [heads, queries, keys]
    std::int64_t width = 0;  // of the input: what relative positions are projected from
};

Sizes sizes_of(const ModelGraph& graph, const Operator& op, const CostContext& context) {
    Sizes s;
    s.shape = attention_shape(graph, op, context);
    s.element = core::size_of(context.compute).value;
    s.scores = s.shape.scores();
    const RankMatrix output = rank_matrix(graph, op.output, context),
                     memory = rank_matrix(graph, op.inputs.back(), context);
    s.output = output.elements() * s.element;
    s.query = static_cast<double>(s.shape.rows) * s.shape.heads * s.shape.head_dimension * s.element;
    // Of a ring the keys of one rank's tokens.
    const std::int64_t key_rows = memory.rows * (passes_keys(op, context) ? 1 : context.context_parallel) +
                                  (op.attributes.has_relative_positions ? output.rows : 0);
    if (op.attributes.has_relative_positions) s.width = graph.parameter(op.parameters[0]).shape[1];
    const double key_row = s.shape.kv_heads * s.shape.head_dimension * s.element,
                 row = key_row + s.shape.kv_heads * s.shape.value_dimension * s.element;
    s.own_key_value = key_rows * row;
    s.own_key = key_rows * key_row;
    s.key_value = s.own_key_value + (context.micro_batch * graph.first_token()) * row;
    s.statistics = fp32_bytes * s.shape.rows * s.shape.heads;
    if (op.attributes.has_relative_bias)
        s.bias = static_cast<double>(s.shape.heads) * s.shape.queries * s.shape.keys * s.element;
    return s;
}

Kernel flash_kernel(const Sizes& s, bool is_backward) {
    Kernel kernel;
    kernel.kind = KernelKind::attention;
    kernel.batch = s.shape.batch;
    kernel.m = s.shape.queries;
    kernel.n = s.shape.keys;
    kernel.k = s.shape.head_dimension;
    kernel.is_causal = s.shape.is_causal;
    kernel.visible_share = s.shape.visible_share;
    // Forward two products; backward five: the scores again, dV, dP, dQ, dK (arXiv 2307.08691, section 3.1).
    const double keys = s.shape.head_dimension, values = s.shape.value_dimension;
    kernel.flops = core::Flops(2.0 * s.scores * (is_backward ? 3 * keys + 2 * values : keys + values));
    const double inputs = s.query + s.key_value;
    kernel.read = core::Bytes(is_backward ? inputs + 2 * s.output + s.statistics + s.bias : inputs + s.bias);
    kernel.written = core::Bytes(is_backward ? inputs : s.output + s.statistics);
    kernel.what = is_backward ? "flash_attention_backward" : "flash_attention";
    return kernel;
}

// Of a ring one piece: a triangle of a rank's own tokens. Of those of another rank its causal queries see the
// first half, or half of its queries see them all. Operations are counted as of the whole square.
Kernel piece_kernel(Sizes s, int ranks, bool is_own, bool is_backward) {
    s.shape.keys /= ranks;
    s.shape.visible_share = s.shape.is_causal ? 0.5 : 1;
    s.scores = s.shape.scores();
    Kernel kernel = flash_kernel(s, is_backward);
    if (s.shape.is_causal && !is_own) {
        kernel.n /= 2;
        kernel.is_causal = false;
    }
    return kernel;
}

void append_rotary(std::vector<Kernel>& list, const Sizes& s, const char* what) {
    list.push_back(memory_kernel(what, s.query, s.query));
    list.push_back(memory_kernel(what, s.own_key, s.own_key));
}

// Norms of queries and keys, before their rotation; backward reads the gradient and what was normalised.
void append_norms(std::vector<Kernel>& list, const Operator& op, const Sizes& s, bool is_backward) {
    if (op.attributes.query_key_norm == QueryKeyNorm::none) return;
    const char* what = is_backward ? "query_key_norm_backward" : "query_key_norm";
    for (const double bytes : {s.query, s.own_key})
        list.push_back(memory_kernel(what, is_backward ? 2 * bytes : bytes, bytes));
}

// c tanh(score / c) as three passes over the scores, where no kernel fuses them.
void append_soft_cap(std::vector<Kernel>& list, const Operator& op, const Sizes& s, const char* what) {
    const double scores = s.scores * s.element;
    if (op.attributes.soft_cap)
        for (int pass = 0; pass < 3; ++pass) list.push_back(memory_kernel(what, scores, scores));
}

// Swin: tokens are gathered into windows before, and put back after (shifted: rolled as well).
void append_window_moves(std::vector<Kernel>& list, const Operator& op, const Sizes& s, const char* what) {
    if (op.attributes.local_window == 0 || op.attributes.is_causal) return;  // chunks lie as they are
    for (int i = 0; i < (op.attributes.is_shifted ? 2 : 1); ++i) {
        list.push_back(memory_kernel(what, s.query + s.key_value, s.query + s.key_value));
        list.push_back(memory_kernel(what, s.output, s.output));
    }
}

void append_forward(std::vector<Kernel>& list, const Operator& op, const Sizes& s,
                    const CostContext& context) {
    const Attributes& a = op.attributes;
    append_window_moves(list, op, s, "window_partition");
    append_norms(list, op, s, false);
    if (a.is_rotary) append_rotary(list, s, "rotary");
    if (a.has_relative_bias) list.push_back(memory_kernel("relative_bias", 0, s.bias));
    if (context.attention == AttentionImplementation::flash) {
        list.push_back(flash_kernel(s, false));
        return;
    }
    // Batched products want heads outermost: eager code copies q, k and v into that order; Megatron-LM's
    // layout makes them strided views. Both copy the context back.
    if (context.attention == AttentionImplementation::unfused)
        list.push_back(memory_kernel("split_heads", s.query + s.key_value, s.query + s.key_value));
    const double scores = s.scores * s.element;
    list.push_back(product_kernel("attention_scores", s.shape.batch, s.shape.queries, s.shape.keys,
                                  s.shape.head_dimension, s.element));
    if (a.has_relative_positions) {
        const AttentionShape& h = s.shape;
        list.push_back(
            product_kernel("position_projection", 1, h.keys, h.heads * h.head_dimension, s.width, s.element));
        list.push_back(memory_kernel("query_biases", 2 * s.query, 2 * s.query));
        list.push_back(
            product_kernel("position_scores", h.batch, h.queries, h.keys, h.head_dimension, s.element));
        list.push_back(memory_kernel("relative_shift", scores, scores));
        list.push_back(memory_kernel("score_sum", 2 * scores, scores));
    }
    append_soft_cap(list, op, s, "soft_cap");
    if (a.has_sinks) list.push_back(memory_kernel("append_sinks", scores, scores));
    if (context.attention == AttentionImplementation::unfused) {
        list.push_back(memory_kernel("scale", scores, scores));
        if (a.has_relative_bias || a.has_alibi)
            list.push_back(memory_kernel("score_bias", scores + s.bias, scores));
        list.push_back(memory_kernel("mask", scores, scores));
        list.push_back(memory_kernel("softmax", scores, scores));
    } else {
        list.push_back(memory_kernel("scale_mask_softmax", scores + s.bias, scores));
        list.back().is_causal = a.is_causal;
    }
    if (a.probability > 0) list.push_back(memory_kernel("attention_dropout", scores, scores + s.scores));
    list.push_back(product_kernel("attention_context", s.shape.batch, s.shape.queries,
                                  s.shape.value_dimension, s.shape.keys, s.element));
    list.push_back(memory_kernel("merge_heads", s.output, s.output));
}

void append_backward(std::vector<Kernel>& list, const Operator& op, const Sizes& s,
                     const CostContext& context) {
    const Attributes& a = op.attributes;
    append_window_moves(list, op, s, "window_partition_backward");
    if (context.attention == AttentionImplementation::flash) {
        list.push_back(flash_kernel(s, true));
    } else {
        const double scores = s.scores * s.element;
        const AttentionShape& h = s.shape;
        list.push_back(memory_kernel("merge_heads_backward", s.output, s.output));
        list.push_back(transposed_product_kernel("attention_value_gradient", h.batch, h.keys,
                                                 h.value_dimension, h.queries, s.element));
        list.push_back(product_kernel("attention_probability_gradient", h.batch, h.queries, h.keys,
                                      h.value_dimension, s.element));
        if (a.probability > 0)
            list.push_back(memory_kernel("attention_dropout_backward", scores + s.scores, scores));
        list.push_back(memory_kernel("softmax_backward", 2 * scores, scores));
        list.back().is_causal = a.is_causal && context.attention == AttentionImplementation::fused_softmax;
        if (context.attention == AttentionImplementation::unfused) {
            // A causal mask overwrites scores, and their gradients; a padding mask is added, and gradients
            // pass.
            if (a.is_causal || a.has_relative_positions)
                list.push_back(memory_kernel("mask_backward", scores, scores));
            list.push_back(memory_kernel("scale_backward", scores, scores));
        }
        append_soft_cap(list, op, s, "soft_cap_backward");
        if (a.has_relative_positions) {
            list.push_back(memory_kernel("relative_shift_backward", scores, 2 * scores));
            list.push_back(product_kernel("position_query_gradient", h.batch, h.queries, h.head_dimension,
                                          h.keys, s.element));
            list.push_back(transposed_product_kernel("position_key_gradient", h.batch, h.keys,
                                                     h.head_dimension, h.queries, s.element));
            list.push_back(memory_kernel("query_biases_backward", 2 * s.query, s.query));
        }
        list.push_back(product_kernel("attention_query_gradient", h.batch, h.queries, h.head_dimension,
                                      h.keys, s.element));
        list.push_back(transposed_product_kernel("attention_key_gradient", h.batch, h.keys, h.head_dimension,
                                                 h.queries, s.element));
        if (context.attention == AttentionImplementation::unfused)
            list.push_back(
                memory_kernel("split_heads_backward", s.query + s.key_value, s.query + s.key_value));
    }
    if (a.is_rotary) append_rotary(list, s, "rotary_backward");
    append_norms(list, op, s, true);
}

// The same order as in Transformer Engine (context_parallel.py of d0067d0da, 2026-08-22): sums and results of
// the pieces are merged one by one, so are gradients.
void append_piece(std::vector<Kernel>& list, const Operator& op, const Sizes& s, bool is_backward, int ranks,
                  int piece) {
    const bool is_own = piece == (is_backward ? ranks - 1 : 0);
    // Half of the queries, or of the keys, of another rank's tokens (piece_kernel): as often one as the
    // other.
    const double share = s.shape.is_causal && !is_own ? 0.75 : 1;
    if (!is_backward && is_own) {
        append_norms(list, op, s, false);
        if (op.attributes.is_rotary) append_rotary(list, s, "rotary");
        list.push_back(memory_kernel("pack_keys", s.key_value, s.key_value));
    }
    list.push_back(piece_kernel(s, ranks, is_own, is_backward));
    if (is_backward) {
        const int read = piece == 0 ? 1 : 2;  // the first begins the sums
        for (const double bytes : {s.query * share, s.key_value * share})
            list.push_back(memory_kernel("add_gradients", read * bytes, bytes));
        if (!is_own) return;
        if (op.attributes.is_rotary) append_rotary(list, s, "rotary_backward");
        append_norms(list, op, s, true);
        return;
    }
    if (!is_own) list.push_back(memory_kernel("merge_sums", 2 * s.statistics * share, s.statistics * share));
    list.push_back(memory_kernel("merge_outputs", (is_own ? 1 : 2) * s.output * share, s.output * share));
}

// Scales of norms, sums over tokens; a sink's gradient is of the size of its head's statistics.
void append_parameter_gradients(std::vector<Kernel>& list, const Operator& op, const Sizes& s) {
    if (op.parameters.empty()) return;
    if (op.attributes.query_key_norm != QueryKeyNorm::none)
        list.push_back(memory_kernel("query_key_norm_gradient", 2 * (s.query + s.own_key), 0));
    if (op.attributes.has_sinks) list.push_back(memory_kernel("sink_gradient", s.statistics, 0));
}

}  // namespace

std::vector<Kernel> attention_piece_kernels(const ModelGraph& graph, const Operator& op, Phase phase,
                                            const CostContext& context, int piece) {
    std::vector<Kernel> list;
    append_piece(list, op, sizes_of(graph, op, context), phase != Phase::forward, context.context_parallel,
                 piece);
    return list;
}

void append_attention_kernels(std::vector<Kernel>& list, const ModelGraph& graph, const Operator& op,
                              Phase phase, const CostContext& context) {
    const Sizes s = sizes_of(graph, op, context);
    if (passes_keys(op, context)) {
        for (int piece = 0; phase != Phase::backward_weight && piece < context.context_parallel; ++piece)
            append_piece(list, op, s, phase != Phase::forward, context.context_parallel, piece);
    } else if (phase == Phase::forward) append_forward(list, op, s, context);
    else if (phase == Phase::backward_input) append_backward(list, op, s, context);
    else if (op.attributes.has_relative_positions)
        list.push_back(transposed_product_kernel("position_projection_gradient", 1,
                                                 s.shape.heads * s.shape.head_dimension, s.width,
                                                 s.shape.keys, s.element));
    else if (op.attributes.has_relative_bias)
        list.push_back(memory_kernel("relative_bias_gradient", s.scores * s.element, s.bias));
    if (phase == Phase::backward_weight) append_parameter_gradients(list, op, s);
}

}  // namespace model
