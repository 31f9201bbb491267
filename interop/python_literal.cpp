#include "interop/python_literal.h"

#include <cctype>
#include <charconv>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "core/document.h"
#include "core/text.h"

namespace interop {

namespace {

class Parser {
public:
    Parser(const std::string& text, const std::string& file, core::Diagnostics& diagnostics)
        : text_(text), positions_(text, file), diagnostics_(diagnostics) {}

    std::optional<core::Value> document() {
        core::Value whole = core::Value::table();
        whole.location = place();
        while (skip(), !failed_ && at_ < text_.size()) {
            const std::size_t begin = at_;
            std::optional<core::Value> value = statement(whole);
            if (failed_) return std::nullopt;
            if (value && value->is_table()) merge(whole, *value);
            if (at_ == begin) skip_line();
        }
        if (failed_) return std::nullopt;
        if (whole.size() == 0) {
            diagnostics_.error(whole.location, "", "no table of keys and values is in this file",
                               "give the JSON or Python dictionary");
            return std::nullopt;
        }
        return whole;
    }

private:
    static bool starts_name(char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_'; }
    static bool continues_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }
    char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
    core::SourceLocation place() { return positions_.at(at_); }

    void fail(const std::string& message, const std::string& hint = {}) {
        if (!failed_) diagnostics_.error(place(), "", message, hint);
        failed_ = true;
    }
    void skip() {
        for (; at_ < text_.size(); ++at_) {
            if (peek() == '#') {
                while (at_ < text_.size() && peek() != '\n') ++at_;
                --at_;
            } else if (!std::isspace(static_cast<unsigned char>(peek())) && peek() != '\\') {
                return;
            }
        }
    }
    void skip_line() {
        while (at_ < text_.size() && peek() != '\n') ++at_;
    }
    bool take(char c) {
        skip();
        if (peek() != c) return false;
        ++at_;
        return true;
    }

    static void merge(core::Value& into, const core::Value& from) {
        for (const auto& [key, value] : from.members()) into[key] = value;
    }

    // One statement at the top. Members without braces go straight into `whole`.
    std::optional<core::Value> statement(core::Value& whole) {
        if (peek() == ',' || peek() == '}' || peek() == ')' || peek() == ';') {
            ++at_;
            return std::nullopt;
        }
        if (peek() == '"' || peek() == '\'') {
            const core::SourceLocation where = place();
            const std::string key = string();
            if (failed_ || !take(':')) return std::nullopt;
            core::Value member = value(0);
            member.key_location = where;
            whole[key] = std::move(member);
            return std::nullopt;
        }
        if (starts_name(peek())) {
            const std::string name = path();
            skip();
            if (peek() == '=' && at_ + 1 < text_.size() && text_[at_ + 1] != '=') {
                ++at_;
                core::Value assigned = value(0);
                // mpi = {...} beside distribution = {...}: the table's own keys, unless the name is one that
                // the reader looks for.
                if (name == "distribution" || name == "hyperparameters" || name == "parameters" ||
                    !assigned.is_table()) {
                    core::Value named = core::Value::table();
                    named[name] = std::move(assigned);
                    return named;
                }
                return assigned;
            }
            if (peek() == '(') return call(0);
            skip_line();
            return std::nullopt;
        }
        if (peek() == '{') return value(0);
        skip_line();
        return std::nullopt;
    }

    core::Value value(int depth) {
        skip();
        const core::SourceLocation where = place();
        core::Value result = bare_value(depth);
        result.location = where;
        return result;
    }

    core::Value bare_value(int depth) {
        if (depth > core::deepest_nesting)
            return fail(fmt::format("nested deeper than {} levels", core::deepest_nesting)), core::Value();
        const char c = peek();
        if (c == '{') return dictionary(depth);
        if (c == '[' || c == '(') return sequence(depth, c == '[' ? ']' : ')');
        if (c == '"' || c == '\'') {
            std::string all = string();
            while (skip(), !failed_ && (peek() == '"' || peek() == '\''))
                all += string();  // adjacent strings are one
            return all;
        }
        if (std::isdigit(static_cast<unsigned char>(c)) || c == '-' || c == '+' || c == '.') return number();
        if (starts_name(c)) {
            const std::string name = path();
            if (name == "True" || name == "true") return true;
            if (name == "False" || name == "false") return false;
            if (name == "None" || name == "null") return {};
            // A name, a prefixed string or a call: its value is not known here.
            if (peek() == '"' || peek() == '\'') return string();
            if (take('(')) {
                --at_;
                return call(depth);
            }
            return name;
        }
        fail(at_ < text_.size()
                 ? fmt::format("a value is expected before {}", core::in_quotes(text_.substr(at_, 1)))
                 : "a value is expected at the end of the file");
        return {};
    }

    core::Value dictionary(int depth) {
        core::Value table = core::Value::table();
        table.location = place();
        take('{');
        while (!failed_ && !take('}')) {
            skip();
            const core::SourceLocation where = place();
            if (peek() != '"' && peek() != '\'') {
                fail(at_ < text_.size() ? "a key in quotes is expected" : "a brace is not closed",
                     "write {\"key\": value, ...}");
                break;
            }
            const std::string key = string();
            if (failed_) break;
            if (!take(':')) {
                fail(fmt::format("a colon is expected after {}", core::in_quotes(key)));
                break;
            }
            core::Value member = value(depth + 1);
            member.key_location = where;
            if (table.find(key)) {
                diagnostics_.error(where, key, fmt::format("{} is given twice", core::in_quotes(key)),
                                   "keep one");
                failed_ = true;
                break;
            }
            table[key] = std::move(member);
            if (!take(',') && (skip(), peek() != '}')) fail("a comma or a closing brace is expected");
        }
        return table;
    }

    core::Value sequence(int depth, char closing) {
        core::Value items = core::Value::array();
        ++at_;
        while (!failed_ && !take(closing)) {
            items.append(value(depth + 1));
            if (!take(',') && (skip(), peek() != closing)) fail("a comma or a closing bracket is expected");
        }
        return items;
    }

    core::Value call(int depth) {
        core::Value table = core::Value::table();
        table.location = place();
        take('(');
        while (!failed_ && !take(')')) {
            skip();
            const core::SourceLocation where = place();
            const std::size_t begin = at_;
            if (starts_name(peek())) {
                const std::string key = path();
                if (take('=')) {
                    core::Value argument = value(depth + 1);
                    argument.key_location = where;
                    table[key] = std::move(argument);
                    if (!take(',') && (skip(), peek() != ')'))
                        fail("a comma or a closing bracket is expected");
                    continue;
                }
                at_ = begin;
            }
            const bool is_text = peek() == '"' || peek() == '\'';
            core::Value argument = is_text ? core::Value(string()) : value(depth + 1);
            if (is_text && take(':')) {  // members whose braces were lost
                core::Value member = value(depth + 1);
                member.key_location = where;
                table["distribution"][argument.string()] = std::move(member);
            } else if (argument.is_table()) {
                table["distribution"] = std::move(argument);
            }
            if (!take(',') && (skip(), peek() != ')')) fail("a comma or a closing bracket is expected");
        }
        return table;
    }

    // Identifiers joined by dots.
    std::string path() {
        const std::size_t begin = at_;
        while (at_ < text_.size() && (continues_name(text_[at_]) || text_[at_] == '.')) ++at_;
        return text_.substr(begin, at_ - begin);
    }

    std::string string() {
        const char quote = peek();
        std::string result;
        for (++at_; at_ < text_.size() && text_[at_] != quote && text_[at_] != '\n'; ++at_) {
            if (text_[at_] == '\\' && at_ + 1 < text_.size()) {
                ++at_;
                result += text_[at_] == 'n' ? '\n' : text_[at_] == 't' ? '\t' : text_[at_];
            } else {
                result += text_[at_];
            }
        }
        if (peek() != quote) fail("a string is not closed");
        else ++at_;
        return result;
    }

    core::Value number() {
        const std::size_t begin = at_;
        std::string digits;
        bool is_real = false;
        for (; at_ < text_.size(); ++at_) {
            const char c = text_[at_];
            const bool is_sign =
                (c == '-' || c == '+') && (at_ == begin || text_[at_ - 1] == 'e' || text_[at_ - 1] == 'E');
            if (c == '_') continue;
            if (!std::isdigit(static_cast<unsigned char>(c)) && !is_sign && c != '.' && c != 'e' && c != 'E')
                break;
            is_real = is_real || c == '.' || c == 'e' || c == 'E';
            if (c != '+' || at_ != begin) digits += c;
        }
        const char* const end = digits.data() + digits.size();
        if (std::int64_t whole = 0; !is_real) {
            if (const auto [stop, error] = std::from_chars(digits.data(), end, whole);
                error == std::errc() && stop == end)
                return whole;
        } else if (double real = 0; true) {
            if (const auto [stop, error] = std::from_chars(digits.data(), end, real);
                error == std::errc() && stop == end)
                return real;
        }
        at_ = begin;
        fail(fmt::format("{} is no number", core::in_quotes(digits)));
        return {};
    }

    const std::string& text_;
    std::size_t at_ = 0;
    bool failed_ = false;
    core::PositionTracker positions_;
    core::Diagnostics& diagnostics_;
};

}  // namespace

std::optional<core::Value> parse_python_literal(const std::string& text, const std::string& file_name,
                                                core::Diagnostics& diagnostics) {
    if (!core::check_text(text, file_name, diagnostics)) return std::nullopt;
    return Parser(text, file_name, diagnostics).document();
}

bool is_true(const core::Value& value) {
    switch (value.kind()) {
        case core::Value::Kind::boolean: return value.boolean();
        case core::Value::Kind::integer: return value.integer() != 0;
        case core::Value::Kind::string:
            return value.string() == "true" || value.string() == "True" || value.string() == "1";
        case core::Value::Kind::null:
        case core::Value::Kind::real:
        case core::Value::Kind::array:
        case core::Value::Kind::table: return false;
    }
    throw core::InternalError("broken promise: every kind of value is true or false");
}

}  // namespace interop
