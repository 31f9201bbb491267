// Launches that become one with what the next operator asks for, and gradients that are copies of others and
// are copied only where a launch needs an array of its own.
//
// A held launch goes when the operator after it takes it over, or as it is when it does not. Planning is told
// at that moment what is read and written, so that arrays live as long as they are really used.
#pragma once

#include <cstddef>
#include <map>
#include <optional>

#include "exec/cuda/machine.h"

namespace exec::cuda {

class ExecutionContext;

struct HeldDropout {
    DropoutShape shape;
    const void* x = nullptr;
    void* y = nullptr;
    std::uint8_t* mask = nullptr;
};

// The sum of two arrays, which a norm may take over.
struct HeldSum {
    const void *a = nullptr, *b = nullptr;
    void* y = nullptr;
    std::int64_t count = 0;
};

// The gradient of a norm's input, which those of its scale and shift may take over.
struct HeldNormGradient {
    bool is_layer = false;
    std::int64_t rows = 0, width = 0;
    const void* x = nullptr;
    const float* statistics = nullptr;
    Values scale;
    const void* dy = nullptr;
    void* dx = nullptr;
    const void* base = nullptr;
};

class Fusion {
public:
    Fusion(Machine& machine, ExecutionContext& execution, Type type)
        : machine_(machine), execution_(execution), type_(type) {}

    void launch(const Product& product);
    void launch(const HeldDropout& dropout, const void* residual);
    void launch(const HeldSum& sum);
    void launch(const HeldNormGradient& gradient);

    // At most one is held: of operator `owner`, with its result not to be read before flush().
    void hold(std::int32_t owner, const Product& product);
    void hold(std::int32_t owner, const HeldDropout& dropout);
    void hold(std::int32_t owner, const HeldSum& sum);
    void hold(std::int32_t owner, const HeldNormGradient& gradient);
    std::optional<std::int32_t> owner() const { return owner_; }  // nothing: none is held
    bool holds(const void* result) const;
    std::optional<Product> held_product() const { return product_; }
    std::optional<HeldDropout> held_dropout() const { return dropout_; }
    std::optional<HeldSum> held_sum() const { return sum_; }
    std::optional<HeldNormGradient> held_norm_gradient() const { return norm_gradient_; }
    void drop_held();  // it has become part of another launch
    void flush();

    // Later `to` is to be a copy of `from`, which no launch writes any more.
    void copy_later(void* to, const void* from, std::size_t bytes);
    // Where the contents of `array` are: there, or where they are to be copied from. `is_last`: no launch
    // reads the array after the operator at work.
    const void* contents_of(const void* array, bool is_last);
    // The same for a launch that writes the array next: no copy is due any more.
    const void* take_contents(void* array);
    void copy_now(void* array);
    void forget(void* data, std::size_t bytes);  // new contents are on their way
    // The instruction ends: nothing is held or due after it.
    void settle();

private:
    struct Copy {
        const void* from;
        std::size_t bytes;
        bool is_done = false;  // every reader has read it where it comes from
    };
    void copy(void* to, const Copy& due);

    Machine& machine_;
    ExecutionContext& execution_;
    const Type type_;
    std::optional<std::int32_t> owner_;
    std::optional<Product> product_;
    std::optional<HeldDropout> dropout_;
    std::optional<HeldSum> sum_;
    std::optional<HeldNormGradient> norm_gradient_;
    std::map<char*, Copy> copies_;
};

}  // namespace exec::cuda
