#include "exec/float8.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace exec {

void round_to_float8(Float8 format, std::int64_t count, float* values) {
    float most = 0;
    for (std::int64_t i = 0; i < count; ++i)
        most = std::max(
            most, std::isfinite(values[i]) ? std::fabs(values[i]) : std::numeric_limits<float>::infinity());
    const float scale = float8_scale(format, most), back = 1.0f / scale;
    for (std::int64_t i = 0; i < count; ++i)
        values[i] = from_float8(format, to_float8(format, values[i] * scale)) * back;
}

}  // namespace exec
