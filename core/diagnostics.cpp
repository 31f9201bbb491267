#include "core/diagnostics.h"

#include <algorithm>
#include <cstdlib>

#include "core/text.h"

namespace core {

void Diagnostics::error(SourceLocation location, std::string key, std::string message, std::string hint) {
    error(Diagnostic{Severity::error, std::move(location), std::move(key), std::move(message),
                     std::move(hint)});
}

void Diagnostics::error(Diagnostic diagnostic) {
    diagnostic.severity = Severity::error;
    entries_.push_back(std::move(diagnostic));
    ++error_count_;
}

void Diagnostics::warning(SourceLocation location, std::string key, std::string message, std::string hint) {
    entries_.push_back(
        {Severity::warning, std::move(location), std::move(key), std::move(message), std::move(hint)});
}

void Diagnostics::append(const Diagnostics& other) {
    const std::size_t count = other.entries_.size();  // read first: `other` may be *this
    entries_.reserve(entries_.size() + count);
    for (std::size_t i = 0; i < count; ++i) entries_.push_back(other.entries_[i]);
    error_count_ += other.error_count_;
}

std::string format(const Diagnostic& diagnostic) {
    // A name of a file may hold anything, commands to a terminal among it.
    const std::string file = in_quotes(diagnostic.location.file, std::string::npos);
    std::string text = file.substr(1, file.size() - 2);
    if (diagnostic.location.line > 0) {
        text += (text.empty() ? "line " : ":") + std::to_string(diagnostic.location.line);
        if (diagnostic.location.column > 0) text += ":" + std::to_string(diagnostic.location.column);
    }
    if (!text.empty()) text += ": ";
    text += diagnostic.severity == Severity::error ? "error: " : "warning: ";
    text += diagnostic.message;
    text += '\n';
    if (!diagnostic.hint.empty()) text += "  hint: " + diagnostic.hint + "\n";
    return text;
}

std::string format(const Diagnostics& diagnostics) {
    std::string text;
    for (const Diagnostic& entry : diagnostics.entries()) text += format(entry);
    return text;
}

namespace {

std::string in_lower_case(std::string_view text) {
    std::string lower(text);
    for (char& c : lower)
        if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    return lower;
}

// Insertions, deletions, substitutions and swaps of neighbours (Damerau 1964, in the restricted form where no
// part is edited twice).
std::size_t edit_distance(std::string_view a, std::string_view b) {
    std::vector<std::size_t> before_last(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
    for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
    for (std::size_t i = 1; i <= a.size(); ++i) {
        row[0] = i;
        for (std::size_t j = 1; j <= b.size(); ++j) {
            row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                row[j] = std::min(row[j], before_last[j - 2] + 1);
        }
        std::swap(before_last, last);
        std::swap(last, row);
    }
    return last[b.size()];
}

}  // namespace

std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates) {
    const std::size_t farthest = std::max<std::size_t>(1, word.size() / 3);
    const std::string lower = in_lower_case(word);
    std::string nearest;
    std::size_t nearest_distance = farthest + 1;
    for (const std::string& candidate : candidates) {
        const std::size_t length_difference = candidate.size() > lower.size()
                                                  ? candidate.size() - lower.size()
                                                  : lower.size() - candidate.size();
        if (length_difference >= nearest_distance) continue;
        const std::size_t distance = edit_distance(lower, in_lower_case(candidate));
        // A one-letter word is one substitution away from every other: that is no slip.
        if (distance < nearest_distance && distance < std::max(word.size(), candidate.size())) {
            nearest = candidate;
            nearest_distance = distance;
        }
    }
    return nearest;
}

std::string list_in_words(const std::vector<std::string>& words) {
    std::string text;
    for (std::size_t i = 0; i < words.size(); ++i) {
        if (i > 0) text += i + 1 == words.size() ? " or " : ", ";
        text += words[i];
    }
    return text;
}

std::string in_quotes(std::string_view text, std::size_t longest) {
    static constexpr char digits[] = "0123456789abcdef";
    std::string result = "'";
    std::size_t offset = 0;
    while (offset < text.size() && result.size() <= longest) {
        const std::size_t length = utf8_sequence_length(text, offset);
        const auto byte = static_cast<unsigned char>(text[offset]);
        if (length == 0 || byte < 0x20 || byte == 0x7F) {
            result += {'\\', 'x', digits[byte >> 4], digits[byte & 15]};
            ++offset;
        } else {
            result += text.substr(offset, length);
            offset += length;
        }
    }
    if (offset < text.size()) result += "...";
    return result + "'";
}

void require(bool holds, std::string_view what, const char* file, int line) {
    if (!holds)
        throw InternalError("broken promise: " + std::string(what) + " (" + file + ":" +
                            std::to_string(line) + ")");
}

}  // namespace core
