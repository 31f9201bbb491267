#include "model/reader/huggingface/config_mapper.h"

#include "core/diagnostics.h"

namespace model {

namespace {

// Angles are scaled, shapes and work are not.
void note_scaling(const char* key, const Value& scaling, std::vector<std::string>& assumptions) {
    if (!scaling.is_table()) return;
    const Value* kind = scaling.find("rope_type") ? scaling.find("rope_type") : scaling.find("type");
    if (kind && kind->is_string() && kind->string() != "default")
        assumptions.push_back(
            fmt::format("{} ({}) changes rotary angles only: shapes, parameters and time are unaffected", key,
                        kind->string()));
}

// Keys of every config that change neither shapes nor work: how a checkpoint is saved, tokens of the
// tokenizer, how text is generated, how weights start.
constexpr const char* harmless_keys[] = {"_name_or_path",
                                         "_commit_hash",
                                         "_attn_implementation",
                                         "_attn_implementation_autoset",
                                         "attn_implementation",
                                         "_experts_implementation",
                                         "experts_implementation",
                                         "architectures",
                                         "auto_map",
                                         "transformers_version",
                                         "transformers.js_config",
                                         "unsloth_version",
                                         "unsloth_fixed",
                                         "dtype",
                                         "torch_dtype",
                                         "torchscript",
                                         "use_bfloat16",
                                         "model_type",
                                         "bos_token_id",
                                         "eos_token_id",
                                         "pad_token_id",
                                         "sep_token_id",
                                         "cls_token_id",
                                         "mask_token_id",
                                         "unk_token_id",
                                         "decoder_start_token_id",
                                         "forced_bos_token_id",
                                         "forced_eos_token_id",
                                         "prefix",
                                         "tokenizer_class",
                                         "task_specific_params",
                                         "use_cache",
                                         "cache_implementation",
                                         "output_attentions",
                                         "output_hidden_states",
                                         "output_router_logits",
                                         "output_scores",
                                         "output_past",
                                         "return_dict",
                                         "return_dict_in_generate",
                                         "id2label",
                                         "label2id",
                                         "num_labels",
                                         "problem_type",
                                         "finetuning_task",
                                         "classifier_dropout",
                                         "initializer_range",
                                         "initializer_factor",
                                         "init_std",
                                         "chunk_size_feed_forward",
                                         "pruned_heads",
                                         "gradient_checkpointing",
                                         "is_decoder",
                                         "is_encoder_decoder",
                                         "cross_attention_hidden_size",
                                         "add_cross_attention",
                                         "tie_encoder_decoder",
                                         "max_length",
                                         "min_length",
                                         "do_sample",
                                         "early_stopping",
                                         "num_beams",
                                         "num_beam_groups",
                                         "diversity_penalty",
                                         "temperature",
                                         "top_k",
                                         "top_p",
                                         "typical_p",
                                         "repetition_penalty",
                                         "length_penalty",
                                         "no_repeat_ngram_size",
                                         "encoder_no_repeat_ngram_size",
                                         "bad_words_ids",
                                         "num_return_sequences",
                                         "remove_invalid_values",
                                         "suppress_tokens",
                                         "begin_suppress_tokens",
                                         "exponential_decay_length_penalty",
                                         "tf_legacy_loss",
                                         "quantization_config",
                                         "pretraining_tp",
                                         "vocab_file",
                                         "rope_scaling",
                                         "router_aux_loss_coef",
                                         "router_jitter_noise",
                                         "summary_activation",
                                         "summary_first_dropout",
                                         "summary_proj_to_labels",
                                         "summary_type",
                                         "summary_use_proj",
                                         "original_max_position_embeddings",
                                         "attention_softmax_in_fp32",
                                         "scale_attention_softmax_in_fp32",
                                         "is_llama_config",
                                         "rope_interleaved",
                                         "use_flash_attn",
                                         "n_ctx"};

}  // namespace

void ConfigMapper::rotary(double default_base, double default_fraction) {
    const Value* table = has("rope_parameters") ? reader_.optional_table("rope_parameters") : nullptr;
    double fraction = default_fraction;
    if (table && !has("rope_theta") && table->find("rope_theta")) {
        core::TableReader nested(*table, "rope_parameters", reader_.diagnostics());
        put("rotary_base", nested.real("rope_theta", default_base, {1, 1e12}), "rope_parameters");
    } else {
        real("rope_theta", "rotary_base", default_base, {1, 1e12});
    }
    if (table && table->find("partial_rotary_factor") && !table->find("partial_rotary_factor")->is_null()) {
        core::TableReader nested(*table, "rope_parameters", reader_.diagnostics());
        fraction = nested.real("partial_rotary_factor", default_fraction, {0.001, 1});
    }
    for (const char* key : {"partial_rotary_factor", "rotary_pct", "rope_pct"})
        if (has(key)) fraction = reader_.real(key, default_fraction, {0.001, 1});
    if (fraction != 1 || default_fraction != 1) put("rotary_fraction", fraction, "partial_rotary_factor");
    for (const char* key : {"rope_scaling", "rope_parameters"})
        if (const Value* scaling = config_.find(key)) note_scaling(key, *scaling, assumptions_);
}

// Tables a kind of layer: {"full_attention": {...}, "sliding_attention": {...}}.
void ConfigMapper::rotary_by_kind(double full_base, double window_base) {
    double bases[] = {full_base, window_base};
    const char* kinds[] = {"full_attention", "sliding_attention"};
    if (const Value* table = has("rope_parameters") ? reader_.optional_table("rope_parameters") : nullptr)
        for (int i = 0; i < 2; ++i) {
            const Value* part = table->find(kinds[i]) ? table->find(kinds[i]) : table;
            if (!part->is_table()) continue;
            core::TableReader nested(*part, "rope_parameters", reader_.diagnostics());
            if (part != table || i == 0) bases[i] = nested.real("rope_theta", bases[i], {1, 1e12});
            note_scaling("rope_parameters", *part, assumptions_);
        }
    if (has("rope_theta")) bases[0] = reader_.real("rope_theta", full_base, {1, 1e12});
    put("rotary_base", bases[0], "rope_parameters");
    if (bases[1] != bases[0]) put("window_rotary_base", bases[1], "rope_parameters");
    if (const Value* scaling = config_.find("rope_scaling"))
        note_scaling("rope_scaling", *scaling, assumptions_);
}

void ConfigMapper::finish() {
    for (const char* key : harmless_keys) understood_.insert(key);
    const std::vector<std::string> known(understood_.begin(), understood_.end());
    for (const auto& [key, value] : config_.members()) {
        if (value.is_null() || understood_.contains(key)) continue;
        const std::string near = core::did_you_mean(key, known);
        reader_.error(key, fmt::format("{} is not understood: it may change the model", core::in_quotes(key)),
                      near.empty()
                          ? fmt::format("no {} of transformers is known to have it; take it out if it "
                                        "changes neither shapes nor work",
                                        core::in_quotes(string("model_type", "")))
                          : fmt::format("did you mean {}?", core::in_quotes(near)));
    }
}

// transformers' names to ours.
void ConfigMapper::activation(const char* key, const char* fallback, bool is_gated) {
    struct Name {
        const char *theirs, *plain, *gated;
    };
    static constexpr Name names[] = {{"gelu", "gelu", "gated_gelu"},
                                     {"gelu_new", "gelu_tanh", "gated_gelu_tanh"},
                                     {"gelu_fast", "gelu_tanh", "gated_gelu_tanh"},
                                     {"gelu_pytorch_tanh", "gelu_tanh", "gated_gelu_tanh"},
                                     {"relu", "relu", nullptr},
                                     {"silu", "silu", "gated_silu"},
                                     {"swish", "silu", "gated_silu"}};
    const std::string given = string(key, fallback);
    std::vector<std::string> allowed;
    for (const Name& name : names) {
        const char* ours = is_gated ? name.gated : name.plain;
        if (!ours) continue;
        if (given == name.theirs) return put("activation", ours, key);
        allowed.push_back(name.theirs);
    }
    refuse(key, fmt::format("{} = {} is not supported", key, core::in_quotes(given)),
           "supported: " + core::list_in_words(allowed));
}

void ConfigMapper::expect_class(const char* suffix) {
    const Value* names = config_.find("architectures");
    if (!names || !names->is_array() || names->size() == 0 || !names->items()[0].is_string()) return;
    const std::string& name = names->items()[0].string();
    if (name.find(suffix) == std::string::npos)
        assume(fmt::format(
            "the config was saved by {}; the graph has the language-model head of pre-training", name));
}

}  // namespace model
