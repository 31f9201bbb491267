#include "apps/smexec/smexec_job.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include <fmt/core.h>

#include "apps/command.h"
#include "cluster/profile/load.h"
#include "core/diagnostics.h"
#include "exec/checkpoint/checkpoint.h"
#include "exec/cuda/device/device.h"
#include "exec/cuda/profile/profile.h"
#include "exec/cuda/runnable.h"
#include "exec/data/shuffled.h"
#include "exec/profile/profile.h"
#include "exec/runtime/run.h"
#include "exec/transport/exchange.h"
#include "exec/transport/link_profile.h"
#include "model/operators/fp8_products.h"
#include "planner/order/plan_order.h"
#include "schedule/pass/lower.h"
#include "schedule/pipeline/registry.h"
#include "schedule/plan/explicit_order.h"
#include "schedule/plan/planned_graph.h"
#include "schedule/program/exchange_signature.h"
#include "schedule/verify.h"
#include "sim/evaluate.h"

namespace apps {

namespace {

enum : exec::Tag { tag_agreement = 16, tag_verdict = 17 };

std::string beside_plan(const schedule::PlanFile& file, const std::string& name) {
    const std::filesystem::path path(name);
    return name.empty() || path.is_absolute()
               ? name
               : (std::filesystem::path(file.path).parent_path() / path).string();
}

// Of a key of [training], or of the option that takes its place.
core::SourceLocation place_of(const std::optional<std::string>& option, const ExecutionRequest& request,
                              const core::Value& document, const char* key) {
    if (option) return {"command line", 0, 0};
    const core::Value* training = document.find("training");
    const core::Value* value = training ? training->find(key) : nullptr;
    return value ? value->location : core::SourceLocation{request.plan, 0, 0};
}

std::shared_ptr<const exec::DataSource> load_training_data(const ExecutionRequest& request,
                                                           const core::Value& document,
                                                           const sim::Scenario& scenario,
                                                           core::Diagnostics& diagnostics) {
    const schedule::Training& training = scenario.file.training;
    const core::SourceLocation place = place_of(request.data, request, document, "data");
    std::shared_ptr<const exec::DataSource> data = exec::load_data(
        request.data ? *request.data : beside_plan(scenario.file, training.data),
        request.data ? "" : training.data_format, training.seed, scenario.graph, diagnostics, place);
    if (!data || !training.shuffle_seed) return data;
    if (data->samples()) return exec::shuffled(data, *training.shuffle_seed);
    diagnostics.error(place_of(std::nullopt, request, document, "shuffle_seed"), "training.shuffle_seed",
                      fmt::format("{} has no order that could be shuffled", data->describe()),
                      "leave out shuffle_seed, or name a file with data");
    return nullptr;
}

// Held-out data that a plan or the command line names.
exec::EvaluationOptions load_evaluation(const ExecutionRequest& request, const core::Value& document,
                                        const sim::Scenario& scenario, bool trains,
                                        core::Diagnostics& diagnostics) {
    const schedule::Training& training = scenario.file.training;
    exec::EvaluationOptions result;
    if (!request.eval_data && training.eval_data.empty() && training.eval_data_format.empty()) {
        if (request.eval_every || request.eval_batches)
            diagnostics.error({}, request.eval_every ? "--eval-every" : "--eval-batches",
                              "there is no held-out data to evaluate on", "add --eval-data FILE");
        return result;
    }
    const core::SourceLocation place = place_of(request.eval_data, request, document, "eval_data");
    const auto refuse = [&](const std::string& message, const std::string& hint) {
        diagnostics.error(place, "training.eval_data", message, hint);
    };
    if (request.on_gpu)
        refuse("--backend cuda does not evaluate between steps",
               "evaluate a checkpoint with a plan of schedule = \"forward-only\" and --data, or train on the "
               "CPU");
    if (!trains)
        refuse("the plan trains nothing between whose steps it could evaluate",
               "a plan that only evaluates takes its data by data or --data");
    if (diagnostics.has_errors()) return result;
    // Synthetic samples of another seed than the training's.
    constexpr std::uint64_t held_out = 0x68656C64;
    std::shared_ptr<const exec::DataSource> data = exec::load_data(
        request.eval_data ? *request.eval_data : beside_plan(scenario.file, training.eval_data),
        request.eval_data ? "" : training.eval_data_format, training.seed ^ held_out, scenario.graph,
        diagnostics, place, "training.eval_data");
    if (!data) return result;
    const std::int64_t batch = scenario.file.plan.global_batch();
    const std::optional<std::int64_t> samples = data->samples();
    std::int64_t batches = request.eval_batches.value_or(training.eval_batches);
    if (batches == 0 && !samples)
        refuse(fmt::format("{} never ends, so it cannot be evaluated once as a whole", data->describe()),
               "say on how many global batches with eval_batches");
    if (batches == 0 && samples) batches = std::max<std::int64_t>(1, *samples / batch);
    if (samples && batches * batch > *samples)
        refuse(fmt::format("{} has {} samples, evaluation takes {} batches of {}", data->describe(), *samples,
                           batches, batch),
               "give more held-out data, or less eval_batches or a smaller batch");
    return {std::move(data), static_cast<int>(request.eval_every.value_or(training.eval_every)),
            static_cast<int>(batches)};
}

// What must be equal on all ranks, one thing a line: "what<TAB>value".
std::string identity_of(const ExecutionJob& job) {
    // The order is that of what explains most: another model makes another program.
    return fmt::format(
        "version\t{}\nmodel\t{}\nprogram\t{}\nseed\t{}\nsteps\t{}\ndata\t{}\ninitial weights\t{}\n"
        "learning rate\t{}\nheld-out data\t{}\nfolders of checkpoints\t{}\nfirst step\t{}\n",
        version, job.program.model_hash, schedule::hash_of(job.program), job.scenario.file.training.seed,
        job.steps, job.data->identity(), job.initial ? job.initial->identity() : "seeded",
        job.learning_rate.describe(),
        job.evaluation.data ? fmt::format("{} batches of {}, every {} steps", job.evaluation.batches,
                                          job.evaluation.data->identity(), job.evaluation.every)
                            : "none",
        job.host_folders ? fmt::format("{}, {} copies", job.host_folders->count(), job.host_folders->copies)
                         : "shared",
        job.first_step);
}

// The first line that differs, in words; empty when none does.
std::string difference(const std::string& own, const std::string& other) {
    std::size_t a = 0, b = 0;
    while (a < own.size() && b < other.size()) {
        const std::size_t a_end = own.find('\n', a), b_end = other.find('\n', b);
        const std::string own_line = own.substr(a, a_end - a), other_line = other.substr(b, b_end - b);
        if (own_line != other_line) {
            const std::size_t tab = own_line.find('\t');
            return fmt::format("{} {} instead of {}", own_line.substr(0, tab),
                               other_line.substr(other_line.find('\t') + 1), own_line.substr(tab + 1));
        }
        a = a_end + 1;
        b = b_end + 1;
    }
    return own == other ? "" : "another version of this program";
}

// May this run write into the folder of --checkpoint? Asked before hours of training, not after.
void check_folder(const ExecutionRequest& request, bool only_evaluates, ExecutionJob& job,
                  core::Diagnostics& diagnostics) {
    if (request.checkpoint.empty()) return;
    if (only_evaluates) {
        job.remarks.push_back(request.resumes ? "evaluation of a checkpoint: none is written"
                                              : "evaluation of initial parameters: no checkpoint is written; "
                                                "--resume evaluates the newest one");
        return;
    }
    if (const auto failure = exec::folder_failure(request.checkpoint))
        diagnostics.error({}, "--checkpoint",
                          fmt::format("--checkpoint {}: no checkpoints can be written there: {}",
                                      core::in_quotes(request.checkpoint), *failure),
                          "name a folder that you may write");
}

// Operators are measured as they run, conversions included; the rate of products in bf16 and fp8 is that of
// fp32, in which they are computed.
void emulate(ExecutionJob& job, core::DataType type) {
    cluster::DeviceSpec& device = job.here.instance.device;
    if (device.peak.contains(type) || !device.peak.contains(core::DataType::fp32)) return;
    device.peak[type] = device.peak.at(core::DataType::fp32);
    if (const auto curve = device.matrix_product.find(core::DataType::fp32);
        curve != device.matrix_product.end())
        device.matrix_product[type] = curve->second;
    job.remarks.push_back(
        type == core::DataType::fp8
            ? "fp8 is emulated: what linear layers multiply is rounded to it, arithmetic is in fp32"
            : fmt::format("{} is emulated: arrays are stored in 16 bits, arithmetic is in fp32",
                          core::name_of(type)));
}

}  // namespace

bool lower_plan(sim::Scenario& scenario, const cluster::Cluster& here, schedule::Program& program,
                std::vector<std::string>& remarks, core::Diagnostics& diagnostics) {
    schedule::Plan& plan = scenario.file.plan;
    if (plan.layout.spreads_experts_over_tensor())
        scenario.graph = *schedule::PlannedGraph(plan, scenario.graph);
    const model::ModelGraph& graph = scenario.graph;
    if (plan.partition.first_units.empty())
        if (std::optional<schedule::Partition> partition =
                sim::complete_partition(plan, graph, scenario.cluster))
            plan.partition = std::move(*partition);
    if (schedule::is_searched_order(plan.schedule)) {
        std::optional<planner::OrderedPlan> ordered =
            planner::with_searched_order(graph, here, plan, diagnostics);
        if (!ordered) return false;
        plan = std::move(ordered->plan);
        remarks.push_back(std::move(ordered->explanation));
    }
    const std::optional<schedule::Schedule> order = schedule::make_schedule(plan, diagnostics);
    if (!order) return false;
    program =
        schedule::lower(plan, graph, *order, {.micro_batches = 0, .has_optimizer = !order->is_forward_only});
    const std::vector<schedule::Violation> violations = schedule::verify(program);
    core::require(violations.empty(), "lowering makes programs that verify");
    return true;
}

std::optional<ExecutionJob> load_job(const ExecutionRequest& request, int processes,
                                     core::Diagnostics& diagnostics) {
    const std::optional<core::Value> document = sim::load_scenario_document(request.plan, diagnostics);
    if (!document) return std::nullopt;
    std::optional<sim::Scenario> scenario =
        sim::read_scenario(*document, request.plan, diagnostics, !request.on_gpu);
    if (!scenario) return std::nullopt;
    ExecutionJob job;
    job.scenario = std::move(*scenario);
    schedule::Plan& plan = job.scenario.file.plan;
    const model::ModelGraph& graph = job.scenario.graph;
    const schedule::Training& training = job.scenario.file.training;
    if (request.on_gpu) exec::cuda::check_runnable(plan, graph, exec::cuda::probe_device(), diagnostics);
    else exec::check_runnable(plan, graph, diagnostics);
    job.data = load_training_data(request, *document, job.scenario, diagnostics);
    job.steps = static_cast<int>(request.steps.value_or(training.steps));
    job.learning_rate = {exec::learning_rate_kind(request.learning_rate), request.warmup_steps, job.steps};
    if (request.init) job.initial = exec::InitialWeights::open(*request.init, graph, diagnostics);
    if (job.initial) job.remarks.push_back("training begins with " + job.initial->describe());
    job.here = job.scenario.cluster;
    const bool is_for_cpu = job.here.instance.device.architecture == "cpu";
    if (request.on_gpu && is_for_cpu)
        diagnostics.error({request.plan, 0, 0}, "cluster.instance",
                          fmt::format("the plan is for {}, which has no GPU", job.here.instance.name),
                          "name an instance with the GPU of this machine, or leave out --backend cuda");
    if (!request.on_gpu && !is_for_cpu) {
        job.remarks.push_back(fmt::format("the plan is for {}; it is predicted for and run on local-cpu",
                                          job.here.instance.name));
        if (std::optional<cluster::InstanceType> local = cluster::load_instance("local-cpu", diagnostics)) {
            job.here.instance = std::move(*local);
            job.here.nodes = 1;
        }
    }
    const bool is_in_fp8 = plan.precision.compute == core::DataType::fp8;
    if (!request.on_gpu && (is_in_fp8 || plan.precision.compute == core::DataType::bf16))
        emulate(job, core::DataType::bf16);
    if (!request.on_gpu && plan.precision.compute == core::DataType::fp16) emulate(job, core::DataType::fp16);
    if (!request.on_gpu && is_in_fp8) emulate(job, core::DataType::fp8);
    if (is_in_fp8) job.remarks.push_back(model::fp8_summary(graph, plan.cost_context()));
    const schedule::PipelineSchedule* const chosen = schedule::find_pipeline_schedule(plan.schedule);
    const bool only_evaluates = chosen && chosen->is_forward_only;
    check_folder(request, only_evaluates, job, diagnostics);
    job.evaluation = load_evaluation(request, *document, job.scenario, !only_evaluates, diagnostics);
    if (job.steps == 0 && only_evaluates)
        diagnostics.error({}, "--steps", "a plan that only evaluates writes no checkpoint of step 0",
                          "give a plan that trains, or perform a step");
    if (processes > 0 && processes != plan.layout.ranks())
        diagnostics.error({request.plan, 0, 0}, "plan",
                          fmt::format("the plan has {} ranks, but {} processes were started",
                                      plan.layout.ranks(), processes),
                          fmt::format("start {} processes, for example mpirun -n {}", plan.layout.ranks(),
                                      plan.layout.ranks()));
    if (diagnostics.has_errors()) return std::nullopt;
    if (!lower_plan(job.scenario, job.here, job.program, job.remarks, diagnostics)) return std::nullopt;
    return job;
}

std::string too_large(const ExecutionJob& job) {
    core::Bytes held;
    for (const std::int32_t c : job.program.class_of_rank)
        for (const schedule::Buffer& buffer : job.program.classes[c].buffers)
            if (buffer.is_persistent) held += buffer.bytes;
    const core::Bytes memory = job.here.instance.host_memory * static_cast<double>(job.here.nodes);
    if (held <= memory) return {};
    return fmt::format(
        "parameters, gradients and optimizer state of {} ranks take {}, {} has {}",
        job.program.class_of_rank.size(), core::format(held),
        job.here.nodes == 1 ? "this machine" : fmt::format("the cluster of {} machines", job.here.nodes),
        core::format(memory));
}

bool agree(exec::transport::World& world, const std::optional<ExecutionJob>& job,
           core::Diagnostics& diagnostics) {
    exec::transport::ProcessCommunicator& communicator = world.communicator();
    const std::string own = job ? "+" + identity_of(*job) : "-" + core::format(diagnostics);
    const std::vector<std::string> all = exec::gather_texts(communicator, tag_agreement, own);
    if (world.rank() == 0 && job)
        for (std::size_t r = 1; r < all.size(); ++r) {
            const std::string who = fmt::format("rank {} on {}", r, world.hosts()[r]);
            if (all[r].starts_with('-')) {
                diagnostics.error({}, "--ranks-from",
                                  fmt::format("{} cannot start:\n{}", who, all[r].substr(1)),
                                  "the plan and its files must be the same on every host");
                break;
            }
            const std::string differs = difference(own.substr(1), all[r].substr(1));
            if (differs.empty()) continue;
            diagnostics.error({}, "--ranks-from",
                              fmt::format("{} would run another training than rank 0: {}", who, differs),
                              "start every rank with the same program, plan, options and data");
            break;
        }
    return exec::broadcast_text(communicator, tag_verdict, diagnostics.has_errors() ? "no" : "yes") == "yes";
}

int ranks_per_node(const exec::transport::World& world) {
    std::map<std::string, int> ranks;
    for (const std::string& host : world.hosts()) ++ranks[host];
    const bool is_even = std::all_of(ranks.begin(), ranks.end(),
                                     [&](const auto& host) { return host.second == ranks.begin()->second; });
    return is_even ? world.ranks_here() : world.size();
}

void measure_here(ExecutionJob& job, exec::transport::World& world) {
    const bool has_network = world.host_count() > 1;
    if (has_network) world.communicator().set_spins(false);  // as in the run
    job.exchanges = exec::time_exchanges(world.communicator(), job.program,
                                         {has_network ? ranks_per_node(world) : 0, true, core::seconds(3)});
    if (has_network && ranks_per_node(world) == world.size()) {
        job.remarks.push_back(
            "ranks are not spread evenly over hosts: exchanges are predicted as measured, what was not "
            "measured as if all shared one");
        return;
    }
    const exec::transport::LinkProfile links = exec::transport::measure_links(world);
    const int cores = links.cores_a_machine;
    job.here = exec::transport::cluster_of(job.here.instance, links, world, "");
    if (links.ranks_a_machine > cores) {
        job.ranks_a_core = static_cast<double>(links.ranks_a_machine) / cores;
        job.remarks.push_back(
            fmt::format("{} ranks share {} cores of one machine: computing is predicted {:.3g} times as slow",
                        links.ranks_a_machine, cores, job.ranks_a_core));
    }
    if (world.host_count() > 1)
        job.remarks.push_back(fmt::format("{} hosts of {} ranks, {} between them", world.host_count(),
                                          world.ranks_here(), core::format(links.between_bandwidth)));
}

std::optional<sim::Evaluation> predict(ExecutionJob& job, const ExecutionRequest& request,
                                       core::Diagnostics& diagnostics) {
    if (request.on_gpu) {
        exec::cuda::apply(
            exec::cuda::profile_plan(job.plan(), job.scenario.graph, job.data, request.measures_products),
            job.here.instance);
    } else {
        exec::PlanProfile profile =
            exec::profile_plan(job.program, job.scenario.graph, job.data, job.exchanges.empty());
        if (!job.exchanges.empty()) profile.exchanges = job.exchanges;
        job.probe = profile.probe;
        job.profile_low = profile.low_share;
        job.profile_high = profile.high_share;
        const cluster::InstanceType measured_links = job.here.instance;
        exec::apply(profile, job.here.instance);
        for (cluster::MeasuredOperator& entry : job.here.instance.device.measured_operators) {
            if (schedule::is_exchange(entry.signature)) continue;  // all ranks were there
            entry.forward *= job.ranks_a_core;
            entry.backward_input *= job.ranks_a_core;
            entry.backward_weight *= job.ranks_a_core;
        }
        job.here.instance.device.memory_bandwidth =
            job.here.instance.device.memory_bandwidth / job.ranks_a_core;
        if (measured_links.provenance.contains("topology") &&
            measured_links.provenance.at("topology").source.starts_with("measured over")) {
            job.here.instance.links = measured_links.links;
            cluster::prepare_routes(job.here.instance);
        }
    }
    sim::EvaluateOptions options;
    // Those are GPUs' and data-centre networks'; here both were measured at work.
    if (!request.on_gpu) options.constants.overlap_loss = options.constants.decay_per_doubling = 0;
    options.keeps_timeline = true;
    std::optional<sim::Evaluation> predicted =
        sim::evaluate(job.scenario.graph, job.here, job.plan(), diagnostics, options);
    if (predicted && !predicted->program) predicted.reset();
    core::require(!predicted || schedule::hash_of(*predicted->program) == schedule::hash_of(job.program),
                  "what is predicted is what runs");
    return predicted;
}

}  // namespace apps
