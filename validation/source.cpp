#include "validation/source.h"

#include <utility>

namespace validation {

std::string source_of(std::string_view group) {
    // Group names begin with ..., and are of ...
    static const std::pair<std::string_view, std::string_view> makers[] = {
        {"alpa_", "Alpa's artifact"},     {"dle_", "NVIDIA DeepLearningExamples"},
        {"dlperf_", "OneFlow DLPerf"},    {"fsdp_mpt_", "MosaicML llm-foundry"},
        {"nemo", "NVIDIA NeMo"},          {"pollux_", "Pollux traces"},
        {"titan_", "torchtitan reports"}, {"vtrain_", "vTrain's artifact"},
    };
    for (const auto& [prefix, maker] : makers)
        if (group.starts_with(prefix)) return std::string(maker);
    return std::string(group);
}

}  // namespace validation
