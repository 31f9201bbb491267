#include "api/plan/question.h"

#include <algorithm>
#include <bit>
#include <map>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "api/offers/offer_options.h"
#include "api/output.h"
#include "api/plan/target_kinds.h"
#include "api/report_page/report_page.h"
#include "cluster/node.h"
#include "core/diagnostics.h"
#include "core/document.h"
#include "core/index/integers.h"
#include "jobs/job.h"
#include "model/load.h"
#include "schedule/plan/plan_file.h"

namespace api {

namespace {

constexpr int greatest_node_count = 1 << 15;
constexpr double most_margin_pct = 90;
// Every number of nodes is searched up to here. Beyond, powers of two and the greatest are, and a bound is
// taken of the others.
constexpr int most_counts_searched = 16;

// In the file of a target.
bool states_nodes(const cluster::Cluster& kind) {
    return kind.table.is_table() && kind.table.find("nodes") != nullptr;
}

std::vector<int> node_counts(const Request& request, const model::ModelGraph& graph,
                             const cluster::Cluster& kind, core::Diagnostics& diagnostics) {
    if (request.nodes) return {static_cast<int>(*request.nodes)};
    if (!request.most_nodes && states_nodes(kind)) return {kind.nodes};
    if (!cluster::has_network(kind.instance)) return {1};
    std::vector<int> counts;
    if (request.most_nodes) {
        const int most = static_cast<int>(*request.most_nodes);
        for (int n = 1; n <= most; ++n)
            if (most <= most_counts_searched || std::has_single_bit(static_cast<unsigned>(n)) || n == most)
                counts.push_back(n);
    } else {
        for (int n = 1; n <= 64; n *= 2)
            for (const planner::Target& target : targets_on(request, graph, kind, n, diagnostics))
                if (planner::find_fitting_plan(graph, target, request.search.global_batch,
                                               request.search.offload, request.search.limits))
                    return {n};
        counts = {64};
    }
    return counts;
}

// Constraints on a whole training need its length, and costs a price.
void check_objective(const Request& request, Options& options) {
    for (const char* name : {"--deadline", "--budget"})
        if (options.has(name) && !options.has("--tokens") && !wants_offers(options))
            options.error(
                name,
                fmt::format("{} is for a whole training, and --tokens does not say how long it is", name),
                "add --tokens, for example --tokens 2e12");
    if (request.search.objective == planner::Objective::time_to_train && !options.has("--tokens"))
        options.error("--objective", "time-to-train needs the length of the training",
                      "add --tokens, for example --tokens 2e12");
    const bool has_budget = options.has("--budget") && !wants_offers(options);
    if (request.search.objective == planner::Objective::cost || has_budget)
        for (const cluster::Cluster& kind : request.targets)
            if (!cluster::find_price(kind.instance, "on-demand"))
                options.error("--target",
                              fmt::format("the profile of {} has no on-demand price", kind.instance.name),
                              "choose another objective or target, or --set cluster.price=USD");
}

// Of a family or pattern those are left out that cannot be asked.
bool applies(const cluster::InstanceType& instance, const Options& options) {
    const bool needs_price = (options.has("--budget") && !wants_offers(options)) ||
                             options.text("--objective").value_or("") == "cost";
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
    read_state_places(request, options);
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

bool is_named_before(const Request& request, const cluster::Cluster& kind) {
    return std::any_of(request.targets.begin(), request.targets.end(), [&](const cluster::Cluster& other) {
        return other.instance.name == kind.instance.name;
    });
}

void read_targets(Request& request, Options& options, core::Diagnostics& diagnostics) {
    std::vector<std::string> targets = options.list("--target");
    if (targets.empty())
        options.error("--target", "--target is missing", "for example --target p4d.24xlarge");
    const core::Value changes = cluster_changes(options.all("--set"), diagnostics);
    core::Diagnostics inapplicable;  // of the first of many that cannot be changed like this
    for (const NamedTarget& target : named_targets(targets)) {
        core::Diagnostics problems;
        std::optional<cluster::Cluster> kind = load_target(target, changes, problems);
        if (!target.is_of_many) diagnostics.append(problems);
        else if (!kind && !inapplicable.has_errors()) inapplicable = problems;
        if (!kind || (target.is_of_many && !applies(kind->instance, options))) continue;
        if (is_named_before(request, *kind)) {
            options.error(
                "--target",
                fmt::format("{} describes {}, as a target before it does: answers could not be told apart",
                            core::in_quotes(target.name), kind->instance.name),
                "ask about one after the other");
            continue;
        }
        for (const std::string& change : kind->assumptions)
            request.assumptions.push_back(fmt::format("{}: {}", kind->instance.name, change));
        request.targets.push_back(std::move(*kind));
    }
    if (!request.targets.empty() || diagnostics.has_errors()) return;
    diagnostics.append(inapplicable);
    if (!inapplicable.has_errors())
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
    request.memory_margin = options.real("--memory-margin", 0, most_margin_pct).value_or(0) / 100;
    for (cluster::Cluster& kind : request.targets)
        kind.instance.device.memory = kind.instance.device.memory * (1 - request.memory_margin);
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
    if (std::optional<std::string> objective = options.choice(
            "--objective",
            {"speed", "memory", "cost", "time-to-train", offer_objectives()[0], offer_objectives()[1]}))
        request.search.objective = *objective == "memory"          ? planner::Objective::memory
                                   : *objective == "cost"          ? planner::Objective::cost
                                   : *objective == "time-to-train" ? planner::Objective::time_to_train
                                                                   : planner::Objective::speed;
    request.search.tokens = read_tokens(options);
    if (std::optional<double> hours = options.real("--deadline", 0, 1e9))
        request.search.deadline = core::hours(*hours);
    if (std::optional<double> budget = options.real("--budget", 0, 1e15); budget && !wants_offers(options))
        request.search.budget = core::Dollars(*budget);
    check_objective(request, options);
    request.limits = read_limits(options);
    request.search.limits = request.limits.plans;
    request.search.searches_orders = request.limits.searches_orders;
    request.search.refines_first = request.search.recomputes_some = request.search.tries_rings = true;
    read_offload(request, options);
    request.rows = static_cast<std::size_t>(options.integer("--top", 1, 1000).value_or(5));
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
    request.html_path = options.text("--html");
    if (request.html_path) check_report("--html", *request.html_path, diagnostics);
    if (!wants_offers(options)) request.csv_path = options.text("--csv");
    if (request.csv_path) check_output("--csv", *request.csv_path, diagnostics);
    std::vector<std::pair<std::string, std::optional<std::string>>> written;
    for (const char* name : {"--out", "--certificate", "--html", "--csv", "--picture"})
        written.emplace_back(name, options.text(name));
    check_outputs_differ(written, diagnostics);
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

// "bf16 compute", by most targets, with those that differ: "bf16 compute (fp16 on p3.8xlarge)".
std::string assumed_precisions(const std::vector<planner::Target>& targets) {
    std::map<core::DataType, std::set<std::string>> instances;
    for (const planner::Target& target : targets)
        instances[target.base.precision.compute].insert(target.cluster.instance.name);
    const auto usual = std::max_element(instances.begin(), instances.end(), [](const auto& a, const auto& b) {
        return a.second.size() < b.second.size();
    });
    std::string text = fmt::format("{} compute", core::name_of(usual->first));
    for (const auto& [precision, names] : instances)
        if (precision != usual->first)
            text += fmt::format(" ({} on {})", core::name_of(precision), fmt::join(names, ", "));
    return text;
}

std::string why_nodes(const cluster::Cluster& kind, int nodes) {
    const char* plural = nodes == 1 ? "" : "s";
    if (states_nodes(kind))
        return fmt::format("{} node{} of {}, as its file says (no --nodes given)", nodes, plural,
                           kind.instance.name);
    if (!cluster::has_network(kind.instance))
        return fmt::format("1 node of {}, which has no network (no --nodes given)", kind.instance.name);
    return fmt::format("{} node{} of {}: the least that holds it (no --nodes given)", nodes, plural,
                       kind.instance.name);
}

// Every instance type with every number of nodes that is asked for. Nothing, with diagnostics, where one has
// no base plan or no network.
std::optional<std::vector<planner::Target>> targets_of(Request& request, const model::ModelGraph& graph,
                                                       Options& options, core::Diagnostics& diagnostics) {
    std::vector<planner::Target> targets;
    for (const cluster::Cluster& kind : request.targets) {
        const cluster::InstanceType& instance = kind.instance;
        if (request.nodes.value_or(1) > 1 && !cluster::has_network(instance)) {
            options.error("--nodes",
                          fmt::format("{} has no network: it cannot be more than one node", instance.name),
                          "use --nodes 1");
            return std::nullopt;
        }
        std::vector<planner::Target> first = targets_on(request, graph, kind, 1, diagnostics);
        if (diagnostics.has_errors()) return std::nullopt;
        if (request.runner && !first.empty())
            request.search.offload =
                offload_of(*request.runner, first.front(), graph, request.search.offload);
        const std::vector<int> counts = node_counts(request, graph, kind, diagnostics);
        if (!request.nodes && !request.most_nodes)
            request.assumptions.push_back(why_nodes(kind, counts.front()));
        for (const int nodes : counts)
            for (planner::Target& target : targets_on(request, graph, kind, nodes, diagnostics))
                targets.push_back(std::move(target));
        for (int nodes = 1; request.most_nodes && nodes < counts.back(); ++nodes)
            if (std::find(counts.begin(), counts.end(), nodes) == counts.end()) {
                request.search.unsearched.push_back(kind);
                request.search.unsearched.back().nodes = nodes;
            }
    }
    if (targets.empty()) return targets;
    if (request.runner)
        for (const std::string& way : ways_of(*request.runner, targets)) request.assumptions.push_back(way);
    else if (request.limits.precisions.empty())
        request.assumptions.push_back(fmt::format("{}, {} with fp32 optimizer state",
                                                  assumed_precisions(targets),
                                                  schedule::name_of(targets.front().base.optimizer.kind)));
    return targets;
}

}  // namespace

OptionNames plan_options() {
    OptionNames names{.with_value = {"--target",      "--nodes",         "--max-nodes", "--model",
                                     "--seq-len",     "--global-batch",  "--objective", "--tokens",
                                     "--deadline",    "--budget",        "--top",       "--threads",
                                     "--time-limit",  "--memory-margin", "--out",       "--certificate",
                                     "--html",        "--for",           "--offload",   "--offload-bandwidth",
                                     "--calibration", "--set",           "--csv"},
                      .flags = {"--pareto", "--json", "--help"}};
    for (const char* place : {"--optimizer-offload", "--parameter-offload"})
        names.with_value.emplace_back(place);
    for (const std::vector<std::string>* more : {&limit_option_names(), &offer_option_names()})
        names.with_value.insert(names.with_value.end(), more->begin(), more->end());
    return names;
}

std::optional<Question> read_question(Options& options, const std::optional<Runner>& runner,
                                      core::Diagnostics& diagnostics, std::size_t questions) {
    std::optional<Request> request = read_request(options, diagnostics);
    std::optional<std::int64_t> batch = options.integer("--global-batch", 1, 1 << 22);
    if (request && request->search.searches_orders && runner && runner->target)
        options.error("--schedule", fmt::format("{} runs named schedules only", runner->name),
                      "leave --schedule auto out, or use --for smexec");
    if (!request || diagnostics.has_errors()) return std::nullopt;
    request->runner = runner;
    request->search.time_limit = *request->search.time_limit / double(questions);
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

}  // namespace api
