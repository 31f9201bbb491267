#include "exec/cuda/operator/fused_parts.h"

#include "model/operators/cost.h"

namespace exec::cuda {

namespace {

char* at(const void* base, std::int64_t element, Type type) {
    return static_cast<char*>(const_cast<void*>(base)) + element * static_cast<std::int64_t>(size_of(type));
}

FusedAttentionArrays arrays_of(const AttentionShape& s, const FusedPart& part, Type type, const void* qkv,
                               const void* memory, const void* y, const float* log_sums) {
    const char* keys = memory ? at(memory, 0, type) : at(qkv, s.heads * s.head_dimension, type);
    FusedAttentionArrays arrays;
    arrays.queries = at(qkv, part.first_query * s.row(), type);
    arrays.keys = keys;
    arrays.values = at(keys, s.kv_heads * s.head_dimension, type);
    arrays.output = at(y, part.first_query * part.shape.output_row, type);
    arrays.log_sums = const_cast<float*>(log_sums) + s.samples * s.heads * part.first_query;
    arrays.seed = s.dropout_keys;
    arrays.offset = s.library_offset;
    return arrays;
}

}  // namespace

std::vector<FusedPart> fused_parts(const AttentionShape& s) {
    const auto part = [&](std::int64_t first, std::int64_t queries, std::int64_t keys,
                          bool is_causal = true) {
        const std::int64_t output_row = s.heads * s.head_dimension;
        return FusedPart{{s.samples, queries, keys, s.heads, s.kv_heads, s.head_dimension,
                          s.is_causal && is_causal, s.window, s.scale, s.dropout, s.row(), s.tokens * s.row(),
                          s.key_row(), s.key_count() * s.key_row(), output_row, s.tokens * output_row},
                         first};
    };
    if (s.keys == 0 || !s.is_causal) return {part(0, s.tokens, s.key_count())};
    const std::int64_t first = s.token_range.part;
    if (s.key_range.part > 0) {
        const std::int64_t all = s.tokens;
        if (s.key_range.first == s.token_range.first)
            return {part(0, first, first), part(first, all - first, all)};
        if (s.key_range.first > s.token_range.first) return {part(first, all - first, all, false)};
        return {part(0, first, first, false), part(first, all - first, first, false)};
    }
    if (first == s.tokens) return {part(0, s.tokens, s.token_range.first + s.tokens)};
    return {part(0, first, s.token_range.first + first),
            part(first, s.tokens - first, s.token_range.second + s.tokens - first)};
}

std::optional<core::Unsupported> fused_attention_unsupported(const Machine& machine, Type type,
                                                             const AttentionShape& shape) {
    if (shape.alibi_slopes)
        return core::Unsupported{
            "ALiBi: cuDNN makes slopes of its own, for a power of two of heads that one rank has all of"};
    if (shape.dropout > 0 && !shape.library_offset)
        return core::Unsupported{
            "dropout that drops what the CPU drops (--check): cuDNN's masks are its own"};
    if (shape.dropout > 0 && shape.key_range.part > 0)
        return core::Unsupported{"dropout in a ring: cuDNN's masks would be those of every other piece"};
    for (const FusedPart& part : fused_parts(shape))
        if (auto unsupported = machine.fused_attention_unsupported(type, part.shape)) return unsupported;
    return std::nullopt;
}

void fused_attention(Machine& machine, Stream stream, Type type, const AttentionShape& shape, const void* qkv,
                     const void* memory, void* y, float* log_sums) {
    for (const FusedPart& part : fused_parts(shape))
        machine.fused_attention(stream, type, part.shape,
                                arrays_of(shape, part, type, qkv, memory, y, log_sums));
}

std::size_t fused_workspace(const AttentionShape& s, Type type) {
    return fused_parts(s).size() == 1 ? 0 : (s.samples * s.keys * s.key_row()) * size_of(type);
}

void fused_attention_backward(Machine& machine, Stream stream, Type type, const AttentionShape& s,
                              const void* qkv, const void* memory, const void* y, const float* log_sums,
                              const void* dy, void* dqkv, void* dmemory, void* workspace) {
    const std::vector<FusedPart> parts = fused_parts(s);
    const auto perform = [&](const FusedPart& part, void* keys) {
        FusedAttentionGradients gradients;
        gradients.output = at(dy, part.first_query * part.shape.output_row, type);
        gradients.queries = at(dqkv, part.first_query * s.row(), type);
        gradients.keys = keys;
        gradients.values = at(keys, s.kv_heads * s.head_dimension, type);
        machine.fused_attention_backward(stream, type, part.shape,
                                         arrays_of(s, part, type, qkv, memory, y, log_sums), gradients);
    };
    // The last part sees the most keys. Keys that no query sees have no gradient; to those that the part
    // before sees its gradient is added.
    const FusedPart& last = parts.back();
    if (memory && last.shape.keys < s.keys)
        machine.fill_zero(stream, dmemory, (s.samples * s.keys * s.key_row()) * size_of(type));
    perform(last, memory ? dmemory : at(dqkv, s.heads * s.head_dimension, type));
    if (parts.size() == 1) return;
    perform(parts[0], workspace);
    const std::int64_t sample = s.keys * s.key_row();
    machine.kernels().move_columns(
        stream, type, {s.samples, parts[0].shape.keys, s.key_row(), s.key_row(), sample, s.key_row(), sample},
        workspace, dmemory, true);
}

}  // namespace exec::cuda
