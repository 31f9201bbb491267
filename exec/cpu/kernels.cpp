#include "exec/cpu/kernels.h"

#include <array>
#include <cstdlib>
#include <string>
#include <vector>

#include "core/random.h"

namespace exec::cpu {

namespace generic {
const Kernels& table();
}
namespace avx2 {
const Kernels& table();
}
namespace avx512 {
const Kernels& table();
}

namespace {

struct Variant {
    const char* name;
    bool is_present;
    const Kernels& (*table)();
};

// Best first. The macros come from the compiler's target: on another architecture only the generic one is built.
std::vector<Variant> variants() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                            __builtin_cpu_supports("avx512bw");
    return {{"avx512", has_avx512, &avx512::table}, {"avx2", has_avx2, &avx2::table}, {"generic", true, &generic::table}};
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
    static const Kernels& chosen = best();
    return chosen;
}

namespace {

// One array a slot, grown when more is asked for.
struct Scratch {
    std::array<std::vector<float>, 8> slots;
};
thread_local Scratch thread_scratch;

}  // namespace

float* scratch(int slot, std::int64_t floats) {
    std::vector<float>& array = thread_scratch.slots[static_cast<std::size_t>(slot)];
    if (static_cast<std::int64_t>(array.size()) < floats) array.resize(static_cast<std::size_t>(floats));
    return array.data();
}

std::int64_t scratch_bytes() {
    std::int64_t total = 0;
    for (const auto& array : thread_scratch.slots) total += static_cast<std::int64_t>(array.capacity() * sizeof(float));
    return total;
}

void free_scratch() { thread_scratch = Scratch{}; }

std::uint64_t counter_hash(std::uint64_t key, std::uint64_t counter) { return core::mix64(key + 0x9E3779B97F4A7C15ull * counter); }

}  // namespace exec::cpu
