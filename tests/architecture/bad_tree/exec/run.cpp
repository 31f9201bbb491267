#include "sim/simulate.h"
#include "core/good.h"
