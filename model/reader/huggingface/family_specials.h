// What no single key of a family's config.json tells: which layers have windows, positions or experts, and
// keys that depend on others. Each is called after the rules of its family, on what they put.
#pragma once

#include "model/reader/huggingface/config_mapper.h"

namespace model::family {

// Width, layers, heads and vocabulary by the names that most families give them.
void usual_dimensions(ConfigMapper& m);

void rotary(ConfigMapper& m);
void half_rotary(ConfigMapper& m);
void qwen(ConfigMapper& m);
void qwen2_moe(ConfigMapper& m);
void qwen3_moe(ConfigMapper& m);
void gemma(ConfigMapper& m);
void gemma2(ConfigMapper& m);
void gemma3(ConfigMapper& m);
void deepseek(ConfigMapper& m);
void olmo(ConfigMapper& m);
void olmoe(ConfigMapper& m);
void olmo3(ConfigMapper& m);
void granite(ConfigMapper& m);
void cohere2(ConfigMapper& m);
void cohere(ConfigMapper& m);
void phi(ConfigMapper& m);
void stablelm(ConfigMapper& m);
void gpt_oss(ConfigMapper& m);
void gpt_neo(ConfigMapper& m);
void falcon(ConfigMapper& m);
void gpt_bigcode(ConfigMapper& m);
void starcoder2(ConfigMapper& m);
void glm4_moe(ConfigMapper& m);
void smollm3(ConfigMapper& m);
void phimoe(ConfigMapper& m);
void dbrx(ConfigMapper& m);
void llama4(ConfigMapper& m);
void modernbert(ConfigMapper& m);

// Whole families, without rules of their own.
void bart(ConfigMapper& m);
void bert(ConfigMapper& m);
void clip(ConfigMapper& m);
void deberta(ConfigMapper& m);
void deit(ConfigMapper& m);
void distilbert(ConfigMapper& m);
void mt5(ConfigMapper& m);
void roberta(ConfigMapper& m);
void swin(ConfigMapper& m);
void t5(ConfigMapper& m);
void vit(ConfigMapper& m);
void whisper(ConfigMapper& m);

}  // namespace model::family
