// Binomial trees: ceil(log2 n) rounds each way with the whole payload, so latency grows with log n where a
// ring's grows with n. For small payloads.
#include "schedule/collective/rounds.h"

namespace schedule {

namespace {

Rounds tree_rounds(CollectiveKind kind, int group_size, int) {
    Rounds result;
    result.owned_piece.assign(group_size, 0);
    // Up: in the round of distance d, ranks that are odd multiples of d send to the even multiple below them.
    if (kind == CollectiveKind::all_reduce)
        for (std::int32_t distance = 1; distance < group_size; distance *= 2) {
            result.rounds.emplace_back();
            for (std::int32_t r = distance; r < group_size; r += 2 * distance)
                result.rounds.back().push_back({r, r - distance, 0, 1, true});
        }
    // Down: the same in reverse.
    std::int32_t distance = 1;
    while (distance < group_size) distance *= 2;
    for (distance /= 2; distance >= 1; distance /= 2) {
        result.rounds.emplace_back();
        for (std::int32_t r = distance; r < group_size; r += 2 * distance)
            result.rounds.back().push_back({r - distance, r, 0, 1, false});
    }
    return result;
}

}  // namespace

CollectiveAlgorithm tree_algorithm() {
    return {"tree",
            [](CollectiveKind kind, int group_size, int) {
                return group_size >= 1 &&
                       (kind == CollectiveKind::all_reduce || kind == CollectiveKind::broadcast);
            },
            tree_rounds};
}

}  // namespace schedule
