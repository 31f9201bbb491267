// Eigen for the kernels of one instruction set, and the views through which they see their arrays.
//
// The headers of this folder are compiled once for each instruction set, by table.cpp, which CMake compiles
// with INSTRUCTION_SET = generic, avx2 and avx512 and the flags of each. No inline function compiled with
// such flags may be shared with the rest of the program: the linker keeps one copy of it, and a processor
// without these instructions could meet that copy. So Eigen gets a namespace for each instruction set, and
// the kernels have internal linkage: the unnamed namespaces in these headers are there on purpose.
#pragma once

#ifndef INSTRUCTION_SET
#error "compiled by table.cpp only, with INSTRUCTION_SET = generic, avx2 or avx512"
#endif

#include <cstdint>

// Eigen 3.4 under g++ 12 warns inside its own AVX code and the compiler's intrinsics (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wunused-variable"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#define JOINED(a, b) a##b
#define EIGEN_FOR(instruction_set) JOINED(Eigen_for_, instruction_set)
#define Eigen EIGEN_FOR(INSTRUCTION_SET)
#define EIGEN_DONT_PARALLELIZE
#include <Eigen/Core>
#include <unsupported/Eigen/SpecialFunctions>

namespace exec::cpu::INSTRUCTION_SET {
namespace {

using Eigen::Index;
using RowMatrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using ConstMap = Eigen::Map<const RowMatrix, 0, Eigen::OuterStride<>>;
using MutableMap = Eigen::Map<RowMatrix, 0, Eigen::OuterStride<>>;
using ConstArray = Eigen::Map<const Eigen::ArrayXf>;
using MutableArray = Eigen::Map<Eigen::ArrayXf>;

// std::min and std::max are inline functions of the whole program.
inline std::int64_t least(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
inline std::int64_t greatest(std::int64_t a, std::int64_t b) { return a > b ? a : b; }

}  // namespace
}  // namespace exec::cpu::INSTRUCTION_SET
