#include "exec/cuda/body/attention.h"
#include "exec/cuda/device/kernel_tables.h"

namespace exec::cuda {

void fill_attention(Kernels& table) { device_body::fill_attention(table); }

}  // namespace exec::cuda
