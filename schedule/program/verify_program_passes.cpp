// Passes of micro-batches through stages: what they cover and in what order, proved over streams and `after`
// edges.
#include <algorithm>
#include <utility>

#include <fmt/core.h>

#include "core/index/integers.h"
#include "schedule/program/program_checker.h"

namespace schedule {

void ProgramChecker::find_clocks(std::int32_t c) {
    const RankProgram& l = list(c);
    clocks_.assign(l.instructions.size(), {});
    std::array<std::int32_t, stream_count> latest;
    latest.fill(-1);
    for (const std::int32_t n : core::indices(l.instructions)) {
        const Instruction& i = l.instructions[n];
        auto& clock = clocks_[n];
        const auto ended = [&](std::int32_t before) {
            for (std::size_t s = 0; s < stream_count; ++s) clock[s] = std::max(clock[s], clocks_[before][s]);
            auto& own = clock[core::position_of(l.instructions[before].stream)];
            const std::uint32_t end = before + 1;
            own = std::max(own, end);
        };
        auto& before = latest[core::position_of(i.stream)];
        if (before >= 0) ended(before);
        for (const std::uint32_t a : l.after(i)) ended(a);
        before = n;
    }
}

bool ProgramChecker::is_ordered(std::int32_t c, std::int32_t before, std::int32_t after) const {
    const std::uint32_t ended = clocks_[after][core::position_of(list(c).instructions[before].stream)];
    return ended > std::uint32_t(before);
}

void ProgramChecker::need(std::int32_t c, std::int32_t before, std::int32_t after, const char* what) {
    if (before < 0) report("order", c, after, fmt::format("comes without {} before it", what));
    else if (!is_ordered(c, before, after))
        report("order", c, after,
               fmt::format("does not wait for {}: {}", what, describe(program_, c, before)));
}

void ProgramChecker::step_piece(std::int32_t c, std::int32_t n, std::int32_t& expected,
                                std::int32_t& latest) {
    const Instruction& i = list(c).instructions[n];
    const bool is_forward = i.phase == ComputePhase::forward || i.phase == ComputePhase::recompute;
    Pieces& open = pieces_[{i.stage, i.micro_batch}];
    const auto wrong = [&](const std::string& what) { report("completeness", c, n, what); };
    const std::int32_t made = core::count_of(open.products);
    if (i.operators.size() != 1) wrong("a piece is of one operator");
    if (i.kind == InstructionKind::compute && is_of_weights(i)) {
        if (made != i.pieces || i.phase != ComputePhase::backward || open.weights >= 0)
            wrong("the gradient of weights comes once, behind all pieces of a backward pass");
        else need(c, open.products.back(), n, "the piece before");
        open.weights = n;
        return;
    }
    if (i.kind == InstructionKind::compute) {
        if (i.piece != made) wrong(fmt::format("{} pieces of it come before", made));
        if (made == 0 && latest >= 0) need(c, latest, n, "the step before");
        if (made > 0) need(c, open.products.back(), n, "the piece before");
        if (made == 0 && has_operators() && (is_forward ? i.operators.begin : i.operators.end) != expected)
            wrong(fmt::format("the pass has come to operator {}", expected));
        open.products.push_back(n);
        return;
    }
    if (i.piece != open.exchanges++ || i.piece >= made) return wrong("is exchanged before it is computed");
    need(c, open.products[i.piece], n, "its product");
    if (open.last_exchange >= 0) need(c, open.last_exchange, n, "the exchange of the piece before");
    open.last_exchange = n;
    const Instruction& product = list(c).instructions[open.products[i.piece]];
    if (product.phase != i.phase || product.pieces != i.pieces ||
        (is_forward ? product.operators.end != i.operators.begin
                    : product.operators.begin != i.operators.end))
        wrong("is not the exchange of the product before it");
    if (!is_last_piece(i)) return;
    if (i.phase == ComputePhase::backward && open.weights < 0) wrong("no gradient of weights comes before");
    expected = is_forward ? i.operators.end : i.operators.begin;
    latest = n;
    pieces_.erase({i.stage, i.micro_batch});
}

void ProgramChecker::step_ring(std::int32_t c, std::int32_t n, std::int32_t& expected, std::int32_t& latest,
                               std::int32_t& rotation) {
    const Instruction& i = list(c).instructions[n];
    const bool is_forward = i.phase == ComputePhase::forward || i.phase == ComputePhase::recompute;
    RingPieces& ring = rings_[{i.stage, i.micro_batch}];
    const auto wrong = [&](const std::string& what) { report("completeness", c, n, what); };
    if (i.operators.size() != 1) wrong("a piece is of one operator");
    if (i.piece == 0 && ring.pieces.empty() && latest >= 0) need(c, latest, n, "the step before");
    if (i.kind == InstructionKind::collective) {
        if (i.piece != core::count_of(ring.rotations) || i.piece != core::count_of(ring.pieces))
            wrong(fmt::format("{} pieces and {} rotations come before", ring.pieces.size(),
                              ring.rotations.size()));
        else if (i.piece > 0) {
            need(c, ring.rotations.back(), n, "the rotation before");
            if (!is_forward) need(c, ring.pieces.back(), n, "the piece whose gradients it passes on");
        }
        ring.rotations.push_back(n);
        return;
    }
    if (i.piece != core::count_of(ring.pieces))
        wrong(fmt::format("{} pieces of it come before", ring.pieces.size()));
    if (i.piece == 0 && has_operators() && (is_forward ? i.operators.begin : i.operators.end) != expected)
        wrong(fmt::format("the pass has come to operator {}", expected));
    if (i.piece > 0 && core::count_of(ring.rotations) >= i.piece)
        need(c, ring.rotations[i.piece - 1], n, "the rotation that brings its keys");
    ring.pieces.push_back(n);
    if (!is_last_piece(i)) return;
    if (core::count_of(ring.rotations) != (is_forward ? i.pieces - 1 : i.pieces))
        wrong(fmt::format("{} rotations come before", ring.rotations.size()));
    if (!is_forward && !ring.rotations.empty()) rotation = ring.rotations.back();
    expected = is_forward ? i.operators.end : i.operators.begin;
    latest = n;
    rings_.erase({i.stage, i.micro_batch});
}

void ProgramChecker::step_forward(std::int32_t c, std::int32_t n) {
    const Instruction& i = list(c).instructions[n];
    Progress& p = progress(i.stage, i.micro_batch);
    if (p.forward_steps++ == 0) {
        if (has_transfer(i.stage)) need(c, p.receive, n, "the receive of its input");
        else if (is_boundary_here(i.stage))
            need(c, progress(i.stage - 1, i.micro_batch).last_forward, n, "the forward of the stage before");
        if (program_.segment_of(i.micro_batch) > 0)
            need(c, progress(i.stage, i.micro_batch - 1).last_forward, n,
                 "the forward of the segment before");
    } else if (i.pieces == 1) {
        need(c, p.last_forward, n, "the step before");
    }
    if (i.pieces > 1 && is_in_ring(i)) return step_ring(c, n, p.forward, p.last_forward, p.rotation);
    if (i.pieces > 1) return step_piece(c, n, p.forward, p.last_forward);
    // The loss statistics are computed, then combined: their collective repeats the operator.
    // So do the exchanges of routed tokens; keys of a context-parallel group are gathered before the
    // attention that reads them.
    const bool is_exchange =
        i.kind == InstructionKind::collective &&
        (i.collective == CollectiveKind::all_gather || i.collective == CollectiveKind::all_to_all);
    const bool combines = is_exchange && i.operators.end == p.forward;
    const bool prepares = is_exchange && i.group == GroupKind::context && i.operators.begin == p.forward;
    // A gather of a tensor-parallel group performs its operator, or prepares the attention that comes next.
    const bool may_prepare = is_exchange && i.group == GroupKind::tensor && i.operators.size() == 1 &&
                             i.operators.begin == p.forward;
    if (i.kind == InstructionKind::compute && p.gathered == i.operators.begin) p.forward = *p.gathered;
    p.gathered.reset();
    if (may_prepare) p.gathered = i.operators.begin;
    if (has_operators() && !combines && !prepares) {
        if (i.operators.begin != p.forward || i.operators.size() <= 0)
            report("completeness", c, n, fmt::format("forward has come to operator {}", p.forward));
        p.forward = i.operators.end;
    }
    p.last_forward = n;
}

// Offloaded tensors are computed before they are copied out, and loaded before they are read.
void ProgramChecker::check_copy(std::int32_t c, std::int32_t n) {
    const Instruction& i = list(c).instructions[n];
    OffloadCopies& copies = copies_[{i.stage, i.micro_batch, i.operators.begin}];
    copies.end = i.operators.end;
    std::int32_t& own = i.loads ? copies.back : copies.out;
    if (own >= 0) report("order", c, n, "is there twice");
    if (i.loads) {
        need(c, copies.out, n, "the copy out");
    } else {
        const Progress& p = progress(i.stage, i.micro_batch);
        need(c, p.last_forward, n, "the forward whose results it takes");
        if (p.forward < i.operators.end) report("order", c, n, "takes results that are not there yet");
    }
    own = n;
}

void ProgramChecker::need_loaded(std::int32_t c, std::int32_t n) {
    const Instruction& i = list(c).instructions[n];
    for (auto entry = copies_.lower_bound({i.stage, i.micro_batch, 0}); entry != copies_.end(); ++entry) {
        const auto& [stage, micro_batch, begin] = entry->first;
        if (stage != i.stage || micro_batch != i.micro_batch || begin >= i.operators.end) break;
        if (entry->second.end > i.operators.begin) need(c, entry->second.back, n, "the copy back");
    }
}

void ProgramChecker::step_again(std::int32_t c, std::int32_t n, Progress& p) {
    const Instruction& i = list(c).instructions[n];
    // Gathers for weights' gradients may run beside the steps before them; the instruction that needs them
    // waits for them, as for every latest step.
    need(c, p.last_forward, n, "its forward");
    const bool is_for_weights = p.input_steps > 0 && p.input == program_.stages[i.stage].operators.begin;
    std::int32_t& latest = is_for_weights ? p.last_weight : p.last_backward;
    if (i.pieces > 1) {
        std::int32_t operators = i.operators.begin;  // run again in any order
        return is_in_ring(i) ? step_ring(c, n, operators, latest, p.rotation)
                             : step_piece(c, n, operators, latest);
    }
    if (i.kind == InstructionKind::compute && p.last_backward >= 0)
        need(c, p.last_backward, n, "the step before");
    latest = n;
}

void ProgramChecker::step_backward(std::int32_t c, std::int32_t n) {
    const Instruction& i = list(c).instructions[n];
    if (!copies_.empty() && i.kind == InstructionKind::compute) need_loaded(c, n);
    Progress& p = progress(i.stage, i.micro_batch);
    const bool is_weight = i.phase == ComputePhase::backward_weight,
               is_input = i.phase == ComputePhase::backward_input;
    const auto stage_end = program_.stages[i.stage].operators.end;
    if (i.phase == ComputePhase::recompute) return step_again(c, n, p);
    std::int32_t& steps = is_weight ? p.weight_steps : is_input ? p.input_steps : p.backward_steps;
    if (steps++ == 0) {
        if (is_weight) need(c, p.last_backward, n, "its backward for input");
        else {
            need(c, p.last_forward, n, "its forward");
            if (!program_.is_last_segment(i.micro_batch))
                need(c, progress(i.stage, i.micro_batch + 1).last_backward, n,
                     "the backward of the segment after");
            const std::int32_t after = i.stage + 1;
            if (!program_.is_last_stage(i.stage)) {
                if (has_transfer(after)) need(c, p.receive_gradient, n, "the receive of its gradient");
                else if (is_boundary_here(after))
                    need(c, progress(after, i.micro_batch).last_backward, n,
                         "the backward of the stage after");
            }
        }
    }
    const bool is_gradient_of_weights = is_of_weights(i) && !pieces_.contains({i.stage, i.micro_batch});
    if (is_gradient_of_weights) return need(c, p.last_backward, n, "the pieces of its ring");
    if (p.rotation >= 0 && !is_weight) need(c, std::exchange(p.rotation, -1), n, "the ring's last rotation");
    if (i.pieces > 1 && is_in_ring(i))
        return step_ring(c, n, is_input ? p.input : p.backward, p.last_backward, p.rotation);
    if (i.pieces > 1) return step_piece(c, n, is_input ? p.input : p.backward, p.last_backward);
    const std::int32_t latest = is_weight ? p.last_weight : p.last_backward;
    if (latest >= 0) need(c, latest, n, "the step before");
    (is_weight ? p.last_weight : p.last_backward) = n;
    if (!has_operators()) return;
    std::int32_t& expected = is_weight ? p.weight : is_input ? p.input : p.backward;
    // Gradients of routed tokens are exchanged before the operator that routed them, routers' choices
    // summed before the router; gradients of gathered keys are scattered after the attention, those of
    // exchanged heads exchanged before and after it.
    if (i.kind == InstructionKind::collective && i.operators.end == expected &&
        (i.group == GroupKind::expert || i.group == GroupKind::tokens))
        return;
    if (i.kind == InstructionKind::collective && i.group == GroupKind::context &&
        (i.operators.begin == expected ||
         (i.collective != CollectiveKind::reduce_scatter && i.operators.end == expected)))
        return;
    if (i.kind == InstructionKind::collective && i.group == GroupKind::tensor &&
        i.collective == CollectiveKind::reduce_scatter && i.operators.size() == 1 &&
        i.operators.begin == expected)
        return;
    if (i.operators.end != expected || i.operators.size() <= 0)
        report("completeness", c, n,
               expected == stage_end ? std::string("backward has not begun")
                                     : fmt::format("backward has come to operator {}", expected));
    expected = i.operators.begin;
}

void ProgramChecker::check_passes(std::int32_t c) {
    const RankProgram& l = list(c);
    for (const std::int32_t n : core::indices(l.instructions)) {
        const Instruction& i = l.instructions[n];
        const bool is_gradient = i.payload == PayloadKind::activation_gradient;
        switch (i.kind) {
            case InstructionKind::compute:
                i.phase == ComputePhase::forward ? step_forward(c, n) : step_backward(c, n);
                break;
            case InstructionKind::collective:
                if (i.payload != PayloadKind::activation && !is_gradient) break;
                i.phase == ComputePhase::forward ? step_forward(c, n) : step_backward(c, n);
                break;
            case InstructionKind::receive: {
                Progress& p = progress(i.stage, i.micro_batch);
                (is_gradient ? p.receive_gradient : p.receive) = n;
                break;
            }
            case InstructionKind::send: {
                const Progress& p = progress(i.stage, i.micro_batch);
                need(c, is_gradient ? p.last_backward : p.last_forward, n,
                     is_gradient ? "the backward it sends from" : "the forward it sends from");
                const model::OperatorRange all = program_.stages[i.stage].operators;
                const bool is_finished =
                    is_gradient ? p.backward == all.begin || p.input == all.begin : p.forward == all.end;
                if (has_operators() && !is_finished) report("order", c, n, "sends before the pass has ended");
                break;
            }
            case InstructionKind::copy:
                if (!i.bucket) check_copy(c, n);
                break;
            case InstructionKind::optimizer_step:
            case InstructionKind::zero_gradients:
            case InstructionKind::gradient_norm:
            case InstructionKind::update_norm: break;
        }
    }
}

void ProgramChecker::check_complete() {
    for (const std::int32_t s : core::indices(program_.stages))
        for (std::int32_t k = 0; k < program_.micro_batches; ++k) {
            if (!passes(s, k)) continue;
            const Progress& p = progress(s, k);
            const model::OperatorRange all = program_.stages[s].operators;
            const auto c = program_.stages[s].rank;
            const auto missing = [&](const std::string& what) {
                report("completeness", c, fmt::format("stage {}, micro-batch {}: {}", s, k, what));
            };
            if (p.forward_steps == 0) missing("forward never runs");
            else if (p.forward != all.end)
                missing(
                    fmt::format("forward ends at operator {} of [{}, {})", p.forward, all.begin, all.end));
            if (!has_operators() && p.forward_steps > 1) missing("forward runs twice");
            if (!trains_) continue;
            const bool is_split = p.input_steps > 0 || p.weight_steps > 0;
            if (is_split && p.backward_steps > 0) missing("backward runs whole and in parts");
            else if (is_split) {
                if (p.input_steps == 0 || p.input != all.begin) missing("backward for input does not end");
                if (p.weight_steps == 0 || p.weight != all.begin)
                    missing("backward for weights does not end");
            } else if (p.backward_steps == 0) missing("backward never runs");
            else if (p.backward != all.begin)
                missing(
                    fmt::format("backward ends at operator {} of [{}, {})", p.backward, all.begin, all.end));
            if (!has_operators() && std::max({p.backward_steps, p.input_steps, p.weight_steps}) > 1)
                missing("backward runs twice");
        }
}

}  // namespace schedule
