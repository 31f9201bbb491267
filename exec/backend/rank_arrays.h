// Arrays in a backend's memory: where they come from, and what is done with them outside operators.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "core/data_type.h"
#include "core/units.h"
#include "exec/runtime/memory.h"
#include "exec/runtime/offload.h"
#include "exec/tensor_view.h"
#include "schedule/plan/plan.h"

namespace exec {

class RankArrays {
public:
    virtual ~RankArrays() = default;

    virtual std::shared_ptr<BlockSource> blocks() = 0;
    // False for one that only plans: parameters need not be made for it.
    virtual bool keeps_values() const { return true; }

    // `write` fills host memory with elements of `type` (fp32 or int64) for a step; it may be called
    // again for later steps.
    virtual void fill_zero(void* data, std::size_t bytes) = 0;
    virtual void copy(void* to, const void* from, std::size_t bytes) = 0;
    virtual void accumulate(ConstTensorView x, TensorView y) = 0;  // y += x
    virtual void read_data(Buffer& into, core::DataType type,
                           std::function<void(std::int64_t step, void* host)> write) = 0;
    // For set-up and results, outside steps: fp32 on the host's side, `type` on the backend's.
    virtual void upload(std::span<const float> values, TensorView to) = 0;
    virtual void download(ConstTensorView from, std::span<float> values) = 0;

    // Where activations wait outside this backend's memory. Calls of the store belong to the instruction
    // begun last, as all others do.
    virtual std::unique_ptr<OffloadStore> make_offload_store(schedule::Offload offload, int rank) {
        return exec::make_offload_store(offload, rank);
    }

    // Memory held beside the arrays: context, libraries, scratch.
    virtual core::Bytes overhead() const { return {}; }
};

}  // namespace exec
