// Where threads run.
#pragma once

namespace exec::cpu {

// A thread of `threads` has a core to itself when there are enough: two that exchange messages are otherwise drawn to one core. Does nothing when there are
// not.
void stay_on_core(int thread, int threads);
// Cores that this process may use.
int available_cores();

}  // namespace exec::cpu
