// Who exchanges with whom, as groups and channels that every rank makes alike before the first step; and the
// exchanges themselves.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include <fmt/core.h>

#include "core/errors.h"
#include "core/index/integers.h"
#include "exec/cuda/backend.h"
#include "model/operators/rank_share.h"

namespace exec::cuda {

using schedule::Instruction;
using schedule::InstructionKind;
using schedule::PayloadKind;

// All groups that any rank's collectives and messages need; every rank makes its own in the same order, so
// that no two wait for one another.
void CudaBackend::make_groups() {
    const schedule::ParallelLayout& layout = program_.plan.layout;
    if (layout.ranks() < 2) return;
    std::set<std::vector<int>> groups;
    using Message = std::pair<std::int32_t, std::int32_t>;  // boundary, micro-batch
    std::map<Channel, std::vector<Message>> sent, received;
    for (int rank = 0; rank < layout.ranks(); ++rank) {
        const schedule::RankProgram& list = program_.classes[program_.class_of_rank[rank]];
        const schedule::RankCoordinates coordinates = schedule::coordinates_of(layout, rank);
        std::set<std::pair<schedule::GroupKind, std::optional<std::int32_t>>> seen;
        for (const Instruction& instruction : list.instructions) {
            if (instruction.kind == InstructionKind::collective) {
                // Members depend on the bucket in tied stages only.
                std::optional<std::int32_t> bucket;
                if (instruction.group == schedule::GroupKind::tied_stages && instruction.bucket)
                    bucket = *instruction.bucket;
                if (!seen.insert({instruction.group, bucket}).second) continue;
                std::vector<int> members = schedule::members_of(program_, rank, instruction);
                if (members.size() > 1) groups.insert(std::move(members));
            } else if (instruction.kind == InstructionKind::send ||
                       instruction.kind == InstructionKind::receive) {
                const bool sends = instruction.kind == InstructionKind::send;
                const int peer =
                    schedule::rank_of(layout, {coordinates.data, coordinates.tensor, *instruction.peer});
                (sends ? sent : received)[{sends ? rank : peer, sends ? peer : rank, instruction.payload, {}}]
                    .push_back({boundary_of(instruction), instruction.micro_batch});
            }
        }
    }
    // NCCL matches messages by their order. Where sender and receiver list them in different orders, every
    // boundary between stages gets a channel of its own.
    is_boundary_apart_ = messages_.has_channels;
    for (const auto& [channel, messages] : sent)
        if (messages != received[channel]) is_boundary_apart_ = true;
    std::set<Channel> channels;
    for (const auto& [channel, messages] : sent) {
        std::map<std::int32_t, std::vector<std::int32_t>> out, in;
        for (const auto& [boundary, micro_batch] : messages) out[boundary].push_back(micro_batch);
        for (const auto& [boundary, micro_batch] : received[channel]) in[boundary].push_back(micro_batch);
        if (out != in)
            throw core::MachineError(
                fmt::format("rank {} sends micro-batches to rank {} in another order than that rank receives "
                            "them in: NCCL cannot match them",
                            channel.from, channel.to));
        for (const auto& [boundary, ignored] : out)
            channels.insert({channel.from, channel.to, channel.payload,
                             is_boundary_apart_ ? std::optional(boundary) : std::nullopt});
    }
    if (scales_loss()) {
        // All ranks leave out an update together.
        all_ranks_.resize(layout.ranks());
        std::iota(all_ranks_.begin(), all_ranks_.end(), 0);
        groups.insert(all_ranks_);
    }
    for (const std::vector<int>& members : groups)
        if (std::find(members.begin(), members.end(), rank_) != members.end())
            groups_[members] = exchange_.make_group(members);
    for (const Channel& channel : channels)
        if (channel.from == rank_ || channel.to == rank_)
            channels_[channel] = exchange_.make_group({channel.from, channel.to});
}

int CudaBackend::group_of(const std::vector<int>& members) const {
    const auto found = groups_.find(members);
    core::require(found != groups_.end(), "every group was made before the first step");
    return found->second;
}

int CudaBackend::channel_to(int peer, bool sends) const {
    const Instruction& own = instruction();
    const auto found = channels_.find({sends ? rank_ : peer, sends ? peer : rank_, own.payload,
                                       is_boundary_apart_ ? std::optional(boundary_of(own)) : std::nullopt});
    core::require(found != channels_.end(), "every channel was made before the first step");
    return found->second;
}

void CudaBackend::send(int peer, Tag tag, const BufferPointer& data) {
    read(data->data());
    clear_zeros(data->data(), data->bytes());
    exchange_.send(stream(), channel_to(peer, true), 1, data->data(), data->bytes(), tag);
    const auto& taken = messages_.taken;
    if (!taken.empty()) on_their_way_.push_back({taken[program_.class_of_rank[rank_]][instruction_], data});
}

void CudaBackend::receive(int peer, Tag tag, Buffer& into) {
    write(into.data());
    exchange_.receive(stream(), channel_to(peer, false), 0, into.data(), into.bytes(), tag);
}

void CudaBackend::collective(const Instruction& instruction, const std::vector<int>& members, TensorView view,
                             Tag) {
    void* const data = view.data();
    const core::DataType type = view.type();
    const std::size_t count = view.elements();
    write(data);
    clear_zeros(data, view.bytes());
    const int group = group_of(members);
    const std::size_t piece = count / members.size();
    switch (instruction.collective) {
        case schedule::CollectiveKind::all_reduce:
            exchange_.all_reduce(stream(), group, type, data, count, false);
            break;
        case schedule::CollectiveKind::all_gather:
            exchange_.all_gather(stream(), group, type, data, piece);
            break;
        case schedule::CollectiveKind::reduce_scatter:
            exchange_.reduce_scatter(stream(), group, type, data, piece);
            break;
        case schedule::CollectiveKind::broadcast:
            exchange_.broadcast(stream(), group, type, data, count);
            break;
        case schedule::CollectiveKind::all_to_all:
            core::require(false, "plans with an exchange of all with all are refused on GPUs");
            break;
    }
}

// How many routed tokens a rank gets is known only when they come, and memory is planned before. Memory is
// planned for `expert_room` times the number that comes when all experts get as many, or for the most that
// can come at all if that is fewer.
std::int64_t CudaBackend::room_for_routed_tokens(model::OperatorId dispatch, std::int64_t came) const {
    const model::Operator& op = graph_.op(dispatch);
    const model::MixtureShape shape = model::mixture_shape(graph_, op, program_.plan.cost_context());
    // From each rank: a token goes to an expert once, and an expert takes what its capacity says.
    const std::int64_t most =
        program_.plan.layout.expert *
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

Backend::RoutedTokenCounts CudaBackend::exchange_counts(model::OperatorId dispatch, const Operands& operands,
                                                        const std::vector<int>& members, Tag) {
    const model::Operator& op = graph_.op(dispatch);
    const std::size_t experts = op.attributes.experts;
    read(operands.inputs[1].data());
    auto* counts = static_cast<float*>(scratch(counts_slot, 2 * experts * sizeof(float)));
    operators_at_work().count_rows(dispatch, operands.inputs[1].data(), counts);
    exchange_.all_to_all(stream(), group_of(members), core::DataType::fp32, counts, counts + experts,
                         experts / members.size());
    const std::vector<float> fetched = fetch(counts, 2 * experts);
    const std::int64_t even = model::mixture_shape(graph_, op, program_.plan.cost_context()).routed_tokens;
    if (plans() || settings_.rehearses)
        return {divided_evenly(even, experts),
                divided_evenly(plans() ? room_for_routed_tokens(dispatch, 0) : even, experts)};
    RoutedTokenCounts result;
    result.own.assign(fetched.begin(), fetched.begin() + experts);
    result.received.assign(fetched.begin() + experts, fetched.end());
    return result;
}

// What a rank keeps is copied, all else goes and comes together.
void CudaBackend::exchange(const std::vector<int>& members, ConstTensorView from,
                           const std::vector<std::size_t>& sent, TensorView to,
                           const std::vector<std::size_t>& received, Tag tag) {
    read(from.data());
    write(to.data());
    const std::size_t element = core::bytes_per_element(from.type());
    const auto sum = [&](const std::vector<std::size_t>& counts) {
        return std::accumulate(counts.begin(), counts.end(), std::size_t{0}) * element;
    };
    clear_zeros(const_cast<void*>(from.data()), sum(sent));
    for (PendingZeros* zeros : {&pending_zeros_, &gradient_zeros_})
        zeros->cut(to.data(), sum(received));  // overwritten
    const char* source = from.octets();
    const char* own = nullptr;
    char *target = to.octets(), *own_target = nullptr;
    std::size_t own_bytes = 0;
    const int group = group_of(members);
    exchange_.begin_messages();
    for (const std::int32_t m : core::indices(members)) {
        if (sent[m] > 0 && members[m] != rank_)
            exchange_.send(stream(), group, m, source, sent[m] * element, tag);
        if (members[m] == rank_) own = source;
        source += sent[m] * element;
    }
    for (const std::int32_t m : core::indices(members)) {
        if (received[m] > 0 && members[m] != rank_)
            exchange_.receive(stream(), group, m, target, received[m] * element, tag);
        if (members[m] == rank_) {
            own_target = target;
            own_bytes = std::min(sent[m], received[m]) *
                        element;  // equal, but for the numbers that planning makes up
        }
        target += received[m] * element;
    }
    exchange_.end_messages();
    machine_.copy(stream(), own_target, own, own_bytes);
}

void CudaBackend::reduce_loss(const Instruction&, const std::vector<int>& members, Tag) {
    write(loss_sum_);
    exchange_.all_reduce(stream(), group_of(members), core::DataType::fp32, loss_sum_, 1, false);
}

void CudaBackend::reduce_squares(const Instruction&, const std::vector<int>& members, Tag) {
    write(norms_);
    exchange_.all_reduce(stream(), group_of(members), core::DataType::fp32, squares(), 1, false);
}

// Whether a gradient of any rank is no number.
void CudaBackend::agree_on_gradients() {
    has_agreed_ = true;
    if (!all_ranks_.empty())
        exchange_.all_reduce(machine_.stream(schedule::Stream::compute), group_of(all_ranks_),
                             core::DataType::fp32, bad(), 1, true);
}

}  // namespace exec::cuda
