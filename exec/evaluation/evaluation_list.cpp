#include "exec/evaluation/evaluation_list.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "core/errors.h"
#include "core/index/integers.h"
#include "model/model_graph.h"
#include "model/operators/rank_share.h"

namespace exec {

using schedule::ComputePhase;
using schedule::Instruction;
using schedule::InstructionKind;
using schedule::PayloadKind;

namespace {

bool reads_parameters(const model::Operator& op, ComputePhase phase) {
    return phase != ComputePhase::backward_weight || model::weight_gradients_read_parameters(op);
}

// Of an instruction that computes: visit(bucket) for every bucket that it reads.
template <class Visit>
void for_each_bucket(const Instruction& instruction, const model::ModelGraph& graph,
                     const BucketOfParameter& bucket_of, const Visit& visit) {
    for (std::int32_t n = instruction.operators.begin; n < instruction.operators.end; ++n) {
        const model::Operator& op = graph.operators[n];
        if (!reads_parameters(op, instruction.phase)) continue;
        for (const model::ParameterId parameter : op.parameters) visit(bucket_of[parameter].value());
    }
}

// From other ranks, or from the host.
bool brings_parameters(const Instruction& instruction) {
    return instruction.payload == PayloadKind::parameter &&
           (instruction.kind == InstructionKind::collective ||
            (instruction.kind == InstructionKind::copy && instruction.loads));
}

// Gathers of parameters apart.
bool goes_forward(const Instruction& instruction) {
    switch (instruction.kind) {
        case InstructionKind::compute: return instruction.phase == ComputePhase::forward;
        case InstructionKind::send:
        case InstructionKind::receive: return instruction.payload == PayloadKind::activation;
        case InstructionKind::collective:
            return instruction.payload == PayloadKind::loss ||
                   (instruction.payload == PayloadKind::activation &&
                    instruction.phase == ComputePhase::forward);
        case InstructionKind::copy:
        case InstructionKind::update_norm:
        case InstructionKind::optimizer_step:
        case InstructionKind::gradient_norm:
        case InstructionKind::zero_gradients: return false;
    }
    core::require(false, "a kind of instruction goes forward or does not");
    return false;
}

// Segments read the keys and values of those before: a micro-batch's tensors go when its last instruction on
// the stage is over. Where the next stage is on the same rank it takes some of them over, and all wait for
// the end.
std::vector<std::vector<EvaluationList::Ended>> ends_of(const schedule::Program& program,
                                                        const schedule::RankProgram& list,
                                                        const std::vector<char>& is_performed) {
    std::vector<std::vector<EvaluationList::Ended>> result(list.instructions.size());
    if (!program.cuts_sequences()) return result;
    std::map<std::pair<std::int32_t, std::int32_t>, std::size_t> last;  // by stage and whole micro-batch
    for (std::size_t i = 0; i < list.instructions.size(); ++i) {
        const Instruction& instruction = list.instructions[i];
        const bool is_of_micro_batch =
            instruction.kind != InstructionKind::collective || instruction.payload == PayloadKind::activation;
        if (is_performed[i] && is_of_micro_batch)
            last[{instruction.stage, program.whole_micro_batch_of(instruction.micro_batch)}] = i;
    }
    for (const auto& [key, i] : last) {
        const auto [stage, whole] = key;
        const bool hands_over = stage + 1 < core::count_of(program.stages) &&
                                program.stages[stage + 1].rank == program.stages[stage].rank;
        if (hands_over) continue;
        for (std::int32_t k = 0; k < program.micro_batches; ++k)
            if (program.whole_micro_batch_of(k) == whole) result[i].push_back({stage, k});
    }
    return result;
}

}  // namespace

std::vector<std::vector<std::int32_t>> releases_of(const schedule::RankProgram& list,
                                                   const model::ModelGraph& graph,
                                                   const BucketOfParameter& bucket_of,
                                                   const std::vector<char>& is_performed) {
    std::vector<std::vector<std::int32_t>> result(list.instructions.size());
    std::vector<std::optional<std::size_t>> last_reader(list.buckets.size());  // instruction
    std::vector<char> is_gathered(list.buckets.size(), 0);
    const auto release = [&](std::int32_t bucket) {
        if (is_gathered[bucket] && last_reader[bucket]) result[*last_reader[bucket]].push_back(bucket);
        last_reader[bucket].reset();
    };
    for (std::size_t i = 0; i < list.instructions.size(); ++i) {
        const Instruction& instruction = list.instructions[i];
        if (!is_performed[i]) continue;
        if (brings_parameters(instruction)) {
            release(*instruction.bucket);
            is_gathered[*instruction.bucket] = 1;
        }
        if (instruction.kind == InstructionKind::compute)
            for_each_bucket(instruction, graph, bucket_of,
                            [&](std::int32_t bucket) { last_reader[bucket] = i; });
    }
    for (const std::int32_t bucket : core::indices(list.buckets)) release(bucket);
    return result;
}

EvaluationList evaluation_list(const schedule::Program& program, const schedule::RankProgram& list,
                               const model::ModelGraph& graph, const BucketOfParameter& bucket_of) {
    EvaluationList result;
    result.is_performed.resize(list.instructions.size());
    // By bucket, the last ones: from the host, and from other ranks.
    std::vector<std::array<std::optional<std::size_t>, 2>> brought(list.buckets.size());
    for (std::size_t i = 0; i < list.instructions.size(); ++i) {
        const Instruction& instruction = list.instructions[i];
        if (brings_parameters(instruction))
            brought[*instruction.bucket][instruction.kind == InstructionKind::collective] = i;
        if (!goes_forward(instruction)) continue;
        result.is_performed[i] = 1;
        if (instruction.kind == InstructionKind::compute)
            for_each_bucket(instruction, graph, bucket_of, [&](std::int32_t bucket) {
                for (const std::optional<std::size_t> one : brought[bucket])
                    if (one) result.is_performed[*one] = 1;
            });
    }
    result.releases.resize(list.instructions.size());
    if (program.plan.fetches_parameters())
        result.releases = releases_of(list, graph, bucket_of, result.is_performed);
    result.ended = ends_of(program, list, result.is_performed);
    return result;
}

}  // namespace exec
