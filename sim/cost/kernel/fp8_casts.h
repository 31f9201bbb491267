// What an fp8 product costs beside its arithmetic: its operands are cast first.
#pragma once

#include "core/units.h"
#include "model/operators/cost.h"

namespace sim {

// What of the casts a framework saves.
struct Fp8Casts {
    // Share of the micro-batches in which a weight is cast: 1, or one of all where the cast weight is kept
    // through a step (Transformer Engine's is_first_microbatch).
    double weight_share = 1;
    // The normalization before the product writes its result in fp8 (Transformer Engine's LayerNormLinear):
    // 1 + 1 bytes for the 2 that it writes else.
    bool input_comes_cast = false;
};

// Bytes that the casts for one product of a linear layer move, in all phases of it together each operand
// once: read in 2 bytes, written in 1 and, transposed, in 1 more (Hopper multiplies rows by rows only). One
// cast serves two products: an input that of the forward pass and the weight gradient's, an output's gradient
// both of the backward pass, a weight forward and the input gradient's; each product bears half.
core::Bytes fp8_cast_bytes(const model::Kernel& product, model::Phase phase, const Fp8Casts& casts);

}  // namespace sim
