// What every export asks of a plan: refuse what the target cannot say, list what it leaves to the script,
// compare numberings and partitions.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/diagnostics.h"
#include "interop/exchange.h"

namespace interop {

// Do ranks get the same coordinates in both orders? Axes of degree 1 do not matter.
bool numbers_alike(const schedule::ParallelLayout& layout, std::string_view order);
// First units when every stage gets as many layers, the embedding with the first and the head with the last:
// what tools do by themselves. Empty when the layers do not divide evenly, or the model is not embedding,
// layers, head.
std::vector<std::int32_t> even_layers(const model::ModelGraph& graph, int stages);
// "ranks 0-7: data 0, pipeline 0, tensor 0-7": the numbering in one sentence.
std::string placement_note(const schedule::ParallelLayout& layout);
// Processes on one node when ranks fill nodes evenly; 0 when they do not.
int processes_per_node(const ExportSource& source);

// JSON without line breaks.
std::string one_line(const core::Value& value);

// Degrees by the tools' own names; state is divided over dp_shard x cp.
struct FsdpMesh {
    int dp_replicate = 1, dp_shard = 1, cp = 1, tp = 1;
};

// The data, context and tensor degrees of a mesh; answers over how many ranks state is divided.
int take_mesh(const FsdpMesh& mesh, schedule::ParallelLayout& layout);

class Expression {
public:
    Expression(const ExportSource& source, std::string target, core::Diagnostics& diagnostics);

    const schedule::Plan& plan;
    const ExportSource& source;

    // "plan.KEY = VALUE cannot be expressed by TARGET: WHY", with what to change.
    void refuse(std::string_view key, const std::string& value, const std::string& why,
                const std::string& change);
    // The same of a key of another table, "cluster.instance".
    void refuse_outside_plan(const std::string& key, const std::string& value, const std::string& why,
                             const std::string& change);
    // What a target does not offer, or an export does not write.
    void refuse_parts_of_data_axis();
    void refuse_whole_experts(const std::string& why);
    void refuse_expert_parallel();
    void refuse_offload();  // of activations and of state
    void refuse_activation_offload();
    void refuse_optimizer_offload();
    void refuse_parameter_offload();
    // Of targets that keep parameters and optimizer on the hosts, or neither (FSDP's CPUOffloadPolicy).
    void refuse_optimizer_offload_alone();
    void warn(std::string_view key, const std::string& message, const std::string& hint = {});
    // Left to the training script: listed in one warning by finish().
    void leave_to_script(const std::string& item);
    // The mesh of FSDP 2 in torchtitan and accelerate; refuses what it cannot divide.
    FsdpMesh fsdp_mesh();
    // Refuses virtual stages, every pipeline (targets without one).
    void refuse_pipeline(const std::string& change);
    void refuse_virtual_stages();
    // Refuses a schedule of a real pipeline that is not among `names`.
    void require_schedule(const std::vector<std::string>& names);
    // The first of `orders` that numbers ranks as the plan does; refuses (and returns the first) when there
    // is none.
    std::string require_order(const std::vector<std::string>& orders);
    void refuse_sequence_parallel(const std::string& why);
    // More tensor-parallel ranks than heads of keys and values, and how many heads those are.
    std::optional<std::int64_t> shared_heads() const;
    void refuse_shared_heads(const std::string& why);
    void refuse_recompute(schedule::Recompute recompute, const std::string& why);
    // Full recomputation of some layers of each stage.
    void refuse_recompute_layers(const std::string& why);
    void refuse_recompute_layers_by_stage(const std::string& why);
    // Selective recomputation of this, and of anything but these.
    void refuse_recompute_module(schedule::RecomputeModule module, const std::string& why);
    void refuse_recompute_modules_but(schedule::RecomputeModules known, const std::string& why);
    // This way in a context-parallel group.
    void refuse_communication(
        schedule::ContextCommunication how, const std::string& why,
        schedule::ContextCommunication instead = schedule::ContextCommunication::all_gather);
    // Precision as 16-bit training with fp32 master parameters, or plain fp32; refuses everything else.
    void require_plain_precision();
    void leave_collective_to_environment();
    void leave_optimizer_to_script();

    bool is_good() const { return diagnostics_.error_count() == errors_before_; }
    // Emits the list of what is left to the script; true when nothing was refused.
    bool finish();

private:
    core::SourceLocation place(std::string_view key) const;

    std::string target_;
    core::Diagnostics& diagnostics_;
    std::size_t errors_before_;
    std::vector<std::string> left_;
};

}  // namespace interop
