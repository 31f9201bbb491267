// The rules of verify(Program), one member function each; see verify_program.cpp for their promises
// together.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "schedule/program/program.h"
#include "schedule/verify.h"

namespace schedule {

class ProgramChecker {
public:
    explicit ProgramChecker(const Program& program);
    std::vector<Violation> run();

private:
    struct ListPosition {
        std::int32_t list = -1;  // class
        std::int32_t index = -1;
    };
    // For one (stage, micro-batch): how far each pass has come and its latest step.
    struct Progress {
        std::int32_t forward = 0, backward = 0, input = 0, weight = 0;  // next operator expected
        std::optional<std::int32_t> gathered{};  // operator of the tensor-parallel gather just before
        std::int32_t forward_steps = 0, backward_steps = 0, input_steps = 0, weight_steps = 0;
        std::int32_t last_forward = -1, last_backward = -1,
                     last_weight = -1;  // instruction; backward: also input
        std::int32_t receive = -1, receive_gradient = -1;
        std::int32_t rotation = -1;  // of a ring, beside the last piece of a backward pass
    };

    // A product in pieces and its exchange, until the last of them.
    struct Pieces {
        std::vector<std::int32_t> products;  // instructions
        std::int32_t exchanges = 0, last_exchange = -1, weights = -1;
    };
    // Of an attention in a ring, until the last of them.
    struct RingPieces {
        std::vector<std::int32_t> pieces, rotations;
    };

    const RankProgram& list(std::int32_t c) const { return program_.classes[c]; }
    Progress& progress(std::int32_t stage, std::int32_t micro_batch) {
        return progress_[stage * program_.micro_batches + micro_batch];
    }
    void report(const char* rule, std::int32_t c, std::int32_t index, const std::string& what);
    void report(const char* rule, std::int32_t c, const std::string& what);

    bool check_structure();  // "structure", "placement": indices mean something, work stands on the rank of
                             // its stage
    void check_passes(std::int32_t c);   // "completeness", "order": every pass covers its stage once, each
                                         // step after what it needs
    void check_complete();               // "completeness": every micro-batch is finished on every stage
    void check_transfers();              // "transfers": sends and receives match one to one
    void check_collectives();            // "collectives": members agree on order and size
    void check_buffers(std::int32_t c);  // "buffers": taken once, given back once, in this order
    void check_update(std::int32_t c);   // "update": gradients are reduced, then each bucket is updated once
    void check_progress();               // "progress": nothing waits for ever

    bool check_counts();  // ... of micro-batches, stages and ranks
    void check_instruction(std::int32_t c, std::int32_t n);

    void find_clocks(std::int32_t c);
    // Has instruction `before` ended whenever `after` starts?
    bool is_ordered(std::int32_t c, std::int32_t before, std::int32_t after) const;
    void need(std::int32_t c, std::int32_t before, std::int32_t after, const char* what);
    void step_forward(std::int32_t c, std::int32_t i);
    void step_backward(std::int32_t c, std::int32_t i);
    void step_again(std::int32_t c, std::int32_t i, Progress& progress);  // recompute
    // A step of a product in pieces, of which `expected` is the next operator of the pass and `latest` its
    // latest step; both are left as they are until the last.
    void step_piece(std::int32_t c, std::int32_t i, std::int32_t& expected, std::int32_t& latest);
    // The same of an attention in a ring; `rotation`: what passes on beside its last piece.
    void step_ring(std::int32_t c, std::int32_t i, std::int32_t& expected, std::int32_t& latest,
                   std::int32_t& rotation);
    bool is_in_ring(const Instruction& i) const {
        return i.collective == CollectiveKind::rotate || rings_.contains({i.stage, i.micro_batch});
    }
    std::vector<std::int32_t> tied_ranks(std::int32_t c, const Instruction& i) const;
    // Does the micro-batch pass through the stage? In a bidirectional schedule each goes one way.
    bool passes(std::int32_t stage, std::int32_t micro_batch) const {
        const std::int32_t within = micro_batch - program_.first_micro_batch(stage);
        return within >= 0 && within < program_.micro_batches_of_stage();
    }
    // A bucket's gradient in one step: its collectives and its update.
    struct BucketUpdate {
        int data = 0, scatter = 0, replica = 0, tensor = 0, tied = 0, gathered_before = 0, gathered_after = 0;
        std::int32_t step = -1;
        std::int32_t returned = -1;      // the copy from the host that updates
        std::vector<std::int32_t> sent;  // copies to it
        std::int32_t fetched = -1;       // the latest copy from the host that keeps parameters
        std::vector<std::int32_t> reductions;
    };
    void add_bucket_copy(std::int32_t c, std::int32_t n, BucketUpdate& update);
    void add_bucket_collective(std::int32_t c, std::int32_t n, BucketUpdate& update);
    // `begun`: the first instruction of each pass that makes gradients of the bucket, in list order.
    void check_copies(std::int32_t c, std::size_t b, const BucketUpdate& update,
                      const std::vector<std::int32_t>& begun);
    void check_bucket_update(std::int32_t c, std::size_t b, const BucketUpdate& update,
                             const std::vector<std::int32_t>& begun);
    void check_clipping(std::int32_t c);          // "update" with gradient clipping
    void check_update_norms(std::int32_t c);      // "update" with LAMB
    void check_updates_between(std::int32_t c);   // "update" of an asynchronous schedule
    bool has_transfer(std::int32_t stage) const;  // from the stage before
    bool is_boundary_here(std::int32_t stage) const;
    bool has_operators() const { return !program_.model_hash.empty(); }
    std::size_t transfer_key(const Instruction& i) const;

    const Program& program_;
    std::vector<Violation> violations_;
    bool trains_ = false;
    std::vector<Progress> progress_;
    std::map<std::pair<std::int32_t, std::int32_t>, Pieces> pieces_;  // by stage and micro-batch
    std::map<std::pair<std::int32_t, std::int32_t>, RingPieces> rings_;
    // clocks_[i][s]: one more than the greatest index on stream s that has ended when instruction i of the
    // current class starts.
    std::vector<std::array<std::uint32_t, stream_count>> clocks_;
    // OffloadCopies of one (stage, micro-batch), by the first operator of their unit.
    struct OffloadCopies {
        std::int32_t end = 0, out = -1, back = -1;  // end of the unit's operators; instructions
    };
    std::map<std::tuple<std::int32_t, std::int32_t, std::int32_t>, OffloadCopies> copies_;
    void check_copy(std::int32_t c, std::int32_t i);
    void need_loaded(std::int32_t c, std::int32_t i);
    std::vector<ListPosition> sends_, receives_;  // by payload, boundary and micro-batch
};

}  // namespace schedule
