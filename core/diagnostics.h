// Wrong input becomes diagnostics: all of them at once, each with location, key, value, what is allowed and
// what to do.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "core/diagnostics_fwd.h"
#include "core/errors.h"

namespace core {

enum class Severity { error, warning };

struct Diagnostic {
    Severity severity = Severity::error;
    SourceLocation location;
    std::string
        key;  // dotted path of the key, e.g. "plan.tensor_parallel"; empty when it concerns the whole file
    std::string message;     // names key, value and what is wrong with it
    std::string hint;        // what is allowed, what to do
    std::string value = {};  // as given; empty where the key is missing or has none of its own
    // What may stand there, each in words; empty where the hint alone says it.
    std::vector<std::string> allowed = {};
};

// Collects; never throws, never prints. A pass runs to its end, the caller stops at a checkpoint when
// `has_errors()`.
class Diagnostics {
public:
    void error(SourceLocation location, std::string key, std::string message, std::string hint = {});
    void error(Diagnostic diagnostic);  // whose severity is error
    void warning(SourceLocation location, std::string key, std::string message, std::string hint = {});
    void append(const Diagnostics& other);

    bool has_errors() const { return error_count_ > 0; }
    std::size_t error_count() const { return error_count_; }
    const std::vector<Diagnostic>& entries() const { return entries_; }

private:
    std::vector<Diagnostic> entries_;
    std::size_t error_count_ = 0;
};

// "scenarios/a.toml:14:10: error: MESSAGE\n  hint: HINT" — one line each, ending in a newline.
std::string format(const Diagnostic& diagnostic);
std::string format(const Diagnostics& diagnostics);

// The candidate nearest to `word` by edit distance, or empty when none is near enough to be a slip.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);
// Text from outside as it may stand in a message: in single quotes, control and malformed bytes escaped, cut
// after about `longest` bytes.
std::string in_quotes(std::string_view text, std::size_t longest = 60);
// "a, b or c".
std::string list_in_words(const std::vector<std::string>& words);

}  // namespace core
