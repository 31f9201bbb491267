// Families of transformers against its own classes.
#include <cmath>
#include <set>

#include "core/index/integers.h"
#include "model/operators/cost.h"
#include "tests/model/recorded_families.h"

using recorded::Case, recorded::Read;

namespace {

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
    for (const Case& one : recorded::cases()) {
        const Read read = recorded::graph_of(one);
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
    for (const Case& one : recorded::cases()) {
        families.insert(one.family);
        const core::Value& counted = *one.counts.find("forward_flops");
        if (counted.is_null()) {
            CHECK(one.counts.find("why"));
            continue;
        }
        const Read read = recorded::graph_of(one);
        REQUIRE(read.graph);
        INFO(one.family << " " << one.counts.find("parameters")->integer());
        CHECK(std::abs(eager_forward_flops(*read.graph) / counted.number() - 1) < 1e-3);
        seen.insert(one.family);
    }
    CHECK(families == seen);
}
