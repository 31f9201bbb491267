// The parameters, gradients and optimizer state of one bucket on one rank: flat arrays, whole or this rank's
// piece, as the plan shards them.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "exec/backend/parameter_updates.h"
#include "exec/backend/rank_arrays.h"
#include "exec/checkpoint/checkpoint.h"
#include "exec/runtime/memory.h"
#include "exec/runtime/parameters.h"
#include "model/model_graph.h"
#include "schedule/program/program.h"

namespace exec {

// Which of the equal parts of a bucket's state rank `rank` keeps: its position among the ranks that share it.
int piece_of(const schedule::Plan& plan, const schedule::ParameterBucket& bucket, int rank);

class BucketState {
public:
    // `piece`: which of the `pieces` equal parts of the padded array this rank owns. `host`: of an optimizer
    // there (Plan::optimizer_offload).
    BucketState(const model::ModelGraph& graph, const schedule::Plan& plan,
                const schedule::ParameterBucket& bucket, const ParameterShare& share, int piece,
                std::uint64_t seed, bool trains, std::shared_ptr<MemoryAccount> account,
                std::shared_ptr<MemoryAccount> host, RankArrays& arrays);

    // Whole arrays. Sharded parameters exist between gather and release_parameters; a sharded gradient from
    // its first contribution to reduce.
    TensorView whole_parameters();
    TensorView whole_gradient();
    TensorView piece_gradient();  // this rank's piece, after the reduction
    // The parameters as they are now: an update goes on in the same array, and leaves those who hold a
    // version before it a copy (weight stashing, arXiv 1806.03377).
    using Version = std::shared_ptr<const BufferPointer>;
    Version version();
    void begin_gather();  // makes room, with this rank's piece in place
    void release_parameters();
    void finish_gather();          // ... and drops a copy of that
    void finish_reduce_scatter();  // the piece of the whole gradient is this rank's sum: kept or added up, as
                                   // the plan shards

    // An optimizer on the host: the gradient of what this rank updates goes there, and its values come back.
    // Parameters that stay there come before each gather; their gradients add up there.
    void send_gradient_to_host();
    void load_parameters_from_host();

    void zero_gradients();
    // What this rank updates, appended.
    void list_updates(const schedule::Optimizer& optimizer, std::vector<UpdateRange>& ranges);
    // LAMB: two sums for each parameter, between update_norm and optimizer_step.
    TensorView begin_update_sums();
    TensorView update_sums() const;
    void end_update_sums() { update_sums_.reset(); }

    // What this rank owns of each parameter, from its element `first` of this rank's share on; read back from
    // the backend.
    struct Owned {
        model::ParameterId parameter;
        std::int64_t first = 0;
        std::vector<float> values, gradients;
    };
    std::vector<Owned> owned();

    // The same for what an update changes and the next one reads: the parameters themselves and the
    // optimizer's arrays.
    struct Trained {
        model::ParameterId parameter;
        std::int64_t first = 0;
        std::vector<float> values, first_moment, second_moment;  // empty where the optimizer has none
    };
    std::vector<Trained> trained() const;
    // `read` fills elements from `first` on of this rank's share of a parameter.
    using Read = std::function<void(model::ParameterId parameter, StateKind kind, std::int64_t first,
                                    std::span<float> into)>;
    void restore(const Read& read);

    const schedule::ParameterBucket& bucket() const { return bucket_; }

private:
    bool shards(schedule::Sharding what) const { return plan_.sharding >= what && bucket_.pieces > 1; }
    BufferPointer array(schedule::MemoryKind kind, core::DataType type, std::size_t elements) const;
    BufferPointer update_array(core::DataType type) const;  // of what this rank updates, where it is updated
    TensorView updated_gradient();                          // what an update reads
    std::size_t piece_begin() const { return piece_ * piece_size_; }
    void upload_parameters(std::span<const float> whole);  // and the master copy
    TensorView owned_parameters() const;
    TensorView piece_of(const TensorView& whole) const { return whole.part(piece_begin(), piece_size_); }
    // Parts of parameters among the elements that this rank updates: visit(parameter, first of its elements,
    // place among the owned, count).
    template <class Visit>
    void for_each_owned(const Visit& visit) const;

    const model::ModelGraph& graph_;
    const schedule::Plan& plan_;
    const schedule::ParameterBucket& bucket_;
    const std::shared_ptr<MemoryAccount> account_, host_;
    RankArrays& arrays_;
    const int piece_;
    std::size_t padded_ = 0, piece_size_ = 0;
    BufferPointer whole_parameters_, piece_parameters_, whole_gradient_, piece_gradient_, master_,
        first_state_, second_state_, update_sums_;
    BufferPointer host_gradient_, host_parameters_;
    bool has_sent_gradient_ = false;          // since gradients were zeroed
    std::shared_ptr<BufferPointer> version_;  // null: nobody has asked for the one at hand
};

}  // namespace exec
