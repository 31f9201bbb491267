#include "model/reader/huggingface/family_table.h"

#include <algorithm>
#include <array>

#include "model/reader/huggingface/family_rule.h"
#include "model/reader/huggingface/family_specials.h"

namespace model {

namespace {

Rules operator+(Rules a, const Rules& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
}

// Names that nearly all families share.
const Rules dimensions = {need("hidden_size", "hidden", hidden_range),
                          need("num_hidden_layers", "layers", layer_range),
                          need("num_attention_heads", "heads", head_range),
                          need("vocab_size", "vocabulary", vocabulary_range),
                          need("intermediate_size", "ffn", width_range),
                          need("max_position_embeddings", "max_positions", token_range),
                          real("attention_dropout", "attention_dropout", 0)};
const Rules grouped = {may("num_key_value_heads", "kv_heads", head_range)};
// Classes whose default is another number than that of the heads.
const Rules must_group = {need("num_key_value_heads", "kv_heads", head_range)};
const Rules head_dimension = {may("head_dim", "head_dimension", head_dimension_range)};
const Rules untied = {flag("tie_word_embeddings", "tied_embeddings", false)};
const Rules tied = {flag("tie_word_embeddings", "tied_embeddings", true)};
const Rules swiglu = {gated("hidden_act", "silu")};
// Four linears of attention with biases or without.
Rules attention_bias(bool fallback) {
    return {flag("attention_bias", "qkv_bias", fallback),
            flag("attention_bias", "attention_output_bias", fallback)};
}
Rules qkv_bias(const char* key, bool fallback) { return {flag(key, "qkv_bias", fallback)}; }
Rules rms(double epsilon) { return {real("rms_norm_eps", "epsilon", epsilon)}; }
Rules layer_norms(const char* key, const char* kind) {
    return {own("norm", kind), real(key, "epsilon", 1e-5)};
}
const Rules all_biases = {own("qkv_bias", true), own("attention_output_bias", true), own("mlp_bias", true)};
const Rules norms_per_head = {own("query_key_norm", "per_head")};
const Rules norms_of_all_heads = {own("query_key_norm", "all_heads")};
const Rules llama_like = dimensions + head_dimension + swiglu;

const Rules latent = {may("q_lora_rank", "query_rank", {0, width_range.greatest}),
                      integer("kv_lora_rank", "key_value_rank", 512, width_range),
                      integer("v_head_dim", "value_dimension", 128, head_dimension_range),
                      flag("attention_bias", "latent_bias", false),
                      flag("attention_bias", "attention_output_bias", false),
                      own("qkv_bias", false),
                      harmless("qk_head_dim"),
                      harmless("head_dim"),
                      harmless("rope_interleave"),
                      harmless("ep_size"),
                      harmless("seq_aux"),
                      harmless("aux_loss_alpha"),
                      harmless("scoring_func"),
                      harmless("topk_method"),
                      harmless("num_nextn_predict_layers")};
Rules later_mixtures(std::int64_t dense, bool normalized) {
    return {need("moe_intermediate_size", "expert_ffn", width_range),
            need("n_routed_experts", "experts", expert_range),
            need("num_experts_per_tok", "experts_per_token", expert_range),
            integer("first_k_dense_replace", "dense_layers_first", dense, {0, layer_range.greatest}),
            flag("norm_topk_prob", "normalized_expert_weights", normalized),
            real("routed_scaling_factor", "routed_scale", 1.0)};
}

struct Family {
    const char* model_type;
    Rules rules;
    void (*special)(ConfigMapper&) = nullptr;  // what no single key tells, after the rules
};

const std::vector<Family>& families() {
    static const Rules moe = {need("moe_intermediate_size", "expert_ffn", width_range),
                              need("num_experts_per_tok", "experts_per_token", expert_range),
                              flag("norm_topk_prob", "normalized_expert_weights", false)};
    static const Rules gemma_like =
        dimensions + rms(1e-6) + tied + attention_bias(false) +
        Rules{integer("head_dim", "head_dimension", 256, head_dimension_range),
              only("use_bidirectional_attention", false, "attention without a causal mask")};
    static const Rules granite_like = llama_like + grouped + rms(1e-6) + untied + attention_bias(false) +
                                      Rules{real("embedding_multiplier", "embedding_scale", 1),
                                            real("attention_multiplier", "score_scale", 1),
                                            real("residual_multiplier", "residual_scale", 1)};
    static const Rules cohere_like = llama_like + grouped + tied + attention_bias(false) +
                                     layer_norms("layer_norm_eps", "layer_norm_without_shift") +
                                     Rules{own("parallel_residual", true), own("shared_norm", true),
                                           real("logit_scale", "logit_scale", 0.0625)};
    static const Rules glm_like = dimensions + swiglu + must_group + untied +
                                  qkv_bias("attention_bias", true) +
                                  Rules{integer("head_dim", "head_dimension", 128, head_dimension_range)};
    static const Rules olmo_like = llama_like + grouped + untied + attention_bias(false);
    static const std::vector<Family> list = {
        {"cohere", cohere_like, family::cohere},
        {"cohere2", cohere_like, family::cohere2},
        {"dbrx",
         {need("d_model", "hidden", hidden_range), need("n_layers", "layers", layer_range),
          need("n_heads", "heads", head_range), need("vocab_size", "vocabulary", vocabulary_range),
          need("max_seq_len", "max_positions", token_range), own("norm", "layer_norm_without_shift"),
          real("resid_pdrop", "dropout", 0), real("emb_pdrop", "embedding_dropout", 0),
          flag("tie_word_embeddings", "tied_embeddings", false)},
         family::dbrx},
        {"deepseek_v2",
         dimensions + swiglu + rms(1e-6) + untied + latent + later_mixtures(0, false) +
             Rules{flag("mlp_bias", "mlp_bias", false)},
         family::deepseek},
        {"deepseek_v3",
         dimensions + swiglu + rms(1e-6) + untied + latent + later_mixtures(3, true) +
             Rules{own("router_scores", "sigmoid")},
         family::deepseek},
        {"falcon",
         {need("hidden_size", "hidden", hidden_range), need("vocab_size", "vocabulary", vocabulary_range),
          own("norm", "layer_norm"), real("layer_norm_epsilon", "epsilon", 1e-5),
          only("apply_residual_connection_post_layernorm", false, "the residual taken after the norm"),
          plain("activation", "gelu"), real("hidden_dropout", "dropout", 0),
          real("attention_dropout", "attention_dropout", 0),
          flag("tie_word_embeddings", "tied_embeddings", true)},
         family::falcon},
        {"gemma", gemma_like + must_group, family::gemma},
        {"gemma2", gemma_like + must_group + Rules{own("norm_place", "both")}, family::gemma2},
        {"gemma3_text", gemma_like + must_group + norms_per_head + Rules{own("norm_place", "both")},
         family::gemma3},
        {"glm", glm_like + rms(1.5625e-7), family::half_rotary},
        {"glm4", glm_like + rms(1.5625e-7) + Rules{own("norm_place", "both")}, family::half_rotary},
        {"glm4_moe",
         llama_like + must_group + untied + rms(1e-5) + qkv_bias("attention_bias", false) +
             later_mixtures(1, true) + Rules{own("router_scores", "sigmoid")},
         family::glm4_moe},
        {"gpt_bigcode",
         Rules{need("n_embd", "hidden", hidden_range),
               need("n_layer", "layers", layer_range),
               need("n_head", "heads", head_range),
               need("vocab_size", "vocabulary", vocabulary_range),
               need("n_positions", "max_positions", token_range),
               own("position_encoding", "learned"),
               own("norm", "layer_norm"),
               real("layer_norm_epsilon", "epsilon", 1e-5),
               plain("activation_function", "gelu_pytorch_tanh"),
               real("resid_pdrop", "dropout", 0.1),
               real("embd_pdrop", "embedding_dropout", 0.1),
               real("attn_pdrop", "attention_dropout", 0.1),
               flag("tie_word_embeddings", "tied_embeddings", true),
               harmless("num_key_value_heads"),
               harmless("attention_softmax_in_fp32"),
               harmless("scale_attention_softmax_in_fp32"),
               harmless("inference_runner"),
               harmless("max_batch_size"),
               harmless("max_sequence_length"),
               harmless("validate_runner_input"),
               harmless("pre_allocate_kv_cache"),
               harmless("summary_activation"),
               harmless("summary_first_dropout"),
               harmless("summary_proj_to_labels"),
               harmless("summary_type"),
               harmless("summary_use_proj")} +
             all_biases,
         family::gpt_bigcode},
        {"gpt_neo",
         Rules{need("hidden_size", "hidden", hidden_range), need("num_layers", "layers", layer_range),
               need("num_heads", "heads", head_range), need("vocab_size", "vocabulary", vocabulary_range),
               need("max_position_embeddings", "max_positions", token_range),
               own("position_encoding", "learned"), own("norm", "layer_norm"),
               real("layer_norm_epsilon", "epsilon", 1e-5), plain("activation_function", "gelu_new"),
               real("resid_dropout", "dropout", 0), real("embed_dropout", "embedding_dropout", 0),
               real("attention_dropout", "attention_dropout", 0), own("qkv_bias", false),
               own("attention_output_bias", true), own("mlp_bias", true), own_integer("score_scale", 1),
               flag("tie_word_embeddings", "tied_embeddings", true)},
         family::gpt_neo},
        {"gpt_oss",
         dimensions + must_group + rms(1e-5) + untied + attention_bias(true) +
             Rules{integer("head_dim", "head_dimension", 64, head_dimension_range),
                   gated("hidden_act", "silu"), need("num_local_experts", "experts", expert_range),
                   need("num_experts_per_tok", "experts_per_token", expert_range),
                   own("attention_sinks", true), own("router_bias", true), own("expert_bias", true),
                   harmless("swiglu_alpha"), harmless("initial_context_length"),
                   harmless("experts_per_token")},
         family::gpt_oss},
        {"granite", granite_like + Rules{flag("mlp_bias", "mlp_bias", false)}, family::granite},
        {"granitemoe",
         granite_like + Rules{need("num_local_experts", "experts", expert_range),
                              need("num_experts_per_tok", "experts_per_token", expert_range)},
         family::granite},
        {"llama4_text",
         dimensions + swiglu + must_group + rms(1e-5) + untied + attention_bias(false) +
             Rules{integer("head_dim", "head_dimension", 128, head_dimension_range),
                   need("intermediate_size", "expert_ffn", width_range),
                   need("intermediate_size_mlp", "ffn", width_range),
                   need("num_local_experts", "experts", expert_range),
                   integer("num_experts_per_tok", "experts_per_token", 1, expert_range),
                   own("router_scores", "sigmoid"), harmless("attn_scale"), harmless("floor_scale"),
                   harmless("attn_temperature_tuning"), harmless("for_llm_compressor"),
                   harmless("cache_implementation")},
         family::llama4},
        {"modernbert",
         dimensions + Rules{gated("hidden_activation", "gelu"),
                            real("norm_eps", "epsilon", 1e-5),
                            real("embedding_dropout", "embedding_dropout", 0),
                            flag("mlp_bias", "mlp_bias", false),
                            flag("decoder_bias", "head_bias", true),
                            flag("classifier_bias", "head_transform_bias", false),
                            flag("tie_word_embeddings", "tied_embeddings", true),
                            own("causal", false),
                            own("embedding_norm", true),
                            own("first_norm", false),
                            own("head_transform", true),
                            harmless("classifier_pooling"),
                            harmless("deterministic_flash_attn"),
                            harmless("initializer_cutoff_factor"),
                            harmless("sparse_pred_ignore_index"),
                            harmless("sparse_prediction"),
                            harmless("reference_compile"),
                            harmless("repad_logits_with_grad"),
                            harmless("position_embedding_type"),
                            harmless("layer_norm_eps"),
                            harmless("sliding_window")},
         family::modernbert},
        {"olmo", olmo_like + Rules{own("norm", "layer_norm_without_parameters"), own("mlp_bias", false)},
         family::olmo},
        {"olmo2", olmo_like + rms(1e-5) + norms_of_all_heads + Rules{own("norm_place", "behind")},
         family::rotary},
        {"olmo3", olmo_like + rms(1e-5) + norms_of_all_heads + Rules{own("norm_place", "behind")},
         family::olmo3},
        {"olmoe",
         olmo_like + rms(1e-5) + norms_of_all_heads +
             Rules{need("num_experts_per_tok", "experts_per_token", expert_range),
                   flag("norm_topk_prob", "normalized_expert_weights", false)},
         family::olmoe},
        {"phi",
         dimensions + grouped + all_biases + untied + layer_norms("layer_norm_eps", "layer_norm") +
             Rules{plain("hidden_act", "gelu_new"), own("parallel_residual", true), own("shared_norm", true),
                   own("head_bias", true), real("resid_pdrop", "dropout", 0),
                   real("embd_pdrop", "embedding_dropout", 0)},
         family::phi},
        {"phimoe",
         llama_like + must_group + untied + attention_bias(false) +
             layer_norms("rms_norm_eps", "layer_norm") +
             Rules{flag("lm_head_bias", "head_bias", false),
                   need("num_local_experts", "experts", expert_range),
                   need("num_experts_per_tok", "experts_per_token", expert_range)},
         family::phimoe},
        {"qwen2_moe",
         llama_like + must_group + rms(1e-6) + untied + moe + qkv_bias("qkv_bias", true) +
             Rules{need("shared_expert_intermediate_size", "shared_expert_ffn", width_range)},
         family::qwen2_moe},
        {"qwen3",
         dimensions + swiglu + must_group + rms(1e-6) + untied + attention_bias(false) + norms_per_head +
             Rules{integer("head_dim", "head_dimension", 128, head_dimension_range)},
         family::qwen},
        {"qwen3_moe",
         llama_like + must_group + rms(1e-6) + untied + attention_bias(false) + norms_per_head + moe,
         family::qwen3_moe},
        {"seed_oss",
         dimensions + swiglu + must_group + rms(1e-6) + untied + qkv_bias("attention_bias", true) +
             Rules{integer("head_dim", "head_dimension", 128, head_dimension_range),
                   flag("attention_out_bias", "attention_output_bias", false),
                   flag("mlp_bias", "mlp_bias", false), real("residual_dropout", "dropout", 0.1)},
         family::rotary},
        {"smollm3",
         llama_like + must_group + rms(1e-6) + tied + attention_bias(false) +
             Rules{flag("mlp_bias", "mlp_bias", false)},
         family::smollm3},
        {"stablelm",
         dimensions + swiglu + grouped + untied + layer_norms("layer_norm_eps", "layer_norm") +
             qkv_bias("use_qkv_bias", false) + Rules{real("hidden_dropout", "dropout", 0)},
         family::stablelm},
        {"starcoder2",
         dimensions + must_group + head_dimension + tied + layer_norms("norm_epsilon", "layer_norm") +
             Rules{plain("hidden_act", "gelu_pytorch_tanh"), real("residual_dropout", "dropout", 0),
                   harmless("activation_function"), harmless("scale_attn_weights"), harmless("norm_type"),
                   harmless("mlp_type"), real("embedding_dropout", "embedding_dropout", 0)},
         family::starcoder2},
    };
    return list;
}

}  // namespace

std::vector<std::string> table_model_types() {
    std::vector<std::string> names;
    for (const Family& family : families()) names.push_back(family.model_type);
    return names;
}

bool map_family(const std::string& model_type, ConfigMapper& mapper) {
    for (const Family& family : families()) {
        if (model_type != family.model_type) continue;
        mapper.put("family", "stack", "model_type");
        for (const Rule& rule : family.rules) apply(rule, mapper);
        if (family.special) family.special(mapper);
        mapper.expect_class(model_type == "modernbert" ? "MaskedLM" : "CausalLM");
        return true;
    }
    return false;
}

std::optional<FamilyRefusal> refusal_of_family(const std::string& type) {
    constexpr std::array types{"mamba", "mamba2", "falcon_mamba",     "jamba",     "bamba",
                               "zamba", "zamba2", "granitemoehybrid", "falcon_h1", "nemotron_h"};
    if (std::find(types.begin(), types.end(), type) == types.end()) return std::nullopt;
    return FamilyRefusal{
        ": it has state-space layers, and no operator here is their selective scan, whose time no published "
        "measurement tells (docs/decisions/state-space-layers.md)",
        "measure its layers and place them as a costed graph: smplan partition --graph (docs/formats.md), or "
        "take a model of attention layers"};
}

}  // namespace model
