#include "partition/baseline/baseline_placement.h"

#include <algorithm>

namespace partition {

std::vector<int> classes_of_accelerators(const PlacementProblem& problem) {
    const std::vector<DeviceClass> classes = device_classes(problem);
    std::vector<int> class_of_device;
    for (std::size_t c = 0; c < classes.size(); ++c)
        if (!classes[c].is_cpu)
            class_of_device.insert(class_of_device.end(), static_cast<std::size_t>(classes[c].count),
                                   static_cast<int>(c));
    return class_of_device;
}

std::vector<PlacedStage> stages_of(const PlacementProblem& problem, const std::vector<int>& device_of_item,
                                   const std::vector<int>& class_of_device) {
    std::vector<PlacedStage> stages;
    for (std::size_t d = 0; d < class_of_device.size(); ++d) {
        std::vector<int> items;
        for (std::size_t i = 0; i < device_of_item.size(); ++i)
            if (device_of_item[i] == static_cast<int>(d)) items.push_back(static_cast<int>(i));
        if (!items.empty()) stages.push_back(stage_of(problem, std::move(items), class_of_device[d]));
    }
    settle_memory(problem, stages);
    return stages;
}

bool is_valid_placement(const PlacementProblem& problem, const std::vector<PlacedStage>& stages) {
    const std::vector<DeviceClass> classes = device_classes(problem);
    std::vector<int> stage_of_item(problem.items.size(), -1);
    for (std::size_t s = 0; s < stages.size(); ++s) {
        const DeviceClass& device = classes[static_cast<std::size_t>(stages[s].device_class)];
        if (!device.is_cpu && stages[s].memory > device.memory_limit) return false;
        for (int i : stages[s].items) {
            stage_of_item[static_cast<std::size_t>(i)] = static_cast<int>(s);
            if (!device.is_cpu && !problem.items[static_cast<std::size_t>(i)].runs_on_accelerator)
                return false;
        }
    }
    if (std::count(stage_of_item.begin(), stage_of_item.end(), -1)) return false;
    return std::all_of(problem.precedence.begin(), problem.precedence.end(), [&](const auto& e) {
        return stage_of_item[static_cast<std::size_t>(e.first)] <=
               stage_of_item[static_cast<std::size_t>(e.second)];
    });
}

}  // namespace partition
