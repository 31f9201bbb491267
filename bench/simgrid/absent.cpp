#include "bench/ring_on_simgrid.h"

namespace bench {

std::vector<SimgridRun> ring_on_simgrid(int, double, double, double, double) { return {}; }

}  // namespace bench
