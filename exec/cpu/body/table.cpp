// The table of kernels of one instruction set: CMake compiles this file once for each (CMakeLists.txt).
#include "exec/cpu/body/table.h"

#include "exec/cpu/body/attention.h"
#include "exec/cpu/body/elementwise.h"
#include "exec/cpu/body/image.h"
#include "exec/cpu/body/loss.h"
#include "exec/cpu/body/norm.h"
#include "exec/cpu/body/product.h"
#include "exec/cpu/body/update.h"

namespace exec::cpu::INSTRUCTION_SET {
namespace {

#define NAME_OF(set) #set
#define NAME_AS_TEXT(set) NAME_OF(set)

constexpr Kernels all = {
    .instruction_set = NAME_AS_TEXT(INSTRUCTION_SET),
    .product = product,
    .add_row = add_row,
    .sum_rows = sum_rows,
    .add = add,
    .accumulate = accumulate,
    .scale = scale,
    .unary = unary,
    .unary_backward = unary_backward,
    .gated = gated,
    .gated_backward = gated_backward,
    .dropout = dropout,
    .dropout_backward = dropout_backward,
    .layer_norm = layer_norm,
    .layer_norm_backward = layer_norm_backward,
    .layer_norm_weights = layer_norm_weights,
    .rms_norm = rms_norm,
    .rms_norm_backward = rms_norm_backward,
    .rms_norm_weights = rms_norm_weights,
    .batch_norm = batch_norm,
    .batch_norm_backward = batch_norm_backward,
    .batch_norm_weights = batch_norm_weights,
    .attention = attention,
    .attention_backward = attention_backward,
    .convolution = convolution,
    .convolution_backward = convolution_backward,
    .convolution_weights = convolution_weights,
    .max_pool = max_pool,
    .max_pool_backward = max_pool_backward,
    .average_pool = average_pool,
    .average_pool_backward = average_pool_backward,
    .loss_statistics = loss_statistics,
    .softmax = softmax,
    .cross_entropy_backward = cross_entropy_backward,
    .adam = adam,
    .lamb_norms = lamb_norms,
    .lamb = lamb,
    .sgd = sgd,
};

}  // namespace

const Kernels& table() { return all; }

}  // namespace exec::cpu::INSTRUCTION_SET
