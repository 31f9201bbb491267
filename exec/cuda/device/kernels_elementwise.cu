#include "exec/cuda/body/gated_octets.h"
#include "exec/cuda/device/kernel_tables.h"

namespace exec::cuda {

void fill_elementwise(Kernels& table) {
    device_body::fill_elementwise(table);
    table.gated_with_octets = device_body::gated_with_octets;
}

}  // namespace exec::cuda
