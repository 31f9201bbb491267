// What a model is trained on: windows of a text's bytes or tokens, images with labels, or seeded synthetic
// samples. A sample is a function of its global number alone, so losses do not depend on the
// plan.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/diagnostics_fwd.h"
#include "exec/data/data_source.h"
#include "model/model_fwd.h"

namespace exec {

// Which sample the i-th of a micro-batch is: step * global_batch + data_rank * (micro_batches * micro_batch)
// + k * micro_batch + i.
std::int64_t global_sample(std::int64_t step, int data_rank, int data, int micro_batches, int micro_batch,
                           int k, int i);

// One input of the graph for one sample, filled from a source.
class InputReader {
public:
    InputReader(const model::ModelGraph& graph, std::shared_ptr<const DataSource> source);
    // `input` is the output tensor of an `input` operator; `into` has its element count.
    void read(model::TensorId input, std::int64_t sample, std::span<std::int64_t> into) const;
    void read(model::TensorId input, std::int64_t sample, std::span<float> into) const;
    const DataSource& source() const { return *source_; }

private:
    enum class Role { tokens, types, positions, next_tokens, masked_tokens, label };
    struct Input {
        Role role = Role::label;
        std::int64_t bound = 0;  // ids are below it
        std::int64_t first = 0;  // of the sample's text
    };
    std::vector<std::int64_t> masked_positions(std::int64_t sample, std::int64_t count) const;

    const model::ModelGraph& graph_;
    std::shared_ptr<const DataSource> source_;
    std::vector<Input> inputs_;  // by tensor
    std::int64_t masked_ = 0;    // masked tokens a sample, 0 = none
    std::int64_t tokens_ = 0;    // of the last sequence
    std::int64_t before_ = 0;  // of the sequences before it: a decoder goes on where its encoder's text ends
};

// `path` empty = synthetic. `format` is one of schedule::data_formats or empty (by the model and the path).
// What the file cannot give the graph is diagnosed under `key`.
std::shared_ptr<const DataSource> load_data(const std::string& path, const std::string& format,
                                            std::uint64_t seed, const model::ModelGraph& graph,
                                            core::Diagnostics& diagnostics,
                                            const core::SourceLocation& referrer = {},
                                            const std::string& key = "training.data");

}  // namespace exec
