// V-Min, V-Half and 1F1B-V (Qi et al., arXiv 2405.15362): two chunks a rank placed as a V, so that the lifespans of the two balance and memory is equal on all ranks.
// A building block says when the passes of one micro-batch start on each rank; repeated every 6 units (two chunks of F, I, W) no two passes of a rank collide.
// The block fixes the order of forwards and gradients; weights fill what is idle. The paper squeezes and reorders the start and the end of the repetition by
// rules of its own; here the same is had by playing: each block as it stands, with gradients let through early, and a plain memory-limited greedy order
// are timed with unit times, and the shortest within the schedule's memory is kept.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <deque>
#include <limits>

#include "schedule/pipeline/generators.h"
#include "schedule/pipeline/order.h"

namespace schedule {

namespace {

constexpr int period = 6;  // units of one micro-batch on one rank

// Start of each pass of micro-batch 0 by rank: forward and gradient of the first chunk (stage r) and of the second (stage 2p-1-r).
struct Block {
    std::vector<int> first_forward, second_forward, second_gradient, first_gradient;
};

// Distances between neighbouring ranks in each of the four passes, and of the three turns. The paper's tables 8 and 9 give them for V-Min and V-Half.
struct BlockOffsets {
    int first_forward, second_forward, second_gradient, first_gradient, forward_turn, loss_turn, gradient_turn;
};

Block block_of(int ranks, const BlockOffsets& offsets) {
    Block block;
    const int last = ranks - 1;
    for (int r = 0; r < ranks; ++r) block.first_forward.push_back(offsets.first_forward * r);
    for (int r = 0; r < ranks; ++r) block.second_forward.push_back(block.first_forward.back() + offsets.forward_turn + offsets.second_forward * (last - r));
    for (int r = 0; r < ranks; ++r) block.second_gradient.push_back(block.second_forward.front() + offsets.loss_turn + offsets.second_gradient * r);
    for (int r = 0; r < ranks; ++r) block.first_gradient.push_back(block.second_gradient.back() + offsets.gradient_turn + offsets.first_gradient * (last - r));
    return block;
}

bool collides(const Block& block, int gradient_length) {
    for (std::size_t r = 0; r < block.first_forward.size(); ++r) {
        std::array<bool, period> taken{};
        auto take = [&](int start, int length) {
            bool is_free = true;
            for (int k = start; k < start + length; ++k) {
                bool& slot = taken[static_cast<std::size_t>(k % period)];
                is_free = is_free && !slot;
                slot = true;
            }
            return is_free;
        };
        const bool fits = take(block.first_forward[r], 1) && take(block.second_forward[r], 1) && take(block.second_gradient[r], gradient_length) &&
                          take(block.first_gradient[r], gradient_length);
        if (!fits) return true;
    }
    return false;
}

// Plays one unit-time order; all policies share what may run when and how memory counts.
class UnitPlayer {
public:
    UnitPlayer(const PipelineShape& shape, bool splits, int memory_limit)
        : p_(shape.ranks), m_(shape.micro_batches), splits_(splits), limit_(memory_limit), forward_end_(passes(), never), gradient_end_(passes(), never),
          lists_(static_cast<std::size_t>(p_)), states_(static_cast<std::size_t>(p_)) {}

    // Forwards and gradients as the repeated block orders them; `lets_gradients_through`: one that is ready goes before a head that waits.
    bool follow(const Block& block, bool lets_gradients_through) {
        std::vector<std::vector<Action>> order(static_cast<std::size_t>(p_));
        for (int r = 0; r < p_; ++r) {
            const auto i = static_cast<std::size_t>(r);
            std::vector<std::pair<int, Action>> starts;
            for (int k = 0; k < m_; ++k) {
                starts.push_back({block.first_forward[i] + period * k, forward_of(r, k)});
                starts.push_back({block.second_forward[i] + period * k, forward_of(second(r), k)});
                starts.push_back({block.second_gradient[i] + period * k, gradient_of(second(r), k)});
                starts.push_back({block.first_gradient[i] + period * k, gradient_of(r, k)});
            }
            std::stable_sort(starts.begin(), starts.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
            for (const auto& start : starts) order[i].push_back(start.second);
        }
        return run([&](int r) -> std::optional<Action> {
            std::vector<Action>& list = order[static_cast<std::size_t>(r)];
            constexpr std::size_t look_ahead = 14;
            // Done actions are left in place and skipped by the state's counters, the head moves over them.
            std::size_t& head = at(r).head;
            while (head < list.size() && is_done(list[head])) ++head;
            for (std::size_t i = head; i < std::min(list.size(), head + (lets_gradients_through ? look_ahead : 1)); ++i)
                if ((i == head || list[i].kind != ActionKind::forward) && !is_done(list[i]) && is_ready(r, list[i])) return list[i];
            return std::nullopt;
        });
    }

    // At most `ahead[r]` micro-batches of the first chunk in flight; `priority` orders what is ready.
    bool greedy(const std::vector<int>& ahead, int priority) {
        enum Pass { first_forward, second_forward, second_gradient, first_gradient };
        static constexpr std::array<std::array<Pass, 4>, 3> orders = {{{first_gradient, second_gradient, second_forward, first_forward},
                                                                       {second_forward, second_gradient, first_gradient, first_forward},
                                                                       {second_gradient, second_forward, first_gradient, first_forward}}};
        return run([&](int r) -> std::optional<Action> {
            const State& s = at(r);
            for (const Pass pass : orders[static_cast<std::size_t>(priority)]) {
                const Action action = pass == first_forward     ? forward_of(r, s.forwards[0])
                                      : pass == second_forward  ? forward_of(second(r), s.forwards[1])
                                      : pass == second_gradient ? gradient_of(second(r), s.gradients[1])
                                                                : gradient_of(r, s.gradients[0]);
                if (pass == first_forward && s.forwards[0] - s.gradients[0] >= ahead[static_cast<std::size_t>(r)]) continue;
                if (action.micro_batch < m_ && is_ready(r, action)) return action;
            }
            return std::nullopt;
        });
    }

    int makespan() const { return makespan_; }
    int peak() const { return peak_; }
    std::vector<std::vector<Action>> take() { return std::move(lists_); }

private:
    static constexpr int never = std::numeric_limits<int>::max();
    struct State {
        int busy_until = 0, in_flight = 0;
        std::array<int, 2> forwards{}, gradients{};  // of the first and second chunk
        std::deque<Action> weights;
        std::size_t head = 0;
    };

    std::size_t passes() const { return static_cast<std::size_t>(2 * p_) * static_cast<std::size_t>(m_); }
    std::size_t index(int stage, int micro_batch) const { return static_cast<std::size_t>(stage) * static_cast<std::size_t>(m_) + static_cast<std::size_t>(micro_batch); }
    int second(int rank) const { return 2 * p_ - 1 - rank; }
    State& at(int rank) { return states_[static_cast<std::size_t>(rank)]; }
    Action gradient_of(int stage, int micro_batch) const { return splits_ ? backward_input_of(stage, micro_batch) : backward_of(stage, micro_batch); }

    bool is_done(const Action& action) const { return (action.kind == ActionKind::forward ? forward_end_ : gradient_end_)[index(action.stage, action.micro_batch)] != never; }
    bool is_ready(int rank, const Action& action) {
        const int k = action.micro_batch, s = action.stage;
        if (action.kind == ActionKind::forward) return at(rank).in_flight < limit_ && (s == 0 || forward_end_[index(s - 1, k)] <= now_);
        return forward_end_[index(s, k)] <= now_ && (s == 2 * p_ - 1 || gradient_end_[index(s + 1, k)] <= now_);
    }

    void perform(int rank, const Action& action) {
        State& s = at(rank);
        const std::size_t chunk = action.stage == rank ? 0 : 1;
        int length = 1;
        if (action.kind == ActionKind::forward) {
            ++s.forwards[chunk];
            peak_ = std::max(peak_, ++s.in_flight);
            forward_end_[index(action.stage, action.micro_batch)] = now_ + 1;
        } else if (action.kind == ActionKind::backward_weight) {
            --s.in_flight;
        } else {
            ++s.gradients[chunk];
            length = splits_ ? 1 : 2;
            gradient_end_[index(action.stage, action.micro_batch)] = now_ + length;
            if (splits_) s.weights.push_back(backward_weight_of(action.stage, action.micro_batch));
            else --s.in_flight;
        }
        s.busy_until = now_ + length;
        makespan_ = std::max(makespan_, s.busy_until);
        lists_[static_cast<std::size_t>(rank)].push_back(action);
    }

    template <class Choose>
    bool run(Choose choose) {
        const int total = p_ * m_ * (splits_ ? 6 : 4);
        int done = 0;
        for (now_ = 0; done < total; ++now_) {
            bool is_alive = false;
            for (int r = 0; r < p_; ++r) {
                if (at(r).busy_until > now_) {
                    is_alive = true;
                    continue;
                }
                std::optional<Action> action = choose(r);
                if (!action && !at(r).weights.empty()) {
                    action = at(r).weights.front();
                    at(r).weights.pop_front();
                }
                if (!action) continue;
                perform(r, *action);
                ++done;
                is_alive = true;
            }
            if (!is_alive) return false;
        }
        return true;
    }

    int p_, m_;
    bool splits_;
    int limit_;
    std::vector<int> forward_end_, gradient_end_;
    std::vector<std::vector<Action>> lists_;
    std::vector<State> states_;
    int now_ = 0, makespan_ = 0, peak_ = 0;
};

class BestOf {
public:
    BestOf(const PipelineShape& shape, bool splits, int memory_limit) : shape_(shape), splits_(splits), limit_(memory_limit) {}

    template <class Play>
    void consider(Play play) {
        UnitPlayer player(shape_, splits_, limit_);
        if (!play(player) || player.peak() > limit_ || player.makespan() >= makespan_) return;
        makespan_ = player.makespan();
        best_ = player.take();
    }
    void consider_block(const Block& block) {
        if (collides(block, splits_ ? 1 : 2)) return;
        consider([&](UnitPlayer& player) { return player.follow(block, false); });
        consider([&](UnitPlayer& player) { return player.follow(block, true); });
    }
    void consider_greedy() {
        for (int most = 1; most <= limit_; ++most)
            for (const int fall : {0, most / 3})
                for (int priority = 0; priority < 3; ++priority) {
                    std::vector<int> ahead;
                    for (int r = 0; r < shape_.ranks; ++r) ahead.push_back(std::max(1, most - fall * r / std::max(1, shape_.ranks - 1)));
                    consider([&](UnitPlayer& player) { return player.greedy(ahead, priority); });
                }
    }
    Schedule take(const char* name) {
        Schedule schedule = empty_schedule(name, shape_, StagePlacement::v_shape);
        core::require(!best_.empty(), "some order of a V fits its memory");
        schedule.actions = std::move(best_);
        return schedule;
    }

private:
    const PipelineShape& shape_;
    bool splits_;
    int limit_, makespan_ = std::numeric_limits<int>::max();
    std::vector<std::vector<Action>> best_;
};

Schedule generate_split(const char* name, const PipelineShape& shape, int memory_limit) {
    BestOf best(shape, true, memory_limit);
    const int p = shape.ranks;
    // Table 8 (V-Min), table 9 (V-Half), and collision-free blocks of few ranks that a search over all small offsets prefers.
    for (const BlockOffsets& offsets : std::vector<BlockOffsets>{{1, 1, 1, 1, 1, p % 3 == 0 ? 3 : 1, 1},
                                                                 {2, 1, 2, 1, 2, p % 2 == 0 ? 4 : 1, 1},
                                                                 {1, 1, 1, 1, 3, 3, 1},
                                                                 {2, 2, 1, 1, 3, 4, 1},
                                                                 {2, 2, 2, 2, 3, 1, 1},
                                                                 {1, 2, 1, 2, 1, 4, 2}})
        best.consider_block(block_of(p, offsets));
    best.consider_greedy();
    return best.take(name);
}

int least_memory(int ranks) { return 2 * ((ranks + 4) / 3); }
int half_memory(int ranks) { return ranks % 2 == 0 ? ranks + 2 : std::max(ranks + 1, least_memory(ranks)); }
int fused_memory(int ranks) { return 2 * (2 * ranks / 3 + 1); }

int next_at(int time, int slot) { return time + ((slot - time) % period + period) % period; }

// Fused backwards take two units: with the forwards one unit apart each rank's two backwards fill the rest of its period in one of two ways. The choices that
// end a micro-batch soonest are played.
Schedule generate_fused(const PipelineShape& shape) {
    const int p = shape.ranks;
    BestOf best(shape, false, fused_memory(p));
    Block block;
    for (int r = 0; r < p; ++r) {
        block.first_forward.push_back(r);
        block.second_forward.push_back(2 * p - 1 - r);
    }
    std::vector<std::array<std::pair<int, int>, 2>> slots;  // by rank: the two ways to place (second, first) gradient within the period
    for (int r = 0; r < p; ++r) {
        std::vector<int> pairs;
        const int a = block.first_forward[static_cast<std::size_t>(r)] % period, b = block.second_forward[static_cast<std::size_t>(r)] % period;
        for (int s = (a + 1) % period; pairs.size() < 2; s = (s + 2) % period) {
            if (s == b) s = (s + 1) % period;
            pairs.push_back(s);
        }
        slots.push_back({std::pair{pairs[0], pairs[1]}, std::pair{pairs[1], pairs[0]}});
    }
    const int free_choices = std::min(p, 8);  // beyond, the choice repeats with the ranks' period
    std::vector<std::pair<int, Block>> blocks;
    for (int bits = 0; bits < 1 << free_choices; ++bits) {
        Block candidate = block;
        candidate.second_gradient.resize(static_cast<std::size_t>(p));
        candidate.first_gradient.resize(static_cast<std::size_t>(p));
        auto way = [&](int r) { return slots[static_cast<std::size_t>(r)][static_cast<std::size_t>(bits >> (p <= 8 ? r : r % period) & 1)]; };
        int time = 2 * p;
        for (int r = 0; r < p; ++r, time += 2) time = candidate.second_gradient[static_cast<std::size_t>(r)] = next_at(time, way(r).first);
        for (int r = p - 1; r >= 0; --r, time += 2) time = candidate.first_gradient[static_cast<std::size_t>(r)] = next_at(time, way(r).second);
        blocks.push_back({time, std::move(candidate)});
    }
    std::stable_sort(blocks.begin(), blocks.end(), [](const auto& x, const auto& y) { return x.first < y.first; });
    constexpr std::size_t most_played = 24;
    for (std::size_t i = 0; i < std::min(most_played, blocks.size()); ++i) best.consider_block(blocks[i].second);
    for (const BlockOffsets& offsets : std::vector<BlockOffsets>{{1, 3, 3, 2, 3, 1, 3}, {3, 3, 3, 3, 1, 1, 2}}) best.consider_block(block_of(p, offsets));
    best.consider_greedy();
    return best.take("1f1b-v");
}

PipelineSchedule v_shape(const char* name, const char* summary) {
    PipelineSchedule schedule;
    schedule.name = name;
    schedule.summary = summary;
    schedule.source = "arXiv 2405.15362, tables 8 and 9; sail-sg/zero-bubble-pipeline-parallelism";
    schedule.constraint = "two chunks per rank";
    schedule.least_chunks = schedule.greatest_chunks = 2;
    return schedule;
}

}  // namespace

PipelineSchedule v_min_schedule() {
    PipelineSchedule schedule = v_shape("v-min", "V placement with the least memory, a third of 1F1B's");
    schedule.aliases = {"vmin"};
    schedule.bubble = "about 2/3 of 1F1B's; grows with m when F, I and W differ";
    schedule.in_flight = "at most 2 floor((p+4)/3) chunks";
    schedule.splits_backward = true;
    schedule.generate = [](const PipelineShape& shape) { return generate_split("v-min", shape, least_memory(shape.ranks)); };
    return schedule;
}

PipelineSchedule v_half_schedule() {
    PipelineSchedule schedule = v_shape("v-half", "V placement with half of 1F1B's memory");
    schedule.aliases = {"vhalf"};
    schedule.bubble = "about half of 1F1B's";
    schedule.in_flight = "at most p+2 chunks";
    schedule.splits_backward = true;
    schedule.generate = [](const PipelineShape& shape) { return generate_split("v-half", shape, half_memory(shape.ranks)); };
    return schedule;
}

PipelineSchedule one_forward_one_backward_v_schedule() {
    PipelineSchedule schedule = v_shape("1f1b-v", "V placement with whole backwards and two thirds of 1F1B's memory");
    schedule.aliases = {"v1f1b"};
    schedule.bubble = "measured surplus in chunk units: p = 2: 4, 3: 8, 4: 18, 8: 43, 16: 90 (authors' order 4, 8, 15, 33, 75)";
    schedule.in_flight = "at most 2 (floor(2p/3) + 1) chunks";
    schedule.generate = generate_fused;
    return schedule;
}

}  // namespace schedule
