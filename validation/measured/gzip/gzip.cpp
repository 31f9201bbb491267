#include "validation/measured/gzip/gzip.h"

namespace validation {

bool is_gzip(std::string_view bytes) { return bytes.starts_with("\x1f\x8b"); }

}  // namespace validation
