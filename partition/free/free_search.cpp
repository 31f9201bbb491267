// Depth first, heaviest items first. A partial assignment is given up when
//   * a device's work and the transfers it must pay whatever comes (both ends assigned, to different devices)
//   reach the best known load;
//   * the work left does not fit what devices can still take below it, or the memory left does not fit
//   theirs.
// Devices of one class are alike: an item tries at most one that is still empty.
#include "partition/free/free_search.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace partition {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
// Sums of differences may end a rounding error above the exact sum: the margin keeps bounds valid.
constexpr double margin = 1e-12;

class FreeSearch {
public:
    FreeSearch(const PlacementProblem& problem, double below, std::int64_t most_expanded,
               const Deadline& deadline)
        : problem_(problem),
          classes_(device_classes(problem)),
          most_expanded_(most_expanded),
          deadline_(deadline) {
        result_.value = below;
        for (std::size_t c = 0; c < classes_.size(); ++c)
            for (int d = 0; d < classes_[c].count; ++d) class_of_.push_back(c);
        const std::size_t devices = class_of_.size(), items = problem.items.size(),
                          transfers = problem.transfers.size();
        work_.assign(devices, 0);
        paid_.assign(devices, 0);
        memory_.assign(devices, 0);
        held_count_.assign(devices, 0);
        holder_.assign(transfers, unassigned);
        held_.assign(transfers * devices, 0);
        assigned_.assign(transfers, 0);
        device_of_.assign(items, unassigned);
        incidences_.resize(items);
        std::vector<double> weight(items, 0);
        for (std::size_t e = 0; e < transfers; ++e) {
            auto touch = [&](std::size_t item, bool is_source) {
                incidences_[item].push_back({e, is_source});
                weight[item] += problem.transfers[e].time.value;
            };
            touch(problem.transfers[e].source, true);
            for (std::size_t d : problem.transfers[e].destinations) touch(d, false);
        }
        for (std::size_t i = 0; i < items; ++i) weight[i] += problem.items[i].accelerator_time.value;
        order_.resize(items);
        std::iota(order_.begin(), order_.end(), std::size_t{0});
        std::stable_sort(order_.begin(), order_.end(),
                         [&](std::size_t a, std::size_t b) { return weight[a] > weight[b]; });
        work_left_.assign(items + 1, 0);
        memory_left_.assign(items + 1, 0);
        gain_left_.assign(items + 1, 0);
        for (std::size_t k = items; k-- > 0;) {
            const PlacementItem& item = problem.items[order_[k]];
            const double work = item.runs_on_accelerator ? item.accelerator_time.value : 0;
            work_left_[k] = work_left_[k + 1] + work;
            memory_left_[k] = memory_left_[k + 1] + kept(order_[k]);
            gain_left_[k] = std::max(gain_left_[k + 1], item.cpu_time.value > 0 ? work / item.cpu_time.value
                                                        : work > 0              ? infinity
                                                                                : 0);
        }
    }

    FreeSearchResult run() {
        result_.is_complete = true;
        if (!class_of_.empty()) assign(0);
        return std::move(result_);
    }

private:
    struct Incidence {
        std::size_t transfer;
        bool is_source;
    };

    double kept(std::size_t item) const {
        return (problem_.items[item].memory + problem_.items[item].activations * problem_.micro_batches)
            .value;
    }
    double load(std::size_t device) const {
        return classes_[class_of_[device]].load(work_[device], paid_[device]);
    }
    // Of the ends assigned so far: what this device pays whatever comes.
    double owed(std::size_t e, std::size_t device) const {
        if (holder_[e] == unassigned) return 0;
        const int here = held_[e * class_of_.size() + device];
        const bool pays = holder_[e] == device ? here < assigned_[e] : here > 0;
        return pays ? problem_.transfers[e].time.value : 0;
    }
    void put(std::size_t item, std::size_t device, int sign) {
        for (auto [e, is_source] : incidences_[item]) {
            for (std::size_t d = 0; d < class_of_.size(); ++d) paid_[d] -= owed(e, d);
            if (is_source) {
                holder_[e] = sign > 0 ? device : unassigned;
            } else {
                held_[e * class_of_.size() + device] += sign;
                assigned_[e] += sign;
            }
            for (std::size_t d = 0; d < class_of_.size(); ++d) paid_[d] += owed(e, d);
        }
        work_[device] += sign * classes_[class_of_[device]].work(problem_.items[item]).value;
        memory_[device] += sign * kept(item);
        held_count_[device] += sign;
        device_of_[item] = sign > 0 ? device : unassigned;
    }
    bool may_go_on(std::size_t next) const {
        double work_room = 0, memory_room = 0;
        for (std::size_t d = 0; d < class_of_.size(); ++d) {
            const DeviceClass& c = classes_[class_of_[d]];
            const double here = load(d);
            if (here * (1 - margin) >= result_.value) return false;
            work_room +=
                c.is_cpu ? (gain_left_[next] > 0 ? (result_.value - here) / c.slowness * gain_left_[next] : 0)
                         : (result_.value - here) / c.slowness;
            memory_room += c.is_cpu ? infinity : c.most_memory().value - memory_[d];
        }
        return work_left_[next] <= work_room * (1 + margin) + margin * work_left_[0] &&
               memory_left_[next] <= memory_room * (1 + margin) + margin * memory_left_[0];
    }

    void assign(std::size_t k) {
        if (!result_.is_complete) return;
        if (++result_.expanded > most_expanded_ ||
            ((result_.expanded & 1023) == 0 && deadline_.has_passed())) {
            result_.is_complete = false;
            return;
        }
        if (k == order_.size()) {
            keep();
            return;
        }
        const std::size_t item = order_[k];
        std::vector<char> has_tried_empty(classes_.size(), 0);
        for (std::size_t d = 0; d < class_of_.size(); ++d) {
            const std::size_t c = class_of_[d];
            if (held_count_[d] == 0) {
                if (has_tried_empty[c]) continue;
                has_tried_empty[c] = 1;
            }
            if (!classes_[c].is_cpu && (!problem_.items[item].runs_on_accelerator ||
                                        memory_[d] + kept(item) > classes_[c].most_memory().value))
                continue;
            const std::vector<double> paid = paid_;  // put back exactly: differences of sums would drift
            const double work = work_[d], memory = memory_[d];
            put(item, d, +1);
            if (may_go_on(k + 1)) assign(k + 1);
            put(item, d, -1);
            paid_ = paid;
            work_[d] = work;
            memory_[d] = memory;
        }
    }

    void keep() {
        double largest = 0;
        for (std::size_t d = 0; d < class_of_.size(); ++d) largest = std::max(largest, load(d));
        if (largest >= result_.value) return;
        result_.value = largest;
        result_.device_of = device_of_;
    }

    const PlacementProblem& problem_;
    const std::vector<DeviceClass> classes_;
    const std::int64_t most_expanded_;
    const Deadline deadline_;
    FreeSearchResult result_;
    // Of flat arrays that the innermost loop reads: an optional would double them.
    static constexpr std::size_t unassigned = std::numeric_limits<std::size_t>::max();

    std::vector<std::size_t> class_of_, order_, holder_, device_of_;  // holder: device of a transfer's source
    std::vector<std::vector<Incidence>> incidences_;
    std::vector<double> work_, paid_, memory_;  // of each device
    std::vector<double> work_left_, memory_left_,
        gain_left_;  // of the items from the k-th on: accelerator time, bytes, accelerator time a CPU saves
                     // per its own
    std::vector<int> held_count_, held_, assigned_;
};

}  // namespace

FreeSearchResult search_free(const PlacementProblem& problem, double below, std::int64_t most_expanded,
                             const Deadline& deadline) {
    return FreeSearch(problem, below, most_expanded, deadline).run();
}

}  // namespace partition
