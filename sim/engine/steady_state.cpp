#include "sim/engine/steady_state.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>
#include <vector>

namespace sim {

namespace {

using schedule::Action;
using schedule::Instruction;
using schedule::InstructionKind;
using schedule::Schedule;

// Share of a step by which equal times may differ: rounding of their sums.
constexpr double rounding = 1e-9;
// Of blocks: max-plus systems of pipelines that alternate do so between few states.
constexpr int most_blocks = 6;

Action moved(Action action, int micro_batches) {
    if (action.micro_batch >= 0) action.micro_batch += micro_batches;
    return action;
}

// Numbers that follow one another in each direction: how far apart those in flight at once are, at most, and
// one more. `place` gives an item's direction and number, a negative one where it has none.
template <class List, class Place>
int most_in_flight(const List& list, int directions, Place place) {
    std::vector<int> latest(std::size_t(directions), -1);
    int most = 1;
    for (const auto& item : list) {
        const auto [direction, number] = place(item);
        if (number < 0) continue;
        int& last = latest[std::size_t(direction)];
        last = std::max(last, int(number));
        most = std::max(most, last - int(number) + 1);
    }
    return most;
}

// The front half of the shorter list, then blocks that continue it, then its other half.
bool repeats_in_the_middle(const std::vector<Action>& a, const std::vector<Action>& b, int more, int block,
                           int directions) {
    if (b.size() <= a.size() || (b.size() - a.size()) * std::size_t(block) % std::size_t(more) != 0)
        return false;
    const std::size_t length = (b.size() - a.size()) * std::size_t(block) / std::size_t(more);
    const int reach = most_in_flight(
        a, directions, [](const Action& i) { return std::pair(int(i.direction), i.micro_batch); });
    const std::size_t compared = length * std::size_t((reach + block - 1) / block);
    if (compared + length > a.size()) return false;
    const std::size_t first = (a.size() - compared - length) / 2;
    for (std::size_t i = first; i < first + compared; ++i)
        if (moved(a[i], block) != a[i + length]) return false;
    const std::size_t half = a.size() / 2, behind = a.size() - half;
    for (std::size_t i = 0; i < half; ++i)
        if (a[i] != b[i]) return false;
    for (std::size_t i = 0; i < behind; ++i)
        if (moved(a[a.size() - 1 - i], more) != b[b.size() - 1 - i]) return false;
    for (std::size_t i = half - length; i + length < b.size() - behind; ++i)
        if (moved(b[i], block) != b[i + length]) return false;
    return true;
}

// One performer's list, as far as it repeats.
class Middle {
public:
    Middle(const schedule::Program& program, const schedule::RankProgram& list,
           const std::vector<schedule::Span>& spans, int block)
        : list_(list),
          passes_(block * program.passes_per_micro_batch()),
          has_copies_(program.plan.offload != schedule::Offload::none ||
                      program.plan.keeps_parameters_on_hosts()) {
        const std::vector<Instruction>& all = list.instructions;
        const auto is_of_pass = [](const Instruction& i) { return i.micro_batch >= 0; };
        const auto begin = std::find_if(all.begin(), all.end(), is_of_pass);
        const auto end = std::find_if(all.rbegin(), all.rend(), is_of_pass).base();
        if (begin >= end) return;
        const auto middle = std::size_t(begin - all.begin() + (end - begin) / 2);
        length_ = length_of_block(middle);
        if (length_ == 0) return;
        compared_ = length_ * std::size_t((reach(program) + passes_ - 1) / passes_);
        find_zone(middle);
        if (!has_room(1) || !gives_back()) return;
        ends_.resize(all.size());
        for (const schedule::Span& span : spans) ends_[span.instruction] = span.end.value;
        is_there_ = true;
    }

    bool is_there() const { return is_there_; }
    bool has_room(int blocks) const { return end_ - begin_ >= compared_ + length_ * std::size_t(blocks); }
    core::Seconds from(int blocks) const { return core::Seconds(ends_[first(blocks)]); }
    double period(int blocks) const {
        return ends_[first(blocks) + length_ * std::size_t(blocks)] - ends_[first(blocks)];
    }
    bool has_period(int blocks, double period, double tolerance) const {
        const std::size_t later = length_ * std::size_t(blocks);
        for (std::size_t i = first(blocks); i < first(blocks) + compared_; ++i)
            if (std::abs(ends_[i + later] - ends_[i] - period) > tolerance) return false;
        return true;
    }

private:
    // From the first compute at or after the middle to the same one of a block later; 0: there is none.
    std::size_t length_of_block(std::size_t middle) const {
        const std::vector<Instruction>& all = list_.instructions;
        const auto is_compute = [](const Instruction& i) { return i.kind == InstructionKind::compute; };
        const auto here = std::find_if(all.begin() + std::ptrdiff_t(middle), all.end(), is_compute);
        const auto later = std::find_if(here, all.end(), [&](const Instruction& i) {
            return is_compute(i) && i.stage == here->stage && i.phase == here->phase &&
                   i.piece == here->piece && i.micro_batch == here->micro_batch + passes_ &&
                   i.operators == here->operators && i.parts_begin == here->parts_begin &&
                   i.parts_count == here->parts_count;
        });
        return later == all.end() ? 0 : std::size_t(later - here);
    }

    // Passes of a direction that are under way at once, at most.
    int reach(const schedule::Program& program) const {
        const int of_direction = program.micro_batches / program.directions;
        return most_in_flight(list_.instructions, program.directions, [&](const Instruction& i) {
            return std::pair(i.micro_batch / of_direction, i.micro_batch);
        });
    }

    // As far about the middle as every instruction has its like a block later.
    void find_zone(std::size_t middle) {
        const std::size_t size = list_.instructions.size();
        begin_ = middle;
        while (begin_ > 0 && begin_ - 1 + length_ < size && is_repeated(begin_ - 1)) --begin_;
        std::size_t last = middle;
        while (last + length_ < size && is_repeated(last)) ++last;
        end_ = std::min(size, last + length_);
    }
    // Where what is compared begins: in the middle of the zone.
    std::size_t first(int blocks) const {
        return begin_ + (end_ - begin_ - compared_ - length_ * std::size_t(blocks)) / 2;
    }

    bool is_repeated(std::size_t i) const {
        const Instruction &here = list_.instructions[i], &later = list_.instructions[i + length_];
        const bool is_alike = here.kind == later.kind && here.stream == later.stream &&
                              here.phase == later.phase && here.stage == later.stage &&
                              here.piece == later.piece && here.pieces == later.pieces &&
                              here.collective == later.collective && here.group == later.group &&
                              here.payload == later.payload && here.peer == later.peer &&
                              here.bytes == later.bytes && here.after_count == later.after_count &&
                              here.parts_begin == later.parts_begin && here.parts_count == later.parts_count;
        const bool moves_on =
            here.micro_batch < 0 ? later.micro_batch < 0 : later.micro_batch - here.micro_batch == passes_;
        return is_alike && moves_on && here.loads == later.loads &&
               here.kind != InstructionKind::optimizer_step && waits_for_like_copies(here, later);
    }

    // Copies are ahead of the passes that need them, as far as the plan's horizon says: what is repeated must
    // be just as far ahead.
    bool waits_for_like_copies(const Instruction& here, const Instruction& later) const {
        if (!has_copies_) return true;
        const std::span<const std::uint32_t> a = list_.after(here), b = list_.after(later);
        for (std::size_t k = 0; k < a.size(); ++k) {
            const bool is_of_copy =
                here.kind == InstructionKind::copy || list_.instructions[a[k]].kind == InstructionKind::copy;
            if (is_of_copy && b[k] - a[k] != length_) return false;
        }
        return true;
    }

    bool gives_back() const {
        core::Bytes taken, given;
        for (std::size_t i = first(1); i < first(1) + length_; ++i) {
            const Instruction& instruction = list_.instructions[i];
            if (instruction.kind == InstructionKind::copy && !instruction.bucket)
                (instruction.loads ? given : taken) += instruction.bytes;  // of hosts
            for (const std::uint32_t b : list_.allocates(instruction)) taken += list_.buffers[b].bytes;
            for (const std::uint32_t b : list_.frees(instruction)) given += list_.buffers[b].bytes;
        }
        return std::abs(taken.value - given.value) <= rounding * std::max(taken.value, given.value);
    }

    const schedule::RankProgram& list_;
    int passes_;  // of a direction in a block
    bool has_copies_;
    std::size_t length_ = 0, compared_ = 0;  // instructions of a block, and those that are compared
    std::size_t begin_ = 0, end_ = 0;        // of the zone that repeats
    std::vector<double> ends_;               // by instruction
    bool is_there_ = false;
};

}  // namespace

std::optional<int> repeated_block(const Schedule& shorter, const Schedule& longer) {
    const int more = longer.micro_batches - shorter.micro_batches;
    for (int block = 1; block <= std::min(more, 2 * shorter.ranks); ++block) {
        if (more % block != 0) continue;
        bool is_repeated = true;
        for (std::size_t rank = 0; is_repeated && rank < shorter.actions.size(); ++rank)
            is_repeated = repeats_in_the_middle(shorter.actions[rank], longer.actions[rank], more, block,
                                                shorter.directions);
        if (is_repeated) return block;
    }
    return std::nullopt;
}

std::optional<SteadyState> find_steady_state(const schedule::Program& program,
                                             const schedule::Timeline& timeline, int block,
                                             std::size_t performer) {
    std::vector<Middle> middles;
    for (std::size_t p = 0; p < timeline.spans.size(); ++p) {
        middles.emplace_back(program, program.classes[std::size_t(timeline.class_of[p])], timeline.spans[p],
                             block);
        if (!middles.back().is_there()) return std::nullopt;
    }
    const double tolerance = rounding * timeline.makespan.value;
    for (int blocks = 1; blocks <= most_blocks; ++blocks) {
        if (!std::all_of(middles.begin(), middles.end(),
                         [&](const Middle& middle) { return middle.has_room(blocks); }))
            return std::nullopt;
        const double period = middles.front().period(blocks);
        if (std::all_of(middles.begin(), middles.end(),
                        [&](const Middle& middle) { return middle.has_period(blocks, period, tolerance); }))
            return SteadyState{blocks, core::Seconds(period), middles[performer].from(blocks)};
    }
    return std::nullopt;
}

}  // namespace sim
