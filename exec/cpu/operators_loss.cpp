// The loss: statistics of logits, of which a rank may hold a part of the classes, put together.
#include <algorithm>
#include <cmath>

#include "exec/cpu/kernels.h"
#include "exec/cpu/operators.h"

namespace exec::cpu {

Operators::Classes Operators::classes_of(model::TensorId logits) const {
    const Sizes sizes = sizes_of(logits);
    const std::int64_t whole = graph_.tensor(logits).shape.back();
    const std::int64_t first = sizes.columns < whole ? tensor_rank_ * sizes.columns : 0;
    return {sizes.rows, sizes.columns, first, std::clamp<std::int64_t>(whole - first, 0, sizes.columns)};
}

// Per row: logarithm of the sum of exponentials over all classes, and the label's logit.
void Operators::log_sums(const model::Operator& o, const Operands& x, std::vector<float>& sums,
                         std::vector<float>& labels) const {
    const Classes classes = classes_of(o.inputs[0]);
    const int blocks =
        classes.columns < graph_.tensor(o.inputs[0]).shape.back() ? context_.tensor_parallel : 1;
    sums.resize(classes.rows);
    labels.assign(classes.rows, 0);
    for (std::int64_t r = 0; r < classes.rows; ++r) {
        const auto part = [&](int block) { return x.inputs[1].floats() + (block * classes.rows + r) * 3; };
        float maximum = part(0)[0], sum = 0;
        for (int block = 1; block < blocks; ++block) maximum = std::max(maximum, part(block)[0]);
        for (int block = 0; block < blocks; ++block) {
            sum += part(block)[1] * std::exp(part(block)[0] - maximum);
            labels[r] += part(block)[2];
        }
        sums[r] = maximum + std::log(sum);
    }
}

void Operators::cross_entropy(const model::Operator& o, const Operands& x) const {
    const Classes classes = classes_of(o.inputs[0]);
    std::vector<float> sums, labels;
    log_sums(o, x, sums, labels);
    double total = 0;
    for (std::size_t r = 0; r < sums.size(); ++r) total += static_cast<double>(sums[r]) - labels[r];
    std::fill_n(x.output.floats(), elements(o.output), static_cast<float>(total / classes.rows));
    if (!context_.fused_cross_entropy)
        kernels().softmax(classes.rows, classes.columns, classes.valid, x.inputs[0].floats(), sums.data(),
                          x.saved_context.as<float>());
}

void Operators::cross_entropy_backward(const model::Operator& o, const Operands& x, float weight,
                                       float* dlogits) const {
    const Kernels& k = kernels();
    const Classes c = classes_of(o.inputs[0]);
    const float factor = weight / c.rows;
    const auto* classes = x.inputs[2].integers();
    if (!context_.fused_cross_entropy) {
        k.cross_entropy_backward(c.rows, c.columns, c.first, c.valid, factor, x.saved_context.as<float>(),
                                 classes, dlogits);
        return;
    }
    std::vector<float> sums, labels;
    log_sums(o, x, sums, labels);
    float* p = scratch(7, c.columns);
    const bool is_in_place = dlogits == x.inputs[0].floats();
    for (std::int64_t r = 0; r < c.rows; ++r) {
        k.softmax(1, c.columns, c.valid, x.inputs[0].floats() + r * c.columns, &sums[r], p);
        if (is_in_place) std::fill_n(dlogits + r * c.columns, c.columns, 0.0f);
        k.cross_entropy_backward(1, c.columns, c.first, c.valid, factor, p, classes + r,
                                 dlogits + r * c.columns);
    }
}

}  // namespace exec::cpu
