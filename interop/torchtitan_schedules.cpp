#include "interop/torchtitan_schedules.h"

namespace interop {

namespace {

constexpr std::pair<const char*, const char*> names[] = {{"1f1b", "1F1B"},
                                                         {"simple", "GPipe"},
                                                         {"interleaved-1f1b", "Interleaved1F1B"},
                                                         {"looped-bfs", "LoopedBFS"},
                                                         {"interleaved-zero-bubble", "InterleavedZeroBubble"},
                                                         {"zb-v", "ZBVZeroBubble"},
                                                         {"dualpipe-v", "DualPipeV"}};

}  // namespace

std::vector<std::string> schedules_with_torch_names() {
    std::vector<std::string> known;
    for (const auto& [ours, theirs] : names) known.push_back(ours);
    return known;
}

std::optional<std::string> torch_schedule(const std::string& ours) {
    for (const auto& [name, theirs] : names)
        if (name == ours) return theirs;
    return std::nullopt;
}

std::optional<std::string> schedule_of_torch(const std::string& theirs) {
    for (const auto& [ours, name] : names)
        if (name == theirs) return ours;
    return std::nullopt;
}

}  // namespace interop
