// V-Min and V-Half (Qi et al., arXiv 2405.15362): two chunks a rank placed as a V, so that the lifespans of
// the two balance and memory is equal on all ranks. A building block says in which slot each pass of one
// micro-batch runs on each rank; repeated every 6 slots (two chunks of F, I, W) no two passes of a rank
// collide. The repetition leaves slots free while it starts and ends: passes move forward into them as far as
// their inputs and the block's own memory allow, once with weights in fixed slots and once without; in the
// end weights take what is free.
#include <algorithm>
#include <array>
#include <numeric>

#include "core/index/integers.h"
#include "schedule/pipeline/generators.h"
#include "schedule/pipeline/order.h"

namespace schedule {

namespace {

constexpr int period = 6;

// Passes of a micro-batch in their order; "down" goes from rank 0 to p-1, "up" back. Weights are one kind
// while passes move and one per chunk in the end.
enum Pass { forward_down, forward_up, gradient_down, gradient_up, weight, weight_up };

// Slots of one rank: [pass][micro-batch].
using Slots = std::vector<std::vector<int>>;

struct Start {
    int slot = 0, rank = 0, pass = 0, micro_batch = 0;
};

int last_slot(const Slots& rank) {
    int last = 0;
    for (const std::vector<int>& pass : rank) last = std::max(last, pass.empty() ? 0 : pass.back());
    return last;
}

// By slot, then rank, pass and micro-batch. Slots are few and close together, so they are counted.
std::vector<Start> starts_of(const std::vector<Slots>& ranks) {
    std::vector<std::size_t> next;  // by slot: where its next start goes
    for (const Slots& rank : ranks)
        for (const std::vector<int>& pass : rank)
            for (const int slot : pass) {
                const std::size_t after = std::size_t(slot) + 1;
                if (after >= next.size()) next.resize(after + 1, 0);
                ++next[after];
            }
    if (next.empty()) return {};
    std::partial_sum(next.begin(), next.end(), next.begin());
    std::vector<Start> starts(next.back());
    for (const std::int32_t r : core::indices(ranks))
        for (const std::int32_t pass : core::indices(ranks[r]))
            for (const std::int32_t k : core::indices(ranks[r][pass]))
                starts[next[std::size_t(ranks[r][pass][k])]++] = {ranks[r][pass][k], r, pass, k};
    return starts;
}

// The pass in each slot; -1: the slot is free.
std::vector<std::int8_t> passes_by_slot(const Slots& rank) {
    std::vector<std::int8_t> by_slot(last_slot(rank) + 1, -1);
    for (std::size_t pass = 0; pass < rank.size(); ++pass)
        for (const int slot : rank[pass]) by_slot[slot] = static_cast<std::int8_t>(pass);
    return by_slot;
}

// Weights into the free slots, as early as their gradients allow; those of the gradient on the way down first
// when the chunks are told apart.
void put_weights(Slots& rank, bool tells_chunks_apart) {
    const std::vector<std::int8_t> by_slot = passes_by_slot(rank);
    rank.resize(tells_chunks_apart ? 6 : 5);
    std::array<int, 2> waiting{};
    auto put = [&](std::size_t kind, int slot) {
        rank[weight + kind].push_back(slot);
        --waiting[kind];
    };
    for (const std::int32_t slot : core::indices(by_slot)) {
        if (by_slot[slot] >= gradient_down)
            ++waiting[tells_chunks_apart && by_slot[slot] == gradient_up ? 1 : 0];
        else if (by_slot[slot] < 0 && waiting[0] > 0) put(0, slot);
        else if (by_slot[slot] < 0 && waiting[1] > 0) put(1, slot);
    }
    auto slot = core::count_of(by_slot);
    for (const std::size_t kind : {0u, 1u})
        while (waiting[kind] > 0) put(kind, slot++);
}

// Chunks in flight after a slot, and weights that wait for a free one.
struct InFlight {
    int held = 0, waiting = 0;
    bool operator==(const InFlight&) const = default;
};

// A rank by its slots. Without weights of its own it is taken to fill free slots with them.
class Occupancy {
public:
    explicit Occupancy(const Slots& rank)
        : has_weights_(rank.size() > weight), passes_(passes_by_slot(rank)) {
        InFlight state;
        for (const std::int8_t pass : passes_) {
            before_.push_back(state);
            state = after(state, pass);
            peak_ = std::max(peak_, state.held);
        }
    }

    int peak() const { return peak_; }
    bool is_free(int slot) const { return passes_[slot] < 0; }
    // To an earlier slot that is free, unless more than `most` chunks are then in flight anywhere; no more
    // are now. Behind both slots all is as it was once the same chunks are in flight and weights wait.
    bool move(int from, int to, int most) {
        std::swap(passes_[from], passes_[to]);
        changed_.clear();
        InFlight state = before_[to];
        for (int slot = to; slot < core::count_of(passes_) && (slot <= from || state != before_[slot]);
             ++slot) {
            changed_.push_back(state);
            state = after(state, passes_[slot]);
            if (state.held > most) {
                std::swap(passes_[from], passes_[to]);
                return false;
            }
        }
        std::copy(changed_.begin(), changed_.end(), before_.begin() + to);
        return true;
    }

private:
    InFlight after(InFlight state, std::int8_t pass) const {
        if (pass == forward_down || pass == forward_up) ++state.held;
        else if (pass == weight) --state.held;
        else if (pass >= 0) ++state.waiting;
        else if (!has_weights_ && state.waiting > 0) {
            --state.waiting;
            --state.held;
        }
        return state;
    }

    bool has_weights_;
    std::vector<std::int8_t> passes_;
    std::vector<InFlight> before_, changed_;  // each slot; of those from the one moved to on
    int peak_ = 0;                            // of the slots as they were given
};

// The k-th least of two ascending lists, which have more than k in all.
int least_of(const std::vector<int>& a, const std::vector<int>& b, int k) {
    int low = std::max(0, k - core::count_of(b)), high = std::min(k, core::count_of(a));  // taken from a
    while (low < high) {
        const int middle = (low + high) / 2;
        if (a[middle] < b[k - middle - 1]) low = middle + 1;
        else high = middle;
    }
    if (low == core::count_of(a)) return b[k - low];
    return k - low == core::count_of(b) ? a[low] : std::min(a[low], b[k - low]);
}

// The slot after the last of what a pass needs: the pass of its neighbour, the one before it on its rank, its
// own kind of the micro-batch before.
int earliest_slot(const std::vector<Slots>& ranks, const Start& start) {
    const Slots& own = ranks[start.rank];
    const int pass = start.pass, k = start.micro_batch;
    int last = -1;
    if (start.pass == weight) {
        last = least_of(own[gradient_down], own[gradient_up], k);
    } else {
        const bool is_down = start.pass == forward_down || start.pass == gradient_down;
        const int neighbour = is_down ? start.rank - 1 : start.rank + 1;
        if (neighbour >= 0 && neighbour < core::count_of(ranks)) last = ranks[neighbour][pass][k];
        if (start.pass > 0) last = std::max(last, own[pass - 1][k]);
    }
    if (k > 0) last = std::max(last, own[pass][k - 1]);
    return last + 1;
}

// All passes in the order of their slots, each as soon as it can: every pass and weight takes one slot.
void squeeze(std::vector<Slots>& ranks) {
    std::vector<int> free_from(ranks.size(), 0);
    for (const Start& start : starts_of(ranks)) {
        int& free = free_from[start.rank];
        // A weight stays behind its gradient, which its rank's own order sees to.
        const int ready = start.pass == weight ? 0 : earliest_slot(ranks, start);
        ranks[start.rank][start.pass][start.micro_batch] = std::max(free, ready);
        free = std::max(free, ready) + 1;
    }
}

// Moves passes forward into free slots, outside the steady phase: that lasts from the first end of a
// micro-batch to the last start of one. With weights in slots of their own the start is compacted too.
void compact(std::vector<Slots>& ranks, bool has_weights) {
    if (has_weights)
        for (Slots& rank : ranks) put_weights(rank, false);
    int most = 0;
    std::vector<Occupancy> occupied(ranks.begin(), ranks.end());
    for (const Occupancy& rank : occupied) most = std::max(most, rank.peak());
    const auto last_micro_batch = core::count_of(ranks.front()[forward_down]) - 1;
    enum { starting, steady, ending } phase = starting;
    for (const Start& start : starts_of(ranks)) {
        const std::size_t r = start.rank;
        int& slot = ranks[r][start.pass][start.micro_batch];
        if (phase == starting && start.pass == gradient_up && start.rank == 0) phase = steady;
        const bool stays = phase == steady || (phase == starting && !has_weights);
        if (phase == steady && start.pass == forward_down && start.micro_batch == last_micro_batch)
            phase = ending;
        if (!stays)
            for (int earlier = earliest_slot(ranks, start); earlier < start.slot; ++earlier) {
                if (!occupied[r].is_free(earlier) || !occupied[r].move(start.slot, earlier, most)) continue;
                slot = earlier;
                break;
            }
    }
    if (!has_weights)
        for (Slots& rank : ranks) put_weights(rank, false);
    squeeze(ranks);
    for (Slots& rank : ranks) rank.resize(weight);
}

// Distances in slots between neighbouring ranks on the way down and up, and of the turns at the loss and, for
// gradients, at the last rank (tables 8 and 9).
struct BlockOffsets {
    int down, up, loss_turn, gradient_turn;
};

// The block of micro-batch 0, repeated for all.
std::vector<Slots> repeated(const PipelineShape& shape, const BlockOffsets& offsets) {
    std::vector<Slots> ranks;
    const int last = shape.ranks - 1;
    const int forward_end = last * offsets.down + 1 + last * offsets.up;  // slot of rank 0's second forward
    const int gradient_turn = forward_end + offsets.loss_turn + last * offsets.down + offsets.gradient_turn;
    for (int r = 0; r <= last; ++r) {
        Slots& rank = ranks.emplace_back();
        for (const int first :
             {r * offsets.down, forward_end - r * offsets.up,
              forward_end + offsets.loss_turn + r * offsets.down, gradient_turn + (last - r) * offsets.up}) {
            std::vector<int>& pass = rank.emplace_back();
            for (int k = 0; k < shape.micro_batches; ++k) pass.push_back(first + period * k);
        }
    }
    return ranks;
}

Schedule generate(const char* name, const PipelineShape& shape, std::vector<Slots> ranks) {
    compact(ranks, true);
    compact(ranks, false);
    for (Slots& rank : ranks) put_weights(rank, true);
    Schedule schedule = empty_schedule(name, shape, StagePlacement::v_shape);
    for (const Start& start : starts_of(ranks)) {
        // Forwards go down on stage r and up on 2p-1-r, gradients the other way round.
        const bool is_first_chunk =
            start.pass == forward_down || start.pass == gradient_up || start.pass == weight_up;
        const ActionKind kind = start.pass <= forward_up    ? ActionKind::forward
                                : start.pass <= gradient_up ? ActionKind::backward_input
                                                            : ActionKind::backward_weight;
        schedule.actions[start.rank].push_back(
            {kind, is_first_chunk ? start.rank : 2 * shape.ranks - 1 - start.rank, start.micro_batch});
    }
    return schedule;
}

PipelineSchedule v_shape(const char* name, const char* summary) {
    PipelineSchedule schedule;
    schedule.name = name;
    schedule.summary = summary;
    schedule.source = "arXiv 2405.15362, tables 8 and 9; sail-sg/zero-bubble-pipeline-parallelism";
    schedule.constraint = "two chunks per rank";
    schedule.splits_backward = true;
    schedule.least_chunks = schedule.greatest_chunks = 2;
    return schedule;
}

}  // namespace

PipelineSchedule v_min_schedule() {
    PipelineSchedule schedule = v_shape("v-min", "V placement with the least memory, a third of 1F1B's");
    schedule.aliases = {"vmin"};
    schedule.bubble = "about 2/3 of 1F1B's; grows with m when F, I and W differ";
    schedule.in_flight = "at most 2 floor((p+4)/3) chunks";
    // The turn at the loss is longer where passes of a rank would otherwise collide.
    schedule.generate = [](const PipelineShape& shape) {
        return generate("v-min", shape, repeated(shape, {1, 1, shape.ranks % 3 == 0 ? 3 : 1, 1}));
    };
    return schedule;
}

PipelineSchedule v_half_schedule() {
    PipelineSchedule schedule = v_shape("v-half", "V placement with half of 1F1B's memory");
    schedule.aliases = {"vhalf"};
    schedule.bubble = "about half of 1F1B's";
    schedule.in_flight = "at most p+2 chunks";
    schedule.generate = [](const PipelineShape& shape) {
        return generate("v-half", shape, repeated(shape, {2, 1, shape.ranks % 2 == 0 ? 4 : 1, 2}));
    };
    return schedule;
}

}  // namespace schedule
