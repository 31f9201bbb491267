// Times follow by data flow: an instruction's start is known when the ends of all it waits for are, whatever
// the order in which performers and streams are looked at. Streams of a performer go ahead on their own as
// far as what they wait for is known. Where durations depend on what else runs on the links, the event engine
// plays the transfers: it is asked for its next event only when nothing else can go ahead, and whatever is
// still unknown then starts no earlier than that event. For ranks that share a core see shared_cores.h.
#include "sim/engine/simulate.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <string>

#include "core/errors.h"
#include "core/index/integers.h"
#include "sim/cost/contention.h"
#include "sim/engine/performers.h"
#include "sim/engine/simulation_record.h"

namespace sim {

namespace {

using schedule::Instruction;
using schedule::InstructionKind;

// Times that are not known yet, as sentinels and not optionals: the innermost loop compares them for every
// instruction and takes their greatest.
constexpr double not_yet = -1;
constexpr double never = std::numeric_limits<double>::infinity();
constexpr std::uint32_t no_instruction = 0xffffffff, elsewhere = 0xfffffffe;

struct Transfer {
    double start = not_yet, end = not_yet;
    core::OptionalIndex waiter;  // performer
};

struct Rendezvous {
    int arrived = 0;
    double from = 0;  // the last arrival
    double duration = 0;
    double end = not_yet;
    std::vector<std::int32_t> waiters;
};

class Interpreter {
public:
    Interpreter(const schedule::Program& program, const Durations& durations, const SimulateOptions& options)
        : program_(program),
          durations_(durations),
          options_(options),
          contention_(options.contention && !options.contention->is_empty() ? options.contention : nullptr),
          performer_set_(program, options.is_folded),
          engine_(std::vector<double>(contention_ ? contention_->links : 0, 1.0)),
          states_(performer_set_.performers.size()),
          transfers_(performer_set_.channel_count()),
          rendezvous_(performer_set_.groups.size()) {
        core::require(durations.of.size() == program.classes.size(), "durations for every class");
        for (std::size_t c = 0; c < program.classes.size(); ++c) {
            const std::vector<Instruction>& list = program.classes[c].instructions;
            core::require(durations.of[c].size() == list.size(), "a duration for every instruction");
            queues_.emplace_back();
            std::vector<std::uint32_t> met(group_kind_count + program.classes[c].buckets.size(), 0);
            ordinals_.emplace_back(list.size(), 0);
            for (std::uint32_t i = 0; i < list.size(); ++i) {
                queues_[c][stream_of(list[i])].push_back(i);
                if (list[i].kind == InstructionKind::collective)
                    ordinals_[c][i] = met[PerformerSet::slot_of(list[i])]++;
            }
        }
    }

    Simulation run() {
        for (std::size_t p = 0; p < states_.size(); ++p) {
            const std::size_t count = list_of(p).instructions.size();
            states_[p].spans.resize(count, {0, core::Seconds(0), core::Seconds(not_yet)});
            states_[p].active_from.resize(count);
            const auto& queues = queues_[performer_set_.performers[p].class_index];
            for (std::size_t stream = 0; stream < queues.size(); ++stream)
                states_[p].head[stream] = queues[stream].empty() ? no_instruction : queues[stream].front();
            states_[p].waits_for.fill(no_instruction);
        }
        for (std::size_t p = states_.size(); p-- > 0;) runnable_.push_back(static_cast<std::int32_t>(p));
        do {
            while (!runnable_.empty()) {
                const std::int32_t performer = runnable_.back();
                runnable_.pop_back();
                proceed(performer);
            }
        } while (play_event());
        return result();
    }

private:
    struct State {
        std::array<std::uint32_t, schedule::stream_count> next{};  // in the stream's queue
        std::array<std::uint32_t, schedule::stream_count>
            head{};  // the instruction there; no_instruction: none left
        // What the head waits for: an instruction of this performer, or another performer or the network
        // (`elsewhere`); no_instruction: not known to wait.
        std::array<std::uint32_t, schedule::stream_count> waits_for{};
        std::array<double, schedule::stream_count>
            stream_end{};  // never: the last instruction's end is not known yet
        std::array<bool, schedule::stream_count> has_arrived{};  // at the collective that is next
        std::vector<schedule::Span> spans;
        std::vector<core::Seconds> active_from;
    };
    // What the event engine plays.
    struct Running {
        const Communication* communication;
        // Of one performer: a send, or a collective of ranks that all behave as the performer does.
        core::OptionalIndex performer;
        std::uint32_t instruction;  // of the performer
        Transfer* transfer;         // null: a collective
        // Of several performers: their group, and the number of the collective among the group's.
        core::OptionalIndex group;
        std::uint32_t number;
        double share = 1;  // of the price that is paid, where some of it is hidden
    };

    const schedule::RankProgram& list_of(std::size_t performer) const {
        return program_.classes[performer_set_.performers[performer].class_index];
    }

    std::size_t stream_of(const Instruction& instruction) const {
        if (!options_.has_concurrent_streams) return 0;
        return static_cast<std::size_t>(options_.blocks_on_transfers &&
                                                instruction.kind == InstructionKind::send
                                            ? schedule::Stream::compute
                                            : instruction.stream);
    }

    const Communication* shared(std::int32_t performer, std::size_t class_index,
                                std::uint32_t instruction) const {
        if (!contention_) return nullptr;
        const core::OptionalIndex kind = contention_->kind_of[class_index][instruction];
        if (!kind) return nullptr;
        const core::OptionalIndex index = contention_->communication_of[*kind][performer];
        return index ? &contention_->communications[*index] : nullptr;
    }

    // Every stream as far as it goes, the instruction that comes first in the list first: it is the one least
    // likely to wait.
    void proceed(std::int32_t performer) {
        State& state = states_[performer];
        const auto& queues = queues_[performer_set_.performers[performer].class_index];
        for (std::size_t stream = 0; stream < queues.size(); ++stream) {
            std::uint32_t& awaited = state.waits_for[stream];
            if (awaited == elsewhere ||
                (awaited != no_instruction && state.spans[awaited].end.value != not_yet))
                awaited = no_instruction;
        }
        while (true) {
            std::size_t first = queues.size();
            std::uint32_t head = no_instruction;
            for (std::size_t stream = 0; stream < queues.size(); ++stream)
                if (state.head[stream] < head && state.waits_for[stream] == no_instruction) {
                    head = state.head[stream];
                    first = stream;
                }
            if (first == queues.size()) return;
            const std::uint32_t awaited = perform(performer, state, first, head);
            if (awaited != no_instruction) {
                state.waits_for[first] = awaited;
                continue;
            }
            const std::uint32_t next = ++state.next[first];
            state.head[first] = next < queues[first].size() ? queues[first][next] : no_instruction;
            if (state.spans[head].end.value == not_yet) continue;
            for (std::uint32_t& other : state.waits_for)
                if (other == head) other = no_instruction;
        }
    }

    // What it waits for, when that is not known yet.
    std::uint32_t perform(std::int32_t performer, State& state, std::size_t stream, std::uint32_t index) {
        double& stream_end = state.stream_end[stream];
        if (stream_end == never) return elsewhere;
        const Performer& self = performer_set_.performers[performer];
        const std::size_t class_index = self.class_index;
        const schedule::RankProgram& list = program_.classes[class_index];
        const Instruction& instruction = list.instructions[index];
        double start = stream_end;
        for (std::uint32_t before : list.after(instruction)) {
            const double end = state.spans[before].end.value;
            if (end == not_yet) return before;
            start = std::max(start, end);
        }
        const double duration = durations_.of[class_index][index].value;
        double active_from = start;
        double end = start + duration;
        switch (instruction.kind) {
            case InstructionKind::send: {
                Transfer& transfer = transfers_[performer_set_.channel_of_send(self, instruction)];
                core::require(transfer.start == not_yet, "every transfer is sent once");
                transfer.start = start;
                if (const Communication* communication = shared(performer, class_index, index)) {
                    begin({communication, performer, index, &transfer, std::nullopt, 0}, start, duration);
                    end = not_yet;
                } else {
                    transfer.end = end;
                    if (transfer.waiter) runnable_.push_back(*transfer.waiter);
                }
                break;
            }
            case InstructionKind::receive: {
                Transfer& transfer = transfers_[performer_set_.channel_of_receive(self, instruction)];
                if (transfer.end == not_yet) {
                    transfer.waiter = performer;
                    return elsewhere;
                }
                active_from = std::max(start, transfer.start);
                end = std::max(start, transfer.end) + duration;
                break;
            }
            case InstructionKind::collective: {
                if (const core::OptionalIndex group = self.group[PerformerSet::slot_of(instruction)]) {
                    if (!meet(performer, state.has_arrived[stream], *group, class_index, index, start,
                              duration, active_from, end))
                        return elsewhere;
                } else if (const Communication* communication = shared(performer, class_index, index)) {
                    // All members are this performer, or behave as it does.
                    begin({communication, performer, index, nullptr, std::nullopt, 0}, start, duration);
                    end = not_yet;
                }
                break;
            }
            case InstructionKind::compute:
            case InstructionKind::copy:
            case InstructionKind::optimizer_step:
            case InstructionKind::zero_gradients:
            case InstructionKind::gradient_norm:
            case InstructionKind::update_norm: break;
        }
        stream_end = end == not_yet ? never : end;
        state.spans[index] = {index, core::Seconds(start), core::Seconds(end)};
        state.active_from[index] = core::Seconds(active_from);
        return no_instruction;
    }

    // True when every member has arrived and the end is known. Collectives are matched in list order, as on a
    // communicator.
    bool meet(std::int32_t performer, bool& has_arrived, std::int32_t group, std::size_t class_index,
              std::uint32_t index, double start, double duration, double& active_from, double& end) {
        std::vector<Rendezvous>& of_group = rendezvous_[group];
        const std::uint32_t number = ordinals_[class_index][index];
        if (number >= of_group.size()) of_group.resize(number + 1);
        Rendezvous& rendezvous = of_group[number];
        const int members = core::count_of(performer_set_.groups[group]);
        if (!has_arrived) {
            has_arrived = true;
            ++rendezvous.arrived;
            rendezvous.from = std::max(rendezvous.from, start);
            rendezvous.duration = std::max(rendezvous.duration, duration);
            if (rendezvous.arrived == members) {
                if (const Communication* communication = shared(performer, class_index, index)) {
                    begin({communication, std::nullopt, 0, nullptr, group, number}, rendezvous.from,
                          rendezvous.duration);
                } else {
                    rendezvous.end = rendezvous.from + rendezvous.duration;
                    wake(rendezvous);
                }
            }
            if (rendezvous.end == not_yet) rendezvous.waiters.push_back(performer);
        }
        if (rendezvous.end == not_yet) return false;
        has_arrived = false;
        active_from = rendezvous.from;
        end = rendezvous.end;
        return true;
    }

    void wake(Rendezvous& rendezvous) {
        for (std::int32_t waiter : rendezvous.waiters) runnable_.push_back(waiter);
        rendezvous.waiters.clear();
    }

    // Tokens: twice the index in `running_`, and one more when the latency is over.
    // Latency comes first, and what a framework adds to the price. Where it hides some of a communication
    // behind other work, all of it is shorter in proportion.
    void begin(Running running, double start, double duration) {
        const Communication& communication = *running.communication;
        if (duration < communication.priced.value) running.share = duration / communication.priced.value;
        std::uint32_t slot;
        if (free_slots_.empty()) {
            slot = static_cast<std::uint32_t>(running_.size());
            running_.push_back(running);
        } else {
            slot = free_slots_.back();
            free_slots_.pop_back();
            running_[slot] = running;
        }
        engine_.start_timer(start + communication.latency.value * running.share +
                                std::max(0.0, duration - communication.priced.value),
                            2 * slot);
    }

    bool play_event() {
        const std::optional<FlowEngine::Token> token = engine_.next();
        if (!token) return false;
        const std::uint32_t slot = *token / 2;
        const Running running = running_[slot];
        if (*token % 2 == 0) {
            engine_.start_flow(running.communication->streaming.value * running.share, 1.0,
                               running.communication->uses, 2 * slot + 1, running.communication->weight);
            return true;
        }
        free_slots_.push_back(slot);
        const double end = engine_.now();
        if (!running.performer) {
            Rendezvous& rendezvous = rendezvous_[*running.group][running.number];
            rendezvous.end = end;
            wake(rendezvous);
            return true;
        }
        State& state = states_[*running.performer];
        state.spans[running.instruction].end = core::Seconds(end);
        state.stream_end[stream_of(list_of(*running.performer).instructions[running.instruction])] = end;
        runnable_.push_back(*running.performer);
        if (running.transfer) {
            running.transfer->end = end;
            if (running.transfer->waiter) runnable_.push_back(*running.transfer->waiter);
        }
        return true;
    }

    Simulation result() {
        Simulation simulation;
        for (std::size_t p = 0; p < states_.size(); ++p) {
            State& state = states_[p];
            const schedule::RankProgram& list = list_of(p);
            const auto& queues = queues_[performer_set_.performers[p].class_index];
            for (std::size_t stream = 0; stream < queues.size(); ++stream)
                if (state.next[stream] < queues[stream].size())
                    throw core::InternalError(
                        "broken promise: verify passed a program that waits for ever at " +
                        schedule::describe(program_, performer_set_.performers[p].class_index,
                                           queues[stream][state.next[stream]]));
            double last = 0;
            for (double end : state.stream_end) last = std::max(last, end);
            record(performer_set_.performers[p], list, core::Seconds(last), state.spans, state.active_from,
                   options_, simulation);
        }
        return simulation;
    }

    const schedule::Program& program_;
    const Durations& durations_;
    const SimulateOptions& options_;
    const Contention* contention_;
    PerformerSet performer_set_;
    FlowEngine engine_;
    std::vector<std::array<std::vector<std::uint32_t>, schedule::stream_count>>
        queues_;  // [class][stream]: instructions in list order
    std::vector<std::vector<std::uint32_t>>
        ordinals_;  // [class][instruction]: how many collectives of its slot come before
    std::vector<State> states_;
    std::vector<Transfer> transfers_;
    std::vector<std::vector<Rendezvous>> rendezvous_;  // [group][number]
    std::vector<Running> running_;
    std::vector<std::uint32_t> free_slots_;
    std::vector<std::int32_t> runnable_;
};

}  // namespace

Simulation simulate(const schedule::Program& program, const Durations& durations,
                    const SimulateOptions& options) {
    return Interpreter(program, durations, options).run();
}

Durations durations_of(const schedule::Program& program, const StageTimes& times) {
    const std::size_t stages = program.stages.size();
    core::require(times.forward.size() == stages && times.backward_input.size() == stages &&
                      times.backward_weight.size() == stages,
                  "times for every stage");
    Durations durations;
    for (const schedule::RankProgram& list : program.classes) {
        std::vector<core::Seconds> of;
        of.reserve(list.instructions.size());
        for (const Instruction& instruction : list.instructions) {
            core::Seconds time;
            if (instruction.kind == InstructionKind::send) time = times.transfer;
            if (instruction.kind == InstructionKind::compute) {
                const std::size_t stage = instruction.stage;
                switch (instruction.phase) {
                    case schedule::ComputePhase::forward:
                    case schedule::ComputePhase::recompute: time = times.forward[stage]; break;
                    case schedule::ComputePhase::backward:
                        time = times.backward_input[stage] + times.backward_weight[stage];
                        break;
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
