#include "exec/run.h"
#include <boost/program_options.hpp>
