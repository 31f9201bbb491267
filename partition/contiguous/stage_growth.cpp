// A stage grows item by item; every superset is visited once (children include one available item and exclude
// those before it). Two bounds end branches:
//   * work + transfers that can never again become internal (an end lies in the downset or was excluded) only
//   rises: above the limit the branch ends;
//   * what is left behind must fit the remaining devices: excluding an item excludes all its descendants, and
//   the work (and memory) of all that is excluded so far
//     must not exceed what the devices left can do below the limit. Far from the next boundary this forces
//     inclusion, so growth is a straight line there.
#include "partition/contiguous/stage_growth.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace partition {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
// Sums of differences may end a rounding error below zero or above the exact sum: the margin keeps bounds
// valid.
constexpr double margin = 1e-12;

}  // namespace

StageGrowth::StageGrowth(const SearchGraph& graph, DownsetTable& table, PassState& pass)
    : graph_(graph),
      table_(table),
      pass_(pass),
      set_(graph.words),
      waiting_(graph.count),
      held_(graph.transfer_time.size()),
      outside_(graph.transfer_time.size()),
      source_inside_(graph.transfer_time.size()),
      source_outside_(graph.transfer_time.size()) {}

double StageGrowth::paid_of(std::size_t i) const {
    return (source_inside_[i] ? held_[i] < graph_.destination_count[i] : held_[i] > 0)
               ? graph_.transfer_time[i]
               : 0;
}

double StageGrowth::permanent_of(std::size_t i) const {
    return ((source_inside_[i] && outside_[i] > 0) || (source_outside_[i] && held_[i] > 0))
               ? graph_.transfer_time[i]
               : 0;
}

void StageGrowth::offer(const Sums& sums, double load) {
    const double left = graph_.total_work - inside_work_, memory_left = graph_.total_memory - inside_memory_;
    for (const Start& start : starts_) {
        if (left > start.room || memory_left > start.memory_room ||
            (!start.has_cpu_left && inside_cpu_only_ < graph_.cpu_only_total))
            continue;
        if (!by_cpu_ && sums.memory + sums.activations * start.in_flight > memory_limit_) continue;
        const double value = std::max(start.value, load);
        table_.offer(set_.data(), hash_, size_,
                     {start.used_after, value, parent_, static_cast<std::uint8_t>(class_)});
        if (size_ == graph_.count)
            for (double most = pass_.most.load();
                 value < most && !pass_.most.compare_exchange_weak(most, value);) {
            }
    }
}

// Excludes an item with its descendants; false when the devices left cannot take all that is excluded.
bool StageGrowth::leave_behind(std::size_t item) {
    if (graph_.work_below[item] > room_) return false;  // most often enough, and cheap
    const std::uint64_t* below = graph_.below.data() + item * graph_.words;
    for (std::size_t w = 0; w < graph_.words; ++w)
        for (std::uint64_t fresh = below[w] & ~behind_[w]; fresh; fresh &= fresh - 1) {
            const std::size_t i = w * 64 + std::countr_zero(fresh);
            behind_[w] |= std::uint64_t{1} << (i % 64);
            behind_log_.push_back(i);
            behind_work_ += graph_.work[i];
            behind_memory_ += graph_.memory[i] + graph_.activations[i];
            is_cpu_only_behind_ = is_cpu_only_behind_ || graph_.is_cpu_only[i];
            if (behind_work_ > room_) return false;
        }
    return behind_work_ <= room_ && behind_memory_ <= memory_room_ && (has_cpu_left_ || !is_cpu_only_behind_);
}

void StageGrowth::grow(const Sums& sums, std::size_t available_begin, std::size_t available_end) {
    if ((++expanded_ & 1023) == 0 && pass_.deadline.has_passed()) pass_.is_out_of_time = true;
    if (pass_.is_out_of_time.load(std::memory_order_relaxed)) return;
    const double most = pass_.most.load(std::memory_order_relaxed);
    const double load = device_->load(sums.work, sums.paid);
    if (stage_size_ > 0 && load <= most) offer(sums, load);

    const std::size_t logged = behind_log_.size();
    const double behind_work = behind_work_, behind_memory = behind_memory_;
    const bool is_cpu_only_behind = is_cpu_only_behind_;
    std::size_t excluded_end = available_begin;
    double permanent = sums.permanent;
    for (std::size_t a = available_begin; a < available_end; ++a) {
        const std::size_t i = available_[a];
        Sums next{.work = sums.work + (by_cpu_ ? graph_.cpu_work[i] : graph_.work[i]),
                  .paid = sums.paid,
                  .permanent = permanent,
                  .memory = sums.memory + graph_.memory[i],
                  .activations = sums.activations + graph_.activations[i]};
        const bool may_join =
            next.work * device_->slowness <= most &&
            (by_cpu_ ||
             (!graph_.is_cpu_only[i] && next.memory + next.activations * least_in_flight_ <= memory_limit_));
        if (may_join) {
            if (!by_cpu_)
                for (auto [e, is_source] : graph_.incidences[i]) {
                    next.paid -= paid_of(e);
                    next.permanent -= permanent_of(e);
                    if (is_source) source_inside_[e] = 1;
                    else ++held_[e];
                    next.paid += paid_of(e);
                    next.permanent += permanent_of(e);
                }
            if (by_cpu_ || device_->load(next.work, next.permanent) <= most * (1 + margin)) {
                const std::size_t begin = available_.size();
                for (std::size_t b = a + 1; b < available_end; ++b) available_.push_back(available_[b]);
                for (std::uint32_t s : graph_.successors[i])
                    if (--waiting_[s] == 0) {
                        // By work below, largest first: what cannot be left behind comes first and leaves no
                        // choice.
                        auto heavier = [&](std::uint32_t x) {
                            return graph_.work_below[x] >= graph_.work_below[s];
                        };
                        const auto position =
                            std::find_if_not(available_.begin() + static_cast<std::ptrdiff_t>(begin),
                                             available_.end(), heavier);
                        available_.insert(position, s);
                    }
                const double kept = graph_.memory[i] + graph_.activations[i];
                set_[i / 64] |= std::uint64_t{1} << (i % 64);
                hash_ ^= graph_.key[i];
                inside_work_ += graph_.work[i];
                inside_memory_ += kept;
                inside_cpu_only_ += graph_.is_cpu_only[i];
                ++stage_size_;
                ++size_;
                grow(next, begin, available_.size());
                --size_;
                --stage_size_;
                inside_cpu_only_ -= graph_.is_cpu_only[i];
                inside_memory_ -= kept;
                inside_work_ -= graph_.work[i];
                hash_ ^= graph_.key[i];
                set_[i / 64] &= ~(std::uint64_t{1} << (i % 64));
                for (std::uint32_t s : graph_.successors[i]) ++waiting_[s];
                available_.resize(begin);
            }
            if (!by_cpu_)
                for (auto [e, is_source] : graph_.incidences[i]) {
                    if (is_source) source_inside_[e] = 0;
                    else --held_[e];
                }
        }
        // Now without this item, and so without all its descendants.
        if (!leave_behind(i)) break;
        excluded_end = a + 1;
        if (!by_cpu_) {
            for (auto [e, is_source] : graph_.incidences[i]) {
                permanent -= permanent_of(e);
                if (is_source) source_outside_[e] = 1;
                else ++outside_[e];
                permanent += permanent_of(e);
            }
            if (device_->load(sums.work, permanent) > most * (1 + margin)) break;
        }
    }
    for (; behind_log_.size() > logged; behind_log_.pop_back())
        behind_[behind_log_.back() / 64] &= ~(std::uint64_t{1} << (behind_log_.back() % 64));
    behind_work_ = behind_work;
    behind_memory_ = behind_memory;
    is_cpu_only_behind_ = is_cpu_only_behind;
    if (!by_cpu_)
        for (std::size_t a = available_begin; a < excluded_end; ++a)
            for (auto [e, is_source] : graph_.incidences[available_[a]]) {
                if (is_source) source_outside_[e] = 0;
                else --outside_[e];
            }
}

void StageGrowth::expand(const Downset& from, std::size_t device_class) {
    const DeviceClass& device = graph_.classes[device_class];
    const double most = pass_.most.load();
    class_ = device_class;
    by_cpu_ = device.is_cpu;
    device_ = &device;
    memory_limit_ = graph_.memory_limit[device_class];
    starts_.clear();
    room_ = memory_room_ = 0;
    has_cpu_left_ = false;
    least_in_flight_ = std::numeric_limits<int>::max();
    for (const Label& label : from.labels) {
        if (label.value > most || used_of(label.used, device_class) >= device.count) continue;
        Start start{.used_after = label.used + one_of(device_class),
                    .value = label.value,
                    .room = margin * graph_.total_work,
                    .memory_room = 0,
                    .in_flight = 1,
                    .has_cpu_left = false};
        for (std::size_t c = 0; c < graph_.classes.size(); ++c) {
            const int left = graph_.classes[c].count - used_of(start.used_after, c);
            if (left == 0) continue;
            start.room += graph_.classes[c].is_cpu ? left * pass_.cpu_can_take
                                                   : left * most / graph_.classes[c].slowness;
            start.memory_room +=
                left * (graph_.classes[c].is_cpu ? pass_.cpu_can_hold : graph_.memory_limit[c]);
            start.has_cpu_left = start.has_cpu_left || graph_.classes[c].is_cpu;
        }
        start.memory_room =
            graph_.has_memory_limit ? start.memory_room + margin * graph_.total_memory : infinity;
        start.in_flight = std::min(graph_.micro_batches, all_used(start.used_after));
        room_ = std::max(room_, start.room);
        memory_room_ = std::max(memory_room_, start.memory_room);
        has_cpu_left_ = has_cpu_left_ || start.has_cpu_left;
        least_in_flight_ = std::min(least_in_flight_, start.in_flight);
        starts_.push_back(start);
    }
    if (starts_.empty()) return;
    parent_ = from.hash;
    hash_ = from.hash;
    set_ = from.bits;
    std::copy(graph_.predecessor_count.begin(), graph_.predecessor_count.end(), waiting_.begin());
    std::fill(held_.begin(), held_.end(), 0);
    std::fill(outside_.begin(), outside_.end(), 0);
    std::fill(source_inside_.begin(), source_inside_.end(), 0);
    std::fill(source_outside_.begin(), source_outside_.end(), 0);
    behind_.assign(graph_.words, 0);
    behind_log_.clear();
    behind_work_ = behind_memory_ = 0;
    is_cpu_only_behind_ = false;
    inside_work_ = inside_memory_ = 0;
    inside_cpu_only_ = stage_size_ = size_ = 0;
    available_.clear();
    for (std::size_t i = 0; i < graph_.count; ++i) {
        if (!(set_[i / 64] >> (i % 64) & 1)) continue;
        ++size_;
        inside_work_ += graph_.work[i];
        inside_memory_ += graph_.memory[i] + graph_.activations[i];
        inside_cpu_only_ += graph_.is_cpu_only[i];
        for (std::uint32_t s : graph_.successors[i]) --waiting_[s];
        for (auto [e, is_source] : graph_.incidences[i]) {
            if (is_source) source_outside_[e] = 1;
            else ++outside_[e];
        }
    }
    for (std::size_t i = 0; i < graph_.count; ++i)
        if (!(set_[i / 64] >> (i % 64) & 1) && waiting_[i] == 0)
            available_.push_back(static_cast<std::uint32_t>(i));
    std::stable_sort(available_.begin(), available_.end(), [&](std::uint32_t a, std::uint32_t b) {
        return graph_.work_below[a] > graph_.work_below[b];
    });
    grow({}, 0, available_.size());
}

}  // namespace partition
