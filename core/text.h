// Checks of a text file before a parser sees it: UTF-8 without NUL bytes. Positions are counted as editors
// do.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "core/diagnostics_fwd.h"

namespace core {

// Length in bytes (1 to 4) of the well-formed UTF-8 sequence at `offset`, 0 when there is none (Unicode 15,
// table 3-7: no surrogates, no overlong forms).
std::size_t utf8_sequence_length(std::string_view text, std::size_t offset);

// Diagnoses the first NUL byte or malformed sequence; true when there is none.
bool check_text(std::string_view text, const std::string& file_name, Diagnostics& diagnostics);

// Turns growing byte offsets into line and column (in code points) in one sweep over the text.
class PositionTracker {
public:
    PositionTracker(std::string_view text, std::string file_name)
        : text_(text), file_name_(std::move(file_name)) {}
    // `offset` must not be below that of an earlier call.
    SourceLocation at(std::size_t offset);

private:
    std::string_view text_;
    std::string file_name_;
    std::size_t offset_ = 0;
    int line_ = 1;
    int column_ = 1;
};

}  // namespace core
