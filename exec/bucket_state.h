// The parameters, gradients and optimizer state of one bucket on one rank: flat arrays, whole or this rank's piece, as the plan shards them.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "exec/memory.h"
#include "model/model_graph.h"
#include "schedule/program.h"

namespace exec {

class BucketState {
public:
    // `piece`: which of the `pieces` equal parts of the padded array this rank owns.
    BucketState(const model::ModelGraph& graph, const schedule::Plan& plan, const schedule::ParameterBucket& bucket, int tensor_rank, int piece,
                std::uint64_t seed, bool trains, std::shared_ptr<MemoryAccount> account);

    // Whole arrays. Sharded parameters exist between gather and release_parameters; a sharded gradient from its first contribution to reduce.
    float* parameters();
    float* gradient();
    std::span<float> whole_gradient() { return {gradient(), padded_}; }
    std::span<float> piece_gradient();  // this rank's piece, after the reduction
    void begin_gather();                // makes room, with this rank's piece in place
    void release_parameters();
    void finish_reduce_scatter();  // the piece of the whole gradient is this rank's sum: kept or added up, as the plan shards
    std::span<float> whole_parameters() { return {parameters(), padded_}; }

    void zero_gradients();
    void update(const schedule::Optimizer& optimizer, std::int64_t step);

    // For what this rank updates: visit(parameter, first of its elements on this rank, values, gradients, count, place in the state arrays).
    template <class Visit>
    void for_each_owned(const Visit& visit);

    const schedule::ParameterBucket& bucket() const { return bucket_; }

private:
    bool shards(schedule::Sharding what) const { return plan_.shards(what); }
    BufferPointer array(schedule::MemoryKind kind, std::size_t elements) const;
    std::size_t piece_begin() const { return static_cast<std::size_t>(piece_) * piece_size_; }
    float* owned_parameters();

    const model::ModelGraph& graph_;
    const schedule::Plan& plan_;
    const schedule::ParameterBucket& bucket_;
    const std::shared_ptr<MemoryAccount> account_;
    const int piece_;
    std::size_t padded_ = 0, piece_size_ = 0;
    BufferPointer whole_parameters_, piece_parameters_, whole_gradient_, piece_gradient_, first_state_, second_state_;
};

template <class Visit>
void BucketState::for_each_owned(const Visit& visit) {
    const bool is_divided = shards(schedule::Sharding::optimizer);
    const std::size_t begin = is_divided ? piece_begin() : 0, end = is_divided ? begin + piece_size_ : padded_;
    float* parameters = owned_parameters();
    float* gradients = piece_gradient().data();
    for (std::size_t i = 0; i < bucket_.parameters.size(); ++i) {
        const auto first = static_cast<std::size_t>(bucket_.offsets[i]);
        const auto last = static_cast<std::size_t>(i + 1 < bucket_.offsets.size() ? bucket_.offsets[i + 1] : bucket_.elements);
        const std::size_t low = std::max(first, begin), high = std::min(last, end);
        if (low >= high) continue;
        visit(bucket_.parameters[i], static_cast<std::int64_t>(low - first), parameters + (low - begin), gradients + (low - begin),
              static_cast<std::int64_t>(high - low), low - begin);
    }
}

}  // namespace exec
