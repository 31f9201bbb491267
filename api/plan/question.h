// What `smplan` is asked: clusters, a model, a batch, an objective, and what plans are kept to.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "api/options.h"
#include "api/plan/plan_limits.h"
#include "api/plan/runners.h"
#include "cluster/topology.h"
#include "core/diagnostics_fwd.h"
#include "core/display/text_table.h"
#include "model/model_graph.h"
#include "planner/search.h"
#include "sim/uncertainty/interval.h"

namespace api {

inline constexpr const char* default_model = "llama-2-7b";

// Where parameters, gradients and the optimizer's state are: all on the devices, the optimizer on the hosts
// (ZeRO-Offload), or all there but for what a pass works on.
enum class StatePlace { devices, optimizer_on_hosts, all_on_hosts };

struct Request {
    std::vector<cluster::Cluster> targets;  // their numbers of nodes are decided later
    std::string model_reference = default_model;
    std::optional<std::int64_t> sequence_length;
    std::optional<std::int64_t> nodes, most_nodes;
    planner::SearchRequest search;
    std::size_t rows = 5;  // plans to show
    LimitOptions limits;
    std::optional<Runner> runner;            // what plans are for; nothing: plans of any kind
    core::BytesPerSecond offload_bandwidth;  // of a node's disks
    // Places that are searched together; and those that are where no plan fits so.
    std::vector<StatePlace> state_places = {StatePlace::devices};
    std::vector<StatePlace> places_instead = {StatePlace::optimizer_on_hosts, StatePlace::all_on_hosts};
    double memory_margin = 0;  // share of every device's memory that targets lack
    std::optional<std::string> out_path, certificate_path, html_path, csv_path;
    std::vector<std::string> assumptions;
    std::size_t width = core::usual_width;  // of tables, in columns
    std::optional<sim::Posterior> calibration;

    const sim::Posterior& posterior() const { return calibration ? *calibration : sim::shipped_posterior(); }
};

struct Question {
    Request request;
    model::ModelGraph graph;
    std::vector<planner::Target> targets;
};

// Every option of a question, also those of its answer.
OptionNames plan_options();
// Nothing where there are errors: every mistake is a diagnostic. One question of several that share the time
// limit.
std::optional<Question> read_question(Options& options, const std::optional<Runner>& runner,
                                      core::Diagnostics& diagnostics, std::size_t questions = 1);

// --optimizer-offload and --parameter-offload. The targets have been read.
void read_state_places(Request& request, Options& options);
// What is searched of so many nodes of a kind: for every precision that is asked for, and every way in which
// the runner handles precision and overlap. Diagnostics: of devices without a price for the model.
std::vector<planner::Target> targets_on(const Request& request, const model::ModelGraph& graph,
                                        const cluster::Cluster& kind, int nodes,
                                        core::Diagnostics& diagnostics);
// The clusters of these targets, as another request asks of them.
std::vector<planner::Target> targets_again(const Request& other, const model::ModelGraph& graph,
                                           const std::vector<planner::Target>& targets);
// The same with more of their state on the hosts (Request::places_instead), of clusters whose hosts are
// known.
std::vector<planner::Target> targets_on_hosts(const Request& request, const model::ModelGraph& graph,
                                              const std::vector<planner::Target>& targets);
// Bytes of parameters, gradients and optimizer state of the whole model that devices hold, unsharded.
core::Bytes state_on_devices(const model::ModelGraph& graph, schedule::Plan plan);
// Of the limit, for a search beside the one that was asked: what is left of it, but no less and no more than
// these shares.
struct ShareOfLimit {
    double least = 0, most = 1;
};
// A search of another question than the one that was asked, for its best plan. `worked`: by searches so far.
planner::SearchRequest search_beside(const Request& request, core::Seconds worked, ShareOfLimit share);
// The base plan whose kernels the device has: flash attention, else fused softmax, else plain.
schedule::Plan base_plan(const model::ModelGraph& graph, const cluster::DeviceSpec& device,
                         std::optional<core::DataType> precision, core::Diagnostics& diagnostics);

}  // namespace api
