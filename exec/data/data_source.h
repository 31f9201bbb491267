// Samples by their number.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "core/diagnostics_fwd.h"

namespace exec {

class DataSource {
public:
    virtual ~DataSource() = default;
    // The sample's tokens in order; language models take one more than their sequence length, labels being
    // the next tokens.
    virtual void tokens(std::int64_t sample, std::span<std::int64_t> into) const;
    virtual void image(std::int64_t sample, std::span<float> into) const;
    virtual std::int64_t label(std::int64_t sample, std::int64_t classes) const;
    // How many different samples there are, after which they begin again; nothing where they never do.
    virtual std::optional<std::int64_t> samples() const { return std::nullopt; }
    // For people: how much of what, and where it is.
    virtual std::string describe() const = 0;
    // Equal for equal samples, wherever they lie: checksums of the content ("1115394 bytes, xxh64 3f0c...").
    virtual std::string identity() const = 0;
};

// Where a data file is named: errors are told there.
struct DataReferrer {
    std::string key;  // "training.data"
    core::SourceLocation location;
};

}  // namespace exec
