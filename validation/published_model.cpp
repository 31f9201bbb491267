#include "validation/published_model.h"

#include <algorithm>
#include <string>

namespace validation {

namespace {

// Language models are trained with 10 % dropout unless their code base does without.
void set_dropout(core::Value& model, const sim::FrameworkTraits& traits) {
    if (!traits.applies_dropout) return;
    model["dropout"] = 0.1;
    model["attention_dropout"] = 0.1;
}

std::int64_t padded(std::int64_t vocabulary, std::int64_t multiple) {
    return (vocabulary + multiple - 1) / multiple * multiple;
}

void set_transformer(core::Value& model, RowReader& row, const char* family,
                     const sim::FrameworkTraits& traits) {
    model["family"] = family;
    model["layers"] = row.integer("layers", 1, 1);
    model["hidden"] = row.integer("hidden", 1, 1);
    model["heads"] = row.integer("heads", 1, 1);
    if (!row.is_blank("ffn")) model["ffn"] = row.integer("ffn", 1);
    model["vocabulary"] =
        padded(row.integer("vocab", 1, 1), traits.vocabulary_multiple * row.integer("tensor_parallel", 1, 1));
    model["sequence_length"] = row.integer("seq_len", 1, 1);
}

void set_decoder(core::Value& model, RowReader& row, const char* family, const sim::FrameworkTraits& traits) {
    set_transformer(model, row, family, traits);
    if (!row.is_blank("kv_heads")) model["kv_heads"] = row.integer("kv_heads", 1);
    if (!row.is_blank("tied_embeddings")) model["tied_embeddings"] = row.text("tied_embeddings") == "yes";
    // GPT-2 and GPT-3 code trains with dropout; BLOOM (hidden_dropout 0 in its configuration), Llama and
    // their kin do not.
    if (family == std::string_view("gpt")) set_dropout(model, traits);
}

void set_bert(core::Value& model, RowReader& row, const char* task, bool only_masked,
              const sim::FrameworkTraits& traits) {
    set_transformer(model, row, "bert", traits);
    model["task"] = task;
    const std::int64_t tokens = row.integer("seq_len", 1, 1);
    // hidden_dropout_prob and attention_probs_dropout_prob of the published configurations, 0.1 each, in
    // pre-training and fine-tuning.
    set_dropout(model, traits);
    // 20 of 128 and 80 of 512 tokens are masked in NVIDIA's and Google's pre-training data: 15.6 %.
    if (only_masked) model["masked_positions"] = std::max<std::int64_t>(1, tokens * 20 / 128);
}

// Encoder and decoder. The decoder's targets are a quarter of the encoder's tokens (T5: 512 and 114;
// Megatron-LM and NeMo: 512 and 128). Heads are 64 wide whatever the hidden size, in the published 3B and 11B
// 128 (arXiv 1910.10683, section 3.7).
void set_t5(core::Value& model, RowReader& row, const sim::FrameworkTraits& traits) {
    set_transformer(model, row, "t5", traits);
    if (row.is_blank("ffn")) model["ffn"] = 4 * row.integer("hidden", 1, 1);
    model["decoder_sequence_length"] = std::max<std::int64_t>(1, row.integer("seq_len", 1, 1) / 4);
    model["head_dimension"] =
        row.integer("hidden", 1, 1) == 1024 && row.integer("heads", 1, 1) >= 32 ? 128 : 64;
    if (!row.is_blank("tied_embeddings")) model["tied_embeddings"] = row.text("tied_embeddings") == "yes";
    if (row.text("model").find("v1_1") != std::string::npos || row.text("model").starts_with("mt5"))
        model["activation"] = "gated_gelu";
    if (traits.applies_dropout) model["dropout"] = 0.1;
}

void set_vit(core::Value& model, RowReader& row) {
    const std::string word = row.text("model");
    model["family"] = "vit";
    model["layers"] = row.integer("layers", 1, 12);
    model["hidden"] = row.integer("hidden", 1, 768);
    model["heads"] = row.integer("heads", 1, 12);
    if (!row.is_blank("ffn")) model["ffn"] = row.integer("ffn", 1);
    model["image_size"] = row.integer("image_size", 1, 224);
    const std::string_view patches[] = {"14", "16", "32"};
    model["patch"] = 16;
    for (const std::string_view patch : patches)
        if (word.ends_with(patch))
            model["patch"] = static_cast<std::int64_t>(core::parse_integer(patch).value_or(16));
}

}  // namespace

bool is_convolutional(std::string_view model) {
    for (const std::string_view part : {"resnet", "wide_resnet", "ssd", "mask_rcnn"})
        if (model.starts_with(part)) return true;
    return false;
}

core::Value model_table(RowReader& row, const sim::FrameworkTraits& traits) {
    core::Value model;
    const std::string word = row.text("model");
    model["name"] = word;
    if (word == "gpt" || word == "mpt") set_decoder(model, row, "gpt", traits);
    else if (word == "bloom") set_decoder(model, row, "bloom", traits);
    else if (word == "llama") set_decoder(model, row, "llama", traits);
    else if (word == "internlm") {
        set_decoder(model, row, "llama", traits);
        model["qkv_bias"] = true;
        model["attention_output_bias"] = true;
    } else if (word.starts_with("moe_gpt_e")) {
        set_decoder(model, row, "gpt", traits);
        model["experts"] = static_cast<std::int64_t>(core::parse_integer(word.substr(9)).value_or(1));
        model["experts_per_token"] = 2;
        model["expert_interval"] = 2;
    } else if (word == "bert_base" || word == "bert_large" || word == "bert_megatron")
        set_bert(model, row, "pretraining", false, traits);
    else if (word == "bert_base_masked" || word == "bert_large_masked")
        set_bert(model, row, "pretraining", true, traits);
    else if (word == "bert_base_qa" || word == "bert_large_qa")
        set_bert(model, row, "question_answering", false, traits);
    else if (word == "resnet50") {
        model["family"] = "resnet";
        model["depth"] = 50;
        model["image_size"] = row.integer("image_size", 1, 224);
    } else if (word == "resnet18_cifar") {
        model["family"] = "resnet";
        model["depth"] = 18;
        model["classes"] = 10;
        model["small_stem"] = true;
        model["image_size"] = row.integer("image_size", 1, 32);
    } else if (word == "wide_resnet50") {
        model["family"] = "resnet";
        model["depth"] = row.integer("layers", 1, 50);
        model["base_channels"] = row.integer("hidden", 1, 64);
        model["width_factor"] = row.integer("ffn", 1, 2);
        // As alpa-projects/alpa builds it (alpa/model/wide_resnet.py @8350d913): with 160, 224, 320 and 448
        // base channels it has the 250 million to 2 billion parameters that the suite names; torchvision's,
        // whose first 1x1 is wider too, would have 1.6 times as many.
        model["widens_reduction"] = false;
        constexpr std::int64_t classes = 1024;  // benchmark/alpa/benchmark_one_case_wresnet.py
        model["classes"] = classes;
        model["image_size"] = row.integer("image_size", 1, 224);
    } else if (word == "ssd300_r50") {
        model["family"] = "ssd";
    } else if (word == "mask_rcnn_r50_fpn") {
        model["family"] = "mask_rcnn";
        model["image_size"] = row.integer("image_size", 1, 800);
    } else if (word == "transformer_xl" || word == "transformer_xl_div4") {
        set_transformer(model, row, "transformer_xl", traits);
        model["width_divisor"] = word == "transformer_xl" ? 1 : 4;
    } else if (word.starts_with("t5") || word.starts_with("mt5")) set_t5(model, row, traits);
    else if (word.starts_with("vit")) set_vit(model, row);
    else {
        return {};
    }
    return model;
}

}  // namespace validation
