// Processor sharing with virtual time: a core with k working ranks gives each 1/k of real time. `served` is
// the service every rank on the core would have had since the start; an instruction of work w begun at served
// = s is done when served reaches s + w, whatever joins or leaves in between. So the order of completions on
// a core never changes, and one heap per core suffices.
#include "sim/engine/shared_cores.h"

#include <algorithm>
#include <limits>
#include <queue>

#include "core/errors.h"
#include "core/index/integers.h"
#include "sim/engine/performers.h"
#include "sim/engine/simulation_record.h"

namespace sim {

namespace {

using schedule::Instruction;
using schedule::InstructionKind;

constexpr double never = std::numeric_limits<double>::infinity();

struct Work {
    double done_at;  // in service of its core
    std::int32_t performer;
    // Ties by performer: ranks in order.
    bool operator>(const Work& other) const {
        return done_at != other.done_at ? done_at > other.done_at : performer > other.performer;
    }
};

struct Core {
    double served = 0;  // service of one rank
    double now = 0;     // when `served` was brought up to date
    std::priority_queue<Work, std::vector<Work>, std::greater<>> working;

    void advance(double time) {
        if (!working.empty()) served += (time - now) / static_cast<double>(working.size());
        now = time;
    }
    double next_completion() const {
        return working.empty() ? never
                               : now + std::max(0.0, working.top().done_at - served) *
                                           static_cast<double>(working.size());
    }
};

struct Transfer {
    bool is_sent = false, has_arrived = false;
    double start = 0;
    core::OptionalIndex waiter;  // performer
};

struct Rendezvous {
    int arrived = 0, done = 0;
    double from = 0;
    std::vector<std::int32_t> members;
};

class Interpreter {
public:
    Interpreter(const schedule::Program& program, const Durations& durations, int cores,
                const SimulateOptions& options)
        : program_(program),
          durations_(durations),
          options_(options),
          performer_set_(program, false),
          states_(performer_set_.performers.size()),
          cores_(cores),
          transfers_(performer_set_.channel_count()),
          rendezvous_(performer_set_.groups.size()) {
        for (std::size_t p = 0; p < states_.size(); ++p) {
            const std::size_t count = list_of(p).instructions.size();
            states_[p].spans.resize(count);
            states_[p].active_from.resize(count);
            states_[p].met.assign(performer_set_.performers[p].group.size(), 0);
        }
    }

    Simulation run() {
        for (const std::int32_t p : core::indices(states_)) proceed(p, 0);
        while (true) {
            std::size_t next = cores_.size();
            double time = never;
            for (std::size_t c = 0; c < cores_.size(); ++c) {
                const double completion = cores_[c].next_completion();
                if (completion < time) {
                    time = completion;
                    next = c;
                }
            }
            if (next == cores_.size()) break;
            Core& core = cores_[next];
            core.advance(time);
            const std::int32_t performer = core.working.top().performer;
            core.served =
                std::max(core.served, core.working.top().done_at);  // rounding must not leave a rest
            core.working.pop();
            finish_work(performer, time);
        }
        return result();
    }

private:
    struct State {
        std::size_t next = 0;
        std::vector<std::uint32_t> met;  // collectives ended, per slot
        std::vector<schedule::Span> spans;
        std::vector<core::Seconds> active_from;
    };

    const schedule::RankProgram& list_of(std::size_t performer) const {
        return program_.classes[performer_set_.performers[performer].class_index];
    }
    Core& core_of(std::int32_t performer) {
        return cores_[performer_set_.performers[performer].rank % cores_.size()];
    }
    const Instruction& current(std::int32_t performer) const {
        const State& state = states_[performer];
        return list_of(performer).instructions[state.next];
    }
    double duration(std::int32_t performer) const {
        const Performer& self = performer_set_.performers[performer];
        return durations_.of[self.class_index][states_[performer].next].value;
    }

    // Starts instructions of a rank at `time` until one takes work or waits.
    void proceed(std::int32_t performer, double time) {
        State& state = states_[performer];
        const std::vector<Instruction>& instructions = list_of(performer).instructions;
        while (state.next < instructions.size()) {
            const Instruction& instruction = instructions[state.next];
            state.spans[state.next].instruction = static_cast<std::uint32_t>(state.next);
            state.spans[state.next].start = core::Seconds(time);
            state.active_from[state.next] = core::Seconds(time);
            if (instruction.kind == InstructionKind::receive) {
                Transfer& transfer = transfers_[performer_set_.channel_of_receive(
                    performer_set_.performers[performer], instruction)];
                if (!transfer.has_arrived) {
                    transfer.waiter = performer;
                    return;
                }
            }
            if (instruction.kind == InstructionKind::send)
                transfers_[performer_set_.channel_of_send(performer_set_.performers[performer], instruction)]
                    .start = time;
            if (instruction.kind == InstructionKind::collective) {
                const Performer& self = performer_set_.performers[performer];
                if (const core::OptionalIndex group = self.group[PerformerSet::slot_of(instruction)]) {
                    arrive(performer, *group, instruction, time);
                    return;
                }
            }
            begin_work(performer, time);
            return;
        }
    }

    void begin_work(std::int32_t performer, double time) {
        Core& core = core_of(performer);
        core.advance(time);
        core.working.push({core.served + duration(performer), performer});
    }

    Rendezvous& rendezvous_of(std::int32_t performer, std::int32_t group, const Instruction& instruction) {
        const std::uint32_t number = states_[performer].met[PerformerSet::slot_of(instruction)];
        std::vector<Rendezvous>& of_group = rendezvous_[group];
        if (number >= of_group.size()) of_group.resize(number + 1);
        return of_group[number];
    }

    // The last member to come sets all of them to work; all end together when the slowest has done its part.
    void arrive(std::int32_t performer, std::int32_t group, const Instruction& instruction, double time) {
        Rendezvous& rendezvous = rendezvous_of(performer, group, instruction);
        rendezvous.members.push_back(performer);
        rendezvous.from = std::max(rendezvous.from, time);
        if (++rendezvous.arrived < core::count_of(performer_set_.groups[group])) return;
        for (std::int32_t member : rendezvous.members) {
            State& state = states_[member];
            state.active_from[state.next] = core::Seconds(time);
            begin_work(member, time);
        }
    }

    void finish_work(std::int32_t performer, double time) {
        const Instruction& instruction = current(performer);
        const Performer& self = performer_set_.performers[performer];
        if (instruction.kind == InstructionKind::collective) {
            if (const core::OptionalIndex group = self.group[PerformerSet::slot_of(instruction)]) {
                Rendezvous& rendezvous = rendezvous_of(performer, *group, instruction);
                if (++rendezvous.done < rendezvous.arrived) return;
                const std::vector<std::int32_t> members = rendezvous.members;
                for (std::int32_t member : members)
                    ++states_[member].met[PerformerSet::slot_of(current(member))];
                for (std::int32_t member : members) end_instruction(member, time);
                return;
            }
        }
        if (instruction.kind == InstructionKind::send) {
            Transfer& transfer = transfers_[performer_set_.channel_of_send(self, instruction)];
            transfer.has_arrived = true;
            const core::OptionalIndex waiter = transfer.waiter;
            const double start = transfer.start;
            end_instruction(performer, time);
            if (waiter) {
                State& state = states_[*waiter];
                state.active_from[state.next] =
                    core::Seconds(std::max(state.spans[state.next].start.value, start));
                begin_work(*waiter, time);
            }
            return;
        }
        end_instruction(performer, time);
    }

    void end_instruction(std::int32_t performer, double time) {
        State& state = states_[performer];
        state.spans[state.next].end = core::Seconds(time);
        ++state.next;
        proceed(performer, time);
    }

    Simulation result() {
        Simulation simulation;
        for (std::size_t p = 0; p < states_.size(); ++p) {
            State& state = states_[p];
            core::require(state.next == state.spans.size(), "verify passed a program that waits for ever");
            const core::Seconds end = state.spans.empty() ? core::Seconds(0) : state.spans.back().end;
            record(performer_set_.performers[p], list_of(p), end, state.spans, state.active_from, options_,
                   simulation);
        }
        return simulation;
    }

    const schedule::Program& program_;
    const Durations& durations_;
    const SimulateOptions& options_;
    PerformerSet performer_set_;
    std::vector<State> states_;
    std::vector<Core> cores_;
    std::vector<Transfer> transfers_;
    std::vector<std::vector<Rendezvous>> rendezvous_;
};

}  // namespace

Simulation simulate_shared_cores(const schedule::Program& program, const Durations& durations, int cores,
                                 const SimulateOptions& options) {
    core::require(cores > 0, "at least one core");
    return Interpreter(program, durations, cores, options).run();
}

}  // namespace sim
