// Ranges of operators that do the same work. A model of equal layers has few different stages, however many
// it is cut into: what one of them costs, all do.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "model/model_graph.h"

namespace model {

// May be asked by several threads at once. The graph must outlive it.
class Repetition {
public:
    explicit Repetition(const ModelGraph& graph);

    // The first range of the model that is like this one, itself included. Alike are ranges of the same
    // operators (kinds, attributes, shapes, splits) wired the same way, with unit boundaries, shared
    // parameters, tensors from before and tensors for after at the same places, passing tensors of the same
    // sizes, and the model's first and last unit in both or neither. So they need the same memory and time
    // under any plan; where the range lies decides only who its neighbours are. The range must begin and end
    // at unit boundaries.
    OperatorRange first_like(OperatorRange range);
    // Of each operator the one at its place in the first unit that is like its own. Null where units do not
    // hold every operator.
    const std::vector<std::int32_t>* first_operators() const {
        return first_operators_.size() == graph_.operators.size() ? &first_operators_ : nullptr;
    }

private:
    using Signature = std::vector<std::int32_t>;
    Signature signature(OperatorRange range) const;
    OperatorRange first_of_model(OperatorRange range, const Signature& wanted) const;
    OperatorRange find(OperatorRange range);

    const ModelGraph& graph_;
    std::vector<std::int32_t> operator_class_, tensor_class_,
        parameter_class_;                                     // equal numbers: equal but for names and places
    std::map<std::int32_t, std::vector<TensorId>> crossing_;  // by boundary between units
    std::vector<std::int32_t> first_operators_;
    std::vector<std::int32_t> unit_from_;  // by operator: the unit that begins there, or -1
    // Answers by the unit that a range begins with and the one it ends before; zero: none yet. All threads of
    // a search ask millions of times, so they take no lock for what is known. Empty where units are so many
    // that it would be large.
    std::vector<std::atomic<std::uint64_t>> table_;
    std::mutex guard_;                                                      // of what follows
    std::map<std::pair<std::int32_t, std::int32_t>, OperatorRange> known_;  // where there is no table
    std::map<Signature, OperatorRange> first_;
};

}  // namespace model
