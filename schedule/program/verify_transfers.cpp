// Rules 5 and 6: every crossing between ranks has its send and its receive, and they meet in an order that a
// transport without tags can follow.
#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "core/diagnostics.h"
#include "core/index/integers.h"
#include "schedule/schedule_cells.h"
#include "schedule/schedule_text.h"
#include "schedule/verify_rules.h"

namespace schedule {

namespace {

Action partner_of(const Action& transfer) {
    Action partner = transfer;
    switch (transfer.kind) {
        case ActionKind::send_forward:
            partner.kind = ActionKind::receive_forward;
            ++partner.stage;
            return partner;
        case ActionKind::receive_forward:
            partner.kind = ActionKind::send_forward;
            --partner.stage;
            return partner;
        case ActionKind::send_backward:
            partner.kind = ActionKind::receive_backward;
            --partner.stage;
            return partner;
        case ActionKind::receive_backward:
            partner.kind = ActionKind::send_backward;
            ++partner.stage;
            return partner;
        case ActionKind::forward:
        case ActionKind::backward:
        case ActionKind::backward_input:
        case ActionKind::backward_weight:
        case ActionKind::recompute:
        case ActionKind::unshard:
        case ActionKind::reshard:
        case ActionKind::reduce_gradient:
        case ActionKind::optimizer_step: break;
    }
    throw core::InternalError("broken promise: only transfers have partners");
}

bool is_send(ActionKind kind) {
    return kind == ActionKind::send_forward || kind == ActionKind::send_backward;
}

class TransferRules {
public:
    TransferRules(const Schedule& schedule, std::vector<Violation>& violations)
        : schedule_(schedule), index_(schedule), positions_(schedule), violations_(violations) {}

    void check_matching() {
        seen_.assign(4, std::vector<bool>(index_.size(), false));
        for (int rank = 0; rank < schedule_.ranks; ++rank) {
            const std::vector<Action>& list = schedule_.actions[rank];
            for (const std::int32_t i : core::indices(list))
                if (is_transfer(list[i].kind)) check_transfer(rank, i, list[i]);
        }
        // A crossing that is not there at all: the consumer's cell is the place.
        for (int rank = 0; rank < schedule_.ranks; ++rank) {
            const std::vector<Action>& list = schedule_.actions[rank];
            for (const std::int32_t i : core::indices(list)) {
                Action needed;
                if (!is_compute(list[i].kind) || !input_cell(schedule_, list[i], needed)) continue;
                if (rank_of_stage(schedule_, needed.stage, needed.direction) == rank) continue;
                Action receive = list[i];
                receive.overlaps_next = false;
                receive.kind = list[i].kind == ActionKind::forward ? ActionKind::receive_forward
                                                                   : ActionKind::receive_backward;
                if (positions_.of(receive.kind, index_.of(receive)) < 0)
                    violate("transfers", rank, i, list[i], "has no " + print_action(schedule_, receive));
            }
        }
    }

    // NCCL's point-to-point has no tags: between two ranks, in each direction, the k-th send meets the k-th
    // receive.
    void check_order() {
        std::map<std::pair<int, int>, std::vector<Action>> sends;
        for (int rank = 0; rank < schedule_.ranks; ++rank)
            for (const Action& action : schedule_.actions[rank])
                if (is_send(action.kind)) sends[{rank, home(partner_of(action))}].push_back(action);
        std::map<std::pair<int, int>, std::size_t> received;
        for (int rank = 0; rank < schedule_.ranks; ++rank) {
            const std::vector<Action>& list = schedule_.actions[rank];
            for (const std::int32_t i : core::indices(list)) {
                if (!is_transfer(list[i].kind) || is_send(list[i].kind)) continue;
                const std::pair<int, int> channel{home(partner_of(list[i])), rank};
                const Action& sent = sends[channel][received[channel]++];
                if (sent == partner_of(list[i])) continue;
                violate("transfer order", rank, i, list[i],
                        fmt::format("is receive {} from rank {}, whose send {} to here is {}",
                                    received[channel] - 1, channel.first, received[channel] - 1,
                                    print_action(schedule_, sent)));
                break;  // the rest of this rank only follows from it
            }
        }
    }

    // Receives wait for their sends; with `sends_wait` a run of transfers is posted together and left when
    // all of it has met.
    void check_play(bool sends_wait) {
        std::vector<std::size_t> head(schedule_.actions.size(), 0), posted(schedule_.actions.size(), 0);
        auto has_met = [&](const Action& transfer) {
            const Action partner = partner_of(transfer);
            return static_cast<std::size_t>(positions_.of(partner.kind, index_.of(partner))) <
                   posted[home(partner)];
        };
        for (bool has_moved = true; has_moved;) {
            has_moved = false;
            for (std::size_t rank = 0; rank < schedule_.actions.size(); ++rank) {
                const std::vector<Action>& list = schedule_.actions[rank];
                while (head[rank] < list.size()) {
                    std::size_t end = head[rank];
                    while (end < list.size() && is_transfer(list[end].kind)) ++end;
                    if (end == head[rank]) {
                        posted[rank] = ++head[rank];
                        has_moved = true;
                        continue;
                    }
                    if (!sends_wait) end = head[rank] + 1;
                    if (posted[rank] < end) {
                        posted[rank] = end;
                        has_moved = true;
                    }
                    bool is_done = true;
                    for (std::size_t i = head[rank]; i < end; ++i)
                        is_done = is_done && ((!sends_wait && is_send(list[i].kind)) || has_met(list[i]));
                    if (!is_done) break;
                    head[rank] = end;
                    has_moved = true;
                }
            }
        }
        for (const std::int32_t rank : core::indices(schedule_.actions)) {
            if (head[rank] >= schedule_.actions[rank].size()) continue;
            std::size_t at = head[rank];
            while (has_met(schedule_.actions[rank][at]) && at + 1 < posted[rank]) ++at;
            const Action& waiting = schedule_.actions[rank][at];
            violate("transfer order", rank, static_cast<int>(at), waiting,
                    fmt::format("waits for ever for {} of rank {}",
                                print_action(schedule_, partner_of(waiting)), home(partner_of(waiting))));
        }
    }

private:
    int home(const Action& action) const { return rank_of_stage(schedule_, action.stage, action.direction); }

    void violate(const char* rule, int rank, int position, const Action& action, const std::string& what) {
        violations_.push_back(
            {rule,
             fmt::format("rank {} cell {}: {} {}", rank, position, print_action(schedule_, action), what),
             rank, position});
    }

    void check_transfer(int rank, int position, const Action& action) {
        auto complain = [&](const std::string& what) { violate("transfers", rank, position, action, what); };
        const Action partner = partner_of(action);
        if (partner.stage < 0 || partner.stage >= schedule_.stages)
            return complain("goes beyond the pipeline's end");
        if (schedule_.is_forward_only &&
            (action.kind == ActionKind::send_backward || action.kind == ActionKind::receive_backward))
            return complain("carries a gradient in a forward-only schedule");
        if (home(partner) == rank)
            return complain(fmt::format("crosses no ranks: stages {} and {} both live on rank {}",
                                        action.stage, partner.stage, rank));
        const std::size_t cell = index_.of(action);
        auto& seen = seen_[core::position_of(action.kind) - core::position_of(ActionKind::send_forward)];
        if (seen[cell]) return complain("is there twice");
        seen[cell] = true;
        if (positions_.of(partner.kind, index_.of(partner)) < 0)
            return complain(
                fmt::format("has no {} on rank {}", print_action(schedule_, partner), home(partner)));
        const bool is_forward =
            action.kind == ActionKind::send_forward || action.kind == ActionKind::receive_forward;
        const int compute = is_forward ? positions_.of(ActionKind::forward, cell) : positions_.gradient(cell);
        if (is_send(action.kind) && compute > position) complain("is sent before it is computed");
        if (!is_send(action.kind) && compute < position) complain("is received after it is used");
    }

    const Schedule& schedule_;
    CellIndex index_;
    CellPositions positions_;
    std::vector<Violation>& violations_;
    std::vector<std::vector<bool>> seen_;
};

}  // namespace

void check_transfers(const Schedule& schedule, const ScheduleLimits& limits,
                     std::vector<Violation>& violations) {
    bool has_transfers = false;
    for (const std::vector<Action>& list : schedule.actions)
        has_transfers = has_transfers || std::any_of(list.begin(), list.end(), [](const Action& action) {
                            return is_transfer(action.kind);
                        });
    if (!has_transfers) return;
    const std::size_t before = violations.size();
    TransferRules rules(schedule, violations);
    rules.check_matching();
    if (violations.size() > before) return;
    rules.check_order();
    if (violations.size() > before) return;
    rules.check_play(limits.sends_wait_for_receives);
}

}  // namespace schedule
