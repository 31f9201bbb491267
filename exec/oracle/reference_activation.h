// Activations of the oracle.
#pragma once

#include "model/operator.h"

namespace exec::oracle {

// Gated kinds stand for what acts on the gate.
double activation_of(model::OperatorKind kind, bool is_tanh_approximation, double x);
double slope_of_activation(model::OperatorKind kind, bool is_tanh_approximation, double x);

}  // namespace exec::oracle
