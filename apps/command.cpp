#include "apps/command.h"

#include <algorithm>
#include <exception>
#include <iostream>
#include <new>
#include <system_error>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "core/document.h"
#include "core/value.h"

#ifndef SMSIM_VERSION
#error "SMSIM_VERSION comes from CMake's project version"
#endif

namespace apps {

const char* const version = SMSIM_VERSION;

bool wants_json(const std::vector<std::string>& arguments) {
    for (const std::string& argument : arguments)
        if (argument == "--json") return true;
    return false;
}

int show(const core::Diagnostics& diagnostics, bool as_json, std::ostream& out, std::ostream& err) {
    if (as_json && diagnostics.has_errors()) out << core::to_json(core::to_value(diagnostics)) << '\n';
    else err << core::format(diagnostics);
    return diagnostics.has_errors() ? wrong_input : good;
}

void check_output(const std::string& option, const std::string& path, core::Diagnostics& diagnostics) {
    if (const std::optional<std::string> failure = core::writing_failure(path))
        diagnostics.error(
            {}, option,
            fmt::format("{} {}: cannot be written: {}", option, core::in_quotes(path, 300), *failure),
            "name a file in a folder that you may write");
}

int write_outputs(const std::vector<OutputFile>& files, std::ostream& err) {
    try {
        for (const OutputFile& file : files) core::write_file_atomically(file.path, file.content);
        return good;
    } catch (const core::MachineError& failure) {
        err << "error: " << failure.what() << '\n';
        return machine_failure;
    }
}

namespace {

int fail(ExitCode code, const std::string& message, bool as_json) {
    if (as_json) {
        core::Diagnostics diagnostics;
        diagnostics.error({}, "", message);
        std::cout << core::to_json(core::to_value(diagnostics)) << '\n';
    } else {
        std::cerr << "error: " << message << '\n';
    }
    return code;
}

int dispatch(const Tool& tool, const std::vector<std::string>& arguments) {
    if (arguments.empty()) {
        std::cerr << tool.help;
        return wrong_input;
    }
    const auto is_help = [](const std::string& argument) { return argument == "--help" || argument == "-h"; };
    const auto command = std::find_if(tool.subcommands.begin(), tool.subcommands.end(),
                                      [&](const Subcommand& c) { return c.name == arguments[0]; });
    const bool is_subcommand = command != tool.subcommands.end();
    const Subcommand& chosen = is_subcommand ? *command : tool.fallback;
    // --version and --help count at any position, also beside wrong options. "--help" after a command asks
    // for the text of the command.
    for (const std::string& argument : arguments) {
        if (argument == "--version") {
            std::cout << tool.name << ' ' << version << '\n';
            return good;
        }
        if (!is_help(argument)) continue;
        const bool names_work =
            is_subcommand || std::any_of(arguments.begin(), arguments.end(),
                                         [&](const std::string& a) { return !is_help(a) && a != "--json"; });
        if (names_work) return chosen.run({"--help"}, std::cout, std::cerr);
        std::cout << tool.help;
        return good;
    }
    return chosen.run({arguments.begin() + is_subcommand, arguments.end()}, std::cout, std::cerr);
}

}  // namespace

int run_tool(const Tool& tool, int argc, char** argv) {
    const std::vector<std::string> arguments(argv + 1, argv + argc);
    const bool as_json = wants_json(arguments);
    try {
        const int code = dispatch(tool, arguments);
        std::cout.flush();
        // A full disk or a closed pipe must not look like success.
        if (!std::cout) return fail(machine_failure, "writing to standard output failed", false);
        return code;
    } catch (const core::MachineError& failure) {
        return fail(machine_failure, failure.what(), as_json);
    } catch (const std::bad_alloc&) {
        return fail(machine_failure, "out of host memory", as_json);
    } catch (
        const std::system_error& failure) {  // a thread that cannot be started, a folder that cannot be read
        return fail(machine_failure, std::string("the operating system refused: ") + failure.what(), as_json);
    } catch (const std::exception& failure) {
        return fail(internal_failure, std::string("internal failure, please report: ") + failure.what(),
                    as_json);
    }
}

}  // namespace apps
