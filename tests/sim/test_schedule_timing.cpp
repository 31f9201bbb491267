#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <random>
#include <sstream>
#include <tuple>
#include <vector>

#include "core/csv.h"
#include "core/diagnostics.h"
#include "core/document.h"
#include "schedule/pipeline/registry.h"
#include "schedule/schedule_text.h"
#include "sim/engine/schedule_timing.h"

namespace {

schedule::Schedule generate(const std::string& name, const schedule::PipelineShape& shape) {
    const schedule::PipelineSchedule* found = schedule::find_pipeline_schedule(name);
    REQUIRE(found != nullptr);
    REQUIRE_FALSE(unsupported(*found, shape));
    return found->generate(shape);
}

sim::ScheduleCosts costs(double forward, double backward, double transfer = 0) {
    sim::ScheduleCosts result;
    result.stages[0].forward = core::Seconds(forward);
    result.stages[0].backward_input = core::Seconds(backward / 2);
    result.stages[0].backward_weight = core::Seconds(backward / 2);
    result.transfer = core::Seconds(transfer);
    return result;
}

schedule::PipelineShape shape_of(int ranks, int micro_batches, double forward, double backward) {
    schedule::PipelineShape shape;
    shape.ranks = ranks;
    shape.micro_batches = micro_batches;
    shape.forward = forward;
    shape.backward_input = shape.backward_weight = backward / 2;
    return shape;
}

}  // namespace

TEST_CASE("simple, interleaved and 1F1B take (m+p-1)(F+B) with equal stages and free transfers") {
    for (const auto& [forward, backward] :
         std::vector<std::pair<double, double>>{{1, 2}, {3, 5}, {2, 4}, {0.1, 0.2}, {5, 3}, {1, 1}})
        for (int ranks = 1; ranks <= 8; ++ranks)
            for (int micro_batches = 1; micro_batches <= 20; ++micro_batches)
                for (const char* name : {"simple", "interleaved", "1f1b"}) {
                    INFO(name << " p " << ranks << " m " << micro_batches << " F " << forward << " B "
                              << backward);
                    const sim::ScheduleTiming timing =
                        time_schedule(generate(name, shape_of(ranks, micro_batches, forward, backward)),
                                      costs(forward, backward));
                    CHECK(timing.makespan.value ==
                          Approx((micro_batches + ranks - 1) * (forward + backward)).epsilon(1e-12));
                    // m of m+p-1 slots are work.
                    CHECK(timing.bubble_rate ==
                          Approx((ranks - 1.0) / (micro_batches + ranks - 1)).margin(1e-12));
                }
}

TEST_CASE("simple holds m micro-batches on every rank, 1F1B min(m, p-r)") {
    for (int ranks = 1; ranks <= 6; ++ranks)
        for (int micro_batches = 1; micro_batches <= 9; ++micro_batches) {
            const sim::ScheduleTiming simple =
                time_schedule(generate("simple", shape_of(ranks, micro_batches, 1, 2)), costs(1, 2));
            const sim::ScheduleTiming alternating =
                time_schedule(generate("1f1b", shape_of(ranks, micro_batches, 1, 2)), costs(1, 2));
            for (int rank = 0; rank < ranks; ++rank) {
                CHECK(simple.peak_in_flight[static_cast<std::size_t>(rank)] == micro_batches);
                CHECK(alternating.peak_in_flight[static_cast<std::size_t>(rank)] ==
                      std::min(micro_batches, ranks - rank));
            }
        }
}

// Greedy backward-first execution worked out by hand for the small ones; F 1, B 2, free transfers. Columns:
// ranks, micro-batches, active, makespan, peaks.
TEST_CASE("SMP interleaved trades active micro-batches for time") {
    struct Oracle {
        int ranks, micro_batches, active;
        double makespan;
        std::vector<int> peaks;
    };
    const int unlimited = 1000;
    for (const Oracle& oracle : std::vector<Oracle>{{2, 2, 0, 9, {2, 1}},
                                                    {2, 4, 0, 15, {4, 1}},
                                                    {2, 4, 2, 15, {2, 1}},
                                                    {4, 8, 0, 33, {6, 6, 4, 1}},
                                                    {4, 8, 4, 33, {4, 4, 4, 1}},
                                                    {4, 8, 2, 51, {2, 2, 2, 1}},
                                                    {4, 16, unlimited, 57, {10, 7, 4, 1}},
                                                    {4, 16, 6, 57, {6, 6, 4, 1}},
                                                    {4, 16, 2, 99, {2, 2, 2, 1}}}) {
        INFO("p " << oracle.ranks << " m " << oracle.micro_batches << " active " << oracle.active);
        schedule::PipelineShape shape = shape_of(oracle.ranks, oracle.micro_batches, 1, 2);
        shape.parameters = schedule::AdmissionParameters{oracle.active};
        const sim::ScheduleTiming timing = time_schedule(generate("interleaved", shape), costs(1, 2));
        CHECK(timing.makespan.value == oracle.makespan);
        CHECK(timing.peak_in_flight == oracle.peaks);
    }
}

TEST_CASE("SMP interleaved with one active micro-batch does one after the other") {
    for (int ranks = 1; ranks <= 5; ++ranks) {
        schedule::PipelineShape shape = shape_of(ranks, 6, 1, 2);
        shape.parameters = schedule::AdmissionParameters{1};
        CHECK(time_schedule(generate("interleaved", shape), costs(1, 2)).makespan.value == 6 * ranks * 3);
    }
}

TEST_CASE("A strict schedule is never faster than a less strict one with the same unlimited micro-batches") {
    for (int ranks = 1; ranks <= 4; ++ranks)
        for (int chunks = 1; chunks <= 3; ++chunks) {
            schedule::PipelineShape shape = shape_of(ranks, 8, 1, 2);
            shape.chunks = chunks;
            const double strict = time_schedule(generate("interleaved", shape), costs(1, 2)).makespan.value;
            shape.parameters = schedule::AdmissionParameters{.is_strict = false};
            const double less_strict =
                time_schedule(generate("interleaved", shape), costs(1, 2)).makespan.value;
            INFO("p " << ranks << " v " << chunks);
            CHECK(less_strict <= strict);
            if (chunks == 1) CHECK(less_strict == strict);
        }
}

TEST_CASE("Interleaving divides the bubble by the number of chunks") {
    for (int ranks = 1; ranks <= 6; ++ranks)
        for (int chunks = 1; chunks <= 4; ++chunks)
            for (int rounds = 1; rounds <= 3; ++rounds) {
                schedule::PipelineShape shape = shape_of(ranks, ranks * rounds, 1, 2);
                shape.chunks = chunks;
                const sim::ScheduleTiming timing =
                    time_schedule(generate("interleaved-1f1b", shape), costs(1, 2));
                // v m slots of work and p-1 of waiting, each of one chunk's F + B.
                CHECK(timing.makespan.value == (chunks * ranks * rounds + ranks - 1) * 3);
            }
}

TEST_CASE("Groups of fewer micro-batches than ranks trade bubble for memory") {
    for (int ranks = 1; ranks <= 8; ++ranks)
        for (int chunks = 1; chunks <= 4; ++chunks)
            for (int group = (ranks + 1) / 2; group <= ranks; ++group)
                for (int rounds = 2; rounds <= 3; ++rounds) {
                    schedule::PipelineShape shape = shape_of(ranks, group * rounds, 1, 2);
                    shape.chunks = chunks;
                    shape.parameters = schedule::GroupParameters{group};
                    INFO("p " << ranks << " v " << chunks << " g " << group << " m " << shape.micro_batches);
                    const sim::ScheduleTiming timing =
                        time_schedule(generate("grouped-interleaved", shape), costs(1, 2));
                    CHECK(timing.makespan.value == 3 * chunks * shape.micro_batches + 2 * (ranks - 1) +
                                                       (chunks - 1) * (ranks - group));
                    for (int rank = 0; rank < ranks; ++rank)
                        CHECK(timing.peak_in_flight[static_cast<std::size_t>(rank)] ==
                              std::min(chunks * shape.micro_batches, (chunks - 1) * group + ranks - rank));
                }
}

TEST_CASE("1F1B pays for transfers as its closed form says when p divides m") {
    // schedules.md 1.3: makespan = (m+p-1)(F+B) + c (2(p-1)m/p + 2(p-2)) for p >= 2 and small c.
    for (int ranks = 2; ranks <= 6; ++ranks)
        for (int rounds = 2; rounds <= 4; ++rounds) {
            const int micro_batches = ranks * rounds;
            const double c = 0.01;
            const sim::ScheduleTiming timing =
                time_schedule(generate("1f1b", shape_of(ranks, micro_batches, 1, 2)), costs(1, 2, c));
            CHECK(timing.makespan.value == Approx((micro_batches + ranks - 1) * 3 +
                                                  c * (2.0 * (ranks - 1) * rounds + 2 * (ranks - 2))));
        }
}

TEST_CASE("Forward-only takes (vm+p-1) forwards") {
    for (int ranks = 1; ranks <= 5; ++ranks)
        for (int chunks = 1; chunks <= 3; ++chunks) {
            schedule::PipelineShape shape = shape_of(ranks, 2 * ranks, 1, 2);
            shape.chunks = chunks;
            CHECK(time_schedule(generate("forward-only", shape), costs(1, 2)).makespan.value ==
                  chunks * 2 * ranks + ranks - 1);
        }
}

TEST_CASE("Memory counts positive changes from the start and negative ones from the end") {
    schedule::Schedule one;
    one.micro_batches = 2;
    one.actions = {{{schedule::ActionKind::forward, 0, 0},
                    {schedule::ActionKind::backward_input, 0, 0},
                    {schedule::ActionKind::forward, 0, 1},
                    {schedule::ActionKind::backward_weight, 0, 0},
                    {schedule::ActionKind::backward, 0, 1}}};
    sim::ScheduleCosts c;
    c.stages[0].memory_forward = core::Bytes(10);
    c.stages[0].memory_backward_input = core::Bytes(3);
    c.stages[0].memory_backward_weight = core::Bytes(-13);
    const sim::ScheduleTiming timing = time_schedule(one, c);
    // 10, 13, 23 with the second forward; W gives 13 back; B adds 3 at its start: 13. Peak 23.
    CHECK(timing.peak_memory[0].value == 23);
    CHECK(timing.peak_in_flight[0] == 2);
}

TEST_CASE("Makespan, span and peaks equal METRICS.csv for every list in it") {
    const std::string root = std::string(SHARED_DIR) + "/reference/schedules/";
    core::Diagnostics diagnostics;
    std::ifstream present(root + "METRICS.csv");
    if (!present) {
        WARN("skipped: no " << root << "METRICS.csv");
        return;
    }
    const std::optional<core::CsvTable> table = core::load_csv(
        root + "METRICS.csv",
        {"file", "status", "makespan_unit", "max_rank_span", "peak_inflight_freed_at_W"}, diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(table);
    int equal = 0;
    for (const core::CsvRow& row : table->rows) {
        if (table->cell(row, "status") != "ok") continue;
        const std::string file(table->cell(row, "file"));
        INFO(file);
        const std::optional<std::string> text = core::read_file(root + file, diagnostics);
        REQUIRE(text);
        const std::optional<schedule::Schedule> list = schedule::parse_schedule(*text, file, diagnostics);
        REQUIRE(list);
        const sim::ScheduleTiming timing = time_schedule(*list, costs(1, 2));
        CHECK(timing.makespan.value == *core::parse_real(table->cell(row, "makespan_unit")));
        CHECK(timing.greatest_span().value == *core::parse_real(table->cell(row, "max_rank_span")));
        std::string peaks;
        for (const int peak : timing.peak_in_flight)
            peaks += (peaks.empty() ? "" : " ") + std::to_string(peak);
        CHECK(peaks == table->cell(row, "peak_inflight_freed_at_W"));
        ++equal;
    }
    CHECK(equal == 631);
}

TEST_CASE("Chimera takes 2m + p - 2 slots when forward and backward are equally long") {
    for (int ranks = 2; ranks <= 8; ranks += 2)
        for (int units = 1; units <= 4; ++units) {
            const int micro_batches = ranks * units;
            const sim::ScheduleTiming timing =
                time_schedule(generate("chimera", shape_of(ranks, micro_batches, 1, 1)), costs(1, 1));
            CHECK(timing.makespan.value == 2 * micro_batches + ranks - 2);
            for (const int peak : timing.peak_in_flight) CHECK((peak >= ranks / 2 && peak <= ranks));
        }
}

TEST_CASE("DualPipe and DualPipeV wait only for the turn") {
    for (int ranks = 2; ranks <= 8; ranks += 2)
        for (int micro_batches = 2 * ranks; micro_batches <= 4 * ranks; micro_batches += 2) {
            // 3 units of work a micro-batch; PP/2 - 1 stages to the turn cost 2 each. V: twice the chunks on
            // half the ranks.
            const sim::ScheduleTiming both =
                time_schedule(generate("dualpipe", shape_of(ranks, micro_batches, 1, 2)), costs(1, 2));
            CHECK(both.makespan.value == 3 * micro_batches + 2 * (ranks / 2 - 1));
            CHECK(*std::max_element(both.peak_in_flight.begin(), both.peak_in_flight.end()) == ranks + 1);
            schedule::PipelineShape folded = shape_of(ranks, micro_batches, 1, 2);
            folded.chunks = 2;
            const sim::ScheduleTiming v = time_schedule(generate("dualpipe-v", folded), costs(1, 2));
            CHECK(v.makespan.value == 6 * micro_batches + 2 * (ranks - 1));
            CHECK(*std::max_element(v.peak_in_flight.begin(), v.peak_in_flight.end()) == 2 * ranks + 1);
        }
}

TEST_CASE("ZB-V has no bubble within a rank's span when forward and both backward halves are equally long") {
    for (int ranks = 1; ranks <= 8; ++ranks)
        for (int micro_batches = 2 * ranks - 1; micro_batches <= 4 * ranks; ++micro_batches) {
            schedule::PipelineShape shape = shape_of(ranks, micro_batches, 1, 2);
            shape.chunks = 2;
            const sim::ScheduleTiming timing = time_schedule(generate("zb-v", shape), costs(1, 2));
            CHECK(timing.greatest_span().value == 6 * micro_batches);
            CHECK(timing.makespan.value == 6 * micro_batches + ranks - 1);
            for (const int peak : timing.peak_in_flight) CHECK(peak <= 2 * ranks);
        }
}

TEST_CASE("Seq1F1B divides the bubble by the segments of the sequence") {
    for (int ranks = 1; ranks <= 6; ++ranks)
        for (int segments = 1; segments <= 4; ++segments) {
            schedule::PipelineShape shape = shape_of(ranks, 5, 1, 2);
            shape.parameters = schedule::SegmentParameters{segments};
            CHECK(time_schedule(generate("seq1f1b", shape), costs(1, 2)).makespan.value ==
                  3 * (5 * segments + ranks - 1));
        }
}

namespace {

// Bytes per token batch and layer share one factor (s b), which cancels against the limit: forward 34h + 5as,
// W frees 32h, I the rest (arXiv 2401.10241, table 1).
schedule::PipelineShape measured_shape(int ranks, int micro_batches, double forward, double input,
                                       double weight, double transfer, double hidden, double heads,
                                       double tokens) {
    schedule::PipelineShape shape;
    shape.ranks = ranks;
    shape.micro_batches = micro_batches;
    shape.transfer = transfer;
    const double whole = 34 * hidden + 5 * heads * tokens;
    shape.stage_costs.assign(static_cast<std::size_t>(ranks),
                             {forward, input, weight, whole, 32 * hidden - whole, -32 * hidden});
    return shape;
}

sim::ScheduleCosts costs_of(const schedule::PipelineShape& shape) {
    sim::ScheduleCosts result;
    const schedule::RelativeStageCost cost = shape.cost(0);
    result.stages[0] = {core::Seconds(cost.forward),
                        core::Seconds(cost.backward_input),
                        core::Seconds(cost.backward_weight),
                        core::Bytes(cost.memory_forward),
                        core::Bytes(cost.memory_backward_input),
                        core::Bytes(cost.memory_backward_weight)};
    result.transfer = core::Seconds(shape.transfer);
    return result;
}

}  // namespace

// Table 5 from the times of table 9: rate = (span - m(F+I+W)) / span, four decimals.
TEST_CASE(
    "All 60 bubble rates of the zero-bubble paper's table 5 that are not interleaved are reproduced to four "
    "decimals") {
    const std::string root = std::string(SHARED_DIR) + "/reference/schedules/published/";
    if (!std::ifstream(root + "zb_table5_reproduction.csv")) {
        WARN("skipped: no " << root);
        return;
    }
    core::Diagnostics diagnostics;
    const auto rates = core::load_csv(root + "zb_table5_reproduction.csv", {"model", "p", "m"}, diagnostics);
    const auto times = core::load_csv(root + "zb_table9_profiled_times_ms.csv",
                                      {"model", "p", "m", "T_F", "T_B", "T_W", "T_comm"}, diagnostics);
    const auto models = core::load_csv(root + "zb_table3_models.csv",
                                       {"model", "layers", "heads", "hidden", "seq"}, diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE((rates && times && models));
    auto number = [](const core::CsvTable& table, const core::CsvRow& row, const char* column) {
        return *core::parse_real(table.cell(row, column));
    };
    int equal = 0, interleaved = 0;
    for (std::size_t i = 0; i < rates->rows.size(); ++i) {
        const core::CsvRow &rate = rates->rows[i], &time = times->rows[i];
        REQUIRE(rates->cell(rate, "model") == times->cell(time, "model"));
        REQUIRE(rates->cell(rate, "m") == times->cell(time, "m"));
        for (const core::CsvRow& model : models->rows) {
            if (models->cell(model, "model") != rates->cell(rate, "model")) continue;
            const schedule::PipelineShape shape = measured_shape(
                static_cast<int>(number(*rates, rate, "p")), static_cast<int>(number(*rates, rate, "m")),
                number(*times, time, "T_F"), number(*times, time, "T_B"), number(*times, time, "T_W"),
                number(*times, time, "T_comm"), number(*models, model, "hidden"),
                number(*models, model, "heads"), number(*models, model, "seq"));
            for (const auto& [name, column] :
                 std::vector<std::pair<std::string, const char*>>{{"1f1b", "1F1B_pub"},
                                                                  {"zb-h1", "ZB-H1_pub"},
                                                                  {"zb-h2", "ZB-H2_pub"},
                                                                  {"zb-1p", "ZB-1p_pub"},
                                                                  {"zb-2p", "ZB-2p_pub"}}) {
                const sim::ScheduleTiming timing = time_schedule(generate(name, shape), costs_of(shape));
                const schedule::RelativeStageCost cost = shape.cost(0);
                const double span = timing.greatest_span().value,
                             work = shape.micro_batches *
                                    (cost.forward + cost.backward_input + cost.backward_weight);
                const double difference = (span - work) / span - number(*rates, rate, column);
                INFO(rates->cell(rate, "model")
                     << " m " << shape.micro_batches << " " << name << " off by " << difference);
                // The published figure is rounded to four decimals.
                CHECK(std::abs(difference) <= 0.51e-4);
                equal += std::abs(difference) <= 0.51e-4;
                if (name == "zb-1p")
                    CHECK(*std::max_element(timing.peak_memory.begin(), timing.peak_memory.end()) <=
                          core::Bytes(shape.ranks * cost.memory_forward * 1.000001));
                if (name == "zb-2p")
                    CHECK(*std::max_element(timing.peak_memory.begin(), timing.peak_memory.end()) <=
                          core::Bytes(2 * shape.ranks * cost.memory_forward * 1.000001));
            }
            // Interleaved 1F1B with one layer a chunk (two layers fewer than ranks times chunks: the
            // embeddings take their places). The published span is shorter by one transfer per rank
            // (schedules.md 3.1: fitted, cause unknown), so the rates agree within p transfers.
            schedule::PipelineShape chunked = shape_of(shape.ranks, shape.micro_batches, 0, 0);
            chunked.chunks = static_cast<int>(number(*models, model, "layers") + 2) / shape.ranks;
            const schedule::RelativeStageCost whole = shape.cost(0);
            sim::ScheduleCosts chunk;
            chunk.stages[0].forward = core::Seconds(whole.forward / chunked.chunks);
            chunk.stages[0].backward_input = core::Seconds(whole.backward_input / chunked.chunks);
            chunk.stages[0].backward_weight = core::Seconds(whole.backward_weight / chunked.chunks);
            chunk.transfer = core::Seconds(shape.transfer);
            const double span =
                time_schedule(generate("interleaved-1f1b", chunked), chunk).greatest_span().value;
            const double work =
                shape.micro_batches * (whole.forward + whole.backward_input + whole.backward_weight);
            const double published_span = work / (1 - number(*rates, rate, "1F1B-I_pub")),
                         rounding = 0.51e-4 * published_span / (1 - number(*rates, rate, "1F1B-I_pub"));
            INFO(rates->cell(rate, "model") << " interleaved m " << shape.micro_batches << ": " << span
                                            << " against " << published_span);
            CHECK(span - published_span == Approx(shape.ranks * shape.transfer).margin(rounding));
            // The figure that the reference's own evaluation gives.
            CHECK((span - work) / span == Approx(number(*rates, rate, "1F1B-I_ours")).margin(0.51e-4));
            interleaved += std::abs(span - published_span) <= shape.ranks * shape.transfer + rounding;
        }
    }
    CHECK(equal == 60);
    CHECK(interleaved == 12);
}

TEST_CASE("ZB-H1 and ZB-H2 have the spans of the paper's table 2") {
    for (int ranks = 1; ranks <= 8; ++ranks)
        for (int micro_batches = 2 * ranks - 1; micro_batches <= 3 * ranks; ++micro_batches) {
            const double span_h1 =
                time_schedule(generate("zb-h1", shape_of(ranks, micro_batches, 1, 2)), costs(1, 2))
                    .greatest_span()
                    .value;
            CHECK(span_h1 == 3 * micro_batches + ranks - 1);  // + (p-1)(F+I-W)
            const sim::ScheduleTiming h2 =
                time_schedule(generate("zb-h2", shape_of(ranks, micro_batches, 1, 2)), costs(1, 2));
            CHECK(h2.greatest_span().value == 3 * micro_batches);  // + (p-1)(F+I-2W)
            CHECK(*std::max_element(h2.peak_in_flight.begin(), h2.peak_in_flight.end()) <= 2 * ranks - 1);
        }
}

TEST_CASE("V-Min, V-Half and 1F1B-V keep to their memory and are as long as the authors' orders") {
    const std::string path = std::string(SHARED_DIR) + "/reference/schedules/sail_gen/INDEX.csv";
    if (!std::ifstream(path)) {
        WARN("skipped: no " << path);
        return;
    }
    core::Diagnostics diagnostics;
    const char* const peaks_column = "peak_inflight_per_rank(F:+1,W/BW:-1)";
    const auto table = core::load_csv(path, {"file", "p", "m", "f", "makespan", peaks_column}, diagnostics);
    REQUIRE(table);
    int as_good = 0;
    for (const core::CsvRow& row : table->rows) {
        const std::string file(table->cell(row, "file"));
        const std::string name = file.starts_with("vmin")    ? "v-min"
                                 : file.starts_with("vhalf") ? "v-half"
                                 : file.starts_with("v1f1b") ? "1f1b-v"
                                                             : "";
        if (name.empty()) continue;
        schedule::PipelineShape shape =
            shape_of(static_cast<int>(*core::parse_integer(table->cell(row, "p"))),
                     static_cast<int>(*core::parse_integer(table->cell(row, "m"))), 1, 2);
        shape.chunks = 2;
        const sim::ScheduleTiming timing = time_schedule(generate(name, shape), costs(1, 2));
        const double theirs =
            *core::parse_real(table->cell(row, "makespan")) / *core::parse_real(table->cell(row, "f"));
        int their_peak = 0;
        std::istringstream peaks{std::string(table->cell(row, peaks_column))};
        for (int peak = 0; peaks >> peak;) their_peak = std::max(their_peak, peak);
        INFO(file << ": " << timing.makespan.value << " against " << theirs);
        CHECK(*std::max_element(timing.peak_in_flight.begin(), timing.peak_in_flight.end()) <= their_peak);
        CHECK(timing.makespan.value == theirs);
        ++as_good;
    }
    CHECK(as_good == 52);
}

TEST_CASE("a rank sends one result after another, and what follows its passes ends the step") {
    // Two ranks, two micro-batches, GPipe; F 1, B 2, sends of 3: rank 0 ends F0 at 1 and F1 at 2, sends them
    // until 4 and 7, rank 1 runs F0 4-5 and F1 7-8, then B of both until 10 and 12, whose gradients arrive at
    // 13 and 16; rank 0 ends at 18.
    const schedule::Schedule order = generate("simple", shape_of(2, 2, 1, 2));
    sim::ScheduleCosts given = costs(1, 2);
    given.stages.resize(2, given.stages.front());
    given.sends = {{core::Seconds(3), core::Seconds(0)}, {core::Seconds(0), core::Seconds(3)}};
    const sim::ReplayOrder replayed(order);
    std::vector<double> ends;
    CHECK(replayed.replay(given, ends).makespan.value == Approx(18));
    // The path: F0, both sends of rank 0, F1, B of both, one send, and the last B.
    auto path = replayed.critical_path(given, ends);
    CHECK(path.beside.value + path.passes[0].forward + path.passes[1].forward +
              path.passes[0].backward_input + path.passes[0].backward_weight + path.passes[1].backward_input +
              path.passes[1].backward_weight ==
          Approx(18));
    // Rank 1 has something to do for 10 after its passes; then from the beginning of its last one on.
    given.after = {core::Seconds(0), core::Seconds(10)};
    CHECK(replayed.replay(given, ends).makespan.value == Approx(22));
    path = replayed.critical_path(given, ends);
    CHECK(path.passes[1].backward_input == 2);
    CHECK(path.passes[0].backward_input == 0);
    given.is_after_last_begins = true;
    CHECK(replayed.replay(given, ends).makespan.value == Approx(20));
    path = replayed.critical_path(given, ends);
    CHECK(path.passes[1].backward_input == 1);
}

TEST_CASE("no durations make a step shorter than the critical path of others is with them") {
    std::mt19937 chance(5);
    const auto duration = [&] { return core::Seconds(double(chance() % 1000 + 1) / 100); };
    for (const auto& [name, ranks, chunks] : {std::tuple{"1f1b", 4, 1},
                                              {"simple", 3, 1},
                                              {"zb-h1", 4, 1},
                                              {"zb-v", 3, 2},
                                              {"interleaved-1f1b", 4, 2}}) {
        schedule::PipelineShape shape = shape_of(ranks, 12, 1, 2);
        shape.chunks = chunks;
        const schedule::Schedule order = generate(name, shape);
        const sim::ReplayOrder replayed(order);
        const auto drawn = [&] {
            sim::ScheduleCosts costs;
            costs.stages.resize(std::size_t(order.stages));
            costs.sends.resize(std::size_t(order.stages));
            for (sim::StageCost& stage : costs.stages) {
                stage.forward = duration();
                stage.backward_input = duration();
                stage.backward_weight = duration();
            }
            return costs;
        };
        sim::ScheduleCosts fixed = drawn();
        for (sim::ScheduleCosts::Sends& send : fixed.sends) send = {duration(), duration()};
        for (int rank = 0; rank < ranks; ++rank) fixed.after.push_back(duration() * 3);
        for (int tried = 0; tried < 60; ++tried) {
            fixed.is_after_last_begins = tried % 2 == 0;
            std::vector<double> ends;
            fixed.stages = drawn().stages;
            const double own = replayed.replay(fixed, ends).makespan.value;
            const auto path = replayed.critical_path(fixed, ends);
            const auto length = [&](const std::vector<sim::StageCost>& stages) {
                double sum = path.beside.value;
                for (std::size_t s = 0; s < stages.size(); ++s)
                    sum += path.passes[s].forward * stages[s].forward.value +
                           path.passes[s].backward_input * stages[s].backward_input.value +
                           path.passes[s].backward_weight * stages[s].backward_weight.value;
                return sum;
            };
            INFO(name << " over " << ranks << " ranks");
            CHECK(length(fixed.stages) == Approx(own).epsilon(1e-9));
            sim::ScheduleCosts others = fixed;
            others.stages = drawn().stages;
            CHECK(length(others.stages) <= replayed.replay(others, ends).makespan.value * (1 + 1e-9));
        }
    }
}
