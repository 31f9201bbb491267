// The model that Megatron-LM's arguments describe.
#pragma once

#include "core/value.h"
#include "interop/exchange.h"
#include "interop/megatron/arguments.h"

namespace interop {

// A [model] table; a model that the caller names goes first. What the arguments ask for and no description
// says is an error.
core::Value read_megatron_model(MegatronArguments& arguments, const ImportOptions& options);

}  // namespace interop
