#include <toml++/toml.h>
#include "cluster/topology.h"
