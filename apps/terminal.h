// What a person sees: how wide it may be, colour where the terminal has it, a line of progress.
#pragma once

#include <cstddef>
#include <iosfwd>
#include <string>
#include <string_view>

#include "api/reply.h"

namespace apps {

// Of stdout or stderr: the terminal's columns (COLUMNS, else what the terminal says); core::usual_width where
// it is no terminal.
std::size_t text_width();
std::size_t text_width(int descriptor);

// Of stdout or stderr: a terminal that is not "dumb", and NO_COLOR (https://no-color.org) is not set.
bool has_colour(int descriptor);

// Lines of prose that are wider than `width` go on below their own beginning, rows below that of their last
// cell where there is room, and else with that cell on a line of its own; grids and tables of figures stay.
std::string wrapped(std::string_view text, std::size_t width);
// As it goes to stdout: wrapped on a terminal, else as it is.
std::string for_stdout(const std::string& text);
// The same of a help text that goes to stderr.
std::string help_for_stderr(const std::string& text);
// Errors, warnings and hints of core::format(Diagnostics), in colour where stderr has it.
std::string for_stderr(const std::string& diagnostics);

// Can a line on stderr be written again in its place? On a terminal that is not "dumb".
bool can_redraw();
// Writes `line` in place of the one before, no wider than stderr's terminal; an empty one erases it.
std::string redrawn(std::string_view line);

// Writes one line on stderr again and again while it lives, at most a few times a second; nothing where
// can_redraw() or `is_wanted` is false. One at a time.
class ProgressLine {
public:
    ProgressLine(std::ostream& err, bool is_wanted);
    ~ProgressLine();
    ProgressLine(const ProgressLine&) = delete;
    ProgressLine& operator=(const ProgressLine&) = delete;

    bool is_shown() const { return is_shown_; }
    void show(const std::string& line);

private:
    std::ostream& err_;
    bool is_shown_;
    double last_ = 0;  // seconds of the steady clock
};

}  // namespace apps
