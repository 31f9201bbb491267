#include "planner/partition/partition_space.h"

#include <algorithm>
#include <limits>

#include "core/index/integers.h"

namespace planner {

namespace {
constexpr double infinity = std::numeric_limits<double>::infinity();
// Passes that are replayed to bound divisions of one plan: about a second.
constexpr double most_passes = 2e7;
// A stage with another unit behind it may recompute less of what it had, but no backward pass is shorter than
// its forward pass, nor is recomputation longer than that: once a stage takes this many times the limit, no
// longer one is below it.
constexpr double hopeless = 1.5;
// Paths in a mean: where it cannot come to the limit as many as cost about a millisecond, and no fewer or
// more than these. A pipeline of eight stages comes to half a percent of the greatest mean with 128.
constexpr int fewest_paths = 32, most_paths = 256;
constexpr double most_looked_at = 1.5e6;  // runs of units and passes, of all of a mean's paths
// So close to the greatest mean of paths, more of them are not worth their time.
constexpr double close = 1e-3;
// Runs in the table of a mean that cost what one costs that is looked at.
constexpr std::size_t runs_a_division = 8;
constexpr std::size_t not_asked = std::numeric_limits<std::size_t>::max();

// `mean` is that of what came before, without a share of it.
void mix_in(std::vector<sim::StageCost>& mean, const std::vector<sim::StageCost>& costs, double share) {
    if (mean.empty()) mean = costs;
    for (std::size_t i = 0; i < mean.size(); ++i)
        for (core::Seconds sim::StageCost::* const time :
             {&sim::StageCost::forward, &sim::StageCost::backward_input, &sim::StageCost::backward_weight})
            mean[i].*time += (costs[i].*time - mean[i].*time) * share;
}

// Of the only stage of a rank: does its last pass that makes gradients make those of weights alone?
bool ends_with_weights(const schedule::Schedule& order, int stage) {
    const std::vector<schedule::Action>& actions =
        order.actions[std::size_t(schedule::rank_of_stage(order, stage))];
    const auto last = std::find_if(actions.rbegin(), actions.rend(), [](const schedule::Action& action) {
        return action.kind == schedule::ActionKind::backward ||
               action.kind == schedule::ActionKind::backward_weight;
    });
    return last != actions.rend() && last->kind == schedule::ActionKind::backward_weight;
}

// Of device and host, in seconds.
double longer(const StageTable::Passes& passes) { return std::max(passes.busy, passes.host).value; }
}  // namespace

// A longer run needs no less: where the longest in question that begins with the unit fits, all do. If one of
// them needed more after all, it would only stay in question.
bool PartitionSpace::fits(std::size_t stage, std::size_t begin, std::size_t end) {
    if (room_.empty()) return true;
    std::size_t& known = fitting_[stage * units_ + begin];
    if (known == not_asked) {
        known = begin;
        std::size_t longest = end;
        const std::size_t left = order_->stages - stage - 1;
        while (longest + 1 + left <= units_ &&
               longer(passes(core::narrow<int>(stage), begin, longest + 1)) < limit_)
            ++longest;
        if (fits_alone(stage, begin, longest)) known = longest;
    }
    return end <= known || fits_alone(stage, begin, end);
}

// State of each stage, and its activations of as many micro-batches as its rank keeps.
bool PartitionSpace::fits_alone(std::size_t stage, std::size_t begin, std::size_t end) {
    const double state = schedule::state_footprint(table_.elements(plan_, begin, end), plan_).sum().value;
    if (state > room_[stage]) return false;
    const Bounds::Saved& saved = table_.saved(plan_, begin, end);
    double activations = 0;
    for (const Bounds::Kept& kept : (*kept_)[stage])
        activations = std::max(activations,
                               kept.whole * saved.whole.value + kept.for_weights * saved.for_weights.value);
    return state + activations * table_.bounds().fragmentation() <= room_[stage];
}

// Backwards over the stages, after what must have passed before each of them.
void PartitionSpace::tabulate_needs(double limit) {
    const std::size_t stages = order_->stages;
    Needs forward(stages + 1, std::vector<double>(units_ + 1, infinity)), backward = forward, tied = forward;
    needs_ = forward;
    forward[0][0] = backward[0][0] = 0;
    for (std::size_t s = 0; s < stages; ++s)
        for (std::size_t i = s; i + (stages - s) <= units_; ++i) {
            if (forward[s][i] == infinity) continue;
            for (std::size_t j = i + 1; j + (stages - s - 1) <= units_; ++j) {
                ++divisions_;
                const StageTable::Passes& p = passes(static_cast<int>(s), i, j);
                if (longer(p) >= limit * hopeless) break;
                if (forward[s][i] + longer(p) >= limit || !fits(s, i, j)) continue;
                forward[s + 1][j] =
                    std::min(forward[s + 1][j], forward[s][i] + p.forward.value + sent_forward(s));
                const double back = p.backward.value + sent_back(s + 1);
                backward[s + 1][j] = std::min(backward[s + 1][j], backward[s][i] + back);
                tied[s + 1][j] =
                    std::min(tied[s + 1][j], (s == 0 ? tied_after(p.backward.value) : tied[s][i]) + back);
            }
        }
    needs_[stages][units_] = 0;
    runs_.assign(stages, {});
    for (std::size_t s = stages; s-- > 0;)
        for (std::size_t i = s; i + (stages - s) <= units_; ++i) {
            if (forward[s][i] == infinity) continue;
            for (std::size_t j = i + 1; j + (stages - s - 1) <= units_; ++j) {
                if (forward[s + 1][j] == infinity || needs_[s + 1][j] == infinity) continue;
                ++divisions_;
                const StageTable::Passes& p = passes(static_cast<int>(s), i, j);
                Rank of_stage{.busy = p.busy.value,
                              .weight = p.weight.value,
                              .host = p.host.value,
                              .fill = forward[s][i],
                              .drain = backward[s][i],
                              .tied = s == 0 ? tied_after(p.backward.value) : tied[s][i]};
                add_once_a_step(of_stage, s, p, i, j);
                const double rank = of_stage.bound();
                if (rank >= limit) {
                    if (longer(p) >= limit * hopeless) break;
                    continue;
                }
                if (!fits(s, i, j)) continue;
                needs_[s][i] = std::min(needs_[s][i], std::max(rank, needs_[s + 1][j]));
                runs_[s].push_back({core::narrow<std::int32_t>(i), core::narrow<std::int32_t>(j), &p});
            }
        }
}

PartitionSpace::PartitionSpace(StageTable& table, const schedule::Plan& plan)
    : table_(table), plan_(plan), order_(nullptr), units_(table.graph().units.size()) {
    plan_.offload = schedule::Offload::none;
    plan_.partition = {};
    if (plan_.recomputes_by_stage()) plan_ = with_nothing_again(plan_);
    order_ = table_.bounds().timed_order(plan_);
    if (!order_ || std::cmp_less(units_, order_->stages)) return;
    splits_ = splits_backward(*order_);
    any_ = table_.bounds().any_partition(plan_);
    for (int s = 0; s < order_->stages; ++s) rows_.push_back(&table_.row(plan_, *order_, splits_, s));
    if (order_->stages != order_->ranks) return;
    if (order_->directions == 1) {
        once_ = &table_.once_row(plan_);
        for (int s = 0; s < order_->stages; ++s)
            ends_with_weights_.push_back(splits_ && ends_with_weights(*order_, s));
    }
    kept_ = &table_.bounds().kept(plan_);
    for (int rank = 0; rank < order_->ranks; ++rank) room_.push_back(table_.bounds().room(plan_, rank).value);
    fitting_.assign(std::size_t(order_->stages) * units_, not_asked);
}

double PartitionSpace::Rank::bound() const {
    // Weight gradients may be computed while the last gradient goes back to the first stage.
    return fill + std::max({std::max(busy, host) + std::max(0.0, drain - weight),
                            busy + std::max(0.0, tied - weight), std::max(busy, host) + after_passes,
                            busy + after_begin});
}

void PartitionSpace::add_once_a_step(Rank& rank, std::size_t stage, const StageTable::Passes& passes,
                                     std::size_t begin, std::size_t end) const {
    if (!once_) return;
    const Bounds::OnceAStep& once = table_.once_a_step(*once_, plan_, begin, end);
    double last = passes.last_backward.value;
    if (ends_with_weights_[stage]) {
        last = 0;
        for (const sim::StageCost& cost : passes.replayed) last = std::max(last, cost.backward_weight.value);
    }
    rank.after_passes = once.after.value;
    rank.after_begin = once.reduced.value + once.after.value - last;
}

Bounds::PassesByStage PartitionSpace::passes_of(const std::vector<std::int32_t>& first_units) const {
    Bounds::PassesByStage stages;
    for (std::size_t s = 0; s < first_units.size(); ++s) {
        const bool is_last = s + 1 == first_units.size();
        stages.push_back(&passes(core::narrow<int>(s), std::size_t(first_units[s]),
                                 is_last ? units_ : std::size_t(first_units[s + 1])));
    }
    return stages;
}

const sim::ReplayOrder* PartitionSpace::whole_order() {
    if (!whole_order_) whole_order_ = any_.has_order ? table_.bounds().whole_order(plan_) : nullptr;
    return *whole_order_;
}

std::vector<sim::StageCost> PartitionSpace::costs_of(const std::vector<std::int32_t>& first_units) const {
    std::vector<sim::StageCost> costs;
    for (const StageTable::Passes* stage : passes_of(first_units))
        costs.insert(costs.end(), stage->replayed.begin(), stage->replayed.end());
    return costs;
}

double PartitionSpace::replay() {
    replayed_passes_ += double(whole_order()->actions());
    return whole_order()->replay(any_.costs, ends_).makespan.value;
}

core::Seconds PartitionSpace::bound_of(const std::vector<std::int32_t>& first_units, core::Seconds limit) {
    if (!order_) return core::Seconds(0);
    // Mostly enough, and cheaper than the rest.
    if (whole_order()) {
        any_.costs.stages = costs_of(first_units);
        const core::Seconds replayed = core::Seconds(replay()) * Bounds::claimed_share;
        if (replayed >= limit) return replayed;
        replayed_passes_ += double(whole_order()->actions());
    }
    return table_.bounds().time_of_order(plan_, ranges_of(table_.graph(), first_units),
                                         passes_of(first_units), limit);
}

core::Seconds PartitionSpace::least(core::Seconds limit) {
    if (!order_ || rows_.empty()) return core::Seconds(0);
    limit_ = limit.value / Bounds::claimed_share;
    double least = 0;
    if (order_->stages == order_->ranks) {
        tabulate_needs(limit_);
        least = needs_[0][0];
    } else {
        tabulate_runs(limit_);
    }
    if (least < limit_) least = std::max(least, mean_path(limit_));
    return core::Seconds(least * Bounds::claimed_share);
}

// Those that may be part of a division below the limit.
void PartitionSpace::tabulate_runs(double limit) {
    const std::size_t stages = order_->stages;
    runs_.assign(stages, {});
    std::vector<char> begins(units_ + 1, 0), next;
    begins[0] = 1;
    for (std::size_t s = 0; s < stages; ++s) {
        next.assign(units_ + 1, 0);
        for (std::size_t i = s; i + (stages - s) <= units_; ++i) {
            if (begins[i] == 0) continue;
            const std::size_t first = s + 1 == stages ? units_ : i + 1;
            for (std::size_t j = first; j + (stages - s - 1) <= units_; ++j) {
                ++divisions_;
                const StageTable::Passes& p = passes(core::narrow<int>(s), i, j);
                if (longer(p) >= limit * hopeless) break;
                if (longer(p) >= limit || !fits(s, i, j)) continue;
                next[j] = 1;
                runs_[s].push_back({core::narrow<std::int32_t>(i), core::narrow<std::int32_t>(j), &p});
            }
        }
        begins.swap(next);
    }
}

// One side mixes paths, the other divisions; each answers with what is best against the other's mixture so
// far, late answers counting more (fictitious play: G. W. Brown, 1951). The value to which both mixtures come
// is the greatest mean of paths: every mean is less than it, and the longest path through a mixture of
// divisions is more. The greatest mean that was met is kept.
double PartitionSpace::mean_path(double limit) {
    if (!whole_order()) return 0;
    PathBound mean(runs_, units_);
    const double looked_at = double(mean.runs()) + double(whole_order()->actions());
    const int usual_paths = std::clamp(int(most_looked_at / looked_at), fewest_paths, most_paths);
    double least = 0, greatest = infinity;
    std::vector<sim::StageCost> divisions;  // the mean of their costs
    std::vector<std::int32_t> first_units = table_.bounds().first_units(plan_);
    if (first_units.empty()) return 0;
    for (int path = 0; path < (greatest < limit ? usual_paths : most_paths); ++path) {
        // It begins with a path of the usual division, which may be none of those in question.
        std::vector<sim::StageCost> costs = costs_of(first_units);
        if (path > 0) {
            mix_in(divisions, costs, 2.0 / (path + 1));
            costs = divisions;
        }
        any_.costs.stages = std::move(costs);
        const double longest = replay();
        if (path > 0) greatest = std::min(greatest, longest);
        mean.mix(whole_order()->critical_path(any_.costs, ends_), 2.0 / (path + 2));
        divisions_ += mean.runs() / runs_a_division;
        const double bound = mean.least();
        if (bound > least) {
            least = bound;
            paths_ = mean;
        }
        if (least >= std::min(limit, greatest * (1 - close))) break;
        first_units = mean.first_units();
    }
    return least;
}

double PartitionSpace::tied_after(double first_backward) const {
    if (any_.costs.after.empty()) return 0;
    const double tied = any_.costs.after[std::size_t(schedule::rank_of_stage(*order_, 0))].value;
    return any_.costs.is_after_last_begins && !splits_ ? tied - first_backward : tied;
}

void PartitionSpace::visit(int stage, std::size_t begin, const Before& before) {
    if (visited_ > most_) return;
    const int left = order_->stages - stage - 1;
    const std::size_t s = stage;
    Rank& rank = ranks_[schedule::rank_of_stage(*order_, stage)];
    const Rank rank_before = rank;
    first_units_.push_back(static_cast<std::int32_t>(begin));
    const std::size_t first_end = left == 0 ? units_ : begin + 1;
    for (std::size_t end = first_end; end + left <= units_; ++end) {
        const StageTable::Passes& p = passes(stage, begin, end);
        ++divisions_;
        rank = rank_before;
        const double tied = stage == 0 ? tied_after(p.backward.value) : before.tied;
        if (!rank.is_seen) {
            rank.is_seen = true;
            rank.fill = before.forward;
            rank.drain = before.backward;
            rank.tied = tied;
        }
        rank.busy += p.busy.value;
        rank.weight += p.weight.value;
        rank.host += p.host.value;
        add_once_a_step(rank, s, p, begin, end);
        if (longer(p) >= limit_ * hopeless) break;
        if (rank.fill + std::max(rank.busy, rank.host) >= limit_) continue;
        if (!needs_.empty() && (rank.bound() >= limit_ || needs_[s + 1][end] >= limit_)) continue;
        const double path = paths_ ? before.path + paths_->part(s, p) : 0;
        if (paths_ && path + paths_->to_go(s + 1, end) >= limit_) continue;
        if (!fits(s, begin, end)) continue;
        if (left > 0) {
            if (++visited_ > most_) break;
            const double back = p.backward.value + sent_back(s + 1);
            visit(stage + 1, end,
                  {.forward = before.forward + p.forward.value + sent_forward(s),
                   .backward = before.backward + back,
                   .tied = tied + back,
                   .path = path});
            continue;
        }
        const bool is_beaten =
            std::any_of(ranks_.begin(), ranks_.end(), [&](const Rank& r) { return r.bound() >= limit_; });
        if (!is_beaten && found_.size() >= most_found_) visited_ = most_ + 1;
        if (!is_beaten) found_.push_back({core::Seconds(0), first_units_});
    }
    rank = rank_before;
    first_units_.pop_back();
}

std::vector<std::int32_t> PartitionSpace::division_of_least() const {
    return paths_ ? paths_->first_units() : std::vector<std::int32_t>();
}

std::optional<std::vector<PartitionOption>> PartitionSpace::below(core::Seconds limit, std::size_t most,
                                                                  std::size_t most_found) {
    if (!order_ || order_->directions > 1) return std::nullopt;
    if (std::cmp_less(units_, order_->stages)) return std::vector<PartitionOption>();
    limit_ = limit.value / Bounds::claimed_share;
    const double passes_a_replay = 2.0 * plan_.stages() * plan_.micro_batches;
    most_found_ = std::min(most_found, std::size_t(most_passes / passes_a_replay) + 1);
    most_ = most;
    visited_ = 0;
    found_.clear();
    first_units_.clear();
    ranks_.assign(order_->ranks, {});
    paths_ = std::nullopt;
    needs_.clear();
    if (least(limit) >= limit) return std::vector<PartitionOption>();
    visit(0, 0, {.path = paths_ ? paths_->beside() : 0});
    if (visited_ > most_) return std::nullopt;
    for (PartitionOption& option : found_) option.bound = bound_of(option.first_units, limit);
    std::erase_if(found_, [&](const PartitionOption& option) { return option.bound >= limit; });
    std::stable_sort(found_.begin(), found_.end(),
                     [](const PartitionOption& a, const PartitionOption& b) { return a.bound < b.bound; });
    return std::move(found_);
}

}  // namespace planner
