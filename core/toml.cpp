// The one file that includes toml++.
//
// toml++ 3.3 declares as assumptions to the optimiser what its callers do not always check ("[" followed by a line break reaches parse_key without a key):
// undefined behaviour with NDEBUG, an abort without. Here a broken assumption is an exception, which parse_toml turns into a diagnostic; so the parser is
// compiled into this file and the distribution's shared library of it is not linked.
#undef NDEBUG
#define TOML_HEADER_ONLY 1
namespace core {
struct BrokenParserAssumption {};
}  // namespace core
#define TOML_ASSERT(condition) ((condition) ? void() : throw core::BrokenParserAssumption())
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wterminate"  // some assumptions stand in noexcept functions: there a broken one still ends the program
#include <toml++/toml.h>
#pragma GCC diagnostic pop

#include <algorithm>
#include <tuple>

#include "core/document.h"
#include "core/text.h"

namespace core {

namespace {

// toml++ limits nested values but not the length of dotted keys ("a.b.c.d..."), whose tables it makes and frees recursively; and its tables of Unicode
// letters run into code it calls unreachable for some characters that TOML 1.0 allows in strings and comments only. A sweep over the text that knows only
// strings, comments and brackets finds both before the parser does.
class Sweep {
public:
    Sweep(std::string_view text) : text_(text) {}

    struct Refusal {
        std::size_t offset;
        std::string reason, hint;
    };
    // The first place that is too deep or not ASCII where it must be.
    std::optional<Refusal> refusal() {
        const std::string too_deep = "nested deeper than " + std::to_string(deepest_nesting) + " levels";
        int brackets = 0;
        int dots = 0;
        for (at_ = 0; at_ < text_.size(); ++at_) {
            if (static_cast<unsigned char>(text_[at_]) >= 0x80)
                return Refusal{at_, "not valid TOML: a character that is not ASCII stands outside a string or comment", "put it in quotes"};
            switch (text_[at_]) {
                case '#':
                    skip_comment();
                    dots = 0;
                    break;
                case '"':
                case '\'': skip_string(text_[at_]); break;
                case '[':
                case '{':
                    dots = 0;
                    if (++brackets > deepest_nesting) return Refusal{at_, too_deep, ""};
                    break;
                case ']':
                case '}': brackets = std::max(0, brackets - 1); break;
                case '.':
                    if (++dots >= deepest_nesting) return Refusal{at_, too_deep, ""};
                    break;
                case '\n':
                case ',':
                case '=': dots = 0; break;
                default: break;
            }
        }
        return std::nullopt;
    }

private:
    void skip_comment() {
        while (at_ + 1 < text_.size() && text_[at_ + 1] != '\n') ++at_;
    }

    // Leaves at_ on the last quote. A single-line string that is not closed ends with its line, as the parser will complain there.
    void skip_string(char quote) {
        const std::string three(3, quote);
        if (text_.substr(at_, 3) == three) {
            for (at_ += 3; at_ < text_.size(); ++at_) {
                if (quote == '"' && text_[at_] == '\\') {
                    ++at_;
                } else if (text_.substr(at_, 3) == three) {
                    at_ += 2;
                    while (at_ + 1 < text_.size() && text_[at_ + 1] == quote) ++at_;  // up to two quotes may stand before the closing three
                    return;
                }
            }
            return;
        }
        for (++at_; at_ < text_.size() && text_[at_] != quote && text_[at_] != '\n'; ++at_)
            if (quote == '"' && text_[at_] == '\\') ++at_;
        if (at_ < text_.size() && text_[at_] == '\n') --at_;
    }

    std::string_view text_;
    std::size_t at_ = 0;
};

class Converter {
public:
    Converter(const std::string& file_name, Diagnostics& diagnostics) : file_name_(file_name), diagnostics_(diagnostics) {}

    Value convert(const toml::node& node, const std::string& path, int depth) {
        Value value = content(node, path, depth);
        value.location = location(node.source());
        return value;
    }

private:
    SourceLocation location(const toml::source_region& region) const {
        return {file_name_, static_cast<int>(region.begin.line), static_cast<int>(region.begin.column)};
    }

    Value content(const toml::node& node, const std::string& path, int depth) {
        switch (node.type()) {
            case toml::node_type::string: return Value(node.as_string()->get());
            case toml::node_type::integer: return Value(static_cast<std::int64_t>(node.as_integer()->get()));
            case toml::node_type::floating_point: return Value(node.as_floating_point()->get());
            case toml::node_type::boolean: return Value(node.as_boolean()->get());
            case toml::node_type::table: return too_deep(node, path, depth) ? Value::table() : table(*node.as_table(), path, depth);
            case toml::node_type::array: return too_deep(node, path, depth) ? Value::array() : array(*node.as_array(), path, depth);
            default:
                diagnostics_.error(location(node.source()), path, path + " is a date or a time, which no key of ours takes",
                                   "put it in quotes to make it a string");
                return Value(std::string());
        }
    }

    bool too_deep(const toml::node& node, const std::string& path, int depth) {
        if (depth <= deepest_nesting) return false;
        diagnostics_.error(location(node.source()), path.substr(0, 60), "nested deeper than " + std::to_string(deepest_nesting) + " levels");
        return true;
    }

    Value array(const toml::array& items, const std::string& path, int depth) {
        Value result = Value::array();
        for (const toml::node& item : items) result.append(convert(item, path + "[" + std::to_string(result.size()) + "]", depth + 1));
        return result;
    }

    Value table(const toml::table& members, const std::string& path, int depth) {
        // toml++ keeps members sorted by name; the order of appearance is in the keys' places.
        std::vector<std::pair<const toml::key*, const toml::node*>> in_order;
        for (auto&& [key, node] : members) in_order.emplace_back(&key, &node);
        std::stable_sort(in_order.begin(), in_order.end(), [](const auto& a, const auto& b) {
            const auto& p = a.first->source().begin;
            const auto& q = b.first->source().begin;
            return std::tie(p.line, p.column) < std::tie(q.line, q.column);
        });
        Value result = Value::table();
        for (const auto& [key, node] : in_order) {
            const std::string name(key->str());
            Value value = convert(*node, path.empty() ? name : path + "." + name, depth + 1);
            value.key_location = location(key->source());
            result.members().emplace_back(name, std::move(value));
        }
        return result;
    }

    const std::string& file_name_;
    Diagnostics& diagnostics_;
};

}  // namespace

std::optional<Value> parse_toml(std::string_view text, const std::string& file_name, Diagnostics& diagnostics) {
    if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
    if (!check_text(text, file_name, diagnostics)) return std::nullopt;
    if (const auto refusal = Sweep(text).refusal()) {
        diagnostics.error(PositionTracker(text, file_name).at(refusal->offset), "", refusal->reason, refusal->hint);
        return std::nullopt;
    }
    try {
        const toml::table document = toml::parse(text);
        const std::size_t errors_before = diagnostics.error_count();
        Value value = Converter(file_name, diagnostics).convert(document, "", 0);
        value.location = {file_name, 1, 1};
        if (diagnostics.error_count() > errors_before) return std::nullopt;
        return value;
    } catch (const toml::parse_error& failure) {
        const toml::source_position& place = failure.source().begin;
        const std::string message = in_quotes(failure.description(), 200);
        diagnostics.error({file_name, static_cast<int>(place.line), static_cast<int>(place.column)}, "",
                          "not valid TOML: " + message.substr(1, message.size() - 2));
        return std::nullopt;
    } catch (const BrokenParserAssumption&) {
        diagnostics.error({file_name, 1, 1}, "", "not valid TOML", "look for a bracket without a key, such as a line that holds only \"[\"");
        return std::nullopt;
    }
}

}  // namespace core
