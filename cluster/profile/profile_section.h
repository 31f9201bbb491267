// One section of a profile: figures, each with its source and date.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/topology.h"
#include "core/reader.h"

namespace cluster {

// Facts gathered while a profile is read, beside the figures.
struct ProfileContext {
    core::Diagnostics& diagnostics;
    std::map<std::string, Provenance>& provenance;
    bool must_have_provenance = false;  // lint: a figure without source or date is an error
};

// A table whose keys `source`, `date`, `confidence` hold for all its figures and `KEY_source`, `KEY_date`,
// `KEY_confidence` for one of them.
class ProfileSection {
public:
    ProfileSection(const core::Value& table, std::string path, ProfileContext& context);

    core::TableReader& reader() { return reader_; }
    bool has(std::string_view key) const { return reader_.has(key); }

    // Figures: nothing when absent or diagnosed.
    std::optional<core::Bytes> bytes(std::string_view key);
    std::optional<core::Seconds> seconds(std::string_view key);
    std::optional<core::BytesPerSecond> bytes_per_second(std::string_view key);
    std::optional<core::FlopsPerSecond> flops_per_second(std::string_view key);
    std::optional<std::int64_t> integer(std::string_view key, core::IntegerRange range);
    std::optional<double> real(std::string_view key, core::RealRange range);
    std::optional<double> efficiency(std::string_view key);  // in (0, 1]
    std::optional<bool> boolean(std::string_view key);
    // Absence or zero is diagnosed.
    core::Bytes required_bytes(std::string_view key);
    core::BytesPerSecond required_bytes_per_second(std::string_view key);
    core::FlopsPerSecond required_flops_per_second(std::string_view key);
    double required_efficiency(std::string_view key);

    // Registers the provenance of a key that is read by other means.
    void figure(std::string_view key);

    void finish() { reader_.finish(); }

private:
    template <class Quantity>
    std::optional<Quantity> plausible(std::string_view key, std::optional<Quantity> value);
    template <class Quantity>
    Quantity positive(std::string_view key, std::optional<Quantity> value);
    void check_provenance(std::string_view key, const Provenance& provenance);

    core::TableReader reader_;
    std::string path_;
    ProfileContext& context_;
    Provenance default_;
};

// "2026-07-20", "2026-07" or "2026".
bool is_date(std::string_view text);
// "device.host_dispatch is assumed: SOURCE (DATE)" of every assumed entry, in order.
std::vector<std::string> notes_of_assumptions(const std::map<std::string, Provenance>& provenance);

}  // namespace cluster
