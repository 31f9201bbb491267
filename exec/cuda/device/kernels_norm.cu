#include "exec/cuda/body/norm_fused.h"
#include "exec/cuda/device/kernel_tables.h"

namespace exec::cuda {

void fill_norm(Kernels& table) { device_body::fill_norm(table); }

}  // namespace exec::cuda
