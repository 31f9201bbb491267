#include "exec/cuda/device/product.cuh"
#include "core/index/integers.h"

#include <algorithm>
#include <cstdint>
#include <optional>

#include <fmt/format.h>

#include "core/errors.h"
#include "exec/cuda/device/library_check.cuh"

namespace exec::cuda {

namespace {

cudaDataType_t library_type(Type type) {
    switch (type) {
        case Type::fp32: return CUDA_R_32F;
        case Type::bf16: return CUDA_R_16BF;
        case Type::fp16: return CUDA_R_16F;
    }
    throw core::InternalError(fmt::format("cuBLASLt has no element type {}", static_cast<int>(type)));
}

cudaDataType_t library_type(const Product& p, Float8 format) {
    if (!p.in_fp8) return library_type(p.in);
    return format == Float8::e4m3 ? CUDA_R_8F_E4M3 : CUDA_R_8F_E5M2;
}
std::size_t operand_size(const Product& p) { return p.in_fp8 ? 1 : size_of(p.in); }

// Of an address, up to `most`: parameters lie anywhere in their bucket.
std::int64_t alignment_of(const void* address, std::uintptr_t most = 256) {
    const auto value = reinterpret_cast<std::uintptr_t>(address);
    if (value == 0) return static_cast<std::int64_t>(most);
    return static_cast<std::int64_t>(std::min<std::uintptr_t>(most, value & (~value + 1)));
}

// The size that an algorithm is chosen for where sizes change from call to call: a power of two, or one and a
// half of one. Of addresses no more is asked than the 16 bytes that matrix units want.
constexpr std::uintptr_t ragged_alignment = 16;
std::int64_t size_class(std::int64_t size) {
    std::int64_t result = 64;
    while (result < size) result *= 2;
    return result > 64 && result / 4 * 3 >= size ? result / 4 * 3 : result;
}
Product of_size_class(Product p) {
    std::int64_t& size = p.transpose_a ? p.k : p.m;
    size = size_class(size);
    return p;
}

cublasLtEpilogue_t epilogue_of(const Product& p) {
    if (p.row_sums)
        return CUBLASLT_EPILOGUE_BGRADB;  // of the second operand, which to cuBLASLt's columns is a
    if (p.gelu_input) return CUBLASLT_EPILOGUE_DGELU;
    if (p.before_gelu) return p.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    return p.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

const void* bias_place(const Product& p) { return p.row_sums ? p.row_sums : p.bias; }
const void* gelu_place(const Product& p) { return p.gelu_input ? p.gelu_input : p.before_gelu; }

template <class Value>
void set(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute, const Value& value) {
    check(cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof value),
          "cublasLtMatmulDescSetAttribute");
}
template <class Value>
void set(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
         const Value& value) {
    check(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value),
          "cublasLtMatmulPreferenceSetAttribute");
}

cublasLtMatrixLayout_t layout(cudaDataType_t type, std::int64_t rows, std::int64_t columns,
                              std::int64_t leading, std::int64_t batch, std::int64_t stride) {
    cublasLtMatrixLayout_t result = nullptr;
    check(cublasLtMatrixLayoutCreate(&result, type, static_cast<std::uint64_t>(rows),
                                     static_cast<std::uint64_t>(columns), leading),
          "cublasLtMatrixLayoutCreate");
    if (batch > 1) {
        const auto count = static_cast<std::int32_t>(batch);
        check(cublasLtMatrixLayoutSetAttribute(result, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                               sizeof count),
              "cublasLtMatrixLayoutSetAttribute");
        check(cublasLtMatrixLayoutSetAttribute(result, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride,
                                               sizeof stride),
              "cublasLtMatrixLayoutSetAttribute");
    }
    return result;
}

std::size_t extent(std::int64_t rows, std::int64_t leading, std::int64_t batch, std::int64_t stride,
                   std::size_t size) {
    return static_cast<std::size_t>(rows * leading + (batch - 1) * stride) * size + 512;
}

// The address with the alignment of another one.
void* aligned_like(void* base, const void* like) {
    return static_cast<char*>(base) + (like ? reinterpret_cast<std::uintptr_t>(like) % 256 : 0);
}

}  // namespace

Products::Products(int compute_major, bool has_fp8, Tuner& tuner)
    : has_fp8_(has_fp8), measures_(tuner.measures()), tuner_(tuner) {
    check(cublasLtCreate(&handle_), "cublasLtCreate");
    // NVIDIA's advice: 32 MiB on Hopper, 4 MiB before (cuBLAS documentation, "cublasSetWorkspace").
    workspace_bytes_ = static_cast<std::size_t>(compute_major >= 9 ? 32 : 4) << 20;
    check(cudaMalloc(&workspace_, workspace_bytes_), "cudaMalloc");
}

Products::~Products() {
    for (auto& [key, prepared] : prepared_) {
        cublasLtMatrixLayoutDestroy(prepared.a);
        cublasLtMatrixLayoutDestroy(prepared.b);
        cublasLtMatrixLayoutDestroy(prepared.c);
        cublasLtMatmulDescDestroy(prepared.operation);
    }
    cudaFree(workspace_);
    cublasLtDestroy(handle_);
}

Products::Key Products::key_of(const Product& p) {
    // Blocks of changing sizes begin anywhere in their rows: what all of them have, so that what is chosen
    // before the first step serves every one.
    const auto aligned = [&](const void* base, std::int64_t leading, std::size_t size) {
        if (p.ragged_limit == 0) return alignment_of(base, 256);
        return std::min(
            alignment_of(base, ragged_alignment),
            alignment_of(reinterpret_cast<const void*>(static_cast<std::uintptr_t>(leading) * size),
                         ragged_alignment));
    };
    return {p.ragged_limit > 0,
            static_cast<std::int64_t>(p.in),
            static_cast<std::int64_t>(p.out),
            p.uses_tf32,
            p.transpose_a,
            p.transpose_b,
            p.m,
            p.n,
            p.k,
            p.lda,
            p.ldb,
            p.ldc,
            p.accumulates || p.addend,
            static_cast<std::int64_t>(epilogue_of(p)),
            p.batch,
            p.stride_a,
            p.stride_b,
            p.stride_c,
            aligned(p.a, p.lda, operand_size(p)),
            aligned(p.b, p.ldb, operand_size(p)),
            aligned(p.addend ? p.addend : p.c, p.ldc, size_of(p.out)),
            aligned(p.c, p.ldc, size_of(p.out)),
            alignment_of(gelu_place(p)),
            alignment_of(bias_place(p)),
            p.in_fp8 ? 1 + 2 * static_cast<std::int64_t>(p.a_format) +
                           4 * static_cast<std::int64_t>(p.b_format) + 8 * p.accumulates_fast
                     : 0};
}

// cuBLASLt stores columns: a row-major matrix is the transposed one to it. So c^T = op(b)^T op(a)^T: b comes
// first, sizes change places, transpositions stay.
Products::Prepared Products::make(const Product& p, const Key& key) {
    Prepared result;
    const cublasComputeType_t compute =
        p.in == Type::fp32 && p.uses_tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    check(cublasLtMatmulDescCreate(&result.operation, compute, CUDA_R_32F), "cublasLtMatmulDescCreate");
    const cublasOperation_t first = p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N,
                            second = p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    set(result.operation, CUBLASLT_MATMUL_DESC_TRANSA, first);
    set(result.operation, CUBLASLT_MATMUL_DESC_TRANSB, second);
    const cublasLtEpilogue_t epilogue = epilogue_of(p);
    set(result.operation, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
    if (bias_place(p)) set(result.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias_place(p));
    if (gelu_place(p)) {
        set(result.operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, gelu_place(p));
        set(result.operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.ldc);
    }
    if (p.in_fp8) {
        set(result.operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, p.b_unscale);
        set(result.operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, p.a_unscale);
        set(result.operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<std::int8_t>(p.accumulates_fast));
    }
    result.a = layout(library_type(p, p.b_format), p.transpose_b ? p.k : p.n, p.transpose_b ? p.n : p.k,
                      p.ldb, p.batch, p.stride_b);
    result.b = layout(library_type(p, p.a_format), p.transpose_a ? p.m : p.k, p.transpose_a ? p.k : p.m,
                      p.lda, p.batch, p.stride_a);
    result.c = layout(library_type(p.out), p.n, p.m, p.ldc, p.batch, p.stride_c);

    cublasLtMatmulPreference_t preference = nullptr;
    check(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
    set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes_);
    // Those of bias and GELU are read off their addresses (cublasLt.h, at CUBLASLT_MATMUL_DESC_BIAS_POINTER).
    const auto aligned = [&](std::size_t place) { return static_cast<std::uint32_t>(key[place]); };
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, aligned(19));
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, aligned(18));
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, aligned(20));
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, aligned(21));
    std::vector<cublasLtMatmulHeuristicResult_t> found(measures_ ? 8 : p.has_epilogue() || p.in_fp8 ? 4 : 1);
    int count = 0;
    result.status =
        cublasLtMatmulAlgoGetHeuristic(handle_, result.operation, result.a, result.b, result.c, result.c,
                                       preference, core::count_of(found), found.data(), &count);
    cublasLtMatmulPreferenceDestroy(preference);
    found.resize(std::max(0, count));
    std::erase_if(found, [](const cublasLtMatmulHeuristicResult_t& candidate) {
        return candidate.state != CUBLAS_STATUS_SUCCESS;
    });
    if (result.status == CUBLAS_STATUS_SUCCESS && found.empty()) result.status = CUBLAS_STATUS_NOT_SUPPORTED;
    if (result.status != CUBLAS_STATUS_SUCCESS) return result;
    if (take_from_whole(p, result) || take_known(p, key, result)) return result;
    result.algorithm = found[0].algo;
    result.workspace = found[0].workspaceSize;
    if (measures_ || p.has_epilogue() || p.in_fp8 || p.ragged_limit > 0) try_out(p, result, found);
    if (result.status == CUBLAS_STATUS_SUCCESS && result.milliseconds > 0)
        tuner_.put_value(name_of(key), Known{result.algorithm, result.workspace, result.milliseconds});
    return result;
}

std::string Products::name_of(const Key& key) { return fmt::format("product:{}", fmt::join(key, ",")); }

// An algorithm is plain data, for the same version of cuBLASLt (cublasLt.h, cublasLtMatmulAlgo_t); whether it
// is one for this product cuBLASLt says.
bool Products::take_known(const Product& p, const Key& key, Prepared& prepared) const {
    const std::optional<Known> known = tuner_.find_value<Known>(name_of(key));
    if (!known || p.ragged_limit > 0) return false;  // those are launched once, to be loaded
    cublasLtMatmulHeuristicResult_t checked{};
    if (cublasLtMatmulAlgoCheck(handle_, prepared.operation, prepared.a, prepared.b, prepared.c, prepared.c,
                                &known->algorithm, &checked) != CUBLAS_STATUS_SUCCESS ||
        checked.workspaceSize > workspace_bytes_)
        return false;
    prepared.algorithm = known->algorithm;
    prepared.workspace = checked.workspaceSize;
    prepared.milliseconds = known->milliseconds;
    return true;
}

bool Products::take_from_whole(const Product& p, Prepared& prepared) {
    if (p.whole_rows == 0) return false;
    Product whole = p;
    whole.m = p.whole_rows;
    whole.whole_rows = whole.stride_a = whole.stride_c = 0;
    whole.batch = 1;
    const Prepared& of_whole = find(whole);
    cublasLtMatmulHeuristicResult_t checked{};
    if (of_whole.status != CUBLAS_STATUS_SUCCESS ||
        cublasLtMatmulAlgoCheck(handle_, prepared.operation, prepared.a, prepared.b, prepared.c, prepared.c,
                                &of_whole.algorithm, &checked) != CUBLAS_STATUS_SUCCESS ||
        checked.workspaceSize > workspace_bytes_)
        return false;
    prepared.algorithm = of_whole.algorithm;
    prepared.workspace = checked.workspaceSize;
    return true;
}

// Remembered by what is asked, in memory and on disk.
template <class Measure>
bool Products::pays(const char* what, const Product& p, const Measure& measure) {
    const Key key = key_of(p);
    if (const auto known = pays_.find(key); known != pays_.end()) return known->second;
    const std::string name = fmt::format("{}:{}", what, fmt::join(key, ","));
    const std::optional<char> kept = tuner_.find_value<char>(name);
    const bool result = kept ? *kept != 0 : measure();
    if (!kept) tuner_.put_value(name, static_cast<char>(result));
    return pays_[key] = result;
}

// On arrays of its own: while a run is planned there are no others yet. An epilogue, or fp8, that is proposed
// and then refused must be known before the first step.
void Products::try_out(const Product& p, Prepared& prepared,
                       const std::vector<cublasLtMatmulHeuristicResult_t>& candidates) {
    const Temporary a(extent(p.transpose_a ? p.k : p.m, p.lda, p.batch, p.stride_a, operand_size(p))),
        b(extent(p.transpose_b ? p.n : p.k, p.ldb, p.batch, p.stride_b, operand_size(p)));
    const std::size_t result = extent(p.m, p.ldc, p.batch, p.stride_c, size_of(p.out));
    const Temporary c(result), addend(p.addend ? result : 512), gelu(gelu_place(p) ? result : 512),
        bias(static_cast<std::size_t>(std::max(p.m, p.n)) * sizeof(float) + 512);
    if (!a.get() || !b.get() || !c.get() || !addend.get() || !gelu.get() || !bias.get())
        return;  // the first of them, then
    Product q = p;
    q.a = aligned_like(a.get(), p.a);
    q.b = aligned_like(b.get(), p.b);
    q.c = aligned_like(c.get(), p.c);
    if (p.addend) q.addend = aligned_like(addend.get(), p.addend);
    if (p.bias) q.bias = aligned_like(bias.get(), p.bias);
    if (p.row_sums) q.row_sums = aligned_like(bias.get(), p.row_sums);
    if (p.before_gelu) q.before_gelu = aligned_like(gelu.get(), p.before_gelu);
    if (p.gelu_input) q.gelu_input = aligned_like(gelu.get(), p.gelu_input);
    if (p.in_fp8) q.a_unscale = q.b_unscale = static_cast<const float*>(static_cast<const void*>(bias.get()));
    prepared.status = CUBLAS_STATUS_NOT_SUPPORTED;
    check(cudaDeviceSynchronize(),
          "cudaDeviceSynchronize");  // the workspace is that of products which may be under way
    for (const cublasLtMatmulHeuristicResult_t& candidate : candidates) {
        Prepared trial = prepared;
        trial.algorithm = candidate.algo;
        trial.workspace = candidate.workspaceSize;
        if (call(nullptr, q, trial) != CUBLAS_STATUS_SUCCESS) continue;
        if (!measures_) {
            check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
            prepared = trial;
            prepared.status = CUBLAS_STATUS_SUCCESS;
            return;
        }
        const float time = milliseconds_of([&] { call(nullptr, q, trial); });
        if (prepared.milliseconds == 0 || time < clearly_faster * prepared.milliseconds) {
            prepared.status = CUBLAS_STATUS_SUCCESS;
            prepared.algorithm = trial.algorithm;
            prepared.workspace = trial.workspace;
            prepared.milliseconds = time;
        }
    }
}

const Products::Prepared& Products::find(const Product& given) {
    const Product p = given.ragged_limit > 0 ? of_size_class(given) : given;
    const Key key = key_of(p);
    auto found = prepared_.find(key);
    if (found == prepared_.end()) found = prepared_.emplace(key, make(p, key)).first;
    return found->second;
}

// Of this call: those of others with the same algorithm differ.
void Products::set_sizes(const Product& p, const Prepared& prepared) {
    const auto resize = [](cublasLtMatrixLayout_t layout, std::int64_t rows, std::int64_t columns) {
        const auto r = static_cast<std::uint64_t>(rows), c = static_cast<std::uint64_t>(columns);
        check(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_ROWS, &r, sizeof r),
              "cublasLtMatrixLayoutSetAttribute");
        check(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_COLS, &c, sizeof c),
              "cublasLtMatrixLayoutSetAttribute");
    };
    resize(prepared.a, p.transpose_b ? p.k : p.n, p.transpose_b ? p.n : p.k);
    resize(prepared.b, p.transpose_a ? p.m : p.k, p.transpose_a ? p.k : p.m);
    resize(prepared.c, p.n, p.m);
}

// Of changing sizes every class is chosen and launched once: to load a kernel later may wait for what runs
// then (exec/cuda/make_backend.cpp, rehearse).
void Products::prepare(const Product& p) {
    if (p.m == 0 || p.n == 0) return;
    if (p.ragged_limit == 0) {
        find(p);
        return;
    }
    Product of_class = p;
    std::int64_t& size = p.transpose_a ? of_class.k : of_class.m;
    for (size = 1; size <= size_class(p.ragged_limit); size = size_class(size) + 1)
        for (const bool accumulates : {false, true}) {
            of_class.accumulates = accumulates;
            find(of_class);
        }
}

bool Products::offers(const Product& p) {
    if (p.m == 0 || p.n == 0 || p.k == 0) return false;
    // In fp32 our own functions are more exact than the library's.
    if ((p.before_gelu || p.gelu_input) && (p.out == Type::fp32 || p.ldc % 8 != 0)) return false;
    if (!p.row_sums && (!measures_ || !p.has_epilogue())) return find(p).status == CUBLAS_STATUS_SUCCESS;
    if (!measures_ || find(p).status != CUBLAS_STATUS_SUCCESS) return false;
    return pays("epilogue", p, [&] {
        Product plain = p;
        plain.row_sums = plain.before_gelu = nullptr;
        plain.gelu_input = nullptr;
        const Prepared &with = find(p), &without = find(plain);
        if (with.milliseconds == 0 || without.milliseconds == 0) return !p.row_sums;
        // What a kernel of our own would move beside it, at the pace of a copy, which reads and writes: it
        // reads a once more for sums of its rows; for a GELU it reads the result and writes another, and
        // backward reads the layer's input too.
        const std::size_t bytes = p.row_sums ? extent(p.k, p.lda, 1, 0, size_of(p.in))
                                             : extent(p.m, p.ldc, p.batch, p.stride_c, size_of(p.out));
        const Temporary from(bytes), to(bytes);
        if (!from.get() || !to.get()) return !p.row_sums;
        const float copy = milliseconds_of(
            [&] { cudaMemcpyAsync(to.get(), from.get(), bytes, cudaMemcpyDeviceToDevice, nullptr); });
        const float moves = p.row_sums ? 0.5f : p.gelu_input ? 1.5f : 1.0f;
        return with.milliseconds < without.milliseconds + moves * copy;
    });
}

// Of fp8 with the casts that only it needs: both operands are read twice, in the precision that they have,
// and written in octets. At the pace of a copy.
bool Products::offers_fp8(const Product& p, const Product& half) {
    if (!has_fp8_ || find(p).status != CUBLAS_STATUS_SUCCESS) return false;
    if (!measures_) return true;
    return pays("fp8", p, [&] {
        const float low = find(p).milliseconds, plain = find(half).milliseconds;
        const std::size_t elements = static_cast<std::size_t>((p.m + p.n) * p.k),
                          moved = elements * (2 * size_of(p.in) + 1);
        const Temporary from(moved / 2), to(moved / 2);
        if (low == 0 || plain == 0 || !from.get() || !to.get()) return true;  // the plan's word
        const float casts = milliseconds_of(
            [&] { cudaMemcpyAsync(to.get(), from.get(), moved / 2, cudaMemcpyDeviceToDevice, nullptr); });
        return low + casts < plain;
    });
}

cublasStatus_t Products::call(Stream stream, const Product& p, const Prepared& prepared) const {
    if (bias_place(p)) set(prepared.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias_place(p));
    if (gelu_place(p)) set(prepared.operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, gelu_place(p));
    if (p.in_fp8) {
        set(prepared.operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, p.b_unscale);
        set(prepared.operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, p.a_unscale);
    }
    const float beta = p.accumulates || p.addend ? 1.0f : 0.0f;
    return cublasLtMatmul(handle_, prepared.operation, &p.alpha, p.b, prepared.a, p.a, prepared.b, &beta,
                          p.addend ? p.addend : p.c, prepared.c, p.c, prepared.c, &prepared.algorithm,
                          workspace_, prepared.workspace, static_cast<cudaStream_t>(stream));
}

void Products::perform(Stream stream, const Product& p) {
    if (p.m == 0 || p.n == 0) return;
    const Prepared& prepared = find(p);
    if (p.ragged_limit > 0) {
        if (prepared.status == CUBLAS_STATUS_SUCCESS) {
            set_sizes(p, prepared);
            if (call(stream, p, prepared) == CUBLAS_STATUS_SUCCESS) return;
        }
        Product exact = p;  // no algorithm for its class, or one that does not take this size
        exact.ragged_limit = 0;
        return perform(stream, exact);
    }
    if (prepared.status != CUBLAS_STATUS_SUCCESS)
        throw core::MachineError(fmt::format(
            "cuBLASLt has no algorithm for a product {} x {} x {}{} (transposed: {}, {}; batch {}): {}", p.m,
            p.n, p.k, p.in_fp8 ? " in fp8" : "", p.transpose_a, p.transpose_b, p.batch,
            cublasLtGetStatusName(prepared.status)));
    check(call(stream, p, prepared), "cublasLtMatmul");
}

}  // namespace exec::cuda
