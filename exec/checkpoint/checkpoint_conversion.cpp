#include "exec/checkpoint/checkpoint_conversion.h"

#include <fmt/core.h>

#include "exec/checkpoint/training_state.h"
#include "exec/cpu/backend.h"
#include "exec/transport/no_peers.h"

namespace exec {

CheckpointManifest convert_checkpoint(const Checkpoint& from, const schedule::Program& program,
                                      const model::ModelGraph& graph, const std::string& directory) {
    tidy_checkpoints(directory);
    CheckpointManifest manifest = from.manifest();
    manifest.program_hash = schedule::hash_of(program);
    manifest.plan = degrees_in_words(program.plan);
    manifest.files.clear();
    // Records are fp32 whatever the plan trains in: its low-precision copies are made of them when it
    // resumes.
    schedule::Plan plan = program.plan;
    plan.precision = {core::DataType::fp32, core::DataType::fp32, core::DataType::fp32, false};
    plan.optimizer_offload = schedule::Offload::none;
    plan.parameter_offload = schedule::Offload::none;
    const model::SegmentGraphs graphs(graph, 1);
    const RunOptions options;
    const std::vector<std::string> activities;
    for (int rank = 0; rank < plan.layout.ranks(); ++rank) {
        NoPeers communicator(rank, plan.layout.ranks());
        cpu::CpuBackend backend(program, graphs, options, communicator, activities);
        const auto account = std::make_shared<MemoryAccount>(fmt::format("rank {}", rank), backend.blocks());
        const ParameterShare share = share_of(plan.layout, schedule::coordinates_of(plan.layout, rank));
        std::vector<BucketState> buckets;
        for (const schedule::ParameterBucket& bucket : program.classes[program.class_of_rank[rank]].buckets)
            buckets.emplace_back(graph, plan, bucket, share, piece_of(plan, bucket, rank), manifest.seed,
                                 true, account, nullptr, backend);
        restore(from, program, graph, rank, buckets);
        manifest.files.push_back(
            write_rank_state(directory, manifest.step, rank, records_of(program, graph, rank, buckets)));
    }
    commit_checkpoint(directory, manifest, 1);
    return manifest;
}

}  // namespace exec
