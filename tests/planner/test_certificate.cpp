#include <catch2/catch.hpp>

#include <optional>

#include "core/diagnostics.h"
#include "model/load.h"
#include "planner/certificate.h"
#include "planner/partition/partition_space.h"
#include "planner/search.h"
#include "planner/search_space.h"
#include "tests/planner/questions.h"

using namespace planner;

namespace {

struct Case {
    model::ModelGraph graph;
    std::vector<Target> targets;
    SearchRequest request;
};

Case question(const char* model, const char* instance, int batch, std::optional<std::int64_t> tokens) {
    core::Diagnostics diagnostics;
    model::LoadOptions load;
    load.sequence_length = tokens;
    Case made{*model::load_model(model, load, diagnostics), {}, {}};
    made.targets.push_back(target_of(instance, 1));
    made.request.global_batch = batch;
    return made;
}

Claim claim_of(const SearchResult& result) {
    Claim claim;
    claim.target = result.plans.front().candidate;
    claim.plan = result.plans.front().plan;
    claim.value = result.plans.front().value;
    claim.lower_bound = *result.account.lower_bound;
    claim.is_proven = result.account.is_proven_optimal;
    claim.space = result.account.space;
    claim.evaluated = result.account.evaluated;
    claim.pruned = result.account.pruned;
    claim.unvisited = result.account.unvisited;
    for (const auto& [reason, count] : result.account.rejected) claim.rejected += count;
    return claim;
}

}  // namespace

TEST_CASE("no move of one cut is faster than a plan that is called proven, and its certificate holds") {
    const Case asked[] = {question("bert-large", "g4dn.12xlarge", 32, 128),
                          question("gpt2-xl", "p3.16xlarge", 32, 1024),
                          question("resnet50", "g4dn.12xlarge", 64, {})};
    for (const Case& one : asked) {
        core::Diagnostics diagnostics;
        const SearchResult result = search_plans(one.graph, one.targets, one.request, diagnostics);
        REQUIRE_FALSE(result.plans.empty());
        CHECK(result.account.is_proven_optimal);
        const CertificateCheck check =
            check_claim(one.graph, one.targets, one.request, claim_of(result), 20, 7);
        CHECK(check.violations == std::vector<std::string>{});
    }
}

TEST_CASE("a claim that is too good, or whose counts or plan were changed, does not hold") {
    const Case one = question("bert-large", "g4dn.12xlarge", 32, 128);
    core::Diagnostics diagnostics;
    const SearchResult result = search_plans(one.graph, one.targets, one.request, diagnostics);
    const Claim right = claim_of(result);
    const auto violations = [&](const Claim& claim) {
        return check_claim(one.graph, one.targets, one.request, claim, 5, 7).violations.size();
    };
    Claim faster = right;
    faster.value *= 0.99;
    CHECK(violations(faster) > 0);
    Claim smaller = right;
    --smaller.space;
    CHECK(violations(smaller) > 0);
    Claim other = right;
    other.plan.micro_batch = 1;
    other.plan.micro_batches = right.plan.global_batch() / right.plan.layout.replicas();
    if (!(other.plan == right.plan)) CHECK(violations(other) > 0);
    Claim gap = right;
    gap.is_proven = true;
    gap.lower_bound = 0.5 * right.value;
    CHECK(violations(gap) > 0);
}
