// Texts as numbers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/diagnostics_fwd.h"

namespace exec {

class Tokenizer {
public:
    virtual ~Tokenizer() = default;
    virtual std::vector<int> encode(std::string_view text) const = 0;
    virtual std::int64_t vocabulary() const = 0;
    // What stands after each document.
    virtual std::optional<int> end() const = 0;
    virtual std::string describe() const = 0;
};

// A byte is its number; a newline stands after each document.
std::unique_ptr<const Tokenizer> byte_tokenizer();

// A model that SentencePiece trained (github.com/google/sentencepiece), as Llama 2, Mistral and T5 have it:
// tokenizer.model. Its library is in a module beside the program (module/pieces.h). Null after a diagnostic,
// as always in a build without the library.
std::unique_ptr<const Tokenizer> load_sentencepiece(const std::string& path, core::Diagnostics& diagnostics);

}  // namespace exec
