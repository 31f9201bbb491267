#include "cluster/profile/profile_section.h"

#include <algorithm>

namespace cluster {

namespace {

const std::vector<std::string> confidences = {"measured", "vendor", "derived", "assumed"};

Provenance read_provenance(core::TableReader& reader, const std::string& prefix) {
    Provenance provenance;
    provenance.source = reader.string(prefix + "source", "");
    provenance.date = reader.string(prefix + "date", "");
    if (!provenance.date.empty() && !is_date(provenance.date))
        reader.error(prefix + "date",
                     reader.path_of(prefix + "date") + " = \"" + provenance.date + "\" is no date",
                     "write it as \"2026-07-20\", \"2026-07\" or \"2026\"");
    provenance.confidence = reader.optional_choice(prefix + "confidence", confidences).value_or("");
    return provenance;
}

}  // namespace

bool is_date(std::string_view text) {
    if (text.size() != 4 && text.size() != 7 && text.size() != 10) return false;
    for (std::size_t i = 0; i < text.size(); ++i) {
        bool is_dash = i == 4 || i == 7;
        if (is_dash ? text[i] != '-' : text[i] < '0' || text[i] > '9') return false;
    }
    const auto two_digits = [&](std::size_t at) { return (text[at] - '0') * 10 + (text[at + 1] - '0'); };
    if (text.size() >= 7 && (two_digits(5) < 1 || two_digits(5) > 12)) return false;
    return text.size() < 10 || (two_digits(8) >= 1 && two_digits(8) <= 31);
}

std::vector<std::string> notes_of_assumptions(const std::map<std::string, Provenance>& provenance) {
    std::vector<std::string> notes;
    for (const auto& [path, origin] : provenance)
        if (origin.confidence == "assumed")
            notes.push_back(path + " is assumed: " + origin.source +
                            (origin.date.empty() ? "" : " (" + origin.date + ")"));
    return notes;
}

ProfileSection::ProfileSection(const core::Value& table, std::string path, ProfileContext& context)
    : reader_(table, path, context.diagnostics),
      path_(std::move(path)),
      context_(context),
      default_(read_provenance(reader_, "")) {
    if (default_ != Provenance{}) context_.provenance[path_] = default_;
}

void ProfileSection::figure(std::string_view key) {
    if (!reader_.has(key)) return;
    Provenance own = read_provenance(reader_, std::string(key) + "_");
    const bool has_own = own != Provenance{};
    if (own.source.empty()) own.source = default_.source;
    if (own.date.empty()) own.date = default_.date;
    if (own.confidence.empty()) own.confidence = default_.confidence;
    if (has_own) context_.provenance[path_ + "." + std::string(key)] = own;
    if (context_.must_have_provenance) check_provenance(key, own);
}

void ProfileSection::check_provenance(std::string_view key, const Provenance& provenance) {
    const std::string place = reader_.path_of(key);
    for (const auto& [word, text] :
         {std::pair<std::string, const std::string&>{"source", provenance.source}, {"date", provenance.date}})
        if (text.empty())
            reader_.error(key, place + " has no " + word,
                          "add " + word + " = \"...\" to its section or " + std::string(key) + "_" + word +
                              " = \"...\" beside it");
}

// No figure of a machine, in base units, comes near this; products of such figures stay finite.
constexpr double largest_figure = 1e24;

template <class Quantity>
std::optional<Quantity> ProfileSection::plausible(std::string_view key, std::optional<Quantity> value) {
    if (!value || value->value <= largest_figure) return value;
    reader_.error(key, reader_.path_of(key) + " is beyond any machine", "check the unit");
    return std::nullopt;
}

template <class Quantity>
Quantity ProfileSection::positive(std::string_view key, std::optional<Quantity> value) {
    if (value && value->value == 0)
        reader_.error(key, reader_.path_of(key) + " is zero", "give a figure above zero");
    return value.value_or(Quantity());
}

std::optional<core::Bytes> ProfileSection::bytes(std::string_view key) {
    figure(key);
    return plausible(key, reader_.optional_bytes(key));
}

std::optional<core::Seconds> ProfileSection::seconds(std::string_view key) {
    figure(key);
    return plausible(key, reader_.optional_seconds(key));
}

std::optional<core::BytesPerSecond> ProfileSection::bytes_per_second(std::string_view key) {
    figure(key);
    return plausible(key, reader_.optional_bytes_per_second(key));
}

std::optional<core::FlopsPerSecond> ProfileSection::flops_per_second(std::string_view key) {
    figure(key);
    return plausible(key, reader_.optional_flops_per_second(key));
}

std::optional<std::int64_t> ProfileSection::integer(std::string_view key, core::IntegerRange range) {
    figure(key);
    return reader_.optional_integer(key, range);
}

std::optional<double> ProfileSection::real(std::string_view key, core::RealRange range) {
    figure(key);
    return reader_.optional_real(key, range);
}

std::optional<bool> ProfileSection::boolean(std::string_view key) {
    figure(key);
    return reader_.optional_boolean(key);
}

std::optional<double> ProfileSection::efficiency(std::string_view key) {
    std::optional<double> value = real(key, {.least = 0, .greatest = 1});
    if (value && *value == 0) {
        reader_.error(key, reader_.path_of(key) + " = 0 would never finish anything",
                      "give the achieved share of the peak, above 0 and at most 1");
        return std::nullopt;
    }
    return value;
}

core::Bytes ProfileSection::required_bytes(std::string_view key) {
    if (has(key)) return positive(key, bytes(key));
    return reader_.required_bytes(key);
}

core::BytesPerSecond ProfileSection::required_bytes_per_second(std::string_view key) {
    if (has(key)) return positive(key, bytes_per_second(key));
    return reader_.required_bytes_per_second(key);
}

core::FlopsPerSecond ProfileSection::required_flops_per_second(std::string_view key) {
    if (has(key)) return positive(key, flops_per_second(key));
    return reader_.required_flops_per_second(key);
}

double ProfileSection::required_efficiency(std::string_view key) {
    if (has(key)) return efficiency(key).value_or(1);
    reader_.required_real(key, {.least = 0, .greatest = 1});
    return 1;
}

}  // namespace cluster
