// Our own kernels on a GPU, as a table of launches. The same text (body/) is compiled by nvcc for the device
// and by the host's compiler for the emulation that tests run without a GPU: index arithmetic, shared memory,
// barriers and warp exchanges are executed, not imitated.
//
// Matrices are row-major. Every launch returns at once; work is in order on its stream. `accumulates`: adds
// to the result instead of writing it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "exec/float8.h"

namespace exec::cuda {

using Stream = void*;  // a cudaStream_t

enum class Type : std::uint8_t { fp32, bf16, fp16 };
// Bytes of an element.
constexpr std::size_t size_of(Type type) {
    switch (type) {
        case Type::fp32: return 4;
        case Type::bf16:
        case Type::fp16: return 2;
    }
    return 0;
}

enum class Unary : std::uint8_t { gelu, gelu_tanh, relu, silu, tanh };

// Parameters and their gradients, which may have another type than activations. Null data: there is none.
struct Values {
    const void* data = nullptr;
    Type type = Type::fp32;
};
struct Sums {
    void* data = nullptr;
    Type type = Type::fp32;
    bool accumulates = true;  // false: there is nothing yet to add to, and no need to read it
};

// Which tokens of a sequence the rows of a sample are: all, in order, or `part` of them from `first` on and
// as many from `second` on (context parallelism). A segment of a sequence (Seq1F1B) is a first part alone.
struct TokenRange {
    std::int64_t part = 0, first = 0, second = 0;  // part 0: all
};

// Which scores or elements drop: those whose hash(key of the sample, index) is below the probability, as on
// the CPU. `keys` are in device memory, by sample.
struct DropoutShape {
    std::int64_t rows = 0, columns = 0;            // of the array
    std::int64_t rows_per_sample = 1, width = 0;   // of the whole tensor
    std::int64_t first_row = 0, first_column = 0;  // of this rank's share
    float probability = 0;
    const std::uint64_t* keys = nullptr;
    TokenRange token_range = {};
};

// Packed rows [samples * tokens, (heads + 2 kv_heads) head_dimension], result [samples * tokens, heads *
// head_dimension]. With `keys` > 0 the queries are those of `token_range` alone, and keys and values lie in
// an array of their own, [samples * keys, 2 kv_heads head_dimension].
struct AttentionShape {
    std::int64_t samples = 1, tokens = 0, heads = 1, kv_heads = 1, head_dimension = 0;
    bool is_causal = false;
    std::int64_t window = 0;  // 0 = none
    float scale = 1;
    const float* alibi_slopes = nullptr;  // [heads], device memory
    float dropout = 0;
    const std::uint64_t* dropout_keys = nullptr;    // device memory, by sample
    const std::uint64_t* library_offset = nullptr;  // device memory: a library may drop by random numbers of
                                                    // its own, from there on; null: it may not
    std::int64_t first_head = 0;
    std::int64_t keys = 0;
    TokenRange token_range = {};
    std::int64_t whole_sequence = 0;  // of which the keys are a part; 0 = all. Dropout goes by it
    TokenRange key_range = {};        // which part (a ring); none: the first (a segment of a sequence)
    constexpr std::int64_t row() const { return (heads + 2 * kv_heads) * head_dimension; }
    constexpr std::int64_t key_row() const { return keys > 0 ? 2 * kv_heads * head_dimension : row(); }
    constexpr std::int64_t key_count() const { return keys > 0 ? keys : tokens; }
    constexpr std::int64_t sequence() const { return whole_sequence > 0 ? whole_sequence : key_count(); }
};
struct RotationShape {
    std::int64_t samples = 1, tokens = 0, heads = 1, kv_heads = 1, head_dimension = 0;
    std::int64_t dimension = 0;      // first dimensions of a head that are turned, pairs (i, i + half)
    const float* cosines = nullptr;  // [tokens of a sequence, dimension / 2], device memory
    const float* sines = nullptr;
    TokenRange token_range = {};
};

// `width` columns of `rows` rows of every sample, from the first addressed on; distances in elements on both
// sides.
struct ColumnMove {
    std::int64_t samples = 1, rows = 0, width = 0;
    std::int64_t from_row = 0, from_sample = 0;
    std::int64_t to_row = 0, to_sample = 0;
};

struct ImageShape {
    std::int64_t samples = 1, channels = 1, rows = 1, columns = 1;
    std::int64_t out_channels = 1, out_rows = 1, out_columns = 1;
    std::int64_t kernel_y = 1, kernel_x = 1, stride = 1, padding = 0;
};

// Of `columns` stored logits the first `valid` are classes first_class ...
struct ClassShape {
    std::int64_t rows = 0, columns = 0, valid = 0, first_class = 0;
    std::int64_t blocks = 1;  // of how many ranks the statistics hold the parts
    // Logits are stored [columns, rows]: where a row of classes is no multiple of 16 bytes, matrix units and
    // wide loads want the tokens next to one another.
    bool is_across = false;
};

// One contiguous range of parameters: see exec::UpdateRange. In device memory.
struct DeviceRange {
    void *parameter, *gradient;
    float *master, *first, *second;
    std::int64_t count;
    float weight_decay;
    // LAMB: the parameter's place in its bucket, whether this rank's sums count, and the first of the range's
    // chunks.
    std::int32_t place = 0, is_counted = 1;
    std::int64_t first_chunk = 0;
};
struct UpdateChunk {
    std::int32_t range;
    std::int64_t begin;
};
inline constexpr std::int64_t update_chunk = 8192;  // elements a block updates

// A mixture of experts: `chosen` experts a token, of which each takes `capacity` routed tokens at most.
struct RoutingShape {
    std::int64_t tokens = 0, experts = 0, chosen = 1, hidden = 0, capacity = 0;
};

// Blocks of routed tokens one behind the other, block b of expert b % experts. `table`, in device memory: the
// first row of each block, then the first of its tiles of so many rows; both lists end with the total.
inline constexpr std::int32_t expert_tile_rows = 128;
struct ExpertBlocks {
    std::int64_t count = 0, experts = 0;
    std::int64_t rows = 0;  // of all blocks at most
    const std::int32_t* table = nullptr;
};
constexpr std::size_t expert_table_bytes(std::size_t blocks) {
    return 2 * (blocks + 1) * sizeof(std::int32_t);
}

// What changes from step to step, in device memory, so that a captured graph need not change.
struct StepFactors {
    float learning_rate, beta1, beta2, epsilon, momentum;
    float step_size;  // Adam: learning rate / (1 - beta1^t); LAMB: 1 / (1 - beta1^t), its rate has the trust
                      // ratio in it
    float second_correction;  // 1 / sqrt(1 - beta2^t)
    float loss_scale;         // gradients are this much too large (fp16); 1 otherwise
    float is_decoupled;       // AdamW
    float largest_norm;       // of all gradients together, where they are clipped
    float rest1,
        rest2;  // 1 - beta, of the real number: of a beta2 in fp32 the difference keeps three digits only
};
enum class UpdateRule : std::uint8_t { sgd, adam };

inline constexpr int float8_partials =
    256;  // at most so many numbers go between the two passes over a tensor that becomes fp8

// fp8 written along with a result in bf16, under the scale of the last time (body/octets.h). All in device
// memory; `guess` may hold anything.
struct CastAlong {
    float* guess = nullptr;    // becomes the scale, for the next time
    float* guessed = nullptr;  // what the octets were written with
    std::uint8_t* octets = nullptr;
    float* partials = nullptr;  // along_partials numbers
};
inline constexpr int along_partials = 1024;
// x = a, or (b not null) x = sum = a + b.
struct NormTerms {
    const void *a = nullptr, *b = nullptr;
    void* sum = nullptr;
};

struct Kernels {
    void (*cast)(Stream, Type from, Type to, std::int64_t count, const void* x, void* y);
    // Of parts of x the largest magnitude, infinite where something is no finite number: what the next call,
    // of as many elements, takes.
    void (*largest_magnitudes)(Stream, Type, std::int64_t count, const void* x, float* partials);
    // x [rows, columns] in octets under the scale of its largest magnitude, as it is and with rows and
    // columns exchanged (null: not wanted). `unscale` becomes what takes octets back to x.
    void (*cast_to_float8)(Stream, Type, Float8, std::int64_t rows, std::int64_t columns, const void* x,
                           const float* partials, float* unscale, std::uint8_t* plain, std::uint8_t* turned);
    // Of bf16: layer_norm or rms_norm, of a sum too (add_and_norm), and gated, with the octets of their
    // result in e4m3. The result is the same bits as without.
    void (*norm_with_octets)(Stream, bool is_layer, std::int64_t rows, std::int64_t width, float epsilon,
                             const NormTerms& x, Values scale, Values shift, void* y, float* statistics,
                             const CastAlong& cast);
    void (*gated_with_octets)(Stream, Unary, std::int64_t rows, std::int64_t width, const void* x, void* y,
                              const CastAlong& cast);
    // After one of them: octets of x, its result, and `unscale` as cast_to_float8 makes them.
    void (*confirm_octets)(Stream, std::int64_t count, const void* x, const CastAlong& cast, float* unscale);
    void (*add)(Stream, Type, std::int64_t count, const void* a, const void* b, void* y);
    void (*scale)(Stream, Type, std::int64_t count, float factor, const void* x, void* y, bool accumulates);
    void (*unary)(Stream, Type, Unary, std::int64_t count, const void* x, void* y);
    // `saved` is the input for gelu and silu, the output for relu and tanh.
    void (*unary_backward)(Stream, Type, Unary, std::int64_t count, const void* saved, const void* dy,
                           void* dx, bool accumulates);
    void (*gated)(Stream, Type, Unary, std::int64_t rows, std::int64_t width, const void* x, void* y);
    void (*gated_backward)(Stream, Type, Unary, std::int64_t rows, std::int64_t width, const void* x,
                           const void* dy, void* dx, bool accumulates);
    // `residual` may be null.
    void (*dropout)(Stream, Type, const DropoutShape&, const void* x, const void* residual, void* y,
                    std::uint8_t* mask);
    void (*dropout_backward)(Stream, Type, std::int64_t count, float probability, const std::uint8_t* mask,
                             const void* dy, void* dx, bool accumulates);

    // statistics: [rows, 2] mean and reciprocal deviation. Backward adds to `base`, which is dx, another
    // array, or null: nothing.
    void (*layer_norm)(Stream, Type, std::int64_t rows, std::int64_t width, float epsilon, const void* x,
                       Values scale, Values shift, void* y, float* statistics);
    void (*layer_norm_backward)(Stream, Type, std::int64_t rows, std::int64_t width, const void* x,
                                const float* statistics, Values scale, const void* dy, void* dx,
                                const void* base);
    // statistics: [rows] reciprocal root mean square.
    void (*rms_norm)(Stream, Type, std::int64_t rows, std::int64_t width, float epsilon, const void* x,
                     Values scale, void* y, float* statistics);
    void (*rms_norm_backward)(Stream, Type, std::int64_t rows, std::int64_t width, const void* x,
                              const float* statistics, Values scale, const void* dy, void* dx,
                              const void* base);
    // dscale, dshift += ...; of a layer norm (is_layer) or an rms norm. workspace: norm_workspace(rows,
    // width) bytes.
    void (*norm_weights)(Stream, Type, bool is_layer, std::int64_t rows, std::int64_t width, const void* x,
                         const float* statistics, const void* dy, Sums dscale, Sums dshift, void* workspace);
    // sum = a + b and the norm of that sum, in one pass: both the same bits as one after the other. `sum` may
    // be a or b.
    void (*add_and_norm)(Stream, Type, bool is_layer, std::int64_t rows, std::int64_t width, float epsilon,
                         const void* a, const void* b, void* sum, Values scale, Values shift, void* y,
                         float* statistics);
    // dx as layer_norm_backward or rms_norm_backward write it, and dscale, dshift += ..., reading x and dy
    // once where rows are aligned and fit (8,192 halves), else one after the other. workspace:
    // norm_gradients_workspace(rows, width) bytes.
    void (*norm_gradients)(Stream, Type, bool is_layer, std::int64_t rows, std::int64_t width, const void* x,
                           const float* statistics, Values scale, const void* dy, void* dx, const void* base,
                           Sums dscale, Sums dshift, void* workspace);
    // sum += over r of x[r]. workspace: norm_workspace.
    void (*column_sums)(Stream, Type, std::int64_t rows, std::int64_t columns, const void* x, Sums sum,
                        void* workspace);
    void (*batch_norm)(Stream, Type, const ImageShape&, float epsilon, const void* x, Values scale,
                       Values shift, void* y, float* statistics);
    void (*batch_norm_backward)(Stream, Type, const ImageShape&, const void* x, const float* statistics,
                                Values scale, const void* dy, void* dx, bool accumulates);
    void (*batch_norm_weights)(Stream, Type, const ImageShape&, const void* x, const float* statistics,
                               const void* dy, Sums dscale, Sums dshift);

    // Rows of the table whose ids are [first, first + table): zero for others. Backward adds in an order of
    // its own, the same every time; fewer than 2^32 rows and ids. workspace: embedding_workspace(rows, width)
    // bytes.
    void (*embedding)(Stream, Type, std::int64_t rows, std::int64_t width, std::int64_t first,
                      std::int64_t table, const std::int64_t* ids, Values parameter, void* y);
    void (*embedding_weight)(Stream, Type, std::int64_t rows, std::int64_t width, std::int64_t first,
                             std::int64_t table, const std::int64_t* ids, const void* dy, Sums dtable,
                             void* workspace);
    // y[r] = x[r] + table[place of token (first_row + r) % tokens + offset].
    void (*positions)(Stream, Type, std::int64_t rows, std::int64_t width, std::int64_t tokens,
                      const TokenRange& token_range, std::int64_t first_row, std::int64_t offset,
                      const void* x, Values table, void* y);
    void (*positions_weight)(Stream, Type, std::int64_t rows, std::int64_t width, std::int64_t tokens,
                             const TokenRange& token_range, std::int64_t first_row, std::int64_t offset,
                             const void* dy, Sums dtable);

    // A packed row with its queries and keys turned, or (inverse) turned back; values are copied.
    void (*rotate)(Stream, Type, const RotationShape&, bool is_inverse, const void* x, void* y,
                   bool accumulates);
    // The same, in place; values are not touched.
    void (*rotate_in_place)(Stream, Type, const RotationShape&, bool is_inverse, void* x);
    // For whatever cuDNN's fused attention does not take: any type, windows, ALiBi, our dropout. log_sums:
    // [samples, heads, tokens]. `memory`: where keys and values lie apart, else null.
    void (*attention)(Stream, Type, const AttentionShape&, const void* qkv, const void* memory, void* y,
                      float* log_sums);
    // dqkv and dmemory are overwritten, but for keys and values in dqkv where these lie apart. workspace:
    // samples * heads * tokens floats.
    void (*attention_backward)(Stream, Type, const AttentionShape&, const void* qkv, const void* memory,
                               const void* y, const float* log_sums, const void* dy, void* dqkv,
                               void* dmemory, void* workspace);
    // Unfused: scores [samples * heads, tokens, keys] to probabilities in place; dropped and mask when there
    // is dropout, else null.
    void (*attention_softmax)(Stream, Type, const AttentionShape&, void* scores, void* dropped,
                              std::uint8_t* mask);
    // dp (gradient of what multiplies the values) becomes the scores' gradient.
    void (*attention_softmax_backward)(Stream, Type, const AttentionShape&, const void* probabilities,
                                       const std::uint8_t* mask, void* dp);

    // Into y and log_sums what queries [first, first + count) found in other keys; sums: of these queries.
    void (*merge_attention)(Stream, Type, const AttentionShape&, std::int64_t first, std::int64_t count,
                            const void* part, const float* part_sums, void* y, float* log_sums);
    void (*move_columns)(Stream, Type, const ColumnMove&, const void* from, void* to, bool accumulates);
    // Between what `degree` ranks of a context-parallel group hold, one after the other (a part of 2 `degree`
    // from the front and one from the back of every sample), and rows [samples * tokens, width] in the order
    // of sequences.
    void (*order_parts)(Stream, Type, std::int64_t samples, std::int64_t tokens, std::int64_t degree,
                        std::int64_t width, bool is_inverse, const void* x, void* y);

    // Which experts tokens go to, and in which rows the routed tokens stand: routing, of
    // routing_workspace(shape) bytes. At most 32 experts a token.
    void (*route)(Stream, Type, const RoutingShape&, const void* probabilities, void* routing);
    // Counts by expert in fp32: of choices or (is_limited) of routed tokens after the capacity.
    void (*expert_counts)(Stream, const RoutingShape&, const void* routing, bool is_limited, float* counts);
    // A table of ExpertBlocks: an expert a block, from routing after the capacity; of blocks the host knows.
    void (*expert_table)(Stream, const RoutingShape&, const void* routing, std::int32_t* table);
    void (*known_expert_table)(Stream, const std::vector<std::int64_t>& rows, std::int32_t* table);
    // c [rows, n] from a [rows, k] and weights of each row's expert: [n, k] if it `transposes`, else [k, n].
    void (*expert_products)(Stream, Type, bool uses_tf32, const ExpertBlocks&, std::int64_t n, std::int64_t k,
                            const void* a, const void* weights, bool transposes, void* c, bool accumulates);
    // gradients [experts, m, n] from a [rows, m] and b [rows, n]: of every expert the sum over its rows.
    void (*expert_weight_gradients)(Stream, Type, bool uses_tf32, const ExpertBlocks&, std::int64_t m,
                                    std::int64_t n, const void* a, const void* b, Sums gradients);
    void (*router_softmax)(Stream, Type, std::int64_t tokens, std::int64_t experts, const float* logits,
                           void* probabilities);
    // dlogits; to the gradient of every probability comes balance * loss_scale * chosen[expert], where chosen
    // is not null.
    void (*router_gradient)(Stream, Type, std::int64_t tokens, std::int64_t experts, float balance,
                            const StepFactors* factors, const float* chosen, const void* probabilities,
                            const void* dy, void* dlogits);
    // Rows without a routed token are left as they are.
    void (*dispatch)(Stream, Type, const RoutingShape&, const void* routing, const void* x, void* y);
    void (*dispatch_backward)(Stream, Type, const RoutingShape&, const void* routing, const void* dy,
                              void* dx, bool accumulates);
    void (*combine)(Stream, Type, const RoutingShape&, const void* routing, const void* x, void* y);
    // dx and dprobabilities may be null; the latter is added to. Rows of dx without a routed token are left
    // as they are.
    void (*combine_backward)(Stream, Type, const RoutingShape&, const void* routing, const void* x,
                             const void* probabilities, const void* dy, void* dx, void* dprobabilities,
                             bool accumulates);

    // statistics [rows, 3]: maximum, sum of exponentials, logit of the label (0 elsewhere). workspace:
    // loss_workspace(shape) bytes.
    void (*loss_statistics)(Stream, Type, const ClassShape&, const void* logits, const std::int64_t* labels,
                            float* statistics, void* workspace);
    // loss[0 ... copies) = mean over rows; probabilities (fp32, laid out as the logits) when not null.
    void (*cross_entropy)(Stream, Type, const ClassShape&, const void* logits, const float* statistics,
                          float* loss, std::int64_t copies, float* probabilities);
    // dlogits = factor * loss_scale (p - [label]), from kept probabilities or, when null, from the logits
    // again; dlogits may be the logits.
    void (*cross_entropy_backward)(Stream, Type, const ClassShape&, float factor, const StepFactors* factors,
                                   const void* logits, const float* statistics, const float* probabilities,
                                   const std::int64_t* labels, void* dlogits, bool accumulates);
    void (*add_loss)(Stream, const float* loss, float weight, float* sum);

    void (*max_pool)(Stream, Type, const ImageShape&, const void* x, void* y, std::int64_t* positions);
    void (*max_pool_backward)(Stream, Type, const ImageShape&, const std::int64_t* positions, const void* dy,
                              void* dx, bool accumulates);
    void (*average_pool)(Stream, Type, const ImageShape&, const void* x, void* y);
    void (*average_pool_backward)(Stream, Type, const ImageShape&, const void* dy, void* dx,
                                  bool accumulates);
    void (*add_channel_bias)(Stream, Type, const ImageShape&, Values bias, void* y);
    // Over samples and pixels of out_channels planes.
    void (*channel_sums)(Stream, Type, const ImageShape&, const void* dy, Sums sum);

    // [samples, leading, rest] -> [samples, rest, leading].
    void (*transpose)(Stream, Type, std::int64_t samples, std::int64_t leading, std::int64_t rest,
                      const void* x, void* y, bool accumulates);
    void (*average_tokens)(Stream, Type, std::int64_t samples, std::int64_t tokens, std::int64_t width,
                           const void* x, void* y);
    void (*average_tokens_backward)(Stream, Type, std::int64_t samples, std::int64_t tokens,
                                    std::int64_t width, const void* dy, void* dx, bool accumulates);
    // Row r of the result is row r / selected * tokens + positions[r] of x (positions null: 0). Backward
    // adds, row after row.
    void (*select)(Stream, Type, std::int64_t rows, std::int64_t selected, std::int64_t tokens,
                   std::int64_t width, const std::int64_t* positions, const void* x, void* y);
    void (*select_backward)(Stream, Type, std::int64_t rows, std::int64_t selected, std::int64_t tokens,
                            std::int64_t width, const std::int64_t* positions, const void* dy, void* dx);

    // One launch for all ranges. Nothing is changed when *bad is not 0 (null: not asked). With squares, the
    // sum of squares of all gradients (unscaled), gradients are first multiplied, in place, by min(1,
    // largest_norm / (sqrt(squares) + 1e-6)).
    void (*update)(Stream, UpdateRule, Type parameters, Type gradients, const DeviceRange* ranges,
                   const UpdateChunk* chunks, std::int64_t chunk_count, const StepFactors* factors,
                   const float* bad, const float* squares);
    // LAMB (arXiv 1904.00962, algorithm 2) in two parts; bad and squares are as above. First moments, and
    // sums[2 place], [2 place + 1] of every range: the sums of squares of its values and of its update, zero
    // where it is not counted; other sums stay. partials: 2 floats a chunk.
    void (*update_norms)(Stream, Type parameters, Type gradients, const DeviceRange* ranges,
                         std::int64_t range_count, const UpdateChunk* chunks, std::int64_t chunk_count,
                         const StepFactors* factors, const float* bad, const float* squares, float* partials,
                         float* sums);
    // Then values, by whole sums; the update is made of the moments again.
    void (*lamb)(Stream, Type parameters, const DeviceRange* ranges, const UpdateChunk* chunks,
                 std::int64_t chunk_count, const StepFactors* factors, const float* bad, const float* sums);
    // norm[0] = sum of squares of all gradients (unscaled), norm[1] = 1 when one of them is no finite number.
    // partials: 2 floats a chunk.
    void (*gradient_norm)(Stream, Type gradients, const DeviceRange* ranges, const UpdateChunk* chunks,
                          std::int64_t chunk_count, const StepFactors* factors, float* partials, float* norm);
};

// Bytes for norm_weights and column_sums, for norm_gradients, for route.
std::size_t norm_workspace(std::int64_t rows, std::int64_t width);
std::size_t norm_gradients_workspace(std::int64_t rows, std::int64_t width);
std::size_t routing_workspace(const RoutingShape& shape);
// Bytes for embedding_weight.
std::size_t embedding_workspace(std::int64_t rows, std::int64_t width);
// Bytes for loss_statistics.
std::size_t loss_workspace(const ClassShape& shape);

}  // namespace exec::cuda
