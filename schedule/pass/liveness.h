// The walk over a stage's operators that memory.h defines: which tensors are held when.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "model/model_graph.h"
#include "model/operators/cost_context.h"
#include "schedule/pass/recompute.h"
#include "schedule/plan/memory.h"
#include "schedule/plan/plan.h"

namespace schedule {

class StageLiveness {
public:
    // The plan is alike for all stages (Plan::of_stage), and outlives it.
    StageLiveness(const model::ModelGraph& graph, model::OperatorRange stage, const Plan& plan,
                  bool is_forward_only, const model::WorkspaceRules* workspace = nullptr);
    ActivationFootprint footprint();

private:
    using Index = std::int32_t;

    struct OperatorInfo {
        std::size_t saved_begin = 0, saved_count = 0;  // into saved_pool_
        double saved_context = 0;                      // bytes of its own, held with them
        double recomputable = 0;        // the part of `saved_context` that selective recomputation drops
        double late_context = 0;        // bytes of its own from backward_input to backward_weight
        bool is_rerun = false;          // of Rerun::operators: it all comes back before its backward
        double kept_output = 0;         // bytes of its output kept though its unit runs again
        double key_value = 0;           // attention in a segment of a sequence: bytes of keys and values
        bool copies_key_value = false;  // ... which later parts of the sequence need and nothing else keeps
    };

    Index storage(model::TensorId tensor) const { return storage_[tensor.index]; }
    double bytes(Index tensor) const;
    bool is_shared(const model::Operator& op) const;
    const model::Operator& op(Index i) const { return graph_.operators[i]; }
    const OperatorInfo& info(Index i) const { return info_[i - stage_.begin]; }
    std::span<const Index> saved(const OperatorInfo& info) const {
        return {saved_pool_.data() + info.saved_begin, info.saved_count};
    }
    // work(storage) of what operators read and save; of some more than once.
    template <class Work>
    void for_each_wanted(model::OperatorRange range, Work work) const {
        for (Index i = range.begin; i < range.end; ++i) {
            for (const model::TensorId tensor : op(i).inputs) work(storage(tensor));
            for (const Index tensor : saved(info(i))) work(tensor);
        }
    }

    void take(double bytes);
    void drop(double bytes) { held_ -= bytes; }
    void hold(Index tensor);
    void release(Index tensor);

    // What operator-level recomputation keeps of an operator's results.
    double kept_output_bytes(Index i) const;
    double exchanged_bytes(
        Index i) const;  // experts over several ranks: a second array while routed tokens are exchanged
    double exchanged_heads(Index i, const std::vector<model::TensorId>& tensors) const;
    double passed_bytes(Index i) const;
    double gathered_bytes(Index i) const;  // context parallelism: keys and values of all tokens
    // Bytes that may leave after the unit's forward (memory.h, offloadable); `for_weight`: the part of them
    // that backward_weight reads.
    core::Bytes offloadable(std::size_t unit, bool for_weight) const;

    // The kernels of operator i hold `phase`'s workspace for a moment.
    void touch(double bytes);
    void touch(Index i, model::Phase phase);

    void find_saved();
    void run_forward(model::OperatorRange range, const std::vector<char>& kept,
                     const std::vector<Index>& last_use, bool keeps_saved_contexts, bool is_again);
    // Operators whose results backward needs and that are not kept; all that read them are in `readers`.
    void run_again(model::OperatorRange operators, model::OperatorRange readers, bool is_split);
    // Around the backward of an operator of unit u: what runs again for it, and the inputs of a rerun that
    // begins with it.
    void run_again_before(std::size_t u, Index i, bool is_split);
    void release_inputs_of_rerun(std::size_t u, Index first);
    void keep_for_weights(model::OperatorRange operators);
    std::vector<Index> inputs_of(const Rerun& rerun) const;  // storages from before it
    void run_backward(bool is_split);

    // Bytes of a stage's tensors that live beyond one pass, as the fields of ActivationFootprint define them.
    struct BoundaryBytes {
        double saved = 0, received = 0, received_saved = 0, sent = 0, received_gradient = 0,
               sent_gradient = 0;
    };
    BoundaryBytes boundary_bytes() const;
    // Each plays its pass and writes its part of the result.
    void find_forward(const BoundaryBytes& boundary, ActivationFootprint& result);
    void find_whole_backward(const BoundaryBytes& boundary, ActivationFootprint& result);
    void find_split_backward(const BoundaryBytes& boundary, ActivationFootprint& result);
    void begin_backward();
    void run_unit_backward(std::size_t unit, bool is_split);

    const model::ModelGraph& graph_;
    const model::OperatorRange stage_;
    const Plan& plan_;
    const model::CostContext context_;
    const bool is_forward_only_;
    const model::WorkspaceRules* workspace_;  // null: kernels hold nothing of their own
    // Attention and every other product of a unit are kept, and all else of it runs again.
    const bool keeps_alternate_products_;
    const Recompute recompute_;  // of whole units

    std::vector<model::OperatorRange> units_;
    std::vector<char> unit_is_recomputed_;
    std::vector<std::vector<Rerun>> reruns_;  // by unit
    std::vector<char> is_made_again_;         // by storage: of a rerun
    std::vector<OperatorInfo> info_;
    std::vector<Index> saved_pool_;
    std::vector<Index> storage_;       // by tensor
    std::vector<Index> last_use_;      // by storage: last operator of the stage that reads it
    std::vector<Index> lowest_saver_;  // by storage: operator after whose backward it is freed
    std::vector<Index> lowest_first_;  // ... as it is before anything runs again
    std::vector<Index> highest_saver_;
    std::vector<char> is_saved_;      // by storage: from forward to backward
    std::vector<char> weights_need_;  // by storage: saved by an operator with parameters
    std::vector<char> is_received_, is_sent_;
    std::vector<char> is_overwritten_;  // by its gradient, which then stands where it was held
    std::vector<char> is_held_, has_gradient_held_;
    mutable std::vector<double> bytes_;
    // By storage, of what last ran again: what is not dropped, that of it which was kept before, and the last
    // of its operators that reads it.
    std::vector<char> kept_again_, stays_again_;
    std::vector<Index> last_use_again_;
    double saved_contexts_ = 0;
    double key_values_ = 0;  // of all attention operators, in a segment of a sequence
    double held_ = 0, peak_ = 0;
    double saved_held_ = 0, beside_saved_ = 0;  // saved tensors in `held_`; the peak of the rest
};

}  // namespace schedule
