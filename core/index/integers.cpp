#include "core/index/integers.h"

#include "core/errors.h"

namespace core {

void throw_does_not_fit() {
    throw InternalError("a number does not fit the integer type that was to hold it");
}

}  // namespace core
