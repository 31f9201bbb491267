// The part of Boost.Program_options that api/options.cpp uses: long options, each with one value or none.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace web::program_options {

namespace command_line_style {
inline constexpr int allow_long = 1, long_allow_adjacent = 2, long_allow_next = 4;
}

template <class Type>
struct Valued {};
template <class Type>
Valued<Type> value() {
    return {};
}

class options_description {
public:
    class Adder {
    public:
        explicit Adder(std::map<std::string, bool>& takes_value) : takes_value_(takes_value) {}
        void operator()(const char* name, Valued<std::string>) { takes_value_[name] = true; }
        void operator()(const char* name, const char*) { takes_value_[name] = false; }

    private:
        std::map<std::string, bool>& takes_value_;
    };
    Adder add_options() { return Adder(takes_value_); }
    const std::map<std::string, bool>& takes_value() const { return takes_value_; }

private:
    std::map<std::string, bool> takes_value_;  // by name without dashes
};

struct option {
    std::string string_key;
    int position_key = -1;  // of a positional argument: how many came before
    std::vector<std::string> value, original_tokens;
    bool unregistered = false;
};

struct parsed_options {
    std::vector<option> options;
};

// Unknown options are kept as unregistered. "--" makes what follows positional.
class command_line_parser {
public:
    explicit command_line_parser(std::vector<std::string> arguments) : arguments_(std::move(arguments)) {}
    command_line_parser& options(const options_description& description) {
        takes_value_ = description.takes_value();
        return *this;
    }
    command_line_parser& style(int) { return *this; }
    command_line_parser& allow_unregistered() { return *this; }
    parsed_options run() const {
        parsed_options parsed;
        int positions = 0;
        bool is_positional = false;
        for (std::size_t i = 0; i < arguments_.size(); ++i) {
            const std::string& argument = arguments_[i];
            if (!is_positional && argument == "--") {
                is_positional = true;
            } else if (is_positional || !argument.starts_with("--")) {
                parsed.options.push_back({"", positions++, {argument}, {argument}, false});
            } else {
                const std::size_t equals = argument.find('=');
                const std::string name =
                    argument.substr(2, equals == std::string::npos ? equals : equals - 2);
                option one{name, -1, {}, {argument}, !takes_value_.contains(name)};
                if (equals != std::string::npos) {
                    one.value.push_back(argument.substr(equals + 1));
                } else if (!one.unregistered && takes_value_.at(name) && i + 1 < arguments_.size()) {
                    one.value.push_back(arguments_[++i]);
                    one.original_tokens.push_back(one.value.front());
                }
                parsed.options.push_back(std::move(one));
            }
        }
        return parsed;
    }

private:
    std::vector<std::string> arguments_;
    std::map<std::string, bool> takes_value_;
};

}  // namespace web::program_options
