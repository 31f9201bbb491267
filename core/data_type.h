// Number formats of tensors and arithmetic.
#pragma once

#include <optional>
#include <string_view>

#include "core/units.h"

namespace core {

enum class DataType { fp32, tf32, fp16, bf16, fp8, int64 };

// Storage of one element; tf32 is stored as fp32.
constexpr int bytes_per_element(DataType type) {
    switch (type) {
        case DataType::fp32:
        case DataType::tf32: return 4;
        case DataType::fp16:
        case DataType::bf16: return 2;
        case DataType::fp8: return 1;
        case DataType::int64: return 8;
    }
    return 0;
}
constexpr Bytes size_of(DataType type) { return Bytes(bytes_per_element(type)); }

constexpr std::string_view name_of(DataType type) {
    switch (type) {
        case DataType::fp32: return "fp32";
        case DataType::tf32: return "tf32";
        case DataType::fp16: return "fp16";
        case DataType::bf16: return "bf16";
        case DataType::fp8: return "fp8";
        case DataType::int64: return "int64";
    }
    return "";
}

// The format with that name, or nothing.
constexpr std::optional<DataType> data_type_named(std::string_view name) {
    for (DataType type :
         {DataType::fp32, DataType::tf32, DataType::fp16, DataType::bf16, DataType::fp8, DataType::int64})
        if (name_of(type) == name) return type;
    return std::nullopt;
}

}  // namespace core
