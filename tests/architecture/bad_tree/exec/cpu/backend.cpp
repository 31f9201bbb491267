#include "exec/cpu/body/fine.h"
#include "exec/cpu/body/table.h"
