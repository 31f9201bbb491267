// Forward passes over held-out data between two steps of a training.
#include <utility>

#include "core/index/integers.h"
#include "exec/runtime/rank_executor.h"

namespace exec {

void RankExecutor::perform_evaluation() {
    for (std::uint32_t i = 0; i < list_.instructions.size(); ++i) {
        if (!evaluation_->is_performed[i]) continue;
        backend_.begin(i);
        perform(list_.instructions[i]);
        for (const std::int32_t bucket : evaluation_->releases[i]) buckets_[bucket].release_parameters();
        for (const EvaluationList::Ended& one : evaluation_->ended[i])
            micro_batches_[one.stage][one.micro_batch] = MicroBatch{};
        backend_.end(i);
    }
    for (auto& stage : micro_batches_)
        for (MicroBatch& state : stage) state = MicroBatch{};
}

std::optional<double> RankExecutor::evaluate(const InputReader& data, int batches,
                                             const std::vector<StagePlan>& plans) {
    if (!evaluation_) evaluation_ = evaluation_list(program_, list_, graph_, bucket_of_);
    const Pass training = std::exchange(pass_, {&data, &plans, 0, false});
    bool knows_loss = false;
    for (const std::int32_t stage : core::indices(program_.stages))
        knows_loss = knows_loss || (program_.is_last_stage(stage) && is_here(stage));
    double sum = 0;
    std::vector<InstructionTime> times;
    for (int batch = 0; batch < batches; ++batch) {
        step_ = batch;
        core::require(!backend_.begin_evaluation(batch),
                      "a backend that evaluates performs instructions one by one");
        perform_evaluation();
        backend_.end_step(times);
        times.clear();
        if (knows_loss) sum += backend_.loss();
    }
    pass_ = training;
    if (!knows_loss) return std::nullopt;
    return sum / batches;
}

}  // namespace exec
