// The facts that a framework profile may state: section and key of the file, the field of FrameworkTraits or
// FrameworkMemory that they fill, what they mean. A new fact is a field there and a line in the table.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "sim/cost/constants.h"
#include "sim/cost/framework/framework.h"
#include "sim/cost/framework/framework_memory.h"

namespace sim {

struct FrameworkFacts {
    FrameworkTraits traits;
    FrameworkMemory memory;
};

using FactField =
    std::variant<bool FrameworkTraits::*, int FrameworkTraits::*, double FrameworkTraits::*,
                 core::Seconds FrameworkTraits::*, core::Bytes FrameworkTraits::*,
                 core::BytesPerSecond FrameworkTraits::*, AttentionKernel FrameworkTraits::*,
                 ImageLayout FrameworkTraits::*, model::AttentionImplementation FrameworkTraits::*,
                 std::optional<core::DataType> FrameworkTraits::*, bool FrameworkMemory::*,
                 double FrameworkMemory::*, core::Bytes FrameworkMemory::*>;

struct FrameworkFact {
    const char* section;
    const char* key;  // the name of the field
    FactField field;
    const char* meaning;
    bool is_positive = false;  // a number that may not be zero
};

// In the order of the file format's documentation, section by section.
std::span<const FrameworkFact> framework_facts();

// Fills the field from a constant of the cost model. False when the constant counts something else than the
// field holds: milliseconds for a number, say.
bool can_hold(const FrameworkFact& fact, ConstantUnit unit);
void fill(FrameworkFacts& facts, const FrameworkFact& fact, double value, ConstantUnit unit);

// "true", "3 us", "flash": the value of the fact in words.
std::string value_in_words(const FrameworkFacts& facts, const FrameworkFact& fact);

std::string_view name_of(AttentionKernel kernel);
std::string_view name_of(ImageLayout layout);
std::string_view name_of(model::AttentionImplementation attention);

}  // namespace sim
