// A block's threads as fibres of one host thread, switched at barriers and exchanges.
#undef _FORTIFY_SOURCE  // whose longjmp refuses to change stacks
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "core/errors.h"
#include "core/index/integers.h"
#include "core/random.h"
#include "exec/cuda/body/emulated.h"

namespace exec::cuda::emulation {

namespace {

constexpr std::size_t stack_bytes = 64 * 1024;

enum class Waits { nothing, barrier, exchange };

struct OrderInForce {
    ThreadOrder order = ThreadOrder::ascending;
    core::Random random{1};
};
thread_local std::optional<OrderInForce> in_force;

// Numbers 0 ... count - 1 in the order in force; a random one is another one every time.
template <class Number>
void arrange(std::vector<Number>& numbers, Number count) {
    numbers.resize(count);
    std::iota(numbers.begin(), numbers.end(), Number{});
    if (!in_force || in_force->order == ThreadOrder::ascending) return;
    if (in_force->order == ThreadOrder::descending) return std::reverse(numbers.begin(), numbers.end());
    for (std::size_t i = numbers.size(); i > 1; --i)
        std::swap(numbers[i - 1], numbers[in_force->random.below(i)]);
}

// Where a stack's work goes on. swapcontext calls the kernel for the signal mask, three quarters of an
// emulated training's time; _setjmp does not. Sanitizers follow the former only.
class Coroutine {
public:
    Coroutine() = default;
    Coroutine(const Coroutine&) = delete;  // a context points into itself
    Coroutine& operator=(const Coroutine&) = delete;

    // The next leave_for() of this coroutine begins at `enter`.
    void begin(void* stack, std::size_t bytes, void (*enter)(unsigned, unsigned, unsigned),
               std::uintptr_t object, unsigned index) {
        getcontext(&context_);
        context_.uc_stack.ss_sp = stack;
        context_.uc_stack.ss_size = bytes;
        context_.uc_link = nullptr;  // `enter` does not return
        makecontext(&context_, reinterpret_cast<void (*)()>(enter), 3, static_cast<unsigned>(object >> 32),
                    static_cast<unsigned>(object), index);
        is_new_ = true;
    }

    // Returns when another coroutine leaves for this one again.
    void leave_for(Coroutine& other) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
        swapcontext(&context_, &other.context_);
#else
        if (_setjmp(jump_) != 0) return;
        if (!other.is_new_) _longjmp(other.jump_, 1);
        other.is_new_ = false;
        setcontext(&other.context_);
#endif
    }

private:
    ucontext_t context_{};
    jmp_buf jump_{};
    bool is_new_ = false;
};

struct Fibre {
    std::unique_ptr<char[]> stack;
    Coroutine place;
    Waits waits = Waits::nothing;
    bool is_done = false;
    float given = 0;
    LaneWords words{};
};

}  // namespace

class EmulatedBlock {
public:
    explicit EmulatedBlock(int threads) : fibres_(threads) {
        for (std::size_t i = 0; i < fibres_.size(); ++i) {
            fibres_[i].stack.reset(new char[stack_bytes]);
            fibres_[i].place.begin(fibres_[i].stack.get(), stack_bytes, &EmulatedBlock::enter,
                                   reinterpret_cast<std::uintptr_t>(this), static_cast<unsigned>(i));
        }
    }

    void perform(long long block, long long blocks, std::size_t shared_bytes,
                 const std::function<void(const EmulatedThread&)>& body) {
        // What the block before left must not be mistaken for something written.
        memory_.assign(shared_bytes + 16, 0xFF);
        body_ = &body;
        for (Fibre& fibre : fibres_) {
            fibre.is_done = false;
            fibre.waits = Waits::nothing;
        }
        block_ = block;
        blocks_ = blocks;
        for (bool has_work = true; has_work;) {
            has_work = false;
            arrange(order_, fibres_.size());
            for (const std::size_t current : order_) {
                Fibre& fibre = fibres_[current];
                if (fibre.is_done || fibre.waits != Waits::nothing) continue;
                scheduler_.leave_for(fibre.place);
                has_work = true;
            }
            has_work = release() || has_work;
        }
        for (const Fibre& fibre : fibres_)
            core::require(
                fibre.is_done,
                "every thread of a block reaches its barriers and every thread of a warp its exchanges");
    }

    void wait(int index, Waits what) {
        Fibre& fibre = fibres_[index];
        fibre.waits = what;
        fibre.place.leave_for(scheduler_);
    }

    float exchange(int index, float x, int mask) {
        fibres_[index].given = x;
        wait(index, Waits::exchange);
        const float result = fibres_[index ^ mask].given;
        wait(index, Waits::exchange);  // until all have read
        return result;
    }

    unsigned ballot(int index, bool vote) {
        fibres_[index].given = vote ? 1.0f : 0.0f;
        wait(index, Waits::exchange);
        unsigned votes = 0;
        for (int lane = 0; lane < 32; ++lane)
            if (fibres_[index / 32 * 32 + lane].given != 0.0f) votes |= 1u << lane;
        wait(index, Waits::exchange);
        return votes;
    }

    void share(int index, const LaneWords& own, WarpWords& all) {
        fibres_[index].words = own;
        wait(index, Waits::exchange);
        for (int lane = 0; lane < 32; ++lane) all[lane] = fibres_[index / 32 * 32 + lane].words;
        wait(index, Waits::exchange);
    }

private:
    static void enter(unsigned high, unsigned low, unsigned index) {
        auto* self = reinterpret_cast<EmulatedBlock*>(static_cast<std::uintptr_t>(high) << 32 | low);
        Fibre& fibre = self->fibres_[index];
        while (true) {  // a round a block
            const auto aligned = (reinterpret_cast<std::uintptr_t>(self->memory_.data()) + 15) / 16 * 16;
            const EmulatedThread thread{
                self,         static_cast<int>(index), core::count_of(self->fibres_),
                self->block_, self->blocks_,           reinterpret_cast<unsigned char*>(aligned)};
            (*self->body_)(thread);
            fibre.is_done = true;
            fibre.place.leave_for(self->scheduler_);
        }
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
            const auto begin = fibres_.begin() + first;
            const auto end = begin + (std::min<std::size_t>(32, fibres_.size() - first));
            if (!std::all_of(begin, end, [](const Fibre& fibre) {
                    return !fibre.is_done && fibre.waits == Waits::exchange;
                }))
                continue;
            std::for_each(begin, end, [](Fibre& fibre) { fibre.waits = Waits::nothing; });
            any = true;
        }
        return any;
    }

    std::vector<Fibre> fibres_;
    std::vector<unsigned char> memory_;
    Coroutine scheduler_;
    const std::function<void(const EmulatedThread&)>* body_ = nullptr;
    long long block_ = 0, blocks_ = 0;
    std::vector<std::size_t> order_;  // of fibres, between two barriers
};

void EmulatedThread::synchronize() const { owner->wait(index, Waits::barrier); }
float EmulatedThread::exchange(float x, int mask) const { return owner->exchange(index, x, mask); }
unsigned EmulatedThread::ballot(bool vote) const { return owner->ballot(index, vote); }
void EmulatedThread::share(const LaneWords& own, WarpWords& all) const { owner->share(index, own, all); }

void emulate(long long blocks, int threads, std::size_t shared_bytes, bool is_cooperative,
             const std::function<void(const EmulatedThread&)>& body) {
    std::vector<long long> block_order;
    arrange(block_order, blocks);
    if (!is_cooperative) {
        std::vector<unsigned char> memory(shared_bytes + 1);
        std::vector<int> thread_order;
        for (const long long block : block_order) {
            arrange(thread_order, threads);
            for (const int thread : thread_order)
                body({nullptr, thread, threads, block, blocks, memory.data()});
        }
        return;
    }
    // A host thread's blocks by their number of threads: stacks and contexts made at every launch would be
    // half of its time.
    thread_local std::map<int, std::unique_ptr<EmulatedBlock>> kept;
    std::unique_ptr<EmulatedBlock>& place = kept[threads];
    // Out of its place while it works: one that fails, with threads that have not ended, is not used again.
    std::unique_ptr<EmulatedBlock> block = std::move(place);
    if (!block) block = std::make_unique<EmulatedBlock>(threads);
    for (const long long b : block_order) block->perform(b, blocks, shared_bytes, body);
    place = std::move(block);
}

ScopedThreadOrder::ScopedThreadOrder(ThreadOrder order, std::uint64_t seed) {
    in_force.emplace(OrderInForce{order, core::Random(seed)});
}
ScopedThreadOrder::~ScopedThreadOrder() { in_force.reset(); }

}  // namespace exec::cuda::emulation
