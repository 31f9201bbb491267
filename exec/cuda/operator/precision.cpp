#include "exec/cuda/operator/precision.h"

#include "exec/cuda/body/thread.h"
#include "exec/cuda/operator/operators.h"

namespace exec::cuda {

namespace {

template <class T>
void narrow(std::span<const float> values, void* to) {
    for (std::size_t i = 0; i < values.size(); ++i)
        host_body::as<T>(to)[i] = host_body::from_float<T>(values[i]);
}
template <class T>
void widen(const void* from, std::span<float> values) {
    for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = host_body::to_float(host_body::as<const T>(from)[i]);
}

}  // namespace

void to_precision(core::DataType type, std::span<const float> values, void* to) {
    switch (type_of(type)) {
        case Type::fp32: narrow<float>(values, to); break;
        case Type::bf16: narrow<host_body::Bf16>(values, to); break;
        case Type::fp16: narrow<host_body::Fp16>(values, to); break;
    }
}

void from_precision(core::DataType type, const void* from, std::span<float> values) {
    switch (type_of(type)) {
        case Type::fp32: widen<float>(from, values); break;
        case Type::bf16: widen<host_body::Bf16>(from, values); break;
        case Type::fp16: widen<host_body::Fp16>(from, values); break;
    }
}

}  // namespace exec::cuda
