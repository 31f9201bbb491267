#include "exec/weights/initial_weights.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "core/diagnostics.h"
#include "core/document.h"
#include "core/errors.h"
#include "core/index/integers.h"
#include "core/units.h"
#include "exec/checkpoint/checksum.h"

namespace exec {

namespace fs = std::filesystem;

namespace {

constexpr const char* option = "--init";
constexpr const char *single_file = "model.safetensors", *index_file = "model.safetensors.index.json";

// Files of an index, {"weight_map": {"TENSOR": "FILE", ...}}, each once.
std::optional<std::vector<std::string>> files_of_index(const std::string& path,
                                                       core::Diagnostics& diagnostics) {
    constexpr std::size_t largest_index = 100u << 20;  // some hundred bytes a tensor
    const std::optional<std::string> text = core::read_file(path, diagnostics, {}, option, largest_index);
    if (!text) return std::nullopt;
    const std::optional<core::Value> index = core::parse_json(*text, path, diagnostics);
    if (!index) return std::nullopt;
    const core::Value* map = index->find("weight_map");
    std::set<std::string> names;
    if (map && map->is_table())
        for (const auto& [tensor, file] : map->members())
            if (file.is_string() && file.string().find('/') == std::string::npos) names.insert(file.string());
    if (names.empty()) {
        diagnostics.error({path, 0, 0}, option, fmt::format("{} has no weight_map of files", path),
                          "give an index as save_pretrained writes it, or a .safetensors file");
        return std::nullopt;
    }
    std::vector<std::string> files;
    for (const std::string& name : names) files.push_back((fs::path(path).parent_path() / name).string());
    return files;
}

std::string words_of(const std::vector<std::int64_t>& shape) {
    return fmt::format("[{}]", fmt::join(shape, ", "));
}

// Buffers that older releases of transformers saved beside the weights.
bool is_buffer(const std::string& tensor) {
    return tensor.ends_with(".rotary_emb.inv_freq") || tensor.ends_with(".attn.bias") ||
           tensor.ends_with(".attn.masked_bias") || tensor.ends_with("position_ids") ||
           tensor.ends_with(".attention.bias") || tensor.ends_with(".attention.masked_bias");
}

// "a, b and 5 more"
std::string some_of(const std::vector<std::string>& names) {
    constexpr std::size_t most = 5;
    const std::size_t shown = std::min(most, names.size());
    std::string text = fmt::format("{}", fmt::join(names.begin(), names.begin() + shown, ", "));
    return names.size() > shown ? fmt::format("{} and {} more", text, names.size() - shown) : text;
}

}  // namespace

std::shared_ptr<const InitialWeights> InitialWeights::open(const std::string& path,
                                                           const model::ModelGraph& graph,
                                                           core::Diagnostics& diagnostics) {
    const std::size_t errors = diagnostics.error_count();
    auto result = std::make_shared<InitialWeights>();
    WeightNames names;
    if (!result->open_files(path, diagnostics) || !result->choose_names(path, graph, names, diagnostics))
        return nullptr;
    result->find_sources(graph, names, diagnostics);
    if (diagnostics.error_count() != errors || !result->find_identity(diagnostics)) return nullptr;
    return result;
}

bool InitialWeights::open_files(const std::string& path, core::Diagnostics& diagnostics) {
    std::error_code none;
    std::string place = path;
    if (fs::is_directory(path, none)) {
        const fs::path folder(path);
        const bool has_index = fs::exists(folder / index_file, none);
        place = (folder / (has_index ? index_file : single_file)).string();
    }
    std::vector<std::string> paths = {place};
    if (place.ends_with(".json")) {
        const auto listed = files_of_index(place, diagnostics);
        if (!listed) return false;
        paths = *listed;
    }
    for (const std::string& one : paths) {
        std::string failure;
        std::optional<SafetensorsFile> file = SafetensorsFile::open(one, failure);
        if (file) files_.emplace_back(one, std::move(*file));
        else
            diagnostics.error(
                {}, option, failure,
                "give a .safetensors file, an index or a folder as save_pretrained writes them");
    }
    return files_.size() == paths.size();
}

bool InitialWeights::choose_names(const std::string& path, const model::ModelGraph& graph, WeightNames& names,
                                  core::Diagnostics& diagnostics) {
    names = own_names(graph);
    if (find(names.rows.front().front())) {
        naming_ = "our own names";
        return true;
    }
    std::variant<WeightNames, core::Unsupported> theirs = huggingface_names(graph);
    if (const auto* unsupported = std::get_if<core::Unsupported>(&theirs)) {
        diagnostics.error({}, option,
                          fmt::format("{} has not our own names, and Hugging Face's are not known for this "
                                      "model: {}",
                                      core::in_quotes(path, 300), unsupported->reason),
                          "smexec convert CHECKPOINT --to safetensors writes files with our own names");
        return false;
    }
    names = std::move(std::get<WeightNames>(theirs));
    naming_ = "Hugging Face's names";
    return true;
}

std::optional<InitialWeights::Source> InitialWeights::find(const WeightRows& rows) const {
    for (const std::string& name : aliases_of(rows.tensor))
        for (const auto& [path, file] : files_)
            if (const auto found = file.tensors().find(name); found != file.tensors().end())
                return Source{&file, &found->second, rows};
    return std::nullopt;
}

void InitialWeights::find_sources(const model::ModelGraph& graph, const WeightNames& names,
                                  core::Diagnostics& diagnostics) {
    std::set<const SafetensorsFile::Tensor*> used;
    std::vector<std::string> missing, beyond;
    for (const model::ParameterId id : graph.parameters.ids()) {
        Parameter& parameter = parameters_.emplace_back();
        const std::vector<std::int64_t>& shape = graph.parameter(id).shape;
        if (shape.size() > 1) parameter.columns = shape.back();
        for (const WeightRows& rows : names.rows[id]) {
            std::optional<Source> source = find(rows);
            if (!source) {
                if (missing.empty() || missing.back() != rows.tensor) missing.push_back(rows.tensor);
                continue;
            }
            used.insert(source->tensor);
            if (source->tensor->shape != rows.shape)
                diagnostics.error({}, option,
                                  fmt::format("{} has the shape {}, {} of {} needs {}", rows.tensor,
                                              words_of(source->tensor->shape), graph.parameter(id).name,
                                              graph.name, words_of(rows.shape)),
                                  "give the plan the dimensions of the model that the file is of");
            parameter.sources.push_back(std::move(*source));
        }
    }
    if (!missing.empty())
        diagnostics.error(
            {}, option, fmt::format("the file has no {}, which {} needs", some_of(missing), graph.name),
            "give the plan the model that the file is of (tied embeddings, heads and layers too)");
    for (const auto& [path, file] : files_)
        for (const auto& [name, tensor] : file.tensors())
            if (!used.contains(&tensor) && !is_buffer(name)) beyond.push_back(name);
    if (!beyond.empty() && missing.empty())
        diagnostics.warning({}, option, fmt::format("{} has no place for {}", graph.name, some_of(beyond)),
                            "they are left out");
}

bool InitialWeights::find_identity(core::Diagnostics& diagnostics) {
    // Of the sums of all arrays, by name: how they are spread over files makes no difference.
    std::set<std::string> lines;
    std::uint64_t bytes = 0;
    for (const auto& [path, file] : files_)
        for (const auto& [name, tensor] : file.tensors()) {
            std::string failure;
            const std::optional<std::uint64_t> sum = file.checksum_of(tensor, failure);
            if (!sum) {
                diagnostics.error({}, option, failure, "the file must be readable as a whole");
                return false;
            }
            lines.insert(fmt::format("{} {} {} {:016x}\n", name, tensor.type, words_of(tensor.shape), *sum));
            bytes += tensor.bytes;
        }
    const std::string all = fmt::format("{}", fmt::join(lines, ""));
    identity_ =
        fmt::format("{} bytes of arrays, xxh64 {:016x}", bytes, checksum(std::as_bytes(std::span(all))));
    return true;
}

std::string InitialWeights::describe() const {
    std::uint64_t bytes = 0;
    for (const auto& [path, file] : files_) bytes += file.bytes();
    return fmt::format(
        "{} with {}, {}",
        files_.size() == 1 ? core::in_quotes(files_[0].first, 300) : fmt::format("{} files", files_.size()),
        naming_, core::format(core::Bytes(static_cast<double>(bytes))));
}

void InitialWeights::read(model::ParameterId id, std::int64_t first, std::span<float> into) const {
    const Parameter& parameter = parameters_[id];
    const std::int64_t end = first + std::ssize(into);
    for (const Source& source : parameter.sources) {
        const std::int64_t source_first = source.rows.first * parameter.columns,
                           source_end = source_first + source.rows.count * parameter.columns,
                           low = std::max(first, source_first), high = std::min(end, source_end);
        if (low < high)
            read_rows(source, parameter.columns, low - source_first, into.subspan(low - first, high - low));
    }
}

void InitialWeights::read_rows(const Source& source, std::int64_t columns, std::int64_t element,
                               std::span<float> into) const {
    const std::int64_t at = source.rows.first_in_tensor * columns + element;
    if (source.rows.is_transposed) {
        const std::shared_ptr<const std::vector<float>> whole = transposed(source);
        std::copy_n(whole->begin() + at, into.size(), into.begin());
        return;
    }
    std::string failure;
    if (!source.file->read(*source.tensor, at, into, failure)) throw core::MachineError(failure);
}

std::shared_ptr<const std::vector<float>> InitialWeights::transposed(const Source& source) const {
    const std::lock_guard lock(mutex_);
    for (const auto& [tensor, values] : recent_)
        if (tensor == source.tensor) return values;
    const std::int64_t inputs = source.rows.shape[0], outputs = source.rows.shape[1];
    std::vector<float> stored(inputs * outputs);
    std::string failure;
    if (!source.file->read(*source.tensor, 0, stored, failure)) throw core::MachineError(failure);
    auto turned = std::make_shared<std::vector<float>>(stored.size());
    for (std::int64_t i = 0; i < inputs; ++i)
        for (std::int64_t o = 0; o < outputs; ++o) (*turned)[o * inputs + i] = stored[i * outputs + o];
    constexpr std::size_t most = 16;  // about the ranks of a machine, each at another tensor
    if (recent_.size() == most) recent_.erase(recent_.begin());
    recent_.emplace_back(source.tensor, turned);
    return turned;
}

}  // namespace exec
