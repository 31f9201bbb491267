#include "exec/data.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "core/diagnostics.h"
#include "core/random.h"
#include "exec/data/image_files.h"
#include "exec/data/text_files.h"
#include "model/model_graph.h"
#include "schedule/plan/plan_file.h"

namespace exec {

using model::OperatorKind;

std::int64_t global_sample(std::int64_t step, int data_rank, int data, int micro_batches, int micro_batch,
                           int k, int i) {
    const std::int64_t of_rank = std::int64_t{micro_batches} * micro_batch;
    return step * of_rank * data + data_rank * of_rank + std::int64_t{k} * micro_batch + i;
}

namespace {

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

}  // namespace

std::shared_ptr<const DataSource> load_data(const std::string& path, const std::string& format,
                                            std::uint64_t seed, const model::ModelGraph& graph,
                                            core::Diagnostics& diagnostics, const core::SourceLocation& place,
                                            const std::string& key) {
    const model::Tensor* image = image_input(graph);
    const std::string wanted = !format.empty()          ? format
                               : path.empty()           ? "synthetic"
                               : image                  ? "idx"
                               : path.ends_with(".bin") ? "tokens"
                                                        : "bytes";
    if (wanted == "synthetic") return std::make_shared<Synthetic>(seed, graph.vocabulary, label_bound(graph));
    const DataReferrer referrer{key, place};
    const std::string format_key = key + "_format";
    const auto refuse = [&](const std::string& which, const std::string& message, const std::string& hint) {
        diagnostics.error(place, which, message, hint);
        return nullptr;
    };
    const std::vector<std::string> known = schedule::data_formats();
    if (std::find(known.begin(), known.end(), wanted) == known.end())
        return refuse(format_key, fmt::format("{} = {} is unknown", format_key, core::in_quotes(wanted)),
                      fmt::format("use one of {}", fmt::join(known, ", ")));
    if (path.empty())
        return refuse(key, fmt::format("{} = \"{}\" needs {}", format_key, wanted, key),
                      "name a file, or use the format \"synthetic\"");
    const bool is_of_images = wanted == "idx" || wanted.starts_with("cifar");
    if (is_of_images && !image)
        return refuse(format_key, fmt::format("{} takes tokens, not images", graph.name),
                      "use the format \"bytes\", \"tokens\" or \"synthetic\"");
    if (!is_of_images && (image || graph.tokens_per_sample == 0))
        return refuse(format_key, fmt::format("{} takes images, not tokens", graph.name),
                      "use the format \"idx\", \"cifar10\" or \"synthetic\"");
    if (wanted == "idx") return load_images(path, *image, label_bound(graph), referrer, diagnostics);
    if (is_of_images)
        return load_cifar(path, {.labels = wanted == "cifar100" ? 2U : 1U}, *image, label_bound(graph),
                          referrer, diagnostics);
    if (wanted == "bytes") return load_text(path, graph, referrer, diagnostics);
    return load_tokens(path, wanted == "tokens32" ? 32 : 16, graph, referrer, diagnostics);
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
