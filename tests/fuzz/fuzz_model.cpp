// Any bytes as a model description or a Hugging Face config: a sound graph or diagnostics.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "core/diagnostics.h"
#include "core/document.h"
#include "model/load.h"
#include "model/operators/cost.h"
#include "model/reader/huggingface.h"

namespace {

void load(const core::Value& table) {
    core::Diagnostics diagnostics;
    const auto graph = model::load_model(table, {}, diagnostics);
    if (!graph) {
        if (!diagnostics.has_errors()) std::abort();  // refused without saying why
        return;
    }
    model::check(*graph);
    if (model::parameter_count(*graph) < 0) std::abort();  // overflow
    if (!(model::forward_flops_per_sample(*graph).value >= 0)) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    core::Diagnostics diagnostics;
    if (const auto value = core::parse_toml(text, "input.toml", diagnostics)) {
        // A file reference would read whatever the fuzzer names.
        if (value->find("config") == nullptr) load(*value);
    }
    if (const auto value = core::parse_json(text, "input.json", diagnostics)) {
        std::vector<std::string> assumptions;
        core::Diagnostics config_diagnostics;
        if (const auto table = model::description_of_config(*value, assumptions, config_diagnostics))
            load(*table);
        else if (!config_diagnostics.has_errors()) std::abort();
    }
    return 0;
}
