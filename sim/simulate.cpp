// The list order of a class is a valid serial order with buffered sends (schedule/verify.h proves it), so times follow from one pass over each list: every
// predecessor on the same performer stands earlier in the list, and what comes from another performer is either known already or makes this performer wait its
// turn. No event queue is needed as long as durations do not depend on what else runs; where they do (ranks sharing a core), see shared_cores.h.
#include "sim/simulate.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>

#include "core/diagnostics.h"
#include "sim/performers.h"
#include "sim/simulation_record.h"

namespace sim {

namespace {

using schedule::Instruction;
using schedule::InstructionKind;

constexpr double not_yet = -1;

struct Transfer {
    double start = not_yet, end = not_yet;
    std::int32_t waiter = -1;  // performer
};

struct Rendezvous {
    int arrived = 0;
    double from = 0;  // the last arrival
    double duration = 0;
    std::vector<std::int32_t> waiters;
};

class Interpreter {
public:
    Interpreter(const schedule::Program& program, const Durations& durations, const SimulateOptions& options)
        : program_(program),
          durations_(durations),
          options_(options),
          cast_(program, options.is_folded),
          states_(cast_.performers.size()),
          transfers_(cast_.channel_count()),
          meetings_(cast_.groups.size()) {
        core::require(durations.of.size() == program.classes.size(), "durations for every class");
        for (std::size_t c = 0; c < program.classes.size(); ++c)
            core::require(durations.of[c].size() == program.classes[c].instructions.size(), "a duration for every instruction");
    }

    Simulation run() {
        for (std::size_t p = 0; p < states_.size(); ++p) {
            const std::size_t count = list_of(p).instructions.size();
            states_[p].spans.resize(count);
            states_[p].active_from.resize(count);
            states_[p].met.assign(cast_.performers[p].group.size(), 0);
        }
        for (std::size_t p = states_.size(); p-- > 0;) runnable_.push_back(static_cast<std::int32_t>(p));
        while (!runnable_.empty()) {
            const std::int32_t performer = runnable_.back();
            runnable_.pop_back();
            perform(performer);
        }
        return result();
    }

private:
    struct State {
        std::size_t next = 0;
        std::array<double, schedule::stream_count> stream_end{};
        std::vector<schedule::Span> spans;
        std::vector<core::Seconds> active_from;
        std::vector<std::uint32_t> met;  // collectives reached, per slot
        bool has_arrived = false;        // at the collective `next`
    };

    const schedule::RankProgram& list_of(std::size_t performer) const {
        return program_.classes[static_cast<std::size_t>(cast_.performers[performer].class_index)];
    }

    std::size_t stream_of(const Instruction& instruction) const {
        if (!options_.has_concurrent_streams) return 0;
        return static_cast<std::size_t>(options_.blocks_on_transfers && instruction.kind == InstructionKind::send ? schedule::Stream::compute
                                                                                                                  : instruction.stream);
    }

    // Performs instructions until the list ends or one waits for another performer.
    void perform(std::int32_t performer) {
        State& state = states_[static_cast<std::size_t>(performer)];
        const Performer& self = cast_.performers[static_cast<std::size_t>(performer)];
        const schedule::RankProgram& list = program_.classes[static_cast<std::size_t>(self.class_index)];
        const std::vector<core::Seconds>& duration = durations_.of[static_cast<std::size_t>(self.class_index)];
        for (; state.next < list.instructions.size(); ++state.next) {
            const Instruction& instruction = list.instructions[state.next];
            double& stream_end = state.stream_end[stream_of(instruction)];
            double start = stream_end;
            for (std::uint32_t before : list.after(instruction)) start = std::max(start, state.spans[before].end.value);
            double active_from = start;
            double end = start + duration[state.next].value;
            switch (instruction.kind) {
                case InstructionKind::send: {
                    Transfer& transfer = transfers_[cast_.channel_of_send(self, instruction)];
                    core::require(transfer.start == not_yet, "every transfer is sent once");
                    transfer.start = start;
                    transfer.end = end;
                    if (transfer.waiter >= 0) runnable_.push_back(transfer.waiter);
                    break;
                }
                case InstructionKind::receive: {
                    Transfer& transfer = transfers_[cast_.channel_of_receive(self, instruction)];
                    if (transfer.start == not_yet) {
                        transfer.waiter = performer;
                        return;
                    }
                    active_from = std::max(start, transfer.start);
                    end = std::max(start, transfer.end) + duration[state.next].value;
                    break;
                }
                case InstructionKind::collective: {
                    const std::int32_t group = self.group[Cast::slot_of(instruction)];
                    if (group < 0) break;  // all members are this performer, or behave as it does
                    if (!meet(performer, state, group, instruction, start, duration[state.next].value, active_from, end)) return;
                    break;
                }
                case InstructionKind::compute:
                case InstructionKind::optimizer_step:
                case InstructionKind::zero_gradients:
                case InstructionKind::gradient_norm: break;
            }
            stream_end = end;
            state.spans[state.next] = {static_cast<std::uint32_t>(state.next), core::Seconds(start), core::Seconds(end)};
            state.active_from[state.next] = core::Seconds(active_from);
        }
    }

    // True when every member has come; then the times are known. Members meet in list order, as on a communicator.
    bool meet(std::int32_t performer, State& state, std::int32_t group, const Instruction& instruction, double start, double duration, double& active_from,
              double& end) {
        std::vector<Rendezvous>& meetings = meetings_[static_cast<std::size_t>(group)];
        const std::uint32_t number = state.met[Cast::slot_of(instruction)];
        if (number >= meetings.size()) meetings.resize(number + 1);
        Rendezvous& meeting = meetings[number];
        const int members = static_cast<int>(cast_.groups[static_cast<std::size_t>(group)].size());
        if (!state.has_arrived) {
            state.has_arrived = true;
            ++meeting.arrived;
            meeting.from = std::max(meeting.from, start);
            meeting.duration = std::max(meeting.duration, duration);
            if (meeting.arrived == members) {
                for (std::int32_t waiter : meeting.waiters) runnable_.push_back(waiter);
                meeting.waiters.clear();
            }
        }
        if (meeting.arrived < members) {
            meeting.waiters.push_back(performer);
            return false;
        }
        state.has_arrived = false;
        ++state.met[Cast::slot_of(instruction)];
        active_from = meeting.from;
        end = meeting.from + meeting.duration;
        return true;
    }

    Simulation result() {
        Simulation simulation;
        for (std::size_t p = 0; p < states_.size(); ++p) {
            State& state = states_[p];
            const schedule::RankProgram& list = list_of(p);
            if (state.next < list.instructions.size())
                throw core::InternalError("broken promise: verify passed a program that waits for ever at " +
                                          schedule::describe(program_, cast_.performers[p].class_index, static_cast<std::uint32_t>(state.next)));
            double last = 0;
            for (double end : state.stream_end) last = std::max(last, end);
            record(cast_.performers[p], list, core::Seconds(last), state.spans, state.active_from, options_, simulation);
        }
        return simulation;
    }

    const schedule::Program& program_;
    const Durations& durations_;
    const SimulateOptions& options_;
    Cast cast_;
    std::vector<State> states_;
    std::vector<Transfer> transfers_;
    std::vector<std::vector<Rendezvous>> meetings_;  // [group][number]
    std::vector<std::int32_t> runnable_;
};

}  // namespace

Simulation simulate(const schedule::Program& program, const Durations& durations, const SimulateOptions& options) {
    return Interpreter(program, durations, options).run();
}

Durations durations_of(const schedule::Program& program, const StageTimes& times) {
    const std::size_t stages = program.stages.size();
    core::require(times.forward.size() == stages && times.backward_input.size() == stages && times.backward_weight.size() == stages, "times for every stage");
    Durations durations;
    for (const schedule::RankProgram& list : program.classes) {
        std::vector<core::Seconds> of;
        of.reserve(list.instructions.size());
        for (const Instruction& instruction : list.instructions) {
            core::Seconds time;
            if (instruction.kind == InstructionKind::send) time = times.transfer;
            if (instruction.kind == InstructionKind::compute) {
                const auto stage = static_cast<std::size_t>(instruction.stage);
                switch (instruction.phase) {
                    case schedule::ComputePhase::forward:
                    case schedule::ComputePhase::recompute: time = times.forward[stage]; break;
                    case schedule::ComputePhase::backward: time = times.backward_input[stage] + times.backward_weight[stage]; break;
                    case schedule::ComputePhase::backward_input: time = times.backward_input[stage]; break;
                    case schedule::ComputePhase::backward_weight: time = times.backward_weight[stage]; break;
                }
            }
            of.push_back(time);
        }
        durations.of.push_back(std::move(of));
    }
    return durations;
}

}  // namespace sim
