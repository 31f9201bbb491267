// The parts of the device's table of kernels, a file each so that they compile side by side.
#pragma once

#include "exec/cuda/kernels.h"

namespace exec::cuda {

void fill_elementwise(Kernels& table);
void fill_float8(Kernels& table);
void fill_norm(Kernels& table);
void fill_embedding(Kernels& table);
void fill_loss(Kernels& table);
void fill_attention(Kernels& table);
void fill_image(Kernels& table);
void fill_mixture(Kernels& table);
void fill_update(Kernels& table);

}  // namespace exec::cuda
