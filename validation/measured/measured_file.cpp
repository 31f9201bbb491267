#include "validation/measured/measured_file.h"

#include "core/diagnostics.h"
#include "core/document.h"
#include "validation/measured/chakra/chakra_trace.h"
#include "validation/measured/flops_profile.h"
#include "validation/measured/gzip/gzip.h"
#include "validation/measured/kineto_trace.h"

namespace validation {

namespace {

// A step of a large model on a GPU is some 100 MB of JSON.
constexpr std::size_t largest_file = std::size_t(512) << 20;

const char* const known_files =
    "a trace of torch.profiler (JSON, one object), a Chakra execution trace (.et) and a report of "
    "DeepSpeed's flops profiler are read";

bool is_named_execution_trace(std::string_view file) {
    for (const std::string_view suffix : {".et", ".et.gz"})
        if (file.ends_with(suffix)) return true;
    return false;
}

}  // namespace

std::optional<MeasuredStep> read_measured_file(const std::string& file, core::Diagnostics& diagnostics) {
    std::optional<std::string> bytes = core::read_file(file, diagnostics, {}, {}, largest_file);
    if (bytes && is_gzip(*bytes)) bytes = unpacked(*bytes, file, diagnostics, largest_file);
    if (!bytes) return std::nullopt;
    return read_measured_bytes(*bytes, file, diagnostics);
}

std::optional<MeasuredStep> read_measured_bytes(std::string_view bytes, const std::string& file,
                                                core::Diagnostics& diagnostics) {
    if (is_named_execution_trace(file)) return read_chakra_trace(bytes, file, diagnostics);
    const std::size_t begin = bytes.find_first_not_of(" \t\r\n");
    const bool is_json = begin != std::string_view::npos && bytes[begin] == '{';
    if (!is_json && is_flops_profile(bytes)) {
        const std::optional<FlopsProfile> profile = read_flops_profile(bytes, file, diagnostics);
        if (!profile) return std::nullopt;
        return forward_of(*profile);
    }
    if (!is_json) {
        diagnostics.error({file, 0, 0}, "", "no file of measurements that is known", known_files);
        return std::nullopt;
    }
    const std::optional<core::Value> trace = core::parse_json(bytes, file, diagnostics);
    if (!trace) return std::nullopt;
    return read_kineto_trace(*trace, file, diagnostics);
}

}  // namespace validation
