// Runs a kernel's body on the host as a GPU would: every thread of a block is a fibre, barriers and warp
// exchanges switch between them. A barrier that part of a block does not reach is reported, as is an exchange
// that part of a warp does not take part in.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace exec::cuda::emulation {

class EmulatedBlock;

// What a thread shows to the others of its warp, and what all 32 show.
using LaneWords = std::array<std::uint32_t, 6>;
using WarpWords = std::array<LaneWords, 32>;

struct EmulatedThread {
    static constexpr bool is_emulated = true;
    EmulatedBlock* owner;
    int index;
    int count;
    long long block_index, block_count;
    unsigned char* memory;

    int thread() const { return index; }
    int threads() const { return count; }
    long long block() const { return block_index; }
    long long blocks() const { return block_count; }
    void synchronize() const;
    float exchange(float x, int mask) const;
    unsigned ballot(bool vote) const;
    void share(const LaneWords& own, WarpWords& all) const;
    template <class T>
    T* shared() const {
        return reinterpret_cast<T*>(memory);
    }
};

// In which order blocks, and between two barriers the threads of a block, run. No kernel's result may depend
// on it.
enum class ThreadOrder : std::uint8_t { ascending, descending, random };

// The order of what this host thread emulates, as long as it lives.
class ScopedThreadOrder {
public:
    explicit ScopedThreadOrder(ThreadOrder order, std::uint64_t seed = 1);
    ~ScopedThreadOrder();
    ScopedThreadOrder(const ScopedThreadOrder&) = delete;
    ScopedThreadOrder& operator=(const ScopedThreadOrder&) = delete;
};

// `is_cooperative`: the body has barriers or exchanges; without them threads simply run one after another.
void emulate(long long blocks, int threads, std::size_t shared_bytes, bool is_cooperative,
             const std::function<void(const EmulatedThread&)>& body);

}  // namespace exec::cuda::emulation
