#include "apps/smsim/published/smsim_published.h"

#include <cmath>
#include <ostream>

#include <fmt/core.h>

#include "apps/command.h"
#include "apps/options.h"
#include "apps/smsim/published/published_answer.h"
#include "apps/smsim/published/published_case.h"
#include "core/diagnostics.h"
#include "core/document.h"

namespace apps {

namespace {

const char* const help =
    "Usage: smsim published CASES.toml [--json]\n"
    "\n"
    "Sets our figures beside published ones: every [[case]] of the file names a scenario, a figure, what "
    "was\n"
    "published and where. Prints a Markdown table; docs/formats.md lists the keys of a case.\n"
    "\n"
    "  --json               one JSON document: cases[] {name, least, most, value, low, high, is_inside}\n"
    "\n"
    "Exit codes: 0 good (also where figures differ), 1 internal failure, 2 wrong input, 4 machine failure.\n"
    "\n"
    "Example:\n"
    "  smsim published scenarios/published/trainings.toml\n";

struct Row {
    PublishedCase published;
    PublishedAnswer answer;
};

// Does what was published meet what we say? Nothing without a published figure.
std::optional<bool> is_inside(const Row& row) {
    if (!row.published.least && !row.published.most) return std::nullopt;
    const double low = row.answer.low.value_or(row.answer.value);
    const double high = row.answer.high.value_or(row.answer.value);
    return (!row.published.least || high >= *row.published.least) &&
           (!row.published.most || low <= *row.published.most);
}

std::string published_text(const PublishedCase& published) {
    const auto& [least, most] = std::pair(published.least, published.most);
    const std::string unit = published.unit.empty() ? "" : " " + published.unit;
    if (!least && !most) return "not found";
    if (!most) return fmt::format("at least {:g}{}", *least, unit);
    if (!least) return fmt::format("at most {:g}{}", *most, unit);
    if (*least == *most) return fmt::format("{:g}{}", *least, unit);
    return fmt::format("{:g} to {:g}{}", *least, *most, unit);
}

std::string answer_text(const Row& row) {
    const PublishedAnswer& answer = row.answer;
    std::string text = fmt::format("{:.4g}", answer.value);
    if (answer.low && answer.high) text += fmt::format(" ({:.4g} to {:.4g})", *answer.low, *answer.high);
    return row.published.unit.empty() ? text : text + " " + row.published.unit;
}

// By how much ours is off where it is, against the nearest published value.
std::string verdict_text(const Row& row) {
    const std::optional<bool> inside = is_inside(row);
    if (!inside) return "";
    if (*inside) return "inside";
    const bool is_below = row.published.least && row.answer.value < *row.published.least;
    const double nearest = is_below ? *row.published.least : row.published.most.value_or(0);
    if (row.published.kind == PublishedKind::gain)
        return fmt::format("{:+.0f} points", row.answer.value - nearest);
    return nearest == 0 ? "outside" : fmt::format("{:+.0f} %", 100 * (row.answer.value / nearest - 1));
}

std::string table_of(const PublishedCases& cases, const std::vector<Row>& rows) {
    std::string text = fmt::format(
        "{}\n\n| case | published | ours | | source, and why |\n|---|--:|--:|--:|---|\n", cases.title);
    for (const Row& row : rows)
        text += fmt::format("| {} | {} | {} | {} | {}, {}{}{} |\n", row.published.name,
                            published_text(row.published), answer_text(row), verdict_text(row),
                            row.published.source, row.published.date, row.published.note.empty() ? "" : ". ",
                            row.published.note);
    return text;
}

core::Value document_of(const PublishedCases& cases, const std::vector<Row>& rows) {
    const auto number = [](const std::optional<double>& value) {
        return value ? core::Value(*value) : core::Value();
    };
    core::Value document = core::Value::table();
    document["title"] = cases.title;
    core::Value list = core::Value::array();
    for (const Row& row : rows) {
        core::Value entry = core::Value::table();
        entry["name"] = row.published.name;
        entry["figure"] = row.published.figure;
        entry["least"] = number(row.published.least);
        entry["most"] = number(row.published.most);
        entry["value"] = row.answer.value;
        entry["low"] = number(row.answer.low);
        entry["high"] = number(row.answer.high);
        const std::optional<bool> inside = is_inside(row);
        entry["is_inside"] = inside ? core::Value(*inside) : core::Value();
        entry["source"] = row.published.source;
        entry["date"] = row.published.date;
        entry["note"] = row.published.note;
        list.append(std::move(entry));
    }
    document["cases"] = std::move(list);
    return document;
}

}  // namespace

int run_published_command(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
    const bool as_json = wants_json(arguments);
    core::Diagnostics diagnostics;
    Options options(arguments, {{}, {"--json", "--help"}}, diagnostics);
    if (options.has("--help")) {
        out << help;
        return good;
    }
    const std::string path = options.only_positional(
        "CASES.toml", "cases", "smsim published CASES.toml; smsim published --help shows an example");
    std::optional<PublishedCases> cases;
    if (!path.empty()) cases = load_published_cases(path, diagnostics);
    std::vector<Row> rows;
    if (cases)
        for (const PublishedCase& published : cases->cases)
            if (const std::optional<PublishedAnswer> answer = answer_of(published, diagnostics))
                rows.push_back({published, *answer});
    if (!cases || diagnostics.has_errors()) return show(diagnostics, as_json, out, err);
    if (as_json) out << core::to_json(document_of(*cases, rows)) << '\n';
    else out << table_of(*cases, rows);
    return good;
}

}  // namespace apps
