#include "exec/profile/exchange_profile.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <map>
#include <optional>
#include <utility>

#include "core/index/integers.h"
#include "exec/cpu/cores.h"
#include "exec/cpu/thread_communicator.h"
#include "exec/runtime/rank_threads.h"
#include "exec/transport/collective.h"
#include "exec/transport/exchange.h"
#include "schedule/collective/rounds.h"
#include "schedule/program/exchange_signature.h"

namespace exec {

namespace {

using schedule::Instruction;
using schedule::InstructionKind;
using Clock = std::chrono::steady_clock;

enum : Tag { tag_exchange = 200, tag_return = 199, tag_exchange_times = 52 };
// Of barriers; others that are passed before the steps count from 2^20.
constexpr std::uint64_t first_barrier = std::uint64_t{1} << 30;

struct Exchange {
    std::string signature;
    Instruction instruction;
    int pipeline = 0;  // of the ranks that perform it
    double weight = 0;
};

// Elements that travel as fp32, whatever the plan's precision.
std::int64_t floats_of(const schedule::Program& program, const Instruction& instruction) {
    const schedule::Precision& precision = program.plan.precision;
    core::DataType type = core::DataType::fp32;
    switch (instruction.payload) {
        case schedule::PayloadKind::activation:
        case schedule::PayloadKind::activation_gradient: type = precision.activations(); break;
        case schedule::PayloadKind::parameter: type = precision.parameters; break;
        case schedule::PayloadKind::parameter_gradient: type = precision.gradients; break;
        case schedule::PayloadKind::none:
        case schedule::PayloadKind::loss:
        case schedule::PayloadKind::gradient_norm:
        case schedule::PayloadKind::update_norm: break;
    }
    return static_cast<std::int64_t>(instruction.bytes.value / core::size_of(type).value + 0.5);
}

bool is_measured(const schedule::Program& program, int rank, const Instruction& instruction,
                 const ExchangeTiming& timing) {
    constexpr double most_floats = 1 << 22;
    if (instruction.bytes.value <= 0 || static_cast<double>(floats_of(program, instruction)) > most_floats)
        return false;
    if (instruction.kind == InstructionKind::send) return timing.times_sends;
    return instruction.kind == InstructionKind::collective &&
           instruction.collective != schedule::CollectiveKind::all_to_all &&
           schedule::members_of(program, rank, instruction).size() > 1;
}

// Equal on every rank: what moves most in a step, in the order of the ranks and their lists.
std::vector<Exchange> exchanges_of(const schedule::Program& program, const ExchangeTiming& timing) {
    constexpr std::size_t most_exchanges = 24;
    constexpr double latency_bytes = 65536;  // what a message without content counts as
    std::vector<Exchange> all;
    std::map<std::string, std::size_t> known;
    std::vector<char> is_seen(program.classes.size(), 0);
    for (const std::int32_t rank : core::indices(program.class_of_rank)) {
        const std::size_t rank_class = program.class_of_rank[rank];
        if (std::exchange(is_seen[rank_class], 1) != 0) continue;
        const schedule::RankProgram& list = program.classes[rank_class];
        for (const Instruction& instruction : list.instructions) {
            if (!is_measured(program, rank, instruction, timing)) continue;
            std::string signature = exchange_signature(program, rank, instruction);
            const auto [found, is_new] = known.try_emplace(signature, all.size());
            if (is_new) all.push_back({std::move(signature), instruction, list.pipeline, 0});
            all[found->second].weight += instruction.bytes.value + latency_bytes;
        }
    }
    std::stable_sort(all.begin(), all.end(),
                     [](const Exchange& a, const Exchange& b) { return a.weight > b.weight; });
    if (all.size() > most_exchanges) all.resize(most_exchanges);
    return all;
}

// One rank's part of an exchange, again and again.
class Part {
public:
    Part(Communicator& communicator, const schedule::Program& program, const Exchange& exchange,
         int ranks_per_node)
        : communicator_(communicator), data_(floats_of(program, exchange.instruction), 1.0f) {
        const schedule::ParallelLayout& layout = program.plan.layout;
        const schedule::RankCoordinates at = schedule::coordinates_of(layout, communicator.rank());
        if (exchange.instruction.kind == InstructionKind::send) {
            const int to = *exchange.instruction.peer;
            if (at.pipeline == exchange.pipeline || at.pipeline == to)
                peer_ = schedule::rank_of(layout,
                                          {at.data, at.tensor, at.pipeline == to ? exchange.pipeline : to});
            begins_ = at.pipeline == exchange.pipeline;
            return;
        }
        // A group may have members at other coordinates, which find it in their own lists.
        const schedule::RankProgram& list = program.classes[program.class_of_rank[communicator.rank()]];
        for (const Instruction& own : list.instructions) {
            // Its own place in the exchange: of tied parameters of one size several may be reduced, over
            // stages that overlap.
            if (own.kind != InstructionKind::collective ||
                schedule::collective_signature(own.collective, own.group, exchange.pipeline,
                                               schedule::tied_ranks_of(list, own),
                                               own.bytes) != exchange.signature)
                continue;
            const std::vector<int> members = schedule::members_of(program, communicator.rank(), own);
            const bool is_of_it = std::any_of(members.begin(), members.end(), [&](int member) {
                return schedule::coordinates_of(layout, member).pipeline == exchange.pipeline;
            });
            if (!is_of_it) continue;
            members_ = members;
            break;
        }
        if (members_.size() < 2) return;
        const int size = core::count_of(members_);
        std::map<int, int> on_node;
        int per_node = 0;
        for (const int member : members_)
            per_node = std::max(per_node, ranks_per_node > 0 ? ++on_node[member / ranks_per_node] : size);
        rounds_ = schedule::select_collective(program.plan.collective, exchange.instruction.collective, size,
                                              per_node, exchange.instruction.bytes)
                      .rounds(exchange.instruction.collective, size, per_node);
    }

    // As fresh in its own cache as what was just computed.
    void refresh() { std::fill(data_.begin(), data_.end(), 1.0f); }
    void perform() {
        if (members_.size() > 1) exec::perform(communicator_, rounds_, members_, data_, tag_exchange);
        if (!peer_) return;
        // There and back: two messages.
        if (begins_) send(tag_exchange);
        communicator_.receive(*peer_, begins_ ? tag_return : tag_exchange, data_, Arrival::overwrites);
        if (!begins_) send(tag_return);
    }
    std::size_t floats() const { return data_.size(); }
    double messages() const { return peer_ ? 2 : 1; }

private:
    void send(Tag tag) { communicator_.finish(communicator_.start_send(*peer_, tag, data_, nullptr)); }

    Communicator& communicator_;
    std::vector<float> data_;
    std::vector<int> members_;
    schedule::Rounds rounds_;
    std::optional<int> peer_;
    bool begins_ = false;
};

}  // namespace

std::string exchange_signature(const schedule::Program& program, int rank, const Instruction& instruction) {
    const schedule::RankProgram& list = program.classes[program.class_of_rank[rank]];
    if (instruction.kind == InstructionKind::send)
        return schedule::transfer_signature(list.pipeline, *instruction.peer, instruction.bytes);
    return schedule::collective_signature(instruction.collective, instruction.group, list.pipeline,
                                          schedule::tied_ranks_of(list, instruction), instruction.bytes);
}

std::vector<MeasuredExchange> time_exchanges(Communicator& communicator, const schedule::Program& program,
                                             const ExchangeTiming& timing) {
    const std::vector<Exchange> exchanges = exchanges_of(program, timing);
    std::uint64_t barriers = first_barrier;
    std::string own_times;
    std::vector<int> repetitions_of;
    for (const Exchange& exchange : exchanges) {
        Part part(communicator, program, exchange, timing.ranks_per_node);
        const auto seconds = [&](int times) {
            part.refresh();
            barrier(communicator, barriers++);
            const Clock::time_point start = Clock::now();
            for (int i = 0; i < times; ++i) part.perform();
            return std::chrono::duration<double>(Clock::now() - start).count() / times / part.messages();
        };
        seconds(1);  // finds connections and caches cold
        const double second = seconds(1);
        // All take as many as the slowest has time for: words of a barrier are whole numbers up to 2^24.
        constexpr double microsecond = 1e-6, short_exchange = 1e-4, most_word = 1 << 24;
        const double first = std::max(
            microsecond, microsecond * barrier(communicator, barriers++,
                                               static_cast<int>(std::min(most_word, second / microsecond))));
        // Again and again only what is too short for a clock that starts after a barrier: a longer message is
        // in no cache but the sender's when it is sent.
        constexpr std::size_t few_floats = 4096;
        const int times =
            part.floats() <= few_floats ? std::clamp(static_cast<int>(short_exchange / first), 1, 50) : 1;
        const double each = timing.budget.value / static_cast<double>(exchanges.size());
        const int repetitions = std::clamp(static_cast<int>(each / (first * times)), 3, 15);
        repetitions_of.push_back(repetitions);
        for (int i = 0; i < repetitions; ++i) {
            const double own = seconds(times);
            own_times.append(reinterpret_cast<const char*>(&own), sizeof own);
        }
    }
    const std::vector<std::string> all = gather_texts(communicator, tag_exchange_times, own_times);
    std::vector<MeasuredExchange> result;
    std::size_t at = 0;
    for (std::size_t e = 0; e < exchanges.size() && communicator.rank() == 0; ++e) {
        std::vector<double> slowest(repetitions_of[e]);
        for (double& time : slowest) {
            for (const std::string& text : all) {
                double one = 0;
                std::memcpy(&one, text.data() + at, sizeof one);
                time = std::max(time, one);
            }
            at += sizeof time;
        }
        std::sort(slowest.begin(), slowest.end());
        result.push_back({exchanges[e].signature, core::Seconds(slowest[slowest.size() / 2])});
    }
    return result;
}

std::vector<MeasuredExchange> time_exchanges_of_threads(const schedule::Program& program) {
    const int ranks = program.plan.layout.ranks();
    if (ranks < 2 || ranks > cpu::available_cores()) return {};
    cpu::ThreadNetwork network(ranks, core::seconds(60), true);
    std::vector<MeasuredExchange> result;
    std::vector<std::exception_ptr> failures(ranks);
    const auto work = [&](int rank) {
        try {
            const cpu::StayOnCore stay(rank, ranks);
            const std::unique_ptr<Communicator> communicator = network.communicator(rank);
            // Messages between stages of threads are read where they lie: their time is the receiver's.
            std::vector<MeasuredExchange> measured =
                time_exchanges(*communicator, program, {0, false, core::seconds(0.5)});
            if (rank == 0) result = std::move(measured);
        } catch (const std::exception& failure) {
            failures[rank] = std::current_exception();
            network.stop(failure.what());
        }
    };
    run_in_threads(ranks, work, [&](const std::string& reason) { network.stop(reason); });
    for (const std::exception_ptr& failure : failures)
        if (failure) std::rethrow_exception(failure);
    return result;
}

}  // namespace exec
