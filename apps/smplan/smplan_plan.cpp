#include "apps/smplan/smplan_plan.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <optional>
#include <ostream>
#include <thread>

#include <fmt/core.h>

#include "apps/command.h"
#include "apps/options.h"
#include "apps/smplan/plan_limits.h"
#include "apps/smplan/target_names.h"
#include "cluster/node.h"
#include "cluster/profile/load.h"
#include "core/diagnostics.h"
#include "core/document.h"
#include "core/index/integers.h"
#include "core/parallel.h"
#include "jobs/job.h"
#include "model/load.h"
#include "planner/certificate.h"
#include "planner/explain.h"
#include "planner/search.h"
#include "schedule/plan/explicit_order.h"
#include "schedule/plan/memory.h"
#include "schedule/plan/plan_file.h"
#include "sim/cost/compute.h"
#include "sim/scenario.h"
#include "sim/uncertainty/interval.h"

namespace apps {

const char* const plan_help =
    "Usage: smplan --target INSTANCE[,INSTANCE...] [--nodes N | --max-nodes N] [--model MODEL] [--seq-len S] "
    "[--global-batch B]\n"
    "              [--objective speed|memory|cost|time-to-train] [--tokens T] [--deadline H] [--budget USD]\n"
    "              [--top K] [--threads T] [--time-limit S] [--calibration FILE] [--out plan.toml] [--json]\n"
    "       smplan partition --graph FILE ...      place a costed graph (smplan partition --help)\n"
    "       smplan order plan.toml ...             search the compute order of a plan (smplan order --help)\n"
    "       smplan export plan.toml --to TARGET    write a plan in another tool's words (smplan export "
    "--help)\n"
    "\n"
    "Looks at every legal plan (data x tensor x pipeline x virtual stages x schedule x sharding x "
    "recomputation x micro-batch, and\n"
    "offload where activations do not fit), rejects what cannot fit memory, simulates what its bounds do not "
    "exclude, and ranks the\n"
    "rest.\n"
    "\n"
    "  --target LIST        instance types (smsim hardware lists them), families (p4d), patterns ('p*') or "
    "all\n"
    "  --nodes N            exactly N nodes; without it and --max-nodes the smallest power of two on which "
    "the model fits\n"
    "  --max-nodes N        any number of nodes up to N; above 16 powers of two and N are searched, and the "
    "gap "
    "counts what a bound says of the others\n"
    "  --model MODEL        catalogue name, config.json, .onnx or .toml (default: llama-2-7b)\n"
    "  --seq-len S          tokens per sample (default: what the model was published with)\n"
    "  --global-batch B     samples per step (default: about 4 million tokens, Llama 2's; 256 images)\n"
    "  --objective O        speed (default), memory, cost or time-to-train\n"
    "  --tokens T           tokens of the whole training, e.g. 2e12 or 300B; --deadline in hours and "
    "--budget in USD "
    "are for all of them\n"
    "  --memory-margin PCT  keep so much of every device's memory free (default 0)\n"
    "  --top K              plans to show (default 5)\n"
    "  --offload WHERE      where activations may go that do not fit: host (default), none, or disk with "
    "--offload-bandwidth 6GB/s,\n"
    "                       the rate of a node's disks together, each way\n"
    "  --threads T          default: all cores; the answer does not depend on it\n"
    "  --time-limit S       stop after the work of S seconds with the best so far and its gap (default 15); "
    "work is counted,\n"
    "                       not timed (two cores do about a second's in a second), so the answer does not "
    "depend on the load\n"
    "  --tp --pp --dp --cp --ep --micro-batch N[,N...], --schedule NAME[,...], --sharding none|optimizer|"
    "gradients|parameters,\n"
    "  --recompute none|selective|full, --precision fp32|tf32|fp16|bf16|fp8\n"
    "                       keep plans to these values; the answer says what that costs against all plans\n"
    "  --schedule auto      search the compute order of the plans found, for their own stage times, and keep "
    "it where it is faster\n"
    "  --calibration FILE   constants and site effects of one installation (smsim calibrate --help)\n"
    "  --out plan.toml      write the best plan, for smsim and smexec\n"
    "  --certificate FILE   write what was asked, excluded and simulated, for smplan verify\n"
    "  --json               one JSON document on stdout\n"
    "\n"
    "Exit code 3 when no plan fits, with what is missing and what would make it fit.\n"
    "\n"
    "Example:\n"
    "  smplan --target p4d.24xlarge --nodes 16 --model llama-2-70b --global-batch 512 --out plan.toml\n";

namespace {

const char* const verify_help =
    "Usage: smplan verify FILE [--samples N] [--seed N] [--json]\n"
    "\n"
    "Checks a certificate that smplan --certificate wrote, without the bounds of the search: counts the "
    "space "
    "again, simulates the\n"
    "claimed plan and those with one of its cuts moved, and draws plans of the space that must not be "
    "better.\n"
    "\n"
    "  --samples N          plans to draw (default 200)\n"
    "  --seed N             of the draws (default 1)\n"
    "\n"
    "Exit code 3 when the certificate does not hold.\n"
    "\n"
    "Example:\n"
    "  smplan --target p3.16xlarge --model gpt2-xl --nodes 1 --certificate proof.json\n"
    "  smplan verify proof.json\n";
constexpr int certificate_version = 1;
constexpr const char* default_model = "llama-2-7b";
constexpr int most_nodes_tried = 4096;  // where none are asked for
constexpr int greatest_node_count = 1 << 15;
constexpr double most_margin_pct = 90;
// Every number of nodes is searched up to here. Beyond, powers of two and the greatest are, and a bound is
// taken of the others.
constexpr int most_counts_searched = 16;

struct Request {
    std::vector<cluster::InstanceType> targets;
    std::string model_reference = default_model;
    std::optional<std::int64_t> sequence_length;
    std::optional<std::int64_t> nodes, most_nodes;
    planner::SearchRequest search;
    LimitOptions limits;
    core::BytesPerSecond offload_bandwidth;  // of a node's disks
    std::optional<std::string> out_path, certificate_path;
    std::vector<std::string> assumptions;
    std::optional<sim::Posterior> calibration;

    const sim::Posterior& posterior() const { return calibration ? *calibration : sim::shipped_posterior(); }
};

cluster::Cluster cluster_of(const cluster::InstanceType& instance, int nodes) {
    cluster::Cluster cluster;
    cluster.instance = instance;
    cluster.nodes = nodes;
    return cluster;
}

// The base plan whose kernels the device has: flash attention, else fused softmax, else plain.
schedule::Plan base_plan(const model::ModelGraph& graph, const cluster::DeviceSpec& device,
                         std::optional<core::DataType> precision, core::Diagnostics& diagnostics) {
    schedule::Plan plan = planner::default_plan(device);
    if (precision) plan.precision = schedule::precision_named(*precision);
    for (model::AttentionImplementation attention :
         {plan.attention, model::AttentionImplementation::fused_softmax,
          model::AttentionImplementation::unfused}) {
        plan.attention = attention;
        core::Diagnostics problems;
        if (sim::ComputeCost::make(graph, device, plan, problems)) return plan;
        if (attention == model::AttentionImplementation::unfused) diagnostics.append(problems);
    }
    return plan;
}

std::vector<int> node_counts(const Request& request, const model::ModelGraph& graph,
                             const cluster::InstanceType& instance, const schedule::Plan& base) {
    if (request.nodes) return {static_cast<int>(*request.nodes)};
    if (!cluster::has_network(instance)) return {1};
    std::vector<int> counts;
    if (request.most_nodes) {
        const int most = static_cast<int>(*request.most_nodes);
        for (int n = 1; n <= most; ++n)
            if (most <= most_counts_searched || std::has_single_bit(static_cast<unsigned>(n)) || n == most)
                counts.push_back(n);
    } else {
        for (int n = 1; n <= 64; n *= 2)
            if (planner::find_fitting_plan(graph, {cluster_of(instance, n), base},
                                           request.search.global_batch, request.search.offload,
                                           request.search.limits))
                return {n};
        counts = {64};
    }
    return counts;
}

double hours_of(core::Seconds time) {
    constexpr double seconds_an_hour = 3600;
    return time.value / seconds_an_hour;
}

core::Value row_of(const planner::RankedPlan& ranked, std::size_t rank, const planner::Target& target,
                   const sim::PredictionIntervals& intervals) {
    const schedule::Plan& plan = ranked.plan;
    const sim::Evaluation& evaluation = ranked.evaluation;
    const bool has_price = cluster::find_price(target.cluster.instance, "on-demand").has_value();
    core::Value row = core::Value::table();
    row["rank"] = rank;
    row["target"] = target.cluster.instance.name;
    row["nodes"] = target.cluster.nodes;
    row["tensor_parallel"] = plan.layout.tensor;
    row["pipeline_parallel"] = plan.layout.pipeline;
    row["virtual_stages"] = plan.virtual_stages;
    row["data_parallel"] = plan.layout.replicas();
    row["sharding"] = schedule::name_of(plan.sharding);
    row["shard_degree"] = plan.effective_shard_degree();
    row["expert_parallel"] = plan.layout.expert;
    row["context_parallel"] = plan.layout.context;
    row["sequence_parallel"] = plan.has_sequence_parallelism();
    row["micro_batch"] = plan.micro_batch;
    row["micro_batches"] = plan.micro_batches;
    row["precision"] = core::name_of(plan.precision.compute);
    row["schedule"] = schedule::schedule_label(plan.schedule);
    if (plan.passes_per_micro_batch() > 1) row["segments"] = plan.passes_per_micro_batch();
    row["recompute"] = schedule::name_of(plan.recompute);
    row["offload"] = schedule::name_of(plan.offload);
    if (plan.offload != schedule::Offload::none)
        row["activation_loading_horizon"] = plan.activation_loading_horizon;
    if (evaluation.host_memory.value > 0) row["host_memory_gib"] = core::to_gibibytes(evaluation.host_memory);
    row["partition"] = plan.partition.first_units;
    row["step_time_s"] = evaluation.step_time.value;
    sim::add_to(row, intervals, evaluation);
    row["samples_per_s"] = evaluation.samples_per_second;
    row["tokens_per_s"] = evaluation.tokens_per_second;
    row["mfu"] = evaluation.mfu;
    row["peak_memory_gib"] = core::to_gibibytes(evaluation.peak_memory);
    row["available_memory_gib"] = core::to_gibibytes(evaluation.available_memory);
    row["usd_per_hour"] = has_price ? core::Value(core::to_dollars_per_hour(evaluation.rate)) : core::Value();
    row["usd_total"] =
        has_price && ranked.training_cost ? core::Value(ranked.training_cost->value) : core::Value();
    row["training_hours"] =
        ranked.training_time ? core::Value(hours_of(*ranked.training_time)) : core::Value();
    row["bound_by"] = ranked.bound_by;
    row["why"] = ranked.why;
    return row;
}

// How far the best value lies above its lower bound; nothing without either, or where values are zero.
std::optional<double> gap_pct(const planner::SearchAccount& account) {
    if (!account.lower_bound || !account.best_value || *account.best_value <= 0) return std::nullopt;
    return 100 * (*account.best_value - *account.lower_bound) / *account.best_value;
}

// What the search varies, and what it sets by a rule: of the latter nothing is proven.
core::Value axes_of(const planner::SearchAccount& account) {
    core::Value axes = core::Value::table();
    axes["covered"] = planner::covered_axes(account);
    core::Value fixed = core::Value::table();
    for (const auto& [axis, rule] : planner::fixed_axes(account)) fixed[axis] = rule;
    axes["fixed"] = std::move(fixed);
    return axes;
}

core::Value account_of(const planner::SearchAccount& account, planner::Objective objective) {
    core::Value value = core::Value::table();
    value["space"] = account.space;
    value["evaluated"] = account.evaluated;
    core::Value rejected = core::Value::table();
    for (const auto& [reason, count] : account.rejected)
        rejected[std::string(planner::reason_of(reason))] = count;
    value["rejected"] = std::move(rejected);
    value["pruned"] = account.pruned;
    value["unvisited"] = account.unvisited;
    value["seconds"] = account.seconds.value;
    value["cpu_seconds"] = account.cpu_seconds.value;
    value["evaluations_per_s"] = account.evaluations_per_second;
    value["proven_optimal"] = account.is_proven_optimal;
    // The contract's key is a time; for other objectives the bound is in their own unit, under its own name.
    const bool is_time =
        objective == planner::Objective::speed || objective == planner::Objective::time_to_train;
    const core::Value bound = account.lower_bound ? core::Value(*account.lower_bound) : core::Value();
    value["lower_bound_s"] = is_time ? bound : core::Value();
    if (!is_time)
        value[objective == planner::Objective::memory ? "lower_bound_bytes" : "lower_bound_usd_per_step"] =
            bound;
    value["gap_pct"] = account.lower_bound ? core::Value(gap_pct(account).value_or(0)) : core::Value();
    core::Value partitions = core::Value::table();
    partitions["excluded"] = account.partitions.excluded;
    partitions["walked"] = account.partitions.walked;
    partitions["simulated"] = account.partitions.simulated;
    partitions["open"] = account.partitions.open;
    value["partitions"] = std::move(partitions);
    value["bounded_targets"] = account.bounded_targets;
    value["axes"] = axes_of(account);
    return value;
}

// Bytes of parameters, gradients and optimizer state of the whole model, unsharded.
core::Bytes whole_state(const model::ModelGraph& graph, schedule::Plan plan) {
    plan.layout = {};
    plan.sharding = schedule::Sharding::none;
    model::OperatorRange all{0, core::count_of(graph.operators)};
    schedule::StateFootprint state = schedule::state_footprint(graph, all, plan);
    return state.parameters + state.gradients + state.optimizer;
}

std::string shortfall_text(const model::ModelGraph& graph, const std::vector<planner::Target>& targets,
                           const planner::SearchResult& result, int global_batch) {
    const planner::Target& target =
        targets[result.shortfall ? result.shortfall->candidate : targets.size() - 1];
    const cluster::Cluster& cluster = target.cluster;
    core::Bytes state = whole_state(graph, target.base);
    core::Bytes all = cluster.instance.device.memory * static_cast<double>(cluster.device_count());
    std::string text = fmt::format(
        "{} needs {} for parameters, gradients and optimizer state; {} x {} has {} devices of {}, {} in all",
        graph.name, core::format(state), cluster.nodes, cluster.instance.name, cluster.device_count(),
        core::format(cluster.instance.device.memory), core::format(all));
    if (result.shortfall)
        text += fmt::format("; the nearest plan ({}) needs {} on pipeline rank {}, {} more than there is",
                            planner::describe(result.shortfall->plan), core::format(result.shortfall->needed),
                            result.shortfall->pipeline_rank,
                            core::format(result.shortfall->needed - result.shortfall->available));
    else if (result.account.space == 0)
        text += fmt::format(
            "; no degrees of parallelism divide {} devices, the model's {} layers and the global batch of {}",
            cluster.device_count(), graph.units.size(), global_batch);
    return text;
}

// The smallest count of nodes, doubling, on which something fits.
std::string remedy(const model::ModelGraph& graph, const planner::Target& target, int global_batch,
                   schedule::Offload offload, const LimitOptions& limits) {
    const cluster::InstanceType& instance = target.cluster.instance;
    double state =
        whole_state(graph, target.base) / (instance.device.memory * static_cast<double>(instance.devices));
    if (!cluster::has_network(instance))
        return fmt::format("{} has no network: use an instance with more memory", instance.name);
    int from = 1;
    while (from < target.cluster.nodes || from < state / 2) from *= 2;
    for (int batch : {global_batch, 0})
        for (int n = from; n <= most_nodes_tried && n <= 64 * from; n *= 2) {
            int used =
                batch > 0 ? batch : n * instance.devices;  // a batch that lets every device be a replica
            if (std::optional<schedule::Plan> plan = planner::find_fitting_plan(
                    graph, {cluster_of(instance, n), target.base}, used, offload, limits.plans)) {
                std::string text =
                    fmt::format("{} x {} fit it: {}", n, instance.name, planner::describe(*plan));
                if (batch == 0) text += fmt::format(" (with --global-batch {})", used);
                return text;
            }
        }
    return fmt::format("no number of {} up to {} fits it with these degrees; use devices with more memory{}",
                       instance.name, most_nodes_tried,
                       limits.is_empty() ? "" : fmt::format(", or allow more than {}", limits.text));
}

core::Value model_table(const Request& request, const model::ModelGraph& graph) {
    core::Value table = core::Value::table();
    // A file is named so that the plan finds it from wherever it lies.
    std::string reference = request.model_reference;
    if (std::filesystem::exists(reference))
        reference = std::filesystem::absolute(reference).lexically_normal().string();
    table["name"] = reference;
    if (graph.tokens_per_sample > 0 && request.sequence_length)
        table["sequence_length"] = *request.sequence_length;
    return table;
}

std::string today() {
    std::time_t now = std::time(nullptr);
    std::tm utc{};
    gmtime_r(&now, &utc);
    return fmt::format("{:04}-{:02}-{:02}", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday);
}

// How a plan file names the instance: a shipped profile by its name, any other by its path from the plan's
// folder, so that the plan finds it again.
std::string instance_reference(const cluster::InstanceType& instance, const std::string& plan_path) {
    if (instance.files.empty()) return instance.name;
    const std::filesystem::path profile(instance.files.front());
    std::error_code failure;
    if (std::filesystem::equivalent(profile, cluster::profile_path(instance.name), failure))
        return instance.name;
    const std::filesystem::path folder = std::filesystem::absolute(plan_path, failure).parent_path();
    const std::filesystem::path relative = std::filesystem::relative(profile, folder, failure);
    return failure || relative.empty() ? profile.string() : relative.string();
}

std::string plan_text(const Request& request, const model::ModelGraph& graph, const planner::RankedPlan& best,
                      const planner::Target& target, const std::string& path) {
    schedule::PlanFile file;
    file.path = path;
    file.model = model_table(request, graph);
    file.cluster = core::Value::table();
    file.cluster["instance"] = instance_reference(target.cluster.instance, path);
    file.cluster["nodes"] = target.cluster.nodes;
    file.plan = best.plan;
    file.prediction = core::Value::table();
    file.prediction["step_time_s"] = best.evaluation.step_time.value;
    file.prediction["samples_per_s"] = best.evaluation.samples_per_second;
    file.prediction["peak_memory_gib"] = core::to_gibibytes(best.evaluation.peak_memory);
    file.prediction["mfu"] = best.evaluation.mfu;
    file.prediction["bound_by"] = best.bound_by;
    file.provenance = core::Value::table();
    file.provenance["tool"] = "smplan";
    file.provenance["version"] = version;
    file.provenance["model_hash"] = model::hash_of(graph);
    file.provenance["date"] = today();
    return schedule::write_plan_file(file);
}

void print(const Request& request, const model::ModelGraph& graph, const planner::SearchResult& result,
           const std::vector<planner::Target>& targets,
           const std::vector<sim::PredictionIntervals>& intervals, std::ostream& out) {
    const bool has_tokens = request.search.tokens.has_value();
    out << fmt::format(
        "{}, {}global batch {}\n", graph.name,
        graph.tokens_per_sample > 0 ? fmt::format("{} tokens a sample, ", graph.tokens_per_sample) : "",
        request.search.global_batch);
    if (const std::optional<double> gap = gap_pct(result.account);
        gap && !result.account.is_proven_optimal && *gap > 0)
        out << fmt::format(
            "  stopped before everything was looked at: the best plan may be better by up to "
            "{:.1f} %\n",
            *gap);
    for (const std::string& line : request.assumptions) out << "  assumed: " << line << '\n';
    // Columns of axes that no plan of the list uses are left out.
    const auto any = [&](auto degree) {
        return std::any_of(result.plans.begin(), result.plans.end(),
                           [&](const planner::RankedPlan& p) { return degree(p.plan.layout) > 1; });
    };
    const bool has_context = any([](const schedule::ParallelLayout& layout) { return layout.context; });
    const bool has_experts = any([](const schedule::ParallelLayout& layout) { return layout.expert; });
    const bool has_offload =
        std::any_of(result.plans.begin(), result.plans.end(),
                    [](const planner::RankedPlan& p) { return p.plan.offload != schedule::Offload::none; });
    const auto offload = [&](const std::string& text) {
        return has_offload ? fmt::format(" {:<9}", text) : std::string();
    };
    const auto precision = [&](std::string_view text) {
        return request.limits.precisions.size() > 1 ? fmt::format(" {:<9}", text) : std::string();
    };
    const auto parts_of_data = [&](const auto& context, const auto& expert) {
        return (has_context ? fmt::format(" {:>3}", context) : std::string()) +
               (has_experts ? fmt::format(" {:>3}", expert) : std::string());
    };
    out << fmt::format(
        "\n  {:>2}  {:<22} {:>3} {:>3} {:>4}{} {:<20} {:<16} {:>9} {:<9}{}{} {:>10} {:>6} {:>10} {:>9}{}  "
        "{}\n",
        "#", "target", "TP", "PP", "DP", parts_of_data("CP", "EP"), "schedule", "sharding", "batch",
        "recompute", offload("offload"), precision("precision"), "step", "MFU", "peak", "USD/h",
        has_tokens ? "   hours       USD" : "", "bound by");
    for (std::size_t i = 0; i < result.plans.size(); ++i) {
        const planner::RankedPlan& ranked = result.plans[i];
        const cluster::Cluster& cluster = targets[ranked.candidate].cluster;
        const schedule::Plan& plan = ranked.plan;
        std::string schedule =
            plan.layout.pipeline == 1 ? "-"
            : plan.passes_per_micro_batch() > 1
                ? fmt::format("{} /{}", schedule::schedule_label(plan.schedule),
                              plan.passes_per_micro_batch())
            : plan.virtual_stages > 1
                ? fmt::format("{} x{}", schedule::schedule_label(plan.schedule), plan.virtual_stages)
                : schedule::schedule_label(plan.schedule);
        std::string sharding(schedule::name_of(plan.sharding));
        if (plan.sharding != schedule::Sharding::none)
            sharding += fmt::format("/{}", plan.effective_shard_degree());
        std::string total = ranked.training_time && ranked.training_cost
                                ? fmt::format(" {:>7.0f} {:>9.0f}", hours_of(*ranked.training_time),
                                              ranked.training_cost->value)
                                : "";
        out << fmt::format(
            "  {:>2}  {:<22} {:>3} {:>3} {:>4}{} {:<20} {:<16} {:>9} {:<9}{}{} {:>10} {:>5.1f}% {:>10} "
            "{:>9.2f}{}  {}\n",
            i + 1, fmt::format("{} x {}", cluster.nodes, cluster.instance.name), plan.layout.tensor,
            plan.layout.pipeline, plan.layout.replicas(),
            parts_of_data(plan.layout.context, plan.layout.expert), schedule, sharding,
            fmt::format("{} x {}", plan.micro_batch, plan.micro_batches), schedule::name_of(plan.recompute),
            offload(
                plan.offload == schedule::Offload::none
                    ? "-"
                    : fmt::format("{}/{}", schedule::name_of(plan.offload), plan.activation_loading_horizon)),
            precision(core::name_of(plan.precision.compute)), core::format(ranked.evaluation.step_time),
            100 * ranked.evaluation.mfu, core::format(ranked.evaluation.peak_memory),
            core::to_dollars_per_hour(ranked.evaluation.rate), total, ranked.bound_by);
    }
    if (!result.plans.empty()) {
        out << "\n  why: " << result.plans.front().why << '\n';
        out << fmt::format("  its step, 80 %: {} to {}\n", core::format(intervals.front().step.low),
                           core::format(intervals.front().step.high));
    }
    const planner::SearchAccount& account = result.account;
    out << fmt::format("\n  {} plans: {} simulated", account.space, account.evaluated);
    for (const auto& [reason, count] : account.rejected)
        out << fmt::format(", {} rejected ({})", count, planner::reason_of(reason));
    out << fmt::format(", {} excluded by their bounds", account.pruned);
    if (account.unvisited > 0) out << fmt::format(", {} not reached in time", account.unvisited);
    out << fmt::format("; {:.2f} s{}\n", account.seconds.value,
                       account.is_proven_optimal
                           ? fmt::format("; the first is the best of them all under this model, {}",
                                         account.covers_partitions
                                             ? "with every partition of plans that have one stage a rank"
                                             : "each with the partition that balances its stages")
                           : "");
    if (!account.lower_bound)
        out << "  no lower bound: the order of the first was searched, and bounds are of registered "
               "schedules\n";
    else if (const std::optional<double> gap = gap_pct(account); gap && !account.is_proven_optimal)
        out << fmt::format("  gap to the lower bound: {:.1f} %\n", *gap);
}

// Constraints on a whole training need its length, and costs a price.
void check_objective(const Request& request, Options& options) {
    for (const char* name : {"--deadline", "--budget"})
        if (options.has(name) && !options.has("--tokens"))
            options.error(
                name,
                fmt::format("{} is for a whole training, and --tokens does not say how long it is", name),
                "add --tokens, for example --tokens 2e12");
    if (request.search.objective == planner::Objective::time_to_train && !options.has("--tokens"))
        options.error("--objective", "time-to-train needs the length of the training",
                      "add --tokens, for example --tokens 2e12");
    if (request.search.objective == planner::Objective::cost || options.has("--budget"))
        for (const cluster::InstanceType& instance : request.targets)
            if (!cluster::find_price(instance, "on-demand"))
                options.error("--target",
                              fmt::format("the profile of {} has no on-demand price", instance.name),
                              "choose another objective or target");
}

// Of a family or pattern those are left out that cannot be asked.
bool applies(const cluster::InstanceType& instance, const Options& options) {
    const bool needs_price = options.has("--budget") || options.text("--objective").value_or("") == "cost";
    return instance.device.has_concurrent_streams &&
           (!needs_price || cluster::find_price(instance, "on-demand")) &&
           (options.text("--nodes").value_or("1") == "1" || cluster::has_network(instance));
}

std::optional<double> read_tokens(Options& options) {
    const std::optional<std::string> text = options.text("--tokens");
    if (!text) return std::nullopt;
    constexpr double most = 1e18;
    const std::optional<double> tokens = jobs::parse_token_count(*text);
    if (tokens && *tokens >= 1 && *tokens <= most) return tokens;
    options.error("--tokens",
                  fmt::format("--tokens = {} is no number of tokens from 1 to 1e18", core::in_quotes(*text)),
                  "for example --tokens 2e12, 300B or 1.4T");
    return std::nullopt;
}

void read_offload(Request& request, Options& options) {
    if (const std::optional<std::string> offload = options.choice("--offload", {"host", "none", "disk"}))
        request.search.offload = *offload == "host"   ? schedule::Offload::host
                                 : *offload == "disk" ? schedule::Offload::disk
                                                      : schedule::Offload::none;
    if (const std::optional<std::string> rate = options.text("--offload-bandwidth")) {
        const std::optional<core::BytesPerSecond> parsed = core::parse_bytes_per_second(*rate);
        if (parsed && parsed->value > 0) request.offload_bandwidth = *parsed;
        else
            options.error("--offload-bandwidth",
                          fmt::format("--offload-bandwidth = {} is no rate", core::in_quotes(*rate)),
                          "for example --offload-bandwidth 6GB/s");
    }
    const bool uses_disk = request.search.offload == schedule::Offload::disk;
    if (uses_disk && !options.has("--offload-bandwidth"))
        options.error("--offload",
                      "--offload disk needs --offload-bandwidth: no profile states what disks do",
                      "for example --offload-bandwidth 6GB/s");
    if (!uses_disk && options.has("--offload-bandwidth"))
        options.error("--offload-bandwidth",
                      "--offload-bandwidth is that of disks, and activations do not go there",
                      "add --offload disk, or leave it out");
}

void read_targets(Request& request, Options& options, core::Diagnostics& diagnostics) {
    std::vector<std::string> targets = options.list("--target");
    if (targets.empty())
        options.error("--target", "--target is missing", "for example --target p4d.24xlarge");
    for (const NamedTarget& target : named_targets(targets)) {
        std::optional<cluster::InstanceType> instance =
            cluster::load_instance(target.name, diagnostics, {}, "--target");
        if (!instance) continue;
        if (target.is_of_many && !applies(*instance, options)) continue;
        request.targets.push_back(std::move(*instance));
    }
    if (request.targets.empty() && !diagnostics.has_errors())
        options.error("--target", "no instance type of these can be asked this",
                      "only GPUs of profiles with the figures that are asked for are taken from a pattern");
}

std::optional<Request> read_request(Options& options, core::Diagnostics& diagnostics) {
    Request request;
    for (const std::string& stray : options.positional())
        options.error(
            stray, fmt::format("unexpected argument {}", core::in_quotes(stray)),
            "subcommands are plan, partition, order, export and import; everything else is an option");
    read_targets(request, options, diagnostics);
    if (const std::optional<double> margin = options.real("--memory-margin", 0, most_margin_pct))
        for (cluster::InstanceType& instance : request.targets)
            instance.device.memory = instance.device.memory * (1 - *margin / 100);
    if (options.has("--memory-margin"))
        request.assumptions.push_back(
            fmt::format("{} % of every device's memory is kept free", *options.text("--memory-margin")));
    request.nodes = options.integer("--nodes", 1, greatest_node_count);
    request.most_nodes = options.integer("--max-nodes", 1, greatest_node_count);
    if (options.has("--nodes") && options.has("--max-nodes"))
        options.error("--max-nodes", "--nodes and --max-nodes cannot be given together");
    if (std::optional<std::string> model = options.text("--model")) request.model_reference = *model;
    else request.assumptions.push_back(fmt::format("model {} (no --model given)", default_model));
    request.sequence_length = options.integer("--seq-len", 1, 1 << 24);
    if (std::optional<std::string> objective =
            options.choice("--objective", {"speed", "memory", "cost", "time-to-train"}))
        request.search.objective = *objective == "memory"          ? planner::Objective::memory
                                   : *objective == "cost"          ? planner::Objective::cost
                                   : *objective == "time-to-train" ? planner::Objective::time_to_train
                                                                   : planner::Objective::speed;
    request.search.tokens = read_tokens(options);
    if (std::optional<double> hours = options.real("--deadline", 0, 1e9))
        request.search.deadline = core::hours(*hours);
    if (std::optional<double> budget = options.real("--budget", 0, 1e15))
        request.search.budget = core::Dollars(*budget);
    check_objective(request, options);
    request.limits = read_limits(options);
    request.search.limits = request.limits.plans;
    request.search.searches_orders = request.limits.searches_orders;
    read_offload(request, options);
    request.search.keep = static_cast<std::size_t>(options.integer("--top", 1, 1000).value_or(5));
    request.search.threads = core::narrow<int>(
        options.integer("--threads", 1, 1024).value_or(std::max(1u, std::thread::hardware_concurrency())));
    request.search.time_limit = core::Seconds(options.real("--time-limit", 0, 1e7).value_or(15));
    if (const std::optional<std::string> file = options.text("--calibration"))
        request.calibration = sim::load_posterior(*file, diagnostics);
    request.search.constants = request.posterior().cost_constants();
    request.out_path = options.text("--out");
    if (request.out_path) check_output("--out", *request.out_path, diagnostics);
    request.certificate_path = options.text("--certificate");
    if (request.certificate_path) check_output("--certificate", *request.certificate_path, diagnostics);
    if (diagnostics.has_errors()) return std::nullopt;
    return request;
}

// As given, else a size that the model's kind is trained with.
void choose_batch(Request& request, const model::ModelGraph& graph, std::optional<std::int64_t> batch) {
    // Llama 2 was trained with 4 million tokens a step (arXiv 2307.09288, section 2.2); 256 images are the
    // classic batch of ResNet-50.
    constexpr std::int64_t tokens_a_step = std::int64_t{1} << 22;
    constexpr int images_a_step = 256;
    const std::int64_t tokens = graph.tokens_per_sample;
    if (batch) request.search.global_batch = static_cast<int>(*batch);
    else {
        request.search.global_batch =
            tokens > 0 ? static_cast<int>(std::max<std::int64_t>(1, tokens_a_step / tokens)) : images_a_step;
        request.assumptions.push_back(fmt::format(
            "global batch {}{} (no --global-batch given)", request.search.global_batch,
            tokens > 0 ? fmt::format(", {:.1f} million tokens",
                                     1e-6 * static_cast<double>(request.search.global_batch * tokens))
                       : ""));
    }
    if (!request.sequence_length && tokens > 0)
        request.assumptions.push_back(fmt::format("{} tokens a sample (no --seq-len given)", tokens));
}

// Every instance type with every number of nodes that is asked for. Nothing, with diagnostics, where one has
// no base plan or no network.
std::optional<std::vector<planner::Target>> targets_of(Request& request, const model::ModelGraph& graph,
                                                       Options& options, core::Diagnostics& diagnostics) {
    std::vector<planner::Target> targets;
    for (const cluster::InstanceType& instance : request.targets) {
        std::vector<schedule::Plan> bases;
        for (const core::DataType precision : request.limits.precisions)
            bases.push_back(base_plan(graph, instance.device, precision, diagnostics));
        if (bases.empty()) bases.push_back(base_plan(graph, instance.device, std::nullopt, diagnostics));
        for (schedule::Plan& base : bases) base.offload_bandwidth = request.offload_bandwidth;
        if (diagnostics.has_errors()) return std::nullopt;
        const std::vector<int> counts = node_counts(request, graph, instance, bases.front());
        if (!request.nodes && !request.most_nodes)
            request.assumptions.push_back(
                cluster::has_network(instance)
                    ? fmt::format("{} node{} of {}: the least that holds it (no --nodes given)",
                                  counts.front(), counts.front() == 1 ? "" : "s", instance.name)
                    : fmt::format("1 node of {}, which has no network (no --nodes given)", instance.name));
        for (const int nodes : counts)
            for (const schedule::Plan& base : bases) targets.push_back({cluster_of(instance, nodes), base});
        for (int nodes = 1; request.most_nodes && nodes < counts.back(); ++nodes)
            if (std::find(counts.begin(), counts.end(), nodes) == counts.end())
                request.search.unsearched.push_back(cluster_of(instance, nodes));
    }
    for (const planner::Target& target : targets)
        if (target.cluster.nodes > 1 && !cluster::has_network(target.cluster.instance)) {
            options.error("--nodes",
                          fmt::format("{} has no network: it cannot be more than one node",
                                      target.cluster.instance.name),
                          "use --nodes 1");
            return std::nullopt;
        }
    if (request.limits.precisions.empty())
        request.assumptions.push_back(fmt::format("{} compute, {} with fp32 optimizer state",
                                                  core::name_of(targets.front().base.precision.compute),
                                                  schedule::name_of(targets.front().base.optimizer.kind)));
    return targets;
}

// The constraint that no plan meets, or the memory that is missing and a remedy.
core::Diagnostics why_no_plan(const Request& request, const model::ModelGraph& graph,
                              const std::vector<planner::Target>& targets,
                              const planner::SearchResult& result, const core::Diagnostics& diagnostics) {
    core::Diagnostics reason;
    const planner::SearchAccount& account = result.account;
    std::size_t constrained = 0;
    for (const planner::Rejection rejection : {planner::Rejection::deadline, planner::Rejection::budget})
        if (account.rejected.count(rejection)) constrained += account.rejected.at(rejection);
    if (constrained > 0) {
        std::string text = "no plan meets the constraints:";
        for (const auto& [rejection, count] : account.rejected)
            text += fmt::format(" {} {};", count, planner::reason_of(rejection));
        text.pop_back();
        reason.error({}, "--target", text,
                     "allow more time (--deadline), money (--budget) or nodes (--max-nodes)");
    } else if (account.space == 0 && !request.limits.is_empty()) {
        std::string text = fmt::format("no plan of {} devices and a global batch of {} has {}",
                                       targets.back().cluster.device_count(), request.search.global_batch,
                                       request.limits.text);
        for (const int tensor : request.limits.plans.tensor)
            if (const std::optional<core::Unsupported> why =
                    model::tensor_parallel_unsupported(graph, tensor))
                text += fmt::format("; --tp {}: {}", tensor, why->reason);
        reason.error({}, "--target", text, "leave one of them out, or allow more values");
    } else {
        reason.append(diagnostics);
        if (!diagnostics.has_errors())
            reason.error(
                {}, "--target",
                "no plan fits: " + shortfall_text(graph, targets, result, request.search.global_batch),
                remedy(graph, targets.back(), request.search.global_batch, request.search.offload,
                       request.limits));
    }
    return reason;
}

core::Value document_of(const Request& request, const model::ModelGraph& graph,
                        const planner::SearchResult& result, const std::vector<planner::Target>& targets,
                        const std::vector<sim::PredictionIntervals>& intervals,
                        const std::optional<CostOfLimits>& limits) {
    core::Value document = core::Value::table();
    document["model"] = graph.name;
    document["global_batch"] = request.search.global_batch;
    core::Value plans = core::Value::array();
    for (std::size_t i = 0; i < result.plans.size(); ++i)
        plans.append(row_of(result.plans[i], i + 1, targets[result.plans[i].candidate], intervals[i]));
    document["plans"] = std::move(plans);
    document["search"] = account_of(result.account, request.search.objective);
    document["assumptions"] = request.assumptions;
    if (limits) document["limits"] = to_value(*limits, request.limits);
    if (request.out_path) document["out"] = *request.out_path;
    return document;
}

// What runs of the installation taught beyond constants, applied to the ranked plans: the search knows the
// constants only. The intervals of each.
std::vector<sim::PredictionIntervals> judge(planner::SearchResult& result, const model::ModelGraph& graph,
                                            const std::vector<planner::Target>& targets,
                                            const sim::Posterior& posterior, int threads) {
    std::vector<sim::PredictionIntervals> intervals(result.plans.size());
    core::for_each_in_parallel(result.plans.size(), threads, [&](std::size_t i, int) {
        planner::RankedPlan& ranked = result.plans[i];
        const core::Seconds before = ranked.evaluation.step_time;
        sim::apply_site_effects(ranked.evaluation, posterior);
        const double factor = ranked.evaluation.step_time / before;
        if (ranked.training_time) *ranked.training_time *= factor;
        if (ranked.training_cost) *ranked.training_cost *= factor;
        intervals[i] = sim::intervals_of(ranked.evaluation, graph, targets[ranked.candidate].cluster,
                                         ranked.plan, posterior);
    });
    return intervals;
}

OptionNames plan_options() {
    OptionNames names{.with_value = {"--target", "--nodes", "--max-nodes", "--model", "--seq-len",
                                     "--global-batch", "--objective", "--tokens", "--deadline", "--budget",
                                     "--top", "--threads", "--time-limit", "--memory-margin", "--out",
                                     "--certificate", "--offload", "--offload-bandwidth", "--calibration"},
                      .flags = {"--json", "--help"}};
    names.with_value.insert(names.with_value.end(), limit_option_names().begin(), limit_option_names().end());
    return names;
}

// The same clusters, searched with every value of what the options keep plans to.
std::optional<CostOfLimits> cost_of_limits(const Request& request, const model::ModelGraph& graph,
                                           const std::vector<planner::Target>& targets,
                                           const planner::RankedPlan& best) {
    if (request.limits.is_empty()) return std::nullopt;
    core::Diagnostics unneeded;
    std::vector<planner::Target> all;
    const auto is_known = [&](const planner::Target& target) {
        return std::any_of(all.begin(), all.end(), [&](const planner::Target& other) {
            return other.cluster.instance.name == target.cluster.instance.name &&
                   other.cluster.nodes == target.cluster.nodes;
        });
    };
    for (const planner::Target& target : targets) {
        if (is_known(target)) continue;
        all.push_back(target);
        if (request.limits.precisions.empty()) continue;
        all.back().base = base_plan(graph, target.cluster.instance.device, std::nullopt, unneeded);
        all.back().base.offload_bandwidth = request.offload_bandwidth;
    }
    planner::SearchRequest search = request.search;
    search.limits = {};
    search.searches_orders = false;
    search.keep = 1;
    planner::SearchResult result = planner::search_plans(graph, all, search, unneeded);
    if (result.plans.empty()) return std::nullopt;
    CostOfLimits cost{std::move(result.plans.front()), 0, result.account.is_proven_optimal};
    cost.pct = 100 * (best.value - cost.best.value) / cost.best.value;
    return cost;
}

struct Question {
    Request request;
    model::ModelGraph graph;
    std::vector<planner::Target> targets;
};

std::optional<Question> read_question(Options& options, core::Diagnostics& diagnostics) {
    std::optional<Request> request = read_request(options, diagnostics);
    std::optional<std::int64_t> batch = options.integer("--global-batch", 1, 1 << 22);
    if (!request || diagnostics.has_errors()) return std::nullopt;
    model::LoadOptions load;
    load.sequence_length = request->sequence_length;
    std::optional<model::ModelGraph> graph =
        model::load_model(request->model_reference, load, diagnostics, {}, "--model");
    if (!graph) return std::nullopt;
    choose_batch(*request, *graph, batch);
    if (request->search.tokens && graph->tokens_per_sample == 0) {
        options.error("--tokens", fmt::format("{} has no tokens", graph->name), "leave --tokens out");
        return std::nullopt;
    }
    std::optional<std::vector<planner::Target>> targets = targets_of(*request, *graph, options, diagnostics);
    if (!targets) return std::nullopt;
    return Question{std::move(*request), std::move(*graph), std::move(*targets)};
}

// The arguments are enough to ask the question again; what follows them is the answer.
core::Value certificate_of(const Request& request, const model::ModelGraph& graph,
                           const planner::SearchResult& result, const std::vector<planner::Target>& targets,
                           const std::vector<std::string>& arguments,
                           const std::vector<sim::PredictionIntervals>& intervals) {
    const planner::RankedPlan& best = result.plans.front();
    core::Value value = core::Value::table();
    value["certificate"] = certificate_version;
    value["tool"] = "smplan";
    value["version"] = version;
    value["arguments"] = arguments;
    value["model_hash"] = model::hash_of(graph);
    value["search"] = account_of(result.account, request.search.objective);
    core::Value simulated = core::Value::array();
    for (std::size_t i = 0; i < result.plans.size(); ++i)
        simulated.append(row_of(result.plans[i], i + 1, targets[result.plans[i].candidate], intervals[i]));
    value["simulated"] = std::move(simulated);
    core::Value claim = core::Value::table();
    claim["target"] = best.candidate;
    claim["value"] = best.value;
    claim["lower_bound"] =
        result.account.lower_bound ? core::Value(*result.account.lower_bound) : core::Value();
    claim["plan"] = plan_text(request, graph, best, targets[best.candidate], *request.certificate_path);
    value["best"] = std::move(claim);
    return value;
}

struct ReadCertificate {
    Question question;
    planner::Claim claim;
    std::vector<std::string> violations;  // of what can be read
};

// Every missing or mistyped key is a diagnostic.
class CertificateReader {
public:
    CertificateReader(const core::Value& root, const std::string& path, core::Diagnostics& diagnostics)
        : root_(root), path_(path), diagnostics_(diagnostics) {}
    const core::Value* find(std::initializer_list<std::string_view> keys, bool (core::Value::*is)() const) {
        const core::Value* value = &root_;
        std::string name;
        for (const std::string_view key : keys) {
            name += (name.empty() ? "" : ".") + std::string(key);
            value = value ? value->find(key) : nullptr;
        }
        if (value && (value->*is)()) return value;
        diagnostics_.error({path_, 1, 1}, name,
                           fmt::format("{} is missing, or of another type: no certificate of smplan", name),
                           "smplan --certificate FILE writes one");
        return nullptr;
    }
    double number(std::initializer_list<std::string_view> keys) {
        const core::Value* value = find(keys, &core::Value::is_number);
        return value ? value->number() : 0;
    }
    std::size_t count(std::initializer_list<std::string_view> keys) {
        const double value = number(keys);
        return value > 0 ? static_cast<std::size_t>(value) : 0;
    }

private:
    const core::Value& root_;
    const std::string& path_;
    core::Diagnostics& diagnostics_;
};

std::optional<ReadCertificate> read_certificate(const std::string& path, core::Diagnostics& diagnostics) {
    const std::optional<std::string> text = core::read_file(path, diagnostics, {}, "verify");
    const std::optional<core::Value> value = text ? core::parse_json(*text, path, diagnostics) : std::nullopt;
    if (!value) return std::nullopt;
    CertificateReader reader(*value, path, diagnostics);
    ReadCertificate read;
    std::vector<std::string> arguments;
    if (const core::Value* list = reader.find({"arguments"}, &core::Value::is_array))
        for (const core::Value& item : list->items())
            if (item.is_string()) arguments.push_back(item.string());
    planner::Claim& claim = read.claim;
    claim.target = reader.count({"best", "target"});
    claim.value = reader.number({"best", "value"});
    claim.lower_bound = reader.number({"best", "lower_bound"});
    claim.space = reader.count({"search", "space"});
    claim.evaluated = reader.count({"search", "evaluated"});
    claim.pruned = reader.count({"search", "pruned"});
    claim.unvisited = reader.count({"search", "unvisited"});
    const core::Value* search = value->find("search");
    const core::Value* proven = search ? search->find("proven_optimal") : nullptr;
    claim.is_proven = proven && proven->kind() == core::Value::Kind::boolean && proven->boolean();
    if (const core::Value* rejected = reader.find({"search", "rejected"}, &core::Value::is_table))
        for (const auto& [reason, count] : rejected->members())
            if (count.is_number() && count.number() > 0)
                claim.rejected += static_cast<std::size_t>(count.number());
    const core::Value* plan = reader.find({"best", "plan"}, &core::Value::is_string);
    const core::Value* hash = reader.find({"model_hash"}, &core::Value::is_string);
    if (diagnostics.has_errors()) return std::nullopt;
    Options options(arguments, plan_options(), diagnostics);
    std::optional<Question> question = read_question(options, diagnostics);
    if (!question) return std::nullopt;
    const std::optional<core::Value> document = core::parse_toml(plan->string(), path, diagnostics);
    std::optional<sim::Scenario> scenario =
        document ? sim::read_scenario(*document, path, diagnostics) : std::nullopt;
    if (!scenario) return std::nullopt;
    claim.plan = scenario->file.plan;
    if (model::hash_of(question->graph) != hash->string())
        read.violations.push_back("the model is not the one that the certificate is for");
    if (claim.target >= question->targets.size() ||
        question->targets[claim.target].cluster.nodes != scenario->cluster.nodes ||
        question->targets[claim.target].cluster.instance.name != scenario->cluster.instance.name) {
        read.violations.push_back("the claimed plan is for a cluster that was not asked about");
        claim.target = 0;
    }
    if (claim.plan.global_batch() != question->request.search.global_batch)
        read.violations.push_back("the claimed plan is for another global batch");
    read.question = std::move(*question);
    return read;
}

}  // namespace

int run_plan_command(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
    const bool as_json = wants_json(arguments);
    core::Diagnostics diagnostics;
    Options options(arguments, plan_options(), diagnostics);
    if (options.has("--help")) {
        out << plan_help;
        return good;
    }
    std::optional<Question> question = read_question(options, diagnostics);
    if (!question) return show(diagnostics, as_json, out, err);
    Request& request = question->request;
    const model::ModelGraph& graph = question->graph;
    const std::vector<planner::Target>& targets = question->targets;
    planner::SearchResult result = planner::search_plans(graph, targets, request.search, diagnostics);
    if (result.plans.empty()) {
        show(why_no_plan(request, graph, targets, result, diagnostics), as_json, out, err);
        return no_plan;
    }
    const std::optional<CostOfLimits> limits = cost_of_limits(request, graph, targets, result.plans.front());
    const std::vector<sim::PredictionIntervals> intervals =
        judge(result, graph, targets, request.posterior(), request.search.threads);
    for (const planner::RankedPlan& ranked : result.plans)
        if (ranked.order) request.assumptions.push_back(*ranked.order);
    if (request.search.searches_orders)
        request.assumptions.push_back("bounds, and what is proven by them, are of registered schedules");
    if (as_json) {
        out << core::to_json(document_of(request, graph, result, targets, intervals, limits)) << '\n';
    } else {
        show(diagnostics, false, out, err);
        print(request, graph, result, targets, intervals, out);
        if (limits) out << "  " << text_of(*limits, request.limits) << '\n';
    }
    const planner::RankedPlan& best = result.plans.front();
    std::vector<OutputFile> files;
    if (request.out_path)
        files.push_back(
            {*request.out_path, plan_text(request, graph, best, targets[best.candidate], *request.out_path)});
    if (request.certificate_path)
        files.push_back(
            {*request.certificate_path,
             core::to_json(certificate_of(request, graph, result, targets, arguments, intervals)) + "\n"});
    if (files.empty()) return good;
    const int code = write_outputs(files, err);
    if (code == good && !as_json)
        for (const OutputFile& file : files)
            out << fmt::format("  {} written to {}\n",
                               request.out_path && file.path == *request.out_path ? "plan" : "certificate",
                               file.path);
    return code;
}

int run_verify_command(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
    const bool as_json = wants_json(arguments);
    core::Diagnostics diagnostics;
    Options options(arguments, {.with_value = {"--samples", "--seed"}, .flags = {"--json", "--help"}},
                    diagnostics);
    if (options.has("--help")) {
        out << verify_help;
        return good;
    }
    const std::size_t samples = options.integer("--samples", 0, 1000000).value_or(200);
    const auto seed = static_cast<std::uint64_t>(options.integer("--seed", 0, 1L << 62).value_or(1));
    if (options.positional().size() != 1)
        options.error("verify", "smplan verify needs one certificate",
                      "for example smplan verify certificate.json");
    if (diagnostics.has_errors()) return show(diagnostics, as_json, out, err);
    const std::optional<ReadCertificate> read = read_certificate(options.positional().front(), diagnostics);
    if (!read) return show(diagnostics, as_json, out, err);
    const planner::CertificateCheck check =
        planner::check_claim(read->question.graph, read->question.targets, read->question.request.search,
                             read->claim, samples, seed);
    std::vector<std::string> violations = read->violations;
    violations.insert(violations.end(), check.violations.begin(), check.violations.end());
    if (as_json) {
        core::Value value = core::Value::table();
        value["holds"] = violations.empty();
        value["violations"] = violations;
        value["neighbours"] = check.neighbours;
        value["sampled"] = check.sampled;
        value["bounded"] = check.bounded;
        value["simulated"] = check.simulated;
        value["seed"] = static_cast<std::int64_t>(seed);
        out << core::to_json(value) << '\n';
    } else {
        for (const std::string& violation : violations) out << "  " << violation << '\n';
        out << fmt::format(
            "{}: the plan and its {} neighbours by one cut simulated, {} of {} plans drawn with seed {} "
            "excluded by a bound, {} simulated\n",
            violations.empty() ? "the certificate holds" : "the certificate does not hold", check.neighbours,
            check.bounded, check.sampled, seed, check.simulated);
    }
    return violations.empty() ? good : no_plan;
}

}  // namespace apps
