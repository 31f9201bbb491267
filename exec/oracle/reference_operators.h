// Operators of the oracle: forward, and backward that adds to gradients. Whole tensors of one micro-batch.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "exec/oracle/reference_matrix.h"
#include "model/model_fwd.h"

namespace exec::oracle {

// The margin of a router's choice: the probability of the last expert that a token goes to, less that of the
// first expert that it does not.
struct RouterMargins {
    std::optional<double> least;  // nothing: no router has chosen yet
    double other_way_below = 0;   // a choice with a smaller margin is made the other way
};

struct Context {
    const model::ModelGraph& graph;
    std::int64_t samples = 1;                    // of the micro-batch
    std::vector<std::vector<double>> values;     // by tensor
    std::vector<std::vector<double>> gradients;  // by tensor, empty until something contributes
    std::vector<std::vector<std::int64_t>> ids;  // by tensor, for data
    std::vector<std::vector<double>>* parameters = nullptr;
    std::vector<std::vector<double>>* parameter_gradients = nullptr;
    std::vector<std::vector<std::uint64_t>> mask_keys;  // [operator][sample], where the operator drops
    double loss_weight = 1;
    bool is_training = true;  // false: nothing is dropped
    RouterMargins* router = nullptr;
    // How the plan divides sequences: over passes that follow each other, and over ranks in as many times two
    // parts, whose rows more ranks divide at mixtures. Mixtures balance over what is together.
    int passes = 1, parts = 1, row_parts = 1;
};

void forward(Context& context, model::OperatorId op);
void backward(Context& context, model::OperatorId op);

}  // namespace exec::oracle
