// The share of the model on one rank of the tensor-parallel group: rows, columns, heads, bytes.
#pragma once

#include "model/operators/cost.h"

namespace model {

// A vocabulary that the degree does not divide is padded: the largest share counts.
std::int64_t share(std::int64_t extent, int degree);
// [rows, last] of an activation on this rank, micro-batch included.
struct RankMatrix {
    std::int64_t rows = 0, columns = 0;
    double elements() const { return static_cast<double>(rows) * columns; }
};
RankMatrix rank_matrix(const ModelGraph& graph, TensorId tensor, const CostContext& context);
// Weight [outputs, inputs] on this rank.
std::int64_t rank_extent(const Parameter& parameter, int dimension, const CostContext& context);
double element_bytes(const Tensor& tensor, const CostContext& context);
// Heads of an attention operator on this rank.
std::int64_t rank_heads(const Operator& op, std::int64_t heads, const CostContext& context);
// The products of one attention: `batch` problems of queries x keys (windows applied).
struct AttentionShape {
    std::int64_t batch = 0, heads = 0, kv_heads = 0, queries = 0, keys = 0, head_dimension = 0,
                 value_dimension = 0;
    std::int64_t rows = 0;  // of the queries of all samples
    bool is_causal = false;
    double visible_share = 1;  // share of the scores that a causal mask leaves
    double scores() const { return static_cast<double>(batch) * queries * keys; }
};
AttentionShape attention_shape(const ModelGraph& graph, const Operator& op, const CostContext& context);
// Shares of a mixture on one rank. Every token is routed once to each expert that it chooses. With experts
// spread over ranks the routed tokens of all ranks are taken to be spread evenly over the experts.
struct MixtureShape {
    std::int64_t tokens = 0, routed_tokens = 0, experts = 0, rows_per_expert = 0, hidden = 0, first_width = 0,
                 width = 0;
};
// For any operator of a mixture.
MixtureShape mixture_shape(const ModelGraph& graph, const Operator& op, const CostContext& context);
// The most routed tokens that an expert accepts out of that many tokens.
std::int64_t expert_capacity(const Attributes& mixture, std::int64_t tokens);
// Routed tokens go to the ranks of their experts after `dispatch`, and back after `experts`.
bool exchanges_routed_tokens(const Operator& op, const CostContext& context);
// With sequence parallelism a rank holds a share of the tokens outside parallel regions, and all of them
// inside. Tokens gathered at the entry are not kept for backward: they are gathered again from the share
// (arXiv 2205.05198, section 4.2.2).
bool gathers_tokens(const Operator& op, const CostContext& context);
// With more tensor-parallel ranks than heads of keys and values a rank's share of the packed projection is a
// part of a head: the whole projection is gathered over the group, and a rank takes the keys and values that
// its queries read, as Megatron-core does since 0.16 (SelfAttention.get_query_key_value_tensors,
// megatron/core/transformer/attention.py, 2026).
bool gathers_projection(const Operator& op, const CostContext& context);
// Every rank of a context-parallel group needs the keys and values of all its tokens. True where a projection
// is gathered, too.
bool gathers_keys(const Operator& op, const CostContext& context);
// With heads exchanged (ContextCommunication::all_to_all) a rank's attention is of all tokens and a share of
// its heads. What goes in and out is exchanged, and its gradients back.
bool exchanges_heads(const Operator& op, const CostContext& context);
// Does backward read the output as it was before its heads were exchanged? It then is at the end of the saved
// context, and what it became is left to the operator behind.
bool keeps_exchanged_output(const Operator& op, const CostContext& context);
// Why heads cannot be exchanged in a context-parallel group of these degrees.
std::optional<core::Unsupported> head_exchange_unsupported(const ModelGraph& graph,
                                                           const CostContext& context);
// In a ring a rank's attention is in as many pieces as the group has ranks, each over the tokens of one: of
// its own first, then of the rank before it, and so on; in backward the other way round.
inline constexpr int most_of_a_ring = 64;
bool passes_keys(const Operator& op, const CostContext& context);
int ring_pieces(const CostContext& context);
// Keys and values of one rank's tokens.
core::Bytes passed_key_bytes(const ModelGraph& graph, const Operator& attention, const CostContext& context);
// What of these graphs and contexts cannot be attended to in a ring.
std::optional<core::Unsupported> ring_unsupported(const ModelGraph& graph, const CostContext& context);
// Ranks that divide the tokens of a micro-batch at an operator; those of them that are of one tensor-parallel
// group, and so share a loss: gradients of it are summed over them, and averaged over the others.
int parts_of_tokens(const Operator& op, const CostContext& context);
int parts_of_loss(const Operator& op, const CostContext& context);
// The balance loss of a mixture is of all tokens of a micro-batch: ranks that divide them add up how many
// went to each expert, in fp32.
bool sums_choices(const Operator& op, const CostContext& context);
core::Bytes choices_bytes(const Operator& router);
// Do gradients of this operator's weights read its parameters? Sharded parameters are in memory only while
// they are gathered. The gradient of a bias inside attention reads the bias; all others read the tensors that
// forward saved.
bool weight_gradients_read_parameters(const Operator& op);
// Bytes of the routed tokens that a rank sends to the experts' ranks (dispatch) or back (experts), those that
// stay on the rank included.
core::Bytes exchanged_bytes(const ModelGraph& graph, const Operator& op, const CostContext& context);
// Keys and values of all tokens, gathered over a context-parallel group; the packed projection, gathered over
// a tensor-parallel one.
core::Bytes gathered_key_bytes(const ModelGraph& graph, const Operator& attention,
                               const CostContext& context);
// Does a gradient flow back into this tensor? Not into data.
bool has_gradient(const ModelGraph& graph, TensorId tensor);

}  // namespace model
