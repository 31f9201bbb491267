#include "exec/cpu/side_stream.h"

#include <utility>

namespace exec::cpu {

SideStream::SideStream() : thread_([this] { run(); }) {}

SideStream::~SideStream() { stop(); }

void SideStream::run() {
    std::unique_lock lock(mutex_);
    while (true) {
        changed_.wait(lock, [&] { return is_ending_ || !queue_.empty(); });
        if (is_ending_) return;
        const std::function<void()> work = std::move(queue_.front());
        queue_.pop_front();
        lock.unlock();
        std::exception_ptr failure;
        try {
            work();
        } catch (...) {
            failure = std::current_exception();
        }
        lock.lock();
        ++done_;
        if (failure) {
            failure_ = failure;
            queue_.clear();
        }
        changed_.notify_all();
        if (failure) return;
    }
}

std::uint64_t SideStream::add(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
    queue_.push_back(std::move(work));
    changed_.notify_all();
    return ++added_;
}

void SideStream::wait_for(std::uint64_t number) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return failure_ || done_ >= number; });
    if (failure_) std::rethrow_exception(failure_);
}

bool SideStream::is_done(std::uint64_t number) {
    const std::lock_guard lock(mutex_);
    return done_ >= number;
}

std::uint64_t SideStream::newest() {
    const std::lock_guard lock(mutex_);
    return added_;
}

void SideStream::stop() {
    {
        const std::lock_guard lock(mutex_);
        is_ending_ = true;
        queue_.clear();
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
}

DeferredBlocks::~DeferredBlocks() {
    for (const Waiting& waiting : waiting_) blocks_.give_back(waiting.bytes, waiting.block);
}

void* DeferredBlocks::take(std::size_t bytes) {
    while (!waiting_.empty() && stream_->is_done(waiting_.front().number)) {
        blocks_.give_back(waiting_.front().bytes, waiting_.front().block);
        waiting_.pop_front();
    }
    return blocks_.take(bytes);
}

void DeferredBlocks::give_back(std::size_t bytes, void* block) {
    const std::uint64_t number = stream_->newest();
    if (waiting_.empty() && stream_->is_done(number)) blocks_.give_back(bytes, block);
    else waiting_.push_back({number, bytes, block});
}

}  // namespace exec::cpu
