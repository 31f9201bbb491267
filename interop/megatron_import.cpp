// Megatron-LM's arguments back into a plan, from a shell script, an argument file or a log: every token that
// begins with -- is looked at, the rest passed over.
#include <charconv>
#include <map>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "interop/import_place.h"
#include "interop/megatron_partition.h"
#include "interop/targets.h"

namespace interop {

namespace {

class Arguments {
public:
    Arguments(const std::string& text, const std::string& path, core::Diagnostics& diagnostics)
        : path_(path), diagnostics_(diagnostics) {
        std::string token, name;
        int line = 1;
        char quote = '\0';
        const auto end_token = [&] {
            if (token.empty() || token == "\\") return token.clear();
            if (token.starts_with("--")) {
                const std::size_t equals = token.find('=');
                name = token.substr(2, equals == std::string::npos ? equals : equals - 2);
                for (char& c : name) c = c == '_' ? '-' : c;
                found_[name] = {equals == std::string::npos ? std::string() : token.substr(equals + 1), line};
            } else if (!name.empty()) {
                found_[name].value = token;
                name.clear();
            }
            token.clear();
        };
        for (std::size_t i = 0; i <= text.size(); ++i) {
            const char c = i < text.size() ? text[i] : '\n';
            if (quote) {
                if (c == quote || i == text.size()) quote = '\0';
                else token += c;
            } else if (c == '"' || c == '\'') {
                quote = c;
            } else if (c == '#' && token.empty()) {
                while (i < text.size() && text[i] != '\n') ++i;
                --i;
            } else if (c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '(' || c == ')') {
                // Brackets are part of a pipeline layout, and of arrays in shell scripts otherwise.
                if ((c == '(' || c == ')') && !token.empty() && !token.starts_with("--") &&
                    token.find('|') != std::string::npos)
                    token += c;
                else end_token();
            } else {
                token += c;
            }
            if (c == '\n') ++line;
        }
    }

    bool has(const std::string& name) {
        read_.insert({name, true});
        return found_.count(name) > 0;
    }
    std::string text(const std::string& name, const std::string& fallback = {}) {
        return has(name) ? found_[name].value : fallback;
    }
    std::optional<std::int64_t> integer(const std::string& name) {
        if (!has(name)) return std::nullopt;
        const std::string& value = found_[name].value;
        std::int64_t result = 0;
        const auto [end, error_code] = std::from_chars(value.data(), value.data() + value.size(), result);
        if (error_code == std::errc() && end == value.data() + value.size() && result >= 0 &&
            result <= (std::int64_t{1} << 30))
            return result;
        error(name, fmt::format("--{} {} is no whole number from 0 to 2^30", name, core::in_quotes(value)),
              "write the number; shell variables are not known here");
        return std::nullopt;
    }
    std::int64_t positive(const std::string& name, std::int64_t fallback) {
        const auto value = integer(name);
        if (value && *value == 0) error(name, fmt::format("--{} is zero", name), "give 1 or more");
        return value && *value > 0 ? *value : fallback;
    }
    double real(const std::string& name, double fallback) {
        if (!has(name)) return fallback;
        const std::string& value = found_[name].value;
        double result = 0;
        const auto [end, error_code] = std::from_chars(value.data(), value.data() + value.size(), result);
        if (error_code == std::errc() && end == value.data() + value.size()) return result;
        error(name, fmt::format("--{} {} is no number", name, core::in_quotes(value)),
              "write the number; shell variables are not known here");
        return fallback;
    }
    void error(const std::string& name, const std::string& message, const std::string& hint) {
        diagnostics_.error({path_, found_.count(name) ? found_[name].line : 0, 0}, "--" + name, message,
                           hint);
    }
    void tell_unread() {
        std::string list;
        for (const auto& [name, entry] : found_)
            if (!read_.count(name)) list += (list.empty() ? "--" : ", --") + name;
        if (!list.empty())
            diagnostics_.warning({path_, 0, 0}, "", "not part of a plan and passed over: " + list);
    }
    bool empty() const { return found_.empty(); }

private:
    struct Entry {
        std::string value;
        int line = 0;
    };
    std::map<std::string, Entry> found_;
    std::map<std::string, bool> read_;
    std::string path_;
    core::Diagnostics& diagnostics_;
};

// The model's own arguments as a description; a reference given by the caller goes first.
core::Value read_model(Arguments& a, const ImportOptions& options) {
    core::Value model = core::Value::table();
    const bool is_rms = a.text("normalization", "LayerNorm") == "RMSNorm";
    const std::int64_t experts = a.positive("num-experts", 0);
    const std::int64_t hidden = a.positive("hidden-size", 0), heads = a.positive("num-attention-heads", 1),
                       layers = a.positive("num-layers", 0);
    const bool is_gated = a.has("swiglu");
    if (is_rms && !is_gated)
        a.error("normalization", "--normalization RMSNorm without --swiglu is no model that is known here",
                "give --model");
    model["family"] = experts > 0 ? "mixtral" : is_rms ? "llama" : "gpt";
    model["name"] = "megatron-lm";
    model["layers"] = layers;
    model["hidden"] = hidden;
    model["heads"] = heads;
    if (a.has("group-query-attention")) model["kv_heads"] = a.positive("num-query-groups", 1);
    if (const std::int64_t channels = a.positive("kv-channels", 0); channels > 0)
        model["head_dimension"] = channels;
    // Megatron's own default: 4 h, or 2/3 of it with a gate, in multiples of 64.
    const std::int64_t ffn =
        a.positive("ffn-hidden-size", is_gated ? 4 * hidden * 2 / 3 / 64 * 64 : 4 * hidden);
    model["ffn"] = ffn;
    model["vocabulary"] = a.positive("vocab-size", 0);
    model["sequence_length"] = options.sequence_length.value_or(a.positive("seq-length", 0));
    const std::int64_t positions = a.positive("max-position-embeddings", 0);
    if (positions > 0) model["max_positions"] = positions;
    const bool is_rotary = a.text("position-embedding-type", "learned_absolute") == "rope" ||
                           a.has("use-rotary-position-embeddings");
    model["position_encoding"] = is_rotary ? "rotary" : "learned";
    if (is_rotary) {
        model["rotary_base"] = a.real("rotary-base", 10000);
        model["rotary_fraction"] = a.real("rotary-percent", 1);
    }
    if (is_gated) model["activation"] = "gated_silu";
    model["epsilon"] = a.real("norm-epsilon", 1e-5);
    model["tied_embeddings"] = !a.has("untie-embeddings-and-output-weights");
    const bool has_bias = !a.has("disable-bias-linear");
    model["qkv_bias"] = has_bias || a.has("add-qkv-bias");
    model["attention_output_bias"] = has_bias;
    model["mlp_bias"] = has_bias;
    model["dropout"] = a.real("hidden-dropout", 0.1);
    model["embedding_dropout"] = model.find("dropout")->number();
    model["attention_dropout"] = a.real("attention-dropout", 0.1);
    if (experts > 0) {
        model["experts"] = experts;
        model["experts_per_token"] = a.positive("moe-router-topk", 2);
        if (const double factor = a.real("moe-expert-capacity-factor", 0); factor > 0)
            model["capacity_factor"] = factor;
        if (const double loss = a.real("moe-aux-loss-coeff", 0); loss > 0) model["auxiliary_loss"] = loss;
    }
    for (const char* key : {"layers", "hidden", "vocabulary", "sequence_length"})
        if (model.find(key)->integer() == 0 && options.model.empty())
            a.error("", fmt::format("the model's {} is not among the arguments", key), "give --model");
    if (options.model.empty()) return model;
    core::Value named = core::Value::table();
    named["name"] = options.model;
    if (model.find("sequence_length")->integer() > 0)
        named["sequence_length"] = *model.find("sequence_length");
    return named;
}

void read_partition(Arguments& a, std::int64_t layers, schedule::Plan& plan) {
    if (const std::int64_t per_stage = a.positive("num-layers-per-virtual-pipeline-stage", 0);
        per_stage > 0) {
        if (layers == 0 || layers % (per_stage * plan.layout.pipeline) != 0)
            a.error("num-layers-per-virtual-pipeline-stage",
                    fmt::format("{} layers do not divide into stages of {} on {} ranks", layers, per_stage,
                                plan.layout.pipeline),
                    "give --num-layers and a divisor");
        else plan.virtual_stages = static_cast<int>(layers / (per_stage * plan.layout.pipeline));
    }
    plan.virtual_stages =
        static_cast<int>(a.positive("num-virtual-stages-per-pipeline-rank", plan.virtual_stages));
    if (a.has("pipeline-model-parallel-layout")) {
        const auto first = read_megatron_layout(a.text("pipeline-model-parallel-layout"));
        if (!first || first->size() % static_cast<std::size_t>(plan.layout.pipeline) != 0) {
            a.error(
                "pipeline-model-parallel-layout",
                "this layout is no partition into an embedding, layers and a loss over the pipeline's ranks",
                "for example Ett|tt|ttL");
            return;
        }
        plan.partition.first_units = *first;
        plan.virtual_stages = static_cast<int>(first->size()) / plan.layout.pipeline;
    } else if (plan.layout.pipeline > 1 && layers > 0) {
        // Megatron's own partition: equal numbers of layers, but for the first and last where they are given.
        const std::int64_t stages = plan.stages();
        const std::int64_t first = a.positive("decoder-first-pipeline-num-layers", 0),
                           last = a.positive("decoder-last-pipeline-num-layers", 0);
        const std::int64_t others = stages - (first > 0) - (last > 0), rest = layers - first - last;
        if (rest < others || (others > 0 && rest % others != 0) || (others == 0 && rest != 0)) {
            a.error("num-layers",
                    fmt::format("{} layers do not divide evenly over {} stages", layers, stages),
                    "give a number of layers that does");
            return;
        }
        std::int64_t begin = 1;
        for (std::int64_t stage = 0; stage < stages; ++stage) {
            plan.partition.first_units.push_back(static_cast<std::int32_t>(stage == 0 ? 0 : begin));
            begin += stage == 0 && first > 0 ? first : stage == stages - 1 && last > 0 ? last : rest / others;
        }
    }
    if (plan.virtual_stages > 1) plan.schedule = "interleaved-1f1b";
}

void read_precision(Arguments& a, schedule::Precision& precision) {
    const bool bf16 = a.has("bf16"), fp16 = a.has("fp16");
    if (bf16 && fp16) a.error("fp16", "--fp16 and --bf16 cannot be given together", "keep one");
    const core::DataType type = bf16   ? core::DataType::bf16
                                : fp16 ? core::DataType::fp16
                                       : core::DataType::fp32;
    const bool reduces_in_bf16 = a.has("grad-reduce-in-bf16"),
               accumulates_in_fp32 = a.has("accumulate-allreduce-grads-in-fp32");
    const core::DataType gradients =
        (bf16 && !reduces_in_bf16) || accumulates_in_fp32 ? core::DataType::fp32 : type;
    precision = {a.has("fp8-format") ? core::DataType::fp8 : type, type, gradients, bf16 || fp16};
}

void refuse_what_plans_lack(Arguments& a) {
    if (a.positive("expert-tensor-parallel-size", 1) > 1)
        a.error("expert-tensor-parallel-size",
                "--expert-tensor-parallel-size above 1 has no counterpart in a plan",
                "experts are divided as the rest of the model");
    for (const char* name : {"optimizer-cpu-offload", "cpu-offloading", "use-torch-fsdp2", "use-custom-fsdp",
                             "use-megatron-fsdp", "data-parallel-sharding-strategy"})
        if (a.has(name))
            a.error(name, fmt::format("--{} is not read", name),
                    "remove it, and say it in the plan where it can");
}

}  // namespace

std::optional<schedule::PlanFile> read_megatron(const std::string& text, const std::string& path,
                                                const ImportOptions& options,
                                                core::Diagnostics& diagnostics) {
    const std::size_t errors = diagnostics.error_count();
    Arguments a(text, path, diagnostics);
    if (!a.has("num-layers") && !a.has("tensor-model-parallel-size") &&
        !a.has("pipeline-model-parallel-size") && !a.has("micro-batch-size")) {
        diagnostics.error({path, 1, 1}, "", "no argument of Megatron-LM is in this file",
                          "give the arguments of pretrain_gpt.py");
        return std::nullopt;
    }
    // The launcher's arguments, when the same script contains them.
    ImportOptions placed = options;
    if (!placed.nodes) placed.nodes = a.has("nnodes") ? a.integer("nnodes") : std::nullopt;
    if (!placed.processes_per_node && (a.has("nproc-per-node")))
        placed.processes_per_node = a.integer("nproc-per-node");
    core::Value model = read_model(a, options);
    placed.model = "megatron-lm";  // the arguments describe it
    ImportLocation place = import_place({}, placed, path, diagnostics);
    place.file.model = std::move(model);
    schedule::Plan& plan = place.file.plan;
    plan.layout.tensor = static_cast<int>(a.positive("tensor-model-parallel-size", 1));
    plan.layout.pipeline = static_cast<int>(a.positive("pipeline-model-parallel-size", 1));
    plan.layout.order = a.has("use-tp-pp-dp-mapping") ? "DPT" : "PDT";
    plan.sequence_parallel = a.has("sequence-parallel");
    refuse_what_plans_lack(a);
    if (diagnostics.error_count() > errors) return std::nullopt;
    read_partition(a, a.positive("num-layers", 0), plan);
    plan.group_size = static_cast<int>(a.positive("microbatch-group-size-per-virtual-pipeline-stage", 0));
    const std::int64_t replica = std::int64_t{plan.layout.tensor} * plan.layout.pipeline;
    if (place.processes_per_node == 0 || place.processes() % replica != 0) {
        a.error("tensor-model-parallel-size",
                place.processes_per_node == 0
                    ? std::string("how many processes there are is not in this file")
                    : fmt::format("{} processes cannot be divided into replicas of {}", place.processes(),
                                  replica),
                "give --instance and --nodes, or --processes-per-node");
        return std::nullopt;
    }
    plan.layout.data = static_cast<int>(place.processes() / replica);
    plan.micro_batch = static_cast<int>(options.micro_batch.value_or(a.positive("micro-batch-size", 1)));
    plan.layout.context = static_cast<int>(a.positive("context-parallel-size", 1));
    plan.layout.expert = static_cast<int>(a.positive("expert-model-parallel-size", 1));
    if (plan.layout.data % plan.layout.context != 0) {
        a.error("context-parallel-size",
                fmt::format("{} ranks of the data axis are no multiple of it", plan.layout.data),
                "use a divisor");
        plan.layout.context = 1;
    }
    const std::int64_t share = std::int64_t{plan.micro_batch} * plan.layout.replicas(),
                       global = a.positive("global-batch-size", share);
    if (global % share != 0)
        a.error("global-batch-size",
                fmt::format("global batch {} is not a multiple of micro-batch {} x {} replicas", global,
                            plan.micro_batch, plan.layout.replicas()),
                "mend one of them");
    else plan.micro_batches = static_cast<int>(global / share);

    const std::string granularity =
        a.text("recompute-granularity", a.has("recompute-activations") ? "selective" : "none");
    if (granularity == "full") plan.recompute = schedule::Recompute::full;
    else if (granularity == "selective") plan.recompute = schedule::Recompute::selective;
    if (granularity == "full" &&
        (a.text("recompute-method", "uniform") != "uniform" || a.positive("recompute-num-layers", 1) != 1))
        a.error("recompute-method",
                "full recomputation of some layers, or of several at once, has no counterpart in a plan",
                "use --recompute-method uniform --recompute-num-layers 1");
    if (a.has("use-distributed-optimizer")) {
        plan.sharding = schedule::Sharding::optimizer;
        const std::int64_t instances = a.positive("num-distributed-optimizer-instances", 1);
        if (plan.layout.data % instances != 0)
            a.error("num-distributed-optimizer-instances",
                    fmt::format("{} instances do not divide {} replicas", instances, plan.layout.data),
                    "use a divisor");
        else if (instances > 1) plan.shard_degree = plan.layout.data / static_cast<int>(instances);
    }
    read_precision(a, plan.precision);
    plan.overlaps_gradient_reduction = a.has("overlap-grad-reduce");
    plan.overlaps_parameter_gathering = a.has("overlap-param-gather");
    if (const std::int64_t bucket = a.positive("ddp-bucket-size", 0); bucket > 0)
        plan.gradient_bucket =
            core::Bytes(static_cast<double>(bucket) * core::size_of(plan.precision.gradients).value);
    plan.attention = a.has("use-flash-attn")             ? model::AttentionImplementation::flash
                     : a.has("no-masked-softmax-fusion") ? model::AttentionImplementation::unfused
                                                         : model::AttentionImplementation::fused_softmax;
    plan.fused_cross_entropy = a.has("cross-entropy-loss-fusion");
    schedule::Optimizer& o = plan.optimizer;
    o.kind =
        a.text("optimizer", "adam") == "sgd" ? schedule::OptimizerKind::sgd : schedule::OptimizerKind::adamw;
    o.learning_rate = a.real("lr", o.learning_rate);
    o.weight_decay = a.real("weight-decay", 0.01);  // Megatron's defaults
    if (o.kind == schedule::OptimizerKind::sgd) o.momentum = a.real("sgd-momentum", 0.9);
    else {
        o.beta1 = a.real("adam-beta1", 0.9);
        o.beta2 = a.real("adam-beta2", 0.999);
        o.epsilon = a.real("adam-eps", 1e-8);
    }
    place.file.training.steps = static_cast<int>(
        std::min<std::int64_t>(1 << 20, a.positive("train-iters", place.file.training.steps)));
    place.file.training.seed = static_cast<std::uint64_t>(a.positive("seed", 1234));
    for (const char* known : {"use-mcore-models", "make-vocab-size-divisible-by", "tokenizer-type",
                              "mock-data", "transformer-impl", "lr-decay-style", "clip-grad"})
        a.has(known);
    a.tell_unread();
    return diagnostics.error_count() > errors ? std::nullopt : std::optional(place.file);
}

}  // namespace interop
