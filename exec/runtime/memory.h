// What a rank holds: every array the executor makes is counted by kind, so that the measured peak is a fact
// and not an estimate.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "core/units.h"
#include "exec/tensor_view.h"
#include "schedule/program/program.h"
#include "schedule/program/timeline.h"

namespace exec {

// Where arrays lie. Called by one thread at a time.
class BlockSource {
public:
    virtual ~BlockSource() = default;
    // Null when there is no more.
    virtual void* take(std::size_t bytes) = 0;
    virtual void give_back(std::size_t bytes, void* block) = 0;
};

// Host memory, 64-byte aligned. Blocks given back are used again for arrays of the same size (every step asks
// for the same sizes), since a fresh block costs page faults.
class HostBlocks : public BlockSource {
public:
    ~HostBlocks() override;
    void* take(std::size_t bytes) override;
    void give_back(std::size_t bytes, void* block) override;

private:
    static std::size_t block_size(std::size_t bytes) { return bytes == 0 ? 64 : (bytes + 63) / 64 * 64; }
    std::map<std::size_t, std::vector<void*>> unused_;  // by size
};

// Counts of one rank. Arrays may be given back by another rank's thread (a message is, by its receiver),
// hence the lock.
class MemoryAccount {
public:
    MemoryAccount(std::string owner, std::shared_ptr<BlockSource> blocks)
        : owner_(std::move(owner)), blocks_(std::move(blocks)) {}
    MemoryAccount(const MemoryAccount&) = delete;
    MemoryAccount& operator=(const MemoryAccount&) = delete;

    // Null when the machine has no more.
    void* take(schedule::MemoryKind kind, std::size_t bytes);
    void give_back(schedule::MemoryKind kind, std::size_t bytes, void* block);

    // From now on every change is kept as a sample, in seconds since `origin`; the first sample is what is
    // held now.
    void start_samples(std::chrono::steady_clock::time_point origin);
    std::vector<schedule::MemorySample> stop_samples();

    core::Bytes held() const;
    core::Bytes peak() const;
    std::array<core::Bytes, schedule::memory_kind_count> at_peak() const;
    const std::string& owner() const { return owner_; }

private:
    void sample();

    const std::string owner_;
    const std::shared_ptr<BlockSource> blocks_;
    mutable std::mutex mutex_;
    std::array<std::int64_t, schedule::memory_kind_count> held_{}, at_peak_{};
    std::int64_t total_ = 0, peak_ = 0;
    bool keeps_samples_ = false;
    std::chrono::steady_clock::time_point origin_;
    std::vector<schedule::MemorySample> samples_;
};

// One counted array, in the backend's memory. Too little memory is a core::MachineError that says how much
// was wanted by whom.
class Buffer {
public:
    Buffer(std::shared_ptr<MemoryAccount> account, schedule::MemoryKind kind, std::size_t bytes);
    ~Buffer();
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    std::size_t bytes() const { return bytes_; }
    void* data() { return data_; }
    TensorView view(core::DataType type, const TensorShape& shape) { return {data_, type, shape}; }
    // All of it as a flat array.
    TensorView view(core::DataType type) {
        return {data_, type, std::int64_t(bytes_) / core::bytes_per_element(type)};
    }
    std::span<float> span() { return {view(core::DataType::fp32).floats(), bytes_ / sizeof(float)}; }

private:
    std::shared_ptr<MemoryAccount> account_;
    schedule::MemoryKind kind_;
    std::size_t bytes_;
    void* data_;
};
using BufferPointer = std::shared_ptr<Buffer>;

BufferPointer make_buffer(const std::shared_ptr<MemoryAccount>& account, schedule::MemoryKind kind,
                          std::size_t bytes);

}  // namespace exec
