// Stands for Boost.Program_options, which Debian has compiled for the native machine alone: the part that
// api/options.cpp uses.
#pragma once

#include "web/wasm/library/program_options.h"

namespace boost {
namespace program_options = web::program_options;
}
