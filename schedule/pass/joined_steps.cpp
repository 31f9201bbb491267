#include "schedule/pass/joined_steps.h"

#include <algorithm>

#include "core/index/integers.h"

namespace schedule {

namespace {

bool is_single(const Step& step) { return step.works() && step.pieces == 1 && !step.is_in_ring; }

// Compute beside which an exchange runs: that one starts when the step before the compute ends.
bool is_accompanied(const Recipe& recipe, std::size_t step) {
    if (recipe[step].kind != Step::Kind::compute) return false;
    for (std::size_t s = step + 1; s < recipe.size() && recipe[s].kind != Step::Kind::compute; ++s)
        if (recipe[s].starts_early) return true;
    return false;
}

// Does it start when all before it has ended, and nothing beside it?
bool is_plain(const Recipe& recipe, std::size_t step) {
    return step < recipe.size() && is_single(recipe[step]) && !recipe[step].starts_early &&
           !is_accompanied(recipe, step);
}

// Does nothing happen between it and the step before it, but that buffers are given back?
bool follows(const Step& step) {
    return !step.takes &&
           std::all_of(step.hooks.begin(), step.hooks.end(), [](const Hook& hook) { return !hook.pass; });
}

// How many steps more a row can have that ends before this one: the step, or compute with its company and
// what waits for both.
std::size_t more(const Recipe& recipe, std::size_t end) {
    if (is_plain(recipe, end) && follows(recipe[end])) return 1;
    const bool is_pair = end + 2 < recipe.size() && is_accompanied(recipe, end) && is_single(recipe[end]) &&
                         follows(recipe[end]) && recipe[end + 1].starts_early && is_single(recipe[end + 1]) &&
                         follows(recipe[end + 1]);
    return is_pair && is_plain(recipe, end + 2) && follows(recipe[end + 2]) ? 3 : 0;
}

}  // namespace

Instruction instruction_of(const Step& step, std::int32_t stage, std::int32_t micro_batch) {
    Instruction instruction;
    instruction.phase = step.phase;
    instruction.stage = stage;
    instruction.micro_batch = micro_batch;
    instruction.operators = step.operators;
    instruction.piece = step.piece;
    instruction.pieces = step.pieces;
    if (step.kind == Step::Kind::compute) return instruction;
    instruction.kind = InstructionKind::collective;
    instruction.stream = Stream::tensor;
    instruction.collective = step.collective;
    instruction.group = step.group;
    instruction.payload = step.payload;
    instruction.bytes = step.bytes;
    return instruction;
}

// A row begins with compute: an exchange before it need not wait for what else occupies the stream of
// compute. And the last of a pass ends with it: until its last compute has ended some memory of a pass is
// held.
void join_steps(Recipe& recipe, std::int32_t stage, std::vector<Instruction>& parts) {
    std::size_t last_compute = 0;
    for (std::size_t s = 0; s < recipe.size(); ++s)
        if (recipe[s].kind == Step::Kind::compute) last_compute = s;
    for (std::size_t first = 0, end = 0; first < recipe.size(); first = end) {
        end = first + 1;
        if (recipe[first].kind != Step::Kind::compute || !is_plain(recipe, first)) continue;
        while (const std::size_t count = more(recipe, end)) end += count;
        if (end > last_compute) end = last_compute + 1;
        while (is_accompanied(recipe, end - 1)) --end;
        if (end == first + 1) continue;
        recipe[first].parts_begin = core::narrow<std::uint32_t>(parts.size());
        recipe[first].parts_count = core::narrow<std::uint32_t>(end - first);
        for (std::size_t s = first; s < end; ++s) {
            parts.push_back(instruction_of(recipe[s], stage, -1));
            parts.back().starts_early = recipe[s].starts_early;
        }
    }
}

}  // namespace schedule
