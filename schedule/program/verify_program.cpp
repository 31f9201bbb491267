// Rules that every Program keeps:
// - structure: indices point at something, `after` points backwards.
// - placement: work is on the class of its stage; ranks run the class of their pipeline coordinate.
// - completeness: every stage runs every operator forward once per micro-batch and, when it trains, backward
// once
//   (B, or I and W).
// - order: each step ends before the steps that need it start, over streams and `after` edges alone, not over
// the
//   list order. Of a sequence in segments the first goes forward first and backward last.
// - transfers: every boundary between ranks has one send and one receive per micro-batch and direction, equal
// in
//   size and tensors.
// - collectives: those that join several classes come in one order with one size on all of them; bucket sizes
// are
//   right.
// - buffers: each is taken once and freed once, later; persistent ones never.
// - update: each bucket is reduced as its sharding asks, its norms are taken where the optimizer needs them,
// then
//   it is updated once, then gathered.
// - progress: the lists can be performed to their end.
// Progress is proved for the list order with buffered sends. Streams only relax it: an instruction waits for
// some that are before it in its list, so the list order is one of the orders that streams allow, and a list
// that can be performed in it cannot deadlock on streams.
#include <algorithm>

#include <fmt/core.h>

#include "core/index/integers.h"
#include "schedule/program/program_checker.h"

namespace schedule {

namespace {
constexpr std::size_t most_violations = 100;
}

std::vector<Violation> verify(const Program& program) { return ProgramChecker(program).run(); }

ProgramChecker::ProgramChecker(const Program& program) : program_(program), trains_(trains(program)) {}

void ProgramChecker::report(const char* rule, std::int32_t c, std::int32_t index, const std::string& what) {
    if (violations_.size() >= most_violations) return;
    violations_.push_back(
        {rule,
         fmt::format("class {}: {}: {}", c, describe(program_, c, static_cast<std::uint32_t>(index)), what),
         c, index});
}

void ProgramChecker::report(const char* rule, std::int32_t c, const std::string& what) {
    if (violations_.size() < most_violations)
        violations_.push_back({rule, fmt::format("class {}: {}", c, what), c, std::nullopt});
}

std::vector<Violation> ProgramChecker::run() {
    if (!check_structure()) return std::move(violations_);  // the other rules read through these indices
    progress_.assign(program_.stages.size() * program_.micro_batches, {});
    for (const std::int32_t s : core::indices(program_.stages))
        for (std::int32_t k = 0; k < program_.micro_batches; ++k) {
            Progress& p = progress(s, k);
            p.forward = program_.stages[s].operators.begin;
            p.backward = p.input = p.weight = program_.stages[s].operators.end;
        }
    check_transfers();
    for (const std::int32_t c : core::indices(program_.classes)) {
        find_clocks(c);
        check_passes(c);
        check_buffers(c);
        if (has_operators()) check_update(c);
    }
    check_complete();
    check_collectives();
    if (violations_.empty()) check_progress();
    return std::move(violations_);
}

namespace {

bool within(std::int64_t value, std::size_t size) {
    return value >= 0 && value < static_cast<std::int64_t>(size);
}

}  // namespace

bool ProgramChecker::check_counts() {
    if (program_.micro_batches < 1 || program_.stages.empty() || program_.classes.empty())
        report("structure", 0, "a Program has micro-batches, stages and classes");
    else if (program_.segments < 1 || program_.micro_batches % program_.segments != 0)
        report("structure", 0,
               fmt::format("{} segments of a sequence do not divide its micro-batches", program_.segments));
    else if (program_.directions < 1 || program_.micro_batches % program_.directions != 0 ||
             core::count_of(program_.stages) % program_.directions != 0)
        report("structure", 0,
               fmt::format("{} directions do not divide its stages and micro-batches", program_.directions));
    if (core::count_of(program_.class_of_rank) != program_.plan.layout.ranks())
        report("structure", 0, "every rank of the layout has a class");
    if (!violations_.empty()) return false;
    for (std::size_t rank = 0; rank < program_.class_of_rank.size() && violations_.empty(); ++rank) {
        const std::int32_t c = program_.class_of_rank[rank];
        if (!within(c, program_.classes.size()))
            report("structure", 0, fmt::format("rank {} has class {}, which does not exist", rank, c));
        else if (list(c).pipeline != coordinates_of(program_.plan.layout, rank).pipeline)
            report("placement", c,
                   fmt::format("rank {} stands elsewhere in the pipeline than its class", rank));
    }
    return true;
}

void ProgramChecker::check_instruction(std::int32_t c, std::int32_t n) {
    const RankProgram& l = list(c);
    const Instruction& i = l.instructions[n];
    const bool has_pools = i.after_begin + std::size_t{i.after_count} <= l.after_pool.size() &&
                           i.allocate_begin + std::size_t{i.allocate_count} <= l.buffer_pool.size() &&
                           i.free_begin + std::size_t{i.free_count} <= l.buffer_pool.size();
    if (!has_pools) {
        report("structure", c, n, "edges or buffers outside their pool");
        return;
    }
    for (const std::int64_t a : l.after(i))
        if (a >= n) report("structure", c, n, fmt::format("waits for {}, which does not stand before it", a));
    for (const auto pool : {l.allocates(i), l.frees(i)})
        for (const std::uint32_t b : pool)
            if (b >= l.buffers.size()) report("structure", c, n, fmt::format("buffer {} does not exist", b));
    const bool has_stage = within(i.stage, program_.stages.size()),
               has_micro_batch = within(i.micro_batch, program_.micro_batches);
    if (i.pieces < 1 || (i.piece >= i.pieces && !is_of_weights(i)))
        report("structure", c, n, fmt::format("is piece {} of {}", i.piece + 1, i.pieces));
    const bool is_on_activations =
        i.kind == InstructionKind::collective &&
        (i.payload == PayloadKind::activation || i.payload == PayloadKind::activation_gradient);
    if (i.kind == InstructionKind::compute || (i.kind == InstructionKind::copy && !i.bucket) ||
        i.kind == InstructionKind::send || i.kind == InstructionKind::receive || is_on_activations) {
        if (!has_stage || !has_micro_batch || !passes(i.stage, i.micro_batch))
            report("structure", c, n, "no such stage or micro-batch");
        else if (program_.stages[i.stage].rank != l.pipeline)
            report("placement", c, n,
                   fmt::format("stage {} lives on pipeline rank {}", i.stage, program_.stages[i.stage].rank));
    }
    const bool is_on_bucket = i.payload == PayloadKind::parameter_gradient ||
                              i.payload == PayloadKind::parameter || i.payload == PayloadKind::update_norm ||
                              i.kind == InstructionKind::update_norm ||
                              (i.kind == InstructionKind::optimizer_step && i.bucket.has_value());
    if (is_on_bucket && !within(i.bucket.value_or(-1), l.buckets.size()))
        report("structure", c, n, fmt::format("bucket {} does not exist", i.bucket.value_or(-1)));
    if (i.tensors && !within(*i.tensors, program_.tensor_lists.size()))
        report("structure", c, n, fmt::format("tensor list {} does not exist", *i.tensors));
}

bool ProgramChecker::check_structure() {
    if (!check_counts()) return false;
    for (const std::int32_t c : core::indices(program_.classes))
        for (const std::int32_t n : core::indices(list(c).instructions)) check_instruction(c, n);
    return violations_.empty();
}

bool ProgramChecker::is_boundary_here(std::int32_t stage) const {
    return !program_.is_first_stage(stage) && program_.stages[stage].rank == program_.stages[stage - 1].rank;
}

bool ProgramChecker::has_transfer(std::int32_t stage) const {
    return !program_.is_first_stage(stage) && !is_boundary_here(stage) &&
           (!has_operators() || program_.stages[stage].receives);
}

// A boundary is named by the stage behind it.
std::size_t ProgramChecker::transfer_key(const Instruction& i) const {
    const bool is_gradient = i.payload == PayloadKind::activation_gradient;
    const std::int32_t boundary = (i.kind == InstructionKind::send) == is_gradient ? i.stage : i.stage + 1;
    const std::size_t row = (is_gradient ? program_.stages.size() + 1 : 0) + boundary;
    return row * program_.micro_batches + i.micro_batch;
}

void ProgramChecker::check_transfers() {
    const std::int32_t stages = core::count_of(program_.stages), micro_batches = program_.micro_batches;
    const std::int64_t keys = 2 * (stages + std::int64_t{1}) * micro_batches;
    sends_.assign(keys, {});
    receives_.assign(keys, {});
    for (const std::int32_t c : core::indices(program_.classes))
        for (const std::int32_t n : core::indices(list(c).instructions)) {
            const Instruction& i = list(c).instructions[n];
            if (i.kind != InstructionKind::send && i.kind != InstructionKind::receive) continue;
            if (i.payload != PayloadKind::activation && i.payload != PayloadKind::activation_gradient) {
                report("transfers", c, n, "carries neither activations nor their gradients");
                continue;
            }
            ListPosition& position = (i.kind == InstructionKind::send ? sends_ : receives_)[transfer_key(i)];
            if (position.list >= 0) report("transfers", c, n, "is there twice");
            position = {c, n};
        }
    for (std::int64_t key = 0; key < keys; ++key) {
        const bool is_gradient = key / micro_batches >= stages + 1;
        const std::int32_t boundary = key / micro_batches - (is_gradient ? stages + 1 : 0);
        const bool is_needed = boundary > 0 && boundary < stages && has_transfer(boundary) &&
                               (trains_ || !is_gradient) && passes(boundary, key % micro_batches);
        const ListPosition send = sends_[key], receive = receives_[key];
        if (!is_needed) {
            for (const ListPosition& position : {send, receive})
                if (position.list >= 0)
                    report("transfers", position.list, position.index, "nothing crosses there");
            continue;
        }
        if (send.list < 0 && receive.list < 0)
            report("transfers", 0,
                   fmt::format("micro-batch {} never crosses to stage {}{}", key % micro_batches,
                               is_gradient ? boundary - 1 : boundary, is_gradient ? " (gradient)" : ""));
        else if (send.list < 0) report("transfers", receive.list, receive.index, "nobody sends it");
        else if (receive.list < 0) report("transfers", send.list, send.index, "nobody receives it");
        else {
            const RankProgram& from = list(send.list);
            const RankProgram& to = list(receive.list);
            const Instruction& s = from.instructions[send.index];
            const Instruction& r = to.instructions[receive.index];
            const auto at_receive = [&](const std::string& what) {
                report("transfers", receive.list, receive.index, what);
            };
            if (s.peer != to.pipeline || r.peer != from.pipeline)
                at_receive("sender and receiver name other peers than each other");
            if (s.bytes != r.bytes) at_receive(fmt::format("its sender sends {:.0f} B", s.bytes.value));
            if (s.tensors != r.tensors) at_receive("its sender sends other tensors");
        }
    }
}

void ProgramChecker::check_buffers(std::int32_t c) {
    const RankProgram& l = list(c);
    std::vector<std::int32_t> taken(l.buffers.size(), -1), given_back(l.buffers.size(), -1);
    for (const std::int32_t n : core::indices(l.instructions)) {
        const Instruction& i = l.instructions[n];
        for (const std::uint32_t b : l.allocates(i)) {
            if (l.buffers[b].is_persistent)
                report("buffers", c, n, fmt::format("takes buffer {}, which is persistent", b));
            else if (taken[b] >= 0) report("buffers", c, n, fmt::format("takes buffer {} a second time", b));
            taken[b] = n;
        }
        for (const std::uint32_t b : l.frees(i)) {
            if (l.buffers[b].is_persistent)
                report("buffers", c, n, fmt::format("gives back buffer {}, which is persistent", b));
            else if (taken[b] < 0)
                report("buffers", c, n, fmt::format("gives back buffer {} before it is taken", b));
            else if (given_back[b] >= 0)
                report("buffers", c, n, fmt::format("gives back buffer {} a second time", b));
            else if (taken[b] != n && !is_ordered(c, taken[b], n))
                report("buffers", c, n, fmt::format("may give back buffer {} before it is taken", b));
            given_back[b] = n;
        }
    }
    for (const std::int32_t b : core::indices(l.buffers)) {
        if (l.buffers[b].is_persistent) continue;
        if (taken[b] < 0) report("buffers", c, fmt::format("nobody takes buffer {}", b));
        else if (given_back[b] < 0)
            report("buffers", c, taken[b], fmt::format("takes buffer {}, which nobody gives back", b));
    }
}

namespace {

bool joins_classes(const Instruction& i) {
    return i.kind == InstructionKind::collective &&
           (i.group == GroupKind::tied_stages || i.group == GroupKind::pipeline ||
            i.group == GroupKind::world);
}

}  // namespace

// Pipeline coordinates that a collective over tied stages joins: the holders of its bucket, or both ends of
// the pipeline for the loss.
std::vector<std::int32_t> ProgramChecker::tied_ranks(std::int32_t c, const Instruction& i) const {
    if (i.bucket) return list(c).buckets[*i.bucket].tied_ranks;
    return {0, program_.plan.layout.pipeline - 1};
}

// Ranks of one class perform one list, so only collectives that join classes can disagree.
void ProgramChecker::check_collectives() {
    using Sequence =
        std::vector<std::pair<ListPosition, std::vector<std::int32_t>>>;  // with the classes it joins
    std::vector<Sequence> sequences(program_.classes.size());
    for (const std::int32_t c : core::indices(program_.classes))
        for (const std::int32_t n : core::indices(list(c).instructions)) {
            const Instruction& i = list(c).instructions[n];
            if (!joins_classes(i)) continue;
            std::vector<std::int32_t> ranks;
            if (i.group == GroupKind::tied_stages) ranks = tied_ranks(c, i);
            else
                for (const RankProgram& other : program_.classes) ranks.push_back(other.pipeline);
            if (!std::binary_search(ranks.begin(), ranks.end(), list(c).pipeline))
                report("collectives", c, n, "is not among its own members");
            sequences[c].push_back({{c, n}, std::move(ranks)});
        }
    for (const std::int32_t a : core::indices(sequences))
        for (std::size_t b = a + 1; b < sequences.size(); ++b) {
            const auto shared = [&](const Sequence& sequence, std::int32_t with) {
                std::vector<ListPosition> positions;
                for (const auto& [position, ranks] : sequence)
                    if (std::binary_search(ranks.begin(), ranks.end(), with)) positions.push_back(position);
                return positions;
            };
            const std::vector<ListPosition> of_a = shared(sequences[a], list(b).pipeline),
                                            of_b = shared(sequences[b], list(a).pipeline);
            for (std::size_t k = 0; k < std::max(of_a.size(), of_b.size()); ++k) {
                if (k >= of_a.size() || k >= of_b.size()) {
                    const ListPosition alone = k < of_a.size() ? of_a[k] : of_b[k];
                    report("collectives", alone.list, alone.index,
                           fmt::format("class {} does not take part", k < of_a.size() ? b : a));
                    break;
                }
                const Instruction& x = list(a).instructions[of_a[k].index];
                const Instruction& y = list(b).instructions[of_b[k].index];
                const auto parameters = [&](std::int32_t c, const Instruction& i) {
                    return i.bucket ? list(c).buckets[*i.bucket].parameters
                                    : std::vector<model::ParameterId>{};
                };
                if (x.collective != y.collective || x.payload != y.payload || x.bytes != y.bytes ||
                    x.on_shard != y.on_shard || parameters(a, x) != parameters(b, y))
                    report("collectives", b, of_b[k].index,
                           "class " + std::to_string(a) +
                               " does at that point: " + describe(program_, a, of_a[k].index));
            }
        }
}

void ProgramChecker::check_progress() {
    const std::int32_t classes = core::count_of(program_.classes);
    std::vector<std::size_t> next(classes, 0);
    std::vector<char> is_sent(sends_.size(), 0);
    const auto can_perform = [&](std::int32_t c) {
        const Instruction& i = list(c).instructions[next[c]];
        if (i.kind == InstructionKind::receive) return is_sent[transfer_key(i)] != 0;
        if (!joins_classes(i)) return true;
        // Everyone must have come to the collective that this one is for them: orders agree, so it is their
        // next one that joins classes.
        for (std::int32_t other = 0; other < classes; ++other) {
            if (other == c) continue;
            if (i.group == GroupKind::tied_stages) {
                const std::vector<std::int32_t> ranks = tied_ranks(c, i);
                if (!std::binary_search(ranks.begin(), ranks.end(), list(other).pipeline)) continue;
            }
            if (next[other] >= list(other).instructions.size() ||
                !joins_classes(list(other).instructions[next[other]]))
                return false;
            const Instruction& theirs = list(other).instructions[next[other]];
            if (theirs.group != i.group) return false;
            if (i.group == GroupKind::tied_stages && (!theirs.bucket || !i.bucket)) {
                if (theirs.bucket != i.bucket) return false;
            } else if (i.group == GroupKind::tied_stages && list(other).buckets[*theirs.bucket].parameters !=
                                                                list(c).buckets[*i.bucket].parameters) {
                return false;
            }
        }
        return true;
    };
    for (bool moved = true; moved;) {
        moved = false;
        for (std::int32_t c = 0; c < classes; ++c)
            while (next[c] < list(c).instructions.size()) {
                const Instruction& i = list(c).instructions[next[c]];
                if (!can_perform(c)) break;
                moved = true;
                if (i.kind == InstructionKind::send) is_sent[transfer_key(i)] = 1;
                if (joins_classes(i)) {
                    const std::vector<std::int32_t> tied =
                        i.group == GroupKind::tied_stages ? tied_ranks(c, i) : std::vector<std::int32_t>{};
                    for (std::int32_t other = 0; other < classes; ++other)
                        if (other != c && (tied.empty() || std::binary_search(tied.begin(), tied.end(),
                                                                              list(other).pipeline)))
                            ++next[other];
                }
                ++next[c];
            }
    }
    for (std::int32_t c = 0; c < classes; ++c)
        if (next[c] < list(c).instructions.size()) report("progress", c, next[c], "waits for ever");
}

}  // namespace schedule
