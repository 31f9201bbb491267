// What must hold between the predictions of two scenarios that differ in one thing, whatever the models,
// constants and schedules: more of a resource is never slower, less work never longer, the spelling of a plan
// is no matter.
#include "tests/metamorphic/random_scenario.h"

#include <cstdlib>
#include <functional>
#include <set>

#include "core/document.h"
#include "schedule/pass/lower.h"
#include "schedule/program/exchange_signature.h"
#include "sim/cost/contention.h"
#include "sim/cost/pricing.h"

namespace {

using metamorphic::describe, metamorphic::Generator, metamorphic::Scenario, metamorphic::try_evaluate;

// Rounding of sums of thousands of durations.
constexpr double rounding = 1e-9;

// A sample where time is short; SMSIM_METAMORPHIC_SCENARIOS=1000 for all (`./run test --all`).
int scenario_count() {
    const char* text = std::getenv("SMSIM_METAMORPHIC_SCENARIOS");
    return text ? std::atoi(text) : 40;
}

void for_each_scenario(std::uint64_t seed,
                       const std::function<void(const Scenario&, const sim::Evaluation&)>& check) {
    Generator generator(seed);
    for (int i = 0; i < scenario_count(); ++i) {
        const Scenario scenario = generator.next();
        INFO("scenario " << i << ": " << describe(scenario));
        const std::optional<sim::Evaluation> evaluation = try_evaluate(scenario);
        REQUIRE(evaluation);
        check(scenario, *evaluation);
    }
}

double step_of(const Scenario& scenario, const sim::EvaluateOptions& options = {}) {
    const std::optional<sim::Evaluation> evaluation = try_evaluate(scenario, options);
    REQUIRE(evaluation);
    return evaluation->step_time.value;
}

// Everything takes the time that it takes alone, and no host is waited for: a step is the longest path
// through its instructions, and nothing that becomes shorter makes that longer.
double longest_path(const Scenario& scenario) {
    return step_of(scenario, {.shares_links = false, .counts_hosts = false});
}

// Where communications share links, kernels lose time beside them, and a host that is ahead at one kernel is
// behind at another, what ends sooner may meet what it did not meet before and hold up the critical rank.
// That is the anomaly of list schedules (Graham, "Bounds on multiprocessing timing anomalies", 1969), true of
// machines too; over 1,000 scenarios of each relation it is smaller than this.
constexpr double largest_anomaly = 0.04;

void check_no_longer(const Scenario& changed, const Scenario& base, double times = 1) {
    CHECK(longest_path(changed) <= times * longest_path(base) * (1 + rounding));
    CHECK(step_of(changed) <= times * step_of(base) * (1 + largest_anomaly));
}

// Another program, in which gathers meet other reductions on their stream: no law says which is longer.
bool gathers_parameters(const Scenario& scenario) {
    return scenario.plan.shards(schedule::Sharding::parameters);
}

// Degrees are powers of two: over three nodes their groups lie unlike.
bool has_even_nodes(const Scenario& scenario) {
    const int nodes = scenario.cluster.nodes;
    return (nodes & (nodes - 1)) == 0;
}

// Do all ranks of every class send over links of the same rates, at the same share of them and beside as many
// others?
bool replicas_are_alike(const Scenario& scenario) {
    core::Diagnostics diagnostics;
    std::optional<sim::CostModels> costs =
        sim::make_cost_models(scenario.graph, scenario.cluster, scenario.plan, diagnostics);
    const std::optional<schedule::Schedule> order = schedule::make_schedule(scenario.plan, diagnostics);
    REQUIRE(costs);
    REQUIRE(order);
    const schedule::Program program = schedule::lower(scenario.plan, scenario.graph, *order);
    for (const schedule::RankProgram& list : program.classes)
        for (const schedule::Instruction& instruction : list.instructions) {
            const bool is_send = instruction.kind == schedule::InstructionKind::send;
            if (!is_send && instruction.kind != schedule::InstructionKind::collective) continue;
            std::map<int, std::vector<sim::LinkShare>> of_group;  // by its lowest rank
            for (int rank = 0; rank < static_cast<int>(program.class_of_rank.size()); ++rank) {
                const int index = program.class_of_rank[static_cast<std::size_t>(rank)];
                if (&program.classes[static_cast<std::size_t>(index)] != &list) continue;
                const std::vector<std::int32_t>& tied = schedule::tied_ranks_of(list, instruction);
                const int group = is_send ? rank : costs->communication.leader(instruction.group, rank, tied);
                if (of_group.contains(group)) continue;
                of_group[group] = is_send ? costs->communication.transfer_of(rank, *instruction.peer).links
                                          : costs->communication
                                                .choice_of(instruction.collective, instruction.group,
                                                           instruction.bytes, rank, tied)
                                                .links;
            }
            std::map<std::int32_t, int> users;
            for (const auto& [group, links] : of_group)
                for (const sim::LinkShare& link : links) ++users[link.link];
            std::set<std::multiset<std::pair<double, int>>> kinds;
            for (const auto& [group, links] : of_group) {
                std::multiset<std::pair<double, int>> kind;
                for (const sim::LinkShare& link : links) kind.insert({link.busy, users[link.link]});
                kinds.insert(std::move(kind));
            }
            if (kinds.size() > 1) return false;
        }
    return true;
}

Scenario with_links(Scenario scenario, cluster::LinkKind kind,
                    const std::function<void(cluster::Link&)>& change) {
    for (cluster::Link& link : scenario.cluster.instance.links)
        if (link.kind == kind) change(link);
    cluster::prepare_routes(scenario.cluster.instance);
    return scenario;
}

}  // namespace

TEST_CASE("a faster link of any kind never makes a step longer") {
    using cluster::LinkKind;
    for_each_scenario(1, [](const Scenario& scenario, const sim::Evaluation&) {
        for (const LinkKind kind :
             {LinkKind::nvlink, LinkKind::pcie, LinkKind::host_interconnect, LinkKind::network}) {
            Scenario faster =
                with_links(scenario, kind, [](cluster::Link& link) { link.bandwidth = link.bandwidth * 2; });
            if (kind == LinkKind::network) {
                faster.cluster.instance.network_bandwidth = faster.cluster.instance.network_bandwidth * 2;
                faster.cluster.instance.network_baseline = faster.cluster.instance.network_baseline * 2;
            }
            INFO("kind of link " << static_cast<int>(kind));
            check_no_longer(faster, scenario);
            Scenario sooner =
                with_links(scenario, kind, [](cluster::Link& link) { link.latency = link.latency / 2; });
            if (kind == LinkKind::network)
                sooner.cluster.instance.network_latency = sooner.cluster.instance.network_latency / 2;
            INFO("latency");
            check_no_longer(sooner, scenario);
        }
    });
}

TEST_CASE("a faster device never makes a step longer, and a larger memory changes no time") {
    for_each_scenario(2, [](const Scenario& scenario, const sim::Evaluation& base) {
        Scenario faster = scenario;
        for (auto& [type, rate] : faster.cluster.instance.device.peak) rate = rate * 2;
        for (auto& [type, curve] : faster.cluster.instance.device.matrix_product)
            for (cluster::MatrixProductCurve::Point& point : curve.points) point.rate = point.rate * 2;
        check_no_longer(faster, scenario);
        Scenario wider = scenario;
        wider.cluster.instance.device.memory_bandwidth = wider.cluster.instance.device.memory_bandwidth * 2;
        check_no_longer(wider, scenario);
        Scenario larger = scenario;
        larger.cluster.instance.device.memory = larger.cluster.instance.device.memory * 2;
        const std::optional<sim::Evaluation> evaluation = try_evaluate(larger);
        REQUIRE(evaluation);
        CHECK(evaluation->step_time.value == base.step_time.value);
        CHECK(evaluation->peak_memory.value == base.peak_memory.value);
        CHECK((evaluation->fits || !base.fits));
    });
}

// What a search excludes plans by: a plan's longest path bounds its step, and without a host to wait for also
// that of the plan with offload, however far ahead activations are loaded. (Copies cut passes, at which a
// host may catch up early.)
TEST_CASE("a step is no shorter for what runs beside it, nor for offload") {
    constexpr int horizons[] = {1, 2, 4, 16};
    int offloaded = 0;
    for_each_scenario(37, [&](Scenario scenario, const sim::Evaluation& evaluation) {
        CHECK(step_of(scenario, {.shares_links = false}) <= evaluation.step_time.value * (1 + rounding));
        scenario.plan.offload = schedule::Offload::none;
        const double alone = longest_path(scenario);
        CHECK(alone <= evaluation.step_time.value * (1 + rounding));
        scenario.plan.offload = schedule::Offload::host;
        for (const int horizon : horizons) {
            INFO("horizon " << horizon);
            scenario.plan.activation_loading_horizon = horizon;
            const std::optional<sim::Evaluation> away = try_evaluate(scenario);
            if (!away) continue;
            CHECK(alone <= away->step_time.value * (1 + rounding));
            ++offloaded;
        }
    });
    CHECK(offloaded > 0);
}

// A search relies on it: where the shortest horizon needs more than 1.005 times the memory, no longer one is
// looked at.
TEST_CASE("no loading horizon needs less memory than the shortest, but for half a percent") {
    constexpr double largest_difference = 0.005;
    int compared = 0;
    for_each_scenario(40, [&](Scenario scenario, const sim::Evaluation&) {
        scenario.plan.offload = schedule::Offload::host;
        scenario.plan.activation_loading_horizon = 1;
        const std::optional<sim::Evaluation> shortest = try_evaluate(scenario);
        if (!shortest) return;
        for (const int horizon : {2, 4, 16, 64}) {
            scenario.plan.activation_loading_horizon = horizon;
            const std::optional<sim::Evaluation> longer = try_evaluate(scenario);
            REQUIRE(longer);
            INFO("horizon " << horizon);
            CHECK(shortest->peak_memory <= longer->peak_memory * (1 + largest_difference));
            ++compared;
        }
    });
    CHECK(compared > 0);
}

TEST_CASE("twice the replicas on twice the nodes never more than double the samples per second") {
    for_each_scenario(3, [](const Scenario& scenario, const sim::Evaluation&) {
        // Whole replicas side by side: the second half lies on its nodes as the first does. Shards stay as
        // many: dividing state further is another plan. An uneven division over nodes may become even; the
        // servers of SMDDP's sums write less each.
        Scenario once = scenario;
        once.plan.layout.order = "DPT";
        if (once.plan.sharding != schedule::Sharding::none)
            once.plan.shard_degree = once.plan.effective_shard_degree();
        Scenario twice = once;
        twice.cluster.nodes *= 2;
        twice.plan.layout.data *= 2;
        if (has_even_nodes(scenario) && scenario.plan.communication != "smddp" && try_evaluate(once) &&
            try_evaluate(twice))
            check_no_longer(once, twice);
    });
}

TEST_CASE("twice the micro-batches take longer, and no more than twice as long") {
    for_each_scenario(4, [](const Scenario& scenario, const sim::Evaluation&) {
        // Of few micro-batches more tensors are needed too soon to leave, and are not copied.
        if (scenario.plan.offload != schedule::Offload::none) return;
        Scenario twice = scenario;
        twice.plan.micro_batches *= 2;
        if (!try_evaluate(twice)) return;
        check_no_longer(scenario, twice);
        if (gathers_parameters(scenario))
            CHECK(step_of(twice) <= 2 * step_of(scenario) * (1 + largest_anomaly));
        else check_no_longer(twice, scenario, 2);
    });
}

TEST_CASE("half the sequence is no slower and holds no more memory") {
    for_each_scenario(5, [](const Scenario& scenario, const sim::Evaluation& base) {
        if (scenario.tokens == 0) return;
        Scenario half = scenario;
        half.graph = load_graph(scenario.model, scenario.tokens / 2);
        const std::optional<sim::Evaluation> evaluation = try_evaluate(half);
        if (!evaluation) return;
        check_no_longer(half, scenario);
        CHECK(evaluation->peak_memory.value <= base.peak_memory.value * (1 + rounding));
    });
}

TEST_CASE("recomputing more is never faster, and holds no more memory, without offload") {
    using schedule::Recompute;
    for_each_scenario(6, [](const Scenario& scenario, const sim::Evaluation&) {
        // With offload what is not kept is not copied either, and the copies may be what the step waits for.
        if (scenario.plan.offload != schedule::Offload::none) return;
        std::optional<Scenario> less;
        for (const auto& [recompute, layers] : {std::pair{Recompute::none, 0},
                                                {Recompute::selective, 0},
                                                {Recompute::full, 0},
                                                {Recompute::none, 0},
                                                {Recompute::full, -1},
                                                {Recompute::full, 1},
                                                {Recompute::full, 2},
                                                {Recompute::full, 0}}) {
            Scenario changed = scenario;
            changed.plan.recompute = recompute;
            changed.plan.recompute_layers = layers;
            changed.plan.recompute_layers_by_stage = {};
            if (layers < 0) {  // of the first stage alone
                changed.plan.recompute_layers = 0;
                changed.plan.recompute_layers_by_stage.assign(std::size_t(changed.plan.stages()), 0);
                changed.plan.recompute_layers_by_stage.front() = 1;
            }
            std::optional<sim::Evaluation> evaluation = try_evaluate(changed);
            if (!evaluation) continue;
            INFO("recompute = " << schedule::recomputation_text(changed.plan));
            if (less && recompute != Recompute::none) {
                if (gathers_parameters(changed))
                    CHECK(step_of(*less) <= step_of(changed) * (1 + largest_anomaly));
                else check_no_longer(*less, changed);
                // A unit that runs again keeps its input beside what its backward reads; attention that does
                // works on its tensors beside those of its backward (0.7 % of a rank of T5); whole gradients
                // and gathered parameters are held for as long as they travel.
                const double more = recompute == Recompute::selective                    ? 0.01
                                    : changed.plan.shards(schedule::Sharding::gradients) ? 0.005
                                                                                         : 0.002;
                CHECK(evaluation->peak_memory.value <= try_evaluate(*less)->peak_memory.value * (1 + more));
            }
            less = changed;
        }
    });
}

TEST_CASE("every rank simulated by itself takes the time and memory of its class") {
    for_each_scenario(7, [](const Scenario& scenario, const sim::Evaluation& base) {
        const std::optional<sim::Evaluation> unfolded = try_evaluate(scenario, {.is_folded = false});
        REQUIRE(unfolded);
        if (has_even_nodes(scenario) && replicas_are_alike(scenario)) {
            CHECK(unfolded->step_time.value == Approx(base.step_time.value).epsilon(rounding));
            CHECK(unfolded->peak_memory.value == Approx(base.peak_memory.value).epsilon(rounding));
        } else {
            // One rank stands for all: all are as slow as the slowest of them, and at the same time. By
            // itself each may also fall behind where another does not.
            CHECK(unfolded->step_time.value <= base.step_time.value * 1.25);
            CHECK(unfolded->step_time.value >= base.step_time.value * 0.8);
        }
    });
}

TEST_CASE("a plan written as TOML and as JSON, and with its defaults spelled out, is one plan") {
    for_each_scenario(8, [](const Scenario& scenario, const sim::Evaluation& base) {
        core::Diagnostics diagnostics;
        core::Value document = core::Value::table();
        document["plan"] = schedule::to_value(scenario.plan);
        const std::optional<core::Value> from_toml =
            core::parse_toml(core::to_toml(document), "a.toml", diagnostics);
        const std::optional<core::Value> from_json =
            core::parse_json(core::to_json(document), "a.json", diagnostics);
        for (const std::optional<core::Value>* tree : {&from_toml, &from_json}) {
            INFO(core::format(diagnostics));
            REQUIRE(tree->has_value());
            const std::optional<schedule::Plan> plan =
                schedule::read_plan(*(*tree)->find("plan"), nullptr, diagnostics);
            REQUIRE(plan);
            Scenario read = scenario;
            read.plan = *plan;
            read.plan.optimizer = scenario.plan.optimizer;
            CHECK(step_of(read) == base.step_time.value);
        }
    });
}

TEST_CASE("spellings of one plan are one plan") {
    for_each_scenario(9, [](const Scenario& scenario, const sim::Evaluation& base) {
        const auto check = [&](const char* spelling, const schedule::Plan& plan) {
            INFO(spelling);
            Scenario spelled = scenario;
            spelled.plan = plan;
            const std::optional<sim::Evaluation> evaluation = try_evaluate(spelled);
            REQUIRE(evaluation);
            CHECK(evaluation->step_time.value == Approx(base.step_time.value).epsilon(rounding));
            CHECK(evaluation->peak_memory.value == Approx(base.peak_memory.value).epsilon(rounding));
        };
        const schedule::Plan& plan = scenario.plan;
        const auto without = [](core::Value& table, std::string_view key) {
            std::erase_if(table.members(), [&](const auto& member) { return member.first == key; });
        };
        // Words of a file: the batch as a whole, the names of orders, a precision by parts.
        const auto check_written = [&](const char* spelling, const std::function<void(core::Value&)>& write) {
            core::Value table = schedule::to_value(plan);
            write(table);
            core::Diagnostics diagnostics;
            const std::optional<core::Value> parsed =
                core::parse_toml(core::to_toml(table), "plan.toml", diagnostics);
            REQUIRE(parsed);
            std::optional<schedule::Plan> read = schedule::read_plan(*parsed, nullptr, diagnostics);
            INFO(core::format(diagnostics));
            REQUIRE(read);
            read->optimizer = plan.optimizer;
            CHECK(*read == plan);
            check(spelling, *read);
        };
        check_written("global_batch for micro_batches", [&](core::Value& table) {
            without(table, "micro_batches");
            table["global_batch"] = plan.global_batch();
        });
        check_written("placement for order", [&](core::Value& table) {
            without(table, "order");
            const std::string& order = plan.layout.order;
            table["placement"] = order == "PDT" ? "megatron" : order == "DPT" ? "cluster" : "spread";
        });
        check_written("a precision's parts", [&](core::Value& table) {
            core::Value parts = core::Value::table();
            parts["compute"] = core::name_of(plan.precision.compute);
            table["precision"] = std::move(parts);
        });
        check_written("a bucket in bytes", [&](core::Value& table) {
            table["gradient_bucket"] =
                std::to_string(static_cast<std::int64_t>(plan.gradient_bucket.value)) + "B";
        });
        // Other figures of the same plan: what a default is said aloud, and what nothing depends on.
        schedule::Plan spelled = plan;
        spelled.shard_degree = plan.sharding == schedule::Sharding::none ? 0 : plan.effective_shard_degree();
        check("the shard degree said", spelled);
        if (plan.layout.pipeline == 1) {
            std::string others = plan.layout.order;
            others.erase(others.find('P'), 1);
            for (const std::string& order : {others + 'P', 'P' + others}) {
                spelled = plan;
                spelled.layout.order = order;
                check("an axis of one rank at another place", spelled);
            }
        }
        if (plan.schedule == "1f1b" && plan.layout.pipeline > 1) {
            spelled = plan;
            spelled.schedule = "interleaved-1f1b";
            check("interleaved with one chunk", spelled);
            spelled.schedule = "seq1f1b";
            spelled.schedule_parameters = schedule::SegmentParameters{1};
            const bool is_causal = scenario.model.starts_with("gpt2") || scenario.model.starts_with("llama");
            if (is_causal && plan.layout.context == 1 && plan.offload == schedule::Offload::none)
                check("a sequence in one part", spelled);
        }
        if (plan.layout.tensor == 1) {
            spelled = plan;
            spelled.sequence_parallel = true;
            check("sequence parallelism over one rank", spelled);
        }
        spelled = plan;
        spelled.memory_weight = 0.5;
        check("a weight beside a partition", spelled);
        spelled = plan;
        spelled.activation_loading_horizon = 2 * plan.activation_loading_horizon;
        if (plan.offload == schedule::Offload::none) check("a horizon without offload", spelled);
    });
}

TEST_CASE("a larger memory_weight never has a higher peak nor a shorter step") {
    for_each_scenario(10, [](const Scenario& scenario, const sim::Evaluation&) {
        if (scenario.plan.layout.pipeline == 1) return;
        Scenario weighed = scenario;
        weighed.plan.partition = {};
        std::optional<sim::Evaluation> lighter;
        for (const double weight : {0.1, 0.2, 0.5, 0.8, 1.0}) {
            INFO("memory_weight = " << weight);
            weighed.plan.memory_weight = weight;
            const std::optional<sim::Evaluation> evaluation = try_evaluate(weighed);
            REQUIRE(evaluation);
            if (lighter) {
                CHECK(evaluation->peak_memory.value <= lighter->peak_memory.value);
                CHECK(evaluation->step_time.value >= lighter->step_time.value);
            }
            lighter = evaluation;
        }
        // SMP v1's words: optimize = "speed" and "memory".
        weighed.plan.schedule = "interleaved";
        weighed.plan.virtual_stages = 1;
        weighed.plan.memory_weight = 0.2;
        weighed.plan.schedule_parameters = schedule::AdmissionParameters{.is_strict = false};
        const std::optional<sim::Evaluation> speed = try_evaluate(weighed);
        weighed.plan.memory_weight = 0.8;
        weighed.plan.schedule_parameters = schedule::AdmissionParameters{.is_strict = true};
        const std::optional<sim::Evaluation> memory = try_evaluate(weighed);
        REQUIRE(speed.has_value() == memory.has_value());
        if (!speed) return;
        CHECK(memory->peak_memory.value <= speed->peak_memory.value);
        CHECK(memory->step_time.value >= speed->step_time.value);
    });
}
