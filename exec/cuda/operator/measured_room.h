// Arrays that a measurement works on (Machine::pays), one behind the other.
#pragma once

#include <cstddef>

#include "exec/cuda/arena.h"

namespace exec::cuda {

class MeasuredRoom {
public:
    std::size_t take(std::size_t bytes) {
        const std::size_t at = bytes_;
        bytes_ += rounded(bytes);
        return at;
    }
    std::size_t bytes() const { return bytes_; }

private:
    std::size_t bytes_ = 0;
};

}  // namespace exec::cuda
