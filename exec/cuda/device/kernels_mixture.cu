#include "exec/cuda/body/expert_products.h"
#include "exec/cuda/body/mixture.h"
#include "exec/cuda/device/kernel_tables.h"

namespace exec::cuda {

void fill_mixture(Kernels& table) {
    device_body::fill_mixture(table);
    device_body::fill_expert_products(table);
}

}  // namespace exec::cuda
