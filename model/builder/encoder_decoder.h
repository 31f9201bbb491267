// Encoder-decoders with learned positions, layer norms and a head tied to the token table: BART (arXiv
// 1910.13461) of text to text, Whisper (arXiv 2212.04356) of log-mel spectrograms to text.
#pragma once

#include "model/builder/decoder.h"

namespace model {

struct EncoderDecoderDescription {
    struct Stack {
        std::int64_t layers = 0, heads = 0, ffn = 0;
        std::int64_t positions = 0;  // of which a sample has sequence_length
        std::int64_t sequence_length = 0;
    };
    std::string name, family = "bart";
    std::int64_t hidden = 0, vocabulary = 0;
    Stack encoder, decoder;
    std::int64_t position_offset = 0;  // rows of the position tables before the first token's (BART: 2)
    // Bins of a spectrogram of two frames a position, which two convolutions read; 0: the encoder reads
    // tokens. Positions of audio are sinusoids, which are not trained.
    std::int64_t mel_bins = 0;
    bool has_norms_before = false;  // of the branches, with a norm after each stack (Whisper); else behind
    bool has_key_bias = true, has_embedding_norm = true, scales_embeddings = false;
    Activation activation = Activation::gelu;
    double epsilon = 1e-5, dropout = 0, attention_dropout = 0, activation_dropout = 0, deviation = 0.02;
};

ModelGraph build_encoder_decoder(const EncoderDecoderDescription& description);

}  // namespace model
