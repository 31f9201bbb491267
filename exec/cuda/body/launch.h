// One way to start a body on either side: `launch(stream, blocks, threads, shared bytes, body)`.
#pragma once

#include <string>

#include "core/diagnostics.h"
#include "exec/cuda/body/thread.h"

#if defined(__CUDACC__)
#include "exec/cuda/device/check.cuh"
#else
#include "exec/cuda/body/emulated.h"
#endif

namespace exec::cuda::kernel_body {

#if defined(__CUDACC__)
template <class Body>
__global__ void __launch_bounds__(Body::most_threads) run(const Body body) {
    body(DeviceThread{});
}
// `least_blocks`: so many must fit on a multiprocessor, which limits registers.
template <class Body>
__global__ void __launch_bounds__(Body::most_threads, Body::least_blocks) run_together(const Body body) {
    body(DeviceThread{});
}
template <class Body>
constexpr auto entry() {
    if constexpr (requires { Body::least_blocks; }) return &run_together<Body>;
    else return &run<Body>;
}
template <class Body>
void launch(Stream stream, std::int64_t blocks, int threads, std::size_t shared, const Body& body) {
    if (blocks <= 0) return;
    // More than 48 KiB has to be asked for, once a kernel; asking again costs a microsecond and nothing else.
    if (shared > 48 * 1024)
        check(cudaFuncSetAttribute(entry<Body>(), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   static_cast<int>(shared)),
              "cudaFuncSetAttribute", Body::name);
    entry<Body>()<<<static_cast<unsigned>(blocks), static_cast<unsigned>(threads), shared,
                    static_cast<cudaStream_t>(stream)>>>(body);
    check(cudaGetLastError(), "launch", Body::name);
}
#else
template <class Body>
void launch(Stream, std::int64_t blocks, int threads, std::size_t shared, const Body& body) {
    if (blocks > 0)
        emulation::emulate(blocks, threads, shared, Body::is_cooperative,
                           [&body](const emulation::EmulatedThread& thread) { body(thread); });
}
#endif

inline bool is_aligned(const void* p, std::size_t bytes) {
    return reinterpret_cast<std::uintptr_t>(p) % bytes == 0;
}
template <class... Pointers>
bool are_aligned(std::size_t bytes, const Pointers*... pointers) {
    return (is_aligned(pointers, bytes) && ...);
}
inline std::int64_t ceiling(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
inline std::int64_t at_most(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

// Calls with a value of the element type.
template <class Call>
void with_type(Type type, const Call& call) {
    switch (type) {
        case Type::fp32: return call(float{});
        case Type::bf16: return call(Bf16{});
        case Type::fp16: return call(Fp16{});
    }
    throw core::InternalError("no kernel is launched for element type " +
                              std::to_string(static_cast<int>(type)));
}

}  // namespace exec::cuda::kernel_body
