#include "partition/baseline/baseline_placement.h"

#include <algorithm>
#include <optional>

namespace partition {

std::vector<std::size_t> classes_of_accelerators(const PlacementProblem& problem) {
    const std::vector<DeviceClass> classes = device_classes(problem);
    std::vector<std::size_t> class_of_device;
    for (std::size_t c = 0; c < classes.size(); ++c)
        if (!classes[c].is_cpu)
            for (int device = 0; device < classes[c].count; ++device) class_of_device.push_back(c);
    return class_of_device;
}

std::vector<PlacedStage> stages_of(const PlacementProblem& problem,
                                   const std::vector<std::size_t>& device_of_item,
                                   const std::vector<std::size_t>& class_of_device) {
    std::vector<PlacedStage> stages;
    for (std::size_t d = 0; d < class_of_device.size(); ++d) {
        std::vector<std::size_t> items;
        for (std::size_t i = 0; i < device_of_item.size(); ++i)
            if (device_of_item[i] == d) items.push_back(i);
        if (!items.empty()) stages.push_back(stage_of(problem, std::move(items), class_of_device[d]));
    }
    settle_memory(problem, stages);
    return stages;
}

bool is_valid_placement(const PlacementProblem& problem, const std::vector<PlacedStage>& stages) {
    const std::vector<DeviceClass> classes = device_classes(problem);
    std::vector<std::optional<std::size_t>> stage_of_item(problem.items.size());
    for (std::size_t s = 0; s < stages.size(); ++s) {
        const DeviceClass& device = classes[stages[s].device_class];
        if (!device.has_room_for(stages[s].memory)) return false;
        for (std::size_t i : stages[s].items) {
            stage_of_item[i] = s;
            if (!device.is_cpu && !problem.items[i].runs_on_accelerator) return false;
        }
    }
    if (std::count(stage_of_item.begin(), stage_of_item.end(), std::nullopt)) return false;
    return std::all_of(problem.precedence.begin(), problem.precedence.end(),
                       [&](const auto& e) { return stage_of_item[e.first] <= stage_of_item[e.second]; });
}

}  // namespace partition
