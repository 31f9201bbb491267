// Times follow by data flow: an instruction's start is known when the ends of all it waits for are, whatever
// the order in which performers and streams are looked at. Streams of a performer go ahead on their own, a
// chain of instructions at a time (chains.h), as far as what they wait for is known. Where durations depend
// on what else runs on the links, the event engine plays the transfers, but for those that are known to have
// their links to themselves (lookahead.h): it is asked for its next event only when nothing else can go
// ahead, and whatever is still unknown then starts no earlier than that event. For ranks that share a core
// see shared_cores.h.
#include "sim/engine/simulate.h"

#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <string>

#include "core/errors.h"
#include "core/index/integers.h"
#include "sim/cost/contention.h"
#include "sim/engine/chains.h"
#include "sim/engine/lookahead.h"
#include "sim/engine/performers.h"
#include "sim/engine/simulation_record.h"

namespace sim {

namespace {

using schedule::Instruction;
using schedule::InstructionKind;

// Times that are not known yet, as a sentinel and not optionals: the innermost loop compares them for every
// instruction and takes their greatest.
constexpr double not_yet = -1;
constexpr std::uint32_t no_instruction = Chains::none, elsewhere = 0xfffffffe;

// A performer's stream, as one number.
using StreamIndex = std::uint32_t;

struct Transfer {
    double start = not_yet, end = not_yet;
    std::optional<StreamIndex> waiter;
};

struct Rendezvous {
    int arrived = 0;
    double from = 0;  // the last arrival
    double duration = 0;
    double end = not_yet;
    std::vector<StreamIndex> waiters;
};

std::vector<Chains> chains_of(const schedule::Program& program, const PerformerSet& set,
                              const SimulateOptions& options) {
    std::vector<ChainRules> rules;
    for (const schedule::RankProgram& list : program.classes)
        rules.push_back({options.has_concurrent_streams, options.blocks_on_transfers,
                         std::vector<char>(group_kind_count + list.buckets.size(), 0)});
    for (const Performer& performer : set.performers)
        for (std::size_t slot = 0; slot < performer.group.size(); ++slot)
            if (performer.group[slot]) rules[std::size_t(performer.class_index)].meets_others[slot] = 1;
    std::vector<Chains> chains;
    for (std::size_t c = 0; c < program.classes.size(); ++c)
        chains.push_back(chains_of(program.classes[c], rules[c]));
    return chains;
}

class Interpreter {
public:
    // `contention`, `lookahead`: null where no link is shared. All must outlive it.
    Interpreter(const schedule::Program& program, const Durations& durations, const PerformerSet& set,
                const std::vector<Chains>& chains, const Contention* contention, Lookahead* lookahead)
        : program_(program),
          durations_(durations),
          performer_set_(set),
          chains_(chains),
          contention_(contention),
          lookahead_(lookahead),
          engine_(std::vector<double>(contention_ ? contention_->links : 0, 1.0)),
          states_(performer_set_.performers.size()),
          transfers_(performer_set_.channel_count()),
          rendezvous_(performer_set_.groups.size()),
          joined_alone_(states_.size()) {
        if (!performer_set_.groups.empty()) number_collectives();
        for (std::size_t p = 0; p < states_.size(); ++p) {
            const std::size_t count = list_of(p).instructions.size();
            State& state = states_[p];
            state.starts.resize(count);
            state.ends.resize(count, not_yet);
            for (std::size_t stream = 0; stream < schedule::stream_count; ++stream)
                make_ready(state, chains_[class_of(p)], stream);
        }
    }

    void play() {
        for (std::size_t p = states_.size(); p-- > 0;) wake(stream_index(p, 0));
        do {
            while (!runnable_.empty()) {
                const StreamIndex stream = runnable_.back();
                runnable_.pop_back();
                proceed(stream / schedule::stream_count, stream % schedule::stream_count);
            }
        } while (play_event());
        require_end();
    }

    std::vector<std::vector<double>> take_starts() {
        std::vector<std::vector<double>> starts;
        for (State& state : states_) starts.push_back(std::move(state.starts));
        return starts;
    }

    Simulation record_all(const SimulateOptions& options) {
        Simulation simulation;
        for (std::size_t p = 0; p < states_.size(); ++p) {
            State& state = states_[p];
            std::vector<schedule::Span> spans(state.starts.size());
            std::vector<core::Seconds> active_from(state.starts.size());
            for (std::uint32_t i = 0; i < spans.size(); ++i) {
                active_from[i] = core::Seconds(state.starts[i]);
                spans[i] = {i, active_from[i], core::Seconds(state.ends[i])};
            }
            // Of long steps these are hundreds of megabytes, and what is recorded is as much again.
            state.starts = std::vector<double>();
            state.ends = std::vector<double>();
            for (const auto& [instruction, time] : state.active_later)
                active_from[instruction] = core::Seconds(time);
            simulation.ends_of_parts.push_back(std::move(state.ends_of_parts));
            record(performer_set_.performers[p], list_of(p), core::Seconds(state.last), spans, active_from,
                   options, simulation);
        }
        return simulation;
    }

private:
    // How far a stream has come.
    struct Cursor {
        std::uint32_t place = 0;  // of its next chain in its queue
        // What that waits for: an instruction of this performer, or another performer (`elsewhere`);
        // no_instruction: not known to wait.
        std::uint32_t waits_for = no_instruction;
        bool has_arrived = false;  // at the collective that is next
    };
    struct State {
        // By stream the next chain; none where it waits, and at the end.
        std::array<std::uint32_t, schedule::stream_count> ready;
        std::array<Cursor, schedule::stream_count> streams;
        unsigned waiting = 0;  // streams that wait for an instruction of this performer, a bit each
        std::vector<double> starts, ends;
        // Receives and collectives that move data later than from their start on.
        std::vector<std::pair<std::uint32_t, double>> active_later;
        std::map<std::uint32_t, std::vector<core::Seconds>> ends_of_parts;  // as in Simulation
        double last = 0;                                                    // end
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
        core::OptionalIndex part{};  // of a joined instruction, and where those before it have got to
        PartClock clock{};
        double share = 1;  // of the price that is paid, where some of it is hidden
    };

    // Of each collective, how many of its slot come before.
    void number_collectives() {
        for (const schedule::RankProgram& list : program_.classes) {
            std::vector<std::uint32_t> met(group_kind_count + list.buckets.size(), 0);
            std::vector<std::uint32_t>& ordinals = ordinals_.emplace_back(list.instructions.size(), 0);
            for (std::uint32_t i = 0; i < list.instructions.size(); ++i)
                if (list.instructions[i].kind == InstructionKind::collective)
                    ordinals[i] = met[PerformerSet::slot_of(list.instructions[i])]++;
        }
    }

    static StreamIndex stream_index(std::size_t performer, std::size_t stream) {
        return static_cast<StreamIndex>(performer * schedule::stream_count + stream);
    }
    void wake(StreamIndex stream) { runnable_.push_back(stream); }

    std::size_t class_of(std::size_t performer) const {
        return std::size_t(performer_set_.performers[performer].class_index);
    }
    const schedule::RankProgram& list_of(std::size_t performer) const {
        return program_.classes[class_of(performer)];
    }

    // Null where it has its links to itself whatever else happens.
    const Communication* shared(std::size_t performer, std::size_t class_index,
                                std::uint32_t instruction) const {
        return contention_ ? communication_of(contention_->kind_of[class_index][instruction], performer)
                           : nullptr;
    }
    const Communication* shared_part(std::size_t performer, std::size_t class_index,
                                     std::uint32_t part) const {
        return communication_of(contention_->kind_of_part[class_index][part], performer);
    }
    const Communication* communication_of(core::OptionalIndex kind, std::size_t performer) const {
        if (!kind) return nullptr;
        const core::OptionalIndex index = contention_->communication_of[*kind][performer];
        return index ? &contention_->communications[*index] : nullptr;
    }
    // When the event engine ends it where nothing meets it, to the last bit: a rank's own communication need
    // not take what its class's is priced at, and where links are shared what rounds otherwise soon is no
    // longer small.
    static double end_alone(const Communication& communication, double start, double duration) {
        const double share =
            duration < communication.priced.value ? duration / communication.priced.value : 1;
        const double first_byte = start + communication.latency.value * share +
                                  std::max(0.0, duration - communication.priced.value);
        return first_byte + communication.streaming.value * share;
    }
    // Is what shares links over before another can meet it? It then is, as far as others are concerned.
    bool passes_alone(std::size_t performer, std::uint32_t instruction, double end) {
        if (!lookahead_) return true;
        if (!lookahead_->is_alone(performer, instruction, end)) return false;
        lookahead_->pass(performer, instruction);
        return true;
    }

    static void make_ready(State& state, const Chains& chains, std::size_t stream) {
        Cursor& cursor = state.streams[stream];
        const std::vector<std::uint32_t>& queue = chains.queues[stream];
        cursor.waits_for = no_instruction;
        state.ready[stream] = cursor.place < queue.size() ? queue[cursor.place] : no_instruction;
    }

    // Streams whose instruction of this performer has ended wait no longer. Are there any?
    static bool look_again(State& state, const Chains& chains) {
        bool has_found = false;
        for (std::size_t stream = 0; stream < schedule::stream_count; ++stream) {
            const unsigned bit = 1U << stream;
            if ((state.waiting & bit) == 0 || state.ends[state.streams[stream].waits_for] == not_yet)
                continue;
            state.waiting &= ~bit;
            make_ready(state, chains, stream);
            has_found = true;
        }
        return has_found;
    }

    // Every stream as far as it goes, the chain that comes first in the list first: it is the one least
    // likely to wait. `woken`: the stream for which something elsewhere has ended.
    void proceed(std::size_t performer, std::size_t woken) {
        State& state = states_[performer];
        const std::size_t class_index = class_of(performer);
        const Chains& chains = chains_[class_index];
        if (state.streams[woken].waits_for == elsewhere) make_ready(state, chains, woken);
        while (true) {
            if (state.waiting != 0) look_again(state, chains);
            std::size_t first = 0;
            for (std::size_t stream = 1; stream < schedule::stream_count; ++stream)
                if (state.ready[stream] < state.ready[first]) first = stream;
            const std::uint32_t least = state.ready[first];
            if (least == no_instruction) return;
            fetch_ahead(class_index, state, least);
            Cursor& cursor = state.streams[first];
            cursor.waits_for = perform(performer, state, first, chains.chains[least]);
            if (cursor.waits_for == no_instruction) {
                ++cursor.place;
                make_ready(state, chains, first);
                continue;
            }
            state.ready[first] = no_instruction;
            if (cursor.waits_for != elsewhere) state.waiting |= 1U << first;
        }
    }

    // What a chain a little further on reads: lists are long, so that is seldom in the cache.
    [[gnu::always_inline]] void fetch_ahead(std::size_t class_index, const State& state,
                                            std::uint32_t chain) const {
        const std::vector<Chains::Chain>& all = chains_[class_index].chains;
        constexpr std::uint32_t distance = 4;
        if (chain + distance >= all.size()) return;
        const Chains::Chain& later = all[chain + distance];
        __builtin_prefetch(&durations_.of[class_index][later.head]);
        __builtin_prefetch(&state.starts[later.head], 1);
        __builtin_prefetch(&state.ends[later.head], 1);
        if (!later.may_grow) __builtin_prefetch(&program_.classes[class_index].instructions[later.head]);
    }

    // What the chain waits for, when that is not known yet.
    std::uint32_t perform(std::size_t performer, State& state, std::size_t stream,
                          const Chains::Chain& chain) {
        const schedule::RankProgram& list = list_of(performer);
        double start = 0;
        if (chain.before != no_instruction) {
            start = state.ends[chain.before];
            if (start == not_yet) return chain.before;
        }
        const std::uint32_t* const after = list.after_pool.data() + chain.after_begin;
        for (std::uint32_t a = 0; a < chain.after_count; ++a) {
            const std::uint32_t before = after[a];
            const double end = state.ends[before];
            if (end == not_yet) return before;
            start = std::max(start, end);
        }
        if (chain.may_grow) go_along(performer, state, chain.head, start);
        else if (!perform_alone(performer, state, stream, chain.head, start)) return elsewhere;
        return no_instruction;
    }

    // The rest of a chain, up to what the event engine has to play.
    void go_along(std::size_t performer, State& state, std::uint32_t first, double time) {
        const std::size_t class_index = class_of(performer);
        const std::vector<std::uint32_t>& next = chains_[class_index].next;
        const core::Seconds* const durations = durations_.of[class_index].data();
        for (std::uint32_t i = first; i != no_instruction; i = next[i]) {
            const double start = time;
            const bool is_joined = shares_parts(class_index, i);
            const Communication* const communication =
                is_joined ? nullptr : shared(performer, class_index, i);
            time = is_joined       ? start + joined_alone(performer, class_index, i)
                   : communication ? end_alone(*communication, start, durations[i].value)
                                   : start + durations[i].value;
            state.starts[i] = start;
            state.ends[i] = time;
            if ((!communication && !is_joined) || passes_alone(performer, i, time)) continue;
            if (is_joined) {
                time = state.ends[i] = go_through(performer, state, i, 0, PartClock(start));
                if (time != not_yet) continue;
                return;
            }
            state.ends[i] = not_yet;
            begin({communication, core::narrow<std::int32_t>(performer), i, nullptr, {}, 0}, start,
                  durations[i].value);
            return;
        }
        state.last = std::max(state.last, time);
    }

    // Is the instruction joined of parts some of which share links?
    bool shares_parts(std::size_t class_index, std::uint32_t instruction) const {
        return contention_ && !durations_.parts.empty() &&
               durations_.parts[class_index].begin[instruction] != Durations::Parts::none &&
               contention_->kind_of[class_index][instruction];
    }

    // How long a joined instruction takes where nothing meets its parts.
    double joined_alone(std::size_t performer, std::size_t class_index, std::uint32_t instruction) {
        const Durations::Parts& parts = durations_.parts[class_index];
        std::vector<double>& known = joined_alone_[performer];
        if (known.empty()) known.resize(parts.times.size(), not_yet);
        const std::uint32_t begin = parts.begin[instruction];
        if (known[begin] != not_yet) return known[begin];
        const Instruction& joined = program_.classes[class_index].instructions[instruction];
        PartClock clock;
        for (std::uint32_t k = 0; k < joined.parts_count; ++k) {
            const Instruction& part = program_.classes[class_index].parts[joined.parts_begin + k];
            const double start = clock.start(part), duration = parts.times[begin + k].value;
            const Communication* const communication =
                shared_part(performer, class_index, joined.parts_begin + k);
            clock.end(part, communication ? end_alone(*communication, start, duration) : start + duration);
        }
        return known[begin] = clock.end();
    }

    // The end of a joined instruction whose parts before this one have ended; not_yet where the event engine
    // has to play one of the others.
    double go_through(std::size_t performer, State& state, std::uint32_t instruction, std::uint32_t number,
                      PartClock clock) {
        const std::size_t class_index = class_of(performer);
        const Durations::Parts& parts = durations_.parts[class_index];
        const Instruction& joined = list_of(performer).instructions[instruction];
        std::vector<core::Seconds>& ends = state.ends_of_parts[instruction];
        ends.resize(joined.parts_count);
        for (; number < joined.parts_count; ++number) {
            const Instruction& part = list_of(performer).parts[joined.parts_begin + number];
            const double start = clock.start(part);
            const double duration = parts.times[parts.begin[instruction] + number].value;
            const Communication* const communication =
                shared_part(performer, class_index, joined.parts_begin + number);
            const double end = communication ? end_alone(*communication, start, duration) : start + duration;
            if (communication && !lookahead_->is_alone(performer, instruction, end)) {
                begin({communication,
                       core::narrow<std::int32_t>(performer),
                       instruction,
                       nullptr,
                       {},
                       0,
                       core::narrow<std::int32_t>(number),
                       clock},
                      start, duration);
                return not_yet;
            }
            clock.end(part, end);
            ends[number] = core::Seconds(end);
        }
        lookahead_->pass(performer, instruction);
        return clock.end();
    }

    // A transfer, a receive, or a collective that waits for others. False where something elsewhere has to
    // come before.
    bool perform_alone(std::size_t performer, State& state, std::size_t stream, std::uint32_t index,
                       double start) {
        const Performer& self = performer_set_.performers[performer];
        const std::size_t class_index = class_of(performer);
        const Instruction& instruction = list_of(performer).instructions[index];
        const double duration = durations_.of[class_index][index].value;
        double active_from = start, end = start + duration;
        switch (instruction.kind) {
            case InstructionKind::send: {
                Transfer& transfer = transfers_[performer_set_.channel_of_send(self, instruction)];
                core::require(transfer.start == not_yet, "every transfer is sent once");
                transfer.start = start;
                const Communication* const communication = shared(performer, class_index, index);
                if (communication) end = end_alone(*communication, start, duration);
                if (communication && !passes_alone(performer, index, end)) {
                    begin({communication, core::narrow<std::int32_t>(performer), index, &transfer, {}, 0},
                          start, duration);
                    end = not_yet;
                    break;
                }
                transfer.end = end;
                if (transfer.waiter) wake(*transfer.waiter);
                break;
            }
            case InstructionKind::receive: {
                Transfer& transfer = transfers_[performer_set_.channel_of_receive(self, instruction)];
                if (transfer.end == not_yet) {
                    transfer.waiter = stream_index(performer, stream);
                    return false;
                }
                active_from = std::max(start, transfer.start);
                end = std::max(start, transfer.end) + duration;
                break;
            }
            case InstructionKind::collective:
                if (const core::OptionalIndex group = self.group[PerformerSet::slot_of(instruction)]) {
                    if (!meet(performer, stream, *group, index, start, active_from, end)) return false;
                } else if (const Communication* const communication = shared(performer, class_index, index)) {
                    end = end_alone(*communication, start, duration);
                    if (passes_alone(performer, index, end)) break;
                    // All members behave as this performer does, though others of its class meet.
                    begin({communication, core::narrow<std::int32_t>(performer), index, nullptr, {}, 0},
                          start, duration);
                    end = not_yet;
                }
                break;
            case InstructionKind::compute:
            case InstructionKind::copy:
            case InstructionKind::optimizer_step:
            case InstructionKind::zero_gradients:
            case InstructionKind::gradient_norm:
            case InstructionKind::update_norm:
                throw core::InternalError("broken promise: it is part of a chain");
        }
        state.starts[index] = start;
        state.ends[index] = end;
        if (active_from != start) state.active_later.emplace_back(index, active_from);
        state.last = std::max(state.last, end);
        return true;
    }

    // True when every member has arrived and the end is known. Collectives are matched in list order, as on a
    // communicator.
    bool meet(std::size_t performer, std::size_t stream, std::int32_t group, std::uint32_t index,
              double start, double& active_from, double& end) {
        const std::size_t class_index = class_of(performer);
        std::vector<Rendezvous>& of_group = rendezvous_[group];
        const std::uint32_t number = ordinals_[class_index][index];
        if (number >= of_group.size()) of_group.resize(number + 1);
        Rendezvous& rendezvous = of_group[number];
        const Communication* const communication = shared(performer, class_index, index);
        bool& has_arrived = states_[performer].streams[stream].has_arrived;
        if (!has_arrived) {
            has_arrived = true;
            ++rendezvous.arrived;
            rendezvous.from = std::max(rendezvous.from, start);
            rendezvous.duration = std::max(rendezvous.duration, durations_.of[class_index][index].value);
            if (rendezvous.arrived == core::count_of(performer_set_.groups[group])) {
                if (communication && !lookahead_) {
                    rendezvous.end = end_alone(*communication, rendezvous.from, rendezvous.duration);
                    wake_all(rendezvous);
                } else if (communication) {
                    begin({communication, std::nullopt, 0, nullptr, group, number}, rendezvous.from,
                          rendezvous.duration);
                } else {
                    rendezvous.end = rendezvous.from + rendezvous.duration;
                    wake_all(rendezvous);
                }
            }
            if (rendezvous.end == not_yet) rendezvous.waiters.push_back(stream_index(performer, stream));
        }
        if (rendezvous.end == not_yet) return false;
        has_arrived = false;
        if (communication && lookahead_) lookahead_->pass(performer, index);
        active_from = rendezvous.from;
        end = rendezvous.end;
        return true;
    }

    void wake_all(Rendezvous& rendezvous) {
        for (const StreamIndex waiter : rendezvous.waiters) wake(waiter);
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
            wake_all(rendezvous);
            return true;
        }
        const auto performer = std::size_t(*running.performer);
        State& state = states_[performer];
        double over = end;
        if (running.part) {
            const schedule::RankProgram& list = list_of(performer);
            PartClock clock = running.clock;
            clock.end(list.parts_of(list.instructions[running.instruction])[std::size_t(*running.part)], end);
            state.ends_of_parts[running.instruction][std::size_t(*running.part)] = core::Seconds(end);
            over = go_through(performer, state, running.instruction, std::uint32_t(*running.part) + 1, clock);
            if (over == not_yet) return true;
        } else {
            lookahead_->pass(performer, running.instruction);
        }
        state.ends[running.instruction] = over;
        go_along(performer, state, chains_[class_of(performer)].next[running.instruction], over);
        if (state.waiting != 0 && look_again(state, chains_[class_of(performer)]))
            wake(stream_index(performer, 0));
        if (running.transfer) {
            running.transfer->end = end;
            if (running.transfer->waiter) wake(*running.transfer->waiter);
        }
        return true;
    }

    void require_end() const {
        for (std::size_t p = 0; p < states_.size(); ++p)
            for (std::size_t stream = 0; stream < schedule::stream_count; ++stream) {
                const Chains& chains = chains_[class_of(p)];
                const std::size_t chain = states_[p].streams[stream].place;
                if (chain == chains.queues[stream].size()) continue;
                const std::uint32_t head = chains.chains[chains.queues[stream][chain]].head;
                throw core::InternalError(
                    "broken promise: verify passed a program that waits for ever at " +
                    schedule::describe(program_, static_cast<std::int32_t>(class_of(p)), head));
            }
    }

    const schedule::Program& program_;
    const Durations& durations_;
    const PerformerSet& performer_set_;
    const std::vector<Chains>& chains_;  // by class
    const Contention* contention_;
    Lookahead* lookahead_;
    FlowEngine engine_;
    std::vector<std::vector<std::uint32_t>>
        ordinals_;  // [class][instruction]: how many collectives of its slot come before
    std::vector<State> states_;
    std::vector<Transfer> transfers_;
    std::vector<std::vector<Rendezvous>> rendezvous_;  // [group][number]
    // Of each performer by the begin of parts in Durations: how long they take alone, once it is known.
    std::vector<std::vector<double>> joined_alone_;
    std::vector<Running> running_;
    std::vector<std::uint32_t> free_slots_;
    std::vector<StreamIndex> runnable_;
};

bool are_no_shorter(const Durations& these, const Durations& those) {
    return std::equal(these.of.begin(), these.of.end(), those.of.begin(), those.of.end(),
                      [](const std::vector<core::Seconds>& a, const std::vector<core::Seconds>& b) {
                          return std::equal(a.begin(), a.end(), b.begin(), b.end(), std::greater_equal<>());
                      });
}

}  // namespace

struct Simulator::Content {
    Content(const schedule::Program& p, const SimulateOptions& options)
        : program(p), made_for(options), set(p, options.is_folded), chains(chains_of(p, set, options)) {
        for (const Performer& performer : set.performers) class_of.push_back(performer.class_index);
    }

    const schedule::Program& program;
    SimulateOptions made_for;
    PerformerSet set;
    std::vector<Chains> chains;          // by class
    std::vector<std::int32_t> class_of;  // of each performer
    // Of a run in which no link was shared.
    Durations durations;
    std::vector<std::vector<double>> starts;
};

Simulator::Simulator(const schedule::Program& program, const SimulateOptions& options)
    : content_(std::make_unique<Content>(program, options)) {}
Simulator::~Simulator() = default;

bool Simulator::is_for(const SimulateOptions& options) const {
    const SimulateOptions& own = content_->made_for;
    return options.has_concurrent_streams == own.has_concurrent_streams &&
           options.blocks_on_transfers == own.blocks_on_transfers && options.is_folded == own.is_folded;
}

Simulation Simulator::simulate(const Durations& durations, const SimulateOptions& options) {
    const schedule::Program& program = content_->program;
    core::require(is_for(options), "a simulator is used for what it was made for");
    core::require(durations.of.size() == program.classes.size(), "durations for every class");
    for (std::size_t c = 0; c < program.classes.size(); ++c)
        core::require(durations.of[c].size() == program.classes[c].instructions.size(),
                      "a duration for every instruction");
    const PerformerSet& set = content_->set;
    const bool shares_links = options.contention && !options.contention->is_empty();
    // Nothing begins earlier where nothing takes less.
    if (!shares_links || !options.is_folded || !are_no_shorter(durations, content_->durations)) {
        Interpreter alone(program, durations, set, content_->chains,
                          shares_links ? options.contention : nullptr, nullptr);
        alone.play();
        if (!shares_links) return alone.record_all(options);
        content_->starts = alone.take_starts();
        content_->durations = durations;
    }
    Lookahead lookahead(program, *options.contention, content_->chains, content_->class_of, content_->starts);
    Interpreter shared(program, durations, set, content_->chains, options.contention, &lookahead);
    shared.play();
    return shared.record_all(options);
}

Simulation simulate(const schedule::Program& program, const Durations& durations,
                    const SimulateOptions& options) {
    return Simulator(program, options).simulate(durations, options);
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
