#include "exec/cuda/body/update.h"
#include "exec/cuda/device/kernel_tables.h"

namespace exec::cuda {

void fill_update(Kernels& table) { device_body::fill_update(table); }

}  // namespace exec::cuda
