#include "sim/report/trace.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <tuple>

#include "core/diagnostics.h"
#include "core/document.h"
#include "core/index/integers.h"
#include "schedule/plan/planned_graph.h"

namespace sim {

namespace {

using schedule::ComputePhase;
using schedule::Instruction;
using schedule::InstructionKind;

// A trace counts whole nanoseconds: where a slice ends is rounded as where the next begins, so that slices
// of one lane never overlap by rounding (viewers drop those that do).
std::int64_t nanoseconds(core::Seconds time) { return std::llround(time.value * 1e9); }

std::string microseconds(std::int64_t nanoseconds) {
    return fmt::format("{}.{:03}", nanoseconds / 1000, nanoseconds % 1000);
}

const char* letter(ComputePhase phase) {
    switch (phase) {
        case ComputePhase::forward: return "F";
        case ComputePhase::recompute: return "R";
        case ComputePhase::backward: return "B";
        case ComputePhase::backward_input: return "I";
        case ComputePhase::backward_weight: return "W";
    }
    throw core::InternalError("broken promise: every phase has a letter");
}

const char* payload_word(schedule::PayloadKind payload) {
    switch (payload) {
        case schedule::PayloadKind::none: return "";
        case schedule::PayloadKind::activation: return "activation";
        case schedule::PayloadKind::activation_gradient: return "gradient of activation";
        case schedule::PayloadKind::parameter_gradient: return "gradient";
        case schedule::PayloadKind::parameter: return "parameters";
        case schedule::PayloadKind::loss: return "loss";
        case schedule::PayloadKind::gradient_norm: return "gradient norm";
        case schedule::PayloadKind::update_norm: return "update norms";
    }
    throw core::InternalError("broken promise: every payload has a word");
}

}  // namespace

std::string label(const schedule::Program& program, const Instruction& instruction, bool full) {
    std::string text;
    const std::string micro_batch = schedule::micro_batch_text(program, instruction.micro_batch);
    switch (instruction.kind) {
        case InstructionKind::compute:
            text = fmt::format("{}{}", letter(instruction.phase), micro_batch);
            break;
        case InstructionKind::send:
            text = fmt::format("send {} {}", payload_word(instruction.payload), micro_batch);
            break;
        case InstructionKind::receive:
            text = fmt::format("receive {} {}", payload_word(instruction.payload), micro_batch);
            break;
        case InstructionKind::collective:
            text = fmt::format("{} {}", schedule::name_of(instruction.collective),
                               payload_word(instruction.payload));
            if (instruction.bucket) text += fmt::format(" {}", *instruction.bucket);
            if (instruction.micro_batch >= 0) text += " " + micro_batch;
            break;
        case InstructionKind::copy:
            text = instruction.bucket ? fmt::format("{} {} {}", instruction.loads ? "load" : "offload",
                                                    payload_word(instruction.payload), *instruction.bucket)
                                      : fmt::format("{} {}", instruction.loads ? "load" : "offload",
                                                    instruction.micro_batch);
            break;
        case InstructionKind::optimizer_step: text = "optimizer step"; break;
        case InstructionKind::zero_gradients: text = "zero gradients"; break;
        case InstructionKind::gradient_norm: text = "gradient norm"; break;
        case InstructionKind::update_norm: text = "update norms"; break;
    }
    if (!full) return text;
    if (is_of_weights(instruction)) text += " weights";
    else if (instruction.pieces > 1)
        text += fmt::format(" piece {} of {}", instruction.piece + 1, instruction.pieces);
    if (instruction.stage >= 0 && program.stages.size() > 1)
        text += fmt::format(" stage {}", instruction.stage);
    if (instruction.kind == InstructionKind::collective)
        text += fmt::format(" over {}", schedule::name_of(instruction.group));
    if (instruction.bytes.value > 0) text += " " + core::format(instruction.bytes);
    return text;
}

namespace {

// Who sends to whom: from every send to its receive, and through the members of every collective in the order
// in which they join it.
class Arrows {
public:
    struct End {
        std::size_t performer = 0;
        const schedule::Span* span = nullptr;
        schedule::Stream stream = schedule::Stream::compute;
        bool receives = false;
    };

    Arrows(const schedule::Program& program, const schedule::Timeline& timeline) : program_(program) {
        for (std::size_t p = 0; p < timeline.spans.size(); ++p) {
            joined_.clear();
            std::vector<const schedule::Span*> in_order;
            for (const schedule::Span& span : timeline.spans[p]) in_order.push_back(&span);
            std::stable_sort(in_order.begin(), in_order.end(),
                             [](const auto* a, const auto* b) { return a->instruction < b->instruction; });
            for (const schedule::Span* span : in_order)
                add({p, span}, program.classes[timeline.class_of[p]], timeline.rank[p]);
        }
    }

    // Each with two ends or more, in the order in which data moves.
    std::vector<std::vector<End>> take() {
        std::vector<std::vector<End>> arrows;
        const auto move_from = [&](auto& ends_by_key) {
            for (auto& [key, ends] : ends_by_key) {
                if (ends.size() < 2) continue;
                std::stable_sort(ends.begin(), ends.end(), [](const End& a, const End& b) {
                    return std::pair(a.receives, a.span->start) < std::pair(b.receives, b.span->start);
                });
                arrows.push_back(std::move(ends));
            }
        };
        move_from(messages_);
        move_from(collectives_);
        return arrows;
    }

private:
    void add(End end, const schedule::RankProgram& list, int rank) {
        const Instruction& i = list.instructions[end.span->instruction];
        end.stream = i.stream;
        end.receives = i.kind == InstructionKind::receive;
        if (i.kind == InstructionKind::collective) {
            const auto [first, last] = group_of(i, list, rank);
            const int number = joined_[{i.group, first, last}]++;
            collectives_[{i.group, first, last, number}].push_back(end);
        } else if (end.receives || i.kind == InstructionKind::send) {
            const bool is_gradient = i.payload == schedule::PayloadKind::activation_gradient;
            const int boundary = end.receives == is_gradient ? i.stage + 1 : i.stage;
            const schedule::RankCoordinates at = schedule::coordinates_of(program_.plan.layout, rank);
            messages_[{at.data, at.tensor, i.payload, boundary, i.micro_batch}].push_back(end);
        }
    }

    // Lowest and highest rank of the group in which `rank` runs a collective.
    std::pair<int, int> group_of(const Instruction& i, const schedule::RankProgram& list, int rank) {
        const schedule::ParallelLayout& layout = program_.plan.layout;
        if (i.group == schedule::GroupKind::tied_stages && i.bucket) {
            const std::vector<std::int32_t>& tied = list.buckets[*i.bucket].tied_ranks;
            if (tied.empty()) return {rank, rank};
            schedule::RankCoordinates first = schedule::coordinates_of(layout, rank), last = first;
            first.pipeline = tied.front();
            last.pipeline = tied.back();
            return {schedule::rank_of(layout, first), schedule::rank_of(layout, last)};
        }
        const auto [entry, is_new] = groups_.try_emplace({i.group, rank}, rank, rank);
        if (is_new) {
            const std::vector<int> group =
                schedule::process_group(layout, i.group, rank, program_.plan.effective_shard_degree());
            if (!group.empty()) {
                const auto [first, last] = std::minmax_element(group.begin(), group.end());
                entry->second = {*first, *last};
            }
        }
        return entry->second;
    }

    const schedule::Program& program_;
    // By replica (data and tensor coordinate), payload, boundary and micro-batch.
    std::map<std::tuple<int, int, schedule::PayloadKind, int, int>, std::vector<End>> messages_;
    // By group and number in it.
    std::map<std::tuple<schedule::GroupKind, int, int, int>, std::vector<End>> collectives_;
    std::map<std::tuple<schedule::GroupKind, int, int>, int> joined_;  // by one performer so far
    std::map<std::pair<schedule::GroupKind, int>, std::pair<int, int>> groups_;
};

class TraceWriter {
public:
    TraceWriter(const schedule::Program& program, const model::ModelGraph& graph)
        : program_(program), graph_(program.plan, graph) {}

    void add(std::size_t pid, const std::string& name, const schedule::Timeline& timeline, std::size_t p,
             const schedule::MemoryTimeline& memory) {
        auto out = std::back_inserter(text_);
        const schedule::RankProgram& list = program_.classes[timeline.class_of[p]];
        fmt::format_to(out,
                       "{}{{\"ph\":\"M\",\"pid\":{},\"name\":\"process_name\",\"args\":{{\"name\":\"{}\"}}}}",
                       is_first_ ? "" : ",\n", pid, name);
        is_first_ = false;
        for (int stream = 0; stream < schedule::stream_count; ++stream)
            fmt::format_to(out,
                           ",\n{{\"ph\":\"M\",\"pid\":{},\"tid\":{},\"name\":\"thread_name\",\"args\":{{"
                           "\"name\":\"{}\"}}}}",
                           pid, stream, schedule::name_of(static_cast<schedule::Stream>(stream)));
        for (const schedule::Span& span : timeline.spans[p]) {
            const Instruction& instruction = list.instructions[span.instruction];
            fmt::format_to(out,
                           ",\n{{\"ph\":\"X\",\"pid\":{},\"tid\":{},\"ts\":{},\"dur\":{},\"name\":\"{"
                           "}\",\"cat\":\"{}\",\"args\":{{\"instruction\":{},"
                           "\"stage\":{},\"micro_batch\":{},\"bytes\":{:.0f}{}}}}}",
                           pid, core::position_of(instruction.stream), microseconds(nanoseconds(span.start)),
                           microseconds(nanoseconds(span.end) - nanoseconds(span.start)),
                           label(program_, instruction, false), schedule::name_of(instruction.stream),
                           span.instruction, instruction.stage, instruction.micro_batch,
                           instruction.bytes.value, operators_of(instruction));
        }
        if (p >= memory.samples.size()) return;
        for (const schedule::MemorySample& sample : memory.samples[p]) {
            fmt::format_to(out, ",\n{{\"ph\":\"C\",\"pid\":{},\"name\":\"memory GiB\",\"ts\":{},\"args\":{{",
                           pid, microseconds(nanoseconds(sample.time)));
            for (int kind = 0; kind < schedule::memory_kind_count; ++kind)
                fmt::format_to(out, "{}\"{}\":{:.6f}", kind == 0 ? "" : ",",
                               schedule::name_of(static_cast<schedule::MemoryKind>(kind)),
                               core::to_gibibytes(sample.bytes[kind]));
            text_ += "}}";
        }
    }
    void add(const TraceMark& mark) {
        fmt::format_to(std::back_inserter(text_),
                       ",\n{{\"ph\":\"i\",\"s\":\"p\",\"pid\":{},\"tid\":{},\"ts\":{},\"name\":\"{}\"}}",
                       mark.performer, core::position_of(mark.stream), microseconds(nanoseconds(mark.time)),
                       mark.text);
    }
    // Arrows between the slices of a timeline; performer p has process `pid_of(p)`.
    template <class PidOf>
    void add(Arrows arrows, const PidOf& pid_of) {
        for (std::vector<Arrows::End>& ends : arrows.take()) {
            ++arrows_;
            std::int64_t time = 0;  // an arrow does not lead back in time, and ends inside its slice
            for (std::size_t e = 0; e < ends.size(); ++e) {
                time = std::max(nanoseconds(ends[e].span->start),
                                std::min(time, nanoseconds(ends[e].span->end) - 1));
                fmt::format_to(
                    std::back_inserter(text_),
                    ",\n{{\"ph\":\"{}\",\"id\":{},\"pid\":{},\"tid\":{},\"ts\":{},\"name\":\"data\","
                    "\"cat\":\"data\",\"bp\":\"e\"}}",
                    e == 0                ? 's'
                    : e + 1 < ends.size() ? 't'
                                          : 'f',
                    arrows_, pid_of(ends[e].performer), core::position_of(ends[e].stream),
                    microseconds(time));
            }
        }
    }
    std::string take() { return std::move(text_) + "\n]}\n"; }

private:
    // `,"operators":"layers.0.norm1 .. layers.3.mlp (48)"` of a computation, as JSON.
    const std::string& operators_of(const Instruction& instruction) {
        const model::OperatorRange range = instruction.operators;
        const bool computes = instruction.kind == InstructionKind::compute && range.begin < range.end;
        const auto [entry, is_new] =
            operators_.try_emplace(computes ? std::pair(range.begin, range.end) : std::pair(0, 0));
        if (is_new && computes) {
            std::string text = graph_->operators[range.begin].name;
            if (range.end - range.begin > 1)
                text += fmt::format(" .. {} ({})", graph_->operators[range.end - 1].name,
                                    range.end - range.begin);
            entry->second = ",\"operators\":" + core::to_json(core::Value(text));
        }
        return entry->second;
    }

    const schedule::Program& program_;
    const schedule::PlannedGraph graph_;
    std::map<std::pair<std::int32_t, std::int32_t>, std::string> operators_;  // by their range
    std::int64_t arrows_ = 0;
    std::string text_ = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
    bool is_first_ = true;
};

}  // namespace

std::string chrome_trace(const schedule::Program& program, const model::ModelGraph& graph,
                         const schedule::Timeline& timeline, const schedule::MemoryTimeline& memory,
                         const std::vector<TraceMark>& marks) {
    core::require(timeline.spans.size() == timeline.class_of.size(),
                  "a trace needs the spans of every performer");
    TraceWriter writer(program, graph);
    for (std::size_t p = 0; p < timeline.spans.size(); ++p) {
        const int pipeline = program.classes[timeline.class_of[p]].pipeline;
        writer.add(p, fmt::format("rank {} (pipeline {})", timeline.rank[p], pipeline), timeline, p, memory);
    }
    for (const TraceMark& mark : marks) writer.add(mark);
    writer.add(Arrows(program, timeline), [](std::size_t p) { return p; });
    return writer.take();
}

std::string comparison_trace(const schedule::Program& program, const model::ModelGraph& graph,
                             const schedule::Timeline& predicted,
                             const schedule::MemoryTimeline& predicted_memory,
                             const schedule::Timeline& measured,
                             const schedule::MemoryTimeline& measured_memory) {
    core::require(predicted.spans.size() == predicted.class_of.size() &&
                      measured.spans.size() == measured.class_of.size(),
                  "a trace needs the spans of every performer");
    TraceWriter writer(program, graph);
    for (std::size_t p = 0; p < measured.spans.size(); ++p) {
        const int rank = measured.rank[p];
        // The rank itself where every rank was simulated, else its class's representative.
        std::size_t of_rank = predicted.class_of.size();
        for (std::size_t q = 0; q < predicted.class_of.size(); ++q)
            if (predicted.rank[q] == rank ||
                (of_rank == predicted.class_of.size() && predicted.class_of[q] == measured.class_of[p]))
                of_rank = q;
        if (of_rank < predicted.class_of.size())
            writer.add(2 * p, fmt::format("rank {} predicted", rank), predicted, of_rank, predicted_memory);
        writer.add(2 * p + 1, fmt::format("rank {} measured", rank), measured, p, measured_memory);
    }
    writer.add(Arrows(program, measured), [](std::size_t p) { return 2 * p + 1; });
    return writer.take();
}

}  // namespace sim
