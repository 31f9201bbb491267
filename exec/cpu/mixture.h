// A mixture of experts on one rank: which tokens go to which experts, and the four operators' arithmetic.
#pragma once

#include <cstdint>
#include <vector>

#include "exec/backend.h"
#include "model/operators/rank_share.h"

namespace exec::cpu {

// Copies of tokens, grouped by expert; inside a group first choices before second ones, tokens in order.
struct Routing {
    std::vector<std::int32_t> expert;  // [tokens, k]
    std::vector<float> weight;         // [tokens, k]
    std::vector<std::int64_t> row;     // [tokens, k]: of the copy; -1 = dropped
    std::vector<std::int64_t> chosen;  // by expert: copies before any is dropped
    std::vector<std::int64_t> rows;    // by expert: copies
};
Routing route(const model::Attributes& mixture, std::int64_t tokens, const float* probabilities);

// One operator's sizes on this rank.
struct MixtureTask {
    const model::Attributes& attributes;
    model::MixtureShape shape;
    // Whether this rank adds the gradient of the auxiliary loss: one of the tensor-parallel ranks does.
    bool has_auxiliary_loss = false;
    // Ranks that divide the tokens of a micro-batch. With more than one, the router's saved context holds the
    // choices of all of them, in fp32.
    int ranks = 1;
    int ranks_of_loss = 1;  // of these, those that share its loss (model::parts_of_loss)
};

void router(const MixtureTask& task, const Operands& x);
void router_backward(const MixtureTask& task, const Operands& x, const float* dy, float* dx,
                     float* dweight);  // null gradients are not computed
void dispatch(const MixtureTask& task, const Operands& x);
void dispatch_backward(const MixtureTask& task, const Operands& x, const float* dy, float* dx);
// `x.expert_rows` where copies came from other ranks. Backward leaves in the operator's saved context what
// the weights' gradients need.
void experts(const MixtureTask& task, const Operands& x);
void experts_backward(const MixtureTask& task, const Operands& x, const float* dy, float* dx);
void experts_weights(const MixtureTask& task, const Operands& x, const float* dy, float* dfirst,
                     float* dsecond);
void combine(const MixtureTask& task, const Operands& x);
void combine_backward(const MixtureTask& task, const Operands& x, const float* dy, float* dx,
                      float* dprobabilities);

}  // namespace exec::cpu
