#include "apps/manual.h"

#include <algorithm>
#include <sstream>

#include <fmt/core.h>

#include "api/version.h"
#include "core/diagnostics.h"
#include "core/document.h"

namespace apps {

namespace {

struct Option {
    std::string name;  // "--set"
    bool has_value = false;
};

struct Command {
    std::string name;  // empty: the tool without a subcommand
    std::string help;
    std::vector<Option> options;
};

std::string help_of(const Subcommand& command) {
    std::ostringstream out, err;
    command.run({"--help"}, out, err);
    return out.str();
}

// A command refuses an option that it does not know, and says which it knows.
std::vector<Option> options_of(const Subcommand& command) {
    constexpr const char* no_option = "--which-options-are-there";
    std::ostringstream out, err;
    command.run({no_option, "--json"}, out, err);
    core::Diagnostics ignored;
    const std::optional<core::Value> document = core::parse_json(out.str(), "", ignored);
    const core::Value* errors = document ? document->find("errors") : nullptr;
    std::vector<Option> options;
    if (errors == nullptr) return options;
    for (const core::Value& error : errors->items()) {
        const core::Value* allowed = error.find("allowed");
        if (error.find("key")->string() != no_option || allowed == nullptr) continue;
        for (const core::Value& entry : allowed->items()) {
            const std::string& text = entry.string();
            const std::size_t equals = text.find('=');
            options.push_back({text.substr(0, equals), equals != std::string::npos});
        }
        break;
    }
    return options;
}

std::vector<Command> commands_of(const Tool& tool) {
    std::vector<Command> commands = {{"", tool.help, options_of(tool.fallback)}};
    commands.front().options.push_back({"--version"});
    for (const Subcommand& command : tool.subcommands)
        commands.push_back({command.name, help_of(command), options_of(command)});
    return commands;
}

// ---------------------------------------------------------------------------------------------- man pages

// Backslashes, and dots and quotes at the begin of a line, mean something to troff.
std::string in_troff(const std::string& text) {
    std::string page;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
        if (!line.empty() && (line.front() == '.' || line.front() == '\'')) page += "\\&";
        for (const char c : line) {
            if (c == '\\') page += "\\e";
            else if (c == '-') page += "\\-";
            else page += c;
        }
        page += '\n';
    }
    return page;
}

std::string man_page(const Tool& tool, const std::vector<Command>& commands) {
    std::string page = fmt::format(".TH {} 1 \"\" \"{} {}\" \"User Commands\"\n.SH NAME\n{} \\- ", tool.name,
                                   tool.name, api::version, tool.name);
    page += tool.name == "smsim"    ? "predicts training steps: time, memory, cost\n"
            : tool.name == "smplan" ? "finds the best plan to train a model on instances one can rent\n"
                                    : "runs a training plan on this machine\n";
    for (const Command& command : commands) {
        page +=
            command.name.empty() ? ".SH DESCRIPTION\n" : fmt::format(".SH {} {}\n", tool.name, command.name);
        page += ".nf\n" + in_troff(command.help) + ".fi\n";
        if (command.options.empty()) continue;
        page += ".PP\nAll options:";
        for (const Option& option : command.options)
            page += fmt::format(" \\fB{}\\fR{}",
                                in_troff(option.name).substr(0, in_troff(option.name).size() - 1),
                                option.has_value ? " \\fIVALUE\\fR" : "");
        page += "\n";
    }
    return page;
}

// -------------------------------------------------------------------------------------------- completions

std::string names_in(const std::vector<Command>& commands) {
    std::string names;
    for (const Command& command : commands)
        if (!command.name.empty()) names += (names.empty() ? "" : " ") + command.name;
    return names;
}

std::string names_of(const Command& command, bool with_value_only = false) {
    std::string names;
    for (const Option& option : command.options)
        if (option.has_value || !with_value_only) names += (names.empty() ? "" : " ") + option.name;
    return names;
}

std::string bash_completion(const Tool& tool, const std::vector<Command>& commands) {
    std::string cases;
    for (const Command& command : commands)
        cases += fmt::format("        {}) options=\"{}\"; valued=\"{}\" ;;\n",
                             command.name.empty() ? "''" : command.name, names_of(command),
                             names_of(command, true));
    return fmt::format(
        "# bash completion of {0}\n"
        "_{0}() {{\n"
        "    local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD - 1]}} command='' "
        "options valued i\n"
        "    for ((i = 1; i < COMP_CWORD; ++i)); do\n"
        "        if [[ \" {1} \" == *\" ${{COMP_WORDS[i]}} \"* ]]; then command=${{COMP_WORDS[i]}}; fi\n"
        "        break\n"
        "    done\n"
        "    case $command in\n{2}    esac\n"
        "    COMPREPLY=()\n"
        "    if [[ \" $valued \" == *\" $before \"* ]]; then compopt -o default; return; fi\n"
        "    if [[ $word == -* ]]; then mapfile -t COMPREPLY < <(compgen -W \"$options\" -- \"$word\"); "
        "return; fi\n"
        "    if ((COMP_CWORD == 1)); then mapfile -t COMPREPLY < <(compgen -W \"{1}\" -- \"$word\"); fi\n"
        "    compopt -o default\n"
        "}}\n"
        "complete -F _{0} {0}\n",
        tool.name, names_in(commands), cases);
}

std::string zsh_completion(const Tool& tool, const std::vector<Command>& commands) {
    std::string cases;
    for (const Command& command : commands) {
        std::string specifications;
        for (const Option& option : command.options)
            specifications += fmt::format(" '*{}{}'", option.name, option.has_value ? "=:value:_files" : "");
        cases += fmt::format("    {}) _arguments{} '*:file:_files' ;;\n",
                             command.name.empty() ? "*" : command.name, specifications);
    }
    // The tool itself is the case of everything else: last.
    const std::size_t end_of_first = cases.find(";;\n") + 3;
    cases = cases.substr(end_of_first) + cases.substr(0, end_of_first);
    return fmt::format(
        "#compdef {0}\n"
        "local -a commands=({1})\n"
        "if (( CURRENT == 2 )) && [[ $words[2] != -* ]]; then\n"
        "    _alternative 'commands:command:compadd -a commands' 'files:file:_files'\n"
        "    return\n"
        "fi\n"
        "case $words[2] in\n{2}esac\n",
        tool.name, names_in(commands), cases);
}

std::string fish_completion(const Tool& tool, const std::vector<Command>& commands) {
    std::string text = fmt::format("# fish completion of {}\n", tool.name);
    const std::string names = names_in(commands);
    for (const Command& command : commands) {
        const std::string when = command.name.empty() ? "not __fish_seen_subcommand_from " + names
                                                      : "__fish_seen_subcommand_from " + command.name;
        if (!command.name.empty())
            text += fmt::format("complete -c {} -n __fish_use_subcommand -a {}\n", tool.name, command.name);
        for (const Option& option : command.options)
            text += fmt::format("complete -c {} -n '{}' -l {}{}\n", tool.name, when, option.name.substr(2),
                                option.has_value ? " -r" : "");
    }
    return text;
}

}  // namespace

const std::vector<std::string>& manual_forms() {
    static const std::vector<std::string> forms = {"man", "bash", "zsh", "fish"};
    return forms;
}

std::optional<std::string> manual_of(const Tool& tool, const std::string& form) {
    if (std::find(manual_forms().begin(), manual_forms().end(), form) == manual_forms().end())
        return std::nullopt;
    const std::vector<Command> commands = commands_of(tool);
    if (form == "man") return man_page(tool, commands);
    if (form == "bash") return bash_completion(tool, commands);
    return form == "zsh" ? zsh_completion(tool, commands) : fish_completion(tool, commands);
}

}  // namespace apps
