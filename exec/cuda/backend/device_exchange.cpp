#include "exec/cuda/backend/device_exchange.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/core.h>

#include "core/errors.h"
#include "core/index/integers.h"
#include "model/operators/rank_share.h"

namespace exec::cuda {

using schedule::Instruction;

DeviceExchange::DeviceExchange(const schedule::Program& program, const model::ModelGraph& graph, int rank,
                               Machine& machine, Exchange& exchange, const MessagePlan& messages,
                               const Settings& settings, WorkContext& work)
    : program_(program),
      graph_(graph),
      rank_(rank),
      machine_(machine),
      exchange_(exchange),
      messages_(messages),
      settings_(settings),
      work_(work),
      groups_(program, rank, exchange, messages.has_channels, settings.joins_all) {}

void DeviceExchange::send(int peer, Tag tag, const BufferPointer& data) {
    work_.reads(data->data());
    work_.clear_zeros(data->data(), data->bytes());
    exchange_.send(work_.stream(), groups_.channel(work_.instruction(), peer, true), 1, data->data(),
                   data->bytes(), tag);
    const auto& taken = messages_.taken;
    if (!taken.empty()) on_their_way_.push_back({taken[program_.class_of_rank[rank_]][work_.number()], data});
}

void DeviceExchange::receive(int peer, Tag tag, Buffer& into) {
    work_.writes(into.data());
    exchange_.receive(work_.stream(), groups_.channel(work_.instruction(), peer, false), 0, into.data(),
                      into.bytes(), tag);
}

void DeviceExchange::collective(const Instruction& instruction, const std::vector<int>& members,
                                TensorView view, Tag) {
    void* const data = view.data();
    const core::DataType type = view.type();
    const std::size_t count = view.elements();
    if (instruction.pieces > 1) work_.writes_part(data, view.bytes());
    else work_.writes(data);
    work_.clear_zeros(data, view.bytes());
    const int group = groups_.of(members);
    const std::size_t piece = count / members.size();
    switch (instruction.collective) {
        case schedule::CollectiveKind::all_reduce:
            exchange_.all_reduce(work_.stream(), group, type, data, count, false);
            break;
        case schedule::CollectiveKind::all_gather:
            exchange_.all_gather(work_.stream(), group, type, data, piece);
            break;
        case schedule::CollectiveKind::reduce_scatter:
            exchange_.reduce_scatter(work_.stream(), group, type, data, piece);
            break;
        case schedule::CollectiveKind::broadcast:
            exchange_.broadcast(work_.stream(), group, type, data, count);
            break;
        case schedule::CollectiveKind::all_to_all:
        case schedule::CollectiveKind::rotate:
            core::require(false, "what differs from rank to rank goes through exchange()");
            break;
    }
}

// How many routed tokens a rank gets is known only when they come, and memory is planned before. Memory is
// planned for `expert_room` times the number that comes when all experts get as many, or for the most that
// can come at all if that is fewer.
std::int64_t DeviceExchange::room_for_routed_tokens(model::OperatorId dispatch, std::int64_t came) const {
    const model::Operator& op = graph_.op(dispatch);
    const model::MixtureShape shape = model::mixture_shape(graph_, op, program_.plan.cost_context());
    // From each rank: a token goes to an expert once, and an expert takes what its capacity says.
    const std::int64_t most =
        program_.plan.layout.expert_ranks() *
        std::min(shape.tokens * std::min<std::int64_t>(op.attributes.experts_per_token, shape.experts),
                 shape.experts * model::expert_capacity(op.attributes, shape.tokens));
    const auto even = static_cast<double>(shape.routed_tokens);
    const auto room = std::min(most, static_cast<std::int64_t>(std::ceil(settings_.expert_room * even)));
    if (came > room)
        throw core::MachineError(
            fmt::format("rank {} gets {:.2f} times the routed tokens that it would get if all experts had "
                        "as many, and has room for {:.2f} times: "
                        "--cuda-expert-room makes room for more; an auxiliary loss or a capacity_factor "
                        "keeps experts even",
                        rank_, came / even, settings_.expert_room));
    return room;
}

RankExchange::RoutedTokenCounts DeviceExchange::exchange_counts(model::OperatorId dispatch,
                                                                const Operands& operands,
                                                                const std::vector<int>& members, Tag) {
    const model::Operator& op = graph_.op(dispatch);
    const std::size_t experts = op.attributes.experts;
    work_.reads(operands.inputs[1].data());
    auto* counts = static_cast<float*>(work_.scratch(counts_slot, 2 * experts * sizeof(float)));
    work_.operators_at_work().count_rows(dispatch, operands.inputs[1].data(), counts);
    exchange_.all_to_all(work_.stream(), groups_.of(members), core::DataType::fp32, counts, counts + experts,
                         experts / members.size());
    const std::vector<float> fetched = work_.fetch(counts, 2 * experts);
    const std::int64_t even = model::mixture_shape(graph_, op, program_.plan.cost_context()).routed_tokens;
    if (work_.plans() || settings_.rehearses)
        return {divided_evenly(even, experts),
                divided_evenly(work_.plans() ? room_for_routed_tokens(dispatch, 0) : even, experts)};
    RoutedTokenCounts result;
    result.own.assign(fetched.begin(), fetched.begin() + experts);
    result.received.assign(fetched.begin() + experts, fetched.end());
    return result;
}

// What a rank keeps is copied, all else goes and comes together.
void DeviceExchange::exchange(const std::vector<int>& members, ConstTensorView from,
                              const std::vector<std::size_t>& sent, TensorView to,
                              const std::vector<std::size_t>& received, Tag tag) {
    work_.reads(from.data());
    work_.writes(to.data());
    const std::size_t element = core::bytes_per_element(from.type());
    const auto sum = [&](const std::vector<std::size_t>& counts) {
        return std::accumulate(counts.begin(), counts.end(), std::size_t{0}) * element;
    };
    work_.clear_zeros(const_cast<void*>(from.data()), sum(sent));
    work_.overwrites(to.data(), sum(received));
    const char* source = from.octets();
    const char* own = nullptr;
    char *target = to.octets(), *own_target = nullptr;
    std::size_t own_bytes = 0;
    const int group = groups_.of(members);
    exchange_.begin_messages();
    for (const std::int32_t m : core::indices(members)) {
        if (sent[m] > 0 && members[m] != rank_)
            exchange_.send(work_.stream(), group, m, source, sent[m] * element, tag);
        if (members[m] == rank_) own = source;
        source += sent[m] * element;
    }
    for (const std::int32_t m : core::indices(members)) {
        if (received[m] > 0 && members[m] != rank_)
            exchange_.receive(work_.stream(), group, m, target, received[m] * element, tag);
        if (members[m] == rank_) {
            own_target = target;
            own_bytes = std::min(sent[m], received[m]) *
                        element;  // equal, but for the numbers that planning makes up
        }
        target += received[m] * element;
    }
    exchange_.end_messages();
    machine_.copy(work_.stream(), own_target, own, own_bytes);
}

void DeviceExchange::add_up(float* number, const std::vector<int>& members) {
    exchange_.all_reduce(work_.stream(), groups_.of(members), core::DataType::fp32, number, 1, false);
}

void DeviceExchange::agree(float* number) {
    if (!groups_.all().empty())
        exchange_.all_reduce(machine_.stream(schedule::Stream::compute), groups_.of(groups_.all()),
                             core::DataType::fp32, number, 1, true);
}

}  // namespace exec::cuda
