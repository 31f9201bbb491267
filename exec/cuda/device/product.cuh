// Matrix products through cuBLASLt.
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <map>
#include <vector>

#include "exec/cuda/machine.h"

namespace exec::cuda {

class Products {
public:
    explicit Products(int compute_major);
    ~Products();
    Products(const Products&) = delete;
    Products& operator=(const Products&) = delete;
    void perform(Stream stream, const Product& product);

private:
    struct Prepared {
        cublasLtMatmulDesc_t operation = nullptr;
        cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
        cublasLtMatmulAlgo_t algorithm{};
        std::size_t workspace = 0;
    };
    Prepared prepare(const Product& product, const std::vector<std::int64_t>& key) const;

    cublasLtHandle_t handle_ = nullptr;
    void* workspace_ = nullptr;
    std::size_t workspace_bytes_ = 0;
    std::map<std::vector<std::int64_t>, Prepared> prepared_;  // by everything but addresses and alpha
};

}  // namespace exec::cuda
