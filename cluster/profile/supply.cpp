#include "cluster/profile/supply.h"

#include "core/diagnostics.h"
#include "core/document.h"
#include "core/value.h"

namespace cluster {

namespace {

std::optional<double> number_of(const core::Value& table, std::string_view key) {
    const core::Value* value = table.find(key);
    if (value == nullptr || !value->is_number()) return std::nullopt;
    return value->number();
}

std::string text_of(const core::Value& table, std::string_view key) {
    const core::Value* value = table.find(key);
    return value != nullptr && value->is_string() ? value->string() : std::string();
}

}  // namespace

Supply supply_of(const InstanceType& instance, core::Diagnostics& diagnostics) {
    Supply supply;
    for (const std::string& file : instance.files) {
        const std::optional<core::Value> document = core::load_document(file, diagnostics);
        if (!document) continue;
        if (const core::Value* spot = document->find("spot"))
            if (const std::optional<double> least = number_of(*spot, "reclaimed_per_month_least"))
                supply.reclaims = ReclaimClass{*least, number_of(*spot, "reclaimed_per_month_most"),
                                               text_of(*spot, "date"), text_of(*spot, "source")};
        if (const core::Value* device = document->find("device"))
            if (const std::optional<double> watts = number_of(*device, "board_watts")) {
                supply.board_watts = watts;
                supply.board_watts_source = text_of(*device, "board_watts_source");
            }
    }
    return supply;
}

}  // namespace cluster
