// The decision: everything needed to turn a model and a cluster into a Program, and nothing that follows from
// it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "core/data_type.h"
#include "core/units.h"
#include "model/operators/cost_context.h"
#include "schedule/pipeline/parameters.h"
#include "schedule/plan/layout.h"

namespace schedule {

enum class Sharding {
    none,
    optimizer,
    gradients,
    parameters
};  // ZeRO stages 0 to 3; FSDP SHARD_GRAD_OP = gradients, FULL_SHARD = parameters
enum class Recompute { none, selective, full };
// What runs again of every layer with Recompute::selective (Megatron-LM's --recompute-modules, but for
// `activation`): the cores of attention; the norms that layers begin with; the functions between the products
// of feed-forward layers; the projections up from latent queries, keys and values (arXiv 2412.19437, section
// 3.2.3); whole dense feed-forward layers, each with its norm; whole mixtures, an expert of all tokens and
// exchanges of routed ones included; the experts of all tokens alone; the functions between the products of
// experts, whose backward makes them again. What they make is not kept, but for the output of attention.
enum class RecomputeModule : std::uint8_t {
    core_attn,
    layernorm,
    activation,
    mla_up_proj,
    mlp,
    moe,
    shared_experts,
    moe_act
};
class RecomputeModules {
public:
    constexpr RecomputeModules(std::initializer_list<RecomputeModule> modules) {
        for (const RecomputeModule module : modules) bits_ |= bit(module);
    }
    constexpr void add(RecomputeModule module) { bits_ |= bit(module); }
    constexpr bool has(RecomputeModule module) const { return (bits_ & bit(module)) != 0; }
    constexpr RecomputeModules without(RecomputeModule module) const {
        RecomputeModules others = *this;
        others.bits_ &= static_cast<std::uint8_t>(~bit(module));
        return others;
    }
    // Nothing but these?
    constexpr bool are(std::initializer_list<RecomputeModule> modules) const {
        return *this == RecomputeModules(modules);
    }
    constexpr bool empty() const { return bits_ == 0; }
    constexpr int bits() const { return bits_; }
    bool operator==(const RecomputeModules&) const = default;

private:
    static constexpr std::uint8_t bit(RecomputeModule module) {
        return static_cast<std::uint8_t>(1U << static_cast<unsigned>(module));
    }
    std::uint8_t bits_ = 0;
};
enum class Offload { none, host, disk };  // where activations wait for their backward
enum class OptimizerKind { sgd, adam, adamw, lamb };

std::string_view name_of(Sharding sharding);
std::string_view name_of(Recompute recompute);
inline constexpr RecomputeModule all_recompute_modules[] = {
    RecomputeModule::core_attn,      RecomputeModule::layernorm, RecomputeModule::activation,
    RecomputeModule::mla_up_proj,    RecomputeModule::mlp,       RecomputeModule::moe,
    RecomputeModule::shared_experts, RecomputeModule::moe_act};
std::string_view name_of(RecomputeModule module);
std::vector<std::string> names_of(RecomputeModules modules);
std::string_view name_of(Offload offload);
std::string_view name_of(OptimizerKind optimizer);

using model::ContextCommunication;
inline constexpr ContextCommunication context_communications[] = {
    ContextCommunication::all_gather, ContextCommunication::all_to_all, ContextCommunication::ring};
std::string_view name_of(ContextCommunication communication);

// Storage per parameter. "fp32": 4 + 4; "mixed": low-precision copies with fp32 master weights (Micikevicius
// et al., arXiv 1710.03740).
struct Precision {
    core::DataType compute = core::DataType::bf16;     // matrix products
    core::DataType parameters = core::DataType::bf16;  // the copy that forward reads
    core::DataType gradients = core::DataType::bf16;   // accumulated and reduced
    bool has_master_parameters = true;                 // fp32 copy beside a low-precision one

    // fp8 is a format of products alone: tensors between them are bf16 (arXiv 2209.05433, section 3).
    core::DataType activations() const {
        return compute == core::DataType::fp8 ? core::DataType::bf16 : compute;
    }
    bool operator==(const Precision&) const = default;
};

struct Optimizer {
    OptimizerKind kind = OptimizerKind::adamw;
    double learning_rate = 1e-3, momentum = 0.0, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8,
           weight_decay = 0.0;
    double gradient_clipping =
        0.0;  // largest norm of all gradients together (torch.nn.utils.clip_grad_norm_); 0 = none
    bool operator==(const Optimizer&) const = default;
};
struct Plan;
// fp32 state per parameter: sgd 0 (4 with momentum), adam and adamw 8, lamb 8.
core::Bytes state_bytes_per_parameter(const Optimizer& optimizer);
// With the fp32 values, of a parameter that this rank updates: on the device, or on the host, which has
// copies of the gradient and of what forward reads beside them.
core::Bytes optimizer_bytes_on_device(const Plan& plan);
core::Bytes optimizer_bytes_on_host(const Plan& plan);
// Do updates need the norms of every parameter and of its update first? (LAMB, arXiv 1904.00962,
// algorithm 2.)
inline bool needs_update_norms(const Optimizer& optimizer) { return optimizer.kind == OptimizerKind::lamb; }

// Contiguous pipeline partition: `first_units[s]` is the first partition unit (model::ModelGraph::units) of
// virtual stage s; empty = chosen automatically. Virtual stage s lives on pipeline rank s mod p (loop
// placement) unless the schedule says otherwise.
struct Partition {
    std::vector<std::int32_t> first_units;
    std::string file = {}, graph_hash = {};  // of a saved decision (partition_file.h), as the plan names it;
                                             // check_plan refuses it for another graph
    bool operator==(const Partition&) const = default;
};

struct Plan {
    ParallelLayout layout;
    int virtual_stages = 1;         // model chunks per pipeline rank
    std::string schedule = "1f1b";  // name in the registry (schedule/pipeline/registry.h)
    // What this schedule takes beside degrees. Nothing, or of another kind than the schedule's (registry.h):
    // its defaults.
    ScheduleParameters schedule_parameters;
    Partition partition;
    // Of an automatic partition, SageMaker SMP v1's: the share of memory (parameters and activations) against
    // that of compute that stages balance. 0: compute alone.
    double memory_weight = 0;
    int micro_batch = 1;  // samples
    int micro_batches =
        1;  // per data-parallel replica and step (with one pipeline stage: gradient accumulation)
    Sharding sharding = Sharding::none;
    int shard_degree =
        0;  // ranks over which state is divided; 0 = the data-parallel degree; less = hybrid (MiCS)
    bool sequence_parallel = false;
    ContextCommunication context_communication = ContextCommunication::all_gather;  // of layout.context > 1
    // Pieces in which products of tensor-parallel layers run beside their all-reduce or reduce-scatter
    // (schedule/program/pieces.h); 1: the exchange waits for the whole product.
    int tensor_overlap = 1;
    Recompute recompute = Recompute::none;
    // Recompute full: of the layers of each virtual stage so many run again, the first ones (Megatron-LM's
    // --recompute-method block); 0: all.
    int recompute_layers = 0;
    // Where stages differ in that: the number of each, of which 0 is none. `recompute_layers` is 0 then.
    std::vector<std::int32_t> recompute_layers_by_stage;
    RecomputeModules recompute_modules = {RecomputeModule::core_attn};  // recompute selective: what
    Offload offload = Offload::none;
    // Offloaded tensors are loaded this many tasks of their rank before their backward, a task being one pass
    // of a micro-batch through one unit; tensors needed sooner than that stay (SageMaker SMP's key, which
    // counts pipeline tasks; its default).
    int activation_loading_horizon = 4;
    core::BytesPerSecond
        offload_bandwidth;  // of a node's disks together, each way: offload = disk; no profile knows it
    // Where the optimizer's state and the fp32 values lie, and who updates: `host`, the processors of the
    // node (ZeRO-Offload, arXiv 2101.06840), to which gradients go and from which parameters come back.
    Offload optimizer_offload = Offload::none;
    // Where parameters lie but for the passes that read them, and their gradients from each pass that makes
    // them to the update: `host`, each rank its shard of both (ZeRO-Infinity, arXiv 2104.07857; PyTorch's
    // CPUOffloadPolicy). With sharding = parameters over all replicas, be it one, and an optimizer there.
    Offload parameter_offload = Offload::none;
    Precision precision;
    model::AttentionImplementation attention = model::AttentionImplementation::flash;
    bool fused_cross_entropy =
        false;  // one pass over the logits, nothing kept beside them (model::CostContext)
    Optimizer optimizer;
    core::Bytes gradient_bucket = core::mebibytes(25);  // PyTorch DDP's bucket_cap_mb default
    bool overlaps_gradient_reduction = true;
    bool overlaps_parameter_gathering = true;  // prefetch of sharded parameters
    std::string communication = "auto";        // library (schedule/collective/library.h)
    std::string collective = "auto";           // ring, tree, hierarchical or auto
    std::string framework;  // whose kernels and host code are priced (sim/cost/framework/framework.h); empty
                            // = plain eager PyTorch
    bool operator==(const Plan&) const = default;

    int stages() const { return layout.pipeline * virtual_stages; }
    // Of the schedule; its defaults where none of this kind are given.
    template <typename Parameters>
    Parameters parameters() const {
        return parameters_or_default<Parameters>(schedule_parameters);
    }
    // Where the plan says how its schedule cuts sequences; 1: they pass whole.
    int passes_per_micro_batch() const { return parameters<SegmentParameters>().asked_for(); }
    void keep_sequences_whole() {
        if (std::holds_alternative<SegmentParameters>(schedule_parameters)) schedule_parameters = {};
    }
    // What the order of a schedule depends on beside the number of micro-batches.
    using OrderKey = std::tuple<std::string, int, int, ScheduleParameters>;
    OrderKey order_key() const { return {schedule, layout.pipeline, virtual_stages, schedule_parameters}; }
    int global_batch() const { return micro_batch * micro_batches * layout.replicas(); }
    int effective_shard_degree() const {
        return sharding == Sharding::none ? 1 : shard_degree > 0 ? shard_degree : layout.data;
    }
    // Is something divided at all, and into how many pieces: sharding over one rank is none.
    bool shards(Sharding what) const { return effective_shard_degree() > 1 && sharding >= what; }
    // The number of shards into which the state of a bucket is divided. Ranks of a shard group that hold
    // other experts have nothing of one to share.
    int pieces(bool is_expert) const {
        const int degree = shards(Sharding::optimizer) ? effective_shard_degree() : 1;
        return !is_expert ? degree : degree > layout.expert ? degree / layout.expert : 1;
    }
    // Ranks, consecutive along the data axis, among which gradients are divided: shards, or experts where
    // those are spread wider.
    int divides_gradients_by() const {
        return std::max(layout.expert, shards(Sharding::optimizer) ? effective_shard_degree() : 1);
    }
    bool runs_again(RecomputeModule module) const {
        return recompute == Recompute::selective && recompute_modules.has(module);
    }
    // Cores of attention and nothing else: what "selective" means to tools that know no modules.
    bool runs_cores_again_alone() const {
        return recompute == Recompute::selective && recompute_modules.are({RecomputeModule::core_attn});
    }
    bool updates_on_hosts() const { return optimizer_offload != Offload::none; }
    bool keeps_parameters_on_hosts() const { return parameter_offload != Offload::none; }
    // Are whole parameters on the device only while a unit is at work?
    bool fetches_parameters() const { return shards(Sharding::parameters) || keeps_parameters_on_hosts(); }
    bool recomputes_by_stage() const {
        return recompute == Recompute::full && !recompute_layers_by_stage.empty();
    }
    // Of recompute full: is it a number of layers of each stage, instead of all?
    bool recomputes_some_layers() const { return recompute_layers > 0 || recomputes_by_stage(); }
    // Where stages differ: of this virtual stage, or the same one of a further copy of the model (stages of a
    // Program with two directions).
    int layers_again(std::int64_t stage) const {
        return recompute_layers_by_stage[std::size_t(stage) % recompute_layers_by_stage.size()];
    }
    // The plan as this virtual stage has it, alike for all stages.
    Plan of_stage(int stage) const;
    // Recomputation of chosen modules that such tools cannot say.
    bool runs_chosen_modules_again() const {
        return recompute == Recompute::selective && !runs_cores_again_alone();
    }
    bool has_sequence_parallelism() const { return sequence_parallel && layout.tensor > 1; }
    model::CostContext cost_context() const;
};

// Of a product of degrees in words: " x context 2", "... (heads exchanged)"; nothing without context
// parallelism.
std::string context_words(const Plan& plan);
// The plan's recomputation in words, "full (3 layers)" where not all layers run again, "selective (layernorm,
// activation)" where not the cores of attention alone do.
std::string recomputation_text(const Plan& plan);
// The value of recompute_layers: "3", "[2, 1, 0, 0]".
std::string recompute_layers_text(const Plan& plan);

}  // namespace schedule
