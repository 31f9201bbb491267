#pragma once
#include <string>

#include "core/good.h"
#include "planner/search.h"
namespace core {}
