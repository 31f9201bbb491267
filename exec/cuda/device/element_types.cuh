// The device's own half precisions, for kernels' bodies.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

namespace exec::cuda {

using DeviceBf16 = __nv_bfloat16;
using DeviceFp16 = __half;

}  // namespace exec::cuda
