#include "interop/expression.h"

#include <algorithm>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "core/document.h"
#include "core/index/integers.h"
#include "model/operators/rank_share.h"
#include "schedule/pipeline/registry.h"

namespace interop {

namespace {

int degree_of(const schedule::ParallelLayout& layout, char letter) {
    return letter == 'D' ? layout.data : letter == 'T' ? layout.tensor : layout.pipeline;
}

std::string without_ones(const schedule::ParallelLayout& layout, std::string_view order) {
    std::string kept;
    for (const char letter : order)
        if (degree_of(layout, letter) > 1) kept += letter;
    return kept;
}

}  // namespace

bool numbers_alike(const schedule::ParallelLayout& layout, std::string_view order) {
    return without_ones(layout, layout.order) == without_ones(layout, order);
}

std::vector<std::int32_t> even_layers(const model::ModelGraph& graph, int stages) {
    const auto layers = core::count_of(graph.units) - 2;
    if (layers < stages || layers % stages != 0) return {};
    if (graph.units.front().name != "embedding" || graph.units.back().name != "head") return {};
    for (std::int32_t layer = 0; layer < layers; ++layer)
        if (graph.units[static_cast<std::size_t>(layer) + 1].name != "layers." + std::to_string(layer))
            return {};
    std::vector<std::int32_t> first(stages, 0);
    for (std::int32_t stage = 1; stage < stages; ++stage) first[stage] = 1 + stage * (layers / stages);
    return first;
}

std::string placement_note(const schedule::ParallelLayout& layout) {
    static const std::pair<char, const char*> names[] = {{'D', "data"}, {'T', "tensor"}, {'P', "pipeline"}};
    std::string axes;
    for (const char letter : layout.order)
        for (const auto& [known, name] : names)
            if (known == letter)
                axes += fmt::format("{}{} {}", axes.empty() ? "" : ", ", name, degree_of(layout, letter));
    return fmt::format("placement: {} ranks in order {} (slowest to fastest: {})", layout.ranks(),
                       layout.order, axes);
}

int processes_per_node(const ExportSource& source) {
    const int ranks = source.file.plan.layout.ranks(), nodes = source.cluster.nodes;
    return ranks % nodes == 0 ? ranks / nodes : 0;
}

std::string one_line(const core::Value& value) {
    std::string text = core::to_json(value, 0);
    std::erase(text, '\n');
    return text;
}

Expression::Expression(const ExportSource& source, std::string target, core::Diagnostics& diagnostics)
    : plan(source.file.plan),
      source(source),
      target_(std::move(target)),
      diagnostics_(diagnostics),
      errors_before_(diagnostics.error_count()) {
    if (plan.tensor_overlap > 1 && plan.layout.tensor > 1)
        refuse("tensor_overlap", std::to_string(plan.tensor_overlap),
               "none of its keys says into how many pieces products run beside their exchange",
               "set tensor_overlap = 1");
}

void Expression::refuse_parts_of_data_axis() {
    if (plan.layout.context > 1)
        refuse("context_parallel", std::to_string(plan.layout.context),
               "its export here knows no context parallelism", "set context_parallel = 1");
    refuse_expert_parallel();
}

void Expression::refuse_expert_parallel() {
    if (plan.layout.expert_ranks() > 1)
        refuse("expert_parallel", std::to_string(plan.layout.expert_ranks()),
               "its export here knows no expert parallelism", "set expert_parallel = 1");
}

void Expression::refuse_whole_experts(const std::string& why) {
    if (plan.layout.spreads_experts_over_tensor())
        refuse("expert_tensor_parallel", "1", why, "leave it out, or set tensor_parallel = 1");
}

void Expression::refuse_offload() {
    refuse_activation_offload();
    refuse_optimizer_offload();
    refuse_parameter_offload();
}

void Expression::refuse_activation_offload() {
    if (plan.offload != schedule::Offload::none)
        refuse("offload", std::string(schedule::name_of(plan.offload)),
               "its export here keeps activations on the device", "set offload = \"none\"");
}

void Expression::refuse_optimizer_offload() {
    if (plan.updates_on_hosts())
        refuse("optimizer_offload", std::string(schedule::name_of(plan.optimizer_offload)),
               "its export here keeps the optimizer on the device", "set optimizer_offload = \"none\"");
}

void Expression::refuse_parameter_offload() {
    if (plan.keeps_parameters_on_hosts())
        refuse("parameter_offload", std::string(schedule::name_of(plan.parameter_offload)),
               "its export here keeps parameters on the device", "set parameter_offload = \"none\"");
}

void Expression::refuse_optimizer_offload_alone() {
    if (plan.updates_on_hosts() && !plan.keeps_parameters_on_hosts())
        refuse("optimizer_offload", std::string(schedule::name_of(plan.optimizer_offload)),
               "it keeps parameters and optimizer on the hosts, or neither",
               "set parameter_offload = \"host\" too, or optimizer_offload = \"none\"");
}

core::SourceLocation Expression::place(std::string_view key) const {
    if (const core::Value* value = source.plan_table.find(key)) return value->location;
    core::SourceLocation location = source.plan_table.location;
    if (location.file.empty()) location.file = source.file.path;
    return location;
}

void Expression::refuse(std::string_view key, const std::string& value, const std::string& why,
                        const std::string& change) {
    diagnostics_.error(place(key), "plan." + std::string(key),
                       fmt::format("{} = {} cannot be expressed by {}: {}", key, value, target_, why),
                       change);
}

void Expression::refuse_outside_plan(const std::string& key, const std::string& value, const std::string& why,
                                     const std::string& change) {
    diagnostics_.error({source.file.path, 0, 0}, key,
                       fmt::format("{} = {} cannot be expressed by {}: {}", key.substr(key.rfind('.') + 1),
                                   value, target_, why),
                       change);
}

void Expression::warn(std::string_view key, const std::string& message, const std::string& hint) {
    diagnostics_.warning(place(key), "plan." + std::string(key), message, hint);
}

void Expression::leave_to_script(const std::string& item) { left_.push_back(item); }

int take_mesh(const FsdpMesh& mesh, schedule::ParallelLayout& layout) {
    layout.data = mesh.dp_replicate * mesh.dp_shard * mesh.cp;
    layout.context = mesh.cp;
    layout.tensor = mesh.tp;
    return mesh.dp_shard * mesh.cp;
}

FsdpMesh Expression::fsdp_mesh() {
    const int degree = plan.effective_shard_degree(), context = plan.layout.context;
    // Stages of a pipeline accumulate whole gradients: there optimizer state alone is divided.
    if (degree > 1 && plan.sharding == schedule::Sharding::optimizer && plan.layout.pipeline == 1)
        refuse("sharding", "\"optimizer\"", "FSDP shards gradients with the optimizer's state",
               "set sharding to \"gradients\" or \"parameters\"");
    if (degree % context != 0)
        refuse("context_parallel", std::to_string(context),
               "it divides state over the ranks of context parallelism too",
               "set sharding to \"gradients\" or \"parameters\", over a multiple of context_parallel ranks");
    refuse_communication(schedule::ContextCommunication::all_to_all,
                         "its context parallelism passes keys and values, not heads");
    if (!plan.overlaps_gradient_reduction && plan.layout.data > 1)
        refuse("overlaps_gradient_reduction", "false", "it always reduces beside the backward pass",
               "set overlaps_gradient_reduction = true");
    if (!plan.overlaps_parameter_gathering && degree > 1)
        refuse("overlaps_parameter_gathering", "false", "FSDP always gathers ahead",
               "set overlaps_parameter_gathering = true");
    return {.dp_replicate = plan.layout.data / degree,
            .dp_shard = std::max(1, degree / context),
            .cp = context,
            .tp = plan.layout.tensor};
}

void Expression::refuse_virtual_stages() {
    if (plan.virtual_stages > 1)
        refuse("virtual_stages", std::to_string(plan.virtual_stages),
               "it has one model chunk per pipeline rank", "set virtual_stages = 1");
}

void Expression::refuse_pipeline(const std::string& change) {
    if (plan.layout.pipeline > 1)
        refuse("pipeline_parallel", std::to_string(plan.layout.pipeline), "it has no pipeline parallelism",
               change);
    const schedule::PipelineSchedule* chosen = schedule::find_pipeline_schedule(plan.schedule);
    if (chosen && (chosen->is_forward_only || chosen->is_asynchronous))
        refuse("schedule", '"' + plan.schedule + '"', "it accumulates gradients over the micro-batches",
               "leave schedule out");
    refuse_virtual_stages();
}

void Expression::require_schedule(const std::vector<std::string>& names) {
    const schedule::PipelineSchedule* chosen = schedule::find_pipeline_schedule(plan.schedule);
    const std::string name = chosen ? chosen->name : plan.schedule;
    if (std::find(names.begin(), names.end(), name) != names.end()) return;
    // With one stage every schedule that trains is gradient accumulation.
    if (plan.stages() == 1 && !(chosen && (chosen->is_forward_only || chosen->is_asynchronous))) return;
    std::vector<std::string> quoted;
    for (const std::string& known : names) quoted.push_back('"' + known + '"');
    refuse("schedule", '"' + plan.schedule + '"', "it has no such schedule",
           "use " + core::list_in_words(quoted));
}

std::string Expression::require_order(const std::vector<std::string>& orders) {
    for (const std::string& order : orders)
        if (numbers_alike(plan.layout, order)) return order;
    refuse("order", '"' + plan.layout.order + '"', "it numbers ranks in another order",
           "set order to " + core::list_in_words(orders) +
               ", and simulate again: the placement on the network changes");
    return orders.front();
}

void Expression::refuse_sequence_parallel(const std::string& why) {
    if (plan.has_sequence_parallelism())
        refuse("sequence_parallel", "true", why, "set sequence_parallel = false");
}

std::optional<std::int64_t> Expression::shared_heads() const {
    for (const model::Operator& op : source.graph.operators)
        if (model::gathers_projection(op, plan.cost_context())) return op.attributes.kv_heads;
    return std::nullopt;
}

void Expression::refuse_shared_heads(const std::string& why) {
    if (const std::optional<std::int64_t> heads = shared_heads())
        refuse("tensor_parallel", std::to_string(plan.layout.tensor), why,
               fmt::format("use at most {}, the heads of keys and values, or export to megatron", *heads));
}

void Expression::refuse_recompute(schedule::Recompute recompute, const std::string& why) {
    if (plan.recompute == recompute)
        refuse("recompute", fmt::format("\"{}\"", schedule::name_of(recompute)), why,
               "use another value of recompute");
}

void Expression::refuse_recompute_layers(const std::string& why) {
    if (plan.recomputes_some_layers())
        refuse("recompute_layers", schedule::recompute_layers_text(plan), why,
               "leave recompute_layers out: all layers then run again");
}

void Expression::refuse_recompute_layers_by_stage(const std::string& why) {
    if (plan.recomputes_by_stage())
        refuse("recompute_layers", schedule::recompute_layers_text(plan), why,
               fmt::format("set recompute_layers = {}",
                           *std::max_element(plan.recompute_layers_by_stage.begin(),
                                             plan.recompute_layers_by_stage.end())));
}

void Expression::refuse_recompute_module(schedule::RecomputeModule module, const std::string& why) {
    if (plan.runs_again(module))
        refuse("recompute_modules", core::in_quotes(schedule::name_of(module)), why,
               "leave it out of recompute_modules");
}

void Expression::refuse_recompute_modules_but(schedule::RecomputeModules known, const std::string& why) {
    for (const schedule::RecomputeModule module : schedule::all_recompute_modules)
        if (!known.has(module)) refuse_recompute_module(module, why);
}

void Expression::refuse_communication(schedule::ContextCommunication how, const std::string& why,
                                      schedule::ContextCommunication instead) {
    if (plan.cost_context().communicates(how))
        refuse("context_communication", core::in_quotes(schedule::name_of(how)), why,
               fmt::format("set context_communication = \"{}\"", schedule::name_of(instead)));
}

void Expression::require_plain_precision() {
    const schedule::Precision& p = plan.precision;
    const bool is_low = p.compute == core::DataType::fp16 || p.compute == core::DataType::bf16;
    const schedule::Precision plain{.compute = p.compute,
                                    .parameters = p.compute,
                                    .gradients = p.compute,
                                    .has_master_parameters = is_low};
    if (p == plain && (is_low || p.compute == core::DataType::fp32)) return;
    refuse("precision",
           fmt::format("{{ compute = {}, parameters = {}, gradients = {}, master_parameters = {} }}",
                       core::name_of(p.compute), core::name_of(p.parameters), core::name_of(p.gradients),
                       p.has_master_parameters),
           "it has one type for all, with fp32 master parameters beside 16-bit ones",
           "set precision to \"fp32\", \"fp16\" or \"bf16\"");
}

void Expression::leave_collective_to_environment() {
    if (plan.communication != "auto" && plan.communication != "nccl")
        leave_to_script(
            fmt::format("communication = \"{}\" (the process group's backend)", plan.communication));
    if (plan.collective == "auto") return;
    if (plan.collective == "ring" || plan.collective == "tree")
        leave_to_script(fmt::format("collective = \"{}\" (environment: NCCL_ALGO={})", plan.collective,
                                    plan.collective == "ring" ? "Ring" : "Tree"));
    else
        refuse("collective", '"' + plan.collective + '"', "NCCL_ALGO has Ring and Tree only",
               "set collective = \"auto\"");
}

void Expression::leave_optimizer_to_script() {
    leave_to_script(fmt::format("training.optimizer = \"{}\", learning_rate = {}",
                                schedule::name_of(plan.optimizer.kind), plan.optimizer.learning_rate));
}

bool Expression::finish() {
    if (!is_good()) return false;
    if (!left_.empty()) {
        std::string list;
        for (const std::string& item : left_) list += (list.empty() ? "" : "; ") + item;
        diagnostics_.warning({source.file.path, 0, 0}, "",
                             fmt::format("{} leaves to the training script: {}", target_, list),
                             "see that the script does so");
    }
    return true;
}

}  // namespace interop
