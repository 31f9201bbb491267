// The real machine: CUDA's runtime, with the libraries behind it.
#include <algorithm>
#include <array>
#include <set>
#include <vector>

#include <nvtx3/nvToolsExt.h>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "core/index/integers.h"
#include "exec/cuda/device/attention/fused_attention.cuh"
#include "exec/cuda/device/convolution.cuh"
#include "exec/cuda/device/device.h"
#include "exec/cuda/device/kernel_tables.h"
#include "exec/cuda/device/library_check.cuh"
#include "exec/cuda/device/open.h"
#include "exec/cuda/device/product.cuh"
#include "model/operators/cost.h"

namespace exec::cuda {

namespace {

Kernels device_kernels() {
    Kernels table{};
    fill_elementwise(table);
    fill_float8(table);
    fill_norm(table);
    fill_embedding(table);
    fill_loss(table);
    fill_attention(table);
    fill_image(table);
    fill_mixture(table);
    fill_update(table);
    return table;
}

// Of measured fusions: another number where a fused kernel or one that it takes the place of changes.
constexpr int version_of_kernels = 1;

struct TimedEvent {
    cudaEvent_t event = nullptr;
    bool is_timed = false;
};

class CudaMachine : public Machine {
public:
    CudaMachine(int device, bool measures_products)
        : report_(probe_device(device)), kernels_(device_kernels()) {
        if (!report_.available) throw core::MachineError(cuda::describe(report_));
        check(cudaSetDevice(device), "cudaSetDevice");
        for (std::size_t i = 0; i < streams_.size(); ++i)
            streams_[i] = make_stream(static_cast<schedule::Stream>(i) == schedule::Stream::compute);
        check(cudnnCreate(&cudnn_), "cudnnCreate");
        tuner_ = std::make_unique<Tuner>(measures_products, identity());
        products_ = std::make_unique<Products>(report_.compute_major, has_fp8(report_), *tuner_);
        attention_ = std::make_unique<FusedAttention>(cudnn_, report_.compute_major, workspace_, *tuner_);
        convolutions_ = std::make_unique<Convolutions>(cudnn_, workspace_);
    }

    ~CudaMachine() override {
        cudaDeviceSynchronize();
        forget_captured();
        convolutions_.reset();
        attention_.reset();
        products_.reset();
        tuner_->save();
        cudnnDestroy(cudnn_);
        for (const std::unique_ptr<TimedEvent>& event : events_) cudaEventDestroy(event->event);
        for (cudaStream_t stream : streams_) cudaStreamDestroy(stream);
        for (cudaStream_t stream : message_streams_) cudaStreamDestroy(stream);
    }

    const Kernels& kernels() const override { return kernels_; }
    std::string describe() const override { return cuda::describe(report_); }

    void* allocate(std::size_t bytes) override {
        void* block = nullptr;
        if (bytes == 0) return block;
        const cudaError_t status = cudaMalloc(&block, bytes);
        if (status == cudaErrorMemoryAllocation) {
            cudaGetLastError();
            std::size_t free = 0, total = 0;
            check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
            throw core::MachineError(fmt::format("{} has no {} left: {} of {} are free", report_.name,
                                                 core::format(core::Bytes(static_cast<double>(bytes))),
                                                 core::format(core::Bytes(static_cast<double>(free))),
                                                 core::format(core::Bytes(static_cast<double>(total)))));
        }
        check(status, "cudaMalloc");
        return block;
    }
    void release(void* block) override {
        if (shared_blocks_.erase(block) > 0) ncclMemFree(block);
        else cudaFree(block);
    }
    // NCCL maps memory of its own allocator into other ranks' devices and switches (NCCL user guide, "User
    // Buffer Registration"); where it has none left, or the device cannot do that, any will do.
    void* allocate_for_exchange(std::size_t bytes) override {
        void* block = nullptr;
        if (bytes > 0 && ncclMemAlloc(&block, bytes) == ncclSuccess) {
            shared_blocks_.insert(block);
            return block;
        }
        cudaGetLastError();
        return allocate(bytes);
    }
    void* allocate_host(std::size_t bytes) override {
        void* block = nullptr;
        check(cudaMallocHost(&block, bytes), "cudaMallocHost");
        return block;
    }
    void release_host(void* block) override { cudaFreeHost(block); }
    void upload_now(void* to, const void* from, std::size_t bytes) override {
        if (bytes == 0) return;
        check(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "cudaMemcpy to the device");
        // From pageable memory the call returns when the data are staged; our streams do not wait for the
        // default one.
        check(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
    }
    void download_now(void* to, const void* from, std::size_t bytes) override {
        if (bytes > 0) check(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy to the host");
    }
    void synchronize() override { check(cudaDeviceSynchronize(), "cudaDeviceSynchronize"); }
    core::Bytes memory_in_use() override {
        std::size_t free = 0, total = 0;
        check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
        return core::Bytes(static_cast<double>(total - free));
    }

    Stream stream(schedule::Stream which) override { return streams_[static_cast<std::size_t>(which)]; }
    Stream message_stream(int number) override {
        while (core::count_of(message_streams_) <= number) message_streams_.push_back(make_stream(false));
        return message_streams_[number];
    }
    Event make_event(bool is_timed) override {
        auto made = std::make_unique<TimedEvent>();
        made->is_timed = is_timed;
        check(cudaEventCreateWithFlags(&made->event, is_timed ? cudaEventDefault : cudaEventDisableTiming),
              "cudaEventCreateWithFlags");
        events_.push_back(std::move(made));
        return events_.back().get();
    }
    void record(Event event, Stream stream) override {
        const TimedEvent& e = of(event);
        // Inside a captured step an event that the host asks about is a node of its own.
        if (is_capturing_ && e.is_timed)
            check(cudaEventRecordWithFlags(e.event, on(stream), cudaEventRecordExternal),
                  "cudaEventRecordWithFlags");
        else check(cudaEventRecord(e.event, on(stream)), "cudaEventRecord");
    }
    void wait(Stream stream, Event event) override {
        check(cudaStreamWaitEvent(on(stream), of(event).event, 0), "cudaStreamWaitEvent");
    }
    bool has_happened(Event event) override {
        const cudaError_t status = cudaEventQuery(of(event).event);
        if (status == cudaErrorNotReady) return false;
        check(status, "cudaEventQuery (an earlier launch failed)");
        return true;
    }
    core::Seconds between(Event first, Event second) override {
        float milliseconds = 0;
        check(cudaEventElapsedTime(&milliseconds, of(first).event, of(second).event), "cudaEventElapsedTime");
        return core::milliseconds(static_cast<double>(milliseconds));
    }

    void fill_zero(Stream stream, void* to, std::size_t bytes) override {
        if (bytes > 0) check(cudaMemsetAsync(to, 0, bytes, on(stream)), "cudaMemsetAsync");
    }
    void copy(Stream stream, void* to, const void* from, std::size_t bytes) override {
        move(stream, to, from, bytes, cudaMemcpyDeviceToDevice);
    }
    void upload(Stream stream, void* to, const void* from, std::size_t bytes) override {
        move(stream, to, from, bytes, cudaMemcpyHostToDevice);
    }
    void download(Stream stream, void* to, const void* from, std::size_t bytes) override {
        move(stream, to, from, bytes, cudaMemcpyDeviceToHost);
    }

    void call(Stream stream, void (*function)(void*), void* argument) override {
        check(cudaLaunchHostFunc(on(stream), function, argument), "cudaLaunchHostFunc");
    }

    void product(Stream stream, const Product& product) override { products_->perform(stream, product); }
    bool offers(const Product& product) const override { return products_->offers(product); }
    bool offers_fp8(const Product& product, const Product& half) const override {
        return products_->offers_fp8(product, half);
    }
    void prepare(const Product& product) const override { products_->prepare(product); }
    std::optional<core::Unsupported> fused_attention_unsupported(
        Type type, const FusedAttentionShape& shape) const override {
        return attention_->unsupported(type, shape);
    }
    void fused_attention(Stream stream, Type type, const FusedAttentionShape& shape,
                         const FusedAttentionArrays& arrays) override {
        attention_->forward(stream, type, shape, arrays);
    }
    void fused_attention_backward(Stream stream, Type type, const FusedAttentionShape& shape,
                                  const FusedAttentionArrays& arrays,
                                  const FusedAttentionGradients& gradients) override {
        attention_->backward(stream, type, shape, arrays, gradients);
    }
    void convolution(Stream stream, ConvolutionPass pass, Type type, const ImageShape& shape, const void* a,
                     const void* b, void* result, bool accumulates) override {
        convolutions_->perform(stream, pass, type, shape, a, b, result, accumulates);
    }

    void prepare_convolution(ConvolutionPass pass, Type type, const ImageShape& shape) const override {
        convolutions_->prepare(pass, type, shape);
    }
    bool pays(const Alternatives& alternatives) const override {
        return tuner_->pays(kernels_, alternatives,
                            [&](const Product& product) { products_->perform(nullptr, product); });
    }
    std::size_t library_workspace() const override { return workspace_.wanted(); }
    void use_workspace(void* memory, std::size_t bytes) override { workspace_.give(memory, bytes); }
    std::vector<std::string> keep_choices() override {
        tuner_->save();
        return tuner_->remarks();
    }

    bool can_capture() const override { return true; }
    void begin_capture(Stream origin) override {
        check(cudaStreamBeginCapture(on(origin), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
        is_capturing_ = true;
    }
    void end_capture(Stream origin) override {
        is_capturing_ = false;
        cudaGraph_t graph = nullptr;
        check(cudaStreamEndCapture(on(origin), &graph), "cudaStreamEndCapture");
        check(cudaGraphInstantiate(&captured_, graph, 0), "cudaGraphInstantiate");
        check(cudaGraphDestroy(graph), "cudaGraphDestroy");
    }
    void launch_captured(Stream stream) override {
        check(cudaGraphLaunch(captured_, on(stream)), "cudaGraphLaunch");
    }

    void forget_captured() override {
        if (captured_) cudaGraphExecDestroy(captured_);  // one that still runs ends first, by itself
        captured_ = nullptr;
    }
    bool loads_kernels_late() const override {
        return true;
    }  // CUDA_MODULE_LOADING is LAZY unless the environment sets it

    void begin_range(const char* name) override { nvtxRangePushA(name); }
    void end_range() override { nvtxRangePop(); }

private:
    // What measured choices hold for: the card, the driver, the libraries and our own kernels.
    std::string identity() const {
        int runtime = 0;
        check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
        return fmt::format("{}, driver {}, CUDA {}, cuBLASLt {}, cuDNN {}, smsim {}", cuda::describe(report_),
                           report_.driver_version, runtime, cublasLtGetVersion(), cudnnGetVersion(),
                           version_of_kernels);
    }
    // Communication that others wait for goes before what merely computes.
    static cudaStream_t make_stream(bool computes) {
        int least = 0, greatest = 0;
        check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
        cudaStream_t stream = nullptr;
        check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, computes ? least : greatest),
              "cudaStreamCreateWithPriority");
        return stream;
    }
    static cudaStream_t on(Stream stream) { return static_cast<cudaStream_t>(stream); }
    static const TimedEvent& of(Event event) { return *static_cast<const TimedEvent*>(event); }
    void move(Stream stream, void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
        if (bytes > 0) check(cudaMemcpyAsync(to, from, bytes, kind, on(stream)), "cudaMemcpyAsync");
    }

    const DeviceReport report_;
    const Kernels kernels_;
    std::array<cudaStream_t, schedule::stream_count> streams_{};
    std::vector<cudaStream_t> message_streams_;
    std::vector<std::unique_ptr<TimedEvent>> events_;
    cudnnHandle_t cudnn_ = nullptr;
    Workspace workspace_;  // of cuDNN, whose calls are on the compute stream
    std::unique_ptr<Tuner> tuner_;
    std::unique_ptr<Products> products_;
    std::unique_ptr<FusedAttention> attention_;
    std::unique_ptr<Convolutions> convolutions_;
    cudaGraphExec_t captured_ = nullptr;
    std::set<void*> shared_blocks_;  // of NCCL's allocator
    bool is_capturing_ = false;
};

}  // namespace

std::shared_ptr<Machine> open_machine(int device, bool measures_products) {
    return std::make_shared<CudaMachine>(device, measures_products);
}

}  // namespace exec::cuda
