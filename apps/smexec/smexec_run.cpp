#include "apps/smexec/smexec_run.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <ostream>
#include <sstream>
#include <thread>

#include <fmt/core.h>

#include "apps/command.h"
#include "apps/smexec/smexec_job.h"
#include "apps/smexec/smexec_join.h"
#include "apps/smexec/smexec_monitor.h"
#include "apps/smexec/smexec_report.h"
#include "apps/smexec/smexec_resume.h"
#include "apps/termination.h"
#include "core/diagnostics.h"
#include "core/document.h"
#include "exec/cuda/device/device.h"
#include "exec/cuda/make_backend.h"
#include "exec/oracle/reference.h"
#include "exec/transport/exchange.h"
#include "sim/report/trace.h"
#include "sim/scenario.h"

namespace apps {

namespace {

const char* const help =
    "Usage: smexec PLAN.toml [--steps N] [--data FILE] [--check] [--tolerance PCT] [--trace FILE] [--html "
    "FILE] [--json] "
    "[--verbose]\n"
    "       smexec profile [--model MODEL] --out FILE      measures this machine, or a model's operators on "
    "it\n"
    "       smexec convert CHECKPOINT --plan PLAN --out DIR  a checkpoint as another plan would have written "
    "it, or --to hf\n"
    "       mpirun -n 4 smexec PLAN.toml ...               one process a rank; srun and torchrun --no-python "
    "likewise\n"
    "\n"
    "Runs a plan on this machine, every rank at its instructions, and compares step time and memory with the "
    "simulator's prediction.\n"
    "The prediction is made first, from operator times measured here in a few seconds.\n"
    "\n"
    "  --backend WHERE      cpu, or cuda: each rank on a GPU of its host\n"
    "  --cuda-graph         launch steps that repeat as one CUDA graph\n"
    "  --cuda-tune          take the fastest algorithm of each matrix product and attention, and fused "
    "kernels where they are faster: two runs may\n"
    "                       then round differently. What was measured is kept for later runs in "
    "$SMSIM_CUDA_CACHE, or ~/.cache/smsim\n"
    "  --cuda-without LIST  do without: gelu, bias-gradient, residual-norm, norm-gradients, norm-octets, "
    "gated-octets, rotation,\n"
    "                       expert-products (fused kernels), registered-buffers\n"
    "  --cuda-expert-room X experts over several ranks: room for X times the routed tokens that come when "
    "all experts are as busy (2)\n"
    "  --ranks-from WHO     threads: of this process; mpi: processes of mpirun; env: processes that find "
    "each other over TCP, by\n"
    "                       RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT or Slurm's variables. Default: what "
    "the environment shows\n"
    "  --steps N            training steps; the first two are left out of the times\n"
    "  --data FILE          text as bytes, tokens (.bin) or IDX images; without it the plan's data, or "
    "seeded synthetic samples\n"
    "  --checkpoint DIR     write the state of training there after the last step, and after every N-th with "
    "--every N\n"
    "  --checkpoint-local   DIR is each host's own: a rank's files stay on its host, and what another needs "
    "of them later is sent to it.\n"
    "                       --checkpoint-copies N keeps every file on N hosts, so that others may be lost\n"
    "  --resume             go on from the newest whole checkpoint in DIR (--from-step N: from that of step "
    "N), or begin where there is none yet;\n"
    "                       --steps counts from the beginning, and a training that has them all is good\n"
    "  --init FILE          begin with the weights of FILE.safetensors, of an index.json or of a folder as "
    "transformers' save_pretrained\n"
    "                       writes it; with --resume only where there is no checkpoint yet. --steps 0 writes "
    "them as the checkpoint of step 0\n"
    "  --lr-scheduler-type NAME  constant, constant_with_warmup, linear or cosine, as transformers has them, "
    "over --steps; --warmup-steps N of\n"
    "                       them go up from 0. The plan's learning rate is the highest one\n"
    "  --eval-data FILE     held-out data: its loss after every --eval-every N steps and the last one, on "
    "--eval-batches N global batches (all that\n"
    "                       it has); training is the same without it\n"
    "  --metrics FILE       one JSON document a line as training goes on: steps, held-out losses, "
    "checkpoints; "
    "with --resume FILE is gone on with\n"
    "  --set-aside          later checkpoints in DIR, of a training that is not gone on with, are moved to "
    "DIR/set-aside-1; without it they are refused\n"
    "  --check              also train the slow single-rank reference and compare the losses (at most 1e-5 "
    "apart, relative; in lower precision more)\n"
    "  --tolerance PCT      exit 3 when the measured step differs by more from the prediction\n"
    "  --compare            predict, and show both side by side: the default; --no-compare does not, and "
    "starts at once\n"
    "  --html FILE          predicted beside measured, with both timelines, as a page of its own\n"
    "  --trace FILE         predicted and measured timeline as Chrome trace JSON, for ui.perfetto.dev\n"
    "  --time-limit S       the longest a rank may wait for another (120)\n"
    "  --join-limit S       at the start the longest that no rank may come while some are missing (30)\n"
    "  --token-file FILE    the secret by which ranks of --ranks-from env know each other; rank 0 makes one "
    "that is not there. Or\n"
    "                       SMEXEC_TOKEN in the environment\n"
    "  --interface NAME     listen there only (eth0, an address, or all); without it where ranks reach rank "
    "0\n"
    "  --json               one JSON document on stdout\n"
    "  --verbose            losses and times of every step\n"
    "\n"
    "Exit codes: 0 good, 1 internal failure, 2 wrong input, 3 does not fit or tolerance exceeded, 4 machine "
    "failure or ended by a signal\n"
    "(then again with --resume); the same on every rank. With --checkpoint the first SIGTERM, SIGINT or "
    "SIGUSR1 ends training at the\n"
    "next step with a checkpoint.\n"
    "\n"
    "Example:\n"
    "  smexec scenarios/cpu_gpt_pipeline2.toml --steps 20 --check\n";

using exec::transport::World;

enum : exec::Tag { tag_go = 20, tag_end = 21, tag_observed = 22 };

// Of a number's significand.
int bits_of(core::DataType type) {
    switch (type) {
        case core::DataType::fp8: return 4;
        case core::DataType::bf16: return 8;
        case core::DataType::fp16:
        case core::DataType::tf32: return 11;
        case core::DataType::fp32:
        case core::DataType::int64: break;
    }
    return 24;
}

double relative_difference(double loss, double reference) {
    constexpr double least_loss = 1e-30;  // a loss of 0 has no relative difference
    const double difference = std::abs(loss - reference) / std::max(least_loss, std::abs(reference));
    return std::isfinite(difference) ? difference : std::numeric_limits<double>::infinity();
}

// Where losses are too far from the reference: would rounding alone, magnified by what the model does to it,
// take the reference as far from itself?
void consider_conditioning(const ExecutionJob& job, const exec::ReferenceOptions& reference,
                           const std::vector<double>& exact, const std::vector<double>& losses,
                           CheckedLosses& result) {
    bool is_far = false;
    for (std::size_t i = 0; i < losses.size(); ++i)
        is_far = is_far || !(relative_difference(losses[i], result.reference[i]) <= result.allowed);
    if (!is_far) return;
    const std::vector<double> bounds = exec::rounding_bounds(
        job.scenario.graph, job.plan(), job.data, reference, exact, bits_of(job.plan().precision.compute));
    result.bounds.assign(bounds.begin() + job.first_step, bounds.end());
    for (double& bound : result.bounds) bound = std::max(bound, result.allowed);
}

CheckedLosses check(const ExecutionJob& job, const exec::RunOptions& options,
                    const std::vector<double>& losses) {
    CheckedLosses result;
    // Some roundings of half a unit in the last place each: 2^-8 in bf16, 2^-11 in fp16 and tf32, 2^-24 in
    // fp32; a mean over many tokens keeps fewer of them. What linear layers multiply in fp8 is off by up to
    // 2^-4 each, and sums over some hundred of such numbers by less.
    switch (job.plan().precision.compute) {
        case core::DataType::fp8: result.allowed = 5e-2; break;
        case core::DataType::bf16: result.allowed = 1e-2; break;
        case core::DataType::fp16:
        case core::DataType::tf32: result.allowed = 2e-3; break;
        case core::DataType::fp32:
        case core::DataType::int64: break;  // fp32: what CheckedLosses begins with
    }
    // The reference begins at the beginning; a resumed training has had the same recipe since then.
    const exec::ReferenceOptions reference{job.steps, options.seed, !schedule::trains(job.program),
                                           0,         job.initial,  job.learning_rate};
    const int per_update = job.program.micro_batches_per_update;
    const exec::ReferenceResult all =
        per_update > 0 ? exec::run_asynchronous_reference(job.scenario.graph, job.program.plan, per_update,
                                                          job.data, reference)
                       : exec::run_reference(job.scenario.graph, job.plan(), job.data, reference);
    result.reference.assign(all.losses.begin() + job.first_step, all.losses.end());
    if (per_update == 0) consider_conditioning(job, reference, all.losses, losses, result);
    result.router_margins = all.router_margins;
    for (std::size_t i = 0; i < losses.size(); ++i) {
        const double difference = relative_difference(losses[i], result.reference[i]);
        result.largest_difference = std::max(result.largest_difference, difference);
        result.has_wrong_step = result.has_wrong_step ||
                                !(difference <= (result.bounds.empty() ? result.allowed : result.bounds[i]));
    }
    return result;
}

// The verdict is rank 0's: every process ends with its number.
int agreed(World* world, int code) {
    if (!world) return code;
    code = world->number_of_first(tag_end, code);
    world->leave();
    return code;
}

// What is wrong with a plan is told on a machine, too, that could not run it.
void check_plan(const ExecutionRequest& request, core::Diagnostics& diagnostics) {
    const std::optional<core::Value> document = sim::load_scenario_document(request.plan, diagnostics);
    if (document) sim::read_scenario(*document, request.plan, diagnostics, !request.on_gpu);
}

// `world` is null when ranks are threads. `diagnostics`: of the command line; among processes wrong options
// too are told by rank 0 alone.
int execute(const ExecutionRequest& request, World* world, core::Diagnostics& diagnostics, std::ostream& out,
            std::ostream& err) {
    const bool is_first = !world || world->rank() == 0;
    std::optional<ExecutionJob> job =
        diagnostics.has_errors() ? std::nullopt : load_job(request, world ? world->size() : 0, diagnostics);
    if (job)
        prepare_checkpoints(request, world ? std::optional(world->rank()) : std::nullopt, *job, diagnostics);
    if (world && agree_on_folders(*world, request, job && !diagnostics.has_errors(), diagnostics)) {
        if (request.is_local) find_host_checkpoint(*world, request, job, diagnostics);
        else agree_on_checkpoint(*world, request, job, diagnostics);
    }
    if (diagnostics.has_errors()) job.reset();
    if (world && !agree(*world, job, diagnostics)) {
        show(diagnostics, request.as_json, out, err);
        world->leave();
        return wrong_input;
    }
    if (!job) return show(diagnostics, request.as_json, out, err);
    if (is_first) show(diagnostics, false, out, err);
    if (world) complete_copies(*world, request, *job);
    if (job->is_finished) {
        if (is_first) show_finished(request, *job, out, err);
        return agreed(world, good);
    }

    // Without a folder there is nothing to end with, and a signal does what it always does.
    std::optional<TerminationWatch> watch;
    if (!request.checkpoint.empty() && schedule::trains(job->program)) watch.emplace();
    std::optional<sim::Evaluation> predicted;
    int code = good;
    const auto does_not_fit = [&](const std::string& why) {
        core::Diagnostics no;
        no.error({request.plan, 0, 0}, "plan", "does not fit: " + why,
                 "more ranks, sharding, recomputation or a smaller micro-batch take less memory each");
        show(no, request.as_json, out, err);
        code = no_plan;
    };
    if (world && request.compares && !request.on_gpu) measure_here(*job, *world);
    core::Diagnostics place;  // rank 0 alone writes, and its folder may be on its host alone
    if (is_first && !request.trace.empty()) check_output("--trace", request.trace, place);
    if (is_first && !request.html.empty()) api::check_report("--html", request.html, place);
    if (is_first) check_metrics(request, *job, place);
    if (place.has_errors()) {
        code = show(place, request.as_json, out, err);
    } else if (const std::string excess = is_first && !request.on_gpu ? too_large(*job) : std::string();
               !excess.empty()) {
        does_not_fit(excess);
    } else if (is_first && request.compares && job->steps > 0) {
        predicted = predict(*job, request, diagnostics);
        if (!predicted) code = show(diagnostics, request.as_json, out, err);
        else if (!predicted->fits) does_not_fit(predicted->tightest);
    }
    if (world) code = world->number_of_first(tag_go, code);
    if (code != good) return agreed(world, code);

    exec::RunOptions options;
    options.first_step = job->first_step;
    options.sample_offset = job->sample_offset;
    options.resumed = job->resumed;
    options.initial = job->initial;
    options.learning_rate = job->learning_rate;
    options.evaluation = job->evaluation;
    options.steps = job->steps - static_cast<int>(job->first_step);
    options.checkpoints = {request.checkpoint,
                           static_cast<int>(request.every.value_or(0)),
                           2,
                           request.sets_aside,
                           job->damaged_steps,
                           job->host_folders};
    options.warm_up_steps = std::clamp(options.steps - 1, 0, 2);
    options.seed = job->scenario.file.training.seed;
    options.time_limit = request.time_limit;
    if (request.on_gpu) {
        exec::cuda::BackendSettings settings;
        settings.captures_steps = request.captures_steps;
        settings.measures_products = request.measures_products;
        settings.apart = request.apart;
        settings.uses_library_masks = !request.checks;  // the reference drops what the CPU drops
        if (request.expert_room) settings.expert_room = *request.expert_room;
        options.make_backend = exec::cuda::gpu_backend(settings, world != nullptr);
    }
    const bool shows_progress = is_first && has_terminal_for_progress(request);
    options.is_observed = !request.metrics.empty() || shows_progress;
    if (world) options.is_observed = world->number_of_first(tag_observed, options.is_observed ? 1 : 0) != 0;
    std::shared_ptr<TrainingMonitor> monitor;
    if (is_first && options.is_observed)
        options.observer = monitor = TrainingMonitor::start(request, *job, shows_progress ? &err : nullptr);
    options.termination = [] { return TerminationWatch::wish(); };
    options.probes_speed = request.compares && !request.on_gpu;
    if (world && world->host_count() > 1) {
        options.ranks_per_node = ranks_per_node(*world);
        options.overlaps = !request.on_gpu;  // a network works beside the cores; within a host exchange is
                                             // work of the cores themselves
    }
    const std::optional<exec::RunResult> result =
        world ? exec::transport::run(job->program, job->scenario.graph, job->data, options, *world)
              : exec::run(job->program, job->scenario.graph, job->data, options);
    watch.reset();
    if (monitor) monitor->end(*result);
    if (!is_first) return agreed(world, good);
    if (result->interruption) {
        show_interruption(request, *job, *result, out, err);
        return agreed(world, machine_failure);
    }

    if (job->steps == 0) {
        show_written_start(request, *job, out);
        return agreed(world, good);
    }

    const bool has_core_each = job->plan().layout.ranks() <= job->here.device_count();
    const std::vector<std::size_t> steps =
        exec::measured_steps(*result, options.warm_up_steps, has_core_each);
    ExecutionReport report{request,
                           *job,
                           *result,
                           exec::summarize(*result, steps, options.warm_up_steps),
                           std::move(predicted),
                           {},
                           {},
                           "threads",
                           "threads",
                           1,
                           static_cast<int>(job->first_step),
                           options.warm_up_steps,
                           job->remarks};
    if (world) {
        report.transport = world->transport();
        report.hosts = world->host_count();
        report.ranks_are = fmt::format("processes over {}{}", report.transport,
                                       report.hosts > 1 ? fmt::format(" on {} hosts", report.hosts) : "");
    }
    if (report.predicted)
        report.comparison = exec::compare(job->program, report.predicted->timeline,
                                          report.predicted->memory_timeline, report.predicted->step_time,
                                          exec::nearest_timeline(*result, steps, report.times.median),
                                          result->memory, report.times.median,
                                          {options.ranks_per_node,
                                           job->probe,
                                           result->probe,
                                           report.times.lost_share,
                                           job->profile_low,
                                           job->profile_high,
                                           {report.times.p10, report.times.p90}});
    if (request.checks) report.checked = check(*job, options, result->losses);
    int verdict = good;
    try {
        // Memory was sampled in the last step, which is therefore the one that is shown.
        if (!request.trace.empty())
            core::write_file_atomically(
                request.trace,
                report.predicted
                    ? sim::comparison_trace(job->program, job->scenario.graph, report.predicted->timeline,
                                            report.predicted->memory_timeline, result->timelines.back(),
                                            result->memory)
                    : sim::chrome_trace(job->program, job->scenario.graph, result->timelines.back(),
                                        result->memory));
    } catch (const core::MachineError& failure) {  // the run's figures are told all the same
        report.remarks.push_back(fmt::format("the trace is not written: {}", failure.what()));
        verdict = machine_failure;
    }
    constexpr double notable_loss = 0.05;
    if (has_core_each && report.times.lost_share > notable_loss)
        report.remarks.push_back(
            fmt::format("other processes had the ranks' cores for {:.0f}% of their computing time: the "
                        "measured step says little about the prediction",
                        100 * report.times.lost_share));
    show_report(report, out, err);
    if (!request.html.empty()) {
        const int written =
            write_outputs({api::report_file(request.html, page_of(report))}, request.as_json, err);
        if (written != good) verdict = written;
    }
    if (verdict == good && (report.is_too_far() || (report.checked && report.checked->is_wrong())))
        verdict = no_plan;
    return agreed(world, verdict);
}

}  // namespace

const char* smexec_help() { return help; }

int run_smexec(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
    if (std::find(arguments.begin(), arguments.end(), "--help") != arguments.end()) {
        out << help;
        return good;
    }
    core::Diagnostics diagnostics;
    const ExecutionRequest request = parse_execution(arguments, diagnostics);
    // Who is rank 0 is known before anything is printed, so that one rank tells for all.
    core::Diagnostics launching;
    const std::optional<exec::transport::Launch> launch =
        exec::transport::find_launch(request.ranks_from, exec::transport::environment_variable, launching);
    if (launching.has_errors()) {
        diagnostics.append(launching);
        return show(diagnostics, request.as_json, out, err);
    }
    if (request.on_gpu && !diagnostics.has_errors())
        if (const exec::cuda::DeviceReport device = exec::cuda::probe_device(); !device.available) {
            if (!launch) check_plan(request, diagnostics);
            if (diagnostics.has_errors()) return show(diagnostics, request.as_json, out, err);
            throw core::MachineError(exec::cuda::describe(device));
        }
    const JoinRequest joining{request.interface, request.token_file, request.join_limit};
    if (!launch) check_not_joining(joining, "these ranks are threads", diagnostics);
    if (!launch && request.is_local)
        diagnostics.error({}, "--checkpoint-local",
                          "--checkpoint-local is of ranks that are processes: threads share one folder",
                          "leave it out");
    if (!launch) return execute(request, nullptr, diagnostics, out, err);

    const std::optional<exec::transport::JoinOptions> join = join_options(*launch, joining, diagnostics, err);
    if (!join) return show(diagnostics, request.as_json, out, err);
    World world(*launch, request.time_limit, *join);
    std::ostringstream unheard;
    const bool is_first = world.rank() == 0;
    try {
        return execute(request, &world, diagnostics, is_first ? out : unheard, is_first ? err : unheard);
    } catch (const std::exception& failure) {
        exec::transport::ProcessCommunicator& communicator = world.communicator();
        communicator.give_up(fmt::format("rank {}: {}", world.rank(), failure.what()));
        if (communicator.is_speaker()) throw;
        // Rank 0 has the word: a launcher that sees this process fail would end it before it has spoken.
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        return machine_failure;
    }
}

}  // namespace apps
