#include "sim/report/sensitivity.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "cluster/describe.h"
#include "core/diagnostics.h"
#include "core/parallel.h"

namespace sim {

namespace {

// One prediction with something changed.
struct Trial {
    Influence* influence = nullptr;
    CostConstants constants;
    cluster::Cluster cluster;
};

// A figure of the profile: the path of its source, and how to make it larger. False: the profile does not
// have it.
struct Figure {
    std::string path, meaning;
    std::function<bool(cluster::InstanceType&, double)> scale;
};

bool scale_links(cluster::InstanceType& instance, cluster::LinkKind kind, double factor) {
    bool any = false;
    for (cluster::Link& link : instance.links)
        if (link.kind == kind) {
            link.bandwidth = link.bandwidth * factor;
            any = true;
        }
    return any && cluster::prepare_routes(instance);
}

std::vector<Figure> figures_of(const cluster::InstanceType& instance, const schedule::Plan& plan) {
    using cluster::InstanceType;
    using cluster::LinkKind;
    const core::DataType compute = plan.precision.compute;
    std::vector<Figure> figures;
    figures.push_back({"device.precision." + std::string(core::name_of(compute)), "rate of matrix products",
                       [compute](InstanceType& i, double f) {
                           const auto peak = i.device.peak.find(compute);
                           if (peak == i.device.peak.end()) return false;
                           peak->second = peak->second * f;
                           if (const auto curve = i.device.matrix_product.find(compute);
                               curve != i.device.matrix_product.end())
                               for (cluster::MatrixProductCurve::Point& point : curve->second.points)
                                   point.rate = point.rate * f;
                           return true;
                       }});
    figures.push_back({"device.memory_bandwidth", "memory bandwidth", [](InstanceType& i, double f) {
                           i.device.memory_bandwidth = i.device.memory_bandwidth * f;
                           return true;
                       }});
    figures.push_back(
        {"device.kernel_launch", "device time of the smallest kernel", [](InstanceType& i, double f) {
             i.device.kernel_launch = i.device.kernel_launch * f;
             return i.device.kernel_launch.value > 0;
         }});
    figures.push_back({"device.host_dispatch", "host time of one kernel", [](InstanceType& i, double f) {
                           i.device.host_dispatch = i.device.host_dispatch * f;
                           return i.device.host_dispatch.value > 0;
                       }});
    if (plan.updates_on_hosts())
        figures.push_back(
            {"instance.host_memory_bandwidth", "rate of a host's memory", [](InstanceType& i, double f) {
                 i.host_memory_bandwidth = i.host_memory_bandwidth * f;
                 return i.host_memory_bandwidth.value > 0;
             }});
    const std::pair<LinkKind, const char*> kinds[] = {{LinkKind::nvlink, "nvlink"},
                                                      {LinkKind::pcie, "pcie"},
                                                      {LinkKind::host_interconnect, "host_interconnect"}};
    for (const auto& [kind, name] : kinds) {
        std::string type = name;
        for (const cluster::Link& link : instance.links)
            if (link.kind == kind && !link.type.empty()) type = link.type;
        figures.push_back({cluster::link_section(instance, type), fmt::format("bandwidth of {} links", name),
                           [kind = kind](InstanceType& i, double f) { return scale_links(i, kind, f); }});
    }
    figures.push_back({"network", "network bandwidth of a node", [](InstanceType& i, double f) {
                           i.network_bandwidth = i.network_bandwidth * f;
                           i.network_baseline = i.network_baseline * f;
                           return scale_links(i, LinkKind::network, f);
                       }});
    figures.push_back(
        {"network.latency", "latency of a message between nodes", [](InstanceType& i, double f) {
             i.network_latency = i.network_latency * f;
             return i.network_latency.value > 0 && cluster::prepare_routes(i);
         }});
    figures.push_back(
        {"device.context_memory", "memory of the device context", [](InstanceType& i, double f) {
             i.device.context_memory = i.device.context_memory * f;
             return i.device.context_memory.value > 0;
         }});
    figures.push_back({"device.fragmentation", "fragmentation of what is allocated and freed",
                       [](InstanceType& i, double f) {
                           i.device.fragmentation *= f;
                           return i.device.fragmentation > 0;
                       }});
    return figures;
}

// Rounds over all virtual stages that a changed figure is simulated with; longer steps are extrapolated.
constexpr int simulated_rounds = 4;

bool moves(const Influence& influence) {
    constexpr double of_rounding = 1e-9;  // share of the figure
    return std::abs(influence.step_change) > of_rounding || std::abs(influence.peak_change) > of_rounding;
}

void rank(std::vector<Influence>& influences) {
    std::stable_sort(influences.begin(), influences.end(), [](const Influence& a, const Influence& b) {
        if (std::abs(a.step_change) != std::abs(b.step_change))
            return std::abs(a.step_change) > std::abs(b.step_change);
        return std::abs(a.peak_change) > std::abs(b.peak_change) && moves(a);
    });
}

}  // namespace

void find_influences(const model::ModelGraph& graph, const cluster::Cluster& cluster,
                     const schedule::Plan& plan, const ExplainOptions& options,
                     std::vector<Influence>& constants, std::vector<Influence>& figures) {
    EvaluateOptions evaluate_options;
    evaluate_options.constants = options.constants;
    evaluate_options.most_micro_batches = simulated_rounds * plan.stages();
    evaluate_options.verifies = false;
    core::Diagnostics diagnostics;
    const std::optional<Evaluation> base = evaluate(graph, cluster, plan, diagnostics, evaluate_options);
    if (!base) return;
    const double factor = 1 + options.step;

    for (const NamedConstant& constant : named_constants())
        constants.push_back({constant.name, options.constants.*constant.value, constant.meaning,
                             constant.source, "", constant.is_fitted ? "fitted" : "set"});
    const std::vector<Figure> known = figures_of(cluster.instance, plan);
    for (const Figure& figure : known) {
        Influence influence{figure.path, 0, figure.meaning, "", "", ""};
        if (const cluster::Provenance* provenance = cluster::provenance_of(cluster.instance, figure.path)) {
            influence.source = provenance->source;
            influence.date = provenance->date;
            influence.confidence = provenance->confidence;
        }
        figures.push_back(std::move(influence));
    }
    std::vector<Trial> trials;
    std::size_t next_constant = 0;
    for (const NamedConstant& constant : named_constants()) {
        Trial& trial = trials.emplace_back(Trial{&constants[next_constant++], options.constants, cluster});
        trial.constants.*constant.value *= factor;
    }
    for (std::size_t f = 0; f < known.size(); ++f) {
        Trial trial{&figures[f], options.constants, cluster};
        if (known[f].scale(trial.cluster.instance, factor)) trials.push_back(std::move(trial));
        else figures[f].name.clear();  // not in this profile
    }

    core::for_each_in_parallel(trials.size(), options.threads, [&](std::size_t t, int) {
        EvaluateOptions changed = evaluate_options;
        changed.constants = trials[t].constants;
        core::Diagnostics unneeded;
        const std::optional<Evaluation> result = evaluate(graph, trials[t].cluster, plan, unneeded, changed);
        if (!result) return;
        trials[t].influence->step_change = result->step_time / base->step_time - 1;
        if (base->peak_memory.value > 0)
            trials[t].influence->peak_change = result->peak_memory / base->peak_memory - 1;
    });

    std::erase_if(figures, [](const Influence& figure) { return figure.name.empty(); });
    rank(constants);
    rank(figures);
}

}  // namespace sim
