// The kernels for one instruction set. Everything a header instantiates here is in a namespace of this file's
// own: a shared inline function compiled with these flags could otherwise be the copy that the linker keeps
// for processors without them.
#if 1
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

// Eigen 3.4 under g++ 12 warns inside its own AVX code and the compiler's intrinsics (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wunused-variable"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#define Eigen Eigen_for_generic
#define EIGEN_DONT_PARALLELIZE
#include <Eigen/Core>
#include <unsupported/Eigen/SpecialFunctions>

#include "exec/cpu/kernels.h"

#define INSTRUCTION_SET generic
#include "exec/cpu/body/all.inc"
#endif
