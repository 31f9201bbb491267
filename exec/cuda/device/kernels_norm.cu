#include "exec/cuda/body/norm_octets.h"
#include "exec/cuda/device/kernel_tables.h"

namespace exec::cuda {

void fill_norm(Kernels& table) {
    device_body::fill_norm(table);
    table.norm_with_octets = device_body::norm_with_octets;
}

}  // namespace exec::cuda
