#include "exec/cpu/kernels.h"

#include <array>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <vector>

#include "core/errors.h"
#include "core/random.h"
#include "exec/cpu/body/table.h"
#include "exec/cpu/library_product.h"

namespace exec::cpu {

namespace {

struct Variant {
    const char* name;
    bool is_present;
    const Kernels& (*table)();
};

// Every instruction set that this build has kernels for, best first. Only builds for x86-64 have more than
// the generic one.
std::vector<Variant> variants() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") &&
                            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                            __builtin_cpu_supports("avx512bw");
    return {{"avx512", has_avx512, &avx512::table},
            {"avx2", has_avx2, &avx2::table},
            {"generic", true, &generic::table}};
#else
    return {{"generic", true, &generic::table}};
#endif
}

const Kernels& best() {
    const char* wanted = std::getenv("SMSIM_CPU_INSTRUCTIONS");
    if (wanted)
        if (const Kernels* found = find_kernels(wanted)) return *found;
    for (const Variant& variant : variants())
        if (variant.is_present) return variant.table();
    return generic::table();
}

}  // namespace

const Kernels* find_kernels(std::string_view instruction_set) {
    for (const Variant& variant : variants())
        if (variant.is_present && instruction_set == variant.name) return &variant.table();
    return nullptr;
}

const Kernels& kernels() {
    static const Kernels chosen = [] {
        Kernels all = best();
        const char* wanted = std::getenv("SMSIM_CPU_PRODUCTS");
        if (wanted && std::string_view(wanted) == "eigen") return all;
        if (const Product product = library_product(all.product)) all.product = product;
        return all;
    }();
    return chosen;
}

namespace {

// One array per slot, which grows when more is asked for. Arrays begin at a multiple of 64 bytes, because the
// order in which a vectorised sum adds, and so its last bits, depends on the address of its array.
struct Scratch {
    struct Slot {
        std::unique_ptr<float[], decltype(&std::free)> data{nullptr, &std::free};
        std::int64_t floats = 0;
    };
    static constexpr std::size_t slot_count = 14;  // one more than the largest slot that a kernel asks for
    std::array<Slot, slot_count> slots;
};
thread_local Scratch thread_scratch;

}  // namespace

float* scratch(int slot, std::int64_t floats) {
    Scratch::Slot& array = thread_scratch.slots[slot];
    if (array.floats < floats) {
        constexpr std::size_t line_bytes = 64;  // a cache line, and a register of AVX-512
        constexpr std::int64_t floats_per_line = line_bytes / sizeof(float);
        floats = (floats + floats_per_line - 1) / floats_per_line * floats_per_line;
        array.data.reset(static_cast<float*>(std::aligned_alloc(line_bytes, floats * sizeof(float))));
        if (!array.data) throw core::MachineError("no memory for the scratch arrays of kernels");
        array.floats = floats;
    }
    return array.data.get();
}

std::int64_t scratch_bytes() {
    std::int64_t total = 0;
    for (const Scratch::Slot& array : thread_scratch.slots)
        total += array.floats * static_cast<std::int64_t>(sizeof(float));
    return total;
}

void free_scratch() { thread_scratch = Scratch{}; }

std::uint64_t counter_hash(std::uint64_t key, std::uint64_t counter) {
    constexpr std::uint64_t golden_ratio = 0x9E3779B97F4A7C15ull;  // 2^64 / phi, the increment of SplitMix64
    return core::mix64(key + golden_ratio * counter);
}

}  // namespace exec::cpu
