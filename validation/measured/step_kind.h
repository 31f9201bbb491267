// What a step's time goes to, in kinds that a prediction and a profiler's trace both tell apart.
#pragma once

#include <array>
#include <string>
#include <string_view>

namespace validation {

enum class StepKind {
    matrix_product,
    convolution,
    attention_and_loss,  // products, softmax and masks of attention; a softmax alone may be either's
    norm,
    elementwise,  // activations, additions, dropout, embeddings, and what no other kind names
    optimizer,
    copy,
    all_reduce,
    all_gather,
    reduce_scatter,
    all_to_all,
    send_receive,
    other_communication,
};
inline constexpr std::array step_kinds = {StepKind::matrix_product,
                                          StepKind::convolution,
                                          StepKind::attention_and_loss,
                                          StepKind::norm,
                                          StepKind::elementwise,
                                          StepKind::optimizer,
                                          StepKind::copy,
                                          StepKind::all_reduce,
                                          StepKind::all_gather,
                                          StepKind::reduce_scatter,
                                          StepKind::all_to_all,
                                          StepKind::send_receive,
                                          StepKind::other_communication};

std::string_view name_of(StepKind kind);  // "matrix products"
bool is_communication(StepKind kind);
// Tools write names of kernels, operators and classes in any case.
std::string in_lower_case(std::string name);

}  // namespace validation
