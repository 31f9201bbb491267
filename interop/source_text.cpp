#include "interop/source_text.h"

#include <algorithm>

#include "core/document.h"
#include "interop/expression.h"

namespace interop {

namespace {

// A number that YAML 1.1 and Python read as one: "1e-05" is a text in YAML 1.1.
std::string number(const core::Value& value) {
    std::string text = one_line(value);
    const std::size_t exponent = text.find_first_of("eE");
    if (value.kind() == core::Value::Kind::real && text.find('.') == std::string::npos &&
        exponent != std::string::npos)
        text.insert(exponent, ".0");
    return text;
}

std::string yaml_scalar(const core::Value& value) {
    return value.kind() == core::Value::Kind::real ? number(value) : one_line(value);
}

std::string yaml_block(const std::string& text, const std::string& indent) {
    std::string block = " |\n" + indent;
    const std::string kept = text.ends_with('\n') ? text.substr(0, text.size() - 1) : text;
    for (const char c : kept) block += c == '\n' ? "\n" + indent : std::string(1, c);
    return block + "\n";
}

std::string yaml_list(const core::Value& list, int depth) {
    const std::string indent(2 * depth, ' ');
    std::string text;
    for (const core::Value& item : list.items()) {
        if (item.is_table()) {
            std::string members = yaml(item, depth + 1);
            members.replace(0, indent.size() + 2, indent + "- ");
            text += members;
        } else {
            text += indent + "-" +
                    (item.is_string() && item.string().find('\n') != std::string::npos
                         ? yaml_block(item.string(), indent + "  ")
                         : " " + yaml_scalar(item) + "\n");
        }
    }
    return text;
}

}  // namespace

std::string yaml(const core::Value& table, int depth) {
    const std::string indent(2 * depth, ' ');
    std::string text;
    for (const auto& [key, value] : table.members()) {
        text += indent + key + ":";
        if (value.is_table()) {
            text += value.size() == 0 ? " {}\n" : "\n" + yaml(value, depth + 1);
        } else if (value.is_array()) {
            const auto& items = value.items();
            const bool is_flat = std::none_of(items.begin(), items.end(), [](const core::Value& item) {
                return item.is_table() || (item.is_string() && item.string().find('\n') != std::string::npos);
            });
            if (!is_flat) {
                text += "\n" + yaml_list(value, depth);
                continue;
            }
            text += " [";
            for (std::size_t i = 0; i < items.size(); ++i) text += (i ? ", " : "") + yaml_scalar(items[i]);
            text += "]\n";
        } else if (value.is_string() && value.string().find('\n') != std::string::npos) {
            text += yaml_block(value.string(), indent + "  ");
        } else {
            text += " " + yaml_scalar(value) + "\n";
        }
    }
    return text;
}

std::string python_literal(const core::Value& value) {
    switch (value.kind()) {
        case core::Value::Kind::null: return "None";
        case core::Value::Kind::boolean: return value.boolean() ? "True" : "False";
        case core::Value::Kind::real: return number(value);
        case core::Value::Kind::integer:
        case core::Value::Kind::string: return one_line(value);
        case core::Value::Kind::array: {
            std::string text = "[";
            for (std::size_t i = 0; i < value.size(); ++i)
                text += (i ? ", " : "") + python_literal(value.items()[i]);
            return text + "]";
        }
        case core::Value::Kind::table: {
            std::string text = "{";
            for (const auto& [key, member] : value.members())
                text += (text.size() > 1 ? ", " : "") + one_line(core::Value(key)) + ": " +
                        python_literal(member);
            return text + "}";
        }
    }
    return {};
}

PythonCall& PythonCall::with(const std::string& key, const core::Value& value) {
    return with_source(key, python_literal(value));
}

PythonCall& PythonCall::with_members(const core::Value& table) {
    for (const auto& [key, value] : table.members()) with(key, value);
    return *this;
}

PythonCall& PythonCall::with_source(const std::string& key, const std::string& source) {
    arguments_.emplace_back(key, source);
    return *this;
}

std::string PythonCall::text(int depth) const {
    const std::string indent(4 * depth, ' ');
    std::string text = name_ + "(\n";
    for (const auto& [key, source] : arguments_) text += indent + "    " + key + "=" + source + ",\n";
    return text + indent + ")";
}

}  // namespace interop
