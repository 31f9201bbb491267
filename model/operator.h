// Parts of a model: tensors, parameters and operators with exact shapes, all per sample (the
// micro-batch multiplies).
//
// Parallelism is not in the graph, but where it may cut is: `parallel_enter` and `parallel_exit` are
// Megatron's conjugate operators f and g (arXiv 1909.08053, section 3). Between them tensors are split over
// the tensor-parallel group; outside they are whole (or, with sequence parallelism, split along the tokens,
// arXiv 2205.05198, section 4.2.2). With a tensor-parallel degree of 1 both are the identity and cost
// nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/data_type.h"
#include "core/units.h"
#include "model/model_fwd.h"

namespace model {

enum class OperatorKind {
    input,      // tokens, labels or images: produced by the data loader, no arithmetic
    embedding,  // ids [s] -> [s, h]; parameter [v, h] (split over v inside a parallel region: the result is
                // then a partial sum)
    position_embedding,  // x [s, h] + learned positions [s, h]; parameter [positions, h], of which rows
                         // position_offset ... position_offset + s - 1 are read
    prepend_token,  // x [s, h] -> [s + 1, h] with a learned row in front (class token of ViT); parameter [1,
                    // h]
    linear,         // x [s, k] -> [s, n]; parameters weight [n, k], optional bias [n]
    layer_norm,     // over the last dimension; parameters scale and, if has_bias, shift (MPT has none)
    rms_norm,       // over the last dimension; parameter scale
    batch_norm,     // over batch and pixels per channel; parameters scale, shift
    attention,  // packed q, k, v [s, (heads + 2 kv_heads) d], in this order -> [s, heads d]; cross-attention:
                // q [s, heads d] and packed k, v [keys, 2 kv_heads d]; has_relative_bias: parameter [buckets,
                // heads] (T5) or [offsets, heads] (Swin), split over heads. Values of another dimension dv:
                // [s, (heads + kv_heads) d + kv_heads dv] -> [s, heads dv]. Then the parameters of
                // query_key_norm (scales, then shifts, of queries and of keys), then has_sinks: [heads]
    gelu,
    relu,
    silu,
    tanh,
    gated_silu,  // [s, 2f] -> [s, f]: silu(first half) * second half
    gated_gelu,
    dropout,
    add,     // residual: two inputs of one shape
    conv2d,  // [c, y, x] -> [c', y', x']; parameters weight [c', c, ky, kx], optional bias
    max_pool,
    average_pool,  // [c, y, x] -> [c, y', x'] (global: kernel = image)
    flatten,       // [c, y, x] -> [1, c y x]: one row per sample
    transpose,  // [a, b...] -> [product of b, a]: pixels [c, y, x] to tokens [y x, c], token scores [s, n] to
                // rows over tokens [n, s]
    merge_patches,       // tokens of a square image [y x, c] -> [y x / 4, 4 c] (Swin)
    average_tokens,      // [s, h] -> [1, h]
    select_first_token,  // [s, h] -> [1, h] (BERT pooler)
    select_positions,    // x [s, h], positions [m] (int64) -> [m, h] (BERT: logits of the masked tokens only)
    // A mixture of experts (Shazeer et al., arXiv 1701.06538; Mixtral, arXiv 2401.04088, section 2.1). Each
    // token goes to the experts_per_token experts of the largest probabilities (of equal ones to the first).
    // An expert with a capacity accepts first choices before second ones, in the order of tokens; routed
    // tokens beyond it are dropped. Inside a region the results are partial sums, and so is the gradient of
    // the replicated router.
    router,    // x [s, h] -> probabilities [s, experts], a softmax; parameter [experts, h], optional bias
               // [experts]. Its gradient includes the gradient of auxiliary_loss (below)
    dispatch,  // x [s, h], probabilities -> routed tokens [s k, h] grouped by expert
    experts,   // routed tokens [s k, h], probabilities (for the groups) -> [s k, h]; parameters first
               // [experts, f or 2 f, h], second [experts, h, f], optional biases of both
    combine,   // routed tokens [s k, h], probabilities -> [s, h]: the results of a token weighted with their
               // probabilities, which are divided by their sum when k > 1
    parallel_enter,   // forward: identity (sequence parallel: all-gather); backward: all-reduce
                      // (reduce-scatter)
    parallel_exit,    // forward: all-reduce (reduce-scatter); backward: identity (all-gather)
    loss_statistics,  // logits [s, v], labels [s] -> per token {maximum, sum of exponentials, logit of the
                      // label}: [s, 3], fp32; over a split vocabulary each rank has its own ("partial": to be
                      // combined over the group, not summed)
    cross_entropy,    // logits, combined statistics, labels -> mean loss [1]

    // Operators of imported graphs beyond the kinds above: shapes of any rank, arithmetic told by Attributes;
    // priced, but without kernels in a backend.
    matrix_product,  // [.., m, k] x [.., k, n] -> [.., m, n], sizes in Attributes::product; the second
                     // operand may be a parameter
    elementwise,     // any number of inputs and parameters, broadcast to the output
    softmax,         // over one axis
    normalization,   // over any axes, two passes (instance and group norm); parameters scale, shift if any
    reduce,          // sum, mean, maximum, ... over some axes
    concat,          // all inputs one after the other along an axis
    reshape,         // the same elements under another shape: a view
    permute,         // dimensions in another order: a copy
    slice,           // a part of the input, copied
    gather,          // rows of the first input, or of the parameter, chosen by the last input or by constants
    pooling,         // windows of any extent, stride and padding
    convolution,     // convolutions that are no conv2d: groups, dilation, unequal strides or padding, 1 or 3
                     // dimensions, transposed
    unknown,         // not understood: priced by the bytes of its inputs and its output
};
std::string_view name_of(OperatorKind kind);
// The output is the input's buffer under another shape: no kernel, no memory.
bool is_view(OperatorKind kind);

enum class TensorSplit {
    whole,  // outside parallel regions: every tensor-parallel rank holds it (or its share of the tokens, with
            // sequence parallelism)
    split,  // inside a region: `split_dimension` is divided by the tensor-parallel degree
    partial,  // inside a region: full shape, to be summed over the group
};

struct Tensor {
    std::string name;
    std::vector<std::int64_t> shape;  // per sample, unsplit
    bool is_activation =
        true;  // stored in the compute precision; else ids (int64) or statistics (fp32) as `type` says
    core::DataType type = core::DataType::fp32;
    TensorSplit split = TensorSplit::whole;
    std::optional<int> split_dimension{};  // of TensorSplit::split
    OperatorId producer;
    std::vector<OperatorId> consumers;
};

enum class Initialization { normal, zeros, ones };

struct Parameter {
    std::string name;                      // dotted path, e.g. "layers.3.attention.qkv.weight"
    std::vector<std::int64_t> shape;       // unsplit
    std::optional<int> split_dimension{};  // divided over the tensor-parallel group; without it replicated
    std::int64_t split_blocks = 1;  // the split dimension is made of this many blocks each divided over the
                                    // group (3 for packed q, k, v; 2 for gate, up)
    std::vector<std::int64_t> split_sections;  // sizes of the blocks where they are unequal (grouped-query
                                               // attention: heads d, kv_heads d, kv_heads d), else empty
    Initialization initialization = Initialization::normal;
    double deviation = 0.02;  // of the normal initialisation
    bool is_expert = false;  // dimension 0 is the experts of a mixture: divided by the expert-parallel degree
    bool has_partial_gradient = false;  // replicated, but each tensor-parallel rank computes a share of its
                                        // gradient, to be summed over the group (router of a mixture)
    bool is_task_head =
        false;  // trained, but not in the published count (BERT's heads: the papers and hubs count BertModel)
    bool decays = true;  // weight decay applies (not to norms and biases)
};

// Norms of queries and keys before their product: over each head (Gemma 3, Qwen3) or over all heads together
// (OLMo 2).
enum class QueryKeyNorm { none, per_head, all_heads };

// Attributes that shapes do not tell; which of them matter depends on the kind.
struct Attributes {
    bool has_bias = false;
    // attention
    std::int64_t heads = 0, kv_heads = 0, head_dimension = 0;
    bool is_causal = false;
    bool is_rotary = false;
    double rotary_fraction = 1.0, rotary_base = 10000.0;
    bool has_alibi = false;
    bool has_relative_bias = false;  // T5
    // Transformer-XL: keys and values are those of the second input, packed q, k, v of the memory, followed
    // by those of the first; scores get a term with projected relative positions; parameter [heads d,
    // hidden], which projects them.
    bool has_relative_positions = false;
    bool is_cross_attention = false;
    std::int64_t window = 0;        // sliding window, 0 = none
    std::int64_t local_window = 0;  // attention only inside blocks of this many tokens (Swin: 49), 0 = none
    bool is_shifted = false;        // of Swin's windows: by half a window, every other layer
    double softmax_scale = 0;       // of the scores; 0 = 1/sqrt(head_dimension) (T5: 1)
    std::int64_t relative_buckets = 0, relative_distance = 0;  // T5: buckets and largest distance told apart
    std::optional<std::int64_t> value_dimension{};  // of a head's values, where it is not head_dimension
    QueryKeyNorm query_key_norm = QueryKeyNorm::none;
    std::optional<double> soft_cap{};  // of scores: c tanh(score / c) (Gemma 2, arXiv 2408.00118, section 2)
    bool has_sinks = false;            // a learned score a head joins every softmax (gpt-oss)
    // linear: x is multiplied by this first (T5's tied head: 1/sqrt(hidden))
    double input_scale = 1.0;
    // position_embedding: first row used (OPT: 2)
    std::int64_t position_offset = 0;
    // gelu and gated_gelu
    bool is_tanh_approximation = false;
    // norms, dropout
    double epsilon = 1e-5;
    double probability = 0;  // of dropout
    // convolution and pooling
    std::int64_t kernel_y = 0, kernel_x = 0, stride = 1, padding = 0;
    // mixture of experts
    std::int64_t experts = 0, experts_per_token = 0, expert_hidden = 0;
    bool experts_are_gated = false;
    OperatorKind expert_activation = OperatorKind::gated_silu;
    double capacity_factor =
        0;  // an expert accepts at most this times its even share of a micro-batch's routed tokens; 0 = all
    // Load balancing: this times experts times the sum over experts of their share of the routed tokens times
    // their mean probability, over the tokens of a micro-batch (Switch Transformer, arXiv 2101.03961,
    // section 2.2). It acts through the gradient; losses are reported without it, as Megatron-LM does.
    double auxiliary_loss = 0;
    bool router_has_bias = false, experts_have_bias = false;
    // How choices are made and weighted beyond the above (DeepSeek-V3, arXiv 2412.19437, section 2.1.2):
    // sigmoids in place of the softmax; weights that are not divided by their sum, and are multiplied by
    // routed_scale; choices within the best chosen_groups of expert_groups only.
    bool has_sigmoid_scores = false, has_plain_weights = false;
    double routed_scale = 1.0;
    std::int64_t expert_groups = 1, chosen_groups = 1;
    // Experts clamp both halves before a gated activation (gpt-oss).
    std::optional<double> activation_limit{};
    bool is_frozen = false;  // not trained: no backward pass through it
    bool has_fixed_statistics =
        false;  // batch_norm: one scale and shift per channel, no statistics of the batch
    // matrix_product: `batch` products per sample of m x k by k x n
    struct Product {
        std::int64_t batch = 0, m = 0, n = 0, k = 0;
        bool operator==(const Product&) const = default;
    } product;
    // convolution
    std::int64_t groups = 1;
    bool is_transposed = false;
    // pooling and reduce: backward needs the index of each maximum
    bool is_maximum = false;
    // elementwise: the tensors that backward reads again
    bool saves_inputs = false, saves_output = false;

    bool operator==(const Attributes&) const = default;
};

struct Operator {
    OperatorKind kind = OperatorKind::input;
    std::string name;  // dotted path in the module tree, e.g. "layers.3.attention.qkv"
    std::vector<TensorId> inputs;
    TensorId output;
    std::vector<ParameterId> parameters;
    Attributes attributes;
    std::int32_t unit = 0;            // partition unit (see ModelGraph::units)
    bool in_parallel_region = false;  // from parallel_enter (included) to parallel_exit (excluded): with
                                      // sequence parallelism it sees all tokens
    bool in_attention_core =
        false;  // recomputed by selective recomputation (scores, softmax, its dropout, context)
};

std::int64_t element_count(const std::vector<std::int64_t>& shape);
// Of a head's values.
inline std::int64_t value_dimension(const Attributes& a) {
    return a.value_dimension.value_or(a.head_dimension);
}
// A mixture beyond what arXiv 2401.04088 describes: backends have no kernels for it.
bool has_extended_routing(const Attributes& mixture);
// Attention beyond masks, rotary positions and ALiBi, in words, where it is: backends have no kernels for it.
std::optional<std::string_view> attention_extension(const Attributes& attention);

}  // namespace model
