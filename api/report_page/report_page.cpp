#include "api/report_page/report_page.h"

#include <string_view>

#include <fmt/core.h>

#include "api/report_page/bundle.h"
#include "api/version.h"
#include "core/diagnostics.h"
#include "core/document.h"
#include "core/errors.h"

namespace api {

namespace {

std::string_view name_of(ReportKind kind) {
    switch (kind) {
        case ReportKind::step: return "step";
        case ReportKind::plans: return "plans";
        case ReportKind::job: return "job";
        case ReportKind::execution: return "execution";
        case ReportKind::validation: return "validation";
    }
    throw core::InternalError("broken promise: every report has a name");
}

std::string as_text_of_html(std::string_view text) {
    std::string result;
    for (const char c : text) {
        if (c == '<') result += "&lt;";
        else if (c == '>') result += "&gt;";
        else if (c == '&') result += "&amp;";
        else result += c;
    }
    return result;
}

// JSON inside a script element ends at no "</script>" and begins no comment: '<' stands only in strings,
// where it may be written as an escape.
std::string as_json_of_html(std::string_view json) {
    std::string result;
    result.reserve(json.size());
    for (const char c : json) {
        if (c == '<') result += "\\u003c";
        else result += c;
    }
    return result;
}

}  // namespace

std::string report_page(const ReportPage& page) {
    core::require(!report_script().empty(), "a report page needs its script");
    core::Value data = core::Value::table();
    data["kind"] = name_of(page.kind);
    data["title"] = page.title;
    data["made"] = fmt::format("smsim {}", version);
    data["answer"] = page.answer;
    data["text"] = page.text;
    if (!page.activities.is_null()) data["activities"] = page.activities;
    std::string json = core::to_json(data, 0);
    if (!page.timeline.empty()) {
        json.resize(json.rfind('}'));
        json += ",\n\"timeline\":" + page.timeline + "}\n";
    }
    // Nothing is fetched and nothing sent, whatever a name says.
    return fmt::format(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src "
        "'unsafe-inline'; style-src 'unsafe-inline'\">\n"
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
        "<title>{}</title>\n<!--\n{}-->\n<style>{}</style></head>\n"
        "<body><noscript>This page is drawn by JavaScript.</noscript><main id=\"report\"></main>\n"
        "<script type=\"application/json\" id=\"data\">{}</script>\n<script>{}</script>\n</body></html>\n",
        as_text_of_html(page.title), report_licences(), report_style(), as_json_of_html(json),
        report_script());
}

OutputFile report_file(const std::string& path, const ReportPage& page) { return {path, report_page(page)}; }

void check_report_pages(const std::string& option, core::Diagnostics& diagnostics) {
    if (report_script().empty())
        diagnostics.error({}, option, fmt::format("{}: this build has no report pages", option),
                          "install esbuild and node-d3, then: cmake build && ninja -C build");
}

void check_report(const std::string& option, const std::string& path, core::Diagnostics& diagnostics) {
    check_report_pages(option, diagnostics);
    check_output(option, path, diagnostics);
}

}  // namespace api
