#include "../core/good.h"
#include "good.h"
