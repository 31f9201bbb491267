#include "interop/megatron/model.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <vector>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "core/index/integers.h"

namespace interop {

namespace {

// A list expression of Python's as --moe-layer-freq takes it: lists of 0 and 1 in brackets, added and
// repeated, with parentheses: ([0]*3+[1]*58).
class PatternReader {
public:
    explicit PatternReader(std::string_view text) : rest_(text) {}
    // Nothing where it is none, or is longer than any model.
    std::optional<std::vector<bool>> read() {
        const std::optional<std::vector<bool>> all = sum(0);
        skip();
        return rest_.empty() ? all : std::nullopt;
    }

private:
    static constexpr std::size_t most_layers = 1 << 16;
    static constexpr int deepest = 16;

    void skip() {
        while (!rest_.empty() && rest_.front() == ' ') rest_.remove_prefix(1);
    }
    bool takes(char c) {
        skip();
        if (rest_.empty() || rest_.front() != c) return false;
        rest_.remove_prefix(1);
        return true;
    }
    std::optional<std::size_t> number() {
        skip();
        std::size_t value = 0;
        const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
        if (error != std::errc() || value > most_layers) return std::nullopt;
        rest_.remove_prefix(std::size_t(end - rest_.data()));
        return value;
    }
    std::optional<std::vector<bool>> sum(int depth) {
        std::optional<std::vector<bool>> all = product(depth);
        while (all && takes('+')) {
            const std::optional<std::vector<bool>> next = product(depth);
            if (!next || all->size() + next->size() > most_layers) return std::nullopt;
            all->insert(all->end(), next->begin(), next->end());
        }
        return all;
    }
    std::optional<std::vector<bool>> product(int depth) {
        const std::optional<std::vector<bool>> once = list(depth);
        if (!once || !takes('*')) return once;
        const std::optional<std::size_t> times = number();
        if (!times || once->size() * *times > most_layers) return std::nullopt;
        std::vector<bool> all;
        for (std::size_t i = 0; i < *times; ++i) all.insert(all.end(), once->begin(), once->end());
        return all;
    }
    std::optional<std::vector<bool>> list(int depth) {
        if (takes('(')) {
            if (depth == deepest) return std::nullopt;
            std::optional<std::vector<bool>> inner = sum(depth + 1);
            return takes(')') ? inner : std::nullopt;
        }
        if (!takes('[')) return std::nullopt;
        std::vector<bool> items;
        do {
            const std::optional<std::size_t> item = number();
            if (!item || *item > 1) return std::nullopt;
            items.push_back(*item == 1);
        } while (takes(','));
        return takes(']') ? std::optional(items) : std::nullopt;
    }

    std::string_view rest_;
};

// Of tokenizers whose vocabulary is always the same: GPT-2's, Llama 2's and Llama 3's.
std::int64_t vocabulary_of(const std::string& tokenizer) {
    if (tokenizer == "GPT2BPETokenizer") return 50257;
    if (tokenizer == "Llama2Tokenizer") return 32000;
    if (tokenizer == "Llama3Tokenizer") return 128256;
    return 0;
}

class ModelReader {
public:
    ModelReader(MegatronArguments& arguments, const ImportOptions& options)
        : a_(arguments), options_(options) {}

    core::Value read() {
        refuse_what_descriptions_lack();
        dimensions();
        positions();
        norms_and_biases();
        attention();
        mixture();
        if (options_.model.empty()) return std::move(model_);
        core::Value named = core::Value::table();
        named["name"] = options_.model;
        for (const char* key : {"sequence_length", "vocabulary"})
            if (model_.find(key)->integer() > 0) named[key] = *model_.find(key);
        return named;
    }

private:
    void refuse_what_descriptions_lack() {
        for (const char* name :
             {"squared-relu", "openai-gelu", "apply-residual-connection-post-layernorm", "encoder-num-layers",
              "decoder-num-layers", "encoder-seq-length", "decoder-seq-length", "hybrid-layer-pattern",
              "hybrid-override-pattern", "spec", "heterogeneous-layers-config-path",
              "experimental-attention-variant", "linear-attention-freq", "qk-l2-norm", "no-rope-freq",
              "enable-hyper-connections", "moe-latent-size", "attention-output-gate"})
            if (const bool is_given = a_.has(name); is_given && options_.model.empty())
                a_.error(name, fmt::format("--{} describes a model that is not known here", name),
                         "give --model");
    }

    void dimensions() {
        is_rms_ = a_.text("normalization", "LayerNorm") == "RMSNorm";
        is_clamped_ = a_.has("quick-geglu");
        is_gated_ = a_.has("swiglu") || is_clamped_;
        experts_ = a_.positive("num-experts", 0);
        is_latent_ = a_.has("multi-latent-attention");
        const std::int64_t hidden = a_.positive("hidden-size", 0),
                           heads = a_.positive("num-attention-heads", 1);
        layers_ = a_.positive("num-layers", 0);
        model_["name"] = "megatron-lm";
        model_["layers"] = layers_;
        model_["hidden"] = hidden;
        model_["heads"] = heads;
        if (a_.has("group-query-attention") && !is_latent_)
            model_["kv_heads"] = a_.positive("num-query-groups", 1);
        // Megatron's own default: 4 h, or 2/3 of it with a gate, in multiples of 64.
        model_["ffn"] = a_.positive("ffn-hidden-size", is_gated_ ? 4 * hidden * 2 / 3 / 64 * 64 : 4 * hidden);
        model_["vocabulary"] = padded(a_.positive(
            "vocab-size",
            vocabulary_of(a_.text("tokenizer-type", a_.has("merge-file") ? "GPT2BPETokenizer" : ""))));
        model_["sequence_length"] = options_.sequence_length.value_or(a_.positive("seq-length", 0));
        if (options_.model.empty())
            for (const char* key : {"layers", "hidden", "vocabulary", "sequence_length"})
                if (model_.find(key)->integer() == 0)
                    a_.error("", fmt::format("the model's {} is not among the arguments", key),
                             key == std::string("vocabulary")
                                 ? "its tokenizer knows it: add --vocab-size, or give --model"
                                 : "give --model");
    }

    // Rows of the embedding: vocab_size_with_padding in Megatron-LM's build_tokenizer.py (0.20.0). 0:
    // unknown.
    std::int64_t padded(std::int64_t vocabulary) {
        constexpr std::int64_t divisible_by = 128;  // Megatron-LM's default
        const std::int64_t multiple = a_.positive("make-vocab-size-divisible-by", divisible_by) *
                                      a_.positive("tensor-model-parallel-size", 1);
        const std::int64_t given = a_.positive("padded-vocab-size", 0);
        return given > 0 ? given : (vocabulary + multiple - 1) / multiple * multiple;
    }

    void positions() {
        if (const std::int64_t positions = a_.positive("max-position-embeddings", 0); positions > 0)
            model_["max_positions"] = positions;
        const std::string type = a_.text("position-embedding-type", "learned_absolute");
        const bool is_rotary =
            type == "rope" || type == "yarn" || a_.has("use-rotary-position-embeddings") || is_latent_;
        if (!is_rotary && (a_.has("no-position-embedding") || type != "learned_absolute"))
            a_.error("position-embedding-type",
                     fmt::format("positions {} are not known here", core::in_quotes(type)),
                     "learned_absolute or rope");
        a_.has("no-position-embedding");
        model_["position_encoding"] = is_rotary ? "rotary" : "learned";
        if (!is_rotary) return;
        model_["rotary_base"] = a_.real("rotary-base", 10000);
        model_["rotary_fraction"] = a_.real("rotary-percent", 1);
    }

    void norms_and_biases() {
        if (is_rms_ && !is_gated_ && options_.model.empty())
            a_.error("normalization",
                     "--normalization RMSNorm without --swiglu is no model that is known here",
                     "give --model");
        if (is_gated_) model_["activation"] = "gated_silu";
        // --layernorm-epsilon was the name before 2024.
        model_["epsilon"] = a_.real("norm-epsilon", a_.real("layernorm-epsilon", 1e-5));
        model_["tied_embeddings"] = !a_.has("untie-embeddings-and-output-weights");
        const bool has_bias = !a_.has("disable-bias-linear"), has_own_bias = a_.has("add-qkv-bias");
        model_["qkv_bias"] = has_bias || has_own_bias;
        model_["attention_output_bias"] = has_bias;
        model_["mlp_bias"] = has_bias;
        if (has_bias && experts_ > 0) model_["router_bias"] = model_["expert_bias"] = true;
        model_["dropout"] = a_.real("hidden-dropout", 0.1);
        model_["embedding_dropout"] = model_.find("dropout")->number();
        model_["attention_dropout"] = a_.real("attention-dropout", 0.1);
        if (const std::int64_t modules = a_.positive("mtp-num-layers", 0); modules > 0)
            model_["prediction_layers"] = modules;
    }

    void attention() {
        const std::int64_t channels = a_.positive("kv-channels", 0);
        if (is_latent_) {
            // Defaults of the parser: heads of 128 + 64, keys and values of rank 32.
            const std::int64_t rotated = a_.positive("qk-pos-emb-head-dim", 64);
            model_["head_dimension"] = a_.positive("qk-head-dim", 128) + rotated;
            model_["rotary_dimension"] = rotated;
            model_["value_dimension"] = a_.positive("v-head-dim", 128);
            model_["key_value_rank"] = a_.positive("kv-lora-rank", 32);
            if (const std::int64_t rank = a_.positive("q-lora-rank", 0); rank > 0)
                model_["query_rank"] = rank;
            // The norms of the latents are part of latent attention here.
            a_.has("qk-layernorm");
        } else {
            if (channels > 0) model_["head_dimension"] = channels;
            if (a_.has("qk-layernorm")) {
                model_["query_key_norm"] = "per_head";
                model_["query_key_norm_kind"] = is_rms_ ? "rms_norm" : "layer_norm";
            }
        }
        if (a_.text("softmax-type", "vanilla") == "learnable") model_["attention_sinks"] = true;
        else if (a_.text("softmax-type", "vanilla") != "vanilla")
            a_.error("softmax-type", fmt::format("--softmax-type {} is not known", a_.text("softmax-type")),
                     "vanilla or learnable");
        window();
    }

    // "(127, 0)": so many tokens before each beside itself.
    void window() {
        if (!a_.has("window-size")) {
            a_.has("window-attn-skip-freq");
            return;
        }
        const std::string text = a_.text("window-size");
        const std::size_t digit = text.find_first_of("0123456789"), comma = text.find(',');
        std::int64_t before = 0;
        if (digit == std::string::npos || comma == std::string::npos || digit > comma ||
            std::from_chars(text.data() + digit, text.data() + comma, before).ec != std::errc() ||
            before < 1) {
            a_.error("window-size", fmt::format("--window-size {} is no pair", core::in_quotes(text)),
                     "for example 127,0");
            return;
        }
        model_["window"] = before + 1;
        // Of every so many layers the last attends to all.
        if (const auto interval = a_.integer("window-attn-skip-freq"); interval && *interval > 0)
            model_["global_interval"] = *interval;
    }

    void mixture() {
        if (is_clamped_ && experts_ == 0 && options_.model.empty())
            a_.error("quick-geglu", "--quick-geglu is known in experts alone", "give --model");
        const bool is_plain = experts_ == 0 || !is_of_the_stack();
        if (experts_ == 0 && is_latent_) model_["family"] = "stack";
        else if (experts_ == 0)
            model_["family"] = model_.find("query_key_norm") || model_.find("window") ||
                                       model_.find("attention_sinks") || model_.find("prediction_layers")
                                   ? "stack"
                               : is_rms_ ? "llama"
                                         : "gpt";
        else model_["family"] = is_plain ? "mixtral" : "stack";
        if (model_.find("family")->string() == "stack") model_["norm"] = is_rms_ ? "rms_norm" : "layer_norm";
        if (experts_ == 0) return;
        model_["experts"] = experts_;
        model_["experts_per_token"] = a_.positive("moe-router-topk", 2);
        if (const double factor = a_.real("moe-expert-capacity-factor", 0); factor > 0)
            model_["capacity_factor"] = factor;
        a_.text("moe-token-drop-policy");
        if (a_.has("moe-pad-expert-input-to-capacity") && !model_.find("capacity_factor"))
            a_.error("moe-pad-expert-input-to-capacity", "padding to a capacity needs a capacity",
                     "give --moe-expert-capacity-factor");
        if (const double loss = a_.real("moe-aux-loss-coeff", 0); loss > 0) model_["auxiliary_loss"] = loss;
        if (const std::int64_t width = a_.positive("moe-ffn-hidden-size", 0); width > 0) {
            if (model_.find("family")->string() == "mixtral") model_["ffn"] = width;
            else model_["expert_ffn"] = width;
        }
        dispatch();
        if (is_plain) return;
        if (const std::int64_t shared = a_.positive("moe-shared-expert-intermediate-size", 0); shared > 0)
            model_["shared_expert_ffn"] = shared;
        if (a_.has("moe-shared-expert-gate")) model_["shared_expert_gate"] = true;
        clamped_gate();
        router();
        which_layers();
    }

    // How tokens reach their experts, and how these work: a Program has one way each.
    void dispatch() {
        // Without the argument Megatron-LM gathers all tokens
        // (megatron/core/transformer/transformer_config.py, 0.20.0).
        const std::string dispatcher = a_.text("moe-token-dispatcher-type", "allgather");
        if (dispatcher != "allgather" && dispatcher != "alltoall" && dispatcher != "flex")
            a_.error("moe-token-dispatcher-type",
                     fmt::format("--moe-token-dispatcher-type {} is unknown", core::in_quotes(dispatcher)),
                     "Megatron-LM has allgather, alltoall and flex");
        else if (dispatcher != "alltoall" && a_.positive("expert-model-parallel-size", 1) > 1)
            a_.warn("moe-token-dispatcher-type",
                    fmt::format("tokens that are dispatched by {} are priced as exchanged all to all",
                                dispatcher),
                    "--moe-token-dispatcher-type alltoall is what is priced");
        if (!a_.has("moe-grouped-gemm"))
            a_.warn("moe-grouped-gemm",
                    "experts of a rank that work one after another are priced as one grouped product",
                    "--moe-grouped-gemm is what is priced");
    }

    // Is there anything that Mixtral's description does not say?
    bool is_of_the_stack() {
        bool is = is_latent_ || model_.find("expert_bias") != nullptr;
        for (const char* name :
             {"moe-shared-expert-intermediate-size", "moe-layer-freq", "moe-router-num-groups",
              "moe-router-group-topk", "moe-router-topk-scaling-factor", "moe-router-pre-softmax",
              "moe-router-score-function", "mtp-num-layers", "qk-layernorm", "window-size", "softmax-type",
              "quick-geglu", "moe-shared-expert-gate"})
            is = a_.has(name) || is;
        return is;
    }

    void clamped_gate() {
        if (!is_clamped_) return;
        const double limit = a_.real("activation-func-clamp-value", 0),
                     offset = a_.real("glu-linear-offset", 0);
        if (limit > 0 && offset == 1) model_["expert_activation_limit"] = limit;
        else if (options_.model.empty())
            a_.error("quick-geglu", "--quick-geglu is known as gpt-oss has it alone",
                     "--glu-linear-offset 1 and --activation-func-clamp-value, or give --model");
    }

    void router() {
        const std::string scores = a_.text("moe-router-score-function", "softmax");
        if (scores != "softmax" && scores != "sigmoid")
            a_.error("moe-router-score-function",
                     fmt::format("scores by {} are not known", core::in_quotes(scores)),
                     "softmax or sigmoid");
        const bool is_sigmoid = scores == "sigmoid";
        if (is_sigmoid) model_["router_scores"] = "sigmoid";
        // Softmax over all experts leaves the weights of the chosen as they are; over the chosen alone, and
        // with sigmoids, they add up to one.
        if (a_.has("moe-router-pre-softmax") && !is_sigmoid) model_["normalized_expert_weights"] = false;
        if (const double factor = a_.real("moe-router-topk-scaling-factor", 0); factor > 0)
            model_["routed_scale"] = factor;
        if (const std::int64_t groups = a_.positive("moe-router-num-groups", 0); groups > 0) {
            model_["expert_groups"] = groups;
            model_["chosen_groups"] = a_.positive("moe-router-group-topk", groups);
        }
    }

    void which_layers() {
        if (!a_.has("moe-layer-freq")) return;
        const std::string text = a_.text("moe-layer-freq");
        if (!text.empty() && text.find_first_not_of("0123456789") == std::string::npos) {
            // One mixture in every so many layers, the first of them.
            if (const std::int64_t interval = a_.positive("moe-layer-freq", 1); interval > 1) {
                core::Value layers = core::Value::array();
                for (std::int64_t layer = 0; layer < layers_; layer += interval) layers.append(layer);
                model_["mixture_layers"] = std::move(layers);
            }
            return;
        }
        const std::optional<std::vector<bool>> pattern = PatternReader(text).read();
        if (!pattern || core::count_of(*pattern) != layers_) {
            a_.error("moe-layer-freq",
                     pattern ? fmt::format("--moe-layer-freq {} names {} layers of {}", text, pattern->size(),
                                           layers_)
                             : fmt::format("--moe-layer-freq {} is no list of layers", core::in_quotes(text)),
                     "a number, or a list as long as the model: [0]*3+[1]*58");
            return;
        }
        if (std::find(pattern->begin(), pattern->end(), true) == pattern->end())
            return a_.error("moe-layer-freq", "no layer has experts", "leave --num-experts out");
        core::Value layers = core::Value::array();
        for (std::int64_t layer = 0; const bool is_mixture : *pattern) {
            if (is_mixture) layers.append(layer);
            ++layer;
        }
        if (layers.size() < pattern->size()) model_["mixture_layers"] = std::move(layers);
    }

    MegatronArguments& a_;
    const ImportOptions& options_;
    core::Value model_ = core::Value::table();
    bool is_rms_ = false, is_gated_ = false, is_latent_ = false;
    bool is_clamped_ = false;  // gpt-oss's gate: x sigmoid(1.702 x) of bounded values
    std::int64_t experts_ = 0, layers_ = 0;
};

}  // namespace

core::Value read_megatron_model(MegatronArguments& arguments, const ImportOptions& options) {
    return ModelReader(arguments, options).read();
}

}  // namespace interop
