#include "schedule/pass/rank/key_value_gradients.h"

namespace schedule {

KeyValueGradients::KeyValueGradients(const Program& program)
    : program_(&program),
      gradient_(program.micro_batches, no_buffer),
      reused_(program.micro_batches, no_buffer) {}

void KeyValueGradients::begin_forward(InstructionList& list, std::int32_t micro_batch,
                                      const ActivationFootprint& footprint,
                                      std::vector<std::uint32_t>& takes) {
    const int earlier = program_->segment_of(micro_batch);
    for (int i = 1; i <= earlier && footprint.reused.value > 0; ++i)
        takes.push_back(reused_[micro_batch - i] =
                            list.buffer(MemoryKind::activations, footprint.reused / earlier));
}

void KeyValueGradients::begin_backward(InstructionList& list, std::int32_t micro_batch,
                                       const ActivationFootprint& footprint,
                                       std::vector<std::uint32_t>& takes) {
    if (!program_->is_last_segment(micro_batch)) return;
    const int earlier = program_->segment_of(micro_batch);
    for (int i = 1; i <= earlier; ++i)
        takes.push_back(gradient_[micro_batch - i] =
                            list.buffer(MemoryKind::activations,
                                        footprint.key_value_gradient - footprint.reused / earlier));
}

}  // namespace schedule
