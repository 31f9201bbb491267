// 1F1B-V (Qi et al., arXiv 2405.15362, appendix): the V placement with whole backwards. Per micro-batch a
// rank has two forwards of one slot and two backwards of two, six in all; the block repeats every six slots.
// Before the steady phase passes move forward into free slots, forwards only while that takes no more memory
// than the repetition holds anyway.
#include <algorithm>
#include <array>

#include "core/index/integers.h"
#include "schedule/pipeline/generators.h"
#include "schedule/pipeline/order.h"

namespace schedule {

namespace {

constexpr int period = 6;
enum Pass { forward_down, forward_up, backward_down, backward_up };
constexpr int passes = 4;

bool is_backward(int pass) { return pass >= backward_down; }
bool is_down(int pass) { return pass == forward_down || pass == backward_down; }

// First slot of each pass by rank, modulo the period, then laid out so that each follows what it needs. A
// pass of every third rank waits three slots: two slots of backward on three ranks fill the period.
std::vector<std::array<int, passes>> first_slots(int ranks) {
    std::vector<std::array<int, passes>> residue(ranks);
    auto at = [&](int rank, int pass) -> int& { return residue[rank][pass]; };
    int slot = 0;
    for (int r = 0; r < ranks; ++r) at(r, forward_down) = ++slot;
    for (int r = ranks - 1; r >= 0; --r) at(r, forward_up) = ++slot;
    ++slot;
    if (ranks % 3 == 0) slot += 3;
    int until_wait = 1 + (ranks + 1) % 3;
    auto place_backward = [&](int rank, int pass) {
        at(rank, pass) = slot;
        slot += 2;
        if (--until_wait > 0) return;
        until_wait = 3;
        slot += 3;
    };
    for (int r = 0; r < ranks; ++r) place_backward(r, backward_down);
    for (int r = ranks - 1; r >= 0; --r) place_backward(r, backward_up);

    std::vector<std::array<int, passes>> first(ranks);
    int next = period;  // a free period ahead, into which the start is compacted
    for (int pass = 0; pass < passes; ++pass)
        for (int i = 0; i < ranks; ++i) {
            const int rank = is_down(pass) ? i : ranks - 1 - i;
            next += ((at(rank, pass) - next) % period + period) % period;
            first[rank][pass] = next++;
        }
    return first;
}

// A backward is two cells, moved one by one: it is done when both are through.
enum Cell : std::int8_t { nothing = -1, backward_end_down = passes, backward_end_up };

class Grid {
public:
    Grid(int ranks, int micro_batches) : p_(ranks), m_(micro_batches) {
        const auto first = first_slots(ranks);
        int length = 0;
        for (const auto& rank : first)
            length = std::max(length, rank[backward_up] + period * micro_batches + 2);
        cells_.assign(ranks, std::vector<std::int8_t>(length, nothing));
        for (int r = 0; r < ranks; ++r)
            for (int pass = 0; pass < passes; ++pass)
                for (int k = 0; k < micro_batches; ++k) {
                    const int slot = first[r][pass] + period * k;
                    at(r, slot) = static_cast<std::int8_t>(pass);
                    if (is_backward(pass)) at(r, slot + 1) = static_cast<std::int8_t>(pass + 2);
                }
    }

    void compact() {
        count_held();
        done_.assign(p_, {});
        const auto length = core::count_of(cells_.front());
        for (int slot = 0; slot < length; ++slot)
            for (int r = 0; r < p_; ++r)
                if (at(r, slot) != nothing) move_forward(r, slot);
    }

    std::vector<std::vector<int>> orders() const {
        std::vector<std::vector<int>> orders;
        for (const auto& rank : cells_) {
            std::vector<int>& order = orders.emplace_back();
            for (const std::int8_t cell : rank)
                if (cell != nothing && cell < passes) order.push_back(cell);
        }
        return orders;
    }

private:
    std::int8_t& at(int rank, int slot) { return cells_[rank][slot]; }
    bool is_free(int rank, int slot) { return at(rank, slot) == nothing; }
    std::vector<int>& done(int rank, int cell) { return done_[rank][cell]; }

    void count_held() {
        for (const auto& rank : cells_) {
            std::vector<int>& held = held_.emplace_back();
            int now = 0;
            for (const std::int8_t cell : rank) {
                if (cell == forward_down || cell == forward_up) ++now;
                if (cell >= passes) --now;
                held.push_back(now);
                most_ = std::max(most_, now);
            }
        }
    }

    // The slot after the last of what the cell needs: its kind of the micro-batch before, and what makes its
    // input.
    int earliest(int rank, int cell) {
        const std::size_t k = done(rank, cell).size();
        int last = k > 0 ? done(rank, cell)[k - 1] : -1;
        auto needs = [&](int other, int what) { last = std::max(last, done(other, what)[k]); };
        if (cell >= passes) needs(rank, cell - 2);
        else {
            const int made_by = is_backward(cell) ? cell + 2 : cell,
                      neighbour = is_down(cell) ? rank - 1 : rank + 1;
            if (neighbour >= 0 && neighbour < p_) needs(neighbour, made_by);
            else if (cell == forward_up) needs(rank, forward_down);
            else if (cell == backward_down) needs(rank, forward_up);
            else if (cell == backward_up) needs(rank, backward_end_down);
        }
        return last + 1;
    }

    void move_forward(int rank, int from) {
        const int cell = at(rank, from);
        int to = earliest(rank, cell);
        while (to < from && !is_free(rank, to)) ++to;
        if (cell < passes && is_backward(cell))
            while (to < from && !(is_free(rank, to) && is_free(rank, to + 1))) ++to;
        std::vector<int>& held = held_[rank];
        const bool is_forward = cell == forward_down || cell == forward_up;
        if (is_forward && to < from) {
            const int soonest = to;
            to = from;
            while (to > soonest && held[to - 1] < most_) --to;
            while (to < from && !is_free(rank, to)) ++to;
        }
        done(rank, cell).push_back(to);
        if (to == from) return;
        at(rank, to) = static_cast<std::int8_t>(cell);
        at(rank, from) = nothing;
        const int change = is_forward ? 1 : cell >= passes ? -1 : 0;
        for (int slot = to; slot < from; ++slot) held[slot] += change;
    }

    int p_, m_, most_ = 0;
    std::vector<std::vector<std::int8_t>> cells_;
    std::vector<std::vector<int>> held_;                          // chunks in flight after each slot
    std::vector<std::array<std::vector<int>, passes + 2>> done_;  // [rank][cell]: slots by micro-batch
};

Schedule generate(const PipelineShape& shape) {
    Schedule schedule = empty_schedule("1f1b-v", shape, StagePlacement::v_shape);
    Grid grid(shape.ranks, shape.micro_batches);
    grid.compact();
    const std::vector<std::vector<int>> orders = grid.orders();
    for (int r = 0; r < shape.ranks; ++r) {
        std::array<int, passes> next{};
        for (const int pass : orders[r]) {
            const int stage = pass == forward_down || pass == backward_up ? r : 2 * shape.ranks - 1 - r,
                      k = next[pass]++;
            schedule.actions[r].push_back(is_backward(pass) ? backward_of(stage, k) : forward_of(stage, k));
        }
    }
    return schedule;
}

}  // namespace

PipelineSchedule one_forward_one_backward_v_schedule() {
    PipelineSchedule schedule;
    schedule.name = "1f1b-v";
    schedule.aliases = {"v1f1b"};
    schedule.summary = "V placement with whole backwards and two thirds of 1F1B's memory";
    schedule.source = "arXiv 2405.15362, appendix; sail-sg/zero-bubble-pipeline-parallelism";
    schedule.bubble = "measured surplus in chunk units: p = 2: 4, 3: 8, 4: 15, 8: 33, 16: 75";
    schedule.in_flight = "at most 2 (floor(2p/3) + 1) chunks";
    schedule.constraint = "two chunks per rank";
    schedule.least_chunks = schedule.greatest_chunks = 2;
    schedule.generate = generate;
    return schedule;
}

}  // namespace schedule
