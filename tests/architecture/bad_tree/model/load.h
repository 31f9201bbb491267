#pragma once
#  include <toml++/toml.h>
namespace model {}
