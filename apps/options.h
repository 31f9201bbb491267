// Options of one command: the facade reads them, for the command lines and for Python alike.
#pragma once

#include "api/options.h"

namespace apps {

using api::OptionNames;
using api::Options;

}  // namespace apps
