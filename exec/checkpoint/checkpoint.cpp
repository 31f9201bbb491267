#include "exec/checkpoint/checkpoint.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "core/errors.h"
#include "exec/checkpoint/durable_file.h"

namespace exec {

namespace fs = std::filesystem;

namespace {

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

std::string partial_folder(const std::string& directory, std::int64_t step) {
    return checkpoint_folder(directory, step) + ".partial";
}

std::vector<std::int64_t> begun_steps(const std::string& directory) {
    std::vector<std::int64_t> steps = steps_with(directory, "");
    for (const std::int64_t step : steps_with(directory, ".partial")) steps.push_back(step);
    std::sort(steps.begin(), steps.end());
    steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
    return steps;
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
        if (!files_.back()) {
            if (!manifest_.places.empty())
                failure += fmt::format("; it was written to {}", manifest_.places[files_.size() - 1]);
            return false;
        }
        index_file(files_.size() - 1);
        if (!verify(files_.size() - 1, needs, failure)) return false;
    }
    sort_pieces();
    return true;
}

std::shared_ptr<const Checkpoint> Checkpoint::of_files(CheckpointManifest manifest,
                                                       std::vector<std::unique_ptr<const RankFile>> files) {
    auto checkpoint = std::make_shared<Checkpoint>();
    checkpoint->manifest_ = std::move(manifest);
    checkpoint->files_ = std::move(files);
    for (std::size_t file = 0; file < checkpoint->files_.size(); ++file) checkpoint->index_file(file);
    checkpoint->sort_pieces();
    return checkpoint;
}

void Checkpoint::sort_pieces() {
    for (auto& [key, pieces] : pieces_)
        std::stable_sort(pieces.begin(), pieces.end(),
                         [](const Piece& a, const Piece& b) { return a.range.first < b.range.first; });
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
    const std::string partial = partial_folder(directory, manifest.step);
    std::error_code error;
    for (const CheckpointFile& file : manifest.files)
        if (fs::file_size(partial + "/" + file.name, error) != file.bytes || error)
            throw core::MachineError(
                fmt::format("{}/{} was written by another rank but is not seen by rank 0: all hosts must "
                            "share the folder of --checkpoint, or keep their own with --checkpoint-local",
                            partial, file.name));
    name_checkpoint(directory, manifest);
    remove_older(directory, manifest.step, keep);
}

void name_checkpoint(const std::string& directory, const CheckpointManifest& manifest) {
    const std::string partial = partial_folder(directory, manifest.step),
                      place = checkpoint_folder(directory, manifest.step);
    write_manifest(partial, text_of(manifest));
    std::error_code error;
    if (fs::exists(place, error)) {
        // From an earlier run that went further: it goes when the new one has its place.
        fs::rename(place, place + ".replaced", error);
        if (error) throw core::MachineError(fmt::format("renaming {}: {}", place, error.message()));
    }
    if (::rename(partial.c_str(), place.c_str()) != 0) throw_system_error("renaming", partial);
    synchronize_directory(directory);
    fs::remove_all(place + ".replaced", error);
}

void remove_older(const std::string& directory, std::int64_t step, int keep) {
    std::error_code error;
    const std::vector<std::int64_t> steps = steps_with(directory, "");
    for (std::size_t i = 0; i + keep < steps.size(); ++i)
        if (steps[i] < step) fs::remove_all(checkpoint_folder(directory, steps[i]), error);
}

}  // namespace exec
