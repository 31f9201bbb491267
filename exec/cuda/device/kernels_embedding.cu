#include "exec/cuda/body/embedding.h"
#include "exec/cuda/device/kernel_tables.h"

namespace exec::cuda {

void fill_embedding(Kernels& table) { device_body::fill_embedding(table); }

}  // namespace exec::cuda
