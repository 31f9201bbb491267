// Positions at which a pipeline may cut an imported graph.
#pragma once

#include "model/model_graph.h"

namespace model {

// Replaces the graph's units: a new one begins where exactly one tensor with a gradient crosses (masks and
// indices may cross as well: they are sent along) and a product with weights follows before the next such
// place; norms, activations and pooling stay with the product before them.
void divide_into_units(ModelGraph& graph);

}  // namespace model
