#include "apps/smexec/smexec_monitor.h"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <optional>
#include <ostream>

#include <fmt/chrono.h>
#include <fmt/core.h>

#include "apps/command.h"
#include "apps/terminal.h"
#include "apps/termination.h"
#include "core/diagnostics.h"
#include "core/document.h"
#include "core/errors.h"

namespace apps {

namespace {

std::string now() {
    return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}",
                       std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now()));
}

// A file's lines up to `step`; the first that is none of ours in `strange`, unless it is the last one and has
// no end: a kill in the middle of a line.
struct MetricsFile {
    std::string kept;
    std::optional<std::size_t> strange;
    bool has_steps = false;
};
MetricsFile read_metrics(const std::string& path, std::int64_t step) {
    MetricsFile result;
    std::ifstream file(path, std::ios::binary);
    std::size_t number = 0;
    for (std::string line; std::getline(file, line);) {
        ++number;
        const bool is_cut_off = file.eof();
        core::Diagnostics ignored;
        const std::optional<core::Value> value =
            is_cut_off ? std::nullopt : core::parse_json(line, path, ignored);
        const core::Value* const event = value && value->is_table() ? value->find("event") : nullptr;
        const core::Value* const at = event ? value->find("step") : nullptr;
        if (!at || at->kind() != core::Value::Kind::integer) {
            if (!is_cut_off && !result.strange) result.strange = number;
            continue;
        }
        result.has_steps = true;
        if (at->integer() <= step) result.kept += line + '\n';
    }
    return result;
}

}  // namespace

bool has_terminal_for_progress(const ExecutionRequest& request) { return !request.as_json && can_redraw(); }

void check_metrics(const ExecutionRequest& request, const ExecutionJob& job, core::Diagnostics& diagnostics) {
    if (request.metrics.empty()) return;
    check_output("--metrics", request.metrics, diagnostics);
    const MetricsFile found = read_metrics(request.metrics, job.first_step);
    const std::string name = core::in_quotes(request.metrics);
    if (found.strange)
        diagnostics.error({request.metrics, static_cast<int>(*found.strange), 0}, "--metrics",
                          fmt::format("{} is no file of metrics", name), "name another file");
    else if (found.has_steps && !request.resumes)
        diagnostics.error({}, "--metrics",
                          fmt::format("{} has the metrics of a training, and this one begins anew", name),
                          "--resume goes on with them; or name another file");
}

TrainingMonitor::TrainingMonitor(const ExecutionRequest& request, const ExecutionJob& job,
                                 std::ostream* terminal)
    : path_(request.metrics),
      folder_(request.checkpoint),
      steps_(job.steps),
      tokens_a_step_(job.plan().global_batch() * job.scenario.graph.tokens_per_sample),
      samples_a_step_(job.plan().global_batch()),
      completed_(job.first_step),
      terminal_(terminal) {}

std::shared_ptr<TrainingMonitor> TrainingMonitor::start(const ExecutionRequest& request,
                                                        const ExecutionJob& job, std::ostream* terminal) {
    const std::shared_ptr<TrainingMonitor> monitor(new TrainingMonitor(request, job, terminal));
    if (!request.metrics.empty()) {
        if (std::filesystem::is_regular_file(request.metrics))
            core::write_file_atomically(request.metrics, read_metrics(request.metrics, job.first_step).kept);
        monitor->file_.open(request.metrics, std::ios::binary | std::ios::app);
        core::Value line = core::Value::table();
        line["event"] = job.resumed ? "resume" : "start";
        line["step"] = job.first_step;
        line["steps"] = job.steps;
        line["model"] = job.scenario.graph.name;
        line["ranks"] = job.plan().layout.ranks();
        line["global_batch"] = job.plan().global_batch();
        line["data"] = job.data->describe();
        monitor->write(std::move(line));
    }
    if (job.resumed) monitor->tell(fmt::format("resumed from step {}", job.first_step));
    return monitor;
}

void TrainingMonitor::write(core::Value line) {
    if (path_.empty()) return;
    line["time"] = now();
    std::string text = core::to_json(line, 0);
    while (text.ends_with('\n')) text.pop_back();
    file_ << text << '\n' << std::flush;
    if (!file_)
        throw core::MachineError(
            fmt::format("writing {}: {}", core::in_quotes(path_, 300), std::strerror(errno)));
}

void TrainingMonitor::tell(const std::string& line) {
    erase();
    if (terminal_) *terminal_ << line << '\n' << std::flush;
}

void TrainingMonitor::erase() {
    if (is_drawn_) *terminal_ << redrawn("") << std::flush;
    is_drawn_ = false;
}

void TrainingMonitor::draw(const std::string& line) {
    if (!terminal_) return;
    *terminal_ << redrawn(line) << std::flush;
    is_drawn_ = true;
}

TrainingMonitor::~TrainingMonitor() { erase(); }

void TrainingMonitor::step(const exec::StepReport& report) {
    completed_ = report.step;
    const bool has_tokens = tokens_a_step_ > 0;
    const double rate =
        static_cast<double>(has_tokens ? tokens_a_step_ : samples_a_step_) / report.time.value;
    core::Value line = core::Value::table();
    line["event"] = "step";
    line["step"] = report.step;
    line["loss"] = report.loss;
    line["learning_rate"] = report.learning_rate;
    if (report.gradient_norm) line["gradient_norm"] = *report.gradient_norm;
    if (report.loss_scaling) {
        line["loss_scale"] = double{report.loss_scaling->scale};
        line["updates_left_out"] = report.loss_scaling->left_out;
    }
    line["step_s"] = report.time.value;
    line[has_tokens ? "tokens_per_s" : "samples_per_s"] = rate;
    write(std::move(line));
    if (report.held_out_loss) {
        core::Value held_out = core::Value::table();
        held_out["event"] = "evaluation";
        held_out["step"] = report.step;
        held_out["loss"] = *report.held_out_loss;
        write(std::move(held_out));
        tell(fmt::format("held-out loss {:.6f} after step {}", *report.held_out_loss, report.step));
    }
    draw(fmt::format("step {}/{}  loss {:.6f}  {:.0f} {}/s", report.step, steps_, report.loss, rate,
                     has_tokens ? "tokens" : "samples"));
}

void TrainingMonitor::checkpoint_written(std::int64_t step) {
    core::Value line = core::Value::table();
    line["event"] = "checkpoint";
    line["step"] = step;
    line["folder"] = exec::checkpoint_folder(folder_, step);
    write(std::move(line));
    tell(fmt::format("checkpoint written: {}", exec::checkpoint_folder(folder_, step)));
}

void TrainingMonitor::end(const exec::RunResult& result) {
    core::Value line = core::Value::table();
    line["event"] = "end";
    line["step"] = completed_;
    if (result.interruption) line["signal"] = signal_name(result.interruption->signal);
    write(std::move(line));
    erase();
}

}  // namespace apps
