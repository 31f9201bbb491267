#include "core/value.h"

#include "core/errors.h"

namespace core {

std::string_view name_of(Value::Kind kind) {
    switch (kind) {
        case Value::Kind::null: return "null";
        case Value::Kind::boolean: return "boolean";
        case Value::Kind::integer: return "integer";
        case Value::Kind::real: return "real number";
        case Value::Kind::string: return "string";
        case Value::Kind::array: return "array";
        case Value::Kind::table: return "table";
    }
    throw InternalError("broken promise: every kind of value has a name");
}

namespace {

[[noreturn]] void wrong_access(Value::Kind is, std::string_view wanted) {
    throw InternalError("broken promise: a value read as " + std::string(wanted) + " is of kind " +
                        std::string(name_of(is)));
}

template <class T, class Variant>
auto& get(Variant& data, Value::Kind kind, std::string_view wanted) {
    auto* content = std::get_if<T>(&data);
    if (!content) wrong_access(kind, wanted);
    return *content;
}

}  // namespace

bool Value::boolean() const { return get<bool>(data_, kind(), "boolean"); }
std::int64_t Value::integer() const { return get<std::int64_t>(data_, kind(), "integer"); }
double Value::number() const {
    if (kind() == Kind::integer) return std::get<std::int64_t>(data_);
    return get<double>(data_, kind(), "number");
}
const std::string& Value::string() const { return get<std::string>(data_, kind(), "string"); }
const Value::Array& Value::items() const { return get<Array>(data_, kind(), "array"); }
Value::Array& Value::items() { return get<Array>(data_, kind(), "array"); }
const Value::Table& Value::members() const { return get<Table>(data_, kind(), "table"); }
Value::Table& Value::members() { return get<Table>(data_, kind(), "table"); }

const Value* Value::find(std::string_view key) const {
    const auto* table = std::get_if<Table>(&data_);
    if (!table) return nullptr;
    for (const auto& [name, value] : *table)
        if (name == key) return &value;
    return nullptr;
}

Value* Value::find(std::string_view key) {
    return const_cast<Value*>(static_cast<const Value*>(this)->find(key));
}

Value& Value::operator[](std::string_view key) {
    if (is_null()) data_ = Table{};
    if (Value* present = find(key)) return *present;
    return members().emplace_back(std::string(key), Value()).second;
}

void Value::append(Value value) {
    if (is_null()) data_ = Array{};
    items().push_back(std::move(value));
}

std::size_t Value::size() const {
    if (is_array()) return items().size();
    if (is_table()) return members().size();
    return 0;
}

}  // namespace core
