// Every stage that can follow one downset, below a load: the inner loop of the contiguous search. One object
// a thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "partition/contiguous/downset_table.h"
#include "partition/contiguous/search_graph.h"
#include "partition/deadline.h"

namespace partition {

// What all threads of a pass share.
struct PassState {
    const Deadline& deadline;
    std::atomic<double> most{0};  // load that a stage may have at most: falls when a complete one is found
    double cpu_can_take = 0, cpu_can_hold = 0;  // of one CPU, below the first `most`
    std::atomic<bool> is_out_of_time{false};
};

class StageGrowth {
public:
    StageGrowth(const SearchGraph& graph, DownsetTable& table, PassState& pass);

    // Offers to the table every downset that a stage on one device of the class makes of this one.
    void expand(const Downset& from, std::size_t device_class);
    std::int64_t expanded() const { return expanded_; }

private:
    struct Sums {
        double work = 0, paid = 0, permanent = 0, memory = 0, activations = 0;
    };
    // A label of the downset with a device of the class left, and what the devices left beyond it can take.
    struct Start {
        DevicesUsed used_after;
        double value, room, memory_room;
        int in_flight;
        bool has_cpu_left;
    };

    void grow(const Sums& sums, std::size_t available_begin, std::size_t available_end);
    void offer(const Sums& sums, double load);
    bool leave_behind(std::size_t item);
    double permanent_of(std::size_t transfer) const;
    double paid_of(std::size_t transfer) const;

    const SearchGraph& graph_;
    DownsetTable& table_;
    PassState& pass_;

    std::uint64_t parent_ = 0;
    std::size_t class_ = 0;
    bool by_cpu_ = false;
    const DeviceClass* device_ = nullptr;
    double memory_limit_ = 0;
    std::vector<Start> starts_;
    double room_ = 0, memory_room_ = 0;  // the largest of any start
    int least_in_flight_ = 1;
    bool has_cpu_left_ = false;

    double inside_work_ = 0, inside_memory_ = 0;  // of the downset and the stage
    std::int32_t inside_cpu_only_ = 0;
    std::size_t stage_size_ = 0, size_ = 0;
    std::vector<std::uint64_t>
        behind_;  // excluded items and all their descendants: later stages must take them
    std::vector<std::size_t> behind_log_;
    double behind_work_ = 0, behind_memory_ = 0;
    bool is_cpu_only_behind_ = false;
    std::vector<std::uint64_t> set_;
    std::uint64_t hash_ = 0;
    std::vector<int> waiting_;                  // predecessors not yet inside
    std::vector<std::int32_t> held_, outside_;  // destinations in the stage; destinations that never will be
    std::vector<char> source_inside_, source_outside_;
    std::vector<std::uint32_t> available_;
    std::int64_t expanded_ = 0;
};

}  // namespace partition
