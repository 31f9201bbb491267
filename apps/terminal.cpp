#include "apps/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <ostream>

#include "core/display/text_table.h"

namespace apps {

namespace {

constexpr std::size_t least_width = 40;  // below, nothing of ours is readable

std::string_view environment(const char* name) {
    const char* const value = std::getenv(name);
    return value ? std::string_view(value) : std::string_view();
}

// Where a line's own text begins: after its indent, its "- " or its label ("Plan      data 2 x ...").
std::size_t hang_of(std::string_view line) {
    const std::size_t begin = line.find_first_not_of(' ');
    if (begin == std::string_view::npos) return 0;
    if (line.substr(begin).starts_with("- ")) return begin + 2;
    constexpr std::size_t label = 10;  // of the reports
    if (begin == 0 && line.size() > label && line[label - 1] == ' ' && line[label - 2] == ' ') return label;
    return std::min<std::size_t>(begin + 2, 12);
}

std::string paint(std::string_view line, std::string_view word, const char* code) {
    const std::size_t at = line.find(word);
    if (at == std::string_view::npos) return std::string(line);
    return std::string(line.substr(0, at)) + "\033[" + code + "m" + std::string(word) + "\033[0m" +
           std::string(line.substr(at + word.size()));
}

template <class Each>
std::string for_each_line(std::string_view text, Each each) {
    std::string result;
    while (!text.empty()) {
        const std::size_t end = std::min(text.find('\n'), text.size());
        result += each(text.substr(0, end));
        if (end < text.size()) result += '\n';
        text.remove_prefix(std::min(end + 1, text.size()));
    }
    return result;
}

}  // namespace

std::size_t text_width() { return text_width(STDOUT_FILENO); }

std::size_t text_width(int descriptor) {
    if (::isatty(descriptor) == 0) return core::usual_width;
    const std::string_view said = environment("COLUMNS");
    std::size_t columns = 0;
    std::from_chars(said.data(), said.data() + said.size(), columns);
    winsize size{};
    if (columns == 0 && ::ioctl(descriptor, TIOCGWINSZ, &size) == 0) columns = size.ws_col;
    return columns == 0 ? core::usual_width : std::max(columns, least_width);
}

bool has_colour(int descriptor) {
    return ::isatty(descriptor) == 1 && environment("NO_COLOR").empty() && environment("TERM") != "dumb";
}

namespace {

// A row whose last cell begins too far to the right to go on below itself: words get a line of their own.
std::string with_last_cell_below(std::string_view line, std::size_t cell, std::size_t width) {
    constexpr std::ptrdiff_t blanks_of_prose = 2;
    const std::string_view words = line.substr(cell);
    if (std::count(words.begin(), words.end(), ' ') < blanks_of_prose) return std::string(line);
    const std::size_t begin = line.find_first_not_of(' '), end = line.find_last_not_of(' ', cell - 1);
    const std::string below = std::string(std::min(begin + 4, width / 2), ' ') + std::string(words);
    return wrapped(line.substr(0, end + 1), width) + '\n' + wrapped(below, width);
}

}  // namespace

std::string wrapped(std::string_view text, std::size_t width) {
    return for_each_line(text, [width](std::string_view line) {
        std::size_t hang = std::min(hang_of(line), width / 2);
        if (line.size() <= width) return std::string(line);
        // Of a row the last cell, below where it begins, if that leaves it a third of the width.
        if (const std::size_t gap = line.rfind("  "); gap != std::string_view::npos && gap >= hang) {
            if (line.find(" |") != std::string_view::npos) return std::string(line);  // a grid
            hang = gap + 2;
            if (hang > width * 2 / 3) return with_last_cell_below(line, hang, width);
        }
        std::string result;
        std::size_t begin = 0;  // blanks that this line begins with, of the one before
        while (begin + line.size() > width) {
            const std::size_t at = line.rfind(' ', width - begin);
            if (at == std::string_view::npos || at <= (begin == 0 ? hang : 0)) break;  // a long word
            result += std::string(line.substr(0, at)) + '\n' + std::string(hang, ' ');
            line.remove_prefix(at + 1);
            begin = hang;
        }
        return result + std::string(line);
    });
}

std::string for_stdout(const std::string& text) {
    return ::isatty(STDOUT_FILENO) == 1 ? wrapped(text, text_width()) : text;
}

std::string help_for_stderr(const std::string& text) {
    return ::isatty(STDERR_FILENO) == 1 ? wrapped(text, text_width(STDERR_FILENO)) : text;
}

std::string for_stderr(const std::string& diagnostics) {
    if (!has_colour(STDERR_FILENO)) return diagnostics;
    return for_each_line(diagnostics, [](std::string_view line) {
        for (const auto& [word, code] :
             {std::pair("error:", "1;31"), std::pair("warning:", "1;33"), std::pair("hint:", "36")})
            if (line.find(word) != std::string_view::npos) return paint(line, word, code);
        return std::string(line);
    });
}

bool can_redraw() {
    const std::string_view kind = environment("TERM");
    return !kind.empty() && kind != "dumb" && ::isatty(STDERR_FILENO) == 1;
}

std::string redrawn(std::string_view line) {
    // Asked for every line: windows change their size.
    constexpr std::size_t least = 2;
    winsize size{};
    std::size_t columns = core::usual_width;
    if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
        columns = std::max<std::size_t>(least, size.ws_col);
    // The last column stays free: some terminals wrap when it is written.
    return "\r\033[K" + std::string(line.substr(0, columns - 1));
}

ProgressLine::ProgressLine(std::ostream& err, bool is_wanted)
    : err_(err), is_shown_(is_wanted && can_redraw()) {}

ProgressLine::~ProgressLine() {
    if (is_shown_) err_ << redrawn("") << std::flush;
}

void ProgressLine::show(const std::string& line) {
    constexpr double between = 0.1;  // seconds
    const double now =
        std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
    if (!is_shown_ || now - last_ < between) return;
    last_ = now;
    err_ << redrawn(line) << std::flush;
}

}  // namespace apps
