#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>

#include "core/diagnostics.h"
#include "core/document.h"
#include "sim/report/ablation.h"
#include "sim/report/comparison.h"

namespace {

core::Value tree(const std::string& toml) {
    core::Diagnostics diagnostics;
    const auto document = core::parse_toml(toml, "test.toml", diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(document.has_value());
    return *document;
}

double number(const core::Value& document, const char* key) {
    const core::Value* plan = document.find("plan");
    const core::Value* value = plan != nullptr ? plan->find(key) : nullptr;
    return value != nullptr ? value->number() : 0;
}

double sum_of(const sim::Comparison& comparison) {
    double sum = 0;
    for (const sim::ComparedPart& part : comparison.parts) sum += part.difference.value;
    return sum;
}

double part_of(const sim::Comparison& comparison, const std::string& key) {
    for (const sim::ComparedPart& part : comparison.parts)
        for (const sim::Difference& one : part.keys)
            if (one.key == key) return part.difference.value;
    FAIL("no part of " << key);
    return 0;
}

}  // namespace

TEST_CASE("parts of a comparison are Shapley's: the mean over all orders, written out") {
    const core::Value a = tree("[plan]\nx = 1\ny = 1\nz = 1\nsame = 5\n");
    const core::Value b = tree("[plan]\nx = 3\ny = 2\nz = 7\nsame = 5\n");
    // z does nothing, x and y multiply: no order may matter.
    const auto step = [](const core::Value& document, core::Diagnostics&) {
        return std::optional(core::seconds(number(document, "x") * number(document, "y") * 10 + 1));
    };
    core::Diagnostics diagnostics;
    const auto comparison = sim::compare(a, b, step, diagnostics);
    REQUIRE(comparison.has_value());
    REQUIRE(comparison->parts.size() == 3);
    // x first: 30 - 10, second: 60 - 20. y first: 20 - 10, second: 60 - 30.
    CHECK(part_of(*comparison, "plan.x") == Approx((20 + 40) / 2.0));
    CHECK(part_of(*comparison, "plan.y") == Approx((10 + 30) / 2.0));
    CHECK(part_of(*comparison, "plan.z") == Approx(0).margin(1e-12));
    CHECK(sum_of(*comparison) == (comparison->b - comparison->a).value);
    CHECK(comparison->is_exact);
    // And the other way round they are the same with the other sign.
    const auto reverse = sim::compare(b, a, step, diagnostics);
    CHECK(part_of(*reverse, "plan.x") == Approx(-30));
}

TEST_CASE("keys that are valid only together are one part, others stay alone") {
    const core::Value a = tree("[cluster]\nnodes = 1\n[plan]\nranks = 8\nspeed = 1\n");
    const core::Value b = tree("[cluster]\nnodes = 4\n[plan]\nranks = 32\nspeed = 2\n");
    const auto step = [](const core::Value& document,
                         core::Diagnostics& diagnostics) -> std::optional<core::Seconds> {
        const double nodes = document.find("cluster")->find("nodes")->number();
        if (number(document, "ranks") != 8 * nodes) {
            diagnostics.error({}, "plan.ranks", "ranks do not fill the nodes");
            return std::nullopt;
        }
        return core::seconds(100 / nodes / number(document, "speed"));
    };
    core::Diagnostics diagnostics;
    const auto comparison = sim::compare(a, b, step, diagnostics);
    REQUIRE(comparison.has_value());
    REQUIRE(comparison->parts.size() == 2);
    CHECK_FALSE(diagnostics.has_errors());
    // From 100 to 12.5. Nodes first: -75, second: 12.5 - 50.
    CHECK(part_of(*comparison, "cluster.nodes") == Approx((-75 - 37.5) / 2));
    CHECK(part_of(*comparison, "plan.ranks") == part_of(*comparison, "cluster.nodes"));
    CHECK(part_of(*comparison, "plan.speed") == Approx((-50 - 12.5) / 2));
    CHECK(sum_of(*comparison) == (comparison->b - comparison->a).value);
}

TEST_CASE("with many keys sampled orders add up too, and additive keys get what is theirs") {
    std::string from = "[plan]\n", to = "[plan]\n";
    constexpr int keys = 14;
    for (int i = 0; i < keys; ++i) {
        from += "k" + std::to_string(i) + " = 0\n";
        to += "k" + std::to_string(i) + " = " + std::to_string(i + 1) + "\n";
    }
    const auto step = [](const core::Value& document, core::Diagnostics&) {
        double sum = 1000;
        for (int i = 0; i < keys; ++i) sum -= number(document, ("k" + std::to_string(i)).c_str()) * 0.1;
        return std::optional(core::seconds(sum));
    };
    core::Diagnostics diagnostics;
    const auto comparison = sim::compare(tree(from), tree(to), step, diagnostics);
    REQUIRE(comparison.has_value());
    CHECK_FALSE(comparison->is_exact);
    CHECK(sum_of(*comparison) == (comparison->b - comparison->a).value);
    for (int i = 0; i < keys; ++i)
        CHECK(part_of(*comparison, "plan.k" + std::to_string(i)) == Approx(-0.1 * (i + 1)).epsilon(1e-6));
}

TEST_CASE("equal scenarios have no parts, and one without a prediction has no comparison") {
    const core::Value a = tree("[plan]\nx = 1\n[training]\nlearning_rate = 1e-3\n");
    const core::Value b = tree("[plan]\nx = 1\n[training]\nlearning_rate = 1e-4\n");
    core::Diagnostics diagnostics;
    const auto one = [](const core::Value&, core::Diagnostics&) { return std::optional(core::seconds(1)); };
    CHECK(sim::compare(a, b, one, diagnostics)->parts.empty());
    const auto none = [](const core::Value&, core::Diagnostics& told) -> std::optional<core::Seconds> {
        told.error({}, "plan.x", "refused");
        return std::nullopt;
    };
    CHECK_FALSE(sim::compare(a, b, none, diagnostics).has_value());
    CHECK(diagnostics.has_errors());
}

TEST_CASE("an ablation switches off what the plan has, and adding all of it gives the plan again") {
    schedule::Plan plan;
    plan.layout.data = 8;
    plan.sharding = schedule::Sharding::parameters;
    plan.shard_degree = 4;
    plan.recompute = schedule::Recompute::full;
    plan.fused_cross_entropy = true;
    const core::Value document =
        tree("[plan]\nsharding = \"parameters\"\nshard_degree = 4\nrecompute = \"full\"\n");
    std::vector<std::string> names;
    for (const sim::Optimisation& one : sim::optimisations_of(plan)) names.push_back(one.name);
    CHECK(names == std::vector<std::string>{"attention", "fused cross entropy",
                                            "overlapped gradient reduction", "overlapped parameter gathering",
                                            "recomputation", "sharding", "hybrid sharding", "precision"});
    const auto predict = [](const core::Value& changed, core::Diagnostics&) {
        // Every key that is set counts: the text of the plan is the answer.
        return std::optional(
            sim::AblatedStep{core::seconds(double(core::to_json(*changed.find("plan")).size())), {}, true});
    };
    core::Diagnostics diagnostics;
    const auto ablation = sim::ablate(document, plan, predict, diagnostics);
    REQUIRE(ablation.has_value());
    CHECK(ablation->without.size() == names.size());
    CHECK(ablation->added.size() == names.size() + 1);
    CHECK_FALSE(ablation->added.front().optimisation.has_value());
    CHECK(ablation->added.back().result->step == ablation->full.step);
}

TEST_CASE("an ablation keeps attention's core alone of the modules that run again, or nothing") {
    using schedule::RecomputeModule;
    schedule::Plan plan;
    plan.recompute = schedule::Recompute::selective;
    plan.recompute_modules = {RecomputeModule::layernorm, RecomputeModule::activation};
    bool is_found = false;
    for (const sim::Optimisation& one : sim::optimisations_of(plan)) {
        const bool is_of_modules = one.name == "recomputed modules";
        is_found = is_found || is_of_modules;
        if (is_of_modules) CHECK(one.from == "layernorm, activation");
        // A plan that runs nothing again names no modules.
        const auto names_modules = [](const auto& off) { return off.first == "plan.recompute_modules"; };
        CHECK(std::any_of(one.off.begin(), one.off.end(), names_modules) ==
              (is_of_modules || one.name == "recomputation"));
    }
    CHECK(is_found);
    plan.recompute_modules = {RecomputeModule::core_attn};
    for (const sim::Optimisation& one : sim::optimisations_of(plan)) CHECK(one.name != "recomputed modules");
}

TEST_CASE("parts of a comparison do not depend on the order of keys in the files") {
    const auto step = [](const core::Value& document, core::Diagnostics&) {
        const double x = number(document, "x"), y = number(document, "y"), z = number(document, "z");
        return std::optional(core::seconds(x * y + y * y * z + x / z));
    };
    core::Diagnostics diagnostics;
    const core::Value b = tree("[plan]\nx = 3\ny = 2\nz = 7\n");
    const auto first = sim::compare(tree("[plan]\nx = 1\ny = 1\nz = 1\n"), b, step, diagnostics);
    for (const char* other : {"[plan]\nz = 1\ny = 1\nx = 1\n", "[plan]\ny = 1\nx = 1\nz = 1\n"}) {
        const auto second = sim::compare(tree(other), b, step, diagnostics);
        REQUIRE(first.has_value());
        REQUIRE(second.has_value());
        for (const char* key : {"plan.x", "plan.y", "plan.z"})
            CHECK(part_of(*second, key) == Approx(part_of(*first, key)).epsilon(1e-12));
        CHECK(sum_of(*second) == Approx((second->b - second->a).value).epsilon(1e-12));
    }
}

TEST_CASE("an ablation of some optimisations adds these alone, in the order that is asked for") {
    schedule::Plan plan;
    plan.layout.data = 8;
    plan.communication = "smddp";
    plan.sharding = schedule::Sharding::parameters;
    plan.shard_degree = 4;
    plan.framework = "transformer-engine";
    const core::Value document =
        tree("[plan]\ncommunication = \"smddp\"\nshard_degree = 4\nframework = \"transformer-engine\"\n");
    // 100 s without any; SMDDP saves 1, hybrid sharding 10, the framework's kernels 20.
    const auto predict = [](const core::Value& changed, core::Diagnostics&) {
        const core::Value& table = *changed.find("plan");
        double step = 100;
        if (table.find("communication")->string() == "smddp") step -= 1;
        if (table.find("shard_degree") != nullptr) step -= 10;
        if (table.find("framework")->string() == "transformer-engine") step -= 20;
        return std::optional(sim::AblatedStep{core::seconds(step), core::Bytes(1), true});
    };
    core::Diagnostics diagnostics;
    const auto ablation = sim::ablate(document, plan, predict, diagnostics,
                                      {"communication library", "hybrid sharding", "framework"});
    REQUIRE(ablation.has_value());
    REQUIRE(ablation->added.size() == 4);
    const double steps[] = {100, 99, 89, 69};
    for (std::size_t i = 0; i < 4; ++i) CHECK(ablation->added[i].result->step == core::seconds(steps[i]));
    // What the code has beyond the one that it extends.
    CHECK(ablation->optimisations.back().to == "pytorch-fsdp");
    CHECK_FALSE(sim::ablate(document, plan, predict, diagnostics, {"no such thing"}).has_value());
    CHECK(diagnostics.has_errors());
}
