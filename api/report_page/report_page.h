// The answer of a tool as a page of its own: one file that needs no other and no network.
#pragma once

#include <string>

#include "api/output.h"
#include "core/diagnostics_fwd.h"
#include "core/value.h"

namespace api {

// Which page shows an answer: `smsim SCENARIO`, `smplan`, `smsim job`, `smexec` and `smsim validate`.
enum class ReportKind { step, plans, job, execution, validation };

struct ReportPage {
    ReportKind kind = ReportKind::step;
    std::string title;
    core::Value answer;           // the document that --json prints
    std::string text = {};        // the same for a person
    std::string timeline = {};    // sim::timeline_columns; empty: none
    core::Value activities = {};  // what a job did when: [{activity, from_s, to_s}]; null: none
};

// HTML. Names in the answer may be anything: none is taken for markup or script.
std::string report_page(const ReportPage& page);
// The page as a file, which is told to a person once it is written.
OutputFile report_file(const std::string& path, const ReportPage& page);

// Before the work: does this build have pages? A diagnostic about `option`.
void check_report_pages(const std::string& option, core::Diagnostics& diagnostics);
// ... and can a file be written there?
void check_report(const std::string& option, const std::string& path, core::Diagnostics& diagnostics);

}  // namespace api
