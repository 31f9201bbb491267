// fp32 kernels, each compiled for several instruction sets (body/table.cpp). The best set of this processor
// is chosen once, at run time.
//
// Matrices are row-major. Backward kernels add to the gradients they are given. A call runs on the caller's
// thread alone, since a rank is a thread.
#pragma once

#include <cstdint>
#include <string_view>

namespace exec::cpu {

enum class Unary { gelu, gelu_tanh, relu, silu, tanh };

// Attention of one micro-batch on one rank. Queries, keys and values are packed in rows
// [samples * tokens, (heads + 2 kv_heads) d]. Cross-attention has rows of queries [samples * tokens, heads d]
// and rows of keys and values [samples * keys, 2 kv_heads d].
struct AttentionShape {
    std::int64_t samples = 1, tokens = 0, heads = 1, kv_heads = 1, head_dimension = 0;
    bool is_causal = false;
    std::int64_t window = 0;  // keys that a query sees, itself included; 0 = all
    float scale = 1;          // factor of the scores
    // The first rotary_dimension dimensions of a head are rotated in pairs (i, i + half); 0 = none.
    std::int64_t rotary_dimension = 0;
    const float* cosines = nullptr;  // [sequence, rotary_dimension / 2]
    const float* sines = nullptr;
    const float* alibi_slopes = nullptr;  // [heads] of this rank; null = no ALiBi
    float dropout = 0;  // probability that a score is dropped; its sample's key and its place decide
    const std::uint64_t* dropout_keys = nullptr;  // [samples]
    std::int64_t first_head = 0;                  // index of this rank's first head among all heads
    // Keys of a sample when keys and values have rows of their own (cross-attention, context parallelism);
    // 0 = they are packed behind the queries.
    std::int64_t keys = 0;
    // Stride of the rows of queries, in elements, when keys have rows of their own; 0 = heads d.
    std::int64_t query_row = 0;
    // Positions of the queries in the sequence of the keys, ascending; null = every token is a query. Masks,
    // rotations and dropout go by these positions.
    const std::int32_t* places = nullptr;
    std::int64_t place(std::int64_t query) const { return places ? places[query] : query; }
    // The same of the keys, which then are not all of the sequence's (a ring); null = they are the first
    // ones.
    const std::int32_t* key_places = nullptr;
    std::int64_t key_place(std::int64_t key) const { return key_places ? key_places[key] : key; }
    // Forward: results and sums of other keys are there, and those of these are merged into them.
    bool joins = false;
    std::int64_t sequence() const { return places ? keys : tokens; }
    // Tokens of the whole sequence when the keys are only a part of it (Seq1F1B, a ring); 0 = the keys are
    // all of it. Dropout numbers the scores by it.
    std::int64_t whole_sequence = 0;
    // Scores get bias[bias_buckets[query * keys + key] * heads + head] added; null = none.
    const float* bias = nullptr;
    const std::int32_t* bias_buckets = nullptr;
};
// Arrays that the forward pass saves for the backward pass. Flash attention saves the logarithms of the sums
// of exponentials [samples, heads, tokens]. Unfused attention saves the probabilities
// [samples, heads, tokens, tokens], and with dropout also the dropped probabilities and the mask.
struct AttentionSaved {
    float* log_sums = nullptr;
    float* probabilities = nullptr;
    float* dropped = nullptr;
    std::uint8_t* mask = nullptr;
    // Backward, where the keys are not all: what came of all of them, [samples * tokens, heads d].
    const float* output = nullptr;
};

struct ImageShape {
    std::int64_t samples = 1, channels = 1, rows = 1, columns = 1;  // input
    std::int64_t out_channels = 1, out_rows = 1, out_columns = 1;
    std::int64_t kernel_y = 1, kernel_x = 1, stride = 1, padding = 0;
};

struct AdamStep {
    float learning_rate, beta1, beta2, epsilon, weight_decay;
    float correction1, correction2;  // 1 - beta^step
    bool is_decoupled;               // AdamW
    // 1 - beta, subtracted in double precision before it is rounded to fp32, as PyTorch does. Subtracted in
    // fp32, 1 - 0.999 is 1.3e-5 too small and every update 6e-6 too large.
    float rest1, rest2;
};

struct Kernels {
    std::string_view instruction_set;

    // c = alpha op(a) op(b) (+ c): op(a) is m x k, op(b) k x n; leading dimensions are of the stored
    // matrices.
    void (*product)(bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n, std::int64_t k,
                    float alpha, const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float* c,
                    std::int64_t ldc, bool accumulates);
    void (*add_row)(std::int64_t rows, std::int64_t columns, const float* row, float* y);  // y[r] += row
    void (*sum_rows)(std::int64_t rows, std::int64_t columns, const float* x,
                     float* sum);  // sum += over r of x[r]

    void (*add)(std::int64_t count, const float* a, const float* b, float* y);
    void (*accumulate)(std::int64_t count, const float* x, float* y);  // y += x
    void (*scale)(std::int64_t count, float factor, const float* x, float* y);
    void (*unary)(Unary kind, std::int64_t count, const float* x, float* y);
    // `saved` is the operator's input for gelu and silu, its output for relu and tanh.
    void (*unary_backward)(Unary kind, std::int64_t count, const float* saved, const float* dy, float* dx);
    // [rows, 2 width] -> [rows, width]: unary(first half) * second half.
    void (*gated)(Unary kind, std::int64_t rows, std::int64_t width, const float* x, float* y);
    void (*gated_backward)(Unary kind, std::int64_t rows, std::int64_t width, const float* x, const float* dy,
                           float* dx);
    // Element i of the row drops when hash(key, first + i) is below probability; the kept ones are scaled by
    // 1/(1 - probability).
    void (*dropout)(std::uint64_t key, std::int64_t first, std::int64_t count, float probability,
                    const float* x, float* y, std::uint8_t* mask);
    void (*dropout_backward)(std::int64_t count, float probability, const std::uint8_t* mask, const float* dy,
                             float* dx);

    // statistics: [rows, 2] mean and reciprocal deviation; rms_norm: [rows] reciprocal root mean square.
    // `shift` may be null.
    void (*layer_norm)(std::int64_t rows, std::int64_t width, float epsilon, const float* x,
                       const float* scale, const float* shift, float* y, float* statistics);
    void (*layer_norm_backward)(std::int64_t rows, std::int64_t width, const float* x,
                                const float* statistics, const float* scale, const float* dy, float* dx);
    void (*layer_norm_weights)(std::int64_t rows, std::int64_t width, const float* x, const float* statistics,
                               const float* dy, float* dscale, float* dshift);
    void (*rms_norm)(std::int64_t rows, std::int64_t width, float epsilon, const float* x, const float* scale,
                     float* y, float* statistics);
    void (*rms_norm_backward)(std::int64_t rows, std::int64_t width, const float* x, const float* statistics,
                              const float* scale, const float* dy, float* dx);
    void (*rms_norm_weights)(std::int64_t rows, std::int64_t width, const float* x, const float* statistics,
                             const float* dy, float* dscale);
    // Batch norm is over the samples and pixels of each channel; statistics [channels, 2].
    void (*batch_norm)(const ImageShape& shape, float epsilon, const float* x, const float* scale,
                       const float* shift, float* y, float* statistics);
    void (*batch_norm_backward)(const ImageShape& shape, const float* x, const float* statistics,
                                const float* scale, const float* dy, float* dx);
    void (*batch_norm_weights)(const ImageShape& shape, const float* x, const float* statistics,
                               const float* dy, float* dscale, float* dshift);

    // Callers with packed rows pass them twice, as queries and as keys, and their gradient likewise. `dbias`
    // may be null.
    void (*attention)(const AttentionShape& shape, const float* queries, const float* keys, float* y,
                      const AttentionSaved& saved);
    void (*attention_backward)(const AttentionShape& shape, const float* queries, const float* keys,
                               const AttentionSaved& saved, const float* dy, float* dqueries, float* dkeys,
                               float* dbias);

    void (*convolution)(const ImageShape& shape, const float* x, const float* weight, const float* bias,
                        float* y);
    void (*convolution_backward)(const ImageShape& shape, const float* weight, const float* dy, float* dx);
    void (*convolution_weights)(const ImageShape& shape, const float* x, const float* dy, float* dweight,
                                float* dbias);
    // `positions` gets the index of each maximum inside its input plane, for the backward pass.
    void (*max_pool)(const ImageShape& shape, const float* x, float* y, std::int64_t* positions);
    void (*max_pool_backward)(const ImageShape& shape, const std::int64_t* positions, const float* dy,
                              float* dx);
    void (*average_pool)(const ImageShape& shape, const float* x, float* y);
    void (*average_pool_backward)(const ImageShape& shape, const float* dy, float* dx);

    // The first `valid` of the `columns` stored logits are the classes from first_class on. statistics
    // [rows, 3]: maximum, sum of exponentials, logit of the label (0 when another rank has the label's
    // class).
    void (*loss_statistics)(std::int64_t rows, std::int64_t columns, std::int64_t valid,
                            std::int64_t first_class, const float* logits, const std::int64_t* labels,
                            float* statistics);
    // p = exp(logit - log_sum[r]), 0 beyond `valid`.
    void (*softmax)(std::int64_t rows, std::int64_t columns, std::int64_t valid, const float* logits,
                    const float* log_sums, float* p);
    // dlogits += factor (p - [label]).
    void (*cross_entropy_backward)(std::int64_t rows, std::int64_t columns, std::int64_t first_class,
                                   std::int64_t valid, float factor, const float* p,
                                   const std::int64_t* labels, float* dlogits);

    void (*adam)(std::int64_t count, const AdamStep& step, const float* gradient, float* parameter,
                 float* first, float* second);
    // LAMB (arXiv 1904.00962, algorithm 2) of a range of a parameter, in two parts. lamb_norms advances the
    // moments and adds the sums of squares of the values and of the update to squares[0] and squares[1].
    // lamb computes the update from the moments once more and subtracts rate times update; the rate includes
    // the trust ratio.
    void (*lamb_norms)(std::int64_t count, const AdamStep& step, const float* gradient,
                       const float* parameter, float* first, float* second, double* squares);
    void (*lamb)(std::int64_t count, const AdamStep& step, float rate, float* parameter, const float* first,
                 const float* second);
    // `velocity` may be null when momentum is 0.
    void (*sgd)(std::int64_t count, float learning_rate, float momentum, float weight_decay,
                const float* gradient, float* parameter, float* velocity);
};

// The kernels of this processor's best instruction set; SMSIM_CPU_INSTRUCTIONS = generic, avx2 or avx512 asks
// for a lesser one. Large products are oneDNN's when the build has it; SMSIM_CPU_PRODUCTS = eigen asks for
// our own.
const Kernels& kernels();
// The kernels of one instruction set by name; null when this build or this processor lacks it.
const Kernels* find_kernels(std::string_view instruction_set);

// Scratch array of the calling thread, valid until the same slot is asked for again; slots do not overlap.
float* scratch(int slot, std::int64_t floats);
std::int64_t scratch_bytes();  // of the calling thread
void free_scratch();

// Random number of a key and a counter, for dropout and synthetic data: it does not depend on the plan.
std::uint64_t counter_hash(std::uint64_t key, std::uint64_t counter);

}  // namespace exec::cpu
