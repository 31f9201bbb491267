// Matrix products through cuBLASLt.
#pragma once

#include <cublasLt.h>

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "exec/cuda/device/tuning/tuner.cuh"
#include "exec/cuda/machine.h"

namespace exec::cuda {

class Products {
public:
    // `measures`: of the algorithms that cuBLASLt proposes the fastest is taken, not the first. Then two runs
    // may choose differently, and round differently, unless the one finds what the other has kept.
    Products(int compute_major, bool has_fp8, Tuner& tuner);
    ~Products();
    Products(const Products&) = delete;
    Products& operator=(const Products&) = delete;

    void perform(Stream stream, const Product& product);
    // Chooses an algorithm. Looks at addresses for their alignment only.
    void prepare(const Product& product);
    bool offers(const Product& product);
    bool offers_fp8(const Product& product, const Product& half);

private:
    using Key = std::array<std::int64_t, 25>;
    struct Prepared {
        cublasLtMatmulDesc_t operation = nullptr;
        cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
        cublasLtMatmulAlgo_t algorithm{};
        std::size_t workspace = 0;
        float milliseconds = 0;  // where measured
        cublasStatus_t status = CUBLAS_STATUS_NOT_SUPPORTED;
    };
    static Key key_of(const Product& product);
    static void set_sizes(const Product& product, const Prepared& prepared);
    const Prepared& find(const Product& product);
    Prepared make(const Product& product, const Key& key);
    // What is kept of a choice.
    struct Known {
        cublasLtMatmulAlgo_t algorithm{};
        std::size_t workspace = 0;
        float milliseconds = 0;
    };
    static std::string name_of(const Key& key);
    // Of a piece: the algorithm of the whole product, where it takes fewer rows.
    bool take_from_whole(const Product& product, Prepared& prepared);
    bool take_known(const Product& product, const Key& key, Prepared& prepared) const;
    template <class Measure>
    bool pays(const char* what, const Product& product, const Measure& measure);
    void try_out(const Product& product, Prepared& prepared,
                 const std::vector<cublasLtMatmulHeuristicResult_t>& candidates);
    cublasStatus_t call(Stream stream, const Product& product, const Prepared& prepared) const;

    const bool has_fp8_, measures_;
    Tuner& tuner_;
    cublasLtHandle_t handle_ = nullptr;
    void* workspace_ = nullptr;
    std::size_t workspace_bytes_ = 0;
    std::map<Key, Prepared> prepared_;  // by everything but addresses and alpha
    std::map<Key, bool> pays_;          // an epilogue with the product; fp8 instead of bf16
};

}  // namespace exec::cuda
