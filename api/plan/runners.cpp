#include "api/plan/runners.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <tuple>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "core/index/integers.h"
#include "exec/runtime/run.h"
#include "interop/expression.h"
#include "schedule/plan/plan_file.h"
#include "sim/cost/compute.h"

namespace api {

namespace {

constexpr schedule::Sharding shardings[] = {schedule::Sharding::none, schedule::Sharding::optimizer,
                                            schedule::Sharding::gradients, schedule::Sharding::parameters};

using Keys = std::set<std::string>;

// A refusal that hangs on how micro-batches pass, not on degrees and sharding alone.
bool is_of_passes(const std::string& key) {
    return key == "plan.schedule" || key == "plan.virtual_stages" || key == "plan.recompute" ||
           key == "plan.recompute_layers" || key == "plan.recompute_modules";
}

// What a runner takes of the plans of one model and cluster. Of plans whose partition is not chosen yet the
// answers are remembered by what refusals depend on: degrees and sharding; schedule and stages; how
// micro-batches pass through each kind of layout. Whole plans are asked about as they are.
class Taken {
public:
    Taken(Runner runner, const model::ModelGraph& graph, const cluster::Cluster& cluster)
        : runner_(std::move(runner)), source_(export_source(graph, cluster, {})) {}

    Keys refused(const schedule::Plan& plan) {
        const std::lock_guard lock(guard_);
        return refused_keys(plan);
    }
    bool may_take(const schedule::Plan& plan) {
        const std::lock_guard lock(guard_);
        return takes_layout(plan) && takes_schedule(plan) && takes_passes(plan);
    }
    // The only division of the model into so many stages; nothing: any is taken.
    std::optional<schedule::Partition> only_partition(const schedule::Plan& base, int stages) {
        const std::lock_guard lock(guard_);
        const auto [entry, is_new] = only_.try_emplace(stages);
        if (!is_new) return entry->second;
        schedule::Plan plan = base;
        plan.layout.pipeline = stages;
        if (refused_keys(divided(plan)).contains("plan.partition")) {
            entry->second.emplace();
            entry->second->first_units = interop::even_layers(source_.graph, stages);
        }
        return entry->second;
    }

private:
    Keys refused_keys(const schedule::Plan& plan) {
        source_.file.plan = plan;
        Keys keys;
        for (const interop::Refusal& refusal : refusals(runner_, source_)) keys.insert(refusal.key);
        return keys;
    }
    // With a partition that no tool makes by itself: one unit a stage, the last has all others.
    static schedule::Plan divided(schedule::Plan plan) {
        plan.partition = {};
        for (int stage = 0; stage < plan.stages() && plan.stages() > 1; ++stage)
            plan.partition.first_units.push_back(stage);
        return plan;
    }
    bool takes_layout(const schedule::Plan& plan) {
        const schedule::ParallelLayout& l = plan.layout;
        const auto [entry, is_new] = layouts_.try_emplace(
            {l.tensor, l.pipeline, l.context, l.expert, l.expert_tensor(), plan.effective_shard_degree(),
             core::position_of(plan.sharding), plan.has_sequence_parallelism(), plan.tensor_overlap > 1,
             core::position_of(plan.context_communication)});
        if (!is_new) return entry->second;
        schedule::Plan probe = plan;
        probe.schedule = schedule::Plan().schedule;
        probe.virtual_stages = 1;
        probe.keep_sequences_whole();
        probe.recompute = schedule::Recompute::none;
        probe.recompute_layers = 0;
        probe.recompute_layers_by_stage = {};
        const Keys keys = refused_keys(divided(probe));
        return entry->second = std::all_of(keys.begin(), keys.end(), [](const std::string& key) {
                   return is_of_passes(key) || key == "plan.partition";
               });
    }
    bool takes_schedule(const schedule::Plan& plan) {
        const auto [entry, is_new] = schedules_.try_emplace(plan.order_key());
        if (!is_new) return entry->second;
        const Keys keys = refused_keys(divided(plan));
        return entry->second = !keys.contains("plan.schedule") && !keys.contains("plan.virtual_stages");
    }
    bool takes_passes(const schedule::Plan& plan) {
        const schedule::ParallelLayout& l = plan.layout;
        const auto [entry, is_new] = passes_.try_emplace(
            {plan.schedule,
             std::array{core::position_of(plan.recompute),
                        plan.recomputes_by_stage() ? 2 : int{plan.recompute_layers > 0},
                        plan.recompute_modules.bits()},
             core::position_of(plan.sharding), plan.virtual_stages > 1, l.tensor > 1, l.pipeline > 1,
             l.data > 1, l.context > 1, l.expert_ranks() > 1, plan.tensor_overlap > 1});
        if (!is_new) return entry->second;
        Keys keys = refused_keys(divided(plan));
        keys.erase("plan.partition");
        return entry->second = keys.empty();
    }

    std::mutex guard_;
    Runner runner_;
    interop::ExportSource source_;
    std::map<int, std::optional<schedule::Partition>> only_;
    std::map<std::tuple<int, int, int, int, int, int, std::size_t, bool, bool, std::size_t>, bool> layouts_;
    std::map<schedule::Plan::OrderKey, bool> schedules_;
    std::map<
        std::tuple<std::string, std::array<int, 3>, std::size_t, bool, bool, bool, bool, bool, bool, bool>,
        bool>
        passes_;
};

// Replicas alone, their state divided so.
schedule::Plan replicas_of(schedule::Plan plan, const cluster::Cluster& cluster,
                           schedule::Sharding sharding) {
    plan.layout.data = cluster.device_count();
    plan.sharding = sharding;
    return plan;
}

// How parameters and gradients may be kept for this arithmetic: as its name says, summed as the framework
// does or in fp32, or cast from fp32 at every use.
std::vector<schedule::Precision> precisions_of(core::DataType compute, bool reduces_in_fp32) {
    const schedule::Precision named = schedule::precision_named(compute);
    std::vector<schedule::Precision> forms = {named, named, named, named};
    if (named.has_master_parameters && reduces_in_fp32) forms[0].gradients = core::DataType::fp32;
    if (named.has_master_parameters) {
        forms[2].gradients = core::DataType::fp32;
        forms[3] = {.compute = compute,
                    .parameters = core::DataType::fp32,
                    .gradients = core::DataType::fp32,
                    .has_master_parameters = false};
    }
    return forms;
}

// The base with the first precision and overlap that are taken with this sharding; nothing where none is.
std::optional<schedule::Plan> adapted(Taken& taken, const cluster::Cluster& cluster, schedule::Plan base,
                                      schedule::Sharding sharding, core::DataType compute) {
    const bool reduces_in_fp32 = base.precision.gradients == core::DataType::fp32;
    const auto refuses = [&](std::string_view key) {
        const Keys keys = taken.refused(replicas_of(base, cluster, sharding));
        return std::any_of(keys.begin(), keys.end(),
                           [&](const std::string& refused) { return refused.starts_with(key); });
    };
    bool has_precision = false;
    for (const schedule::Precision& precision : precisions_of(compute, reduces_in_fp32)) {
        base.precision = precision;
        if ((has_precision = !refuses("plan.precision"))) break;
    }
    if (!has_precision) return std::nullopt;
    for (const auto& [reduces, gathers] :
         {std::pair(true, true), {true, false}, {false, true}, {false, false}}) {
        base.overlaps_gradient_reduction = reduces;
        base.overlaps_parameter_gathering = gathers;
        if (!refuses("plan.overlaps_")) return base;
    }
    return std::nullopt;
}

// What the framework leaves to no option: its kernels of attention, buckets, the form of the loss, and the
// numbering of ranks.
schedule::Plan as_framework(Taken& taken, const Runner& runner, const model::ModelGraph& graph,
                            const cluster::Cluster& cluster, schedule::Plan base) {
    base.framework = runner.framework;
    if (!runner.framework.empty()) {
        const schedule::Plan run = planner::as_framework_runs(base);
        core::Diagnostics unpriced;
        if (sim::ComputeCost::make(graph, cluster.instance.device, run, unpriced)) base = run;
    }
    for (const char* order : {"PDT", "DPT", "TPD"}) {
        schedule::Plan probe = base;
        probe.layout = {.data = 2, .tensor = 2, .pipeline = 2, .order = order};
        if (taken.refused(probe).contains("plan.order")) continue;
        base.layout.order = order;
        break;
    }
    return base;
}

bool has_sequence_parallelism(Taken& taken, schedule::Plan probe) {
    probe.layout.tensor = 2;
    probe.sequence_parallel = true;
    return !taken.refused(probe).contains("plan.sequence_parallel");
}

}  // namespace

const std::vector<Runner>& runners() {
    static const std::vector<Runner> all = [] {
        std::vector<Runner> found;
        for (const interop::ExchangeTarget& target : interop::exchange_targets())
            if (!target.framework.empty()) {
                const std::size_t library = target.name.find("smp-");  // after its vendor
                found.push_back({target.name.substr(library == std::string::npos ? 0 : library), &target,
                                 target.framework});
            }
        found.push_back({"smexec", nullptr, ""});
        return found;
    }();
    return all;
}

std::vector<Runner> read_runners(Options& options) {
    std::vector<Runner> chosen;
    std::vector<std::string> names;
    for (const Runner& runner : runners()) names.push_back(runner.name);
    for (const std::string& text : options.list("--for")) {
        const auto found = std::find_if(runners().begin(), runners().end(), [&](const Runner& runner) {
            return runner.name == text || (runner.target && runner.target->name == text);
        });
        if (found == runners().end()) {
            const std::string near = core::did_you_mean(text, names);
            options.error(
                "--for", "--for = " + core::in_quotes(text) + " is nothing that plans are made for",
                (near.empty() ? "" : "did you mean " + near + "? ") + "use " + core::list_in_words(names));
        } else if (std::none_of(chosen.begin(), chosen.end(),
                                [&](const Runner& other) { return other.name == found->name; })) {
            chosen.push_back(*found);
        }
    }
    return chosen;
}

interop::ExportSource export_source(const model::ModelGraph& graph, const cluster::Cluster& cluster,
                                    const schedule::Plan& plan) {
    interop::ExportSource source;
    source.file.path = "plan.toml";
    source.file.plan = plan;
    source.graph = graph;
    source.cluster = cluster;
    return source;
}

std::vector<interop::Refusal> refusals(const Runner& runner, const interop::ExportSource& source) {
    if (runner.target) return interop::refusals(*runner.target, source);
    core::Diagnostics diagnostics;
    exec::check_runnable(source.file.plan, source.graph, diagnostics);
    std::vector<interop::Refusal> found;
    for (const core::Diagnostic& problem : diagnostics.entries())
        found.push_back({problem.key, problem.message, problem.hint});
    if (source.file.plan.updates_on_hosts() && source.cluster.instance.device.has_concurrent_streams)
        found.push_back({"plan.optimizer_offload", "on GPUs smexec updates on the device",
                         "set optimizer_offload = \"none\""});
    return found;
}

RunsIn runs_in(const model::ModelGraph& graph, const cluster::Cluster& cluster, const schedule::Plan& plan) {
    RunsIn runs;
    const interop::ExportSource source = export_source(graph, cluster, plan);
    for (const Runner& runner : runners()) {
        std::vector<interop::Refusal> found = refusals(runner, source);
        if (found.empty()) runs.runners.push_back(runner.name);
        else runs.others.emplace_back(runner.name, std::move(found));
    }
    return runs;
}

std::string text_of(const RunsIn& runs) {
    std::string text = "runs in: " + (runs.runners.empty() ? "none" : core::list_in_words(runs.runners));
    std::string others;
    for (const auto& [name, found] : runs.others) {
        Keys keys;
        for (const interop::Refusal& refusal : found)
            keys.insert(refusal.key.starts_with("plan.") ? refusal.key.substr(5) : refusal.key);
        std::string list;
        for (const std::string& key : keys) list += (list.empty() ? "" : ", ") + key;
        others += (others.empty() ? "" : ", ") + name + " (" + list + ")";
    }
    return others.empty() ? text : text + "; not in: " + others;
}

void add_to(core::Value& document, const RunsIn& runs) {
    document["runs_in"] = runs.runners;
    core::Value others = core::Value::array();
    for (const auto& [name, found] : runs.others)
        for (const interop::Refusal& refusal : found) {
            core::Value other = core::Value::table();
            other["for"] = name;
            other["key"] = refusal.key;
            other["reason"] = refusal.reason;
            others.append(std::move(other));
        }
    document["not_in"] = std::move(others);
}

std::vector<planner::Target> targets_for(const Runner& runner, const model::ModelGraph& graph,
                                         const cluster::Cluster& cluster, const schedule::Plan& base,
                                         const std::vector<core::DataType>& precisions) {
    const auto taken = std::make_shared<Taken>(runner, graph, cluster);
    const schedule::Plan framework_base = as_framework(*taken, runner, graph, cluster, base);
    std::vector<std::pair<schedule::Plan, std::set<schedule::Sharding>>> ways;
    const auto add = [&](const schedule::Plan& way, schedule::Sharding sharding) {
        for (auto& [known, its_shardings] : ways)
            if (known == way) return void(its_shardings.insert(sharding));
        ways.push_back({way, {sharding}});
    };
    for (const schedule::Sharding sharding : shardings) {
        std::vector<core::DataType> types = precisions;
        if (types.empty())
            for (const core::DataType type :
                 {base.precision.compute, core::DataType::bf16, core::DataType::fp16, core::DataType::fp32})
                if (cluster.instance.device.peak.contains(type)) types.push_back(type);
        for (const core::DataType type : types) {
            const std::optional<schedule::Plan> way =
                adapted(*taken, cluster, framework_base, sharding, type);
            if (way) add(*way, sharding);
            if (way && precisions.empty()) break;  // others only where the usual one is not taken
        }
    }
    std::vector<planner::Target> targets;
    for (const auto& [way, its_shardings] : ways) {
        // Of each its own: what is remembered is of one precision and overlap.
        const auto its_own = std::make_shared<Taken>(runner, graph, cluster);
        planner::RunnablePlans runnable;
        runnable.has_sequence_parallelism = has_sequence_parallelism(*its_own, way);
        runnable.may_take = [its_own, its_shardings = its_shardings](const schedule::Plan& plan) {
            return its_shardings.contains(plan.sharding) && its_own->may_take(plan);
        };
        runnable.takes = [its_own, its_shardings = its_shardings](const schedule::Plan& plan) {
            return its_shardings.contains(plan.sharding) && its_own->refused(plan).empty();
        };
        runnable.partition = [its_own, way = way](int stages) {
            return its_own->only_partition(way, stages);
        };
        targets.push_back(
            {cluster, way, std::make_shared<const planner::RunnablePlans>(std::move(runnable))});
    }
    return targets;
}

std::vector<std::string> ways_of(const Runner& runner, const std::vector<planner::Target>& targets) {
    std::vector<std::string> ways;
    for (const planner::Target& target : targets) {
        const schedule::Plan& base = target.base;
        std::string way =
            fmt::format("for {}{}: {} compute, {} parameters, {} gradients, {}{}{}", runner.name,
                        base.framework.empty() ? "" : fmt::format(", as {} runs", base.framework),
                        core::name_of(base.precision.compute), core::name_of(base.precision.parameters),
                        core::name_of(base.precision.gradients), schedule::name_of(base.optimizer.kind),
                        base.overlaps_gradient_reduction ? "" : ", gradients reduced after the backward pass",
                        base.overlaps_parameter_gathering ? "" : ", parameters gathered after the update");
        if (std::find(ways.begin(), ways.end(), way) == ways.end()) ways.push_back(std::move(way));
    }
    return ways;
}

schedule::Offload offload_of(const Runner& runner, const planner::Target& target,
                             const model::ModelGraph& graph, schedule::Offload wanted) {
    Taken taken(runner, graph, target.cluster);
    schedule::Plan probe = target.base;
    probe.offload = wanted;
    return taken.refused(probe).contains("plan.offload") ? schedule::Offload::none : wanted;
}

}  // namespace api
