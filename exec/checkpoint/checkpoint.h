// Checkpoints: what training needs to go on as if nothing had happened. One file a rank and a manifest; a
// checkpoint is there when its folder has its name.
//
//   DIR/step-00000040/rank-0000.safetensors ... rank-0003.safetensors, manifest.json
//
// A rank's file (rank_file.h) holds arrays with the places of their elements in the whole, unsplit parameter:
// any plan of the same model can be resumed from them, and a rank reads the arrays that it needs. Files are
// written beside their destination, synchronised and renamed; the folder is called step-N.partial until its
// manifest is in it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/diagnostics_fwd.h"
#include "exec/checkpoint/manifest.h"
#include "exec/checkpoint/rank_file.h"

namespace exec {

// What a rank is going to read: ranges of elements by array.
using StateNeeds = std::map<std::pair<std::string, StateKind>, std::vector<ElementRange>>;

struct DamagedCheckpoint {
    std::int64_t step = 0;
    std::string failure;  // which file, and in which way
};
struct NewestCheckpoint;

// A committed checkpoint: its manifest and the headers of all files are read, and the arrays that are needed
// verified.
class Checkpoint {
public:
    // A missing, truncated or altered file is a diagnostic that names it and the newest older checkpoint that
    // is whole. `is_resumed` false: the caller does not train. `needs`: what is read later, and alone
    // verified; null = everything.
    static std::shared_ptr<const Checkpoint> open(const std::string& directory,
                                                  std::optional<std::int64_t> step,
                                                  core::Diagnostics& diagnostics, bool is_resumed = true,
                                                  const StateNeeds* needs = nullptr);

    // The newest that is whole, of at most `newest` steps; damaged ones are passed over.
    static NewestCheckpoint open_newest(const std::string& directory, std::optional<std::int64_t> newest,
                                        const StateNeeds* needs = nullptr);

    // Of files that are verified already; null where nothing of one is read.
    static std::shared_ptr<const Checkpoint> of_files(CheckpointManifest manifest,
                                                      std::vector<std::unique_ptr<const RankFile>> files);

    const CheckpointManifest& manifest() const { return manifest_; }
    bool has(const std::string& parameter, StateKind kind) const {
        return pieces_.contains({parameter, kind});
    }
    // Elements [first, first + into.size()), from any thread; false when some are not there. Throws
    // core::MachineError when a file cannot be read any more.
    bool read(const std::string& parameter, StateKind kind, std::int64_t first, std::span<float> into) const;

private:
    // Elements of a parameter that lie one after another in an array of a file.
    struct Piece {
        ElementRange range;
        std::size_t file = 0, array = 0;
        std::int64_t at = 0;  // in the array
    };
    bool load(const std::string& folder, const StateNeeds* needs, std::string& failure);
    void index_file(std::size_t file);
    void sort_pieces();
    bool verify(std::size_t file, const StateNeeds* needs, std::string& failure);

    CheckpointManifest manifest_;
    std::vector<std::unique_ptr<const RankFile>> files_;                      // null: nothing of it is needed
    std::map<std::pair<std::string, StateKind>, std::vector<Piece>> pieces_;  // ascending
};

struct NewestCheckpoint {
    std::shared_ptr<const Checkpoint> checkpoint;  // null: none is whole
    std::vector<DamagedCheckpoint> damaged;        // the newest first
};

// Steps of the committed checkpoints in a folder, ascending: with those that are whole and only lack their
// name, which the next run gives them.
std::vector<std::int64_t> committed_steps(const std::string& directory);

// Why checkpoints cannot be written into a folder, which may be one to be made: asked before hours of
// training, not after.
std::optional<std::string> folder_failure(const std::string& directory);

// Whether ranges of an array are among what is needed.
bool overlap(const StateNeeds& needs, const RankFile::Array& array);

// The steps of writing one, in this order; each throws core::MachineError with path and the system's words.
// Rank 0 first: what a killed run left half done goes, and a checkpoint that only lacked its name gets it.
void tidy_checkpoints(const std::string& directory);
// Rank 0, next, when training goes on from an older checkpoint or from none beside others: those of later
// steps are moved to DIR/set-aside-1, or the first such folder that is not there yet, from which they can be
// resumed. Otherwise a later --resume would take the newest of two trainings.
void set_aside_later(const std::string& directory, std::int64_t step);
// Rank 0, next: damaged checkpoints that were passed over are kept under another name, so that none of them
// is taken for the newest again.
void set_aside_damaged(const std::string& directory, const std::vector<std::int64_t>& steps);
CheckpointFile write_rank_state(const std::string& directory, std::int64_t step, int rank,
                                const std::vector<StateRecord>& records);
// Rank 0, when all files are written: from then on the checkpoint counts. Older ones beyond the newest `keep`
// go.
void commit_checkpoint(const std::string& directory, const CheckpointManifest& manifest, int keep);
// The same in two steps, for folders of several hosts (hosts/): the checkpoint gets its manifest and its
// name; when it has them everywhere, those beyond the newest `keep` go.
void name_checkpoint(const std::string& directory, const CheckpointManifest& manifest);
void remove_older(const std::string& directory, std::int64_t step, int keep);

std::string checkpoint_folder(const std::string& directory, std::int64_t step);
// What it is called while it is written.
std::string partial_folder(const std::string& directory, std::int64_t step);
// Steps of all folders step-N and step-N.partial, committed or not, ascending.
std::vector<std::int64_t> begun_steps(const std::string& directory);
// What a damaged checkpoint is called from then on.
std::string damaged_folder(const std::string& directory, std::int64_t step);
// Of a folder's own name; nothing for a name that is none of ours.
std::optional<std::int64_t> step_of_folder(const std::string& name);

}  // namespace exec
