// What is measured on the card before the first step, and kept for later runs. For files of device/.
#pragma once

#include <cuda_runtime.h>

#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "exec/cuda/device/library_check.cuh"
#include "exec/cuda/device/tuning/choice_cache.h"
#include "exec/cuda/machine.h"

namespace exec::cuda {

// Memory for the time of a measurement; null where there is none left.
class Temporary {
public:
    explicit Temporary(std::size_t bytes) {
        if (cudaMalloc(&data_, bytes) != cudaSuccess) {
            cudaGetLastError();
            data_ = nullptr;
        } else {
            cudaMemset(
                data_, 0x3C,
                bytes);  // small numbers in every precision: products of zeros run faster than real ones
        }
    }
    ~Temporary() { cudaFree(data_); }
    Temporary(const Temporary&) = delete;
    Temporary& operator=(const Temporary&) = delete;
    char* get() const { return static_cast<char*>(data_); }

private:
    void* data_ = nullptr;
};

// Least time of a few calls, all on the default stream.
template <class Call>
float milliseconds_of(const Call& call) {
    cudaEvent_t begin = nullptr, end = nullptr;
    check(cudaEventCreate(&begin), "cudaEventCreate");
    check(cudaEventCreate(&end), "cudaEventCreate");
    float least = std::numeric_limits<float>::max();
    for (int repetition = 0; repetition < 4; ++repetition) {
        check(cudaEventRecord(begin, nullptr), "cudaEventRecord");
        for (int i = 0; i < 2; ++i) call();
        check(cudaEventRecord(end, nullptr), "cudaEventRecord");
        check(cudaEventSynchronize(end), "cudaEventSynchronize");
        float time = 0;
        check(cudaEventElapsedTime(&time, begin, end), "cudaEventElapsedTime");
        if (repetition > 0) least = std::min(least, time / 2);  // the first loads the kernel
    }
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    return least;
}

inline constexpr float clearly_faster =
    0.97f;  // else the library's own order stands, which does not change from run to run

class Tuner {
public:
    // `measures` false: nothing is measured, read or kept.
    Tuner(bool measures, const std::string& identity)
        : measures_(measures),
          cache_(measures ? choice_cache_file(identity) : std::filesystem::path(), identity) {}

    bool measures() const { return measures_; }
    std::optional<std::string> find(const std::string& key) const {
        return measures_ ? cache_.find(key) : std::nullopt;
    }
    void put(const std::string& key, std::string value) {
        if (measures_) cache_.put(key, std::move(value));
    }
    // Without white space or anything of an address: trivially copied values.
    template <class Value>
    std::optional<Value> find_value(const std::string& key) const {
        const std::optional<std::string> bytes = find(key);
        if (!bytes || bytes->size() != sizeof(Value)) return std::nullopt;
        Value value;
        std::memcpy(&value, bytes->data(), sizeof value);
        return value;
    }
    template <class Value>
    void put_value(const std::string& key, const Value& value) {
        put(key, std::string(reinterpret_cast<const char*>(&value), sizeof value));
    }

    // Without memory for it the fused one is taken, as where nothing is measured. `multiply` performs a
    // product on the default stream.
    template <class Multiply>
    bool pays(const Kernels& kernels, const Alternatives& alternatives, const Multiply& multiply) {
        if (!measures_) return true;
        const std::string key = "fusion:" + alternatives.what;
        if (const std::optional<char> known = find_value<char>(key)) return *known != 0;
        const Temporary room(alternatives.room_bytes + 256);
        if (!room.get()) return true;
        const std::vector<Product> products =
            alternatives.products ? alternatives.products(room.get()) : std::vector<Product>();
        const float fused = milliseconds_of([&] { alternatives.fused(kernels, nullptr, room.get()); }),
                    apart = milliseconds_of([&] {
                        alternatives.apart(kernels, nullptr, room.get());
                        for (const Product& product : products) multiply(product);
                    });
        put_value(key, static_cast<char>(fused < apart));
        return fused < apart;
    }

    void save() { cache_.save(); }
    const std::vector<std::string>& remarks() const { return cache_.remarks(); }

private:
    const bool measures_;
    ChoiceCache cache_;
};

}  // namespace exec::cuda
