// Exact length of a pipeline order, fast enough to be asked a million times a second for small ones.
//
// Backward is split, and micro-batches are in order within the forwards, backward_inputs and weights of a
// virtual stage (equal micro-batches can be exchanged without loss, so some optimum has this form): an order
// is then one word per rank over the letters F, I and W of its virtual stages.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "core/units.h"
#include "schedule/schedule.h"
#include "sim/engine/schedule_timing.h"

namespace planner {

enum class OrderObjective {
    makespan,  // last end
    span,  // longest time any one rank is occupied, last end - first start; a rank may start its first action
           // late for it
};

// F, I and W of one virtual stage.
constexpr int letters_of_stage = 3;

// Share of a sum of times or of memory by which equal sums, added up in different orders, may differ.
constexpr double rounding = 1e-9;

struct OrderProblem {
    int ranks = 1;
    int chunks = 1;                                                       // virtual stages per rank
    schedule::StagePlacement placement = schedule::StagePlacement::loop;  // or v_shape (two chunks)
    int micro_batches = 1;
    std::vector<sim::StageCost> stages;  // by virtual stage
    core::Seconds transfer;
    std::optional<core::Bytes> memory_limit;  // of a rank, finite
    OrderObjective objective = OrderObjective::makespan;

    int word_length() const { return letters_of_stage * chunks * micro_batches; }
    // What sums of a rank's activations are compared with: the limit, and what their rounding adds (share of
    // the limit). Infinity without a limit.
    double greatest_memory() const {
        return memory_limit ? memory_limit->value * (1 + rounding) : std::numeric_limits<double>::infinity();
    }
    int stage_of(int rank, int chunk) const {
        return placement == schedule::StagePlacement::v_shape && chunk == 1 ? 2 * ranks - 1 - rank
                                                                            : chunk * ranks + rank;
    }
    int rank_of(int stage) const { return schedule::rank_of_stage(placement, ranks, stage); }
};

enum Letter : std::uint8_t {
    F = 0,
    I = 1,
    W = 2
};  // of a rank's first virtual stage; + 3 for each further one
using Word = std::vector<std::uint8_t>;
using Order = std::vector<Word>;  // [rank]

class OrderEvaluator {
public:
    explicit OrderEvaluator(const OrderProblem& problem);

    // Infinite when the order deadlocks. The order is the one that changes are tried against.
    double evaluate(const Order& order);
    // The same for an order that differs from that one only within the given positions: longest paths are
    // followed from the first of them on, and no further than they differ. `keep` makes the order tried last
    // the one that changes are tried against.
    struct Change {
        int rank = 0, first = 0, last = 0;  // positions between which letters differ
    };
    double try_change(const Order& order, const std::vector<Change>& changes);
    void keep();
    // Mean over ranks of the value whose greatest is the objective, of the order evaluated or tried last. A
    // search tells orders of equal length apart by it.
    double mean() const { return mean_; }
    // The word keeps F before I before W of each micro-batch and the memory limit.
    bool is_allowed(const Word& word, int rank);

    // Earliest start of each rank's first action at which the objective is reached (span: later than its
    // input may be there).
    std::vector<core::Seconds> releases(const Order& order, double objective);

    const OrderProblem& problem() const { return problem_; }

private:
    // No pass, or a front that was not reached: a sentinel and not an optional, as the innermost loop asks
    // for every letter, and a change copies whole fronts.
    static constexpr std::int32_t none = -1;

    // How far the lists have been played, and the time of each rank.
    struct Front {
        std::int32_t done = none, next_rank = 0;  // actions played
        std::vector<std::int32_t> head, count, made;
        std::vector<double> rank_end, first_start;
    };
    // Longest paths from one source, with fronts kept on the way.
    struct Paths {
        std::vector<double> ends;  // [pass * m + k]
        Front last;
        std::vector<Front> kept;
        // Of a tried order: the kept fronts before and from these are those of the order it was tried
        // against.
        std::size_t shared_before = 0, shared_from = 0;
    };

    // The rank whose first action longest paths start from; nothing: from time 0.
    std::optional<int> source_of(std::size_t path) const;
    Front start_of(std::optional<int> source) const;
    // Plays from `from` to the end. With `known`: until a front is reached that is the same there, whose end
    // is taken then.
    bool play(const Order& order, Front from, Paths& paths, std::vector<std::int32_t>& played_at,
              const Paths* known, const std::vector<Change>& changes) const;
    double objective_of(const std::vector<Paths>& paths);
    double span_of(const std::vector<Paths>& paths);

    // Duration, dependency and product of a letter of a rank. A pass is the F or I of one virtual stage:
    // number 2 stage + (0 or 1).
    struct LetterFacts {
        double duration = 0, delay = 0;
        std::int32_t needs = none, makes = none;  // passes
        double memory_at_start = 0, memory_at_end = 0;
    };

    OrderProblem problem_;
    int letters_ = letters_of_stage;    // per rank
    std::vector<LetterFacts> facts_;    // [rank * letters + letter]
    std::vector<Paths> paths_, tried_;  // one per source: time 0, or for spans each rank's first action
    std::vector<std::int32_t> played_at_,
        tried_at_;  // [rank * length + position]: how many actions were played before
    std::vector<double> release_;
    std::vector<std::int32_t> word_counts_;
    double mean_ = 0;
    std::vector<double> reach_, walk_;  // p x p longest paths between ranks, Karp's table
};

schedule::Schedule to_schedule(const OrderProblem& problem, const Order& order);
// A full backward becomes I and W; virtual stages must lie as in the problem.
Order to_order(const OrderProblem& problem, const schedule::Schedule& schedule);

}  // namespace planner
