#include "exec/cuda/emulation/emulated_kernels.h"

#include <algorithm>

#include "exec/cuda/body/attention.h"
#include "exec/cuda/body/elementwise.h"
#include "exec/cuda/body/embedding.h"
#include "exec/cuda/body/expert_products.h"
#include "exec/cuda/body/float8.h"
#include "exec/cuda/body/gated_octets.h"
#include "exec/cuda/body/image.h"
#include "exec/cuda/body/loss.h"
#include "exec/cuda/body/mixture.h"
#include "exec/cuda/body/norm_fused.h"
#include "exec/cuda/body/norm_octets.h"
#include "exec/cuda/body/update.h"

namespace exec::cuda {

const Kernels& emulated_kernels() {
    static const Kernels table = [] {
        Kernels result{};
        host_body::fill_elementwise(result);
        host_body::fill_float8(result);
        result.norm_with_octets = host_body::norm_with_octets;
        result.gated_with_octets = host_body::gated_with_octets;
        host_body::fill_norm(result);
        host_body::fill_embedding(result);
        host_body::fill_loss(result);
        host_body::fill_attention(result);
        host_body::fill_image(result);
        host_body::fill_mixture(result);
        host_body::fill_expert_products(result);
        host_body::fill_update(result);
        return result;
    }();
    return table;
}

// Partial sums, two for each column of a chunk of rows.
std::size_t norm_workspace(std::int64_t rows, std::int64_t width) {
    return (host_body::row_chunks(rows, width) * 2 * width) * sizeof(float);
}

std::size_t norm_gradients_workspace(std::int64_t rows, std::int64_t width) {
    const std::int64_t blocks = host_body::gradient_blocks(rows, host_body::narrow_gradient_blocks);
    return std::max(norm_workspace(rows, width), (blocks * 2 * width) * sizeof(float));
}

std::size_t routing_workspace(const RoutingShape& shape) { return host_body::routing_bytes(shape); }

std::size_t embedding_workspace(std::int64_t rows, std::int64_t width) {
    return host_body::table_workspace(rows, width);
}

std::size_t loss_workspace(const ClassShape& shape) {
    return shape.is_across ? host_body::across_workspace(shape) : 0;
}

}  // namespace exec::cuda
