#pragma once

#include "core/colour.h"

namespace core {

class Paint {
public:
    int layers() const { return 1; }
};

}  // namespace core
