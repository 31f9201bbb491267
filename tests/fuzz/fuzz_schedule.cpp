// Any bytes as a schedule in text form: verified, timed, printed and read again, or diagnosed.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "core/diagnostics.h"
#include "schedule/schedule_text.h"
#include "schedule/verify.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string text(reinterpret_cast<const char*>(data), size);
    core::Diagnostics diagnostics;
    const auto schedule = schedule::parse_schedule(text, "input.csv", diagnostics);
    if (!schedule) {
        if (!diagnostics.has_errors()) std::abort();
        return 0;
    }
    const auto violations = schedule::verify(*schedule);
    schedule::draw(*schedule, violations.empty() ? nullptr : &violations.front());
    core::Diagnostics again_diagnostics;
    const auto again =
        schedule::parse_schedule(schedule::print_schedule(*schedule), "input.csv", again_diagnostics);
    if (!again || again->actions != schedule->actions) std::abort();
    return 0;
}
