// Values to TOML and JSON text.
#include <charconv>
#include <cmath>

#include "core/document.h"
#include "core/errors.h"
#include "core/text.h"

namespace core {

namespace {

// Both languages know these escapes; malformed bytes (a command-line argument may hold any) become U+FFFD, so
// that the output is always UTF-8.
void append_quoted(std::string& out, std::string_view text) {
    static constexpr char digits[] = "0123456789abcdef";
    out += '"';
    for (std::size_t offset = 0; offset < text.size();) {
        const auto byte = static_cast<unsigned char>(text[offset]);
        const std::size_t length = utf8_sequence_length(text, offset);
        switch (byte) {
            case '"': out += "\\\""; break;
            case '\\': out += "\\\\"; break;
            case '\b': out += "\\b"; break;
            case '\f': out += "\\f"; break;
            case '\n': out += "\\n"; break;
            case '\r': out += "\\r"; break;
            case '\t': out += "\\t"; break;
            default:  // any other byte
                if (byte < 0x20 || byte == 0x7F) {
                    out += "\\u00";
                    out += digits[byte >> 4];
                    out += digits[byte & 15];
                } else if (length == 0) {
                    out += "\xEF\xBF\xBD";
                } else {
                    out += text.substr(offset, length);
                }
        }
        offset += length == 0 ? 1 : length;
    }
    out += '"';
}

// The fewest digits that read back to the same number, with a point or an exponent so that it stays a real
// number.
void append_real(std::string& out, double number) {
    char digits[32];
    const auto [end, failure] = std::to_chars(digits, digits + sizeof digits, number);
    require(failure == std::errc(), "a real number fits in 32 characters");
    const std::string_view text(digits, static_cast<std::size_t>(end - digits));
    out += text;
    if (text.find_first_of(".e") == std::string_view::npos) out += ".0";
}

void append_integer(std::string& out, std::int64_t number) { out += std::to_string(number); }

bool is_scalar(const Value& value) { return !value.is_array() && !value.is_table(); }

class JsonWriter {
public:
    JsonWriter(int indent) : indent_(indent) {}
    std::string out;

    void write(const Value& value, int depth) {
        switch (value.kind()) {
            case Value::Kind::null: out += "null"; break;
            case Value::Kind::boolean: out += value.boolean() ? "true" : "false"; break;
            case Value::Kind::integer: append_integer(out, value.integer()); break;
            case Value::Kind::real:
                if (std::isfinite(value.number())) append_real(out, value.number());
                else out += "null";
                break;
            case Value::Kind::string: append_quoted(out, value.string()); break;
            case Value::Kind::array: write_array(value, depth); break;
            case Value::Kind::table: write_table(value, depth); break;
        }
    }

private:
    void new_line(int depth) {
        if (indent_ <= 0) return;
        out += '\n';
        out.append(static_cast<std::size_t>(indent_) * depth, ' ');
    }

    // Arrays of scalars stand on one line: a list of a thousand losses is for reading, too.
    void write_array(const Value& value, int depth) {
        bool is_flat = true;
        for (const Value& item : value.items()) is_flat = is_flat && is_scalar(item);
        out += '[';
        bool is_first = true;
        for (const Value& item : value.items()) {
            if (!is_first) out += is_flat && indent_ > 0 ? ", " : ",";
            if (!is_flat) new_line(depth + 1);
            write(item, depth + 1);
            is_first = false;
        }
        if (!is_flat) new_line(depth);
        out += ']';
    }

    void write_table(const Value& value, int depth) {
        out += '{';
        bool is_first = true;
        for (const auto& [key, member] : value.members()) {
            if (!is_first) out += ',';
            new_line(depth + 1);
            append_quoted(out, key);
            out += indent_ > 0 ? ": " : ":";
            write(member, depth + 1);
            is_first = false;
        }
        if (value.size() > 0) new_line(depth);
        out += '}';
    }

    int indent_;
};

class TomlWriter {
public:
    std::string out;

    // Scalars of a table come before its sub-tables: in TOML a header ends the table above it.
    void write_table(const Value& table, const std::string& path) {
        for (const auto& [key, member] : table.members()) {
            if (member.is_null() || has_header(member)) continue;  // TOML has no null: absent says the same
            append_key(out, key);
            out += " = ";
            write_inline(member);
            out += '\n';
        }
        for (const auto& [key, member] : table.members()) {
            if (!has_header(member)) continue;
            std::string child_path = path.empty() ? "" : path + ".";
            append_key(child_path, key);
            if (member.is_table()) {
                write_header("[" + child_path + "]");
                write_table(member, child_path);
                continue;
            }
            for (const Value& item : member.items()) {
                write_header("[[" + child_path + "]]");
                write_table(item, child_path);
            }
        }
    }

private:
    static bool has_header(const Value& value) {
        if (value.is_table()) return true;
        if (!value.is_array() || value.size() == 0) return false;
        for (const Value& item : value.items())
            if (!item.is_table()) return false;
        return true;
    }

    static void append_key(std::string& to, const std::string& key) {
        const bool is_bare =
            !key.empty() &&
            key.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-") ==
                std::string::npos;
        if (is_bare) to += key;
        else append_quoted(to, key);
    }

    void write_header(const std::string& header) {
        if (!out.empty()) out += '\n';
        out += header + "\n";
    }

    void write_inline(const Value& value) {
        switch (value.kind()) {
            case Value::Kind::null:
                throw InternalError("broken promise: no null inside an array that is written as TOML");
            case Value::Kind::boolean: out += value.boolean() ? "true" : "false"; break;
            case Value::Kind::integer: append_integer(out, value.integer()); break;
            case Value::Kind::real: {
                const double number = value.number();
                if (std::isfinite(number)) append_real(out, number);
                else out += std::isnan(number) ? "nan" : number > 0 ? "inf" : "-inf";
                break;
            }
            case Value::Kind::string: append_quoted(out, value.string()); break;
            case Value::Kind::array: {
                out += '[';
                bool is_first = true;
                for (const Value& item : value.items()) {
                    if (!is_first) out += ", ";
                    write_inline(item);
                    is_first = false;
                }
                out += ']';
                break;
            }
            case Value::Kind::table: {
                out += '{';
                bool is_first = true;
                for (const auto& [key, member] : value.members()) {
                    if (member.is_null()) continue;
                    out += is_first ? " " : ", ";
                    append_key(out, key);
                    out += " = ";
                    write_inline(member);
                    is_first = false;
                }
                out += is_first ? "}" : " }";
                break;
            }
        }
    }
};

}  // namespace

std::string to_json(const Value& value, int indent) {
    JsonWriter writer(indent);
    writer.write(value, 0);
    writer.out += '\n';
    return std::move(writer.out);
}

std::string to_toml(const Value& table) {
    require(table.is_table(), "a TOML document is a table");
    TomlWriter writer;
    writer.write_table(table, "");
    return std::move(writer.out);
}

}  // namespace core
