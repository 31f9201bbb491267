#include "sim/report/overflow_place.h"

#include <algorithm>
#include <vector>

#include "model/operators/cost.h"
#include "model/segment.h"
#include "schedule/pass/recompute.h"

namespace sim {

std::optional<OverflowOperator> place_in_forward_pass(const schedule::Program& program,
                                                      const model::ModelGraph& whole,
                                                      const schedule::RankProgram& list, std::uint32_t first,
                                                      core::Bytes room) {
    using schedule::InstructionKind;
    const schedule::Instruction& begin = list.instructions[first];
    if (begin.kind != InstructionKind::compute || begin.phase != schedule::ComputePhase::forward)
        return std::nullopt;
    const model::SegmentGraphs graphs = schedule::segment_graphs(program, whole);
    const model::ModelGraph& graph = graphs[program.segment_of(begin.micro_batch)];
    const model::CostContext context = program.plan.cost_context();
    const model::OperatorRange stage = program.stages[begin.stage].operators;
    std::vector<char> is_counted(graph.tensors.size(), 0);
    core::Bytes taken;
    const auto find_instruction = [&](std::int32_t op) {
        for (std::uint32_t n = first; n < list.instructions.size(); ++n) {
            const schedule::Instruction& i = list.instructions[n];
            const bool is_of_pass = i.kind == InstructionKind::compute && i.phase == begin.phase &&
                                    i.stage == begin.stage && i.micro_batch == begin.micro_batch;
            if (is_of_pass && i.operators.begin <= op && op < i.operators.end) return n;
        }
        return first;
    };
    const std::vector<model::OperatorRange> units = schedule::units_of(graph, stage);
    const std::vector<char> runs_again = schedule::recomputed_units(graph, units, program.plan, begin.stage);
    for (std::size_t u = 0; u < units.size(); ++u) {
        const model::OperatorRange unit = units[u];
        const std::vector<schedule::Rerun> reruns = schedule::reruns(graph, unit, program.plan);
        const auto is_made_again = [&](std::int32_t op) {
            return std::any_of(reruns.begin(), reruns.end(),
                               [&](const schedule::Rerun& rerun) { return rerun.has(op); });
        };
        for (std::int32_t op = unit.begin; op < unit.end; ++op) {
            core::Bytes asked;
            const auto count = [&](model::TensorId tensor) {
                const model::TensorId storage = model::storage_of(graph, tensor);
                char& counted = is_counted[storage.index];
                if (!counted) asked += model::tensor_bytes(graph, storage, context);
                counted = 1;
            };
            if (runs_again[u]) {  // the layer's input
                for (const model::TensorId input : graph.operators[op].inputs)
                    if (graph.tensor(input).producer.index < unit.begin) count(input);
            } else {
                const model::SavedForBackward saved =
                    model::saved_for_backward(graph, model::OperatorId(op), context);
                for (const model::TensorId tensor : saved.tensors)
                    if (!is_made_again(graph.tensor(model::storage_of(graph, tensor)).producer.index))
                        count(tensor);
                if (!is_made_again(op)) asked += saved.saved_context;
                if (schedule::is_recomputed(graph.operators[op], program.plan))
                    asked -= saved.recomputable_context;
            }
            taken += asked;
            if (taken > room) return OverflowOperator{find_instruction(op), op, taken, asked};
        }
    }
    return std::nullopt;
}

}  // namespace sim
