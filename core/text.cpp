#include "core/text.h"

#include <algorithm>
#include <cstdio>

#include "core/diagnostics.h"

namespace core {

std::size_t utf8_sequence_length(std::string_view text, std::size_t offset) {
    const auto byte = [&](std::size_t i) -> unsigned {
        return offset + i < text.size() ? static_cast<unsigned char>(text[offset + i]) : 0u;
    };
    const auto continues = [&](std::size_t i, unsigned least = 0x80, unsigned greatest = 0xBF) {
        return byte(i) >= least && byte(i) <= greatest;
    };
    if (offset >= text.size()) return 0;
    const unsigned lead = byte(0);
    if (lead < 0x80) return 1;
    if (lead >= 0xC2 && lead <= 0xDF) return continues(1) ? 2 : 0;
    if (lead >= 0xE0 && lead <= 0xEF) {
        const unsigned least = lead == 0xE0 ? 0xA0 : 0x80;
        const unsigned greatest = lead == 0xED ? 0x9F : 0xBF;
        return continues(1, least, greatest) && continues(2) ? 3 : 0;
    }
    if (lead >= 0xF0 && lead <= 0xF4) {
        const unsigned least = lead == 0xF0 ? 0x90 : 0x80;
        const unsigned greatest = lead == 0xF4 ? 0x8F : 0xBF;
        return continues(1, least, greatest) && continues(2) && continues(3) ? 4 : 0;
    }
    return 0;
}

bool check_text(std::string_view text, const std::string& file_name, Diagnostics& diagnostics) {
    for (std::size_t offset = 0; offset < text.size();) {
        const std::size_t length = utf8_sequence_length(text, offset);
        if (length == 0 || text[offset] == '\0') {
            char byte_text[8];
            std::snprintf(byte_text, sizeof byte_text, "0x%02X",
                          static_cast<unsigned>(static_cast<unsigned char>(text[offset])));
            diagnostics.error(PositionTracker(text, file_name).at(offset), "",
                              std::string("byte ") + byte_text + " is not text: the file is not UTF-8",
                              "give a text file in UTF-8 encoding");
            return false;
        }
        offset += length;
    }
    return true;
}

SourceLocation PositionTracker::at(std::size_t offset) {
    offset = std::min(offset, text_.size());
    for (; offset_ < offset; ++offset_) {
        const auto byte = static_cast<unsigned char>(text_[offset_]);
        if (byte == '\n') {
            ++line_;
            column_ = 1;
        } else if (byte < 0x80 || byte > 0xBF) {  // continuation bytes belong to the code point before
            ++column_;
        }
    }
    return {file_name_, line_, column_};
}

}  // namespace core
