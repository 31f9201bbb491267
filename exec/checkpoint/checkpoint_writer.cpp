#include "exec/checkpoint/checkpoint_writer.h"

#include <cstdlib>
#include <sstream>
#include <utility>

#include <fmt/core.h>

#include "core/errors.h"
#include "exec/checkpoint/hosts/host_copies.h"
#include "exec/checkpoint/training_state.h"
#include "exec/transport/exchange.h"
#include "exec/transport/signal_free_thread.h"
#include "exec/weights/initial_weights.h"

namespace exec {

namespace {

enum : Tag { tag_files = 32, tag_committed = 33, tag_manifest = 46, tag_named = 47 };
// Of barriers that ask whether all have written; those of steps count from 0.
constexpr std::uint64_t first_question = std::uint64_t{1} << 40;

// The recipes of a training that went on with another one, or perhaps did: what was not recorded stays
// unknown.
std::string continued(const std::string& earlier, const std::string& now) {
    const std::string next = "; then " + now;
    return earlier.empty() || earlier == now || earlier.ends_with(next) ? earlier : earlier + next;
}

CheckpointManifest manifest_of(const schedule::Program& program, const model::ModelGraph& graph,
                               const RunOptions& options, const DataSource& data, std::int64_t step) {
    CheckpointManifest manifest;
    manifest.step = step;
    manifest.next_sample = options.sample_offset + step * program.plan.global_batch();
    manifest.seed = options.seed;
    manifest.model = graph.name;
    manifest.model_hash = program.model_hash;
    manifest.program_hash = schedule::hash_of(program);
    manifest.plan = degrees_in_words(program.plan);
    manifest.data = data.describe();
    manifest.data_identity = data.identity();
    manifest.recipe = recipe_of(program, graph, options.learning_rate);
    if (const HostFolders* const folders = options.checkpoints.host_folders.get())
        for (const int folder : folders->folder_of_rank) manifest.places.push_back(folders->places[folder]);
    if (options.initial) manifest.initial_weights = options.initial->identity();
    if (!options.resumed) return manifest;
    const CheckpointManifest& before = options.resumed->manifest();
    manifest.initial_weights = before.initial_weights;
    manifest.recipe = continued(before.recipe, manifest.recipe);
    manifest.losses = before.losses;
    return manifest;
}

}  // namespace

CheckpointWriter::CheckpointWriter(Communicator& communicator, const schedule::Program& program,
                                   const model::ModelGraph& graph, const RunOptions& options,
                                   const DataSource& data)
    : communicator_(communicator),
      program_(program),
      graph_(graph),
      options_(options),
      data_(data),
      thread_(transport::start_signal_free([this] { work(); })) {}

CheckpointWriter::~CheckpointWriter() {
    {
        const std::lock_guard lock(mutex_);
        ends_ = true;
    }
    changed_.notify_all();
    thread_.join();
}

void CheckpointWriter::work() {
    communicator_.stand_alone(true);
    std::unique_lock lock(mutex_);
    while (true) {
        changed_.wait(lock, [&] { return ends_ || records_; });
        if (ends_) return;
        const std::vector<StateRecord> records = std::move(*records_);
        const std::int64_t step = step_;
        records_.reset();
        lock.unlock();
        std::optional<CheckpointFile> file;
        std::exception_ptr failure;
        try {
            file = write(step, records);
        } catch (...) {
            failure = std::current_exception();
        }
        lock.lock();
        file_ = std::move(file);
        failure_ = failure;
        changed_.notify_all();
    }
}

CheckpointFile CheckpointWriter::write(std::int64_t step, const std::vector<StateRecord>& records) {
    const CheckpointOptions& checkpoints = options_.checkpoints;
    const auto write_own = [&] {
        return write_rank_state(checkpoints.directory, step, communicator_.rank(), records);
    };
    if (!checkpoints.host_folders || checkpoints.host_folders->copies < 2) return write_own();
    const std::string folder = partial_folder(checkpoints.directory, step);
    CheckpointFile file;
    try {
        file = write_own();
    } catch (...) {
        exchange_copies(communicator_, *checkpoints.host_folders, folder, {});
        throw;
    }
    exchange_copies(communicator_, *checkpoints.host_folders, folder, file);
    return file;
}

void CheckpointWriter::save(std::int64_t step, const std::vector<BucketState>& buckets,
                            const std::vector<double>& losses, const std::optional<LossScaling>& scaling) {
    std::vector<StateRecord> records = records_of(program_, graph_, communicator_.rank(), buckets);
    commit();
    pending_ = {step, losses, scaling};
    {
        const std::lock_guard lock(mutex_);
        records_ = std::move(records);
        step_ = step;
    }
    changed_.notify_all();
}

bool CheckpointWriter::is_written() {
    const std::lock_guard lock(mutex_);
    return file_ || failure_;
}

void CheckpointWriter::commit_if_written() {
    if (!pending_) return;
    // The greatest word of all ranks: 1 while anyone still writes.
    if (barrier(communicator_, first_question + questions_++, is_written() ? 0 : 1) == 0) commit();
}

void CheckpointWriter::commit() {
    if (!pending_) return;
    CheckpointFile own;
    {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return file_ || failure_; });
        if (failure_) std::rethrow_exception(failure_);
        own = *std::exchange(file_, std::nullopt);
    }
    std::string text = fmt::format("{} {} {}", own.name, own.bytes, own.checksum);
    for (const double loss : pending_->losses) text += fmt::format(" {:a}", loss);
    const std::vector<std::string> all = gather_texts(communicator_, tag_files, text);
    CheckpointManifest manifest;
    if (communicator_.rank() == 0) {
        manifest = manifest_of(program_, graph_, options_, data_, pending_->step);
        manifest.loss_scaling = pending_->scaling;
        const std::size_t earlier = manifest.losses.size();
        for (const std::string& one : all) {
            std::istringstream words(one);
            CheckpointFile& file = manifest.files.emplace_back();
            words >> file.name >> file.bytes >> file.checksum;
            const bool is_known = manifest.losses.size() > earlier;
            for (std::string loss; words >> loss;)
                if (!is_known) manifest.losses.push_back(std::strtod(loss.c_str(), nullptr));
        }
    }
    if (options_.checkpoints.host_folders) commit_in_host_folders(manifest);
    else if (communicator_.rank() == 0)
        commit_checkpoint(options_.checkpoints.directory, manifest, options_.checkpoints.keep);
    broadcast_text(communicator_, tag_committed, "");
    committed_ = pending_->step;
    pending_.reset();
}

// All files are written, so that each folder may name the checkpoint by itself; what came before it goes when
// all have.
void CheckpointWriter::commit_in_host_folders(const CheckpointManifest& of_rank_0) {
    const CheckpointOptions& checkpoints = options_.checkpoints;
    const std::string text =
        broadcast_text(communicator_, tag_manifest, communicator_.rank() == 0 ? text_of(of_rank_0) : "");
    const bool leads = checkpoints.host_folders->leads(communicator_.rank());
    std::string failure;
    const std::optional<CheckpointManifest> manifest = read_manifest_text(text, "manifest.json", failure);
    core::require(manifest.has_value(), "a manifest that was just written can be read");
    if (leads) name_checkpoint(checkpoints.directory, *manifest);
    gather_texts(communicator_, tag_named, "");
    broadcast_text(communicator_, tag_named, "");
    if (leads) remove_older(checkpoints.directory, manifest->step, checkpoints.keep);
}

}  // namespace exec
