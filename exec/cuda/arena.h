// All device memory of a rank as one block, laid out before the first step.
//
// A step asks for the same arrays in the same order every time. Planning performs one without a device, notes
// when each array is taken, used and given back, and gives it an offset. Arrays that follow one another in
// the same memory are used on different streams: where the Program's own edges do not order their uses, the
// plan adds edges. The same notes prove that no two instructions touch an array unordered, one of them
// writing: what the Program misses becomes an edge too, and is counted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "exec/cuda/rendezvous.h"
#include "exec/runtime/memory.h"
#include "schedule/program/program.h"

namespace exec::cuda {

// Of offsets: what cuBLASLt and vector accesses like best.
inline constexpr std::size_t alignment = 256;
inline std::size_t rounded(std::size_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

struct ArenaPlan {
    std::size_t bytes = 0;                    // of the arena
    std::size_t largest_sum = 0;              // most bytes held at once: what no layout can be below
    std::vector<std::size_t> sizes, offsets;  // by order of being taken: set-up first, then those of a step
    std::size_t set_up = 0;                   // how many are taken before the first step
    std::vector<std::vector<std::uint32_t>>
        waits;  // by instruction: instructions on other streams to wait for beyond the Program's edges
    std::size_t reuse_edges = 0,
                data_edges =
                    0;  // of `waits`: for memory used again, and for data that the Program left unordered
    std::vector<std::pair<std::uint32_t, std::uint32_t>> unordered;  // the latter, earlier instruction first
};

class ArenaPlanner : public BlockSource {
public:
    // `has_channels`: messages are in order on their channels only, and no instruction waits for a send.
    explicit ArenaPlanner(const schedule::RankProgram& list, bool has_channels = false)
        : list_(list), lanes_(lanes_of(list, has_channels)), has_channels_(has_channels) {}

    void* take(std::size_t bytes) override;
    void give_back(std::size_t bytes, void* block) override;

    void begin_step();  // the first ends set-up, the second begins the step that is planned, the third checks
                        // that it repeats
    void begin(std::uint32_t instruction) { instruction_ = instruction; }
    // The array that `address` lies in is read or written by the instruction begun last. Null and foreign
    // addresses are ignored.
    void read(const void* address) { use(address, false, 0); }
    void write(const void* address) { use(address, true, 0); }
    // So many bytes of it alone: other instructions may touch the rest meanwhile.
    void write_part(const void* address, std::size_t bytes) { use(address, true, bytes); }

    ArenaPlan plan() const;

private:
    struct Use {
        std::uint32_t instruction;
        bool writes;
        std::size_t begin, end;  // of its bytes
    };
    struct Array {
        std::size_t bytes = 0;
        std::uint64_t address = 0;
        std::int64_t taken = 0,
                     last = 0;  // moments; `last`: given back, or used for the last time when that is later
        bool is_given_back = false;
        std::vector<Use> uses;  // of the planned step
    };
    void use(const void* address, bool writes, std::size_t bytes);
    void lay_out(ArenaPlan& plan, const std::vector<std::size_t>& planned) const;
    void order_reuse(ArenaPlan& plan, const std::vector<std::size_t>& planned) const;
    void order_data(ArenaPlan& plan, const std::vector<std::size_t>& planned) const;

    const schedule::RankProgram& list_;
    const Lanes lanes_;
    const bool has_channels_;
    std::vector<Array> arrays_;
    std::map<std::uint64_t, std::size_t> by_address_;
    std::uint64_t next_address_ = std::uint64_t{1} << 40;  // of no memory
    std::int64_t moment_ = 0;
    int steps_ = 0;
    std::size_t first_of_step_[3] = {0, 0, 0};
    std::uint32_t instruction_ = 0;
};

// Gives out `memory` at the offsets of the plan.
class ArenaBlocks : public BlockSource {
public:
    ArenaBlocks(const ArenaPlan& plan, void* memory) : plan_(plan), memory_(static_cast<char*>(memory)) {}
    void begin_step() { next_ = plan_.set_up; }
    void* take(std::size_t bytes) override;
    void give_back(std::size_t, void*) override {}

private:
    const ArenaPlan& plan_;
    char* const memory_;
    std::size_t next_ = 0;
};

}  // namespace exec::cuda
