// Asynchronous schedules: the update whose parameters each micro-batch began with, and the parameters that an
// update replaces while a micro-batch in flight needs them.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/pass/instruction_list.h"
#include "schedule/program/program.h"

namespace schedule {

class WeightVersions {
public:
    explicit WeightVersions(int micro_batches) : version_of_(micro_batches, 0), replaced_(micro_batches) {}

    void begin_forward(std::int32_t micro_batch) {
        version_of_[micro_batch] = updates_;
        ++forwards_;
    }
    // Buffers that go with this backward.
    std::vector<std::uint32_t> begin_backward(std::int32_t micro_batch) {
        ++backwards_;
        return std::move(replaced_[micro_batch]);
    }
    // An update follows. Buffers for what it replaces: the newest micro-batch in flight began with those
    // parameters, and they stay until its backward, the last to read them.
    std::vector<std::uint32_t> begin_update(InstructionList& list, const Plan& plan, const RankProgram& rank);
    std::int32_t updates() const { return updates_; }

private:
    std::int32_t updates_ = 0, forwards_ = 0, backwards_ = 0;  // begun so far
    std::vector<std::int32_t> version_of_;                     // by micro-batch
    std::vector<std::vector<std::uint32_t>> replaced_;         // by the micro-batch that gives them back
};

}  // namespace schedule
