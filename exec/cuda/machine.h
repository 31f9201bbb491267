// What the runtime needs of a GPU and of NVIDIA's libraries. device/ is the real one; planning runs on one
// that does nothing, tests on one that computes on the host. Work is in order on its stream and the host goes
// on at once, unless a call says that it waits.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/units.h"
#include "core/unsupported.h"
#include "exec/cuda/kernels.h"
#include "exec/transport/communicator.h"
#include "schedule/program/program.h"

namespace exec::cuda {

using Event = void*;

// c = alpha op(a) op(b) (+ c or addend) (+ bias on every row): row-major, op(a) is m x k, op(b) is k x n;
// leading dimensions are of the stored matrices.
struct Product {
    Type in = Type::fp32, out = Type::fp32;
    bool uses_tf32 = false;  // fp32 operands on the matrix units
    bool transpose_a = false, transpose_b = false;
    std::int64_t m = 0, n = 0, k = 0;
    float alpha = 1;
    const void *a = nullptr, *b = nullptr;
    std::int64_t lda = 0, ldb = 0;
    void* c = nullptr;
    std::int64_t ldc = 0;
    bool accumulates = false;
    const void* addend = nullptr;  // laid out as c, instead of c
    const void* bias = nullptr;    // [n], of type `out`
    // Epilogue of a layer followed by a GELU (tanh approximation): c = gelu(x), and x = op(a) op(b) + bias is
    // kept here, when not null.
    void* before_gelu = nullptr;
    // Backward of the same: c = x gelu'(this).
    const void* gelu_input = nullptr;
    // With a transposed a, b as it is (the gradient of a weight): the sums of a's rows, [m], of type `out`,
    // are written here.
    void* row_sums = nullptr;
    // Not 0: one size changes from call to call, m, or k where a is transposed; up to this, as far as
    // planning knows. The algorithm is that of a size near by.
    std::int64_t ragged_limit = 0;
    // Not 0: some rows of a product of so many, whose algorithm is taken: another one may add in another
    // order.
    std::int64_t whole_rows = 0;
    // `batch` problems at these distances, in elements.
    std::int64_t batch = 1, stride_a = 0, stride_b = 0, stride_c = 0;
    // a and b are octets in fp8, of these formats (not both e5m2), with k contiguous in both; `in` is what
    // they were before. One number each in device memory takes them back.
    bool in_fp8 = false;
    Float8 a_format = Float8::e4m3, b_format = Float8::e4m3;
    const float *a_unscale = nullptr, *b_unscale = nullptr;
    bool accumulates_fast = false;  // fp8: partial sums in less than fp32, which is faster (cublasLt.h,
                                    // CUBLASLT_MATMUL_DESC_FAST_ACCUM)

    bool has_epilogue() const { return before_gelu || gelu_input || row_sums; }
};

// A launch, and the launches whose work it does, on arrays of `room_bytes` (aligned at 256) that hold small
// numbers. `what`: the same for alternatives that differ in nothing but addresses; no spaces.
struct Alternatives {
    std::string what;
    std::size_t room_bytes = 0;
    std::function<void(const Kernels&, Stream, char* room)> fused, apart;
    // Products that `apart` takes besides; none where it is empty.
    std::function<std::vector<Product>(char* room)> products = {};
};

// Attention in one library call: `queries` of a sequence and its first `keys`, of which, where it is causal,
// the queries are the last (the i-th sees keys - queries + i + 1 of them). Rows of heads side by side;
// distances in elements.
struct FusedAttentionShape {
    std::int64_t samples = 1, queries = 0, keys = 0, heads = 1, kv_heads = 1, head_dimension = 0;
    bool is_causal = false;
    std::int64_t window = 0;  // keys that a query sees, itself the last; 0: all
    float scale = 1, dropout = 0;
    std::int64_t query_row = 0, query_sample = 0;    // of queries and their gradient
    std::int64_t key_row = 0, key_sample = 0;        // of keys, of values and their gradients
    std::int64_t output_row = 0, output_sample = 0;  // of the result and its gradient
    bool operator==(const FusedAttentionShape&) const = default;
    auto operator<=>(const FusedAttentionShape&) const = default;
};
struct FusedAttentionArrays {
    const void *queries = nullptr, *keys = nullptr, *values = nullptr;
    void* output = nullptr;
    float* log_sums = nullptr;  // [samples, heads, queries]
    // With dropout: where the library's random numbers begin, one of each, in device memory. Its masks are of
    // its own making, the same in forward and backward.
    const std::uint64_t *seed = nullptr, *offset = nullptr;
};
struct FusedAttentionGradients {
    const void* output = nullptr;
    void *queries = nullptr, *keys = nullptr, *values = nullptr;  // are overwritten
};

enum class ConvolutionPass : std::uint8_t { forward, input, weight };

// Collectives and messages among ranks on their own GPUs; groups are made before the first step.
class Exchange {
public:
    virtual ~Exchange() = default;
    // Every rank of `members` calls this once, in an order that is the same for all its members.
    virtual int make_group(const std::vector<int>& members) = 0;
    virtual void all_reduce(Stream, int group, core::DataType type, void* data, std::size_t count,
                            bool takes_maximum) = 0;
    // In place: member i has or gets piece i of `count` elements.
    virtual void all_gather(Stream, int group, core::DataType type, void* data, std::size_t count) = 0;
    virtual void reduce_scatter(Stream, int group, core::DataType type, void* data, std::size_t count) = 0;
    virtual void broadcast(Stream, int group, core::DataType type, void* data, std::size_t count) = 0;
    virtual void all_to_all(Stream, int group, core::DataType type, const void* from, void* to,
                            std::size_t count) = 0;
    // `peer` is a position in the group. Several between begin and end go together. `tag`: for exchanges that
    // match by it; NCCL matches by order.
    virtual void begin_messages() = 0;
    virtual void send(Stream, int group, int peer, const void* data, std::size_t bytes, Tag tag) = 0;
    virtual void receive(Stream, int group, int peer, void* data, std::size_t bytes, Tag tag) = 0;
    virtual void end_messages() = 0;
    // Memory that all groups made so far will exchange from and to, until abort(): NCCL then moves it without
    // copies of its own. A service, not a promise: what is refused is exchanged all the same.
    virtual void register_memory(void*, std::size_t) {}
    // Throws when a communicator reports an error.
    virtual void check() = 0;
    // Gives up all that is under way.
    virtual void abort() = 0;
};

class Machine {
public:
    virtual ~Machine() = default;
    virtual const Kernels& kernels() const = 0;
    virtual std::string describe() const = 0;
    virtual bool is_real() const { return true; }

    // Waiting calls.
    virtual void* allocate(std::size_t bytes) = 0;  // throws core::MachineError with what is free
    virtual void release(void* block) = 0;
    // The same in memory that an exchange can register.
    virtual void* allocate_for_exchange(std::size_t bytes) { return allocate(bytes); }
    virtual void* allocate_host(std::size_t bytes) = 0;  // that the device can copy from
    virtual void release_host(void* block) = 0;
    virtual void upload_now(void* to, const void* from, std::size_t bytes) = 0;
    virtual void download_now(void* to, const void* from, std::size_t bytes) = 0;
    virtual void synchronize() = 0;
    virtual core::Bytes memory_in_use() = 0;  // of the device, by whomever

    virtual Stream stream(schedule::Stream which) = 0;
    virtual Stream message_stream(int number) = 0;  // further ones: of a channel each, of the disk
    // Events that are timed tell when; the others order streams. In a captured step only the latter do that.
    virtual Event make_event(bool is_timed) = 0;
    virtual void record(Event event, Stream stream) = 0;
    virtual void wait(Stream stream, Event event) = 0;
    virtual bool has_happened(Event event) = 0;
    virtual core::Seconds between(Event first, Event second) = 0;  // both have happened

    virtual void fill_zero(Stream, void* to, std::size_t bytes) = 0;
    virtual void copy(Stream, void* to, const void* from, std::size_t bytes) = 0;
    virtual void upload(Stream, void* to, const void* from, std::size_t bytes) = 0;    // from allocate_host
    virtual void download(Stream, void* to, const void* from, std::size_t bytes) = 0;  // to allocate_host

    // On a thread of the machine's, in order on the stream; it may ask nothing of the machine.
    virtual void call(Stream, void (*function)(void*), void* argument) = 0;

    virtual void product(Stream, const Product& product) = 0;
    // Is there an algorithm for this product with its epilogue, faster than one after the other?
    virtual bool offers(const Product& product) const = 0;
    // Is there an algorithm for this product in fp8? Where products are measured: one that, with the casts of
    // its operands, is faster than `half`, the same in bf16.
    virtual bool offers_fp8(const Product& product, const Product& half) const = 0;
    // Where launches are measured: is the fused one faster? Elsewhere it is taken.
    virtual bool pays(const Alternatives&) const { return true; }
    // Whatever can be chosen before the first step, with addresses that need not be of memory.
    virtual void prepare(const Product&) const {}

    // Fused attention of cuDNN: why it cannot take this, in both directions; nothing where it can.
    virtual std::optional<core::Unsupported> fused_attention_unsupported(
        Type type, const FusedAttentionShape& shape) const = 0;
    virtual void fused_attention(Stream, Type type, const FusedAttentionShape& shape,
                                 const FusedAttentionArrays& arrays) = 0;
    virtual void fused_attention_backward(Stream, Type type, const FusedAttentionShape& shape,
                                          const FusedAttentionArrays& arrays,
                                          const FusedAttentionGradients& gradients) = 0;
    // forward: y from x and weight; input: dx (accumulates) from weight and dy; weight: dweight (of type
    // `weight_type`, adds) from x and dy.
    virtual void convolution(Stream, ConvolutionPass pass, Type type, const ImageShape& shape, const void* a,
                             const void* b, void* result, bool accumulates) = 0;

    // What a convolution needs before the first step, with its workspace.
    virtual void prepare_convolution(ConvolutionPass, Type, const ImageShape&) const {}
    // What calls of cuDNN that have been prepared need of workspace, and the memory for it, until it is taken
    // back (null). They are on the compute stream, one after the other.
    virtual std::size_t library_workspace() const { return 0; }
    virtual void use_workspace(void*, std::size_t) {}
    // Keeps what was measured for later runs. What was found damaged, or cannot be kept: a sentence each.
    virtual std::vector<std::string> keep_choices() { return {}; }

    // Everything between begin and end on all streams becomes one launch.
    virtual bool can_capture() const = 0;
    virtual void begin_capture(Stream origin) = 0;
    virtual void end_capture(Stream origin) = 0;
    virtual void launch_captured(Stream stream) = 0;
    // Gives up what was captured; before the exchange is: NCCL waits for every graph that its launches are in
    // (init.cc of 2.28, commDestroySync).
    virtual void forget_captured() = 0;
    // Is a kernel loaded when it is first launched, which may wait for whatever runs on the device?
    virtual bool loads_kernels_late() const = 0;

    // Ranges for profilers (NVTX), on the host's side.
    virtual void begin_range(const char* name) = 0;
    virtual void end_range() = 0;
};

}  // namespace exec::cuda
