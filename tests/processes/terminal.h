// A program on a pseudo-terminal of a given width.
#pragma once

#include <pty.h>
#include <sys/ioctl.h>

#include <optional>
#include <string>
#include <vector>

#include "tests/processes/processes.h"

namespace processes {

struct Session {
    std::string written;  // by the program, to stdout and stderr alike
    int code = -1;        // its exit code; -1: a signal ended it
};

// A signal that the program gets once it has written this text.
struct Interruption {
    int signal;
    std::string text;
};

inline Session on_terminal(const std::vector<std::string>& arguments, int columns,
                           const std::vector<std::string>& environment,
                           const std::optional<Interruption>& interruption = std::nullopt) {
    Session session;
    winsize size{};
    size.ws_row = 24;
    size.ws_col = static_cast<unsigned short>(columns);
    int terminal = -1;
    const pid_t id = ::forkpty(&terminal, nullptr, nullptr, &size);
    REQUIRE(id >= 0);
    if (id == 0) {
        for (const std::string& variable : environment) ::putenv(const_cast<char*>(variable.c_str()));
        std::vector<char*> pointers;
        for (const std::string& argument : arguments) pointers.push_back(const_cast<char*>(argument.c_str()));
        pointers.push_back(nullptr);
        ::execv(pointers[0], pointers.data());
        ::_exit(127);
    }
    char buffer[4096];
    bool is_signalled = false;
    for (ssize_t got = 0; (got = ::read(terminal, buffer, sizeof buffer)) > 0;) {
        session.written.append(buffer, static_cast<std::size_t>(got));
        if (interruption && !is_signalled && session.written.find(interruption->text) != std::string::npos) {
            ::kill(id, interruption->signal);
            is_signalled = true;
        }
    }
    int status = 0;
    REQUIRE(::waitpid(id, &status, 0) == id);
    ::close(terminal);
    session.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return session;
}

}  // namespace processes
