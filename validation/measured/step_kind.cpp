#include "validation/measured/step_kind.h"

#include <algorithm>
#include <cctype>

#include "core/errors.h"

namespace validation {

std::string_view name_of(StepKind kind) {
    switch (kind) {
        case StepKind::matrix_product: return "matrix products";
        case StepKind::convolution: return "convolutions";
        case StepKind::attention_and_loss: return "attention, loss";
        case StepKind::norm: return "norms";
        case StepKind::elementwise: return "elementwise";
        case StepKind::optimizer: return "optimizer";
        case StepKind::copy: return "copies";
        case StepKind::all_reduce: return "all_reduce";
        case StepKind::all_gather: return "all_gather";
        case StepKind::reduce_scatter: return "reduce_scatter";
        case StepKind::all_to_all: return "all_to_all";
        case StepKind::send_receive: return "send, receive";
        case StepKind::other_communication: return "other collectives";
    }
    core::require(false, "every kind has a name");
    return {};
}

bool is_communication(StepKind kind) {
    switch (kind) {
        case StepKind::matrix_product:
        case StepKind::convolution:
        case StepKind::attention_and_loss:
        case StepKind::norm:
        case StepKind::elementwise:
        case StepKind::optimizer:
        case StepKind::copy: return false;
        case StepKind::all_reduce:
        case StepKind::all_gather:
        case StepKind::reduce_scatter:
        case StepKind::all_to_all:
        case StepKind::send_receive:
        case StepKind::other_communication: return true;
    }
    core::require(false, "every kind is one or the other");
    return false;
}

std::string in_lower_case(std::string name) {
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return name;
}

}  // namespace validation
