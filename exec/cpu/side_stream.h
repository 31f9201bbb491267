// A thread that works through a queue beside the rank's own: exchange of buckets while the rank computes.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "exec/runtime/memory.h"

namespace exec::cpu {

class SideStream {
public:
    SideStream();
    ~SideStream();  // drops what has not begun

    // Behind everything added before; the number to wait for.
    std::uint64_t add(std::function<void()> work);
    // Returns when the work of that number, and all before it, is done; throws what one of them threw.
    void wait_for(std::uint64_t number);
    bool is_done(std::uint64_t number);
    std::uint64_t newest();
    // What has begun ends, the rest is dropped. Never throws.
    void stop();

private:
    void run();

    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::function<void()>> queue_;
    std::uint64_t added_ = 0, done_ = 0;
    bool is_ending_ = false;
    std::exception_ptr failure_;
    std::thread thread_;
};

// Blocks that work in the queue may still use are handed out again only when it is done.
class DeferredBlocks : public BlockSource {
public:
    explicit DeferredBlocks(std::shared_ptr<SideStream> stream) : stream_(std::move(stream)) {}
    ~DeferredBlocks() override;  // the stream must have ended
    DeferredBlocks(const DeferredBlocks&) = delete;
    DeferredBlocks& operator=(const DeferredBlocks&) = delete;
    void* take(std::size_t bytes) override;
    void give_back(std::size_t bytes, void* block) override;

private:
    struct Waiting {
        std::uint64_t number = 0;
        std::size_t bytes = 0;
        void* block = nullptr;
    };
    HostBlocks blocks_;
    const std::shared_ptr<SideStream> stream_;
    std::deque<Waiting> waiting_;
};

}  // namespace exec::cpu
