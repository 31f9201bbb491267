#include "exec/cuda/body/loss.h"
#include "exec/cuda/device/kernel_tables.h"

namespace exec::cuda {

void fill_loss(Kernels& table) { device_body::fill_loss(table); }

}  // namespace exec::cuda
