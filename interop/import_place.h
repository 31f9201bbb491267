// What imports share: where SageMaker's block lies in a file, and the model and cluster that other tools'
// files do not hold.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "interop/exchange.h"

namespace interop {

struct SageMakerBlock {
    const core::Value* parameters = nullptr;       // of modelparallel
    const core::Value* mpi = nullptr;              // of the distribution
    const core::Value* hyperparameters = nullptr;  // of the estimator
    const core::Value* instance_type = nullptr;
    const core::Value* instance_count = nullptr;

    const core::Value* hyperparameter(std::initializer_list<const char*> names) const;
};
// In a distribution, an estimator's arguments, a modelparallel block, or `parameters` alone (known by one of
// `keys`).
SageMakerBlock find_modelparallel(const core::Value& document, const std::vector<std::string>& keys);

struct ImportLocation {
    schedule::PlanFile file;  // with [model] and [cluster]
    std::int64_t nodes = 1;
    std::int64_t processes_per_node = 0;  // 0: not known
    std::int64_t processes() const { return nodes * processes_per_node; }
};
// From the options, then from the block; what neither says becomes a placeholder and a warning.
ImportLocation import_place(const SageMakerBlock& block, const ImportOptions& options,
                            const std::string& path, core::Diagnostics& diagnostics);

}  // namespace interop
