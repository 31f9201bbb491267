#include "exec/data.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "core/document.h"
#include "core/random.h"
#include "exec/checkpoint/checksum.h"
#include "model/model_graph.h"

namespace exec {

using model::OperatorKind;

std::int64_t global_sample(std::int64_t step, int data_rank, int data, int micro_batches, int micro_batch,
                           int k, int i) {
    const std::int64_t of_rank = std::int64_t{micro_batches} * micro_batch;
    return step * of_rank * data + data_rank * of_rank + std::int64_t{k} * micro_batch + i;
}

void DataSource::tokens(std::int64_t, std::span<std::int64_t>) const {
    core::require(false, "this data source has tokens");
}
void DataSource::image(std::int64_t, std::span<float>) const {
    core::require(false, "this data source has images");
}
std::int64_t DataSource::label(std::int64_t sample, std::int64_t classes) const {
    return core::mix64(sample) % classes;
}

namespace {

// A byte of a file as a number.
unsigned char number_of(char byte) { return byte; }

std::string checksum_text(std::string_view content) {
    return fmt::format("xxh64 {:016x}", checksum(std::as_bytes(std::span(content))));
}

std::uint64_t mixed(std::uint64_t seed, std::int64_t sample, std::uint64_t position) {
    return core::mix64(core::mix64(seed ^ core::mix64(sample)) + position);
}
double uniform(std::uint64_t bits) { return (bits >> 11) * 0x1.0p-53; }

// Something to learn: the next token mostly follows from the last; an image's class shifts the mean of a band
// of its pixels.
class Synthetic : public DataSource {
public:
    Synthetic(std::uint64_t seed, std::int64_t vocabulary, std::int64_t classes)
        : seed_(seed),
          vocabulary_(std::max<std::int64_t>(1, vocabulary)),
          classes_(std::max<std::int64_t>(1, classes)) {}

    void tokens(std::int64_t sample, std::span<std::int64_t> into) const override {
        std::int64_t last = mixed(seed_, sample, 0) % vocabulary_;
        for (std::size_t i = 0; i < into.size(); ++i) {
            into[i] = last;
            const std::uint64_t bits = mixed(seed_, sample, i + 1);
            last = bits % 8 == 0 ? static_cast<std::int64_t>((bits >> 8) % vocabulary_)
                                 : (last * 3 + 1) % vocabulary_;
        }
    }
    void image(std::int64_t sample, std::span<float> into) const override {
        const std::int64_t band = label(sample, classes_);
        const auto count = std::ssize(into);
        for (std::int64_t i = 0; i < count; ++i) {
            const double noise = uniform(mixed(seed_, sample, i));
            into[i] = static_cast<float>(0.5 * noise + (i * classes_ / count == band ? 0.5 : 0.0));
        }
    }
    std::int64_t label(std::int64_t sample, std::int64_t classes) const override {
        return mixed(seed_, sample, ~std::uint64_t(0)) % classes;
    }
    std::string describe() const override { return fmt::format("synthetic data of seed {}", seed_); }
    std::string identity() const override { return describe(); }

private:
    const std::uint64_t seed_;
    const std::int64_t vocabulary_, classes_;
};

class TextBytes : public DataSource {
public:
    TextBytes(std::string path, std::string bytes)
        : path_(std::move(path)),
          bytes_(std::move(bytes)),
          identity_(fmt::format("{} bytes, {}", bytes_.size(), checksum_text(bytes_))) {}

    // Windows follow one another and wrap around.
    void tokens(std::int64_t sample, std::span<std::int64_t> into) const override {
        const std::size_t places = bytes_.size() - into.size() + 1,
                          step = std::max<std::size_t>(1, into.size() - 1);
        const std::size_t start = sample * step % places;
        for (std::size_t i = 0; i < into.size(); ++i) into[i] = number_of(bytes_[start + i]);
    }
    std::string describe() const override { return fmt::format("{} bytes of {}", bytes_.size(), path_); }
    std::string identity() const override { return identity_; }

private:
    const std::string path_, bytes_, identity_;
};

// Token numbers of two bytes each, as GPT-2's encoder makes them.
class TextTokens : public DataSource {
public:
    TextTokens(std::string path, std::string content, std::size_t begin)
        : path_(std::move(path)),
          content_(std::move(content)),
          begin_(begin),
          identity_(fmt::format("{} tokens, {}", count(),
                                checksum_text(std::string_view(content_).substr(begin_)))) {}

    std::size_t count() const { return (content_.size() - begin_) / 2; }
    std::int64_t at(std::size_t i) const {
        const unsigned char low = content_[begin_ + 2 * i], high = content_[begin_ + 2 * i + 1];
        return low | high << 8;
    }
    void tokens(std::int64_t sample, std::span<std::int64_t> into) const override {
        const std::size_t places = count() - into.size() + 1,
                          step = std::max<std::size_t>(1, into.size() - 1);
        const std::size_t start = sample * step % places;
        for (std::size_t i = 0; i < into.size(); ++i) into[i] = at(start + i);
    }
    std::string describe() const override { return fmt::format("{} tokens of {}", count(), path_); }
    std::string identity() const override { return identity_; }

private:
    const std::string path_, content_;
    const std::size_t begin_;
    const std::string identity_;
};

class IdxImages : public DataSource {
public:
    IdxImages(std::string path, std::string pixels, std::string labels, std::size_t image_pixels)
        : path_(std::move(path)),
          pixels_(std::move(pixels)),
          labels_(std::move(labels)),
          image_pixels_(image_pixels),
          identity_(fmt::format("{} images, {}, labels {}", labels_.size(), checksum_text(pixels_),
                                checksum_text(labels_))) {}

    void image(std::int64_t sample, std::span<float> into) const override {
        const std::size_t begin = index(sample) * image_pixels_;
        for (std::size_t i = 0; i < into.size(); ++i) into[i] = (number_of(pixels_[begin + i])) / 255.0f;
    }
    std::int64_t label(std::int64_t sample, std::int64_t) const override {
        return number_of(labels_[index(sample)]);
    }
    std::string describe() const override { return fmt::format("{} images of {}", labels_.size(), path_); }
    std::string identity() const override { return identity_; }

private:
    std::size_t index(std::int64_t sample) const { return sample % labels_.size(); }

    const std::string path_, pixels_, labels_;
    const std::size_t image_pixels_;
    const std::string identity_;
};

std::uint32_t big_endian(const std::string& bytes, std::size_t at) {
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < 4; ++i) value = value << 8 | number_of(bytes[at + i]);
    return value;
}

struct IdxFile {
    std::vector<std::size_t> extents;
    std::string content;
};

constexpr std::size_t largest_data_bytes = std::size_t(2) << 30;

// The IDX format (Y. LeCun, C. Cortes, "THE MNIST DATABASE"): two zero bytes, element type (8 = unsigned
// byte), number of dimensions, extents as big-endian 32-bit integers, then the elements.
std::optional<IdxFile> read_idx(const std::string& path, std::size_t dimensions,
                                core::Diagnostics& diagnostics, const core::SourceLocation& referrer) {
    std::optional<std::string> bytes =
        core::read_file(path, diagnostics, referrer, "training.data", largest_data_bytes);
    if (!bytes) return std::nullopt;
    const auto refuse = [&](const std::string& message, const std::string& hint) {
        diagnostics.error({path, 0, 0}, "training.data", message, hint);
        return std::nullopt;
    };
    const std::size_t header = 4 + 4 * dimensions;
    if (bytes->size() < header)
        return refuse(
            fmt::format("{} is cut off: {} bytes, the header alone has {}", path, bytes->size(), header),
            "download it again");
    if ((*bytes)[0] != 0 || (*bytes)[1] != 0)
        return refuse(fmt::format("{} is no IDX file: it does not begin with two zero bytes", path),
                      (*bytes)[0] == '\x1f' ? "unpack it first: gunzip" : "an IDX file is wanted");
    if ((*bytes)[2] != 8)
        return refuse(
            fmt::format("{} holds elements of type {}, not unsigned bytes (8)", path, int{(*bytes)[2]}), "");
    if (std::size_t{number_of((*bytes)[3])} != dimensions)
        return refuse(fmt::format("{} has {} dimensions instead of {}", path, int{(*bytes)[3]}, dimensions),
                      "images have 3 dimensions, labels 1");
    IdxFile file;
    std::size_t elements = 1;
    for (std::size_t i = 0; i < dimensions; ++i) {
        file.extents.push_back(big_endian(*bytes, 4 + 4 * i));
        if (file.extents.back() == 0)
            return refuse(fmt::format("{} is empty: dimension {} is 0", path, i), "");
        if (file.extents.back() > largest_data_bytes / elements)
            return refuse(fmt::format("{} states more than {} elements", path, largest_data_bytes),
                          "its header is corrupt");
        elements *= file.extents.back();
    }
    if (bytes->size() != header + elements)
        return refuse(fmt::format("{} holds {} bytes after its header, which states {}", path,
                                  bytes->size() - header, elements),
                      "it is cut off or corrupt: download it again");
    file.content = bytes->substr(header);
    return file;
}

std::int64_t label_bound(const model::ModelGraph& graph) {
    for (const model::Operator& op : graph.operators)
        if (op.kind == OperatorKind::loss_statistics) return graph.tensor(op.inputs[0]).shape.back();
    return 0;
}

const model::Tensor* image_input(const model::ModelGraph& graph) {
    for (const model::Operator& op : graph.operators)
        if (op.kind == OperatorKind::input && graph.tensor(op.output).type != core::DataType::int64)
            return &graph.tensor(op.output);
    return nullptr;
}

std::shared_ptr<const DataSource> load_images(const std::string& path, const model::Tensor& input,
                                              std::int64_t classes, core::Diagnostics& diagnostics,
                                              const core::SourceLocation& referrer) {
    std::string labels_path = path;
    const auto replace = [&](const std::string& from, const std::string& to) {
        const std::size_t at = labels_path.rfind(from);
        if (at != std::string::npos) labels_path.replace(at, from.size(), to);
        return at != std::string::npos;
    };
    const bool has_name = replace("images", "labels");
    replace("idx3", "idx1");
    if (!has_name) {
        diagnostics.error(
            referrer, "training.data",
            fmt::format("training.data = {}: the name has no 'images', so that of the labels cannot be told",
                        core::in_quotes(path)),
            "name the files as MNIST does: train-images-idx3-ubyte and train-labels-idx1-ubyte");
        return nullptr;
    }
    std::optional<IdxFile> images = read_idx(path, 3, diagnostics, referrer),
                           labels = read_idx(labels_path, 1, diagnostics, referrer);
    if (!images || !labels) return nullptr;
    if (images->extents[0] != labels->extents[0]) {
        diagnostics.error({labels_path, 0, 0}, "training.data",
                          fmt::format("{} images but {} labels", images->extents[0], labels->extents[0]),
                          "they must belong together");
        return nullptr;
    }
    if (input.shape[0] != 1 || input.shape[1] != static_cast<std::int64_t>(images->extents[1]) ||
        input.shape[2] != static_cast<std::int64_t>(images->extents[2])) {
        diagnostics.error(
            referrer, "training.data",
            fmt::format("images of {} x {} with one channel, but the model takes {} channels of {} x {}",
                        images->extents[1], images->extents[2], input.shape[0], input.shape[1],
                        input.shape[2]),
            "set the model's image_size and channels to the data's");
        return nullptr;
    }
    const auto worst = std::max_element(labels->content.begin(), labels->content.end(),
                                        [](char a, char b) { return number_of(a) < number_of(b); });
    if (number_of(*worst) >= classes) {
        diagnostics.error({labels_path, 0, 0}, "training.data",
                          fmt::format("label {} of a model with {} classes", number_of(*worst), classes),
                          "raise the model's classes");
        return nullptr;
    }
    return std::make_shared<IdxImages>(path, std::move(images->content), std::move(labels->content),
                                       images->extents[1] * images->extents[2]);
}

std::shared_ptr<const DataSource> load_text(const std::string& path, const model::ModelGraph& graph,
                                            core::Diagnostics& diagnostics,
                                            const core::SourceLocation& referrer) {
    std::optional<std::string> bytes =
        core::read_file(path, diagnostics, referrer, "training.data", largest_data_bytes);
    if (!bytes) return nullptr;
    const std::size_t wanted = graph.encoder_tokens_per_sample + graph.tokens_per_sample + 1;
    if (bytes->size() < wanted) {
        diagnostics.error(referrer, "training.data",
                          fmt::format("{} has {} bytes, a sample takes {}", path, bytes->size(), wanted),
                          "give a longer text or a shorter sequence_length");
        return nullptr;
    }
    const auto worst = std::max_element(bytes->begin(), bytes->end(),
                                        [](char a, char b) { return number_of(a) < number_of(b); });
    if (number_of(*worst) >= graph.vocabulary) {
        diagnostics.error(referrer, "training.data",
                          fmt::format("{} has a byte {}, the model's vocabulary is {}", path,
                                      number_of(*worst), graph.vocabulary),
                          "bytes need a vocabulary of 256");
        return nullptr;
    }
    return std::make_shared<TextBytes>(path, std::move(*bytes));
}

// Little-endian 16-bit numbers and nothing else (nanoGPT's train.bin), or behind the header of llm.c: 256
// 32-bit words, of which the first is 20240520, the second the version 1 and the third the number of tokens
// (github.com/karpathy/llm.c, dev/data/data_common.py).
std::shared_ptr<const DataSource> load_tokens(const std::string& path, const model::ModelGraph& graph,
                                              core::Diagnostics& diagnostics,
                                              const core::SourceLocation& referrer) {
    std::optional<std::string> content =
        core::read_file(path, diagnostics, referrer, "training.data", largest_data_bytes);
    if (!content) return nullptr;
    const auto word = [&](std::size_t i) {
        std::uint32_t value = 0;
        for (std::size_t b = 4; b-- > 0;) value = value << 8 | number_of((*content)[4 * i + b]);
        return value;
    };
    constexpr std::size_t header = 1024;
    constexpr std::uint32_t llm_c_magic = 20240520;
    const auto refuse = [&](const std::string& message, const std::string& hint) {
        diagnostics.error(referrer, "training.data", message, hint);
        return nullptr;
    };
    const bool has_header = content->size() >= header && word(0) == llm_c_magic;
    const std::size_t begin = has_header ? header : 0;
    if (has_header && (word(1) != 1 || content->size() - header != 2 * std::size_t(word(2))))
        return refuse(fmt::format("{} has {} bytes behind its header, which states version {} and {} tokens",
                                  path, content->size() - header, word(1), word(2)),
                      "it is cut off, or of another version");
    if (content->size() % 2 != 0)
        return refuse(fmt::format("{} has {} bytes, and a token takes two", path, content->size()),
                      "give tokens as 16-bit numbers");
    auto tokens = std::make_shared<TextTokens>(path, std::move(*content), begin);
    const std::size_t wanted = graph.tokens_per_sample + 1;
    if (tokens->count() < wanted)
        return refuse(fmt::format("{} has {} tokens, a sample takes {}", path, tokens->count(), wanted),
                      "give a longer text or a shorter sequence_length");
    std::int64_t largest = 0;
    for (std::size_t i = 0; i < tokens->count(); ++i) largest = std::max(largest, tokens->at(i));
    if (largest >= graph.vocabulary)
        return refuse(
            fmt::format("{} has a token {}, the model's vocabulary is {}", path, largest, graph.vocabulary),
            "GPT-2's encoder has 50257 tokens");
    return tokens;
}

}  // namespace

std::shared_ptr<const DataSource> load_data(const std::string& path, const std::string& format,
                                            std::uint64_t seed, const model::ModelGraph& graph,
                                            core::Diagnostics& diagnostics,
                                            const core::SourceLocation& referrer) {
    const model::Tensor* image = image_input(graph);
    const std::string wanted = !format.empty()          ? format
                               : path.empty()           ? "synthetic"
                               : image                  ? "idx"
                               : path.ends_with(".bin") ? "tokens"
                                                        : "bytes";
    if (wanted == "synthetic") return std::make_shared<Synthetic>(seed, graph.vocabulary, label_bound(graph));
    const auto refuse = [&](const std::string& key, const std::string& message, const std::string& hint) {
        diagnostics.error(referrer, key, message, hint);
        return nullptr;
    };
    if (path.empty())
        return refuse("training.data",
                      fmt::format("training.data_format = \"{}\" needs training.data", wanted),
                      "name a file, or use data_format = \"synthetic\"");
    if (wanted == "idx") {
        if (!image)
            return refuse("training.data_format", fmt::format("{} takes tokens, not images", graph.name),
                          "use data_format = \"bytes\" or \"synthetic\"");
        return load_images(path, *image, label_bound(graph), diagnostics, referrer);
    }
    if (wanted == "tokens") {
        if (graph.tokens_per_sample == 0)
            return refuse("training.data_format", fmt::format("{} takes images, not tokens", graph.name),
                          "use data_format = \"idx\" or \"synthetic\"");
        return load_tokens(path, graph, diagnostics, referrer);
    }
    if (wanted == "bytes") {
        if (image)
            return refuse("training.data_format", fmt::format("{} takes images, not tokens", graph.name),
                          "use data_format = \"idx\" or \"synthetic\"");
        return load_text(path, graph, diagnostics, referrer);
    }
    return refuse("training.data_format",
                  fmt::format("training.data_format = {} is unknown", core::in_quotes(wanted)),
                  "use bytes, tokens, idx or synthetic");
}

InputReader::InputReader(const model::ModelGraph& graph, std::shared_ptr<const DataSource> source)
    : graph_(graph), source_(std::move(source)), inputs_(graph.tensors.size()) {
    std::int64_t largest_table = 0;
    for (const model::Operator& op : graph.operators) {
        if (op.kind == OperatorKind::embedding)
            largest_table = std::max(largest_table, graph.parameter(op.parameters[0]).shape[0]);
        if (op.kind == OperatorKind::select_positions) masked_ = graph.tensor(op.inputs[1]).shape[0];
    }
    for (const model::Operator& op : graph.operators) {
        const auto input = [&](std::size_t i) -> Input& { return inputs_[op.inputs[i].index]; };
        if (op.kind == OperatorKind::embedding) {
            const std::int64_t rows = graph.parameter(op.parameters[0]).shape[0];
            if (input(0).bound > 0) continue;  // read by several tables
            if (rows == largest_table) {
                before_ += tokens_;
                tokens_ = graph.tensor(op.inputs[0]).shape[0];
            }
            input(0) = {rows == largest_table ? Role::tokens : Role::types, rows, before_};
        } else if (op.kind == OperatorKind::select_positions) {
            input(1) = {Role::positions, graph.tensor(op.inputs[0]).shape[0], 0};
        }
    }
    for (const model::Operator& op : graph.operators) {
        if (op.kind != OperatorKind::loss_statistics) continue;
        const std::int64_t rows = graph.tensor(op.inputs[1]).shape[0],
                           classes = graph.tensor(op.inputs[0]).shape.back();
        const bool is_vocabulary = classes == largest_table;
        const Role role = is_vocabulary && masked_ > 0 && rows == masked_ ? Role::masked_tokens
                          : is_vocabulary && rows == tokens_              ? Role::next_tokens
                                                                          : Role::label;
        inputs_[op.inputs[1].index] = {role, classes, before_ + 1};
    }
}

// One of every tokens / count places, ascending.
std::vector<std::int64_t> InputReader::masked_positions(std::int64_t sample, std::int64_t count) const {
    std::vector<std::int64_t> positions(count);
    for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t begin = i * tokens_ / count, end = (i + 1) * tokens_ / count;
        positions[i] = begin + static_cast<std::int64_t>(mixed(0x6D61736B, sample, i) % (end - begin));
    }
    return positions;
}

void InputReader::read(model::TensorId input, std::int64_t sample, std::span<std::int64_t> into) const {
    const Input& what = inputs_[input.index];
    std::vector<std::int64_t> text;
    const auto read_text = [&](std::int64_t count) {
        text.resize(count);
        source_->tokens(sample, text);
    };
    switch (what.role) {
        case Role::tokens:
            read_text(before_ + tokens_ + (masked_ > 0 ? 0 : 1));
            std::copy_n(text.begin() + what.first, into.size(), into.begin());
            if (masked_ > 0)  // the last id stands for [MASK]
                for (const std::int64_t position : masked_positions(sample, masked_))
                    into[position] = what.bound - 1;
            break;
        case Role::next_tokens:
            read_text(before_ + tokens_ + 1);
            std::copy_n(text.begin() + what.first, into.size(), into.begin());
            break;
        case Role::masked_tokens: {
            read_text(tokens_);
            const std::vector<std::int64_t> positions = masked_positions(sample, masked_);
            for (std::size_t i = 0; i < into.size(); ++i) into[i] = text[positions[i]];
            break;
        }
        case Role::positions: {
            const std::vector<std::int64_t> positions = masked_positions(sample, into.size());
            std::copy(positions.begin(), positions.end(), into.begin());
            break;
        }
        case Role::types:  // first and second segment, of equal length
            for (std::size_t i = 0; i < into.size(); ++i)
                into[i] = std::min<std::int64_t>(what.bound - 1, 2 * i < into.size() ? 0 : 1);
            break;
        case Role::label:
            for (std::size_t i = 0; i < into.size(); ++i)
                into[i] = i == 0 ? source_->label(sample, what.bound)
                                 : static_cast<std::int64_t>(mixed(0x7370616E, sample, i) % what.bound);
            break;
    }
}

void InputReader::read(model::TensorId, std::int64_t sample, std::span<float> into) const {
    source_->image(sample, into);
}

}  // namespace exec
