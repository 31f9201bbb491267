#include "exec/cuda/body/image.h"
#include "exec/cuda/device/kernel_tables.h"

namespace exec::cuda {

void fill_image(Kernels& table) { device_body::fill_image(table); }

}  // namespace exec::cuda
