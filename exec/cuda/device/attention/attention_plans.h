// What cuDNN would do on a GPU that is described, not there: does it have an attention kernel for a shape?
// Plain C++: without cuDNN or cudnn-frontend the answer is that nothing can be asked.
#pragma once

#include <optional>
#include <string>

#include "core/units.h"
#include "core/unsupported.h"
#include "exec/cuda/machine.h"

namespace exec::cuda {

// A GPU's figures as its vendor gives them (CUDA C++ programming guide, table of technical specifications by
// compute capability; the product's data sheet for the others).
struct DescribedDevice {
    std::string name;
    int compute_major = 0, compute_minor = 0, multiprocessors = 0;
    int threads_per_multiprocessor = 2048, blocks_per_multiprocessor = 32;
    core::Bytes memory, level_two_cache;
    core::Bytes shared_memory_of_a_block;  // the most that a block can ask for
    int clock_khz = 0, memory_clock_khz = 0;
};

// Why nothing can be asked here.
std::optional<core::Unsupported> attention_plans_unsupported();
// Why cuDNN's heuristics find no engine for it on that device, in its words; nothing where they find one.
// What the engine compiles at run time is not compiled.
std::optional<core::Unsupported> attention_unsupported(const DescribedDevice& device, bool is_backward,
                                                       Type type, const FusedAttentionShape& shape);

}  // namespace exec::cuda
