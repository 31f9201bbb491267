#include "exec/checkpoint/checkpoint.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <limits>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "core/document.h"
#include "core/errors.h"
#include "core/reader.h"
#include "exec/checkpoint/checksum.h"
#include "exec/checkpoint/durable_file.h"

namespace exec {

namespace fs = std::filesystem;

namespace {

constexpr const char* manifest_name = "manifest.json";
constexpr int manifest_version = 3;  // 1 had neither data_identity nor recipe; 1 and 2 had rank-N.state

std::string partial_folder(const std::string& directory, std::int64_t step) {
    return checkpoint_folder(directory, step) + ".partial";
}

std::optional<std::int64_t> step_of(const std::string& name, const std::string& ending) {
    constexpr std::string_view begin = "step-";
    if (!name.starts_with(begin) || !name.ends_with(ending)) return std::nullopt;
    std::int64_t step = 0;
    const char *first = name.data() + begin.size(), *last = name.data() + name.size() - ending.size();
    const auto [end, error] = std::from_chars(first, last, step);
    if (error != std::errc() || end != last || first == last) return std::nullopt;
    return step;
}

std::vector<std::int64_t> steps_with(const std::string& directory, const std::string& ending) {
    std::vector<std::int64_t> steps;
    std::error_code none;
    for (const fs::directory_entry& entry : fs::directory_iterator(directory, none))
        if (const auto step = step_of(entry.path().filename().string(), ending);
            step && entry.is_directory(none))
            steps.push_back(*step);
    std::sort(steps.begin(), steps.end());
    return steps;
}

core::Value to_value(const CheckpointManifest& manifest) {
    core::Value value = core::Value::table();
    value["format"] = "smexec checkpoint";
    value["version"] = manifest_version;
    value["step"] = manifest.step;
    value["next_sample"] = manifest.next_sample;
    value["seed"] = fmt::format("{}", manifest.seed);  // JSON numbers lose bits above 2^53
    value["model"] = manifest.model;
    value["model_hash"] = manifest.model_hash;
    value["program_hash"] = manifest.program_hash;
    value["plan"] = manifest.plan;
    value["data"] = manifest.data;
    if (!manifest.data_identity.empty()) value["data_identity"] = manifest.data_identity;
    if (!manifest.recipe.empty()) value["recipe"] = manifest.recipe;
    if (!manifest.initial_weights.empty()) value["initial_weights"] = manifest.initial_weights;
    if (manifest.loss_scaling) {
        core::Value& scaling = value["loss_scaling"] = core::Value::table();
        scaling["scale"] = double{manifest.loss_scaling->scale};
        scaling["good_steps"] = manifest.loss_scaling->good_steps;
        scaling["left_out"] = manifest.loss_scaling->left_out;
    }
    value["files"] = core::Value::array();
    for (const CheckpointFile& file : manifest.files) {
        core::Value entry = core::Value::table();
        entry["name"] = file.name;
        entry["bytes"] = static_cast<std::int64_t>(file.bytes);
        entry["xxh64"] = fmt::format("{:016x}", file.checksum);
        value["files"].append(std::move(entry));
    }
    value["losses"] = core::Value(manifest.losses);
    return value;
}

std::uint64_t checksum_of(const core::Value& value) {
    const std::string text = core::to_json(value);
    return checksum(std::as_bytes(std::span(text)));
}

template <class Number>
bool read_number(const std::string& text, Number& number, int base) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, base);
    return error == std::errc() && end == text.data() + text.size();
}

std::optional<LossScaling> read_loss_scaling(core::TableReader& reader, core::Diagnostics& diagnostics) {
    const core::Value* const table = reader.optional_table("loss_scaling");
    if (!table) return std::nullopt;
    core::TableReader of_scaling(*table, "loss_scaling", diagnostics);
    LossScaling scaling;
    scaling.scale = static_cast<float>(of_scaling.required_real("scale", {.least = 1e-30}));
    scaling.good_steps = of_scaling.required_integer("good_steps", {.least = 0});
    scaling.left_out = of_scaling.required_integer("left_out", {.least = 0});
    of_scaling.finish();
    return scaling;
}

std::optional<CheckpointManifest> read_manifest(const std::string& folder, std::string& failure) {
    const std::string path = folder + "/" + manifest_name;
    core::Diagnostics diagnostics;
    const std::optional<core::Value> document = core::load_document(path, diagnostics);
    CheckpointManifest manifest;
    if (document) {
        // The last member is the checksum of the others as they were written.
        core::Value rest = *document;
        std::uint64_t sum = 0;
        if (!rest.is_table() || rest.size() == 0 || rest.members().back().first != "xxh64" ||
            !rest.members().back().second.is_string() ||
            !read_number(rest.members().back().second.string(), sum, 16)) {
            failure = fmt::format("{} is damaged: it has no checksum", path);
            return std::nullopt;
        }
        rest.members().pop_back();
        if (sum != checksum_of(rest)) {
            failure = fmt::format("{} is damaged: its checksum is {:016x}, {:016x} was written", path,
                                  checksum_of(rest), sum);
            return std::nullopt;
        }
        core::TableReader reader(rest, "", diagnostics);
        if (reader.required_string("format") != "smexec checkpoint" ||
            reader.required_integer("version", {.least = 1}) > manifest_version)
            diagnostics.error({path, 0, 0}, "format", "this is no checkpoint of this version", "");
        manifest.step = reader.required_integer("step", {.least = 0});
        manifest.next_sample = reader.required_integer("next_sample", {.least = 0});
        if (!read_number(reader.required_string("seed"), manifest.seed, 10))
            diagnostics.error({path, 0, 0}, "seed", "seed is no number", "");
        manifest.model = reader.required_string("model");
        manifest.model_hash = reader.required_string("model_hash");
        manifest.program_hash = reader.required_string("program_hash");
        manifest.plan = reader.required_string("plan");
        manifest.data = reader.required_string("data");
        manifest.data_identity = reader.string("data_identity", "");
        manifest.recipe = reader.string("recipe", "");
        manifest.initial_weights = reader.string("initial_weights", "");
        manifest.loss_scaling = read_loss_scaling(reader, diagnostics);
        if (const core::Value* losses = reader.required_array("losses"))
            for (const core::Value& loss : losses->items())
                manifest.losses.push_back(loss.is_number() ? loss.number()
                                                           : std::numeric_limits<double>::quiet_NaN());
        if (const core::Value* files = reader.required_array("files"))
            for (const core::Value& entry : files->items()) {
                core::TableReader file_reader(entry, "files", diagnostics);
                CheckpointFile& file = manifest.files.emplace_back();
                file.name = file_reader.required_string("name");
                if (file.name.find('/') != std::string::npos)
                    diagnostics.error({path, 0, 0}, "files.name", "a file's name has no folder", "");
                file.bytes = file_reader.required_integer("bytes", {.least = 0});
                if (!read_number(file_reader.required_string("xxh64"), file.checksum, 16))
                    diagnostics.error({path, 0, 0}, "files.xxh64", "no hexadecimal number", "");
                file_reader.finish();
            }
        reader.finish();
    }
    if (!diagnostics.has_errors()) return manifest;
    failure = fmt::format("{} is damaged: {}", path, diagnostics.entries().front().message);
    return std::nullopt;
}

bool overlap(const StateNeeds& needs, const RankFile::Array& array) {
    const auto found = needs.find({array.parameter, array.kind});
    if (found == needs.end()) return false;
    // Both ascend.
    auto needed = found->second.begin();
    for (const ElementRange& range : array.ranges) {
        while (needed != found->second.end() && needed->first + needed->count <= range.first) ++needed;
        if (needed == found->second.end()) return false;
        if (needed->first < range.first + range.count) return true;
    }
    return false;
}

// The manifest is the last thing written into a folder before it gets its name.
bool lacks_only_its_name(const std::string& directory, std::int64_t step) {
    std::error_code none;
    std::string failure;
    return !fs::exists(checkpoint_folder(directory, step), none) &&
           read_manifest(partial_folder(directory, step), failure);
}

// Where a committed checkpoint is.
std::string present_folder(const std::string& directory, std::int64_t step) {
    return lacks_only_its_name(directory, step) ? partial_folder(directory, step)
                                                : checkpoint_folder(directory, step);
}

}  // namespace

std::string checkpoint_folder(const std::string& directory, std::int64_t step) {
    return fmt::format("{}/step-{:08}", directory, step);
}

std::vector<std::int64_t> committed_steps(const std::string& directory) {
    std::vector<std::int64_t> steps = steps_with(directory, "");
    for (const std::int64_t step : steps_with(directory, ".partial"))
        if (lacks_only_its_name(directory, step)) steps.push_back(step);
    std::sort(steps.begin(), steps.end());
    return steps;
}

std::string damaged_folder(const std::string& directory, std::int64_t step) {
    return checkpoint_folder(directory, step) + ".damaged";
}

std::optional<std::int64_t> step_of_folder(const std::string& name) { return step_of(name, ""); }

bool Checkpoint::load(const std::string& folder, const StateNeeds* needs, std::string& failure) {
    const std::optional<CheckpointManifest> manifest = read_manifest(folder, failure);
    if (!manifest) return false;
    manifest_ = *manifest;
    for (const CheckpointFile& file : manifest_.files) {
        files_.push_back(RankFile::open(folder, file, failure));
        if (!files_.back()) return false;
        index_file(files_.size() - 1);
        if (!verify(files_.size() - 1, needs, failure)) return false;
    }
    for (auto& [key, pieces] : pieces_)
        std::stable_sort(pieces.begin(), pieces.end(),
                         [](const Piece& a, const Piece& b) { return a.range.first < b.range.first; });
    return true;
}

void Checkpoint::index_file(std::size_t file) {
    const std::vector<RankFile::Array>& arrays = files_[file]->arrays();
    for (std::size_t i = 0; i < arrays.size(); ++i) {
        std::vector<Piece>& pieces = pieces_[{arrays[i].parameter, arrays[i].kind}];
        std::int64_t at = 0;
        for (const ElementRange& range : arrays[i].ranges) {
            pieces.push_back({range, file, i, at});
            at += range.count;
        }
    }
}

bool Checkpoint::verify(std::size_t file, const StateNeeds* needs, std::string& failure) {
    const std::vector<RankFile::Array>& arrays = files_[file]->arrays();
    bool is_needed = false;
    for (std::size_t i = 0; i < arrays.size(); ++i) {
        if (needs && !overlap(*needs, arrays[i])) continue;
        is_needed = true;
        if (!files_[file]->verify(i, failure)) return false;
    }
    if (!is_needed) files_[file].reset();  // thousands of ranks have more files than a process may open
    return true;
}

std::shared_ptr<const Checkpoint> Checkpoint::open(const std::string& directory,
                                                   std::optional<std::int64_t> step,
                                                   core::Diagnostics& diagnostics, bool is_resumed,
                                                   const StateNeeds* needs) {
    const char* const key = is_resumed ? "--resume" : "CHECKPOINT";
    const std::vector<std::int64_t> steps = committed_steps(directory);
    if (steps.empty()) {
        diagnostics.error(
            {}, key, fmt::format("there is no checkpoint in {}", core::in_quotes(directory)),
            is_resumed ? "start without --resume" : "name a folder that a run was given with --checkpoint");
        return nullptr;
    }
    if (step && std::find(steps.begin(), steps.end(), *step) == steps.end()) {
        std::vector<std::string> known;
        for (const std::int64_t one : steps) known.push_back(std::to_string(one));
        diagnostics.error(
            {}, "--from-step",
            fmt::format("there is no checkpoint of step {} in {}", *step, core::in_quotes(directory)),
            "there are those of " + core::list_in_words(known));
        return nullptr;
    }
    const std::int64_t wanted = step.value_or(steps.back());
    auto checkpoint = std::make_shared<Checkpoint>();
    std::string failure;
    if (checkpoint->load(present_folder(directory, wanted), needs, failure)) return checkpoint;
    std::string hint = is_resumed ? "no older checkpoint is whole: start again without --resume"
                                  : "no older checkpoint is whole";
    for (auto older = steps.rbegin(); older != steps.rend(); ++older) {
        std::string ignored;
        if (*older >= wanted || !Checkpoint().load(present_folder(directory, *older), needs, ignored))
            continue;
        hint = fmt::format("the checkpoint of step {} is whole: --from-step {}{}", *older, *older,
                           is_resumed ? " --set-aside" : "");
        break;
    }
    diagnostics.error({}, key, failure, hint);
    return nullptr;
}

NewestCheckpoint Checkpoint::open_newest(const std::string& directory, std::optional<std::int64_t> newest,
                                         const StateNeeds* needs) {
    NewestCheckpoint result;
    const std::vector<std::int64_t> steps = committed_steps(directory);
    for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
        if (newest && *step > *newest) continue;
        auto checkpoint = std::make_shared<Checkpoint>();
        std::string failure;
        if (checkpoint->load(present_folder(directory, *step), needs, failure)) {
            result.checkpoint = std::move(checkpoint);
            break;
        }
        result.damaged.push_back({*step, failure});
    }
    return result;
}

bool Checkpoint::read(const std::string& parameter, StateKind kind, std::int64_t first,
                      std::span<float> into) const {
    const auto found = pieces_.find({parameter, kind});
    if (found == pieces_.end()) return into.empty();
    std::int64_t at = first;
    const std::int64_t end = first + std::ssize(into);
    // The same elements may be there more than once: copies of tied parameters.
    for (const Piece& piece : found->second) {
        const std::int64_t piece_end = piece.range.first + piece.range.count;
        if (piece.range.first > at || at >= end) break;
        if (piece_end <= at) continue;
        const std::int64_t until = std::min(piece_end, end);
        core::require(files_[piece.file] != nullptr, "what is read of a checkpoint was asked for");
        std::string failure;
        if (!files_[piece.file]->read(piece.array, piece.at + at - piece.range.first,
                                      into.subspan(at - first, until - at), failure))
            throw core::MachineError(failure);
        at = until;
    }
    return at >= end;
}

std::optional<std::string> folder_failure(const std::string& directory) {
    std::error_code error;
    fs::path existing = fs::absolute(directory, error);
    while (!fs::exists(fs::symlink_status(existing, error)) && existing.has_relative_path() &&
           existing != existing.parent_path())
        existing = existing.parent_path();
    if (!fs::is_directory(existing, error)) return fmt::format("{} is no folder", existing.string());
    if (::access(existing.c_str(), W_OK | X_OK) != 0)
        return fmt::format("{} cannot be written: {}", existing.string(), std::strerror(errno));
    return std::nullopt;
}

void tidy_checkpoints(const std::string& directory) {
    std::error_code error;
    fs::create_directories(directory, error);
    if (error) throw core::MachineError(fmt::format("creating {}: {}", directory, error.message()));
    for (const std::int64_t step : steps_with(directory, ".partial")) {
        const std::string partial = partial_folder(directory, step),
                          place = checkpoint_folder(directory, step);
        if (lacks_only_its_name(directory, step)) {
            fs::rename(partial, place, error);
            synchronize_directory(directory);
        } else {
            fs::remove_all(partial, error);
        }
    }
    for (const std::int64_t step : steps_with(directory, ".replaced"))
        fs::remove_all(checkpoint_folder(directory, step) + ".replaced", error);
}

void set_aside_later(const std::string& directory, std::int64_t step) {
    std::vector<std::int64_t> later = steps_with(directory, "");
    std::erase_if(later, [&](std::int64_t one) { return one <= step; });
    if (later.empty()) return;
    std::string aside;
    for (int i = 1; aside.empty(); ++i) {
        const std::string candidate = fmt::format("{}/set-aside-{}", directory, i);
        if (::mkdir(candidate.c_str(), 0755) == 0) aside = candidate;
        else if (errno != EEXIST) throw_system_error("creating", candidate);
    }
    // The newest first: a run that ends half-way leaves no gap before the newest.
    for (auto one = later.rbegin(); one != later.rend(); ++one)
        if (::rename(checkpoint_folder(directory, *one).c_str(), checkpoint_folder(aside, *one).c_str()) != 0)
            throw_system_error("moving", checkpoint_folder(directory, *one));
    synchronize_directory(aside);
    synchronize_directory(directory);
}

void set_aside_damaged(const std::string& directory, const std::vector<std::int64_t>& steps) {
    std::error_code error;
    for (const std::int64_t step : steps) {
        const std::string place = checkpoint_folder(directory, step), aside = damaged_folder(directory, step);
        if (!fs::exists(place, error)) continue;
        fs::remove_all(aside, error);  // of an earlier attempt at the same step
        if (::rename(place.c_str(), aside.c_str()) != 0) throw_system_error("moving", place);
    }
    if (!steps.empty()) synchronize_directory(directory);
}

CheckpointFile write_rank_state(const std::string& directory, std::int64_t step, int rank,
                                const std::vector<StateRecord>& records) {
    const std::string folder = partial_folder(directory, step);
    if (::mkdir(folder.c_str(), 0755) != 0 && errno != EEXIST) throw_system_error("creating", folder);
    return write_rank_file(folder, rank, records);
}

void commit_checkpoint(const std::string& directory, const CheckpointManifest& manifest, int keep) {
    const std::string partial = partial_folder(directory, manifest.step),
                      place = checkpoint_folder(directory, manifest.step);
    std::error_code error;
    for (const CheckpointFile& file : manifest.files)
        if (fs::file_size(partial + "/" + file.name, error) != file.bytes || error)
            throw core::MachineError(
                fmt::format("{}/{} was written by another rank but is not seen by rank 0: all hosts must "
                            "share the folder of --checkpoint",
                            partial, file.name));
    core::Value value = to_value(manifest);
    const std::uint64_t sum = checksum_of(value);
    value["xxh64"] = fmt::format("{:016x}", sum);
    const std::string text = core::to_json(value) + "\n";
    const std::span<const std::byte> content = std::as_bytes(std::span(text));
    write_durably(partial, manifest_name, {&content, 1});
    if (fs::exists(place, error)) {
        // From an earlier run that went further: it goes when the new one has its place.
        fs::rename(place, place + ".replaced", error);
        if (error) throw core::MachineError(fmt::format("renaming {}: {}", place, error.message()));
    }
    if (::rename(partial.c_str(), place.c_str()) != 0) throw_system_error("renaming", partial);
    synchronize_directory(directory);
    fs::remove_all(place + ".replaced", error);
    const std::vector<std::int64_t> steps = steps_with(directory, "");
    for (std::size_t i = 0; i + keep < steps.size(); ++i)
        if (steps[i] < manifest.step) fs::remove_all(checkpoint_folder(directory, steps[i]), error);
}

}  // namespace exec
