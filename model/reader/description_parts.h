// What readers of descriptions share.
#pragma once

#include <cstdint>

#include "core/reader.h"
#include "model/builder/decoder.h"

namespace model {

// The key `activation`, by our names.
Activation read_activation(core::TableReader& reader, Activation fallback);
// An error at `key` unless `divisor`, its value, divides `whole`.
void must_divide(core::TableReader& reader, const char* key, std::int64_t divisor, const char* of,
                 std::int64_t whole);

}  // namespace model
