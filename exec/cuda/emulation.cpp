// A block's threads as fibres of one host thread, switched at barriers and exchanges.
#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "core/diagnostics.h"
#include "exec/cuda/body/emulated.h"

namespace exec::cuda::emulation {

namespace {

constexpr std::size_t stack_bytes = 64 * 1024;

enum class Waits { nothing, barrier, exchange };

struct Fibre {
    ucontext_t context;
    std::unique_ptr<char[]> stack;
    Waits waits = Waits::nothing;
    bool is_done = false;
    float given = 0;
};

}  // namespace

class EmulatedBlock {
public:
    EmulatedBlock(int threads, std::size_t shared_bytes) : fibres_(static_cast<std::size_t>(threads)), memory_(shared_bytes + 16) {
        for (Fibre& fibre : fibres_) fibre.stack.reset(new char[stack_bytes]);
    }

    void perform(long long block, long long blocks, const std::function<void(const EmulatedThread&)>& body) {
        // What the block before left must not be mistaken for something written.
        std::memset(memory_.data(), 0xFF, memory_.size());
        body_ = &body;
        for (std::size_t i = 0; i < fibres_.size(); ++i) prepare(fibres_[i], static_cast<unsigned>(i));
        block_ = block;
        blocks_ = blocks;
        for (bool has_work = true; has_work;) {
            has_work = false;
            for (current_ = 0; current_ < fibres_.size(); ++current_) {
                Fibre& fibre = fibres_[current_];
                if (fibre.is_done || fibre.waits != Waits::nothing) continue;
                swapcontext(&scheduler_, &fibre.context);
                has_work = true;
            }
            has_work = release() || has_work;
        }
        for (const Fibre& fibre : fibres_)
            core::require(fibre.is_done, "every thread of a block reaches its barriers and every thread of a warp its exchanges");
    }

    void wait(int index, Waits what) {
        Fibre& fibre = fibres_[static_cast<std::size_t>(index)];
        fibre.waits = what;
        swapcontext(&fibre.context, &scheduler_);
    }

    float exchange(int index, float x, int mask) {
        fibres_[static_cast<std::size_t>(index)].given = x;
        wait(index, Waits::exchange);
        const float result = fibres_[static_cast<std::size_t>(index ^ mask)].given;
        wait(index, Waits::exchange);  // until all have read
        return result;
    }

    unsigned ballot(int index, bool vote) {
        fibres_[static_cast<std::size_t>(index)].given = vote ? 1.0f : 0.0f;
        wait(index, Waits::exchange);
        unsigned votes = 0;
        for (int lane = 0; lane < 32; ++lane)
            if (fibres_[static_cast<std::size_t>(index / 32 * 32 + lane)].given != 0.0f) votes |= 1u << lane;
        wait(index, Waits::exchange);
        return votes;
    }

private:
    void prepare(Fibre& fibre, unsigned index) {
        fibre.is_done = false;
        fibre.waits = Waits::nothing;
        getcontext(&fibre.context);
        fibre.context.uc_stack.ss_sp = fibre.stack.get();
        fibre.context.uc_stack.ss_size = stack_bytes;
        fibre.context.uc_link = &scheduler_;
        const auto self = reinterpret_cast<std::uintptr_t>(this);
        makecontext(&fibre.context, reinterpret_cast<void (*)()>(&EmulatedBlock::enter), 3, static_cast<unsigned>(self >> 32), static_cast<unsigned>(self), index);
    }

    static void enter(unsigned high, unsigned low, unsigned index) {
        auto* self = reinterpret_cast<EmulatedBlock*>(static_cast<std::uintptr_t>(high) << 32 | low);
        const auto aligned = (reinterpret_cast<std::uintptr_t>(self->memory_.data()) + 15) / 16 * 16;
        const EmulatedThread thread{self, static_cast<int>(index), static_cast<int>(self->fibres_.size()), self->block_, self->blocks_,
                                    reinterpret_cast<unsigned char*>(aligned)};
        (*self->body_)(thread);
        self->fibres_[index].is_done = true;
    }

    // A barrier opens when all threads that have not ended wait there; an exchange when all of a warp do.
    bool release() {
        bool opens = true, any = false;
        for (const Fibre& fibre : fibres_) opens = opens && (fibre.is_done || fibre.waits == Waits::barrier);
        if (opens)
            for (Fibre& fibre : fibres_) {
                any = any || fibre.waits == Waits::barrier;
                fibre.waits = Waits::nothing;
            }
        for (std::size_t first = 0; first < fibres_.size(); first += 32) {
            const auto begin = fibres_.begin() + static_cast<std::ptrdiff_t>(first);
            const auto end = begin + static_cast<std::ptrdiff_t>(std::min<std::size_t>(32, fibres_.size() - first));
            if (!std::all_of(begin, end, [](const Fibre& fibre) { return !fibre.is_done && fibre.waits == Waits::exchange; })) continue;
            std::for_each(begin, end, [](Fibre& fibre) { fibre.waits = Waits::nothing; });
            any = true;
        }
        return any;
    }

    std::vector<Fibre> fibres_;
    std::vector<unsigned char> memory_;
    ucontext_t scheduler_{};
    const std::function<void(const EmulatedThread&)>* body_ = nullptr;
    long long block_ = 0, blocks_ = 0;
    std::size_t current_ = 0;
};

void EmulatedThread::synchronize() const { owner->wait(index, Waits::barrier); }
float EmulatedThread::exchange(float x, int mask) const { return owner->exchange(index, x, mask); }
unsigned EmulatedThread::ballot(bool vote) const { return owner->ballot(index, vote); }

void emulate(long long blocks, int threads, std::size_t shared_bytes, bool is_cooperative, const std::function<void(const EmulatedThread&)>& body) {
    if (!is_cooperative) {
        std::vector<unsigned char> memory(shared_bytes + 1);
        for (long long block = 0; block < blocks; ++block)
            for (int thread = 0; thread < threads; ++thread) body({nullptr, thread, threads, block, blocks, memory.data()});
        return;
    }
    EmulatedBlock block(threads, shared_bytes);
    for (long long b = 0; b < blocks; ++b) block.perform(b, blocks, body);
}

}  // namespace exec::cuda::emulation
