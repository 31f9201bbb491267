#include "exec/cuda/body/float8.h"
#include "exec/cuda/device/kernel_tables.h"

namespace exec::cuda {

void fill_float8(Kernels& table) { device_body::fill_float8(table); }

}  // namespace exec::cuda
