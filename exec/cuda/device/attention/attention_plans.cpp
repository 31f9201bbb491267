#include "exec/cuda/device/attention/attention_plans.h"

#include <fmt/core.h>

#ifdef SMSIM_HAS_CUDNN_FRONTEND
#include <cuda_runtime.h>
#include <dlfcn.h>

namespace {

// The frontend asks CUDA for the current device even where it is given a description of another (1.18,
// sdpa_support_surface.h). In this file it gets the described one, and has a namespace of its own, so that
// nothing of it is the other files'.
thread_local const exec::cuda::DescribedDevice* described = nullptr;

cudaError_t get_described_device(int* device) {
    *device = 0;
    return cudaSuccess;
}
cudaError_t get_described_properties(cudaDeviceProp* properties, int) {
    *properties = {};
    properties->major = described->compute_major;
    properties->minor = described->compute_minor;
    properties->multiProcessorCount = described->multiprocessors;
    return cudaSuccess;
}

}  // namespace

#define cudaGetDevice get_described_device
#define cudaGetDeviceProperties get_described_properties
#define cudnn_frontend described_cudnn_frontend
#include "exec/cuda/device/attention/attention_graph.cuh"
#endif

namespace exec::cuda {

#ifdef SMSIM_HAS_CUDNN_FRONTEND

namespace {

// A device's properties as cuDNN 9.8 and later write and read them
// (CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION).
std::string description(const DescribedDevice& d) {
    const auto whole = [](core::Bytes bytes) { return static_cast<long long>(bytes.value); };
    return fmt::format(
        R"({{"cudaDeviceId":0,"deviceName":"{}","deviceVer":{},"driverVer":13000,"isTccDriver":0,)"
        R"("l2CacheSize":{},"maxCtasPerSM":{},"maxRegistersPerSM":65536,"maxSharedMemoryPerBlock":49152,)"
        R"("maxSharedMemoryPerBlockOptin":{},"maxThreadsPerBlock":1024,"maxThreadsPerSM":{},)"
        R"("memClockRateKHz":{},"multiProcessorCount":{},"pciDeviceId":0,"regsPerBlock":65536,)"
        R"("reservedSharedMemoryPerBlock":1024,"smClockRateKHz":{},"supportCoopLaunch":1,)"
        R"("totalGlobalMem":{},"warpSize":32,"maxGridSize":[2147483647,65535,65535],)"
        R"("maxBlockSize":[1024,1024,64]}})",
        d.name, 100 * d.compute_major + 10 * d.compute_minor, whole(d.level_two_cache),
        d.blocks_per_multiprocessor, whole(d.shared_memory_of_a_block), d.threads_per_multiprocessor,
        d.memory_clock_khz, d.multiprocessors, d.clock_khz, whole(d.memory));
}

}  // namespace

std::optional<core::Unsupported> attention_plans_unsupported() {
    if (fe::detail::get_backend_version() < 90800)
        return core::Unsupported{"cuDNN takes descriptions of devices since 9.8"};
    // Engines that compile at run time load the driver's library, to no other end than to find it there.
    if (void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)) {
        dlclose(driver);
        return std::nullopt;
    }
    return core::Unsupported{
        "cuDNN looks for libcuda.so.1, the driver's: that of the toolkit's stubs will do, under this name"};
}

std::optional<core::Unsupported> attention_unsupported(const DescribedDevice& device, bool is_backward,
                                                       Type type, const FusedAttentionShape& shape) {
    described = &device;
    std::optional<core::Unsupported> unsupported;
    const auto holds = [&](fe::error_t error) {
        if (error.is_bad()) unsupported = core::Unsupported{error.get_message()};
        return !error.is_bad();
    };
    const std::string text = description(device);
    const auto properties = std::make_shared<fe::DeviceProperties>();
    if (!holds(properties->deserialize({text.begin(), text.end()}))) return unsupported;
    const auto graph = attention_graph(is_backward, type, shape);
    graph->set_device_properties(properties);
    static_cast<void>(holds(graph->validate()) && holds(graph->build_operation_graph()) &&
                      holds(graph->create_execution_plans({fe::HeurMode_t::A})) &&
                      holds(graph->check_support()));
    return unsupported;
}

#else

std::optional<core::Unsupported> attention_plans_unsupported() {
    return core::Unsupported{"this program was built without cudnn-frontend"};
}

std::optional<core::Unsupported> attention_unsupported(const DescribedDevice&, bool, Type,
                                                       const FusedAttentionShape&) {
    return attention_plans_unsupported();
}

#endif

}  // namespace exec::cuda
