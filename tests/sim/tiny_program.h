// Programs written by hand for tests of the clock: compute and transfers of simple pipelines, with one
// activation buffer a micro-batch.
#pragma once

#include <algorithm>
#include <vector>

#include "schedule/program/program.h"

namespace tiny {

using namespace schedule;

struct Builder {
    RankProgram list;

    std::uint32_t add(Instruction instruction, std::vector<std::uint32_t> after = {},
                      std::vector<std::uint32_t> takes = {}, std::vector<std::uint32_t> gives = {}) {
        const auto append = [](std::vector<std::uint32_t>& pool, const std::vector<std::uint32_t>& items,
                               std::uint32_t& begin, std::uint32_t& count) {
            begin = static_cast<std::uint32_t>(pool.size());
            count = static_cast<std::uint32_t>(items.size());
            pool.insert(pool.end(), items.begin(), items.end());
        };
        append(list.after_pool, after, instruction.after_begin, instruction.after_count);
        append(list.buffer_pool, takes, instruction.allocate_begin, instruction.allocate_count);
        append(list.buffer_pool, gives, instruction.free_begin, instruction.free_count);
        list.instructions.push_back(instruction);
        return static_cast<std::uint32_t>(list.instructions.size() - 1);
    }
    std::uint32_t buffer(core::Bytes bytes, bool is_persistent = false,
                         MemoryKind kind = MemoryKind::activations) {
        list.buffers.push_back({kind, bytes, is_persistent});
        return static_cast<std::uint32_t>(list.buffers.size() - 1);
    }
};

inline Instruction compute(ComputePhase phase, int stage, int micro_batch) {
    Instruction i;
    i.phase = phase;
    i.stage = stage;
    i.micro_batch = micro_batch;
    return i;
}
inline Instruction transfer(InstructionKind kind, PayloadKind payload, int stage, int micro_batch, int peer) {
    Instruction i;
    i.kind = kind;
    i.stream = kind == InstructionKind::send ? Stream::pipeline_send : Stream::pipeline_receive;
    i.payload = payload;
    i.stage = stage;
    i.micro_batch = micro_batch;
    i.peer = peer;
    return i;
}

enum class Order { all_forward_first, one_forward_one_backward };

// p stages on p ranks. Every forward takes one byte of activations that its backward gives back; 10 bytes are
// persistent.
inline Program pipeline(int p, int m, Order order, int data = 1, int tensor = 1) {
    Program program;
    program.micro_batches = m;
    program.plan.layout = {data, tensor, p, "PDT"};
    program.plan.micro_batches = m;
    for (int s = 0; s < p; ++s) {
        program.stages.push_back({s, {}, -1, -1});
        Builder b;
        b.list.pipeline = s;
        b.buffer(core::Bytes(10), true, MemoryKind::parameters);
        std::vector<std::uint32_t> saved;
        for (int k = 0; k < m; ++k) saved.push_back(b.buffer(core::Bytes(1)));
        const auto forward = [&](int k) {
            std::vector<std::uint32_t> after;
            if (s > 0)
                after.push_back(
                    b.add(transfer(InstructionKind::receive, PayloadKind::activation, s, k, s - 1)));
            const std::uint32_t f =
                b.add(compute(ComputePhase::forward, s, k), after, {saved[static_cast<std::size_t>(k)]});
            if (s + 1 < p) b.add(transfer(InstructionKind::send, PayloadKind::activation, s, k, s + 1), {f});
        };
        const auto backward = [&](int k) {
            std::vector<std::uint32_t> after;
            if (s + 1 < p)
                after.push_back(
                    b.add(transfer(InstructionKind::receive, PayloadKind::activation_gradient, s, k, s + 1)));
            const std::uint32_t g =
                b.add(compute(ComputePhase::backward, s, k), after, {}, {saved[static_cast<std::size_t>(k)]});
            if (s > 0)
                b.add(transfer(InstructionKind::send, PayloadKind::activation_gradient, s, k, s - 1), {g});
        };
        const int warm = order == Order::all_forward_first ? m : std::min(m, p - s);
        for (int k = 0; k < warm; ++k) forward(k);
        for (int k = 0; k < m; ++k) {
            backward(k);
            if (warm + k < m) forward(warm + k);
        }
        program.classes.push_back(std::move(b.list));
    }
    for (int rank = 0; rank < program.plan.layout.ranks(); ++rank)
        program.class_of_rank.push_back(coordinates_of(program.plan.layout, rank).pipeline);
    return program;
}

}  // namespace tiny
