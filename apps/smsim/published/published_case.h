// What others published of a step or a whole training, as data: the scenario and the figure of ours to set
// beside it. docs/formats.md lists the keys.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/diagnostics_fwd.h"

namespace apps {

// What a published figure is compared with.
enum class PublishedKind {
    step,  // a figure of `smsim SCENARIO --json`
    job,   // a distribution of `smsim job SCENARIO --json`: hours, usd, goodput, interruptions, energy_kwh
    gain   // of a step: by how many per cent it is greater than without `set`, or with `against`
};

struct PublishedCase {
    std::string name, figure, source, date, note;
    std::string scenario;  // path
    PublishedKind kind = PublishedKind::step;
    std::vector<std::string> set, against;  // assignments, as --set takes them
    std::optional<double> least, most;      // of what was published; both left out: no figure was found
    std::string unit;
};

struct PublishedCases {
    std::string title;
    std::vector<PublishedCase> cases;
};

// Every mistake is a diagnostic. Scenarios are relative to the file.
std::optional<PublishedCases> load_published_cases(const std::string& path, core::Diagnostics& diagnostics);

}  // namespace apps
