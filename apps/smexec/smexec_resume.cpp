#include "apps/smexec/smexec_resume.h"

#include <algorithm>
#include <charconv>
#include <set>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "exec/checkpoint/checkpoint_lock.h"
#include "exec/checkpoint/hosts/host_checkpoint.h"
#include "exec/checkpoint/hosts/host_copies.h"
#include "exec/checkpoint/training_state.h"
#include "exec/transport/exchange.h"

namespace apps {

namespace {

enum : exec::Tag { tag_checkpoints = 18, tag_checkpoint = 19, tag_readable = 23 };

// Steps that lie in the folder and after the one where this training begins are another training's: the next
// --resume would take them for this one's newest. Damaged ones are this training's own.
void check_later_steps(const ExecutionRequest& request, const ExecutionJob& job,
                       core::Diagnostics& diagnostics) {
    if (request.sets_aside) return;
    std::string later;
    for (const std::int64_t step : exec::committed_steps(request.checkpoint))
        if (step > job.first_step &&
            std::find(job.damaged_steps.begin(), job.damaged_steps.end(), step) == job.damaged_steps.end())
            later += fmt::format("{}{}", later.empty() ? "" : ", ", step);
    if (later.empty()) return;
    const std::string steps = "checkpoints of step " + later;
    if (request.resumes)
        diagnostics.error({}, "--from-step",
                          fmt::format("{} has {}, after step {} from which to go on",
                                      core::in_quotes(request.checkpoint), steps, job.first_step),
                          "--set-aside moves them to a folder of their own; without --from-step the newest "
                          "is gone on with");
    else
        diagnostics.error({}, "--checkpoint",
                          fmt::format("{} has {} already, and this training begins anew",
                                      core::in_quotes(request.checkpoint), steps),
                          "--resume goes on with them, --set-aside moves them to a folder of their own; or "
                          "name another folder");
}

// Two jobs in one folder would take each other's checkpoints for their own.
void lock(const ExecutionRequest& request, ExecutionJob& job, core::Diagnostics& diagnostics) {
    // A job that was just killed may still be ending.
    const core::Seconds patience = core::seconds(3);
    exec::CheckpointLock lock = exec::lock_checkpoints(request.checkpoint, patience);
    if (lock.holder)
        diagnostics.error(
            {}, "--checkpoint",
            fmt::format("{} is in use by another job: {}", core::in_quotes(request.checkpoint), *lock.holder),
            "wait for its end or end it; or name another folder");
    if (lock.unavailable)
        diagnostics.warning({}, "--checkpoint", *lock.unavailable,
                            "nothing keeps another job out of this folder");
    job.lock = std::move(lock.held);
}

// What was found, with diagnostics of what was passed over. None, without an error, where a training has no
// checkpoint yet: a loop that always says --resume begins with it. `is_expected`: there was one.
std::shared_ptr<const exec::Checkpoint> take(const exec::NewestCheckpoint& found,
                                             const ExecutionRequest& request, ExecutionJob& job,
                                             bool is_expected, core::Diagnostics& diagnostics) {
    for (const exec::DamagedCheckpoint& damaged : found.damaged) {
        job.damaged_steps.push_back(damaged.step);
        if (found.checkpoint)
            diagnostics.warning({}, "--resume", damaged.failure,
                                fmt::format("training goes on from step {}, the newest that is whole{}",
                                            found.checkpoint->manifest().step,
                                            schedule::trains(job.program)
                                                ? "; the damaged one is kept as " +
                                                      exec::damaged_folder(request.checkpoint, damaged.step)
                                                : std::string()));
    }
    if (found.checkpoint) return found.checkpoint;
    if (!found.damaged.empty())
        diagnostics.error({}, "--resume", found.damaged.front().failure,
                          request.is_local
                              ? "no older checkpoint is whole: start with the hosts that have its files, or "
                                "copy them into the same folder of one of these; --checkpoint-copies 2 keeps "
                                "every file on two hosts"
                              : "no older checkpoint is whole: start again without --resume in another "
                                "folder");
    else if (is_expected || !schedule::trains(job.program))
        diagnostics.error({}, "--resume",
                          fmt::format("there is no checkpoint in {}", core::in_quotes(request.checkpoint)),
                          "start without --resume");
    else
        diagnostics.warning({}, "--resume",
                            fmt::format("there is no checkpoint in {} yet: training begins at the beginning",
                                        core::in_quotes(request.checkpoint)));
    return nullptr;
}

void compare(const ExecutionRequest& request, ExecutionJob& job, core::Diagnostics& diagnostics) {
    const exec::CheckpointManifest& manifest = job.resumed->manifest();
    if (manifest.model_hash != job.program.model_hash)
        diagnostics.error({}, "--resume",
                          fmt::format("the checkpoint of step {} is of {}, the plan of another model: {}",
                                      manifest.step, manifest.model, job.scenario.graph.name),
                          "resume with the model that was trained");
    if (manifest.seed != job.scenario.file.training.seed)
        diagnostics.error({}, "--resume",
                          fmt::format("the checkpoint was trained with seed {}, the plan says {}",
                                      manifest.seed, job.scenario.file.training.seed),
                          "set training.seed to the checkpoint's");
    // An old manifest knows the file's name and size only.
    const bool is_same_data = manifest.data_identity.empty() ? manifest.data == job.data->describe()
                                                             : manifest.data_identity == job.data->identity();
    if (!is_same_data)
        diagnostics.error(
            {}, "--resume",
            fmt::format("the checkpoint was trained on {} ({}), now it is {} ({})", manifest.data,
                        manifest.data_identity.empty() ? "no checksum" : manifest.data_identity,
                        job.data->describe(), job.data->identity()),
            "go on with the same data: samples are counted in it");
    if (job.initial && job.initial->identity() != manifest.initial_weights)
        diagnostics.error(
            {}, "--init",
            fmt::format("the checkpoint's training began with {}, the file of --init has {}",
                        manifest.initial_weights.empty() ? "seeded values" : manifest.initial_weights,
                        job.initial->identity()),
            "leave out --init: the checkpoint has what became of them; or begin anew in another folder");
    if (request.checks && !job.initial && !manifest.initial_weights.empty())
        diagnostics.error(
            {}, "--check",
            fmt::format("the checkpoint's training began with weights of a file ({}), with which "
                        "the reference must begin too",
                        manifest.initial_weights),
            "name it with --init, or leave out --check");
    if (const std::string missing =
            schedule::trains(job.program)
                ? exec::state_difference(*job.resumed, job.plan(), job.scenario.graph).missing
                : std::string();
        !missing.empty())
        diagnostics.error({}, "--resume",
                          fmt::format("the checkpoint of step {} has no {}, which {} needs", manifest.step,
                                      missing, schedule::name_of(job.plan().optimizer.kind)),
                          "resume with the optimizer that was trained with");
    if (const std::string recipe = exec::recipe_of(job.program, job.scenario.graph, job.learning_rate);
        request.checks && manifest.recipe != recipe)
        diagnostics.error(
            {}, "--check",
            manifest.recipe.empty()
                ? "the checkpoint does not say how it was trained, so no reference can follow it"
                : fmt::format("the reference trains from the first step as one plan says, but the checkpoint "
                              "was trained with {}, and goes on with {}",
                              manifest.recipe, recipe),
            "leave out --check, or resume with the plan that was trained with");
}

// Where the checkpoint, if there is one, left off. Another plan of the same model may go on: samples continue
// where the last one stopped.
void go_on(const ExecutionRequest& request, std::shared_ptr<const exec::Checkpoint> from, ExecutionJob& job,
           core::Diagnostics& diagnostics) {
    job.resumed = std::move(from);
    job.first_step = job.sample_offset = 0;
    if (!job.resumed) return;
    compare(request, job, diagnostics);
    const exec::CheckpointManifest& manifest = job.resumed->manifest();
    job.first_step = manifest.step;
    job.sample_offset = manifest.next_sample - manifest.step * job.plan().global_batch();
    job.is_finished = schedule::trains(job.program) && manifest.step >= job.steps;
    if (!schedule::trains(job.program) && manifest.step >= job.steps)
        diagnostics.error({}, "--steps",
                          fmt::format("the checkpoint has {} steps behind it, --steps asks for {}",
                                      manifest.step, job.steps),
                          "--steps counts from the beginning of the training: raise it");
}

// The newest whole checkpoint of at most `newest` steps.
void resume(const ExecutionRequest& request, ExecutionJob& job, std::optional<std::int64_t> newest,
            core::Diagnostics& diagnostics) {
    const exec::StateNeeds* const needs = job.needs ? &*job.needs : nullptr;
    go_on(request,
          request.from_step
              ? exec::Checkpoint::open(request.checkpoint, request.from_step, diagnostics, true, needs)
              : take(exec::Checkpoint::open_newest(request.checkpoint, newest, needs), request, job,
                     newest.has_value(), diagnostics),
          job, diagnostics);
}

// When it is known where training begins.
void check_beginning(const ExecutionRequest& request, ExecutionJob& job, bool leads_folder,
                     core::Diagnostics& diagnostics) {
    if (!schedule::trains(job.program)) return;
    if (leads_folder && (!request.resumes || job.resumed)) check_later_steps(request, job, diagnostics);
    if (job.resumed && !job.is_finished &&
        job.resumed->manifest().program_hash != schedule::hash_of(job.program))
        job.remarks.push_back(
            fmt::format("the checkpoint was written by {}; it goes on as {}: losses equal up to rounding",
                        job.resumed->manifest().plan, exec::degrees_in_words(job.plan())));
}

}  // namespace

void prepare_checkpoints(const ExecutionRequest& request, std::optional<int> rank, ExecutionJob& job,
                         core::Diagnostics& diagnostics) {
    if (request.checkpoint.empty()) return;
    const bool is_first = rank.value_or(0) == 0;
    if (rank) job.needs = exec::needs_of(job.program, job.scenario.graph, *rank);
    if (request.is_local) return;  // find_host_checkpoint
    if (is_first && schedule::trains(job.program)) lock(request, job, diagnostics);
    if (diagnostics.has_errors()) return;
    if (request.resumes) resume(request, job, std::nullopt, diagnostics);
    check_beginning(request, job, true, diagnostics);
}

bool agree_on_folders(exec::transport::World& world, const ExecutionRequest& request, bool can_begin,
                      core::Diagnostics& diagnostics) {
    // With folders of their own all ranks look for a checkpoint together, or none does.
    std::string mode = request.is_local ? "local" : "shared";
    if (request.is_local && request.resumes) mode += ", resumes";
    if (request.is_local && request.from_step) mode += fmt::format(", from step {}", *request.from_step);
    const std::vector<std::string> all =
        exec::gather_texts(world.communicator(), tag_readable, (can_begin ? "" : "!") + mode);
    std::set<std::string> modes;
    bool one_cannot = false;
    for (const std::string& one : all) {
        one_cannot = one_cannot || one.starts_with('!');
        modes.insert(one.substr(one.starts_with('!') ? 1 : 0));
    }
    const std::string verdict = exec::broadcast_text(world.communicator(), tag_readable,
                                                     modes.size() > 1 ? "differ"
                                                     : one_cannot     ? "no"
                                                                      : "");
    if (verdict == "differ")
        diagnostics.error({}, "--checkpoint-local",
                          "some ranks were started with --checkpoint-local, some without, or some of them "
                          "with --resume or --from-step and some without",
                          "start every rank with the same options");
    return verdict.empty();
}

void agree_on_checkpoint(exec::transport::World& world, const ExecutionRequest& request,
                         std::optional<ExecutionJob>& job, core::Diagnostics& diagnostics) {
    exec::transport::ProcessCommunicator& communicator = world.communicator();
    while (true) {
        // Who has no checkpoint to go on from, or nothing that could start, says so to agree().
        const bool has_one = job && job->resumed && !diagnostics.has_errors();
        const std::vector<std::string> all = exec::gather_texts(
            communicator, tag_checkpoints, has_one ? std::to_string(job->first_step) : std::string());
        std::string verdict;
        if (world.rank() == 0 && std::find(all.begin(), all.end(), "") == all.end()) {
            std::vector<std::int64_t> steps;
            for (const std::string& one : all) steps.push_back(std::stoll(one));
            const auto [least, greatest] = std::minmax_element(steps.begin(), steps.end());
            if (*least != *greatest) verdict = std::to_string(*least);
        }
        verdict = exec::broadcast_text(communicator, tag_checkpoint, verdict);
        if (verdict.empty()) return;
        const std::int64_t newest = std::stoll(verdict);
        if (job->first_step == newest) continue;
        job->damaged_steps.push_back(job->first_step);
        diagnostics.warning(
            {}, "--resume",
            fmt::format("the checkpoint of step {} is not whole for every rank", job->first_step),
            fmt::format("training goes on from step {}", newest));
        resume(request, *job, newest, diagnostics);
    }
}

void find_host_checkpoint(exec::transport::World& world, const ExecutionRequest& request,
                          std::optional<ExecutionJob>& job, core::Diagnostics& diagnostics) {
    exec::transport::ProcessCommunicator& communicator = world.communicator();
    communicator.set_patient(true);  // reading and verifying files may take long
    const auto folders = std::make_shared<exec::HostFolders>(exec::find_host_folders(
        communicator, request.checkpoint, world.hosts()[world.rank()], request.copies));
    job->host_folders = folders;
    const bool leads = folders->leads(world.rank());
    if (request.copies > folders->count())
        diagnostics.error({}, "--checkpoint-copies",
                          fmt::format("{} copies of a file are to lie in different folders, but the hosts of "
                                      "this job have {}",
                                      request.copies, folders->count()),
                          "ask for fewer copies, or name a folder of each host's own");
    if (leads && schedule::trains(job->program)) lock(request, *job, diagnostics);
    if (request.resumes) {
        exec::HostCheckpoint found =
            exec::open_newest(communicator, *folders, request.checkpoint, request.from_step, *job->needs);
        go_on(request, take(found, request, *job, request.from_step.has_value(), diagnostics), *job,
              diagnostics);
        job->holders = std::move(found.holders);
    }
    communicator.set_patient(false);
    check_beginning(request, *job, leads, diagnostics);
}

void complete_copies(exec::transport::World& world, const ExecutionRequest& request, ExecutionJob& job) {
    if (!job.host_folders || !job.resumed || !schedule::trains(job.program)) return;
    exec::transport::ProcessCommunicator& communicator = world.communicator();
    communicator.set_patient(true);
    const int copied = exec::complete_copies(communicator, *job.host_folders, request.checkpoint,
                                             job.resumed->manifest(), job.holders);
    communicator.set_patient(false);
    if (copied > 0)
        job.remarks.push_back(
            fmt::format("{} {} of the checkpoint of step {} lay in fewer folders than "
                        "--checkpoint-copies {}: copied",
                        copied, copied == 1 ? "file" : "files", job.first_step, request.copies));
}

}  // namespace apps
