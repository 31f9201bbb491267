// What is no fault of the input: a machine that failed, a promise of this program that is broken.
#pragma once

#include <stdexcept>
#include <string_view>

namespace core {

// The machine failed (file system, CUDA, MPI, out of memory): exit code 4. The text names the call, the
// object and the library's own words.
class MachineError : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

// A promise of this program is broken: exit code 1. The text says which.
class InternalError : public std::logic_error {
public:
    using std::logic_error::logic_error;
};

// Throws InternalError("broken promise: WHAT (file:line)") when `holds` is false. For invariants, never for
// input.
void require(bool holds, std::string_view what, const char* file = __builtin_FILE(),
             int line = __builtin_LINE());

}  // namespace core
