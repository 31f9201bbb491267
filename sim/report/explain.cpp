#include "sim/report/explain.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>

#include "cluster/node.h"
#include "core/diagnostics.h"
#include "schedule/plan/planned_graph.h"
#include "sim/cost/pricing.h"
#include "sim/report/sensitivity.h"

namespace sim {

namespace {

using schedule::ComputePhase;
using schedule::Instruction;
using schedule::InstructionKind;

class Explainer {
public:
    Explainer(const Evaluation& evaluation, const model::ModelGraph& graph, const cluster::Cluster& cluster)
        : evaluation_(evaluation),
          graph_(graph),
          cluster_(cluster),
          program_(*evaluation.program),
          performer_(evaluation.critical_performer) {
        class_ = evaluation.timeline.class_of[performer_];
        for (const schedule::Span& span : spans())
            if (instruction(span).stream == schedule::Stream::compute && span.end > span.start)
                busy_.emplace_back(span.start.value, span.end.value);
        std::sort(busy_.begin(), busy_.end());
    }

    void explain_compute(const CostModels& costs, Explanation& result) const {
        // Equal ranges are priced once, however many micro-batches run them.
        std::map<std::tuple<std::int32_t, std::int32_t, ComputePhase, int, int, int>, std::int64_t> times;
        for (const schedule::Span& span : spans()) {
            const Instruction& i = instruction(span);
            if (i.kind == InstructionKind::compute) {
                ++times[{i.operators.begin, i.operators.end, i.phase, program_.segment_of(i.micro_batch),
                         i.piece, i.pieces}];
                result.compute_busy += span.end - span.start;
            } else if (i.stream == schedule::Stream::compute) {
                result.update += span.end - span.start;
            }
        }
        std::map<std::string, OperatorTime> by_kind;
        for (const auto& [range, count] : times) {
            const auto& [begin, end, phase, segment, piece, pieces] = range;
            for (std::int32_t o = begin; o < end; ++o) {
                const core::Seconds device =
                    costs.of_segment(segment).price({o, o + 1}, phase, piece, pieces).device *
                    static_cast<double>(count);
                if (device.value <= 0) continue;
                OperatorTime& time = by_kind[std::string(model::name_of(graph_.operators[o].kind))];
                (phase == ComputePhase::forward     ? time.forward
                 : phase == ComputePhase::recompute ? time.recompute
                                                    : time.backward) += device;
                if (piece == 0) time.operators += count;
            }
        }
        for (auto& [kind, time] : by_kind) {
            time.kind = kind;
            result.operators.push_back(time);
        }
        std::stable_sort(result.operators.begin(), result.operators.end(),
                         [](const OperatorTime& a, const OperatorTime& b) { return a.sum() > b.sum(); });
    }

    void explain_communication(Explanation& result) const {
        std::map<std::tuple<std::string, std::string, std::string>, CommunicationShare> entries;
        const std::vector<schedule::Span>& all = spans();
        for (std::size_t n = 0; n < all.size(); ++n) {
            const Instruction& i = instruction(all[n]);
            const bool is_collective = i.kind == InstructionKind::collective;
            if (!is_collective && i.kind != InstructionKind::send && i.kind != InstructionKind::receive)
                continue;
            if (all[n].end <= all[n].start) continue;
            std::string what =
                std::string(is_collective ? schedule::name_of(i.collective) : schedule::name_of(i.kind)) +
                " " + std::string(schedule::name_of(i.payload));
            if (is_collective) what += " over " + std::string(schedule::name_of(i.group));
            CommunicationShare& entry =
                entries[{std::string(schedule::name_of(i.stream)), what, links_of(i)}];
            const core::Seconds from = std::clamp(evaluation_.active_from[n], all[n].start, all[n].end);
            ++entry.count;
            entry.bytes += i.bytes;
            entry.busy += all[n].end - from;
            entry.waiting += from - all[n].start;
            entry.exposed += (all[n].end - from) - covered(from.value, all[n].end.value);
        }
        for (auto& [key, entry] : entries) {
            std::tie(entry.stream, entry.what, entry.links) = key;
            result.communications.push_back(entry);
        }
        std::stable_sort(result.communications.begin(), result.communications.end(),
                         [](const CommunicationShare& a, const CommunicationShare& b) {
                             return a.exposed != b.exposed ? a.exposed > b.exposed : a.busy > b.busy;
                         });
    }

    int rank() const { return evaluation_.timeline.rank[performer_]; }

private:
    const std::vector<schedule::Span>& spans() const { return evaluation_.timeline.spans[performer_]; }
    const Instruction& instruction(const schedule::Span& span) const {
        return program_.classes[class_].instructions[span.instruction];
    }

    // Of [from, to), what compute of this rank covers.
    core::Seconds covered(double from, double to) const {
        auto at = std::lower_bound(
            busy_.begin(), busy_.end(), from,
            [](const std::pair<double, double>& span, double time) { return span.second <= time; });
        double total = 0;
        for (; at != busy_.end() && at->first < to; ++at)
            total += std::max(0.0, std::min(at->second, to) - std::max(at->first, from));
        return core::Seconds(total);
    }

    std::string links_of(const Instruction& i) const {
        const int rank = evaluation_.timeline.rank[performer_];
        std::vector<int> ranks{rank};
        if (i.kind == InstructionKind::collective) {
            ranks = schedule::members_of(program_, rank, i);
        } else {
            schedule::RankCoordinates peer = schedule::coordinates_of(program_.plan.layout, rank);
            peer.pipeline = *i.peer;
            ranks.push_back(schedule::rank_of(program_.plan.layout, peer));
        }
        for (const int other : ranks)
            if (cluster::node_of_rank(cluster_, other) != cluster::node_of_rank(cluster_, rank))
                return "between nodes";
        return "inside a node";
    }

    const Evaluation& evaluation_;
    const model::ModelGraph& graph_;
    const cluster::Cluster& cluster_;
    const schedule::Program& program_;
    const std::size_t performer_;
    std::size_t class_ = 0;
    std::vector<std::pair<double, double>> busy_;  // of the compute stream, in order
};

}  // namespace

Explanation explain(const Evaluation& evaluation, const model::ModelGraph& model,
                    const cluster::Cluster& cluster, const schedule::Plan& plan,
                    const ExplainOptions& options) {
    const schedule::PlannedGraph planned(plan, model);
    const model::ModelGraph& graph = *planned;
    core::require(evaluation.program && !evaluation.timeline.spans.empty(),
                  "an explanation needs the timeline");
    Explanation result;
    result.step = evaluation.step_time;
    result.host = evaluation.breakdown.host;
    result.bubble = evaluation.breakdown.bubble;
    core::Diagnostics diagnostics;
    const Explainer explainer(evaluation, graph, cluster);
    result.rank = explainer.rank();
    if (const std::optional<CostModels> costs =
            make_cost_models(graph, cluster, plan, diagnostics, options.constants))
        explainer.explain_compute(*costs, result);
    explainer.explain_communication(result);
    if (options.finds_influences)
        find_influences(graph, cluster, plan, options, result.constants, result.figures);
    return result;
}

}  // namespace sim
