#include "sim/cost/kernel/fp8_casts.h"

#include "core/diagnostics.h"

namespace sim {

core::Bytes fp8_cast_bytes(const model::Kernel& product, model::Phase phase, const Fp8Casts& casts) {
    constexpr double bytes_an_element = (2.0 + 1.0 + 1.0) / 2;
    const auto elements = [&](std::int64_t rows, std::int64_t columns) {
        return static_cast<double>(product.batch * rows * columns);
    };
    const double left = elements(product.m, product.k), right = elements(product.k, product.n);
    switch (phase) {
        case model::Phase::forward:  // input, weight
            return core::Bytes(bytes_an_element *
                               ((casts.input_comes_cast ? 0 : left) + right * casts.weight_share));
        case model::Phase::backward_input:  // gradient of the output, weight
            return core::Bytes(bytes_an_element * (left + right * casts.weight_share));
        case model::Phase::backward_weight:  // gradient of the output, input
            return core::Bytes(bytes_an_element * (left + (casts.input_comes_cast ? 0 : right)));
    }
    throw core::InternalError("broken promise: every phase has operands");
}

}  // namespace sim
