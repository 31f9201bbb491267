// What a person or a program sees of a training while it goes on: a file of metrics, one JSON document a
// line, and a line on a terminal.
#pragma once

#include <fstream>
#include <iosfwd>
#include <memory>
#include <string>

#include "apps/smexec/smexec_job.h"
#include "apps/smexec/smexec_request.h"
#include "exec/observation/run_observer.h"
#include "exec/runtime/run.h"

namespace apps {

// Is stderr a terminal that is for people, and that can draw a line anew (TERM other than "dumb")?
bool has_terminal_for_progress(const ExecutionRequest& request);

// Can the file of --metrics be written, and is what it holds a training that this one goes on with? Asked
// before the start.
void check_metrics(const ExecutionRequest& request, const ExecutionJob& job, core::Diagnostics& diagnostics);

// On rank 0. Throws core::MachineError when the file cannot be written.
class TrainingMonitor : public exec::RunObserver {
public:
    // What the file has of steps that come again is dropped, and a line that was cut off. `terminal`: null =
    // no progress is shown.
    static std::shared_ptr<TrainingMonitor> start(const ExecutionRequest& request, const ExecutionJob& job,
                                                  std::ostream* terminal);

    ~TrainingMonitor() override;  // leaves no line of progress before a message of failure
    TrainingMonitor(const TrainingMonitor&) = delete;
    TrainingMonitor& operator=(const TrainingMonitor&) = delete;

    void step(const exec::StepReport& report) override;
    void checkpoint_written(std::int64_t step) override;
    void end(const exec::RunResult& result);

private:
    TrainingMonitor(const ExecutionRequest& request, const ExecutionJob& job, std::ostream* terminal);
    void write(core::Value line);
    void tell(const std::string& line);  // above the line of progress
    void draw(
        const std::string& line);  // of progress; cut to the terminal's width, beyond which it would wrap
    void erase();

    const std::string path_, folder_;
    const std::int64_t steps_, tokens_a_step_, samples_a_step_;
    std::int64_t completed_;
    std::ofstream file_;
    std::ostream* const terminal_;
    bool is_drawn_ = false;
};

}  // namespace apps
