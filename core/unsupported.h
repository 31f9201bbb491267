// "Not supported, because": the one answer of every question whether a model, a plan or a schedule can be
// handled. An empty std::optional<Unsupported> means that it can.
#pragma once

#include <string>

namespace core {

struct Unsupported {
    std::string reason;  // in words, with the figures of the case: "heads = 12 of layers.0.attention.core"
    // The degree asked for does not divide an extent of the model: another degree may be supported.
    bool is_indivisible = false;

    bool operator==(const Unsupported&) const = default;
};

}  // namespace core
