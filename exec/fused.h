// What spares launches or copies, by name: each can be switched off. Launches that do the work of several are
// measured where kernels are (exec/cuda/machine.h, Machine::pays).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

namespace exec {

enum class Fused : std::uint8_t {
    gelu,               // a tanh GELU with the product before it, forward and back (cuBLASLt's epilogues)
    bias_gradient,      // a bias's gradient with that of its weight (cuBLASLt's BGRADB; where measured only)
    residual_norm,      // an addition and the norm of the sum
    norm_gradients,     // all three gradients of a norm
    norm_octets,        // fp8 of a norm's result with the norm
    gated_octets,       // fp8 of a gated activation's result with it
    rotation,           // rotary positions turned where queries and keys lie, once for forward and backward
    expert_products,    // products of all experts of a mixture, sizes in device memory
    registered_buffers  // memory that NCCL moves without copies of its own
};
inline constexpr std::array<std::pair<Fused, std::string_view>, 9> fused_names{
    {{Fused::gelu, "gelu"},
     {Fused::bias_gradient, "bias-gradient"},
     {Fused::residual_norm, "residual-norm"},
     {Fused::norm_gradients, "norm-gradients"},
     {Fused::norm_octets, "norm-octets"},
     {Fused::gated_octets, "gated-octets"},
     {Fused::rotation, "rotation"},
     {Fused::expert_products, "expert-products"},
     {Fused::registered_buffers, "registered-buffers"}}};

constexpr std::string_view name_of(Fused fused) {
    for (const auto& [kind, name] : fused_names)
        if (kind == fused) return name;
    return {};
}
constexpr std::optional<Fused> fused_named(std::string_view text) {
    for (const auto& [kind, name] : fused_names)
        if (name == text) return kind;
    return std::nullopt;
}

using FusedSet = std::set<Fused>;

}  // namespace exec
