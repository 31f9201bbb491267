#include "exec/runtime/memory.h"

#include <algorithm>
#include <cstdlib>

#include <fmt/core.h>

#include "core/diagnostics.h"

namespace exec {

HostBlocks::~HostBlocks() {
    for (const auto& [size, blocks] : unused_)
        for (void* block : blocks) std::free(block);
}

void* HostBlocks::take(std::size_t bytes) {
    if (const auto unused = unused_.find(block_size(bytes));
        unused != unused_.end() && !unused->second.empty()) {
        void* block = unused->second.back();
        unused->second.pop_back();
        return block;
    }
    return std::aligned_alloc(64, block_size(bytes));
}

void HostBlocks::give_back(std::size_t bytes, void* block) { unused_[block_size(bytes)].push_back(block); }

void* MemoryAccount::take(schedule::MemoryKind kind, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    void* block = blocks_->take(bytes);
    if (!block) return nullptr;
    held_[core::position_of(kind)] += bytes;
    total_ += bytes;
    if (total_ > peak_) {
        peak_ = total_;
        at_peak_ = held_;
    }
    if (keeps_samples_) sample();
    return block;
}

void MemoryAccount::give_back(schedule::MemoryKind kind, std::size_t bytes, void* block) {
    const std::lock_guard lock(mutex_);
    blocks_->give_back(bytes, block);
    held_[core::position_of(kind)] -= bytes;
    total_ -= bytes;
    if (keeps_samples_) sample();
}

void MemoryAccount::sample() {
    schedule::MemorySample now;
    now.time =
        core::Seconds(std::chrono::duration<double>(std::chrono::steady_clock::now() - origin_).count());
    for (std::size_t i = 0; i < held_.size(); ++i) now.bytes[i] = core::Bytes(held_[i]);
    samples_.push_back(now);
}

void MemoryAccount::start_samples(std::chrono::steady_clock::time_point origin) {
    const std::lock_guard lock(mutex_);
    origin_ = origin;
    samples_.clear();
    samples_.reserve(4096);
    keeps_samples_ = true;
    sample();
}

std::vector<schedule::MemorySample> MemoryAccount::stop_samples() {
    const std::lock_guard lock(mutex_);
    keeps_samples_ = false;
    return std::move(samples_);
}

core::Bytes MemoryAccount::held() const {
    const std::lock_guard lock(mutex_);
    return core::Bytes(total_);
}

core::Bytes MemoryAccount::peak() const {
    const std::lock_guard lock(mutex_);
    return core::Bytes(peak_);
}

std::array<core::Bytes, schedule::memory_kind_count> MemoryAccount::at_peak() const {
    const std::lock_guard lock(mutex_);
    std::array<core::Bytes, schedule::memory_kind_count> result;
    for (std::size_t i = 0; i < result.size(); ++i) result[i] = core::Bytes(at_peak_[i]);
    return result;
}

Buffer::Buffer(std::shared_ptr<MemoryAccount> account, schedule::MemoryKind kind, std::size_t bytes)
    : account_(std::move(account)), kind_(kind), bytes_(bytes) {
    data_ = account_->take(kind_, bytes_);
    if (!data_)
        throw core::MachineError(fmt::format("{}: no memory for {} bytes of {} beside the {} held",
                                             account_->owner(), bytes, schedule::name_of(kind),
                                             core::format(account_->held())));
}

Buffer::~Buffer() { account_->give_back(kind_, bytes_, data_); }

BufferPointer make_buffer(const std::shared_ptr<MemoryAccount>& account, schedule::MemoryKind kind,
                          std::size_t bytes) {
    return std::make_shared<Buffer>(account, kind, bytes);
}

}  // namespace exec
