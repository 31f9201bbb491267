// Attention by the library's fused kernels: one call; of a rank of a context-parallel group, which has two
// parts of a sequence, one for each. A part's queries are the last of the keys that it may see, which is what
// the library's mask at the lower right corner means; or, to tokens of another rank (a ring), they see all
// keys of the part.
#pragma once

#include <vector>

#include "exec/cuda/machine.h"

namespace exec::cuda {

struct FusedPart {
    FusedAttentionShape shape;
    std::int64_t first_query = 0;  // of a sample's
};
std::vector<FusedPart> fused_parts(const AttentionShape& shape);

// Does the machine's library take all of it? It does not: windows, ALiBi, dropout where only our own masks
// will do.
std::optional<core::Unsupported> fused_attention_unsupported(const Machine& machine, Type type,
                                                             const AttentionShape& shape);

// Arrays as for Kernels::attention; log_sums as large, in an order of its own.
void fused_attention(Machine& machine, Stream stream, Type type, const AttentionShape& shape, const void* qkv,
                     const void* memory, void* y, float* log_sums);
// Arrays as for Kernels::attention_backward. workspace: fused_workspace(shape, type) bytes.
void fused_attention_backward(Machine& machine, Stream stream, Type type, const AttentionShape& shape,
                              const void* qkv, const void* memory, const void* y, const float* log_sums,
                              const void* dy, void* dqkv, void* dmemory, void* workspace);
std::size_t fused_workspace(const AttentionShape& shape, Type type);

}  // namespace exec::cuda
