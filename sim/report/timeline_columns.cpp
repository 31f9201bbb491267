#include "sim/report/timeline_columns.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

#include <fmt/core.h>

#include "core/document.h"
#include "core/errors.h"
#include "core/index/integers.h"
#include "model/model_graph.h"
#include "schedule/plan/planned_graph.h"

namespace sim {

namespace {

using schedule::ComputePhase;
using schedule::Instruction;
using schedule::InstructionKind;

std::int64_t nanoseconds(core::Seconds time) { return std::llround(time.value * 1e9); }

std::string in_words(std::string_view key) {
    std::string words(key);
    std::replace(words.begin(), words.end(), '_', ' ');
    return words;
}

// What the page has a colour for: a phase of compute, or what a communication is over.
std::string_view kind_of(const Instruction& instruction) {
    switch (instruction.kind) {
        case InstructionKind::compute: return schedule::name_of(instruction.phase);
        case InstructionKind::send:
        case InstructionKind::receive:
        case InstructionKind::copy: return schedule::name_of(instruction.kind);
        case InstructionKind::collective: return schedule::name_of(instruction.group);
        case InstructionKind::optimizer_step:
        case InstructionKind::zero_gradients:
        case InstructionKind::gradient_norm:
        case InstructionKind::update_norm: return "optimizer";
    }
    throw core::InternalError("broken promise: every instruction has a kind");
}

// Without its micro-batch, which is a column of its own.
std::string name_of(const Instruction& instruction) {
    switch (instruction.kind) {
        case InstructionKind::compute: return in_words(schedule::name_of(instruction.phase));
        case InstructionKind::send:
        case InstructionKind::receive:
            return fmt::format("{} {}", schedule::name_of(instruction.kind),
                               in_words(schedule::name_of(instruction.payload)));
        case InstructionKind::collective: {
            std::string name = fmt::format("{} {}", in_words(schedule::name_of(instruction.collective)),
                                           in_words(schedule::name_of(instruction.payload)));
            if (instruction.bucket) name += fmt::format(" {}", *instruction.bucket);
            return name + " over " + in_words(schedule::name_of(instruction.group));
        }
        case InstructionKind::copy: return instruction.loads ? "load" : "offload";
        case InstructionKind::optimizer_step:
        case InstructionKind::zero_gradients:
        case InstructionKind::gradient_norm:
        case InstructionKind::update_norm: return in_words(schedule::name_of(instruction.kind));
    }
    throw core::InternalError("broken promise: every instruction has a name");
}

std::string joined(const std::vector<std::int64_t>& numbers) {
    std::string text = "[";
    for (const std::int64_t number : numbers)
        fmt::format_to(std::back_inserter(text), "{}{}", text.size() > 1 ? "," : "", number);
    return text + "]";
}

// A column in which numbers repeat, as a text: "0*2,288279*41,17".
std::string in_runs(const std::vector<std::int64_t>& numbers) {
    std::string text = "\"";
    for (std::size_t begin = 0, end = 0; begin < numbers.size(); begin = end) {
        while (end < numbers.size() && numbers[end] == numbers[begin]) ++end;
        fmt::format_to(std::back_inserter(text), "{}{}", begin == 0 ? "" : ",", numbers[begin]);
        if (end - begin > 1) fmt::format_to(std::back_inserter(text), "*{}", end - begin);
    }
    return text + "\"";
}

std::string joined_texts(const std::vector<std::string>& texts) {
    std::string json = core::to_json(core::Value(texts), 0);
    json.pop_back();  // the end of its line
    return json;
}

// Texts that are written once, by number.
class Names {
public:
    std::int64_t number_of(const std::string& name) {
        const auto [at, is_new] = numbers_.try_emplace(name, core::count_of(texts_));
        if (is_new) texts_.push_back(name);
        return at->second;
    }
    const std::vector<std::string>& texts() const { return texts_; }

private:
    std::map<std::string, std::int64_t> numbers_;
    std::vector<std::string> texts_;
};

// What a slice is, but for its micro-batch and when it begins: slices that are alike share one.
class Operations {
public:
    std::int64_t number_of(const Instruction& instruction, std::int64_t duration) {
        const auto [at, is_new] = numbers_.try_emplace(
            {names_.number_of(name_of(instruction)), kinds_.number_of(std::string(kind_of(instruction))),
             instruction.stage, duration, channel_of(instruction), std::llround(instruction.bytes.value),
             instruction.operators.begin, instruction.operators.end},
            core::count_of(numbers_));
        return at->second;
    }

    std::string json() const {
        std::array<std::vector<std::int64_t>, column_count> columns;
        for (std::vector<std::int64_t>& column : columns) column.resize(numbers_.size());
        for (const auto& [values, number] : numbers_) {
            const auto& [name, kind, stage, duration, channel, bytes, first, end] = values;
            const std::array<std::int64_t, column_count> row{name,    kind,  stage, duration,
                                                             channel, bytes, first, end};
            for (std::size_t c = 0; c < column_count; ++c) columns[c][number] = row[c];
        }
        std::string text = "\"operations\":{";
        for (std::size_t c = 0; c < column_count; ++c)
            text += fmt::format("{}\"{}\":{}", c == 0 ? "" : ",", column_names[c], joined(columns[c]));
        return fmt::format("\"kinds\":{},\n\"names\":{},\n{}}}", joined_texts(kinds_.texts()),
                           joined_texts(names_.texts()), text);
    }

private:
    static constexpr std::size_t column_count = 8;
    static constexpr std::array<const char*, column_count> column_names{
        "name", "kind", "stage", "duration_ns", "channel", "bytes", "first_operator", "end_operator"};

    // A send and its receive name the same one: what they carry, over which boundary between stages.
    std::int64_t channel_of(const Instruction& instruction) {
        const bool receives = instruction.kind == InstructionKind::receive;
        if (!receives && instruction.kind != InstructionKind::send) return -1;
        const bool is_gradient = instruction.payload == schedule::PayloadKind::activation_gradient;
        const int boundary = receives == is_gradient ? instruction.stage + 1 : instruction.stage;
        return channels_.try_emplace({instruction.payload, boundary}, core::count_of(channels_))
            .first->second;
    }

    Names kinds_, names_;
    std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                        std::int64_t, std::int64_t>,
             std::int64_t>
        numbers_;
    std::map<std::pair<schedule::PayloadKind, int>, std::int64_t> channels_;
};

// A stream is called what its collectives are over: without tensor parallelism its lane carries those of
// other groups, if any.
std::string lane_name(schedule::Stream stream, const std::vector<const Instruction*>& instructions) {
    switch (stream) {
        case schedule::Stream::compute: return "compute";
        case schedule::Stream::pipeline_send: return "send";
        case schedule::Stream::pipeline_receive: return "receive";
        case schedule::Stream::data: return "data";
        case schedule::Stream::copy: return "copy";
        case schedule::Stream::tensor: break;
    }
    std::vector<std::string> groups;
    for (const Instruction* instruction : instructions) {
        const std::string group = in_words(schedule::name_of(instruction->group));
        if (std::find(groups.begin(), groups.end(), group) == groups.end()) groups.push_back(group);
    }
    std::sort(groups.begin(), groups.end());
    std::string name;
    for (const std::string& group : groups) name += (name.empty() ? "" : ", ") + group;
    return name;
}

std::string lane_json(const schedule::RankProgram& list, std::vector<const schedule::Span*> spans,
                      schedule::Stream stream, Operations& operations) {
    std::stable_sort(spans.begin(), spans.end(),
                     [](const auto* a, const auto* b) { return a->start < b->start; });
    std::vector<std::int64_t> gaps, numbers, micro_batches;
    std::vector<const Instruction*> instructions;
    std::int64_t time = 0, micro_batch = 0, operation = 0;
    for (const schedule::Span* span : spans) {
        const Instruction& instruction = list.instructions[span->instruction];
        // A rounded end is where the next one begins: lanes do not overlap by rounding.
        const std::int64_t start = std::max(nanoseconds(span->start), time),
                           end = std::max(nanoseconds(span->end), start);
        gaps.push_back(start - time);
        const std::int64_t number = operations.number_of(instruction, end - start);
        numbers.push_back(number - operation);
        operation = number;
        micro_batches.push_back(instruction.micro_batch - micro_batch);
        time = end;
        micro_batch = instruction.micro_batch;
        instructions.push_back(&instruction);
    }
    return fmt::format("{{\"name\":\"{}\",\"gap_ns\":{},\"operation\":{},\"micro_batch\":{}}}",
                       lane_name(stream, instructions), in_runs(gaps), in_runs(numbers),
                       in_runs(micro_batches));
}

// Held after each moment; the first is from the beginning.
std::string memory_json(const std::vector<schedule::MemorySample>& samples, core::Bytes besides) {
    constexpr double kibibyte = 1024;
    std::vector<std::int64_t> gaps, held;
    std::int64_t time = 0, before = 0;
    for (const schedule::MemorySample& sample : samples) {
        core::Bytes total = besides;
        for (const core::Bytes bytes : sample.bytes) total += bytes;
        const std::int64_t now = std::llround(total.value / kibibyte);
        if (!held.empty() && now == before) continue;
        gaps.push_back(std::max(nanoseconds(sample.time), time) - time);
        held.push_back(now - before);
        time += gaps.back();
        before = now;
    }
    return fmt::format("{{\"gap_ns\":{},\"kib\":{}}}", in_runs(gaps), in_runs(held));
}

// The end of warm-up and the beginning of drain: when every performer has begun its first backward, and when
// the first has ended its last forward.
struct Parts {
    std::optional<core::Seconds> warm_up, drain;
};

void add_performer(const schedule::RankProgram& list, const std::vector<schedule::Span>& spans,
                   Parts& parts) {
    std::optional<core::Seconds> first_backward, last_forward;
    for (const schedule::Span& span : spans) {
        const Instruction& instruction = list.instructions[span.instruction];
        if (instruction.kind != InstructionKind::compute) continue;
        const bool is_backward =
            instruction.phase == ComputePhase::backward || instruction.phase == ComputePhase::backward_input;
        if (is_backward && (!first_backward || span.start < *first_backward)) first_backward = span.start;
        if (instruction.phase == ComputePhase::forward && (!last_forward || span.end > *last_forward))
            last_forward = span.end;
    }
    if (first_backward && (!parts.warm_up || *first_backward > *parts.warm_up))
        parts.warm_up = first_backward;
    if (last_forward && (!parts.drain || *last_forward < *parts.drain)) parts.drain = last_forward;
}

std::string optional_nanoseconds(const std::optional<core::Seconds>& time) {
    return time ? std::to_string(nanoseconds(*time)) : "null";
}

std::string rank_json(const schedule::Program& program, const NamedTimeline& source, std::size_t performer,
                      std::int64_t source_number, Operations& operations) {
    const schedule::Timeline& timeline = source.timeline;
    const std::int32_t class_number = timeline.class_of[performer];
    const schedule::RankProgram& list = program.classes[class_number];
    const schedule::ParallelLayout& layout = program.plan.layout;
    const schedule::RankCoordinates at = schedule::coordinates_of(layout, timeline.rank[performer]);
    const std::int64_t replica =
        (source_number * layout.data + at.data) * std::int64_t{layout.tensor} + at.tensor;
    const auto performers_of_class =
        std::count(timeline.class_of.begin(), timeline.class_of.end(), class_number);
    const auto ranks_of_class =
        std::count(program.class_of_rank.begin(), program.class_of_rank.end(), class_number);

    core::Bytes peak, besides;
    if (performer < source.memory.peak.size()) peak = source.memory.peak[performer];
    if (performer < source.peaks.size()) {
        besides = source.peaks[performer] - peak;
        peak = source.peaks[performer];
    }
    std::string lanes;
    for (int stream = 0; stream < schedule::stream_count; ++stream) {
        std::vector<const schedule::Span*> spans;
        bool takes_time = false;
        for (const schedule::Span& span : timeline.spans[performer]) {
            if (core::position_of(list.instructions[span.instruction].stream) != stream) continue;
            spans.push_back(&span);
            takes_time = takes_time || span.end > span.start;
        }
        if (!takes_time) continue;
        lanes += (lanes.empty() ? "" : ",\n") +
                 lane_json(list, std::move(spans), static_cast<schedule::Stream>(stream), operations);
    }
    std::string memory = memory_json({}, {});
    if (performer < source.memory.samples.size())
        memory = memory_json(source.memory.samples[performer], besides);
    return fmt::format(
        "{{\"name\":\"rank {}{}{}\",\"rank\":{},\"pipeline\":{},\"replica\":{},\"ranks\":{},\"peak_gib\":{},"
        "\n\"memory\":{},\n\"lanes\":[{}]}}",
        timeline.rank[performer], source.name.empty() ? "" : " ", source.name, timeline.rank[performer],
        list.pipeline, replica, performers_of_class == 1 ? ranks_of_class : 1, core::to_gibibytes(peak),
        memory, lanes);
}

}  // namespace

std::string timeline_columns(const schedule::Program& program, const model::ModelGraph& graph,
                             const std::vector<NamedTimeline>& timelines) {
    struct Place {
        int rank = 0;
        std::size_t source = 0, performer = 0;
        auto operator<=>(const Place&) const = default;
    };
    std::vector<Place> places;
    Parts parts;
    core::Seconds makespan;
    for (std::size_t s = 0; s < timelines.size(); ++s) {
        const schedule::Timeline& timeline = timelines[s].timeline;
        core::require(timeline.spans.size() == timeline.class_of.size(),
                      "a page needs the spans of every performer");
        makespan = std::max(makespan, timeline.makespan);
        for (std::size_t p = 0; p < timeline.spans.size(); ++p) {
            places.push_back({timeline.rank[p], s, p});
            if (timelines.size() == 1)
                add_performer(program.classes[timeline.class_of[p]], timeline.spans[p], parts);
        }
    }
    std::sort(places.begin(), places.end());
    Operations operations;
    std::string ranks;
    for (const Place& place : places)
        ranks +=
            (ranks.empty() ? "" : ",\n") + rank_json(program, timelines[place.source], place.performer,
                                                     core::narrow<std::int64_t>(place.source), operations);
    std::vector<std::string> operators;
    const schedule::PlannedGraph planned(program.plan, graph);
    for (const model::Operator& op : planned->operators) operators.push_back(op.name);
    return fmt::format(
        "{{\"makespan_ns\":{},\"pipeline_parallel\":{},\"stages\":{},\"passes_per_micro_batch\":{},"
        "\"parts\":{{\"warm_up_ns\":{},\"drain_ns\":{}}},\n\"operators\":{},\n{},\n\"ranks\":["
        "{}]}}",
        nanoseconds(makespan), program.plan.layout.pipeline, program.stages.size(),
        program.passes_per_micro_batch(), optional_nanoseconds(parts.warm_up),
        optional_nanoseconds(parts.drain), joined_texts(operators), operations.json(), ranks);
}

}  // namespace sim
