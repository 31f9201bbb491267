#include "exec/cuda/arena.h"

#include <algorithm>
#include <limits>
#include <set>

#include "core/errors.h"

namespace exec::cuda {

namespace {

// Of an array, an empty one too: no two have one address.
std::size_t room_of(std::size_t bytes) { return rounded(std::max<std::size_t>(1, bytes)); }

constexpr std::int64_t for_ever = std::numeric_limits<std::int64_t>::max();

// For every instruction and lane: the last instruction there that has ended when this one starts.
class Order {
public:
    Order(const schedule::RankProgram& list, const Lanes& lanes, bool skips_sends)
        : list_(list),
          lanes_(lanes),
          skips_sends_(skips_sends),
          ended_(list.instructions.size()),
          before_(list.instructions.size(), -2),
          last_(lanes.count, -1) {}

    // Instructions in list order; again with more edges, before the next one.
    void add(std::uint32_t i, const std::vector<std::uint32_t>& more) {
        const schedule::Instruction& instruction = list_.instructions[i];
        std::vector<std::int64_t>& ended = ended_[i];
        ended.assign(last_.size(), -1);
        const auto join = [&](std::int64_t other) {
            if (other < 0) return;
            const std::size_t o = other;
            for (std::size_t s = 0; s < ended.size(); ++s) ended[s] = std::max(ended[s], ended_[o][s]);
            std::int64_t& own = ended[lanes_.of[o]];
            own = std::max(own, other);
        };
        std::int64_t& last = last_[lanes_.of[i]];
        if (before_[i] == -2) before_[i] = last;
        join(before_[i]);
        for (const std::uint32_t other : list_.after(instruction))
            if (!skips_sends_ || list_.instructions[other].kind != schedule::InstructionKind::send)
                join(other);
        for (const std::uint32_t other : more) join(other);
        last = i;
    }
    bool is_before(std::uint32_t first, std::uint32_t second) const {
        return ended_[second][lanes_.of[first]] >= static_cast<std::int64_t>(first);
    }

private:
    const schedule::RankProgram& list_;
    const Lanes& lanes_;
    const bool skips_sends_;
    std::vector<std::vector<std::int64_t>> ended_;
    std::vector<std::int64_t> before_;  // on its lane
    std::vector<std::int64_t> last_;
};

}  // namespace

void* ArenaPlanner::take(std::size_t bytes) {
    Array array;
    array.bytes = bytes;
    array.address = next_address_;
    array.taken = array.last = moment_++;
    next_address_ += room_of(bytes);
    by_address_[array.address] = arrays_.size();
    arrays_.push_back(std::move(array));
    return reinterpret_cast<void*>(arrays_.back().address);
}

void ArenaPlanner::give_back(std::size_t, void* block) {
    const auto found = by_address_.find(reinterpret_cast<std::uintptr_t>(block));
    core::require(found != by_address_.end() && !arrays_[found->second].is_given_back,
                  "an array is given back once");
    Array& array = arrays_[found->second];
    array.is_given_back = true;
    array.last = moment_++;
}

void ArenaPlanner::begin_step() {
    if (steps_ < 3) first_of_step_[steps_] = arrays_.size();
    ++steps_;
}

void ArenaPlanner::use(const void* address, bool writes, std::size_t bytes) {
    const auto value = (reinterpret_cast<std::uintptr_t>(address));
    auto after = by_address_.upper_bound(value);
    if (!address || after == by_address_.begin()) return;
    Array& array = arrays_[std::prev(after)->second];
    if (value >= array.address + room_of(array.bytes)) return;
    array.last = std::max(array.last, moment_++);
    const std::size_t begin = bytes > 0 ? value - array.address : 0;
    if (steps_ == 2)
        array.uses.push_back({instruction_, writes, begin, bytes > 0 ? begin + bytes : room_of(array.bytes)});
}

ArenaPlan ArenaPlanner::plan() const {
    core::require(steps_ == 3, "planning performs two steps and begins a third");
    const std::size_t set_up = first_of_step_[0], first = first_of_step_[1], second = first_of_step_[2];
    core::require(second - first == first - set_up, "every step takes the same arrays");
    for (std::size_t i = 0; i < first - set_up; ++i)
        core::require(
            arrays_[set_up + i].bytes == arrays_[first + i].bytes && arrays_[first + i].is_given_back,
            "every step takes the same arrays");
    ArenaPlan plan;
    plan.set_up = set_up;
    plan.waits.resize(list_.instructions.size());
    std::vector<std::size_t> planned;  // set-up, then the second step
    for (std::size_t i = 0; i < set_up; ++i) planned.push_back(i);
    for (std::size_t i = first; i < second; ++i) planned.push_back(i);
    for (const std::size_t i : planned) plan.sizes.push_back(arrays_[i].bytes);
    lay_out(plan, planned);
    order_reuse(plan, planned);
    order_data(plan, planned);
    return plan;
}

// The largest array first, each at the lowest offset that is free for as long as it lives. Thousands of small
// arrays of a long step make that slow: they go in order of time, which costs a little more memory.
void ArenaPlanner::lay_out(ArenaPlan& plan, const std::vector<std::size_t>& planned) const {
    struct Placed {
        std::size_t offset, end;
        std::int64_t taken, last;
    };
    std::vector<std::size_t> order(planned.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    const auto last_of = [&](std::size_t i) {
        return arrays_[planned[i]].is_given_back ? arrays_[planned[i]].last : for_ever;
    };
    constexpr std::size_t many = 12000;
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        const bool stays_a = last_of(a) == for_ever, stays_b = last_of(b) == for_ever;
        if (stays_a != stays_b) return stays_a;  // what lives for ever lies at the bottom
        return planned.size() <= many && plan.sizes[a] > plan.sizes[b];
    });
    plan.offsets.resize(planned.size());
    std::vector<Placed> placed;  // by offset
    for (const std::size_t i : order) {
        const Array& array = arrays_[planned[i]];
        const std::size_t size = room_of(array.bytes);
        std::size_t offset = 0;
        for (const Placed& other : placed) {
            if (other.last < array.taken || last_of(i) < other.taken) continue;
            if (other.offset >= offset + size) break;  // a gap that is large enough
            offset = std::max(offset, other.end);
        }
        plan.offsets[i] = offset;
        plan.bytes = std::max(plan.bytes, offset + size);
        const Placed self{offset, offset + size, array.taken, last_of(i)};
        placed.insert(std::upper_bound(placed.begin(), placed.end(), self,
                                       [](const Placed& a, const Placed& b) { return a.offset < b.offset; }),
                      self);
        if (planned.size() > many &&
            self.last != for_ever)  // in order of time: what has ended never matters again
            std::erase_if(placed, [&](const Placed& other) { return other.last < array.taken; });
    }
    std::vector<std::pair<std::int64_t, std::int64_t>> changes;
    for (std::size_t i = 0; i < planned.size(); ++i) {
        changes.push_back({arrays_[planned[i]].taken, static_cast<std::int64_t>(plan.sizes[i])});
        if (last_of(i) != for_ever)
            changes.push_back({last_of(i), -static_cast<std::int64_t>(plan.sizes[i])});
    }
    std::sort(changes.begin(), changes.end());
    std::int64_t held = 0, most = 0;
    for (const auto& [moment, change] : changes) most = std::max(most, held += change);
    plan.largest_sum = most;
}

// The first instruction of a lane that uses an array waits for the last instruction of every lane that used
// the memory for the arrays before.
void ArenaPlanner::order_reuse(ArenaPlan& plan, const std::vector<std::size_t>& planned) const {
    const auto lane_of = [&](std::uint32_t i) { return static_cast<std::size_t>(lanes_.of[i]); };
    const std::size_t lanes = lanes_.count;
    using PerLane = std::vector<std::int64_t>;
    std::map<std::size_t, std::pair<std::size_t, PerLane>> occupants;  // begin -> end, last uses by lane
    std::vector<std::size_t> order(planned.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        return arrays_[planned[a]].taken < arrays_[planned[b]].taken;
    });
    for (const std::size_t i : order) {
        const Array& array = arrays_[planned[i]];
        PerLane first_use(lanes, -1), last_use(lanes, -1);
        for (const Use& use : array.uses) {
            const std::size_t s = lane_of(use.instruction);
            if (first_use[s] < 0) first_use[s] = use.instruction;
            last_use[s] = std::max<std::int64_t>(last_use[s], use.instruction);
        }
        const std::size_t begin = plan.offsets[i], end = begin + room_of(array.bytes);
        auto at = occupants.lower_bound(begin);
        if (at != occupants.begin() && std::prev(at)->second.first > begin) --at;
        std::vector<std::pair<std::size_t, std::pair<std::size_t, PerLane>>> rest;
        while (at != occupants.end() && at->first < end) {
            const auto [old_begin, old] = *at;
            for (std::size_t s = 0; s < first_use.size(); ++s) {
                if (first_use[s] < 0) continue;
                for (std::size_t other = 0; other < old.second.size(); ++other)
                    if (other != s && old.second[other] >= 0) {
                        core::require(old.second[other] <= first_use[s],
                                      "memory is used again after it was given back");
                        plan.waits[first_use[s]].push_back(static_cast<std::uint32_t>(old.second[other]));
                    }
            }
            if (old_begin < begin) rest.push_back({old_begin, {begin, old.second}});
            if (old.first > end) rest.push_back({end, old});
            // Never used itself: those before it still count.
            if (array.uses.empty())
                for (std::size_t s = 0; s < last_use.size(); ++s)
                    last_use[s] = std::max(last_use[s], old.second[s]);
            at = occupants.erase(at);
        }
        for (const auto& piece : rest) occupants.insert(piece);
        occupants[begin] = {end, last_use};
    }
    // What the Program's own edges or an earlier wait imply is left out.
    Order order_of(list_, lanes_, has_channels_);
    for (std::uint32_t i = 0; i < plan.waits.size(); ++i) {
        std::vector<std::uint32_t>& waits = plan.waits[i];
        std::sort(waits.begin(), waits.end(), std::greater<>());
        waits.erase(std::unique(waits.begin(), waits.end()), waits.end());
        order_of.add(i, {});
        std::vector<std::uint32_t> kept;
        for (const std::uint32_t other : waits) {
            if (other == i || order_of.is_before(other, i)) continue;
            kept.push_back(other);
            // Adding again moves nothing but what is known to have ended.
            order_of.add(i, kept);
        }
        plan.reuse_edges += kept.size();
        waits = kept;
    }
}

// Arrays of which instructions use parts are several: what lies between two places where a use begins or
// ends.
void ArenaPlanner::order_data(ArenaPlan& plan, const std::vector<std::size_t>& planned) const {
    struct Access {
        std::size_t part;
        bool writes;
    };
    std::vector<std::vector<Access>> accesses(list_.instructions.size());
    std::size_t parts = 0;
    for (const std::size_t i : planned) {
        std::set<std::size_t> places;
        for (const Use& use : arrays_[i].uses) places.insert({use.begin, use.end});
        const std::vector<std::size_t> cuts(places.begin(), places.end());
        for (const Use& use : arrays_[i].uses)
            for (std::size_t part = 0; part + 1 < cuts.size(); ++part)
                if (use.begin <= cuts[part] && cuts[part] < use.end)
                    accesses[use.instruction].push_back({parts + part, use.writes});
        parts += cuts.size();
    }
    struct History {
        std::optional<std::uint32_t> last_write;
        std::vector<std::optional<std::uint32_t>> last_read;  // by lane
    };
    std::vector<History> histories(parts);
    for (History& history : histories) history.last_read.resize(lanes_.count);
    Order order_of(list_, lanes_, has_channels_);
    for (std::uint32_t i = 0; i < accesses.size(); ++i) {
        order_of.add(i, plan.waits[i]);
        const auto demand = [&](std::optional<std::uint32_t> earlier) {
            if (!earlier || *earlier == i || order_of.is_before(*earlier, i)) return;
            plan.waits[i].push_back(*earlier);
            plan.unordered.push_back({*earlier, i});
            ++plan.data_edges;
            order_of.add(i, plan.waits[i]);
        };
        for (const Access& access : accesses[i]) {
            History& history = histories[access.part];
            demand(history.last_write);
            if (access.writes)
                for (const std::optional<std::uint32_t> read : history.last_read) demand(read);
        }
        for (const Access& access : accesses[i]) {
            History& history = histories[access.part];
            if (access.writes) {
                history.last_write = i;
                std::fill(history.last_read.begin(), history.last_read.end(), std::nullopt);
            } else {
                history.last_read[lanes_.of[i]] = i;
            }
        }
    }
}

void* ArenaBlocks::take(std::size_t bytes) {
    core::require(next_ < plan_.sizes.size() && plan_.sizes[next_] == bytes,
                  "a step takes the arrays that were planned");
    return memory_ + plan_.offsets[next_++];
}

}  // namespace exec::cuda
