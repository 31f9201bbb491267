// Any bytes as a file of measurements: times that add up or diagnostics. Seeds: tests/validation's reports
// and traces.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "core/diagnostics.h"
#include "validation/measured/measured_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0) return 0;
    const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
    const std::string file = data[0] % 2 == 1 ? "measured.et" : "measured";
    core::Diagnostics diagnostics;
    const auto step = validation::read_measured_bytes(bytes, file, diagnostics);
    if (!step) {
        if (!diagnostics.has_errors()) std::abort();  // refused without saying why
        return 0;
    }
    if (diagnostics.has_errors()) std::abort();
    if (!(step->step.value >= 0 && step->busy.value >= 0)) std::abort();
    for (const auto& [kind, share] : step->shares)
        if (!(share.time.value >= 0) || share.count < 0) std::abort();
    return 0;
}
