#include <catch2/catch.hpp>

#include <algorithm>
#include <functional>
#include <iomanip>
#include <iterator>
#include <limits>
#include <numeric>
#include <random>
#include <set>

#include "core/diagnostics.h"
#include "core/document.h"
#include "planner/bound/bounds.h"
#include "planner/explain.h"
#include "planner/search.h"
#include "planner/search_space.h"
#include "schedule/plan/partition.h"
#include "schedule/plan/plan_file.h"
#include "tests/cluster/instances.h"
#include "tests/model/catalogue.h"
#include "tests/planner/questions.h"

namespace {

model::ModelGraph mixture(std::int64_t tokens) { return mixture_of({.tokens = tokens, .key_heads = 4}); }

}  // namespace

TEST_CASE(
    "layouts are the factorisations into tensor, pipeline and data degrees that the model and the batch "
    "allow") {
    // bert-base has 12 heads. 4 devices, global batch 2: data degrees 1 and 2 only, tensor 1, 2, 4 (all
    // divide 12), pipeline the rest: (t, p, d) = (1,4,1) (1,2,2) (2,2,1) (2,1,2) (4,1,1).
    const auto graph = load_graph("bert-base");
    const auto layouts = planner::legal_layouts(graph, 4, 2);
    std::set<std::tuple<int, int, int>> found;
    for (const auto& layout : layouts) found.insert({layout.tensor, layout.pipeline, layout.data});
    CHECK(found ==
          std::set<std::tuple<int, int, int>>{{1, 4, 1}, {1, 2, 2}, {2, 2, 1}, {2, 1, 2}, {4, 1, 1}});
    CHECK(layouts.size() == found.size());
}

TEST_CASE(
    "experts are spread over every divisor of the data axis that divides them, samples over parts of a "
    "thousand tokens and more") {
    // Tensor and pipeline 1 leave a data axis of 16: experts over 1, 2, 4, 8 of them (16 does not divide 8).
    // 8,192 tokens are long: parts of 8,192 to 1,024.
    const auto parts = [](const model::ModelGraph& graph, int devices, int batch) {
        std::set<std::pair<int, int>> found;  // context, expert
        for (const auto& layout : planner::legal_layouts(graph, devices, batch))
            if (layout.data == devices) CHECK(found.insert({layout.context, layout.expert}).second);
        return found;
    };
    std::set<std::pair<int, int>> want;
    for (const int context : {1, 2, 4, 8})
        for (const int expert : {1, 2, 4, 8}) want.insert({context, expert});
    CHECK(parts(mixture(8192), 16, 16) == want);
    // Shorter samples are divided only where there are fewer of them than ranks: 4 samples on 16 ranks are
    // parts of 4,096 / 4 tokens, and no whole sample for each.
    CHECK(parts(mixture(4096), 16, 16) == std::set<std::pair<int, int>>{{1, 1}, {1, 2}, {1, 4}, {1, 8}});
    CHECK(parts(mixture(4096), 16, 4) == std::set<std::pair<int, int>>{{4, 1}, {4, 2}, {4, 4}, {4, 8}});
    CHECK(parts(load_graph("gpt2", 1024), 16, 4).empty());
}

TEST_CASE("a mixture too large for whole copies is spread over the ranks of the data axis") {
    // Mixtral 8x7B: 46.7 billion parameters, 45.1 of them in experts. On 64 x 40 GiB without pipeline or
    // tensor parallelism whole copies do not fit.
    const auto graph = load_graph("mixtral-8x7b");
    planner::SearchRequest request;
    request.global_batch = 64;
    core::Diagnostics diagnostics;
    const auto result = planner::search_plans(graph, {target_of("p4d.24xlarge", 8)}, request, diagnostics);
    REQUIRE_FALSE(result.plans.empty());
    CHECK(result.plans.front().plan.layout.expert_ranks() > 1);
}

TEST_CASE("every plan of a space uses all devices, makes the global batch and is named once") {
    const auto graph = load_graph("gpt2", 128);
    const auto candidate = target_of("p3.16xlarge", 1);
    const auto plans = planner::legal_plans(
        graph, candidate.cluster, {.global_batch = 16, .base = candidate.base, .most_virtual_stages = 3});
    REQUIRE(plans.size() > 100);
    for (const auto& plan : plans) {
        CHECK(plan.layout.ranks() == 8);
        CHECK(plan.global_batch() == 16);
    }
    for (std::size_t i = 0; i < plans.size(); ++i)
        for (std::size_t j = i + 1; j < plans.size(); ++j)
            if (plans[i] == plans[j]) FAIL("plans " << i << " and " << j << " are equal");
}

TEST_CASE("limits keep those plans of a space that have the values") {
    const auto graph = load_graph("gpt2", 128);
    const auto candidate = target_of("p3.16xlarge", 1);
    const planner::SpaceRequest all{.global_batch = 16, .base = candidate.base};
    const std::vector<schedule::Plan> space = planner::legal_plans(graph, candidate.cluster, all);
    // Each axis alone: the limit, and what it asks of a plan.
    using Limits = planner::PlanLimits;
    using schedule::Plan;
    const std::vector<std::pair<Limits, std::function<bool(const Plan&)>>> cases = {
        {{.tensor = {2}}, [](const Plan& p) { return p.layout.tensor == 2; }},
        {{.pipeline = {2, 4}},
         [](const Plan& p) { return p.layout.pipeline % 2 == 0 && p.layout.pipeline < 8; }},
        {{.micro_batch = {1}}, [](const Plan& p) { return p.micro_batch == 1; }},
        {{.replicas = {4}}, [](const Plan& p) { return p.layout.data / p.layout.context == 4; }},
        {{.schedules = {"zb-h1"}}, [](const Plan& p) { return p.schedule == "zb-h1"; }},
        {{.recompute = {schedule::Recompute::full}},
         [](const Plan& p) { return p.recompute == schedule::Recompute::full; }},
        {{.sharding = {schedule::Sharding::none, schedule::Sharding::gradients}},
         [](const Plan& p) {
             return !p.shards(schedule::Sharding::optimizer) || p.sharding == schedule::Sharding::gradients;
         }},
        {{.tensor = {3}}, [](const Plan&) { return false; }},
    };
    for (const auto& [limits, has_value] : cases) {
        std::vector<Plan> wanted;
        std::copy_if(space.begin(), space.end(), std::back_inserter(wanted), has_value);
        planner::SpaceRequest request = all;
        request.limits = limits;
        CHECK(planner::legal_plans(graph, candidate.cluster, request) == wanted);
        CHECK(wanted.size() < space.size());
    }
    // The best of the limited space is the best plan of the space that has the values.
    planner::SearchRequest search;
    search.global_batch = 16;
    search.uses_bounds = false;
    search.keep = space.size();
    search.offload = schedule::Offload::none;
    search.limits.schedules = {"gpipe", "1f1b", "zb-h1"};
    search.limits.micro_batch = {1, 2};
    core::Diagnostics diagnostics;
    const planner::SearchResult whole = planner::search_plans(graph, {candidate}, search, diagnostics);
    search.uses_bounds = true;
    search.keep = 1;
    search.limits.tensor = {2, 4};
    search.limits.recompute = {schedule::Recompute::full};
    const planner::SearchResult limited = planner::search_plans(graph, {candidate}, search, diagnostics);
    REQUIRE_FALSE(limited.plans.empty());
    const auto best = std::find_if(whole.plans.begin(), whole.plans.end(),
                                   [&](const auto& ranked) { return search.limits.allows(ranked.plan); });
    REQUIRE(best != whole.plans.end());
    CHECK(limited.plans.front().value <= best->value * (1 + 1e-9));  // a partition may be better
    CHECK(search.limits.allows(limited.plans.front().plan));
}

TEST_CASE("ranks share heads of keys and values within a node, not between nodes") {
    const model::ModelGraph graph = mixture_of({.key_heads = 4});
    const auto greatest_degree = [&](const std::string& instance, int nodes) {
        planner::SpaceRequest request;
        const planner::Target target = target_of(instance, nodes);
        request.base = target.base;
        request.global_batch = 8;
        int greatest = 0;
        for (const schedule::Plan& plan : planner::legal_plans(graph, target.cluster, request))
            greatest = std::max(greatest, plan.layout.tensor);
        return greatest;
    };
    CHECK(greatest_degree("p4d.24xlarge", 1) == 8);  // eight devices
    CHECK(greatest_degree("p3.8xlarge", 2) == 4);    // twice four
}

TEST_CASE("sequences are cut into 2 and 4 segments where they may be") {
    const auto segments = [](const model::ModelGraph& graph, int micro_batch, int tensor, int context) {
        schedule::Plan plan;
        plan.micro_batch = micro_batch;
        plan.layout.tensor = tensor;
        plan.layout.context = context;
        plan.sequence_parallel = tensor > 1;
        return planner::segment_counts(graph, plan);
    };
    CHECK(segments(load_graph("gpt2", 512), 1, 1, 1) == std::vector<int>{2, 4});
    CHECK(segments(load_graph("gpt2", 510), 1, 1, 1) == std::vector<int>{2});  // 4 does not divide 510
    CHECK(segments(load_graph("gpt2", 8), 1, 4, 1) ==
          std::vector<int>{2});  // 2 tokens of a quarter are too few for four ranks
    CHECK(segments(load_graph("gpt2", 8), 2, 4, 1) == std::vector<int>{2, 4});
    CHECK(segments(load_graph("gpt2", 512), 1, 1, 2).empty());       // parts of samples already
    CHECK(segments(load_graph("bert-base", 512), 1, 1, 1).empty());  // not causal
    auto balanced = load_graph("mixtral-8x7b");
    CHECK(segments(balanced, 1, 1, 1) == std::vector<int>{2, 4});
    for (model::Operator& op : balanced.operators)
        if (op.kind == model::OperatorKind::router) op.attributes.auxiliary_loss = 0.01;
    CHECK(segments(balanced, 1, 1, 1).empty());  // a balance loss is of a whole micro-batch
}

TEST_CASE("no plan of segments of sequences needs less memory or less time than its bounds say") {
    for (const auto& [name, tokens, instance, batch] :
         {std::tuple{"gpt2", 1024, "p3.16xlarge", 16}, std::tuple{"gpt2", 512, "p4d.24xlarge", 64},
          std::tuple{"gpt2", 1024, "g4dn.12xlarge", 8}, std::tuple{"mixture", 4096, "p4d.24xlarge", 8}}) {
        const bool is_mixture = std::string(name) == "mixture";
        const auto graph = is_mixture ? mixture(tokens) : load_graph(name, tokens);
        const auto candidate = target_of(instance, 1);
        planner::OrderCollection orders;
        planner::StageCollection stages(graph, candidate.cluster.instance.device);
        planner::Bounds bounds(candidate.cluster, orders, stages);
        const auto plans =
            planner::legal_plans(graph, candidate.cluster,
                                 {.global_batch = batch, .base = candidate.base, .most_virtual_stages = 1});
        // As a search does, of every plan first: what plans share is computed for one of them.
        for (const schedule::Plan& plan : plans) bounds.time(plan);
        int seen = 0, simulated = 0;
        for (schedule::Plan plan : plans) {
            const schedule::Partition* const partition =
                plan.passes_per_micro_batch() > 1 ? stages.partition(plan) : nullptr;
            if (!partition || seen++ % 3 != 0) continue;
            const auto memory = bounds.memory(plan);
            REQUIRE(memory);
            const core::Seconds time = bounds.time_of_order(plan);
            plan.partition = *partition;
            core::Diagnostics diagnostics;
            const auto evaluation = sim::evaluate(graph, candidate.cluster, plan, diagnostics);
            REQUIRE(evaluation);
            INFO(name << " of " << tokens << " tokens on " << instance << ": " << planner::describe(plan)
                      << ", recompute " << schedule::name_of(plan.recompute));
            CHECK(memory->peak.value <= evaluation->peak_memory.value * (1 + 1e-9));
            CHECK(time.value <= evaluation->step_time.value * (1 + 1e-9));
            CHECK(time.value >= evaluation->step_time.value * 0.3);  // and it says something
            ++simulated;
        }
        CHECK(simulated > 10);
    }
}

TEST_CASE("the bounds of a plan do not depend on which plans were asked about before it") {
    using schedule::Offload;
    for (const auto& [name, tokens, instance, batch, framework, offload, parameters] :
         {std::tuple{"gpt2", 512, "p4d.24xlarge", 32, "", Offload::none, Offload::none},
          std::tuple{"gpt2", 512, "p4d.24xlarge", 32, "", Offload::none, Offload::host},
          std::tuple{"mixture", 4096, "p4d.24xlarge", 8, "", Offload::none, Offload::none},
          std::tuple{"gpt2", 510, "p3.16xlarge", 16, "pytorch", Offload::host, Offload::none},
          std::tuple{"gpt2", 1023, "p3.16xlarge", 16, "megatron-lm-2023", Offload::none, Offload::none}}) {
        const auto graph = std::string(name) == "mixture" ? mixture(tokens) : load_graph(name, tokens);
        auto candidate = target_of(instance, 1);
        candidate.base.framework = framework;
        candidate.base.parameter_offload = candidate.base.optimizer_offload = parameters;
        const auto plans = planner::legal_plans(
            graph, candidate.cluster,
            {.global_batch = batch, .base = candidate.base, .most_virtual_stages = 2, .offload = offload});
        struct Answer {
            core::Bytes memory;
            core::Seconds time, time_of_order;
        };
        const auto answers = [&](const std::vector<std::size_t>& asked) {
            planner::OrderCollection orders;
            planner::StageCollection stages(graph, candidate.cluster.instance.device);
            planner::Bounds bounds(candidate.cluster, orders, stages);
            std::vector<Answer> found(plans.size());
            for (const std::size_t i : asked)
                if (const auto memory = bounds.memory(plans[i]))
                    found[i] = {memory->peak, bounds.time(plans[i]), bounds.time_of_order(plans[i])};
            return found;
        };
        std::vector<std::size_t> order(plans.size());
        std::iota(order.begin(), order.end(), std::size_t{0});
        const auto first = answers(order);
        std::reverse(order.begin(), order.end());
        const auto last = answers(order);
        std::size_t different = 0;
        for (std::size_t i = 0; i < plans.size(); ++i) {
            if (first[i].memory == last[i].memory && first[i].time == last[i].time &&
                first[i].time_of_order == last[i].time_of_order)
                continue;
            if (++different > 3) continue;
            UNSCOPED_INFO(std::setprecision(17)
                          << planner::describe(plans[i]) << ", recompute "
                          << schedule::name_of(plans[i].recompute) << ": " << first[i].memory.value << " or "
                          << last[i].memory.value << " bytes, " << first[i].time.value << " or "
                          << last[i].time.value << " s, of the order " << first[i].time_of_order.value
                          << " or " << last[i].time_of_order.value << " s");
        }
        INFO(name << " of " << tokens << " tokens on " << instance << " with " << framework << ", "
                  << plans.size() << " plans");
        CHECK(different == 0);
    }
}

TEST_CASE("no plan needs less memory or less time than its bounds say") {
    using schedule::Offload;
    for (const auto& [name, tokens, instance, nodes, batch, offload] :
         {std::tuple{"gpt2", 256, "p3.16xlarge", 1, 16, Offload::none},
          std::tuple{"gpt2", 512, "p4d.24xlarge", 2, 32, Offload::none},
          std::tuple{"bert-base", 128, "g4dn.12xlarge", 1, 16, Offload::none},
          std::tuple{"mixture", 8192, "p4d.24xlarge", 2, 16, Offload::none},
          std::tuple{"mixture", 2048, "p4d.24xlarge", 1, 4, Offload::none},
          std::tuple{"gpt2", 512, "p3.16xlarge", 1, 32, Offload::host},
          std::tuple{"bert-base", 128, "g4dn.12xlarge", 1, 64, Offload::host},
          std::tuple{"mixture", 8192, "p4d.24xlarge", 1, 8, Offload::host}}) {
        const bool is_mixture = std::string(name) == "mixture";
        const auto graph = is_mixture ? mixture(tokens) : load_graph(name, tokens);
        const auto candidate = target_of(instance, nodes);
        planner::OrderCollection orders;
        planner::StageCollection stages(graph, candidate.cluster.instance.device);
        planner::Bounds bounds(candidate.cluster, orders, stages);
        int seen = 0;
        std::mt19937 chance(20261130);
        const auto plans = planner::legal_plans(
            graph, candidate.cluster,
            {.global_batch = batch, .base = candidate.base, .most_virtual_stages = 2, .offload = offload});
        const std::size_t step = plans.size() < 4000 ? 7 : plans.size() / 400;
        for (std::size_t i = 0; i < plans.size(); i += step) {
            schedule::Plan plan = plans[i];
            run_some_again(plan, chance);
            if (plan.recompute == schedule::Recompute::selective && i % 3 == 0)
                plan.recompute_modules = {schedule::RecomputeModule::layernorm,
                                          schedule::RecomputeModule::activation};
            const schedule::Plan undivided = plan;
            const auto memory = bounds.memory(plan);
            const schedule::Partition* const partition = stages.partition(plan);
            REQUIRE(memory.has_value() == (partition != nullptr));
            if (!partition) continue;
            const core::Seconds time = bounds.time(plan), time_of_order = bounds.time_of_order(plan);
            plan.partition = *partition;
            core::Diagnostics diagnostics;
            const auto evaluation = sim::evaluate(graph, candidate.cluster, plan, diagnostics);
            REQUIRE(evaluation);
            INFO(name << " on " << instance << ": plan " << i << " tensor " << plan.layout.tensor
                      << " pipeline " << plan.layout.pipeline << " data " << plan.layout.data << " context "
                      << plan.layout.context << " expert " << plan.layout.expert << " " << plan.schedule
                      << " sharding " << schedule::name_of(plan.sharding) << " recompute "
                      << schedule::recomputation_text(plan) << " micro-batch " << plan.micro_batch << " x "
                      << plan.micro_batches << " chunks " << plan.virtual_stages << " offload "
                      << schedule::name_of(plan.offload) << " " << plan.activation_loading_horizon);
            CHECK(memory->peak.value <= evaluation->peak_memory.value * (1 + 1e-9));
            CHECK(time.value <= time_of_order.value);
            // Nor is the work of the whole model, divided evenly, more than what a plan does.
            CHECK(bounds.time_of_work(undivided).value <= evaluation->step_time.value * (1 + 1e-9));
            if (bounds.state_never_fits(undivided)) CHECK_FALSE(evaluation->fits);
            CHECK(time_of_order.value <= evaluation->step_time.value * (1 + 1e-9));
            ++seen;
        }
        CHECK(seen > 50);
    }
}

TEST_CASE(
    "no plan with state on hosts, or activations that all leave first, needs less than its bounds say") {
    using schedule::Offload;
    for (const auto& [name, instance, batch, all_state, offload, least] :
         {std::tuple{"gpt2", "p4d.24xlarge", 32, false, Offload::none, 50},
          std::tuple{"gpt2", "g4dn.12xlarge", 32, true, Offload::none, 10},
          std::tuple{"gpt2", "p3.16xlarge", 1024, true, Offload::host, 10},
          std::tuple{"gpt2-xl", "p3.16xlarge", 1024, false, Offload::host, 10}}) {
        const auto graph = load_graph(name, 256);
        auto candidate = target_of(instance, 1);
        schedule::Plan& base = candidate.base;
        base.optimizer_offload = Offload::host;
        if (all_state) {
            base.parameter_offload = Offload::host;
            base.sharding = schedule::Sharding::parameters;
        }
        planner::OrderCollection orders;
        planner::StageCollection stages(graph, candidate.cluster.instance.device);
        planner::Bounds bounds(candidate.cluster, orders, stages);
        const auto plans = planner::legal_plans(
            graph, candidate.cluster,
            {.global_batch = batch, .base = base, .most_virtual_stages = 2, .offload = offload});
        int seen = 0, away = 0;
        for (std::size_t i = 0; i < plans.size() && seen < 60; i += 1 + plans.size() / 300) {
            schedule::Plan plan = plans[i];
            const bool goes_forward_first = plan.schedule == "gpipe" || plan.schedule == "looped-bfs";
            if (offload == Offload::host && (!goes_forward_first || plan.offload == Offload::none)) continue;
            const auto memory = bounds.memory(plan);
            const schedule::Partition* const partition = stages.partition(plan);
            if (!partition) continue;
            const core::Seconds time = bounds.time(plan), time_of_order = bounds.time_of_order(plan),
                                any = bounds.time_of_any_partition(plan);
            plan.partition = *partition;
            core::Diagnostics diagnostics;
            const auto evaluation = sim::evaluate(graph, candidate.cluster, plan, diagnostics);
            INFO(core::format(diagnostics) << core::to_toml(schedule::to_value(plan)));
            REQUIRE(evaluation);
            CHECK(memory->peak.value <= evaluation->peak_memory.value * (1 + 1e-9));
            CHECK(memory->on_hosts.value <= evaluation->host_memory.value * (1 + 1e-9));
            CHECK(std::max({time, time_of_order, any}).value <= evaluation->step_time.value * (1 + 1e-9));
            away += memory->on_hosts.value >
                    1.01 * 18 * double(model::parameter_count(graph)) * candidate.cluster.instance.devices;
            ++seen;
        }
        CHECK(seen >= least);
        if (std::string(name) == "gpt2-xl") CHECK(away > 0);
    }
}

TEST_CASE("every plan is accounted for once, where a deadline or a budget excludes whole families of them") {
    const model::ModelGraph graph = load_graph("gpt2", 512);
    const std::vector<planner::Target> targets = {target_of("p3.8xlarge", 1), target_of("p3.8xlarge", 2)};
    const auto objective = GENERATE(planner::Objective::cost, planner::Objective::time_to_train);
    planner::SearchRequest request;
    request.objective = objective;
    request.global_batch = 16;
    request.most_virtual_stages = 1;
    request.tokens = 1e9;
    core::Diagnostics diagnostics;
    const planner::SearchResult free = planner::search_plans(graph, targets, request, diagnostics);
    REQUIRE(!free.plans.empty());
    // Some of the plans are too late, or too dear, then.
    for (const double share : {0.5, 1.0, 1.5}) {
        INFO("share " << share);
        request.deadline = *free.plans.front().training_time * share;
        if (share > 1) request.budget = *free.plans.front().training_cost * share;
        const planner::SearchResult result = planner::search_plans(graph, targets, request, diagnostics);
        CHECK(sum_of(result.account) == result.account.space);
        const auto late = result.account.rejected.find(planner::Rejection::deadline);
        CHECK((late != result.account.rejected.end() && late->second > 0));
    }
}

TEST_CASE("numbers of nodes that are not searched hold no plan better than the bound says") {
    // The last question is one of compute: the bound of three nodes is most of what their best plan takes.
    for (const auto& [name, tokens, instance, share] :
         {std::tuple{"gpt2", 256, "p3.8xlarge", 0.05}, {"llama-2-7b", 2048, "p4d.24xlarge", 0.7}})
        for (const auto objective : {planner::Objective::speed, planner::Objective::cost}) {
            INFO(name << ", " << int(objective));
            const auto graph = load_graph(name, tokens);
            planner::SearchRequest request = small_request(24, 1);
            request.objective = objective;
            core::Diagnostics diagnostics;
            const auto three = planner::search_plans(graph, {target_of(instance, 3)}, request, diagnostics);
            request.unsearched = {target_of(instance, 3).cluster};
            const auto two = planner::search_plans(graph, {target_of(instance, 2)}, request, diagnostics);
            REQUIRE(three.plans.size() == 1);
            REQUIRE(two.plans.size() == 1);
            REQUIRE(two.account.lower_bound);
            CHECK(two.account.bounded_targets == 1);
            const double best = std::min(two.plans[0].value, three.plans[0].value);
            CHECK(*two.account.lower_bound <= best);
            CHECK(*two.account.lower_bound >= share * best);
            if (three.plans[0].value < two.plans[0].value) CHECK_FALSE(two.account.is_proven_optimal);
        }
    // 112 GB of state at 16 bytes a parameter, and 64 GB of memory: there is no plan.
    planner::SearchRequest request = small_request(24, 1);
    request.unsearched = {target_of("g4dn.12xlarge", 1).cluster};
    core::Diagnostics diagnostics;
    const auto four = planner::search_plans(load_graph("llama-2-7b", 512), {target_of("g4dn.12xlarge", 4)},
                                            request, diagnostics);
    REQUIRE(four.plans.size() == 1);
    CHECK(four.account.bounded_targets == 0);
}

TEST_CASE("no plan of an answer is another one by another name") {
    const auto graph = load_graph("gpt2", 256);
    planner::SearchRequest request;
    request.global_batch = 16;
    request.keep = 10;
    request.most_virtual_stages = 1;
    request.limits.pipeline = {4};
    request.limits.schedules = {"1f1b", "interleaved-1f1b", "grouped-interleaved"};
    core::Diagnostics diagnostics;
    const auto found = planner::search_plans(graph, {target_of("p3.16xlarge", 1)}, request, diagnostics);
    REQUIRE(found.plans.size() == 10);
    for (std::size_t a = 0; a < found.plans.size(); ++a)
        for (std::size_t b = a + 1; b < found.plans.size(); ++b) {
            // With one stage a rank all three are 1F1B.
            schedule::Plan renamed = found.plans[b].plan;
            renamed.schedule = found.plans[a].plan.schedule;
            CHECK_FALSE(renamed == found.plans[a].plan);
        }
}

TEST_CASE("pruning by bounds finds the very plan that simulating everything finds") {
    const auto graph = load_graph("gpt2", 128);
    const std::vector<planner::Target> targets = {target_of("p3.8xlarge", 1)};
    std::optional<planner::SearchResult> fastest;  // of all plans: on one node of one price the cheapest, too
    for (const auto objective :
         {planner::Objective::speed, planner::Objective::memory, planner::Objective::cost}) {
        planner::SearchRequest request = small_request(8, 2);
        request.objective = objective;
        core::Diagnostics diagnostics;
        const auto pruned = planner::search_plans(graph, targets, request, diagnostics);
        request.uses_bounds = false;
        planner::SearchResult whole = objective == planner::Objective::cost
                                          ? *fastest
                                          : planner::search_plans(graph, targets, request, diagnostics);
        if (objective == planner::Objective::speed) fastest = whole;
        REQUIRE(pruned.plans.size() == 1);
        REQUIRE(whole.plans.size() == 1);
        // With bounds the cuts of what was found are moved, too: where that helps, which is where memory
        // decides, it is the very plan but for them.
        schedule::Plan uncut = pruned.plans[0].plan;
        uncut.partition = whole.plans[0].plan.partition;
        CHECK(uncut == whole.plans[0].plan);
        const sim::Evaluation& best = whole.plans[0].evaluation;
        const double value =
            objective == planner::Objective::cost ? (best.rate * best.step_time).value : whole.plans[0].value;
        if (objective == planner::Objective::memory) CHECK(pruned.plans[0].value <= value * (1 + 1e-12));
        else CHECK(pruned.plans[0].value == Approx(value).epsilon(1e-12));
        CHECK(pruned.account.is_proven_optimal);
        CHECK(pruned.account.space == whole.account.space);
        CHECK(whole.account.pruned == 0);
        // With a value to be better than: the same, where it is; else nothing that is.
        request.uses_bounds = true;
        for (const double share : {1.001, 0.999}) {
            request.better_than = pruned.plans[0].value * share;
            const auto better = planner::search_plans(graph, targets, request, diagnostics);
            CHECK(sum_of(better.account) == pruned.account.space);
            const bool is_better = !better.plans.empty() && better.plans[0].value < *request.better_than;
            CHECK(is_better == (share > 1));
            if (is_better) CHECK(better.plans[0].plan == pruned.plans[0].plan);
        }
    }
}

TEST_CASE(
    "where activations do not fit, pruning finds the very plan that every loading horizon of every plan "
    "offers") {
    const auto graph = small_llama();
    int with_offload = 0;
    for (const double gibibytes : {2.0, 2.1, 2.2})
        for (const auto objective : {planner::Objective::speed, planner::Objective::memory}) {
            const std::vector<planner::Target> targets = {tight(gibibytes)};
            planner::SearchRequest request = small_request(8, 1);
            request.objective = objective;
            core::Diagnostics diagnostics;
            const auto pruned = planner::search_plans(graph, targets, request, diagnostics);
            request.uses_bounds = false;
            const auto whole = planner::search_plans(graph, targets, request, diagnostics);
            INFO(gibibytes << " GiB");
            REQUIRE(pruned.plans.size() == whole.plans.size());
            CHECK(sum_of(pruned.account) == pruned.account.space);
            CHECK(sum_of(whole.account) == whole.account.space);
            CHECK(pruned.account.space == whole.account.space);
            if (whole.plans.empty()) continue;
            CHECK(pruned.plans[0].value == Approx(whole.plans[0].value).epsilon(1e-12));
            CHECK(pruned.account.is_proven_optimal);
            with_offload += pruned.plans[0].plan.offload == schedule::Offload::host;
        }
    CHECK(with_offload >= 4);
}

TEST_CASE("a shorter loading horizon is found where it is faster than the longest that fits") {
    // Loads that begin earlier may meet the reductions of gradients on the links of PCIe: of this plan the
    // horizon 2 takes 0.622 s and 8 takes 0.626 s, and from 16 on there is too little memory. Its stages are
    // divided in one way.
    const auto graph = load_graph("gpt2-xl", 1024);
    planner::Target target = target_of("g5.48xlarge", 1);
    target.cluster.instance.device.memory = core::gibibytes(7.5);
    target.base.layout.order = "DPT";
    planner::StageCollection stages(graph, target.cluster.instance.device);
    planner::RunnablePlans runnable;
    runnable.partition = [&](int count) -> std::optional<schedule::Partition> {
        schedule::Plan plan = target.base;
        plan.layout = {.data = 4, .pipeline = 2};
        plan.virtual_stages = count / plan.layout.pipeline;
        return *stages.partition(plan);
    };
    target.runnable = std::make_shared<const planner::RunnablePlans>(runnable);
    planner::SearchRequest request;
    request.global_batch = 8;
    request.most_virtual_stages = 2;
    request.limits = {.tensor = {1},
                      .pipeline = {2},
                      .micro_batch = {1},
                      .replicas = {4},
                      .schedules = {"interleaved-zero-bubble"},
                      .recompute = {schedule::Recompute::none},
                      .sharding = {schedule::Sharding::gradients}};
    core::Diagnostics diagnostics;
    const auto found = planner::search_plans(graph, {target}, request, diagnostics);
    request.uses_bounds = false;
    const auto all = planner::search_plans(graph, {target}, request, diagnostics);
    REQUIRE(all.plans.size() >= 2);
    // The case is one: the longest horizon of those that fit is not the fastest.
    CHECK(all.plans.back().plan.activation_loading_horizon > all.plans[0].plan.activation_loading_horizon);
    CHECK(all.plans.back().value > all.plans[0].value * 1.001);
    REQUIRE_FALSE(found.plans.empty());
    CHECK(found.plans[0].value == Approx(all.plans[0].value).epsilon(1e-12));
    CHECK(found.plans[0].plan == all.plans[0].plan);
    CHECK(found.account.is_proven_optimal);
    CHECK(sum_of(found.account) == found.account.space);
    // A plan is listed once, with the best of its horizons.
    for (std::size_t i = 1; i < found.plans.size(); ++i) {
        schedule::Plan other = found.plans[i].plan;
        other.activation_loading_horizon = found.plans[0].plan.activation_loading_horizon;
        CHECK_FALSE(other == found.plans[0].plan);
    }
}

TEST_CASE("every candidate ends in exactly one place of the account") {
    for (const auto& [name, instance, batch] :
         {std::tuple{"gpt2-xl", "p3.16xlarge", 32}, std::tuple{"gpt2", "p3.8xlarge", 8},
          std::tuple{"gpt3-175b", "g4dn.12xlarge", 8}}) {
        const auto graph = load_graph(name, 256);
        planner::SearchRequest request;
        request.global_batch = batch;
        request.most_virtual_stages = 2;
        core::Diagnostics diagnostics;
        const auto result = planner::search_plans(graph, {target_of(instance, 1)}, request, diagnostics);
        CHECK(sum_of(result.account) == result.account.space);
    }
}

TEST_CASE("the answer does not depend on the number of threads") {
    const auto graph = load_graph("gpt2", 256);
    const std::vector<planner::Target> targets = {target_of("p3.16xlarge", 1)};
    std::optional<planner::SearchResult> first;
    for (const int threads : {1, 2, 5}) {
        planner::SearchRequest request;
        request.global_batch = 32;
        request.threads = threads;
        request.most_virtual_stages = 2;
        core::Diagnostics diagnostics;
        auto result = planner::search_plans(graph, targets, request, diagnostics);
        if (!first) {
            first = std::move(result);
            continue;
        }
        REQUIRE(result.plans.size() == first->plans.size());
        for (std::size_t i = 0; i < result.plans.size(); ++i) {
            CHECK(result.plans[i].plan == first->plans[i].plan);
            CHECK(result.plans[i].evaluation.step_time == first->plans[i].evaluation.step_time);
        }
        CHECK(result.account.evaluated == first->account.evaluated);
        CHECK(result.account.rejected == first->account.rejected);
    }
}

TEST_CASE(
    "a search that its limit ends answers the same whatever the number of threads, and counts all plans") {
    const auto graph = load_graph("gpt2-xl", 1024);
    const std::vector<planner::Target> targets = {target_of("p4d.24xlarge", 2)};
    std::optional<planner::SearchResult> first;
    for (const int threads : {1, 2, 3}) {
        planner::SearchRequest request;
        request.global_batch = 64;
        request.threads = threads;
        request.time_limit = core::Seconds(0.1);
        core::Diagnostics diagnostics;
        auto result = planner::search_plans(graph, targets, request, diagnostics);
        CHECK(sum_of(result.account) == result.account.space);
        CHECK_FALSE(result.account.is_proven_optimal);
        REQUIRE_FALSE(result.plans.empty());
        REQUIRE(result.account.lower_bound);
        CHECK(*result.account.lower_bound < result.plans.front().value);
        if (!first) {
            first = std::move(result);
            continue;
        }
        REQUIRE(result.plans.size() == first->plans.size());
        for (std::size_t i = 0; i < result.plans.size(); ++i) {
            CHECK(result.plans[i].plan == first->plans[i].plan);
            CHECK(result.plans[i].value == first->plans[i].value);
        }
        CHECK(result.account.lower_bound == first->account.lower_bound);
        CHECK(result.account.rejected == first->account.rejected);
        CHECK(result.account.unvisited == first->account.unvisited);
        CHECK(result.account.partitions.open == first->account.partitions.open);
        CHECK(result.account.work == first->account.work);
    }
    // What a limit ends has worked as long as it says, and no more than a pass longer.
    CHECK(first->account.work > core::Seconds(0.1));
    CHECK(first->account.work < core::Seconds(0.2));
}

TEST_CASE("a model that cannot fit leaves the shortfall of the plan that came nearest") {
    const auto graph = load_graph("gpt3-175b");
    planner::SearchRequest request;
    request.global_batch = 8;
    core::Diagnostics diagnostics;
    const auto result = planner::search_plans(graph, {target_of("g4dn.xlarge", 1)}, request, diagnostics);
    CHECK(result.plans.empty());
    REQUIRE(result.shortfall.has_value());
    // 174.6 billion parameters in fp16 with fp32 master and two Adam moments: 2 + 2 + 4 + 8 = 16 bytes each.
    CHECK(result.shortfall->state.value ==
          Approx(16.0 * static_cast<double>(model::parameter_count(graph))).epsilon(1e-3));
    CHECK(result.shortfall->needed > result.shortfall->available);
    CHECK_FALSE(planner::find_fitting_plan(graph, target_of("g4dn.xlarge", 1), 8));
}

TEST_CASE("the shortfall told of many plans is the least of all of them") {
    const auto graph = load_graph("llama-2-70b", 2048);
    for (const char* name : {"g4dn.12xlarge", "p3.16xlarge"}) {
        const planner::Target target = target_of(name, 1);
        planner::SearchRequest request;
        request.global_batch = 8;
        request.offload = schedule::Offload::none;
        core::Diagnostics diagnostics;
        const auto result = planner::search_plans(graph, {target}, request, diagnostics);
        CHECK(result.plans.empty());
        planner::OrderCollection orders;
        planner::StageCollection stages(graph, target.cluster.instance.device);
        planner::Bounds bounds(target.cluster, orders, stages);
        std::optional<core::Bytes> least;
        for (const schedule::Plan& plan :
             planner::legal_plans(graph, target.cluster, {.global_batch = 8, .base = target.base}))
            if (const auto memory = bounds.memory(plan))
                least = least ? std::min(*least, memory->peak) : memory->peak;
        REQUIRE(least);
        REQUIRE(*least > target.cluster.instance.device.memory);
        REQUIRE(result.shortfall);
        CHECK(result.shortfall->needed == *least);
    }
}

TEST_CASE("what is to run a plan narrows the space exactly, also where it divides stages in one way only") {
    const model::ModelGraph graph = load_graph("gpt2", 256);
    planner::Target target = target_of("p3.16xlarge", 1);
    planner::RunnablePlans runnable;
    runnable.has_sequence_parallelism = false;
    runnable.may_take = [](const schedule::Plan& plan) {
        return plan.virtual_stages == 1 && plan.recompute == schedule::Recompute::none &&
               plan.sharding <= schedule::Sharding::optimizer;
    };
    // Twelve layers between an embedding and a head.
    const auto even = [](int stages) {
        schedule::Partition partition;
        for (int s = 0; s < stages && 12 % stages == 0; ++s)
            partition.first_units.push_back(s == 0 ? 0 : 1 + s * (12 / stages));
        return partition;
    };
    runnable.takes = [&](const schedule::Plan& plan) {
        return runnable.may_take(plan) &&
               (plan.stages() == 1 || plan.partition.first_units == even(plan.stages()).first_units);
    };
    runnable.partition = [&](int stages) { return std::optional(even(stages)); };
    target.runnable = std::make_shared<const planner::RunnablePlans>(runnable);
    planner::SearchRequest request;
    request.global_batch = 32;
    request.offload = schedule::Offload::none;
    core::Diagnostics diagnostics;
    const planner::SearchResult found = planner::search_plans(graph, {target}, request, diagnostics);
    request.uses_bounds = false;
    const planner::SearchResult all = planner::search_plans(graph, {target}, request, diagnostics);
    REQUIRE_FALSE(found.plans.empty());
    CHECK(found.account.is_proven_optimal);
    CHECK(found.plans.front().value == Approx(all.plans.front().value).epsilon(1e-9));
    CHECK(found.account.space == all.account.space);
    for (const planner::RankedPlan& ranked : found.plans) {
        CHECK(runnable.takes(ranked.plan));
        CHECK_FALSE(ranked.plan.has_sequence_parallelism());
    }
}

TEST_CASE("a search stopped at any moment accounts for every plan, and its lower bound holds") {
    const auto graph = load_graph("bert-large");
    const std::vector<planner::Target> targets = {target_of("p3.16xlarge", 1)};
    planner::SearchRequest request;
    request.global_batch = 64;
    request.threads = 1;
    std::int64_t asked = 0, most = std::numeric_limits<std::int64_t>::max();
    request.is_stopped = [&] { return ++asked > most; };
    core::Diagnostics diagnostics;
    const auto whole = planner::search_plans(graph, targets, request, diagnostics);
    REQUIRE(whole.account.is_proven_optimal);
    const std::int64_t all = asked;
    int with_plans = 0;
    for (const int percent : {0, 20, 60, 85, 90, 95, 97, 99}) {
        asked = 0;
        most = all * percent / 100;
        core::Diagnostics said;
        const auto result = planner::search_plans(graph, targets, request, said);
        INFO("stopped at question " << most << " of " << all);
        CHECK(sum_of(result.account) == result.account.space);
        if (result.plans.empty()) continue;
        ++with_plans;
        CHECK(result.plans.front().value >= whole.plans.front().value);
        CHECK(result.account.lower_bound <= whole.plans.front().value);
        CHECK(result.account.lower_bound > 0);
    }
    CHECK(with_plans >= 3);
}

TEST_CASE("a search tells how far it is from the listing of its plans on") {
    const auto graph = load_graph("bert-large");
    std::vector<planner::SearchProgress> told;
    planner::SearchRequest request;
    request.global_batch = 64;
    request.threads = 1;
    request.progress = [&](const planner::SearchProgress& at) { told.push_back(at); };
    core::Diagnostics diagnostics;
    const auto result = planner::search_plans(graph, {target_of("p3.16xlarge", 1)}, request, diagnostics);
    // While plans are listed, then before each that is simulated.
    REQUIRE(told.size() > result.account.evaluated);
    CHECK(told.front().space == 0);
    CHECK(told.back().space == result.account.space);
    CHECK(std::is_sorted(told.begin(), told.end(),
                         [](const auto& a, const auto& b) { return a.looked_at < b.looked_at; }));
}
