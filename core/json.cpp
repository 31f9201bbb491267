// The one file that includes nlohmann's JSON. Its event parser is fed through an iterator that counts bytes,
// so that every value knows its location.
#include <nlohmann/json.hpp>

#include <iterator>
#include <limits>
#include <set>

#include "core/diagnostics.h"
#include "core/document.h"
#include "core/index/integers.h"
#include "core/text.h"

namespace core {

namespace {

// Reads bytes and keeps the number read where the event handler sees it.
class CountingIterator {
public:
    using iterator_category = std::input_iterator_tag;
    using value_type = char;
    using difference_type = std::ptrdiff_t;
    using pointer = const char*;
    using reference = const char&;

    CountingIterator(const char* at, std::size_t* consumed) : at_(at), consumed_(consumed) {}
    reference operator*() const { return *at_; }
    CountingIterator& operator++() {
        ++at_;
        ++*consumed_;
        return *this;
    }
    CountingIterator operator++(int) {
        CountingIterator before = *this;
        ++*this;
        return before;
    }
    bool operator==(const CountingIterator& other) const { return at_ == other.at_; }

private:
    const char* at_;
    std::size_t* consumed_;
};

// Builds the tree. A parent's vector does not grow while a child is open, so pointers to open containers stay
// valid.
class TreeBuilder : public nlohmann::json_sax<nlohmann::json> {
public:
    TreeBuilder(std::string_view text, const std::string& file_name, const std::size_t& consumed,
                Diagnostics& diagnostics)
        : text_(text),
          file_name_(file_name),
          consumed_(consumed),
          diagnostics_(diagnostics),
          tracker_(text, file_name) {}

    Value root;

    bool null() override { return add(Value()); }
    bool boolean(bool value) override { return add(Value(value)); }
    bool number_integer(number_integer_t value) override { return add(Value(value)); }
    bool number_unsigned(number_unsigned_t value) override {
        if (value > static_cast<number_unsigned_t>(std::numeric_limits<std::int64_t>::max())) {
            diagnostics_.error(token_start(), path(),
                               std::to_string(value) + " is too large for a 64-bit integer",
                               "use at most 9223372036854775807");
            return false;
        }
        return add(Value(static_cast<std::int64_t>(value)));
    }
    bool number_float(number_float_t value, const std::string&) override { return add(Value(value)); }
    bool string(std::string& value) override { return add(Value(std::move(value))); }
    bool binary(nlohmann::json::binary_t&) override { return false; }  // JSON text has no binary values

    bool key(std::string& name) override {
        const SourceLocation location = token_start();
        Frame& frame = open_.back();
        if (!frame.keys.insert(name).second) {
            diagnostics_.error(location, path(), "key " + in_quotes(name) + " stands twice in one object",
                               "remove one of the two");
            return false;
        }
        frame.key = name;
        frame.key_location = location;
        return true;
    }

    bool start_object(std::size_t) override { return open(Value::table()); }
    bool start_array(std::size_t) override { return open(Value::array()); }
    bool end_object() override { return close(); }
    bool end_array() override { return close(); }

    bool parse_error(std::size_t position, const std::string&,
                     const nlohmann::detail::exception& failure) override {
        // "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error while ...": we say
        // the location in our own words.
        std::string message = failure.what();  // control bytes stand escaped in it
        for (const char* mark : {"] ", "syntax error "})
            if (const auto at = message.find(mark); at != std::string::npos)
                message = message.substr(at + std::char_traits<char>::length(mark));
        // The lexer counts the byte it has just read.
        const std::size_t offset = position > 0 ? position - 1 : 0;
        diagnostics_.error(PositionTracker(text_, file_name_).at(offset), path(),
                           "not valid JSON: " + message);
        return false;
    }

private:
    struct Frame {
        Value* container;
        std::string key;
        SourceLocation key_location;
        std::set<std::string> keys;
    };

    // The first byte after the token before that is no separator. Numbers are reported one byte late, but
    // that byte can only be a separator.
    SourceLocation token_start() {
        std::size_t start = previous_end_;
        while (start < text_.size() &&
               std::string_view(" \t\r\n,:]}").find(text_[start]) != std::string_view::npos)
            ++start;
        previous_end_ = consumed_;
        return tracker_.at(start);
    }

    std::string path() const {
        std::string result;
        for (const Frame& frame : open_) {
            if (frame.container->is_array()) {
                result += "[" + std::to_string(frame.container->size()) + "]";
            } else if (!frame.key.empty()) {
                result += (result.empty() ? "" : ".") + frame.key.substr(0, 60);
            }
        }
        return result;
    }

    Value* place(Value value, SourceLocation location) {
        value.location = std::move(location);
        if (open_.empty()) {
            root = std::move(value);
            return &root;
        }
        Frame& frame = open_.back();
        if (frame.container->is_array()) {
            frame.container->append(std::move(value));
            return &frame.container->items().back();
        }
        value.key_location = frame.key_location;
        return &frame.container->members().emplace_back(frame.key, std::move(value)).second;
    }

    bool add(Value value) {
        place(std::move(value), token_start());
        return true;
    }

    bool open(Value container) {
        const SourceLocation location = token_start();
        if (core::count_of(open_) >= deepest_nesting) {
            diagnostics_.error(location, path(),
                               "nested deeper than " + std::to_string(deepest_nesting) + " levels");
            return false;
        }
        Value* placed = place(std::move(container), location);
        open_.push_back({placed, {}, {}, {}});
        return true;
    }

    bool close() {
        open_.pop_back();
        return true;
    }

    std::string_view text_;
    const std::string& file_name_;
    const std::size_t& consumed_;
    Diagnostics& diagnostics_;
    PositionTracker tracker_;
    std::size_t previous_end_ = 0;
    std::vector<Frame> open_;
};

}  // namespace

std::optional<Value> parse_json(std::string_view text, const std::string& file_name,
                                Diagnostics& diagnostics) {
    if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
    if (!check_text(text, file_name, diagnostics)) return std::nullopt;
    if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) {
        diagnostics.error({file_name, 1, 1}, "", "the file is empty, JSON is expected");
        return std::nullopt;
    }
    std::size_t consumed = 0;
    TreeBuilder builder(text, file_name, consumed, diagnostics);
    const std::size_t errors_before = diagnostics.error_count();
    const bool parsed =
        nlohmann::json::sax_parse(CountingIterator(text.data(), &consumed),
                                  CountingIterator(text.data() + text.size(), &consumed), &builder);
    require(parsed || diagnostics.error_count() > errors_before, "JSON that is refused has a diagnostic");
    if (!parsed) return std::nullopt;
    return std::move(builder.root);
}

}  // namespace core
