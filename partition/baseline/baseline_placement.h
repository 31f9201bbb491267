// What others do, to be measured against: SageMaker SMP v1's tree partitioner, a chain's dynamic program, a
// multilevel partitioner in METIS's way.
#pragma once

#include <cstddef>
#include <vector>

#include "partition/model_placement.h"
#include "partition/placement.h"

namespace partition {

// Modules over the items of a problem; children in order of execution.
struct ModuleTree {
    struct Module {
        std::vector<std::size_t> children;
        std::vector<std::size_t> items;  // that the module holds itself: they run where it does
    };
    std::vector<Module> modules;  // [0] is the root
};
ModuleTree flat_tree(const PlacementProblem& problem);
ModuleTree module_tree(const model::ModelGraph& graph, const ModelPlacement& placement);

// SMP v1 (its paper and documentation): the children of a module are cut into consecutive runs by a
// min-max dynamic program on memory_weight * memory / all memory + (1 - memory_weight) * time / all time;
// devices are dealt to runs, one each and the rest in proportion to cost by D'Hondt's method; runs
// with several devices are cut further. Accelerators only; transfers and memory limits play no part, as
// there.
std::vector<PlacedStage> place_smp_tree(const PlacementProblem& problem, const ModuleTree& tree,
                                        double memory_weight);

// Consecutive pieces of the given order, by the dynamic program on loads: O(items^2 * devices); where its
// table would be too large, filled one after the other to a load found by bisection.
std::vector<PlacedStage> place_chain(const PlacementProblem& problem);

// Recursive bisection, multilevel: heavy edges matched and contracted, a cut of the coarsest graph along its
// order, Fiduccia-Mattheyses refinement on every level back; parts keep to the order (acyclic partitioning:
// Herrmann et al., SIAM J. Sci. Comput. 2019) and to a balance of work within a tenth.
std::vector<PlacedStage> place_multilevel(const PlacementProblem& problem);

// The class of each accelerator of a problem, and the stages of a division of its items over them
// (`device_of_item`); devices without any are left out.
std::vector<std::size_t> classes_of_accelerators(const PlacementProblem& problem);
std::vector<PlacedStage> stages_of(const PlacementProblem& problem,
                                   const std::vector<std::size_t>& device_of_item,
                                   const std::vector<std::size_t>& class_of_device);

// Stages that respect order (no edge runs back), kinds and memory: may they be compared with the exact
// search?
bool is_valid_placement(const PlacementProblem& problem, const std::vector<PlacedStage>& stages);

}  // namespace partition
