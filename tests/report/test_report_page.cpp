#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <sstream>
#include <string>

#include "api/report_page/bundle.h"
#include "api/report_page/report_page.h"
#include "api/simulate.h"
#include "core/diagnostics.h"
#include "core/document.h"
#include "jobs/gantt.h"
#include "sim/evaluate.h"
#include "sim/report/timeline_columns.h"
#include "sim/scenario.h"

namespace {

// True, and told, where this build has no pages.
bool is_without_pages() {
    if (!api::report_script().empty()) return false;
    WARN("skipped: this build has no report pages (esbuild, node-d3)");
    return true;
}

std::size_t count(const std::string& text, const std::string& part) {
    std::size_t found = 0;
    for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
    return found;
}

core::Value parse(const std::string& json) {
    core::Diagnostics diagnostics;
    const std::optional<core::Value> value = core::parse_json(json, "page", diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(value.has_value());
    return *value;
}

// What a browser gives the script: the text of the element "data".
core::Value data_of(const std::string& page) {
    const std::string opening = "id=\"data\">";
    const std::size_t begin = page.find(opening) + opening.size(), end = page.find("</script>", begin);
    REQUIRE(end != std::string::npos);
    return parse(page.substr(begin, end - begin));
}

std::vector<double> numbers(const core::Value& row, const char* key) {
    std::vector<double> found;
    for (const core::Value& one : row.find(key)->items()) found.push_back(one.number());
    return found;
}

// "0*2,288279*41,17" of a page: what repeats is written once.
std::vector<double> expanded(const core::Value& row, const char* key) {
    std::vector<double> found;
    std::istringstream runs(row.find(key)->string());
    for (std::string run; std::getline(runs, run, ',');) {
        const std::size_t star = run.find('*');
        const std::size_t times = star == std::string::npos ? 1 : std::stoul(run.substr(star + 1));
        found.insert(found.end(), times, std::stod(run));
    }
    return found;
}

struct Drawn {
    sim::Evaluation evaluation;
    core::Value columns;
};

// A scenario's timeline as a page has it, peaks those of the memory table.
Drawn drawn(const std::vector<std::string>& set) {
    core::Diagnostics diagnostics;
    const std::optional<core::Value> document =
        api::load_scenario({.path = SOURCE_DIR "/scenarios/cpu_gpt_pipeline2.toml", .set = set}, diagnostics);
    REQUIRE(document.has_value());
    const std::optional<sim::Scenario> scenario = sim::read_scenario(*document, "test", diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(scenario.has_value());
    sim::EvaluateOptions options;
    options.keeps_timeline = true;
    std::optional<sim::Evaluation> evaluation =
        sim::evaluate(scenario->graph, scenario->cluster, scenario->file.plan, diagnostics, options);
    REQUIRE(evaluation.has_value());
    std::vector<core::Bytes> peaks;
    for (const std::int32_t number : evaluation->timeline.class_of)
        peaks.push_back(evaluation->memory[number].peak);
    const std::string columns = sim::timeline_columns(
        *evaluation->program, scenario->graph,
        {{.timeline = evaluation->timeline, .memory = evaluation->memory_timeline, .peaks = peaks}});
    return {std::move(*evaluation), parse(columns)};
}

std::vector<std::string> lane_names(const core::Value& columns) {
    std::vector<std::string> names;
    for (const core::Value& rank : columns.find("ranks")->items())
        for (const core::Value& lane : rank.find("lanes")->items())
            names.push_back(lane.find("name")->string());
    return names;
}

}  // namespace

TEST_CASE("the page of a scenario holds the document that --json prints, and its timeline") {
    if (is_without_pages()) return;
    const api::Reply reply = api::simulate(
        {.scenario = {.path = SOURCE_DIR "/scenarios/llama2_7b_p4d.toml"}, .html = "page.html"});
    REQUIRE(reply.files.size() == 1);
    CHECK(reply.files[0].path == "page.html");
    const core::Value data = data_of(reply.files[0].content);
    CHECK(core::to_json(*data.find("answer")) == core::to_json(reply.document));
    CHECK(data.find("text")->string() == reply.text);
    CHECK(data.find("kind")->string() == "step");
    // The picture and the table say one peak.
    double drawn = 0;
    for (const core::Value& rank : data.find("timeline")->find("ranks")->items()) {
        double held = 0, most = 0;
        for (const double change : expanded(*rank.find("memory"), "kib")) {
            held += change;
            most = std::max(most, held);
        }
        CHECK(most / 1024 / 1024 == Approx(rank.find("peak_gib")->number()).epsilon(1e-6));
        drawn = std::max(drawn, most / 1024 / 1024);
    }
    CHECK(drawn == Approx(reply.document.find("peak_memory_gib")->number()).epsilon(1e-6));
}

TEST_CASE("names in an answer are neither markup nor script of its page") {
    if (is_without_pages()) return;
    const std::string hostile = "</title></script><!--<script>alert(1)</script><img src=x onerror=alert(2)>";
    const auto page_with = [](const std::string& name) {
        core::Value answer = core::Value::table();
        answer["model"] = name;
        answer["assumptions"] = core::Value::array();
        answer["assumptions"].append(name);
        return api::report_page(
            {.kind = api::ReportKind::step, .title = name, .answer = answer, .text = name});
    };
    const std::string page = page_with(hostile), harmless = page_with("llama");
    for (const char* markup : {"<script", "</script", "<!--", "<img", "</title"}) {
        INFO(markup);
        CHECK(count(page, markup) == count(harmless, markup));
    }
    CHECK(data_of(page).find("answer")->find("model")->string() == hostile);
    CHECK(data_of(page).find("title")->string() == hostile);
}

TEST_CASE("a page without its data is smaller than 1 MB, holds the licences and asks no other host") {
    if (is_without_pages()) return;
    const std::string page = api::report_page({.title = "empty", .answer = core::Value::table()});
    CHECK(page.size() < 1'000'000);
    CHECK(page.find("Mike Bostock") != std::string::npos);
    CHECK(page.find("default-src 'none'") != std::string::npos);
    for (const char* fetching : {"src=\"", "@import", "url(http"}) CHECK(count(page, fetching) == 0);
}

TEST_CASE("the columns of a timeline give back every slice of every stream") {
    const auto [evaluation, columns] = drawn({});
    const std::vector<double> durations = numbers(*columns.find("operations"), "duration_ns");
    CHECK(columns.find("makespan_ns")->number() ==
          Approx(evaluation.timeline.makespan.value * 1e9).epsilon(1e-9));
    const core::Value::Array& ranks = columns.find("ranks")->items();
    REQUIRE(ranks.size() == evaluation.timeline.spans.size());
    for (std::size_t p = 0; p < ranks.size(); ++p) {
        const schedule::RankProgram& list = evaluation.program->classes[evaluation.timeline.class_of[p]];
        // Of each stream, in order of time: the beginning of every span.
        std::map<schedule::Stream, std::vector<double>> begins;
        for (const schedule::Span& span : evaluation.timeline.spans[p])
            begins[list.instructions[span.instruction].stream].push_back(span.start.value * 1e9);
        std::size_t slices = 0, lane = 0;
        for (auto& [stream, expected] : begins) {
            std::sort(expected.begin(), expected.end());
            const core::Value& own = ranks[p].find("lanes")->items()[lane++];
            const std::vector<double> gaps = expanded(own, "gap_ns"), steps = expanded(own, "operation");
            REQUIRE(gaps.size() == expected.size());
            double time = 0, operation = 0;
            for (std::size_t i = 0; i < gaps.size(); ++i) {
                CHECK(gaps[i] >= 0);
                time += gaps[i];
                CHECK(std::abs(time - expected[i]) < 2);
                operation += steps[i];
                time += durations.at(std::size_t(operation));
            }
            slices += gaps.size();
        }
        CHECK(slices == evaluation.timeline.spans[p].size());
        CHECK(lane == ranks[p].find("lanes")->size());
    }
}

TEST_CASE("a lane is called tensor where tensor parallelism is, and nowhere else") {
    const std::vector<std::string> pipeline = lane_names(drawn({}).columns),
                                   tensor = lane_names(
                                       drawn({"plan.pipeline_parallel=1", "plan.tensor_parallel=2"}).columns);
    CHECK(std::count(pipeline.begin(), pipeline.end(), "tensor") == 0);
    CHECK(std::count(pipeline.begin(), pipeline.end(), "receive") == 2);
    CHECK(std::count(tensor.begin(), tensor.end(), "tensor") > 0);
    CHECK(std::count(tensor.begin(), tensor.end(), "receive") == 0);
}

TEST_CASE("the chart of a job keeps the time and the number of all stretches, in few rows") {
    // A hundred thousand times a second of training and half a second lost, ten seconds' wait in the middle.
    std::vector<jobs::Stretch> stretches;
    core::Seconds time;
    const auto add = [&](jobs::StretchKind kind, double seconds) {
        stretches.push_back({kind, time, time + core::Seconds(seconds)});
        time += core::Seconds(seconds);
    };
    for (int i = 0; i < 100'000; ++i) {
        add(jobs::StretchKind::training, 1);
        add(jobs::StretchKind::lost, 0.5);
        if (i == 50'000) add(jobs::StretchKind::wait, 10);
    }
    const core::Value rows = jobs::activities_of(stretches);
    CHECK(rows.size() < 10);
    std::map<std::string, double> seconds;
    std::map<std::string, std::int64_t> times;
    for (const core::Value& row : rows.items()) {
        const std::string& activity = row.find("activity")->string();
        seconds[activity] += row.find("seconds")->number();
        times[activity] += row.find("times")->integer();
        CHECK(row.find("to_s")->number() > row.find("from_s")->number());
    }
    CHECK(seconds["training"] == Approx(100'000));
    CHECK(seconds["lost"] == Approx(50'000));
    CHECK(seconds["wait"] == Approx(10));
    CHECK(times["training"] == 100'000);
    CHECK(times["wait"] == 1);
}
