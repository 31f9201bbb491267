// One tree for TOML and JSON, in and out: every value remembers where it was read, tables keep their order.
// Parsing and writing are in document.h; typed access with diagnostics in reader.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/diagnostics_fwd.h"

namespace core {

class Value {
public:
    enum class Kind { null, boolean, integer, real, string, array, table };
    using Array = std::vector<Value>;
    using Table = std::vector<std::pair<std::string, Value>>;  // in order of appearance

    Value() = default;
    Value(bool b) : data_(b) {}
    Value(int i) : data_(static_cast<std::int64_t>(i)) {}
    Value(std::int64_t i) : data_(i) {}
    Value(std::size_t i) : data_(static_cast<std::int64_t>(i)) {}
    Value(double d) : data_(d) {}
    Value(const char* s) : data_(std::string(s)) {}
    Value(std::string s) : data_(std::move(s)) {}
    Value(std::string_view s) : data_(std::string(s)) {}
    Value(Array a) : data_(std::move(a)) {}
    Value(Table t) : data_(std::move(t)) {}
    template <class T>
    Value(const std::vector<T>& items) : data_(Array(items.begin(), items.end())) {}

    static Value array() { return Value(Array{}); }
    static Value table() { return Value(Table{}); }

    Kind kind() const { return static_cast<Kind>(data_.index()); }
    bool is_null() const { return kind() == Kind::null; }
    bool is_number() const { return kind() == Kind::integer || kind() == Kind::real; }
    bool is_string() const { return kind() == Kind::string; }
    bool is_array() const { return kind() == Kind::array; }
    bool is_table() const { return kind() == Kind::table; }

    // Each throws InternalError when the kind is another: check first, or use reader.h on input.
    bool boolean() const;
    std::int64_t integer() const;
    double number() const;  // integer or real
    const std::string& string() const;
    const Array& items() const;
    Array& items();
    const Table& members() const;
    Table& members();

    const Value* find(std::string_view key) const;  // null when absent or when this is no table
    Value* find(std::string_view key);
    Value& operator[](std::string_view key);  // table member, made when absent (a null value becomes a table)
    void append(Value value);                 // array element (a null value becomes an array)
    std::size_t size() const;                 // of array or table, else 0

    SourceLocation location;      // of the value
    SourceLocation key_location;  // of its key, when it is a table member

private:
    std::variant<std::monostate, bool, std::int64_t, double, std::string, Array, Table> data_;
};

std::string_view name_of(Value::Kind kind);

}  // namespace core
