// The kernels of each instruction set that table.cpp is compiled for.
#pragma once

#include "exec/cpu/kernels.h"

namespace exec::cpu {

namespace generic {
const Kernels& table();
}
namespace avx2 {
const Kernels& table();
}
namespace avx512 {
const Kernels& table();
}

}  // namespace exec::cpu
