// What a rank sends to and receives from the others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "exec/backend/operator_kernels.h"
#include "exec/runtime/memory.h"
#include "exec/transport/communicator.h"
#include "schedule/program/program.h"

namespace exec {

class RankExchange {
public:
    virtual ~RankExchange() = default;

    // A send keeps `data` until it is taken. Equal tags on both sides; a collective is in place,
    // `members` in group order, this member's piece of what is gathered or scattered at its position in the
    // group.
    virtual void send(int peer, Tag tag, const BufferPointer& data) = 0;
    virtual void receive(int peer, Tag tag, Buffer& into) = 0;
    virtual void collective(const schedule::Instruction& instruction, const std::vector<int>& members,
                            TensorView data, Tag tag) = 0;
    // Every member's part for every other: `sent` and `received` elements by member, its own included, one
    // after the other in `from` and `to`.
    virtual void exchange(const std::vector<int>& members, ConstTensorView from,
                          const std::vector<std::size_t>& sent, TensorView to,
                          const std::vector<std::size_t>& received, Tag tag);

    // Expert parallelism, before the routed tokens themselves: how many of them are sent and received. The
    // operands are those of `dispatch`.
    struct RoutedTokenCounts {
        std::vector<std::int64_t> own;       // of this rank's tokens, by expert
        std::vector<std::int64_t> received;  // Operands::expert_rows
    };
    virtual RoutedTokenCounts exchange_counts(model::OperatorId dispatch, const Operands& operands,
                                              const std::vector<int>& members, Tag tag);
    // Routed tokens to allocate memory for when `came` were received: a backend that plans its memory
    // allocates for more.
    virtual std::int64_t room_for_routed_tokens(model::OperatorId dispatch, std::int64_t came) const {
        return static_cast<void>(dispatch), came;
    }
};

}  // namespace exec
