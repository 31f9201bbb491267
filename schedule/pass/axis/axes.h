// Every lowering pass, a file each beside this one (collectives.h: what several of them append). To add one:
// its file, its line here and its line in lowering_passes.cpp.
#pragma once

#include <memory>

#include "schedule/pass/lowering_pass.h"

namespace schedule {

std::unique_ptr<LoweringPass> state(RankDraft& draft);
std::unique_ptr<LoweringPass> sharding(RankDraft& draft);
std::unique_ptr<LoweringPass> offload(RankDraft& draft);
std::unique_ptr<LoweringPass> context_parallelism(RankDraft& draft);
std::unique_ptr<LoweringPass> shared_heads(RankDraft& draft);
std::unique_ptr<LoweringPass> expert_parallelism(RankDraft& draft);
std::unique_ptr<LoweringPass> recomputation(RankDraft& draft);
std::unique_ptr<LoweringPass> tensor_parallelism(RankDraft& draft);
std::unique_ptr<LoweringPass> parts_of_sequences(RankDraft& draft);
std::unique_ptr<LoweringPass> gradient_reduction(RankDraft& draft);
std::unique_ptr<LoweringPass> weight_versions(RankDraft& draft);
std::unique_ptr<LoweringPass> loss(RankDraft& draft);
std::unique_ptr<LoweringPass> gradient_clipping(RankDraft& draft);
std::unique_ptr<LoweringPass> parameter_update(RankDraft& draft);

}  // namespace schedule
