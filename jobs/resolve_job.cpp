#include "jobs/resolve_job.h"

#include <algorithm>
#include <cmath>

#include "cluster/topology.h"
#include "core/diagnostics.h"
#include "schedule/plan/memory.h"
#include "sim/evaluate.h"

namespace jobs {

namespace {

// Smaller clusters whose step is predicted for an elastic job: each takes a prediction.
constexpr int most_reduced_forms = 256;
// And whose plans are searched for: each takes a search.
constexpr int most_searches = 32;

core::SourceLocation place_of(const core::Value& table, std::string_view key) {
    const core::Value* value = table.find(key);
    return value != nullptr ? value->location : table.location;
}

class Resolver {
public:
    Resolver(const Job& job, const sim::Scenario& scenario, const core::Value& table,
             core::Diagnostics& diagnostics, const PlanOnNodes& replan)
        : job_(job), scenario_(scenario), table_(table), diagnostics_(diagnostics), replan_(replan) {}

    std::optional<ResolvedJob> resolve() {
        model().nodes = scenario_.cluster.nodes;
        result_.checkpoint_bytes = bytes_of_checkpoint();
        resolve_step();
        if (diagnostics_.has_errors()) return std::nullopt;
        if (result_.does_not_fit) return std::move(result_);
        resolve_steps();
        resolve_stragglers();
        resolve_evaluation();
        resolve_checkpoints();
        resolve_ends();
        resolve_interruptions();
        resolve_prices();
        if (diagnostics_.has_errors()) return std::nullopt;
        return std::move(result_);
    }

private:
    JobModel& model() { return result_.model; }
    void assume(std::string line) { model().assumptions.push_back(std::move(line)); }
    void error(std::string_view key, std::string message, std::string hint) {
        diagnostics_.error(place_of(table_, key), "job." + std::string(key), std::move(message),
                           std::move(hint));
    }

    core::Bytes bytes_of_checkpoint() const {
        if (job_.checkpoint && job_.checkpoint->bytes) return *job_.checkpoint->bytes;
        return checkpoint_bytes(scenario_.graph, scenario_.file.plan);
    }

    void resolve_step() {
        if (job_.step_time) {
            model().step = *job_.step_time;
            return;
        }
        const std::optional<sim::Evaluation> evaluation =
            sim::evaluate(scenario_.graph, scenario_.cluster, scenario_.file.plan, diagnostics_);
        if (!evaluation) return;
        model().step = evaluation->step_time;
        if (!evaluation->fits) result_.does_not_fit = evaluation->tightest;
        assume("step time predicted: " + core::format(evaluation->step_time));
    }

    void resolve_steps() {
        if (job_.steps) {
            model().steps = *job_.steps;
            return;
        }
        const double tokens_per_step =
            double(scenario_.graph.tokens_per_sample) * scenario_.file.plan.global_batch();
        if (tokens_per_step <= 0) {
            error("tokens", "job.tokens: " + scenario_.graph.name + " has no tokens", "give steps instead");
            return;
        }
        model().steps = std::max<std::int64_t>(1, std::int64_t(std::ceil(*job_.tokens / tokens_per_step)));
        if (double(model().steps) > 1e12)
            error("tokens", "job.tokens are more than 1e12 steps", "train on fewer tokens");
    }

    void resolve_stragglers() {
        if (!job_.stragglers) return;
        const StragglerRule& rule = *job_.stragglers;
        if (rule.device_speed || rule.network_speed) {
            result_.stragglers = straggler_effect(scenario_, rule, diagnostics_);
            if (!result_.stragglers) return;
            model().step *= result_.stragglers->worst.ratio;
            assume("the slow device or node stands where it costs most, in pipeline rank " +
                   std::to_string(result_.stragglers->worst.pipeline));
        }
        if (rule.jitter <= 0) return;
        model().jitter = jitter_of(scenario_.file.plan.layout.ranks(), rule.jitter);
        model().step *= model().jitter->mean;
        assume("step times of ranks vary independently and normally; every step waits for the slowest");
    }

    void resolve_evaluation() {
        if (!job_.evaluation) return;
        Evaluating evaluating{job_.evaluation->every, {}};
        if (job_.evaluation->time) {
            evaluating.time = *job_.evaluation->time;
        } else {
            sim::Scenario forward = scenario_;
            forward.file.plan.schedule = "forward-only";
            forward.file.plan.virtual_stages = 1;
            forward.file.plan.partition = {};
            forward.file.plan.recompute = schedule::Recompute::none;
            forward.file.plan.offload = schedule::Offload::none;
            const std::optional<sim::Evaluation> evaluation =
                sim::evaluate(forward.graph, forward.cluster, forward.file.plan, diagnostics_);
            if (!evaluation) return;
            evaluating.time = evaluation->step_time * double(*job_.evaluation->batches);
            assume("evaluation predicted: forward passes of " + std::to_string(*job_.evaluation->batches) +
                   " global batches take " + core::format(evaluating.time));
        }
        model().evaluating = evaluating;
    }

    void resolve_checkpoints() {
        if (!job_.checkpoint) return;
        const CheckpointRule& rule = *job_.checkpoint;
        model().checkpoint_write = rule.write ? *rule.write : result_.checkpoint_bytes / *rule.bandwidth;
        if (rule.bandwidth)
            assume("a checkpoint of " + core::format(result_.checkpoint_bytes) + " takes " +
                   core::format(model().checkpoint_write));
        Checkpointing checkpointing;
        // The end of the step in which the interval is over; a whole number of steps may come out a rounding
        // error above.
        constexpr double rounding = 1e-9;
        checkpointing.every = rule.every
                                  ? *rule.every
                                  : std::int64_t(std::ceil(*rule.interval / model().step * (1 - rounding)));
        checkpointing.every = std::clamp<std::int64_t>(checkpointing.every, 1, model().steps);
        checkpointing.blocking = rule.is_asynchronous ? rule.snapshot : model().checkpoint_write;
        if (rule.is_asynchronous) checkpointing.beside = model().checkpoint_write;
        const core::Seconds between = model().step * double(checkpointing.every);
        if (rule.is_asynchronous && checkpointing.beside > between)
            error("checkpoint",
                  "writing a checkpoint takes " + core::format(checkpointing.beside) +
                      ", but the next one follows after " + core::format(between),
                  "checkpoint less often, or on faster storage");
        model().checkpointing = checkpointing;
    }

    core::Seconds time_of(const std::optional<Transfer>& transfer) const {
        if (!transfer) return {};
        if (transfer->time) return *transfer->time;
        return transfer->bytes.value_or(result_.checkpoint_bytes) / *transfer->bandwidth;
    }

    void resolve_ends() {
        model().acquire = job_.acquire;
        model().image = time_of(job_.image);
        model().data = time_of(job_.data);
        model().warm_up = job_.warm_up;
        model().upload = time_of(job_.upload);
        model().release = job_.release;
        if (!job_.warm_pool) return;
        model().keep_alive = job_.warm_pool->keep_alive;
        if (!job_.warm_pool->start) return;
        model().acquire = *job_.warm_pool->start;
        assume("instances come from a warm pool: they need no image");
        model().image = {};
    }

    void resolve_interruptions() {
        model().failures = job_.failures;
        model().spot = job_.spot;
        if (model().spot && !model().spot->restart) {
            // A checkpoint is read as fast as it was written.
            model().spot->restart = model().preparation() + model().checkpoint_write;
            assume("after a reclaim image, data, warm-up and reading the checkpoint take " +
                   core::format(*model().spot->restart));
        }
        if (model().spot)
            assume("instances are reclaimed independently of each other; together they go less often");
        model().elastic = job_.elastic;
        if (!job_.elastic) return;
        if (!model().elastic->reconfigure) {
            // Every rank reads its new part of the state; a checkpoint is read as fast as it was written.
            model().elastic->reconfigure = model().checkpoint_write;
            assume("to go on with more or fewer nodes takes reading a checkpoint: " +
                   core::format(model().checkpoint_write));
        }
        if (job_.elastic->least_nodes > model().nodes) {
            error("elastic",
                  "job.elastic.least_nodes = " + std::to_string(job_.elastic->least_nodes) +
                      " are more than the cluster's " + std::to_string(model().nodes),
                  "give at most as many");
            return;
        }
        const int most_forms = job_.elastic->replans ? most_searches : most_reduced_forms;
        if (model().nodes - job_.elastic->least_nodes > most_forms) {
            error("elastic",
                  "job.elastic.least_nodes = " + std::to_string(job_.elastic->least_nodes) + " asks for " +
                      (job_.elastic->replans ? "a search" : "the plan's step") +
                      " with every number of nodes up to " + std::to_string(model().nodes),
                  "give at least " + std::to_string(model().nodes - most_forms));
            return;
        }
        resolve_fewer_nodes();
    }

    void resolve_fewer_nodes() {
        const int least = job_.elastic->least_nodes;
        if (!job_.elastic->replans) {
            model().step_of_nodes = step_of_nodes(scenario_, model().step, least, diagnostics_);
            return;
        }
        if (!replan_) {
            error("elastic", "job.elastic.replan: this command does not search for plans on fewer nodes",
                  "leave it out, or ask smsim job");
            return;
        }
        std::vector<std::string> told;
        model().step_of_nodes =
            replanned_step_of_nodes(scenario_, model().step, least, replan_, told, diagnostics_);
        for (std::string& line : told) assume(std::move(line));
    }

    void resolve_prices() {
        Prices& prices = model().prices;
        prices.minimum = job_.bill.minimum;
        prices.increment = job_.bill.increment;
        prices.storage = job_.bill.storage;
        if (job_.bill.node) {
            prices.node = *job_.bill.node;
            return;
        }
        const std::string_view kind = name_of(job_.purchase);
        for (const cluster::Price& price : scenario_.cluster.instance.prices)
            if (price.kind == kind) {
                prices.node = price.rate;
                const double usd = core::to_dollars_per_hour(price.rate);
                assume(std::string(kind) + " price of a node: " + std::to_string(usd) + " USD/h (" +
                       price.source + (price.date.empty() ? ")" : ", " + price.date + ")"));
                return;
            }
        assume(scenario_.cluster.instance.name + " has no " + std::string(kind) +
               " price: the job's is unknown (give job.bill.usd_per_hour)");
    }

    const Job& job_;
    const sim::Scenario& scenario_;
    const core::Value& table_;
    core::Diagnostics& diagnostics_;
    const PlanOnNodes& replan_;
    ResolvedJob result_;
};

}  // namespace

std::optional<ResolvedJob> resolve_job(const Job& job, const sim::Scenario& scenario,
                                       const core::Value& table, core::Diagnostics& diagnostics,
                                       const PlanOnNodes& replan) {
    return Resolver(job, scenario, table, diagnostics, replan).resolve();
}

core::Bytes checkpoint_bytes(const model::ModelGraph& graph, const schedule::Plan& plan) {
    schedule::Plan whole = plan;
    whole.layout = {};
    whole.sharding = schedule::Sharding::none;
    whole.shard_degree = 0;
    const schedule::StateFootprint state = schedule::state_footprint(
        graph, model::OperatorRange{0, std::int32_t(graph.operators.size())}, whole);
    return state.parameters + state.optimizer;
}

std::vector<std::optional<core::Seconds>> step_of_nodes(const sim::Scenario& scenario, core::Seconds full,
                                                        int least_nodes, core::Diagnostics& diagnostics) {
    const schedule::Plan& plan = scenario.file.plan;
    const int nodes = scenario.cluster.nodes;
    std::vector<std::optional<core::Seconds>> steps(std::size_t(nodes) + 1);
    steps[std::size_t(nodes)] = full;
    const int devices = scenario.cluster.ranks_per_node > 0 ? scenario.cluster.ranks_per_node
                                                            : scenario.cluster.instance.devices;
    const int replica = plan.layout.ranks() / plan.layout.data;
    const int all_micro_batches = plan.micro_batches * plan.layout.data;
    std::optional<core::Seconds> undisturbed;  // what the evaluation says of all nodes
    for (int n = nodes - 1; n >= least_nodes; --n) {
        schedule::Plan reduced = plan;
        reduced.layout.data = std::min(plan.layout.data, n * devices / replica);
        if (reduced.layout.data < 1) break;
        if (reduced.layout.data == plan.layout.data) {
            steps[std::size_t(n)] = full;  // the node that is gone was idle
            continue;
        }
        reduced.micro_batches = (all_micro_batches + reduced.layout.data - 1) / reduced.layout.data;
        if (reduced.shard_degree > 0 && reduced.layout.data % reduced.shard_degree != 0)
            reduced.shard_degree = 0;
        cluster::Cluster smaller = scenario.cluster;
        smaller.nodes = n;
        core::Diagnostics attempt;  // a form that the plan does not have is no error of the file
        schedule::check_plan(reduced, scenario.graph, smaller.device_count(), nullptr, attempt);
        if (attempt.has_errors()) continue;
        if (!undisturbed) {
            const auto whole = sim::evaluate(scenario.graph, scenario.cluster, plan, diagnostics);
            if (!whole) return steps;
            undisturbed = whole->step_time;
        }
        const std::optional<sim::Evaluation> evaluation =
            sim::evaluate(scenario.graph, smaller, reduced, attempt);
        if (!evaluation || !evaluation->fits) continue;
        // Of a given or disturbed step time the same share.
        steps[std::size_t(n)] = full * (evaluation->step_time / *undisturbed);
    }
    return steps;
}

std::vector<std::optional<core::Seconds>> replanned_step_of_nodes(const sim::Scenario& scenario,
                                                                  core::Seconds full, int least_nodes,
                                                                  const PlanOnNodes& replan,
                                                                  std::vector<std::string>& told,
                                                                  core::Diagnostics& diagnostics) {
    std::vector<std::optional<core::Seconds>> steps = step_of_nodes(scenario, full, least_nodes, diagnostics);
    const auto whole = sim::evaluate(scenario.graph, scenario.cluster, scenario.file.plan, diagnostics);
    if (!whole) return steps;
    const double share = full / whole->step_time;
    std::optional<ReducedPlan> best;  // of so many nodes and fewer
    for (int n = least_nodes; n < scenario.cluster.nodes; ++n) {
        if (std::optional<ReducedPlan> found = replan(n); found && (!best || found->step < best->step))
            best = std::move(found);
        std::optional<core::Seconds>& step = steps[std::size_t(n)];
        // Who has a better plan for fewer nodes has one for all of them: losing nodes is no gain.
        const bool is_clamped = best && best->step * share < full;
        const core::Seconds found = !best ? core::Seconds() : is_clamped ? full : best->step * share;
        if (!best || (step && *step <= found)) continue;
        told.push_back("on " + std::to_string(n) + " nodes a new plan, " + best->description + ", " +
                       core::format(found) + " a step; with fewer replicas " +
                       (step ? core::format(*step) : "none fits"));
        if (is_clamped)
            told.back() +=
                " (it is better than the job's own plan on all nodes: smplan why-not; counted as equal)";
        step = found;
    }
    return steps;
}

}  // namespace jobs
