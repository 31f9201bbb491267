// For headers that pass diagnostics on: the class is only named, the place of an input is whole. Who adds,
// reads or prints diagnostics includes core/diagnostics.h.
#pragma once

#include <string>

namespace core {

struct SourceLocation {
    std::string file;  // empty when the input did not come from a file (command line)
    int line = 0;      // 1-based; 0 when unknown
    int column = 0;    // 1-based; 0 when unknown
};

struct Diagnostic;
class Diagnostics;

}  // namespace core
