#include "sim/report/ablation.h"

#include <algorithm>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "core/diagnostics.h"
#include "core/display/text_table.h"
#include "schedule/pipeline/registry.h"
#include "schedule/plan/plan_file.h"
#include "sim/cost/framework/framework_catalogue.h"

namespace sim {

namespace {

using core::Value;

// The plan's own words for its values, to be shown.
std::string shown(const Value& plan, const char* key) {
    const Value* value = plan.find(key);
    if (value == nullptr) return "default";
    switch (value->kind()) {
        case Value::Kind::string: return value->string();
        case Value::Kind::boolean: return value->boolean() ? "true" : "false";
        case Value::Kind::integer: return std::to_string(value->integer());
        case Value::Kind::table: {
            const Value* compute = value->find("compute");
            return compute != nullptr && compute->is_string() ? compute->string() : "a table";
        }
        case Value::Kind::null:
        case Value::Kind::real:
        case Value::Kind::array: return std::string(core::name_of(value->kind()));
    }
    throw core::InternalError("broken promise: every kind of value can be shown");
}

void add_schedule(const schedule::Plan& plan, std::vector<Optimisation>& found) {
    if (plan.layout.pipeline == 1 || plan.schedule == "simple") return;
    const schedule::PipelineSchedule* order = schedule::find_pipeline_schedule(plan.schedule);
    if (order != nullptr && order->is_forward_only) return;
    Optimisation one{"schedule", plan.schedule, "simple", {{"plan.schedule", "simple"}}};
    if (plan.virtual_stages > 1) {
        one.from += fmt::format(", {} virtual stages", plan.virtual_stages);
        one.off.push_back({"plan.virtual_stages", Value()});
    }
    for (const char* key : {"plan.group_size", "plan.active_micro_batches", "plan.partition"})
        one.off.push_back({key, Value()});
    found.push_back(std::move(one));
}

// Whole experts on tensor ranks go with it: every one of these routes its own tokens.
void add_sequence_parallelism(const schedule::Plan& plan, std::vector<Optimisation>& found) {
    if (!plan.has_sequence_parallelism()) return;
    const bool is_of_experts = plan.layout.spreads_experts_over_tensor();
    found.push_back({is_of_experts ? "sequence parallelism, whole experts" : "sequence parallelism",
                     "true",
                     "false",
                     {{"plan.sequence_parallel", false}}});
    if (is_of_experts) {
        found.back().off.emplace_back("plan.expert_tensor_parallel", Value());
        found.back().off.emplace_back("plan.expert_parallel", plan.layout.expert);
    }
}

void add_recomputation(const schedule::Plan& plan, std::vector<Optimisation>& found) {
    if (plan.recompute != schedule::Recompute::none)
        found.push_back({"recomputation",
                         std::string(schedule::name_of(plan.recompute)),
                         "none",
                         {{"plan.recompute", "none"},
                          {"plan.recompute_layers", Value()},
                          {"plan.recompute_modules", Value()}}});
    if (plan.recomputes_some_layers())
        found.push_back({"recomputed layers",
                         schedule::recompute_layers_text(plan),
                         "all",
                         {{"plan.recompute_layers", Value()}}});
    if (plan.runs_chosen_modules_again())
        found.push_back({"recomputed modules",
                         fmt::format("{}", fmt::join(schedule::names_of(plan.recompute_modules), ", ")),
                         "core_attn",
                         {{"plan.recompute_modules", Value()}}});
}

void set_key(Value& document, const std::string& key, const Value& value) {
    const std::size_t dot = key.find('.');
    Value& table = document[key.substr(0, dot)];
    const std::string member = key.substr(dot + 1);
    if (value.is_null()) {
        if (table.is_table())
            std::erase_if(table.members(), [&](const auto& entry) { return entry.first == member; });
        return;
    }
    table[member] = value;
}

void switch_off(Value& document, const Optimisation& optimisation) {
    for (const auto& [key, value] : optimisation.off) set_key(document, key, value);
}

AblationRow row_of(std::optional<std::size_t> optimisation, const Value& document,
                   const PredictAblated& predict) {
    core::Diagnostics why;
    AblationRow row{optimisation, predict(document, why), {}};
    if (row.result) return row;
    for (const core::Diagnostic& entry : why.entries())
        if (row.reason.empty()) row.reason = entry.message;
    return row;
}

// Rows of one of the two tables; what is not possible says why below it.
class AblationTable {
public:
    void add(const std::string& name, const AblationRow& row, core::Seconds beside) {
        if (!row.result) {
            refusals_ += fmt::format("  {}: not possible: {}\n", name, row.reason);
            return;
        }
        table_.add({name, core::format(row.result->step),
                    fmt::format("{:+.1f} %", 100 * (row.result->step / beside - 1)),
                    core::format(row.result->peak_memory), row.result->fits ? "" : "*"});
        has_too_large_ = has_too_large_ || !row.result->fits;
    }
    std::string text() const {
        return table_.text() + (has_too_large_ ? "  * does not fit\n" : "") + refusals_;
    }

private:
    core::TextTable table_{{"", "step", "change", "peak", ""}};
    bool has_too_large_ = false;
    std::string refusals_;
};

Value row_value(const Ablation& ablation, const AblationRow& row) {
    Value value = Value::table();
    if (row.optimisation) {
        const Optimisation& one = ablation.optimisations[*row.optimisation];
        value["name"] = one.name;
        value["from"] = one.from;
        value["to"] = one.to;
    } else {
        value["name"] = "none";
    }
    value["step_time_s"] = row.result ? Value(row.result->step.value) : Value();
    value["difference_s"] = row.result ? Value((row.result->step - ablation.full.step).value) : Value();
    value["peak_memory_gib"] = row.result ? Value(core::to_gibibytes(row.result->peak_memory)) : Value();
    value["fits"] = row.result ? Value(row.result->fits) : Value();
    if (!row.result) value["reason"] = row.reason;
    return value;
}

// Those of `names` in their order; all without names.
std::optional<std::vector<Optimisation>> choose(std::vector<Optimisation> all,
                                                const std::vector<std::string>& names,
                                                core::Diagnostics& diagnostics) {
    if (names.empty()) return all;
    std::vector<Optimisation> chosen;
    for (const std::string& name : names) {
        const auto found =
            std::find_if(all.begin(), all.end(), [&](const Optimisation& one) { return one.name == name; });
        if (found != all.end()) {
            chosen.push_back(*found);
            continue;
        }
        std::vector<std::string> known;
        for (const Optimisation& one : all) known.push_back(one.name);
        diagnostics.error({}, "--only", "the plan has no optimisation '" + name + "'",
                          "it has: " + core::list_in_words(known));
    }
    if (chosen.size() < names.size()) return std::nullopt;
    return chosen;
}

}  // namespace

std::vector<Optimisation> optimisations_of(const schedule::Plan& plan) {
    const Value written = schedule::to_value(plan);
    std::vector<Optimisation> found;
    const auto add = [&](bool is_on, const char* name, const char* key, Value off, const char* to) {
        if (is_on)
            found.push_back({name, shown(written, key), to, {{std::string("plan.") + key, std::move(off)}}});
    };
    const bool has_data = plan.layout.replicas() > 1;
    add(plan.attention != model::AttentionImplementation::unfused, "attention", "attention", "unfused",
        "unfused");
    add(plan.fused_cross_entropy, "fused cross entropy", "fused_cross_entropy", false, "false");
    add(has_data && plan.overlaps_gradient_reduction, "overlapped gradient reduction",
        "overlaps_gradient_reduction", false, "false");
    add(has_data && plan.sharding == schedule::Sharding::parameters && plan.overlaps_parameter_gathering,
        "overlapped parameter gathering", "overlaps_parameter_gathering", false, "false");
    add(has_data && plan.communication != "auto" && plan.communication != "nccl", "communication library",
        "communication", "nccl", "nccl");
    add(has_data && plan.collective != "auto", "collective algorithm", "collective", Value(),
        "the library's");
    add(plan.tensor_overlap > 1 && plan.layout.tensor > 1, "products in pieces", "tensor_overlap", 1, "1");
    const auto communicates = [context = plan.cost_context()](schedule::ContextCommunication how) {
        return context.communicates(how);
    };
    add(communicates(schedule::ContextCommunication::all_to_all), "exchanged heads", "context_communication",
        Value(), "all_gather");
    add(communicates(schedule::ContextCommunication::ring), "keys in a ring", "context_communication",
        Value(), "all_gather");
    add_sequence_parallelism(plan, found);
    add_schedule(plan, found);
    add_recomputation(plan, found);
    if (plan.offload != schedule::Offload::none)
        found.push_back({"offload",
                         shown(written, "offload"),
                         "none",
                         {{"plan.offload", "none"},
                          {"plan.activation_loading_horizon", Value()},
                          {"plan.offload_bandwidth", Value()}}});
    if (has_data && plan.sharding != schedule::Sharding::none)
        found.push_back({"sharding",
                         shown(written, "sharding"),
                         "none",
                         {{"plan.sharding", "none"}, {"plan.shard_degree", Value()}}});
    const int shards = plan.effective_shard_degree();
    add(plan.sharding != schedule::Sharding::none && shards < plan.layout.data, "hybrid sharding",
        "shard_degree", Value(), "all replicas");
    if (plan.precision.compute == core::DataType::fp8)
        found.push_back({"fp8", "fp8", "bf16", {{"plan.precision", "bf16"}}});
    else add(plan.precision.compute != core::DataType::fp32, "precision", "precision", "fp32", "fp32");
    if (!plan.framework.empty())
        if (const std::optional<std::string>& parent = framework_profile(plan.framework).extends)
            found.push_back({"framework", plan.framework, *parent, {{"plan.framework", *parent}}});
    return found;
}

std::optional<Ablation> ablate(const Value& document, const schedule::Plan& plan,
                               const PredictAblated& predict, core::Diagnostics& diagnostics,
                               const std::vector<std::string>& only) {
    std::optional<std::vector<Optimisation>> chosen = choose(optimisations_of(plan), only, diagnostics);
    if (!chosen) return std::nullopt;
    const std::optional<AblatedStep> full = predict(document, diagnostics);
    if (!full) return std::nullopt;
    Ablation ablation{*full, std::move(*chosen), {}, {}};
    const std::size_t count = ablation.optimisations.size();
    for (std::size_t i = 0; i < count; ++i) {
        Value changed = document;
        switch_off(changed, ablation.optimisations[i]);
        ablation.without.push_back(row_of(i, changed, predict));
    }
    // `on`: the first so many are added already.
    for (std::size_t on = 0; on <= count; ++on) {
        Value changed = document;
        // Backwards: where two set one key, what would be added first stands.
        for (std::size_t i = count; i-- > on;) switch_off(changed, ablation.optimisations[i]);
        ablation.added.push_back(row_of(on == 0 ? std::nullopt : std::optional(on - 1), changed, predict));
    }
    return ablation;
}

std::string text_of(const Ablation& ablation) {
    if (ablation.optimisations.empty()) return "The plan has no optimisation to switch off.\n";
    std::string text = fmt::format("The plan: {} a step, {}{}\n\nWithout one of its optimisations\n",
                                   core::format(ablation.full.step), core::format(ablation.full.peak_memory),
                                   ablation.full.fits ? "" : ", does not fit");
    AblationTable without, added;
    for (const AblationRow& row : ablation.without) {
        const Optimisation& one = ablation.optimisations[*row.optimisation];
        without.add(fmt::format("{}: {} -> {}", one.name, one.from, one.to), row, ablation.full.step);
    }
    text += without.text() + "\nOne after another (change against the row before)\n";
    std::optional<core::Seconds> before;
    for (const AblationRow& row : ablation.added) {
        std::string name = "none of them";
        if (row.optimisation) {
            const Optimisation& one = ablation.optimisations[*row.optimisation];
            name = fmt::format("+ {}: {}", one.name, one.from);
        }
        const core::Seconds beside = before ? *before : row.result ? row.result->step : core::seconds(1);
        added.add(name, row, beside);
        if (row.result) before = row.result->step;
    }
    return text + added.text();
}

Value to_value(const Ablation& ablation) {
    Value value = Value::table();
    value["step_time_s"] = ablation.full.step.value;
    value["peak_memory_gib"] = core::to_gibibytes(ablation.full.peak_memory);
    value["fits"] = ablation.full.fits;
    value["without"] = Value::array();
    value["added"] = Value::array();
    for (const AblationRow& row : ablation.without) value["without"].append(row_value(ablation, row));
    for (const AblationRow& row : ablation.added) value["added"].append(row_value(ablation, row));
    return value;
}

}  // namespace sim
