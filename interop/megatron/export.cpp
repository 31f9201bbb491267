// Megatron-LM's arguments, one a line: $(cat FILE) after pretrain_gpt.py. Flags:
// megatron/training/arguments.py at 0a438ed43f.
#include <algorithm>
#include <map>
#include <sstream>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "core/diagnostics.h"
#include "interop/expression.h"
#include "interop/import_place.h"
#include "interop/megatron/partition.h"
#include "interop/megatron/rules.h"
#include "interop/targets.h"
#include "interop/transformer_shape.h"
#include "schedule/plan/partition.h"

namespace interop {

namespace {

class MegatronWriter {
public:
    MegatronWriter(const ExportSource& source, core::Diagnostics& diagnostics)
        : e_(source, "Megatron-LM", diagnostics),
          plan_(source.file.plan),
          source_(source),
          diagnostics_(diagnostics) {}

    std::optional<Export> write() {
        const TransformerShape shape = transformer_shape(source_.graph);
        refuse_beyond_megatron(e_, shape, "Megatron-LM's arguments", diagnostics_);
        if (shape.unsupported.empty()) model(shape);
        parallel();
        partition();
        batch();
        memory();
        communication();
        precision();
        training();
        if (!e_.finish()) return std::nullopt;
        return Export{text_, {}, {placement_note(plan_.layout)}};
    }

private:
    void flag(const std::string& name) { text_ += name + "\n"; }
    template <class T>
    void flag(const std::string& name, const T& value) {
        text_ += fmt::format("{} {}\n", name, value);
    }

    void model(const TransformerShape& shape) {
        flag("--use-mcore-models");
        flag("--num-layers", shape.layers);
        flag("--hidden-size", shape.hidden);
        flag("--ffn-hidden-size", shape.ffn);
        flag("--num-attention-heads", shape.heads);
        if (shape.head_dimension * shape.heads != shape.hidden && !shape.is_latent())
            flag("--kv-channels", shape.head_dimension);
        if (shape.kv_heads != shape.heads) {
            flag("--group-query-attention");
            flag("--num-query-groups", shape.kv_heads);
        }
        flag("--seq-length", shape.sequence_length);
        flag("--max-position-embeddings", std::max(shape.positions, shape.sequence_length));
        flag("--position-embedding-type", shape.is_rotary ? "rope" : "learned_absolute");
        if (shape.is_rotary && shape.rotary_base != 10000)
            flag("--rotary-base", static_cast<std::int64_t>(shape.rotary_base));
        if (shape.is_rotary && shape.rotary_fraction != 1 && !shape.is_latent())
            flag("--rotary-percent", shape.rotary_fraction);
        flag("--normalization", shape.is_rms ? "RMSNorm" : "LayerNorm");
        flag("--norm-epsilon", shape.epsilon);
        if (shape.is_gated_silu) flag("--swiglu");
        if (!shape.has_linear_bias) flag("--disable-bias-linear");
        if (!shape.has_linear_bias && shape.has_qkv_bias) flag("--add-qkv-bias");
        if (!shape.is_tied) flag("--untie-embeddings-and-output-weights");
        flag("--hidden-dropout", shape.hidden_dropout);  // Megatron's default is 0.1
        flag("--attention-dropout", shape.attention_dropout);
        if (shape.experts > 0) {
            flag("--num-experts", shape.experts);
            flag("--moe-token-dispatcher-type", "alltoall");  // as the Program exchanges tokens
            flag("--moe-grouped-gemm");                       // as the experts of a rank are priced
            if (shape.auxiliary_loss > 0) flag("--moe-aux-loss-coeff", shape.auxiliary_loss);
            if (shape.capacity_factor > 0) {
                flag("--moe-expert-capacity-factor", shape.capacity_factor);
                flag("--moe-token-drop-policy", "position");
            }
            flag("--moe-router-topk", shape.experts_per_token);
        }
        for (const MegatronProperty& property : megatron_properties(shape))
            if (!property.argument.empty()) flag(property.argument);
        flag("--vocab-size", shape.vocabulary);
        flag("--make-vocab-size-divisible-by",
             1);  // padded to a multiple of the tensor-parallel degree, no further
    }

    void parallel() {
        for (auto [name, value] : megatron_parallelism(plan_)) {
            std::replace(name.begin(), name.end(), '_', '-');
            std::visit([&, flagged = "--" + name](const auto& own) { flag(flagged, own); }, value);
        }
        if (plan_.has_sequence_parallelism()) flag("--sequence-parallel");
        // Megatron numbers tensor, data, pipeline; with the mapping tensor, pipeline, data.
        if (e_.require_order({"PDT", "DPT"}) == "DPT") flag("--use-tp-pp-dp-mapping");
        if (const int group = plan_.parameters<schedule::GroupParameters>().group_size;
            plan_.virtual_stages > 1 && group > 0)
            flag("--microbatch-group-size-per-virtual-pipeline-stage", group);
    }

    void partition() {
        if (plan_.stages() == 1) return;
        const auto partition = schedule::complete_partition(plan_, source_.graph);
        if (!partition) return;  // check_plan has said why
        std::string why;
        const MegatronPartition flags = megatron_partition(source_.graph, plan_, *partition);
        for (const std::string& line : flags.arguments) flag(line);
        if (flags.unsupported)
            e_.refuse("partition", "this one", flags.unsupported->reason,
                      "leave partition out, or cut between layers");
        if (flags.needs_layout)
            e_.warn(
                "partition",
                "uneven stages need --pipeline-model-parallel-layout, which releases before 2025 do not have",
                "for older ones set partition to equal numbers of layers: the embedding with the first, the "
                "head with the last");
    }

    void batch() {
        flag("--micro-batch-size", plan_.micro_batch);
        flag("--global-batch-size", plan_.global_batch());
    }

    void memory() {
        if (plan_.runs_cores_again_alone()) flag("--recompute-activations");
        else if (plan_.recompute == schedule::Recompute::selective) {
            flag("--recompute-granularity", "selective");
            flag("--recompute-modules",
                 fmt::format("{}", fmt::join(schedule::names_of(plan_.recompute_modules), " ")));
        }
        if (plan_.recompute == schedule::Recompute::full) {
            flag("--recompute-granularity", "full");
            const auto [method, layers] = megatron_full_recomputation(plan_);
            flag("--recompute-method", method);
            flag("--recompute-num-layers", layers);
        }
        const int degree = plan_.effective_shard_degree();
        if (plan_.updates_on_hosts()) {
            flag("--optimizer-cpu-offload");
            flag("--use-precision-aware-optimizer");
            flag("--overlap-cpu-optimizer-d2h-h2d");
        }
        if (!uses_distributed_optimizer(plan_)) return;
        flag("--use-distributed-optimizer");
        if (degree != plan_.layout.data)
            flag("--num-distributed-optimizer-instances", plan_.layout.data / degree);
    }

    void communication() {
        const bool shards = plan_.shards(schedule::Sharding::optimizer);
        if (plan_.overlaps_gradient_reduction) {
            flag("--overlap-grad-reduce");
            flag("--ddp-bucket-size",
                 static_cast<std::int64_t>(plan_.gradient_bucket.value /
                                           core::size_of(plan_.precision.gradients).value));  // in parameters
        }
        if (shards && plan_.overlaps_parameter_gathering && plan_.overlaps_gradient_reduction)
            flag("--overlap-param-gather");
        e_.leave_collective_to_environment();
    }

    void precision() {
        const schedule::Precision& p = plan_.precision;
        const bool is_low = p.compute == core::DataType::fp16 || p.compute == core::DataType::bf16;
        const bool is_fp8 = p.compute == core::DataType::fp8 && p.parameters == core::DataType::bf16;
        const bool has_gradients = p.gradients == p.parameters || p.gradients == core::DataType::fp32;
        if ((is_low && p.parameters == p.compute && p.has_master_parameters && has_gradients) ||
            (is_fp8 && p.has_master_parameters && has_gradients)) {
            const bool is_bf16 = p.parameters == core::DataType::bf16;
            flag(is_bf16 ? "--bf16" : "--fp16");
            if (is_fp8) {
                flag("--transformer-impl", "transformer_engine");
                flag("--fp8-format", "hybrid");
            }
            // bf16 accumulates and reduces in fp32 unless told otherwise, fp16 the other way round.
            if (is_bf16 && p.gradients == core::DataType::bf16) flag("--grad-reduce-in-bf16");
            if (!is_bf16 && p.gradients == core::DataType::fp32) flag("--accumulate-allreduce-grads-in-fp32");
        }
        if (plan_.attention == model::AttentionImplementation::flash) flag("--use-flash-attn");
        if (plan_.attention == model::AttentionImplementation::unfused) flag("--no-masked-softmax-fusion");
        if (plan_.fused_cross_entropy) flag("--cross-entropy-loss-fusion");
    }

    void training() {
        const schedule::Optimizer& o = plan_.optimizer;
        const schedule::Training& t = source_.file.training;
        flag("--optimizer", o.kind == schedule::OptimizerKind::sgd ? "sgd" : "adam");
        flag("--lr", o.learning_rate);
        flag("--lr-decay-style", "constant");
        flag("--weight-decay", o.weight_decay);
        if (o.kind == schedule::OptimizerKind::sgd) flag("--sgd-momentum", o.momentum);
        else {
            flag("--adam-beta1", o.beta1);
            flag("--adam-beta2", o.beta2);
            flag("--adam-eps", o.epsilon);
        }
        flag("--clip-grad", o.gradient_clipping);  // Megatron's default is 1.0
        flag("--train-iters", t.steps);
        flag("--seed", t.seed);
        flag("--tokenizer-type", "NullTokenizer");
        if (t.data.empty() || t.data_format == "synthetic") {
            flag("--mock-data");
        } else {
            flag("--data-path", "REPLACE_WITH_PREPROCESSED_DATA");
            diagnostics_.warning(
                {source_.file.path, 0, 0}, "training.data",
                fmt::format("Megatron-LM reads data of its own format: --data-path is a placeholder for {}",
                            core::in_quotes(t.data)),
                "run its preprocess_data.py");
        }
    }

    Expression e_;
    const schedule::Plan& plan_;
    const ExportSource& source_;
    core::Diagnostics& diagnostics_;
    std::string text_;
};

}  // namespace

std::optional<Export> write_megatron(const ExportSource& source, const ExportOptions&,
                                     core::Diagnostics& diagnostics) {
    return MegatronWriter(source, diagnostics).write();
}

}  // namespace interop
