// Weights to begin a training with, from safetensors files: Hugging Face's, or ours (weight_export.h).
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/diagnostics_fwd.h"
#include "exec/checkpoint/safetensors.h"
#include "exec/weights/weight_names.h"

namespace exec {

class InitialWeights {
public:
    // `path`: a .safetensors file, a model.safetensors.index.json, or a folder with either, as
    // save_pretrained writes it. What the graph needs and the files have not, or have in another shape, is
    // diagnosed under --init, all of it; what they have beyond it is a warning. Reads all of the files once,
    // for identity().
    static std::shared_ptr<const InitialWeights> open(const std::string& path, const model::ModelGraph& graph,
                                                      core::Diagnostics& diagnostics);

    // Elements [first, first + into.size()) of a parameter, from any thread. Throws core::MachineError when a
    // file cannot be read any more.
    void read(model::ParameterId parameter, std::int64_t first, std::span<float> into) const;

    std::string describe() const;  // for people: "2 files of Hugging Face's names, 1.2 MiB"
    // Equal for equal weights: size and XXH64 of the content, wherever it lies.
    const std::string& identity() const { return identity_; }

private:
    struct Source {
        const SafetensorsFile* file = nullptr;
        const SafetensorsFile::Tensor* tensor = nullptr;
        WeightRows rows;
    };
    struct Parameter {
        std::int64_t columns = 1;
        std::vector<Source> sources;
    };
    bool open_files(const std::string& path, core::Diagnostics& diagnostics);
    bool choose_names(const std::string& path, const model::ModelGraph& graph, WeightNames& names,
                      core::Diagnostics& diagnostics);
    void find_sources(const model::ModelGraph& graph, const WeightNames& names,
                      core::Diagnostics& diagnostics);
    bool find_identity(core::Diagnostics& diagnostics);
    std::optional<Source> find(const WeightRows& rows) const;
    void read_rows(const Source& source, std::int64_t columns, std::int64_t element,
                   std::span<float> into) const;
    std::shared_ptr<const std::vector<float>> transposed(const Source& source) const;

    std::vector<std::pair<std::string, SafetensorsFile>> files_;  // by path; not changed after open_files
    core::IndexedVector<model::ParameterId, Parameter> parameters_;
    std::string identity_, naming_;
    // Tensors that lie the other way round, the last ones read: ranks read them run by run.
    mutable std::mutex mutex_;
    mutable std::vector<std::pair<const SafetensorsFile::Tensor*, std::shared_ptr<const std::vector<float>>>>
        recent_;
};

}  // namespace exec
