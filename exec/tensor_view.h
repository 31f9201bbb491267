// An array as the backends' operators see it: where it lies, what its elements are, and how many rows and
// columns of them there are.
//
// The address is in the backend's memory and may mean nothing to the host. Whoever reads elements says as
// what: as<float>() of an array of bf16 is a broken promise, not a wrong number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/data_type.h"

namespace exec {

// Rows of equal length, one after the other.
struct TensorShape {
    std::int64_t rows = 0, columns = 0;
    std::int64_t elements() const { return rows * columns; }
    bool operator==(const TensorShape&) const = default;
};

// Bytes of so many elements.
inline std::int64_t bytes_of(core::DataType type, std::int64_t elements) {
    return elements * core::bytes_per_element(type);
}

// Throws core::InternalError: the array's elements are of another type than its reader takes them for.
[[noreturn]] void throw_other_elements(core::DataType type);

// `Byte` is char, or const char where elements are only read. A view owns nothing.
template <class Byte>
class BasicTensorView {
    static constexpr bool is_const = std::is_const_v<Byte>;
    template <class T>
    using Qualified = std::conditional_t<is_const, const T, T>;

public:
    using Address = Qualified<void>*;

    BasicTensorView() = default;  // no array: nothing is read, or nothing is wanted
    BasicTensorView(std::nullptr_t) {}
    BasicTensorView(Address data, core::DataType type, TensorShape shape)
        : data_(data), type_(type), shape_(shape) {}
    // A flat array: one row.
    BasicTensorView(Address data, core::DataType type, std::int64_t elements)
        : BasicTensorView(data, type, TensorShape{1, elements}) {}
    // What may be written may be read.
    template <class Other>
        requires(is_const && std::is_same_v<Other, char>)
    BasicTensorView(const BasicTensorView<Other>& other)
        : data_(other.data()), type_(other.type()), shape_(other.shape()) {}

    explicit operator bool() const { return data_ != nullptr; }
    bool operator==(const BasicTensorView&) const = default;

    Address data() const { return data_; }
    core::DataType type() const { return type_; }
    const TensorShape& shape() const { return shape_; }
    std::int64_t elements() const { return shape_.elements(); }
    std::int64_t bytes() const { return bytes_of(type_, elements()); }

    // The address of its elements: float of fp32 and tf32, std::int64_t of int64, std::uint16_t of bf16 and
    // fp16, std::uint8_t of fp8. Null where there is no array.
    template <class T>
    Qualified<T>* as() const {
        if (data_ && !holds<T>(type_)) throw_other_elements(type_);
        return static_cast<Qualified<T>*>(data_);
    }
    Qualified<float>* floats() const { return as<float>(); }
    Qualified<std::int64_t>* integers() const { return as<std::int64_t>(); }

    // The bytes that they are stored in.
    Byte* octets() const { return static_cast<Byte*>(data_); }

    // Elements `first` ... first + count - 1 as a flat array.
    BasicTensorView part(std::int64_t first, std::int64_t count) const {
        return {octets() + bytes_of(type_, first), type_, count};
    }
    // `count` rows from `first` on.
    BasicTensorView rows(std::int64_t first, std::int64_t count) const {
        return {octets() + bytes_of(type_, first * shape_.columns), type_, {count, shape_.columns}};
    }

private:
    template <class T>
    static constexpr bool holds(core::DataType type) {
        using core::DataType;
        if constexpr (std::is_same_v<T, float>) return type == DataType::fp32 || type == DataType::tf32;
        else if constexpr (std::is_same_v<T, std::int64_t>) return type == DataType::int64;
        else if constexpr (std::is_same_v<T, std::uint16_t>)
            return type == DataType::bf16 || type == DataType::fp16;
        else {
            static_assert(std::is_same_v<T, std::uint8_t>, "tensors have no elements of this type");
            return type == DataType::fp8;
        }
    }

    Address data_ = nullptr;
    core::DataType type_ = core::DataType::fp32;
    TensorShape shape_;
};

// Bytes whose layout only the operator that wrote them knows.
class OpaqueView {
public:
    OpaqueView() = default;
    explicit OpaqueView(void* data) : data_(data) {}

    explicit operator bool() const { return data_ != nullptr; }
    void* data() const { return data_; }
    template <class T>
    T* as() const {
        return static_cast<T*>(data_);
    }

private:
    void* data_ = nullptr;
};

using TensorView = BasicTensorView<char>;
using ConstTensorView = BasicTensorView<const char>;

}  // namespace exec
