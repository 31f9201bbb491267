#include "exec/cpu/kernels.h"

#include <array>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <vector>

#include "core/diagnostics.h"
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

// Best first. The macros come from the compiler's target: on another architecture only the generic one is
// built.
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

// One array a slot, larger when more is asked for. Always at a multiple of 64 bytes: the order in which a
// vectorised sum adds depends on where its array begins, and with it the last bits of the sum.
struct Scratch {
    struct Slot {
        std::unique_ptr<float[], decltype(&std::free)> data{nullptr, &std::free};
        std::int64_t floats = 0;
    };
    std::array<Slot, 10> slots;
};
thread_local Scratch thread_scratch;

}  // namespace

float* scratch(int slot, std::int64_t floats) {
    Scratch::Slot& array = thread_scratch.slots[static_cast<std::size_t>(slot)];
    if (array.floats < floats) {
        constexpr std::int64_t floats_a_line = 16;
        floats = (floats + floats_a_line - 1) / floats_a_line * floats_a_line;
        array.data.reset(
            static_cast<float*>(std::aligned_alloc(64, static_cast<std::size_t>(floats) * sizeof(float))));
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
    return core::mix64(key + 0x9E3779B97F4A7C15ull * counter);
}

}  // namespace exec::cpu
