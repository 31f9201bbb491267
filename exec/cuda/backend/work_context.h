// What the backend's parts need of the instruction at work.
#pragma once

#include <cstddef>

#include "exec/cuda/operator/operators.h"
#include "schedule/program/program.h"

namespace exec::cuda {

class WorkContext : public ExecutionContext {
public:
    virtual const schedule::Instruction& instruction() const = 0;
    virtual std::uint32_t number() const = 0;  // of the instruction, in the rank's list
    virtual bool plans() const = 0;            // the machine does nothing
    virtual Operators& operators_at_work() const = 0;
    // The operator at work writes so many bytes of an array; others may touch the rest meanwhile.
    virtual void writes_part(void* data, std::size_t bytes) = 0;
    // A launch writes all of this: nothing of it is to be cleared any more.
    virtual void overwrites(void* data, std::size_t bytes) = 0;
    // Clears what is left to be cleared, for this instruction, of the array at `data`.
    virtual void clear_rest(void* data) = 0;
};

}  // namespace exec::cuda
