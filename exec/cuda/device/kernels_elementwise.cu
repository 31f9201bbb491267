#include "exec/cuda/body/elementwise.h"
#include "exec/cuda/device/kernel_tables.h"

namespace exec::cuda {

void fill_elementwise(Kernels& table) { device_body::fill_elementwise(table); }

}  // namespace exec::cuda
