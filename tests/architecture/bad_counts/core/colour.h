// One breach of every count, by twos at most. Never compiled.
#pragma once

#include "core/paint.h"

namespace core {

enum class OperatorKind { add, multiply };
enum class Colour : char { red, green };

}  // namespace core
