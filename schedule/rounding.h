// What tells a difference from a rounding error in comparisons of times and of memory.
#pragma once

namespace schedule {

// Relative. Sums of the same figures in another order differ in their last bits, by 1e-16 a term; a real
// difference of schedules is a whole pass, and a real excess of memory a whole activation.
inline constexpr double rounding = 1e-9;

}  // namespace schedule
