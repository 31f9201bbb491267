#include "schedule/program/exchange_signature.h"

#include <fmt/core.h>

#include "core/index/integers.h"

namespace schedule {

namespace {

constexpr std::string_view beginning = "exchange ";

}  // namespace

std::string collective_signature(CollectiveKind kind, GroupKind group, int pipeline,
                                 const std::vector<std::int32_t>& tied_ranks, core::Bytes bytes) {
    std::string text =
        fmt::format("{}{}, group {} at {}", beginning, name_of(kind), core::position_of(group), pipeline);
    for (const std::int32_t tied : tied_ranks) text += fmt::format(" {}", tied);
    return text + fmt::format(", {:.0f} B", bytes.value);
}

std::string transfer_signature(int from, int to, core::Bytes bytes) {
    return fmt::format("{}send, {} to {}, {:.0f} B", beginning, from, to, bytes.value);
}

bool is_exchange(std::string_view signature) { return signature.starts_with(beginning); }

const std::vector<std::int32_t>& tied_ranks_of(const RankProgram& list, const Instruction& collective) {
    static const std::vector<std::int32_t> none;
    const bool is_tied = collective.group == GroupKind::tied_stages && collective.bucket;
    return is_tied ? list.buckets[*collective.bucket].tied_ranks : none;
}

}  // namespace schedule
