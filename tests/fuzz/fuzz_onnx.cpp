// Any bytes as an ONNX file: a sound graph or diagnostics. Seeds: ONNX models without weights, a few
// kilobytes each.
#include <unistd.h>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "core/diagnostics.h"
#include "model/load.h"
#include "model/operators/cost.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    static const std::string path =
        (std::filesystem::temp_directory_path() / ("fuzz_onnx_" + std::to_string(::getpid()) + ".onnx"))
            .string();
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
    for (const bool allow_unknown : {false, true}) {
        model::LoadOptions options;
        options.allow_unknown = allow_unknown;
        if (allow_unknown) options.sequence_length = 16;
        core::Diagnostics diagnostics;
        const auto graph = model::load_model(path, options, diagnostics);
        if (!graph) {
            if (!diagnostics.has_errors()) std::abort();  // refused without saying why
            continue;
        }
        model::check(*graph);
        if (model::parameter_count(*graph) < 0) std::abort();  // overflow
        if (!(model::forward_flops_per_sample(*graph).value >= 0)) std::abort();
        for (std::size_t i = 0; i < graph->operators.size(); ++i)
            model::saved_for_backward(*graph, model::OperatorId(static_cast<std::int32_t>(i)), {});
    }
    return 0;
}
