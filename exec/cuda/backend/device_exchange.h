// The exchanges of a rank's instructions on their streams.
#pragma once

#include <utility>
#include <vector>

#include "exec/backend/rank_exchange.h"
#include "exec/cuda/arena.h"
#include "exec/cuda/backend/rank_groups.h"
#include "exec/cuda/backend/work_context.h"
#include "model/model_graph.h"

namespace exec::cuda {

class DeviceExchange : public RankExchange {
public:
    struct Settings {
        bool joins_all = false;  // all ranks decide something together
        bool rehearses = false;  // routed tokens are made up
        double expert_room = 2;  // as BackendSettings has it
    };
    // Everything given outlives it.
    DeviceExchange(const schedule::Program& program, const model::ModelGraph& graph, int rank,
                   Machine& machine, Exchange& exchange, const MessagePlan& messages,
                   const Settings& settings, WorkContext& work);

    void send(int peer, Tag tag, const BufferPointer& data) override;
    void receive(int peer, Tag tag, Buffer& into) override;
    void collective(const schedule::Instruction& instruction, const std::vector<int>& members,
                    TensorView data, Tag tag) override;
    void exchange(const std::vector<int>& members, ConstTensorView from, const std::vector<std::size_t>& sent,
                  TensorView to, const std::vector<std::size_t>& received, Tag tag) override;
    RoutedTokenCounts exchange_counts(model::OperatorId dispatch, const Operands& operands,
                                      const std::vector<int>& members, Tag tag) override;
    std::int64_t room_for_routed_tokens(model::OperatorId dispatch, std::int64_t came) const override;

    // One fp32 number of every member: their sum.
    void add_up(float* number, const std::vector<int>& members);
    // ... of all ranks: their maximum, on the stream of compute.
    void agree(float* number);

    // What is sent is kept until the instruction from which on it surely has been taken.
    void begin(std::uint32_t instruction) {
        std::erase_if(on_their_way_, [&](const auto& one) { return one.first <= instruction; });
    }
    void end_step() { on_their_way_.clear(); }

private:
    const schedule::Program& program_;
    const model::ModelGraph& graph_;
    const int rank_;
    Machine& machine_;
    Exchange& exchange_;
    const MessagePlan& messages_;
    const Settings settings_;
    WorkContext& work_;
    const RankGroups groups_;
    std::vector<std::pair<std::uint32_t, BufferPointer>> on_their_way_;
};

}  // namespace exec::cuda
