#include "exec/data/tokenizer/tokenizer.h"

namespace exec {

namespace {

class Bytes : public Tokenizer {
public:
    std::vector<int> encode(std::string_view text) const override {
        std::vector<int> tokens;
        tokens.reserve(text.size());
        for (const char letter : text) tokens.push_back(static_cast<unsigned char>(letter));
        return tokens;
    }
    std::int64_t vocabulary() const override { return 256; }
    std::optional<int> end() const override { return '\n'; }
    std::string describe() const override { return "bytes"; }
};

}  // namespace

std::unique_ptr<const Tokenizer> byte_tokenizer() { return std::make_unique<Bytes>(); }

}  // namespace exec
