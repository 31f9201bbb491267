#include "exec/observation/step_reporter.h"

#include <limits>
#include <string>

#include <fmt/core.h>

#include "core/index/integers.h"
#include "exec/transport/exchange.h"

namespace exec {

namespace {

enum : Tag { tag_step = 34 };

int first_with_loss(const schedule::Program& program) {
    for (int rank = 0; rank < program.plan.layout.ranks(); ++rank)
        for (const std::int32_t stage : core::indices(program.stages))
            if (program.is_last_stage(stage) &&
                program.stages[stage].rank == schedule::coordinates_of(program.plan.layout, rank).pipeline)
                return rank;
    core::require(false, "some rank has the last stage");
    return 0;
}

}  // namespace

StepReporter::StepReporter(const schedule::Program& program, const RunOptions& options,
                           Communicator& communicator)
    : options_(options), communicator_(communicator), teller_(first_with_loss(program)) {}

void StepReporter::tell(StepReport report, const std::optional<double>& loss) {
    if (communicator_.rank() == teller_) {
        report.loss = loss.value_or(std::numeric_limits<double>::quiet_NaN());
        if (teller_ != 0)
            send_text(communicator_, 0, tag_step,
                      fmt::format("{:a} {:a}", report.loss,
                                  report.held_out_loss.value_or(std::numeric_limits<double>::quiet_NaN())));
    }
    if (communicator_.rank() != 0) return;
    if (teller_ != 0) {
        const std::string text = receive_text(communicator_, teller_, tag_step);
        const std::size_t space = text.find(' ');
        report.loss = std::strtod(text.c_str(), nullptr);
        if (report.held_out_loss) report.held_out_loss = std::strtod(text.c_str() + space, nullptr);
    }
    if (options_.observer) options_.observer->step(report);
}

void StepReporter::tell_checkpoint(const std::optional<std::int64_t>& committed) {
    if (!committed || committed == told_checkpoint_) return;
    told_checkpoint_ = committed;
    if (communicator_.rank() == 0 && options_.observer) options_.observer->checkpoint_written(*committed);
}

}  // namespace exec
