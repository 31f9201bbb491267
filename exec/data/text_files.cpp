#include "exec/data/text_files.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "core/errors.h"
#include "exec/data/mapped_file.h"
#include "model/model_graph.h"

namespace exec {

namespace {

// A token of so many little-endian bytes.
std::int64_t token_at(std::span<const std::byte> content, std::size_t width, std::size_t index) {
    std::int64_t value = 0;
    for (std::size_t b = width; b-- > 0;)
        value = value << 8 | std::to_integer<std::int64_t>(content[index * width + b]);
    return value;
}

// Tokens that a sample takes: a model that predicts masked tokens of its own text needs no next one.
std::size_t sample_tokens(const model::ModelGraph& graph) {
    const bool is_masked = std::any_of(
        graph.operators.begin(), graph.operators.end(),
        [](const model::Operator& op) { return op.kind == model::OperatorKind::select_positions; });
    return graph.encoder_tokens_per_sample + graph.tokens_per_sample + (is_masked ? 0 : 1);
}

struct TokenFormat {
    std::size_t width = 1;  // bytes a token
    const char* unit = "bytes";
};

class TokenWindows : public DataSource {
public:
    TokenWindows(std::string path, MappedFile file, std::size_t begin, TokenFormat format,
                 const model::ModelGraph& graph)
        : path_(std::move(path)),
          file_(std::move(file)),
          content_(file_.bytes().subspan(begin)),
          format_(format),
          window_(sample_tokens(graph)),
          vocabulary_(graph.vocabulary),
          identity_(fmt::format("{} {}, {}", count(), format.unit, identity_of(content_, most_whole_bytes))) {
    }

    std::size_t count() const { return content_.size() / format_.width; }

    // Windows follow one another and wrap around.
    void tokens(std::int64_t sample, std::span<std::int64_t> into) const override {
        const std::size_t places = count() - into.size() + 1,
                          step = std::max<std::size_t>(1, into.size() - 1);
        const std::size_t start = sample * step % places;
        for (std::size_t i = 0; i < into.size(); ++i) {
            into[i] = token_at(content_, format_.width, start + i);
            if (into[i] >= vocabulary_) throw core::MachineError(too_large(start + i));
        }
    }
    std::optional<std::int64_t> samples() const override {
        return (count() - window_) / std::max<std::size_t>(1, window_ - 1) + 1;
    }
    std::string describe() const override { return fmt::format("{} {} of {}", count(), format_.unit, path_); }
    std::string identity() const override { return identity_; }

    // The first of those that are looked at which the model has no row for: all of a small file, of a large
    // one the first, its last and those of its pieces' begins. Training names others when it comes to them.
    std::optional<std::size_t> first_too_large() const {
        constexpr std::size_t looked_at = std::size_t(1) << 22;
        const std::size_t stride = content_.size() <= most_whole_bytes ? 1 : count() / looked_at + 1;
        for (std::size_t i = 0; i < count(); i += stride)
            if (token_at(content_, format_.width, i) >= vocabulary_) return i;
        return std::nullopt;
    }
    std::string too_large(std::size_t i) const {
        return fmt::format("{} has a {} {} at place {}, the model's vocabulary is {}", path_,
                           format_.width == 1 ? "byte" : "token", token_at(content_, format_.width, i), i,
                           vocabulary_);
    }
    std::size_t window() const { return window_; }

private:
    const std::string path_;
    const MappedFile file_;
    const std::span<const std::byte> content_;
    const TokenFormat format_;
    const std::size_t window_;
    const std::int64_t vocabulary_;
    const std::string identity_;
};

std::shared_ptr<const DataSource> checked(std::shared_ptr<const TokenWindows> data, const std::string& path,
                                          const char* unit, const char* hint, const DataReferrer& referrer,
                                          core::Diagnostics& diagnostics) {
    const auto refuse = [&](const std::string& message, const std::string& advice) {
        diagnostics.error(referrer.location, referrer.key, message, advice);
        return nullptr;
    };
    if (data->count() < data->window())
        return refuse(
            fmt::format("{} has {} {}, a sample takes {}", path, data->count(), unit, data->window()),
            "give a longer text or a shorter sequence_length");
    if (const std::optional<std::size_t> bad = data->first_too_large())
        return refuse(data->too_large(*bad), hint);
    return data;
}

}  // namespace

std::shared_ptr<const DataSource> load_text(const std::string& path, const model::ModelGraph& graph,
                                            const DataReferrer& referrer, core::Diagnostics& diagnostics) {
    std::optional<MappedFile> file = MappedFile::open(path, diagnostics, referrer.location, referrer.key);
    if (!file) return nullptr;
    return checked(std::make_shared<TokenWindows>(path, std::move(*file), 0, TokenFormat{}, graph), path,
                   "bytes", "bytes need a vocabulary of 256", referrer, diagnostics);
}

std::shared_ptr<const DataSource> load_tokens(const std::string& path, int bits,
                                              const model::ModelGraph& graph, const DataReferrer& referrer,
                                              core::Diagnostics& diagnostics) {
    std::optional<MappedFile> file = MappedFile::open(path, diagnostics, referrer.location, referrer.key);
    if (!file) return nullptr;
    const auto refuse = [&](const std::string& message, const std::string& hint) {
        diagnostics.error(referrer.location, referrer.key, message, hint);
        return nullptr;
    };
    struct Header {
        std::int64_t magic = 0, version = 0;
        std::size_t width = 0;
    };
    constexpr std::array<Header, 2> headers = {{{20240520, 1, 2}, {20240801, 7, 4}}};
    constexpr std::size_t header_bytes = 1024;
    std::size_t begin = 0, width = bits / 8;
    const auto word = [&](std::size_t i) { return token_at(file->bytes(), 4, i); };
    for (const Header& header : headers) {
        if (file->size() < header_bytes || word(0) != header.magic) continue;
        begin = header_bytes;
        width = header.width;
        const std::size_t stated = word(2) * width;
        if (word(1) != header.version || file->size() - begin != stated)
            return refuse(
                fmt::format("{} has {} bytes behind its header, which states version {} and {} tokens", path,
                            file->size() - begin, word(1), word(2)),
                "it is cut off, or of another version");
    }
    if ((file->size() - begin) % width != 0)
        return refuse(fmt::format("{} has {} bytes, and a token takes {}", path, file->size() - begin, width),
                      fmt::format("give tokens as {}-bit numbers", 8 * width));
    return checked(
        std::make_shared<TokenWindows>(path, std::move(*file), begin, TokenFormat{width, "tokens"}, graph),
        path, "tokens", "GPT-2's encoder has 50257 tokens; data_format says tokens (16 bits) or tokens32",
        referrer, diagnostics);
}

}  // namespace exec
