// What some schedules take beside the degrees of the pipeline and the number of micro-batches: one type for
// each kind of schedule, so that no schedule carries another's.
#pragma once

#include <compare>
#include <variant>

namespace schedule {

// SMP interleaved: which micro-batches may start.
struct AdmissionParameters {
    int active_micro_batches = 0;  // most micro-batches in execution; 0 = ranks + 2 (SMP's default)
    bool is_strict = true;         // SMP optimize = "memory": strict; "speed" starts a micro-batch before the
                                   // one before it has left the device
    auto operator<=>(const AdmissionParameters&) const = default;
};

// Schedules that take micro-batches in groups (interleaved 1F1B and its kin).
struct GroupParameters {
    int group_size = 0;  // micro-batches per group; 0 = ranks
    int size(int ranks) const { return group_size > 0 ? group_size : ranks; }
    auto operator<=>(const GroupParameters&) const = default;
};

// Schedules that pass a sequence on in parts (Seq1F1B).
inline constexpr int default_segments = 2;
struct SegmentParameters {
    int segments = 0;  // of a micro-batch's sequence, equally long; 0 = default_segments
    int asked_for() const { return segments > 0 ? segments : 1; }
    int count() const { return segments > 0 ? segments : default_segments; }
    auto operator<=>(const SegmentParameters&) const = default;
};

using ScheduleParameters =
    std::variant<std::monostate, AdmissionParameters, GroupParameters, SegmentParameters>;

// The parameters as a schedule that takes `Parameters` reads them: its defaults, where none of its kind are
// given.
template <typename Parameters>
Parameters parameters_or_default(const ScheduleParameters& given) {
    const Parameters* found = std::get_if<Parameters>(&given);
    return found ? *found : Parameters{};
}

}  // namespace schedule
