// Catch2 3 under the header name and with the global names of Catch2 2.13.
#pragma once

#include <catch2/catch_all.hpp>

using Catch::Approx;
