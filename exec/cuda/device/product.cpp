#include "exec/cuda/device/product.cuh"

#include <algorithm>
#include <cstdint>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "exec/cuda/device/library_check.cuh"

namespace exec::cuda {

namespace {

cudaDataType_t library_type(Type type) {
    switch (type) {
        case Type::fp32: return CUDA_R_32F;
        case Type::bf16: return CUDA_R_16BF;
        case Type::fp16: return CUDA_R_16F;
    }
    return CUDA_R_32F;
}

// Of an address, up to 256: parameters lie anywhere in their bucket.
std::int64_t alignment_of(const void* address) {
    const auto value = reinterpret_cast<std::uintptr_t>(address);
    if (value == 0) return 256;
    return static_cast<std::int64_t>(std::min<std::uintptr_t>(256, value & (~value + 1)));
}

cublasLtEpilogue_t epilogue_of(const Product& p) {
    if (p.gelu_input) return CUBLASLT_EPILOGUE_DGELU;
    if (p.before_gelu) return p.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    return p.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

const void* gelu_place(const Product& p) { return p.gelu_input ? p.gelu_input : p.before_gelu; }

template <class Value>
void set(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute, const Value& value) {
    check(cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof value), "cublasLtMatmulDescSetAttribute");
}
template <class Value>
void set(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute, const Value& value) {
    check(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value), "cublasLtMatmulPreferenceSetAttribute");
}

cublasLtMatrixLayout_t layout(Type type, std::int64_t rows, std::int64_t columns, std::int64_t leading, std::int64_t batch, std::int64_t stride) {
    cublasLtMatrixLayout_t result = nullptr;
    check(cublasLtMatrixLayoutCreate(&result, library_type(type), static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(columns), leading),
          "cublasLtMatrixLayoutCreate");
    if (batch > 1) {
        const auto count = static_cast<std::int32_t>(batch);
        check(cublasLtMatrixLayoutSetAttribute(result, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count), "cublasLtMatrixLayoutSetAttribute");
        check(cublasLtMatrixLayoutSetAttribute(result, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride), "cublasLtMatrixLayoutSetAttribute");
    }
    return result;
}

}  // namespace

Products::Products(int compute_major) {
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

// cuBLASLt stores columns: a row-major matrix is the transposed one to it. So c^T = op(b)^T op(a)^T: b comes first, sizes change places, transpositions stay.
Products::Prepared Products::prepare(const Product& p, const std::vector<std::int64_t>& key) const {
    Prepared result;
    const cublasComputeType_t compute = p.in == Type::fp32 && p.uses_tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    check(cublasLtMatmulDescCreate(&result.operation, compute, CUDA_R_32F), "cublasLtMatmulDescCreate");
    const cublasOperation_t first = p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N, second = p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    set(result.operation, CUBLASLT_MATMUL_DESC_TRANSA, first);
    set(result.operation, CUBLASLT_MATMUL_DESC_TRANSB, second);
    const cublasLtEpilogue_t epilogue = epilogue_of(p);
    set(result.operation, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
    if (p.bias) set(result.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
    if (gelu_place(p)) {
        set(result.operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, gelu_place(p));
        set(result.operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.ldc);
    }
    result.a = layout(p.in, p.transpose_b ? p.k : p.n, p.transpose_b ? p.n : p.k, p.ldb, p.batch, p.stride_b);
    result.b = layout(p.in, p.transpose_a ? p.m : p.k, p.transpose_a ? p.k : p.m, p.lda, p.batch, p.stride_a);
    result.c = layout(p.out, p.n, p.m, p.ldc, p.batch, p.stride_c);

    cublasLtMatmulPreference_t preference = nullptr;
    check(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
    set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes_);
    const auto aligned = [](std::int64_t bytes) { return static_cast<std::uint32_t>(bytes); };
    const std::size_t alignments = key.size() - 3;
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, aligned(key[alignments + 1]));
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, aligned(key[alignments]));
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, aligned(key[alignments + 2]));
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, aligned(key[alignments + 2]));
    cublasLtMatmulHeuristicResult_t found{};
    int count = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle_, result.operation, result.a, result.b, result.c, result.c, preference, 1, &found, &count);
    cublasLtMatmulPreferenceDestroy(preference);
    if (status != CUBLAS_STATUS_SUCCESS || count == 0)
        throw core::MachineError(fmt::format("cuBLASLt has no algorithm for a product {} x {} x {} (transposed: {}, {}; batch {}): {}", p.m, p.n, p.k,
                                             p.transpose_a, p.transpose_b, p.batch, cublasLtGetStatusName(status)));
    result.algorithm = found.algo;
    result.workspace = found.workspaceSize;
    return result;
}

void Products::perform(Stream stream, const Product& p) {
    if (p.m == 0 || p.n == 0) return;
    const std::vector<std::int64_t> key{static_cast<std::int64_t>(p.in),
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
                                        p.accumulates,
                                        static_cast<std::int64_t>(epilogue_of(p)),
                                        p.batch,
                                        p.stride_a,
                                        p.stride_b,
                                        p.stride_c,
                                        alignment_of(p.a),
                                        alignment_of(p.b),
                                        std::min({alignment_of(p.c), alignment_of(p.bias), alignment_of(gelu_place(p))})};
    auto found = prepared_.find(key);
    if (found == prepared_.end()) found = prepared_.emplace(key, prepare(p, key)).first;
    const Prepared& prepared = found->second;
    if (p.bias) set(prepared.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
    if (gelu_place(p)) set(prepared.operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, gelu_place(p));
    const float beta = p.accumulates ? 1.0f : 0.0f;
    check(cublasLtMatmul(handle_, prepared.operation, &p.alpha, p.b, prepared.a, p.a, prepared.b, &beta, p.c, prepared.c, p.c, prepared.c, &prepared.algorithm,
                         workspace_, prepared.workspace, static_cast<cudaStream_t>(stream)),
          "cublasLtMatmul");
}

}  // namespace exec::cuda
