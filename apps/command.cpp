#include "apps/command.h"

#include <algorithm>
#include <exception>
#include <filesystem>
#include <iostream>
#include <new>
#include <optional>
#include <sstream>
#include <system_error>
#include <thread>

#include <fmt/core.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "apps/manual.h"
#include "apps/terminal.h"
#include "core/diagnostics.h"
#include "core/document.h"
#include "core/value.h"

namespace apps {

bool wants_json(const std::vector<std::string>& arguments) {
    for (const std::string& argument : arguments)
        if (argument == "--json") return true;
    return false;
}

int show(const core::Diagnostics& diagnostics, bool as_json, std::ostream& out, std::ostream& err) {
    if (as_json && diagnostics.has_errors()) out << core::to_json(core::to_value(diagnostics)) << '\n';
    else err << for_stderr(core::format(diagnostics));
    return diagnostics.has_errors() ? wrong_input : good;
}

int write_outputs(const std::vector<OutputFile>& files, bool as_json, std::ostream& err) {
    try {
        for (const OutputFile& file : files) {
            core::write_file_atomically(file.path, file.content);
            if (!as_json)
                err << "wrote " << file.path << (file.said.empty() ? "" : " (" + file.said + ")") << '\n';
        }
        return good;
    } catch (const core::MachineError& failure) {
        err << "error: " << failure.what() << '\n';
        return machine_failure;
    }
}

int show_reply(const api::Reply& reply, bool as_json, std::ostream& out, std::ostream& err) {
    const ExitCode code = reply.outcome == api::Outcome::good      ? good
                          : reply.outcome == api::Outcome::no_plan ? no_plan
                                                                   : wrong_input;
    if (reply.document.is_null()) {
        show(reply.diagnostics, as_json, out, err);
        return code;
    }
    const bool are_in_document =
        reply.document.find("warnings") != nullptr || reply.document.find("errors") != nullptr;
    if (!as_json || !are_in_document) err << for_stderr(core::format(reply.diagnostics));
    if (as_json) out << core::to_json(reply.document) << '\n';
    else out << (reply.is_file ? reply.text : for_stdout(reply.text));
    out.flush();
    const int written = write_outputs(reply.files, as_json, err);
    return written == good ? code : written;
}

int show_stopped(const std::string& before, const std::string& hint, bool as_json, std::ostream& out,
                 std::ostream& err) {
    core::Diagnostics diagnostics;
    diagnostics.error({}, "", "stopped " + before, hint);
    show(diagnostics, as_json, out, err);
    return no_plan;
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

bool names_file(const std::string& argument) {
    return argument.starts_with('-') || argument.find_first_of("./") != std::string::npos ||
           std::filesystem::exists(argument);
}

std::string nearest_command(const Tool& tool, const std::string& word) {
    std::vector<std::string> names;
    for (const Subcommand& command : tool.subcommands) names.emplace_back(command.name);
    return core::did_you_mean(word, names);
}

int dispatch(const Tool& tool, const std::vector<std::string>& arguments) {
    if (arguments.empty()) {
        std::cerr << help_for_stderr(tool.help);
        return wrong_input;
    }
    // For packages: smsim --generate man|bash|zsh|fish.
    if (arguments.size() == 2 && arguments[0] == "--generate")
        if (const std::optional<std::string> text = manual_of(tool, arguments[1])) {
            std::cout << *text;
            return good;
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
            std::cout << tool.name << ' ' << version << " (" << api::commit << ")\n";
            return good;
        }
        if (!is_help(argument)) continue;
        const bool names_work =
            is_subcommand || std::any_of(arguments.begin(), arguments.end(),
                                         [&](const std::string& a) { return !is_help(a) && a != "--json"; });
        std::ostringstream text;
        const int code = names_work ? chosen.run({"--help"}, text, std::cerr) : good;
        std::cout << for_stdout(names_work ? text.str() : tool.help);
        return code;
    }
    if (!is_subcommand && !names_file(arguments[0]))
        if (const std::string near = nearest_command(tool, arguments[0]); !near.empty()) {
            core::Diagnostics diagnostics;
            diagnostics.error({}, "", core::in_quotes(arguments[0]) + " is no command of " + tool.name,
                              "did you mean " + core::in_quotes(near) + "?");
            return show(diagnostics, wants_json(arguments), std::cout, std::cerr);
        }
    return chosen.run({arguments.begin() + is_subcommand, arguments.end()}, std::cout, std::cerr);
}

// Searches and simulations take and give back arrays of megabytes all the time, each of which would come new
// and zeroed from the system. What a thread gives back serves another: with a heap for every two of them a
// search on two takes a tenth less memory and no more time.
void keep_freed_memory() {
#ifdef __GLIBC__
    constexpr int mebibyte = 1 << 20;
    mallopt(M_MMAP_THRESHOLD, 64 * mebibyte);
    mallopt(M_TRIM_THRESHOLD, 128 * mebibyte);
    mallopt(M_TOP_PAD, 4 * mebibyte);
    mallopt(M_ARENA_MAX, std::max(1, static_cast<int>(std::thread::hardware_concurrency() / 2)));
#endif
}

}  // namespace

int run_tool(const Tool& tool, int argc, char** argv) {
    keep_freed_memory();
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
