// Programs of every registered schedule under every axis of a plan: how many there are, one digest of all of
// them, and how long lowering takes. A change that leaves the lowering as it was leaves the digest as it was;
// with an argument the hash of every Program goes to that file, a line each, to be compared.
#include <fmt/core.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <string>
#include <vector>

#include "core/diagnostics.h"
#include "core/document.h"
#include "core/errors.h"
#include "model/load.h"
#include "model/model_graph.h"
#include "schedule/pass/lower.h"
#include "schedule/pipeline/registry.h"
#include "schedule/plan/partition.h"
#include "schedule/plan/plan_file.h"
#include "schedule/program/program.h"

namespace {

using schedule::Plan;

model::ModelGraph model_of(const std::string& toml) {
    core::Diagnostics diagnostics;
    const auto document = core::parse_toml(toml, "bench", diagnostics);
    auto graph = document ? model::load_model(*document, {}, diagnostics) : std::nullopt;
    if (!graph) throw core::InternalError(core::format(diagnostics));
    return std::move(*graph);
}

struct Variant {
    std::string name;
    void (*set)(Plan&);
};

// One axis after the other; a plan takes one of each group.
const std::vector<std::vector<Variant>> axes = {
    {{"d1", [](Plan&) {}},
     {"d2", [](Plan& p) { p.layout.data = 2; }},
     {"d4", [](Plan& p) { p.layout.data = 4; }},
     {"cp2", [](Plan& p) { p.layout.data = p.layout.context = 2; }},
     {"cp2 of d4", [](Plan& p) { p.layout.data = 4, p.layout.context = 2; }},
     {"ep2", [](Plan& p) { p.layout.data = p.layout.expert = 2; }},
     {"ep2 of d4", [](Plan& p) { p.layout.data = 4, p.layout.expert = 2; }}},
    {{"zero 0", [](Plan&) {}},
     {"zero 1", [](Plan& p) { p.sharding = schedule::Sharding::optimizer; }},
     {"zero 2", [](Plan& p) { p.sharding = schedule::Sharding::gradients; }},
     {"zero 3", [](Plan& p) { p.sharding = schedule::Sharding::parameters; }},
     {"zero 2 in pairs", [](Plan& p) { p.sharding = schedule::Sharding::gradients, p.shard_degree = 2; }},
     {"zero 3 in pairs", [](Plan& p) { p.sharding = schedule::Sharding::parameters, p.shard_degree = 2; }}},
    {{"t1", [](Plan&) {}},
     {"t2", [](Plan& p) { p.layout.tensor = 2; }},
     {"t2 sp", [](Plan& p) { p.layout.tensor = 2, p.sequence_parallel = true; }}},
    {{"keeps", [](Plan&) {}},
     {"selective", [](Plan& p) { p.recompute = schedule::Recompute::selective; }},
     {"full", [](Plan& p) { p.recompute = schedule::Recompute::full; }},
     {"offload", [](Plan& p) { p.offload = schedule::Offload::host, p.activation_loading_horizon = 1; }},
     {"offload, full",
      [](Plan& p) {
          p.offload = schedule::Offload::host, p.activation_loading_horizon = 3;
          p.recompute = schedule::Recompute::full;
      }}},
    {{"adamw", [](Plan&) {}},
     {"clips, in turn",
      [](Plan& p) {
          p.optimizer.gradient_clipping = 1;
          p.overlaps_gradient_reduction = p.overlaps_parameter_gathering = false;
      }},
     {"lamb", [](Plan& p) { p.optimizer.kind = schedule::OptimizerKind::lamb; }}},
};

struct Totals {
    std::int64_t programs = 0, instructions = 0;
    std::uint64_t digest = 14695981039346656037u;  // FNV-1a over the Programs' own hashes
    std::clock_t clocks = 0;                       // of the processor, in lower() alone
    std::ofstream list;
};

void add(Plan plan, const model::ModelGraph& graph, const std::string& name, bool trains, Totals& totals) {
    core::Diagnostics diagnostics;
    schedule::check_plan(plan, graph, plan.layout.ranks(), nullptr, diagnostics);
    if (diagnostics.has_errors()) return;
    const auto partition = schedule::complete_partition(plan, graph);
    if (!partition) return;
    plan.partition = *partition;
    const auto order = schedule::make_schedule(plan, diagnostics);
    if (!order) return;
    const bool has_optimizer = trains && !order->is_forward_only;
    const std::clock_t start = std::clock();
    const schedule::Program program = schedule::lower(plan, graph, *order, {.has_optimizer = has_optimizer});
    totals.clocks += std::clock() - start;
    const std::string hash = schedule::hash_of(program);
    for (const char letter : hash)
        totals.digest = (totals.digest ^ static_cast<unsigned char>(letter)) * 1099511628211u;
    ++totals.programs;
    for (const schedule::RankProgram& list : program.classes)
        totals.instructions += std::ssize(list.instructions);
    if (totals.list.is_open()) totals.list << hash << ' ' << graph.name << ' ' << name << '\n';
}

void add_axes(const Plan& plan, std::size_t axis, const model::ModelGraph& graph, const std::string& name,
              Totals& totals) {
    if (axis == axes.size()) return add(plan, graph, name, true, totals);
    for (const Variant& variant : axes[axis]) {
        Plan next = plan;
        variant.set(next);
        add_axes(next, axis + 1, graph, name + ", " + variant.name, totals);
    }
}

void add_schedules(const model::ModelGraph& graph, Totals& totals) {
    for (const schedule::PipelineSchedule& candidate : schedule::pipeline_schedules())
        for (const int stages : {1, 2, 4})
            for (const int chunks : {1, 2}) {
                Plan plan;
                plan.schedule = candidate.name;
                plan.layout.pipeline = stages;
                plan.virtual_stages = chunks;
                plan.micro_batch = 2;
                plan.micro_batches = 4;
                plan.gradient_bucket = core::bytes(3000);
                if (plan.stages() > std::ssize(graph.units)) continue;
                const std::string name = fmt::format("{} {}x{}", candidate.name, stages, chunks);
                add_axes(plan, 0, graph, name, totals);
                add(plan, graph, name + ", without optimizer", false, totals);
            }
}

}  // namespace

int main(int count, char** arguments) {
    Totals totals;
    if (count > 1) totals.list.open(arguments[1]);
    const std::string sizes =
        "hidden = 16\nlayers = 7\nheads = 4\nvocabulary = 32\nmax_positions = 8\nsequence_length = 8\n";
    for (const std::string& model :
         {"family = 'gpt'\ndropout = 0.1\n" + sizes,
          "family = 'gpt'\ntied_embeddings = false\nattention_dropout = 0.1\n" + sizes,
          "family = 'mixtral'\nffn = 12\nkv_heads = 2\nexperts = 4\nexperts_per_token = 2\n" + sizes})
        add_schedules(model_of(model), totals);
    fmt::print("{} Programs, {} instructions, digest {:016x}, lowered in {:.2f} s of the processor\n",
               totals.programs, totals.instructions, totals.digest,
               static_cast<double>(totals.clocks) / CLOCKS_PER_SEC);
}
