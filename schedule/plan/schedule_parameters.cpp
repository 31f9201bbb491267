#include "schedule/plan/schedule_parameters.h"

#include <string>
#include <utility>
#include <vector>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "core/diagnostics.h"
#include "core/index/integers.h"
#include "schedule/pipeline/registry.h"
#include "schedule/plan/explicit_order.h"

namespace schedule {
namespace {

constexpr core::IntegerRange number{.least = 0, .greatest = 1 << 20};

// One overload for each kind of parameters: its keys, read and written. What is not its default is listed.
struct Keys {
    core::TableReader* reader = nullptr;
    core::Value* table = nullptr;
    std::vector<std::string> asked = {};

    void integer(const char* key, int& value, int same_as_default = 0) {
        if (reader) value = core::narrow<int>(reader->integer(key, value, number));
        if (value > same_as_default) ask(key, value);
    }
    void boolean(const char* key, bool& value, bool by_default) {
        if (reader) value = reader->boolean(key, value);
        if (value != by_default) ask(key, value);
    }

private:
    template <typename T>
    void ask(const char* key, T value) {
        asked.push_back(key);
        if (table) (*table)[key] = value;
    }
};

void visit(Keys&, std::monostate&) {}
void visit(Keys& keys, AdmissionParameters& parameters) {
    keys.integer("active_micro_batches", parameters.active_micro_batches);
    keys.boolean("strict_order", parameters.is_strict, AdmissionParameters{}.is_strict);
}
void visit(Keys& keys, GroupParameters& parameters) { keys.integer("group_size", parameters.group_size); }
void visit(Keys& keys, SegmentParameters& parameters) {
    // One segment is the whole sequence, which every schedule passes on.
    keys.integer("segments", parameters.segments, keys.reader ? 1 : 0);
}

std::string schedules_that_take(std::size_t kind) {
    std::vector<std::string> names;
    for (const PipelineSchedule& schedule : pipeline_schedules())
        if (schedule.parameters.index() == kind) names.push_back(core::in_quotes(schedule.name));
    return fmt::format("{}", fmt::join(names, ", "));
}

template <std::size_t kind>
void read_kind(core::TableReader& reader, const PipelineSchedule* chosen, Plan& plan) {
    std::variant_alternative_t<kind, ScheduleParameters> given;
    Keys keys{.reader = &reader};
    visit(keys, given);
    if (chosen && chosen->parameters.index() == kind) {
        if (given != std::variant_alternative_t<kind, ScheduleParameters>{}) plan.schedule_parameters = given;
        return;
    }
    if (!chosen && !is_explicit_order(plan.schedule)) return;  // an unknown name is an error of its own
    for (const std::string& key : keys.asked)
        reader.error(
            key,
            fmt::format("schedule = {} takes no {}", core::in_quotes(schedule_label(plan.schedule)), key),
            fmt::format("leave it out, or choose a schedule that does: {}", schedules_that_take(kind)));
}

template <std::size_t... kinds>
void read_kinds(core::TableReader& reader, const PipelineSchedule* chosen, Plan& plan,
                std::index_sequence<kinds...>) {
    (read_kind<kinds>(reader, chosen, plan), ...);
}

}  // namespace

void read_schedule_parameters(core::TableReader& reader, Plan& plan) {
    read_kinds(reader, find_pipeline_schedule(plan.schedule), plan,
               std::make_index_sequence<std::variant_size_v<ScheduleParameters>>());
}

void write_schedule_parameters(const Plan& plan, core::Value& table) {
    const PipelineSchedule* chosen = find_pipeline_schedule(plan.schedule);
    if (!chosen) return;
    ScheduleParameters parameters = chosen->parameters_from(plan.schedule_parameters);
    Keys keys{.table = &table};
    std::visit([&](auto& of_kind) { visit(keys, of_kind); }, parameters);
}

}  // namespace schedule
