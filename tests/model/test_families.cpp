// Families of transformers against its own classes: interop/check/families.json is what
// interop/check/transformers_families.py recorded (parameters, and FLOPs of torch's counter).
#include <fmt/core.h>

#include <cmath>
#include <fstream>
#include <set>
#include <sstream>

#include "core/index/integers.h"
#include "model/operators/cost.h"
#include "tests/model/model_from_text.h"

namespace {

core::Value recorded() {
    const std::string path = SOURCE_DIR "/interop/check/families.json";
    std::ifstream file(path);
    REQUIRE(file);
    std::stringstream text;
    text << file.rdbuf();
    core::Diagnostics diagnostics;
    const auto document = core::parse_json(text.str(), path, diagnostics);
    REQUIRE(document);
    return *document;
}

struct Case {
    std::string family;
    core::Value config, counts;
};

// The default of every family, and its variations.
std::vector<Case> cases() {
    std::vector<Case> list;
    const core::Value document = recorded();
    for (const auto& [family, entry] : document.find("families")->members()) {
        list.push_back({family, *entry.find("config"), *entry.find("default")});
        for (const core::Value& variation : entry.find("variations")->items()) {
            Case varied{family, *entry.find("config"), variation};
            for (const auto& [key, value] : variation.find("change")->members()) varied.config[key] = value;
            list.push_back(std::move(varied));
        }
    }
    return list;
}

struct Read {
    std::optional<model::ModelGraph> graph;
    std::string errors;
};

Read graph_of(const Case& one) {
    core::Diagnostics diagnostics;
    std::vector<std::string> assumptions;
    auto description = model::description_of_config(one.config, assumptions, diagnostics);
    if (!description) return {std::nullopt, core::format(diagnostics)};
    const bool has_tokens = !description->find("image_size");
    if (has_tokens) (*description)["sequence_length"] = *one.counts.find("tokens");
    auto graph = model::build_from_description(*description, "", one.family, diagnostics);
    return {std::move(graph), core::format(diagnostics)};
}

// The record's attention computes all scores, those behind masks and windows too.
double eager_forward_flops(const model::ModelGraph& graph) {
    model::CostContext context;
    context.attention = model::AttentionImplementation::unfused;
    return model::phase_cost(graph, {0, core::count_of(graph.operators)}, model::Phase::forward, context)
        .flops.value;
}

}  // namespace

TEST_CASE("families of transformers have exactly the parameters of its classes") {
    std::set<std::string> families;
    int compared = 0;
    for (const Case& one : cases()) {
        const Read read = graph_of(one);
        INFO(one.family << " " << ++compared << "\n" << read.errors);
        REQUIRE(read.graph);
        CHECK(model::trained_parameter_count(*read.graph) == one.counts.find("parameters")->integer());
        families.insert(one.family);
    }
    CHECK(families.size() >= 45);
    CHECK(compared == 7 * std::ssize(families));
    const std::vector<std::string> supported = model::supported_model_types();
    CHECK(families == std::set<std::string>(supported.begin(), supported.end()));
}

TEST_CASE("forward FLOPs of families are those of torch's counter within 0.1 %") {
    std::set<std::string> families, seen;
    for (const Case& one : cases()) {
        families.insert(one.family);
        const core::Value& counted = *one.counts.find("forward_flops");
        if (counted.is_null()) {
            CHECK(one.counts.find("why"));
            continue;
        }
        const Read read = graph_of(one);
        REQUIRE(read.graph);
        INFO(one.family << " " << one.counts.find("parameters")->integer());
        CHECK(std::abs(eager_forward_flops(*read.graph) / counted.number() - 1) < 1e-3);
        seen.insert(one.family);
    }
    CHECK(families == seen);
}
