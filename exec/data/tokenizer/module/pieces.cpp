#include "exec/data/tokenizer/module/pieces.h"

#include <sentencepiece_processor.h>

#include <cstdio>
#include <memory>
#include <vector>

namespace exec::pieces {

using sentencepiece::SentencePieceProcessor;

namespace {

const SentencePieceProcessor& processor_of(const void* model) {
    return *static_cast<const SentencePieceProcessor*>(model);
}

}  // namespace

extern "C" {

void* smsim_pieces_open(const char* path, char* message, std::size_t room) {
    auto processor = std::make_unique<SentencePieceProcessor>();
    const auto status = processor->Load(path);
    if (status.ok()) return processor.release();
    std::snprintf(message, room, "%s", status.ToString().c_str());
    return nullptr;
}

void smsim_pieces_close(void* model) { delete static_cast<SentencePieceProcessor*>(model); }
int smsim_pieces_count(const void* model) { return processor_of(model).GetPieceSize(); }
int smsim_pieces_end(const void* model) { return processor_of(model).eos_id(); }

bool smsim_pieces_encode(const void* model, const char* text, std::size_t bytes, TakeToken take, void* into) {
    std::vector<int> tokens;
    if (!processor_of(model).Encode({text, bytes}, &tokens).ok()) return false;
    for (const int token : tokens) take(into, token);
    return true;
}

}  // extern "C"

}  // namespace exec::pieces
