// What a viewer of traces asks of one: slices of a lane that do not overlap, and arrows that begin and end
// inside slices and do not lead back in time.
#include <catch2/catch.hpp>

#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "core/diagnostics.h"
#include "core/document.h"
#include "schedule/pipeline/registry.h"
#include "sim/evaluate.h"
#include "sim/report/trace.h"
#include "tests/cluster/instances.h"
#include "tests/model/catalogue.h"

namespace {

struct Slice {
    std::int64_t start = 0, end = 0;
};
using Lane = std::pair<std::int64_t, std::int64_t>;  // process and thread

std::int64_t nanoseconds(const core::Value& event, const char* key) {
    const double value = event.find(key)->number() * 1000;
    REQUIRE(std::abs(value - std::round(value)) < 1e-3);  // whole ones
    return std::llround(value);
}

struct Trace {
    std::map<Lane, std::vector<Slice>> lanes;
    std::map<std::int64_t, std::vector<std::pair<std::string, std::int64_t>>> flows;  // phases and times
    std::size_t loose_ends = 0;  // ends of arrows outside every slice
};

Trace read_trace(const sim::Evaluation& evaluation, const model::ModelGraph& graph) {
    core::Diagnostics diagnostics;
    const std::optional<core::Value> document = core::parse_json(
        sim::chrome_trace(*evaluation.program, graph, evaluation.timeline, evaluation.memory_timeline),
        "trace", diagnostics);
    REQUIRE(document);
    Trace trace;
    const core::Value::Array& events = document->find("traceEvents")->items();
    const auto lane = [](const core::Value& event) {
        return Lane(event.find("pid")->integer(), event.find("tid")->integer());
    };
    for (const core::Value& event : events)
        if (event.find("ph")->string() == "X") {
            const std::int64_t start = nanoseconds(event, "ts");
            trace.lanes[lane(event)].push_back({start, start + nanoseconds(event, "dur")});
        }
    for (const core::Value& event : events) {
        const std::string& phase = event.find("ph")->string();
        if (phase != "s" && phase != "t" && phase != "f") continue;
        const std::int64_t time = nanoseconds(event, "ts");
        trace.flows[event.find("id")->integer()].emplace_back(phase, time);
        const std::vector<Slice>& slices = trace.lanes[lane(event)];
        trace.loose_ends += std::none_of(slices.begin(), slices.end(), [&](const Slice& slice) {
            return slice.start <= time && time <= slice.end;
        });
    }
    return trace;
}

}  // namespace

TEST_CASE("slices of a trace's lane do not overlap, and its arrows lead from slices to later slices") {
    const model::ModelGraph graph = load_graph("gpt2", 256);
    const cluster::Cluster cluster = nodes_of("p4d.24xlarge", 1);
    for (const schedule::PipelineSchedule& entry : schedule::pipeline_schedules()) {
        INFO(entry.name);
        schedule::Plan plan;
        plan.layout = {2, 1, 4, "PDT"};
        plan.schedule = entry.name;
        plan.virtual_stages = std::max(1, entry.least_chunks);
        plan.micro_batches = 8;
        core::Diagnostics diagnostics;
        for (const bool is_folded : {true, false}) {
            const std::optional<sim::Evaluation> evaluation = sim::evaluate(
                graph, cluster, plan, diagnostics, {.keeps_timeline = true, .is_folded = is_folded});
            REQUIRE(evaluation);
            Trace trace = read_trace(*evaluation, graph);
            for (auto& [lane, slices] : trace.lanes) {
                std::sort(slices.begin(), slices.end(), [](const Slice& a, const Slice& b) {
                    return std::pair(a.start, a.end) < std::pair(b.start, b.end);
                });
                for (std::size_t i = 1; i < slices.size(); ++i) CHECK(slices[i - 1].end <= slices[i].start);
            }
            CHECK(trace.loose_ends == 0);
            std::size_t messages = 0, arrows = 0;
            for (std::size_t p = 0; p < evaluation->timeline.spans.size(); ++p)
                for (const schedule::Span& span : evaluation->timeline.spans[p])
                    messages += evaluation->program->classes[evaluation->timeline.class_of[p]]
                                    .instructions[span.instruction]
                                    .kind == schedule::InstructionKind::receive;
            for (const auto& [id, flow] : trace.flows) {
                CHECK(flow.size() >= 2);
                for (std::size_t i = 0; i < flow.size(); ++i) {
                    CHECK(flow[i].first == (i == 0 ? "s" : i + 1 == flow.size() ? "f" : "t"));
                    if (i > 0) CHECK(flow[i].second >= flow[i - 1].second);
                }
                arrows += flow.size() == 2;
            }
            CHECK(messages > 0);
            CHECK(arrows >= messages);
        }
    }
}
