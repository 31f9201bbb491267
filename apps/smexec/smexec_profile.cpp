#include "apps/smexec/smexec_profile.h"
#include "apps/smexec/smexec_join.h"

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <numeric>
#include <ostream>
#include <sstream>

#include <fmt/core.h>

#include "apps/command.h"
#include "apps/options.h"
#include "cluster/node.h"
#include "cluster/profile/load.h"
#include "cluster/profile/write.h"
#include "core/diagnostics.h"
#include "core/document.h"
#include "core/index/integers.h"
#include "exec/cpu/kernels.h"
#include "exec/cuda/device/device.h"
#include "exec/cuda/device/open.h"
#include "exec/cuda/make_backend.h"
#include "exec/cuda/profile/exchange_profile.h"
#include "exec/cuda/profile/profile.h"
#include "exec/profile/profile.h"
#include "exec/profile/profiled_program.h"
#include "exec/runtime/run.h"
#include "exec/transport/exchange.h"
#include "exec/transport/launch.h"
#include "exec/transport/link_profile.h"
#include "exec/transport/transport_profile.h"
#include "exec/transport/world.h"
#include "model/load.h"
#include "model/operators/cost.h"
#include "schedule/pass/lower.h"
#include "schedule/plan/explicit_order.h"
#include "schedule/plan/partition.h"

namespace apps {

namespace {

enum : exec::Tag { tag_begins = 23, tag_written = 24 };

const char* const help =
    "Usage: smexec profile --out FILE [--model MODEL [--seq-len S] [--micro-batch B] [--tensor-parallel T]] "
    "[--json]\n"
    "       mpirun --bind-to none -n 2 smexec profile --out FILE   (or torchrun, srun) with the links "
    "between these processes, by their transport\n"
    "       smexec profile --backend cuda --base INSTANCE --out FILE [--json]\n"
    "\n"
    "Measures this machine with all cores busy: matrix products over sizes, memory streams, exchange between "
    "cores; writes a hardware profile\n"
    "that smsim, smplan and smexec read (cluster.instance = \"FILE\"). Takes some fifteen seconds. The links "
    "are those between threads; beside them the profile says\n"
    "what passes between two processes of this machine over TCP and, where mpirun is found, MPI "
    "(cluster.process_transport = \"tcp\" takes those). Started as several\n"
    "processes it measures what lies between those instead: shared memory or the network under MPI, TCP "
    "connections under torchrun and srun, also between hosts.\n"
    "\n"
    "  --links-only    only what lies between the processes, nothing of the cores\n"
    "  --model MODEL   also the operators of a model (catalogue name, config.json or .toml), which then win "
    "over the curves\n"
    "  --backend cuda  the first GPU: matrix products by size and layout, attention, streaming kernels, "
    "launches, copies from and to the host\n"
    "                  mpirun, torchrun or srun start it on several: then NCCL too, per operation, size and "
    "group (--ranks-from, --join-limit, --interface and --token-file as of smexec)\n"
    "  --base INSTANCE the profile whose figures are replaced by measured ones (an instance with this GPU, "
    "e.g. p5en.48xlarge)\n"
    "\n"
    "Example:\n"
    "  smexec profile --out here.toml\n";

std::string today() {
    const std::time_t now = std::time(nullptr);
    std::tm calendar{};
    gmtime_r(&now, &calendar);
    return fmt::format("{:04}-{:02}-{:02}", calendar.tm_year + 1900, calendar.tm_mon + 1, calendar.tm_mday);
}

struct ModelRequest {
    schedule::Plan plan;
    std::optional<model::ModelGraph> graph;
};

// The whole model on every core, as few ranks as possible a copy.
schedule::Program program_on_all_cores(const schedule::Plan& plan, const model::ModelGraph& graph,
                                       int cores) {
    return exec::profiled_program(plan, std::max(1, cores / plan.layout.tensor), plan.layout.tensor, graph);
}

// Of several processes rank 0 alone writes, and its folder may be on its host alone: it tells the others
// whether that will work. good: go on.
int agree_on_output(exec::transport::World& world, const std::string& file, bool as_json, std::ostream& out,
                    std::ostream& err) {
    core::Diagnostics diagnostics;
    if (world.rank() == 0) check_output("--out", file, diagnostics);
    const int code = world.number_of_first(
        tag_begins, diagnostics.has_errors() ? show(diagnostics, as_json, out, err) : good);
    if (code != good) world.leave();
    return code;
}

// What a rank measures of the exchange among all, and among the first two.
std::vector<exec::cuda::ExchangeRate> exchange_rates(exec::transport::World& world,
                                                     exec::cuda::RankDevice& device) {
    std::vector<int> everyone(world.size());
    std::iota(everyone.begin(), everyone.end(), 0);
    std::vector<std::vector<int>> groups{everyone};
    if (world.size() > 2) groups.push_back({0, 1});
    return exec::cuda::profile_exchange(*device.machine, *device.exchange, world.rank(), groups,
                                        exec::cuda::profiled_sizes());
}

// `world`: several ranks measure their exchange too; rank 0 measures its GPU and writes.
int profile_on_gpu(const std::string& base, const std::string& file, bool as_json,
                   exec::transport::World* world, std::ostream& out, std::ostream& err) {
    core::Diagnostics diagnostics;
    std::optional<cluster::InstanceType> instance = cluster::load_instance(base, diagnostics);
    if (!instance || diagnostics.has_errors()) return show(diagnostics, as_json, out, err);
    exec::cuda::RankDevice device;
    std::vector<exec::cuda::ExchangeRate> exchanges;
    if (world) {
        device = exec::cuda::open_rank(world->communicator(), true, core::seconds(120));
        exchanges = exchange_rates(*world, device);
        exec::barrier(world->communicator(), 0);
        if (world->rank() != 0) return good;
    } else {
        device.machine = exec::cuda::open_machine(0);
    }
    const std::shared_ptr<exec::cuda::Machine> machine = device.machine;
    const exec::cuda::GpuProfile profile = exec::cuda::profile_gpu(*machine);
    exec::cuda::apply(profile, *instance, today());
    // Ranks that share a GPU exchange over sockets: that says nothing about the links.
    const bool is_exchange_true = world && world->ranks_here() <= exec::cuda::device_count();
    if (is_exchange_true) exec::cuda::apply(exchanges, world->host_count() == 1, *instance, today());
    core::write_file_atomically(file, cluster::instance_to_toml(*instance));
    if (as_json) {
        core::Value value = core::Value::table();
        value["out"] = file;
        value["device"] = machine->describe();
        value["copy_bandwidth_bytes_per_s"] = profile.copy_bandwidth.value;
        value["kernel_s"] = profile.kernel.value;
        value["launch_s"] = profile.launch.value;
        value["to_device_bytes_per_s"] = profile.to_device.value;
        value["to_host_bytes_per_s"] = profile.to_host.value;
        value["copy_latency_s"] = profile.copy_latency.value;
        value["rates"] = core::Value::array();
        for (const exec::cuda::GpuProfile::Rate& rate : profile.rates) {
            core::Value one = core::Value::table();
            one["what"] = rate.what;
            one["time_s"] = rate.time.value;
            if (rate.flops.value > 0) one["flops_per_s"] = (rate.flops / rate.time).value;
            else one["share_of_copy_bandwidth"] = rate.bytes / rate.time / profile.copy_bandwidth;
            value["rates"].append(one);
        }
        value["exchanges"] = core::Value::array();
        for (const exec::cuda::ExchangeRate& rate : exchanges) {
            core::Value one = core::Value::table();
            one["operation"] = rate.operation;
            one["ranks"] = rate.ranks;
            one["bytes"] = rate.bytes.value;
            one["time_s"] = rate.time.value;
            one["bus_bandwidth_bytes_per_s"] = rate.bus_bandwidth().value;
            value["exchanges"].append(one);
        }
        out << core::to_json(value) << '\n';
        return good;
    }
    out << machine->describe() << '\n';
    out << fmt::format("  copy on the device {}, to it {}, from it {}; small copy {}\n",
                       core::format(profile.copy_bandwidth), core::format(profile.to_device),
                       core::format(profile.to_host), core::format(profile.copy_latency));
    out << fmt::format("  smallest kernel {}, its launch {}\n", core::format(profile.kernel),
                       core::format(profile.launch));
    for (const exec::cuda::GpuProfile::Rate& rate : profile.rates)
        out << fmt::format("  {:<70} {:>9}  {}\n", rate.what, core::format(rate.time),
                           rate.flops.value > 0
                               ? core::format(rate.flops / rate.time)
                               : fmt::format("{} ({:.0f}% of a copy)", core::format(rate.bytes / rate.time),
                                             100 * (rate.bytes / rate.time / profile.copy_bandwidth)));
    for (const exec::cuda::ExchangeRate& rate : exchanges)
        out << fmt::format("  {:<14} of {:>9} over {} ranks {:>10}  {} on the bus\n", rate.operation,
                           core::format(rate.bytes), rate.ranks, core::format(rate.time),
                           core::format(rate.bus_bandwidth()));
    if (!exchanges.empty() && !is_exchange_true)
        out << "  ranks share a GPU: their exchange is not written into the profile\n";
    out << fmt::format("farthest from a copy: {}, {:.0f}%\nwrote {}\n", profile.worst_kernel,
                       100 * profile.worst_kernel_share, file);
    return good;
}

}  // namespace

int run_smexec_profile(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
    const bool as_json = wants_json(arguments);
    if (std::find(arguments.begin(), arguments.end(), "--help") != arguments.end()) {
        out << help;
        return good;
    }
    core::Diagnostics diagnostics;
    Options options(arguments,
                    {{"--backend", "--base", "--out", "--model", "--seq-len", "--micro-batch",
                      "--tensor-parallel", "--ranks-from", "--join-limit", "--interface", "--token-file"},
                     {"--json", "--help", "--links-only"}},
                    diagnostics);
    const JoinRequest joining{options.text("--interface"), options.text("--token-file"),
                              core::Seconds(options.real("--join-limit", 0.1, 1e6).value_or(30))};
    if (!options.text("--out"))
        options.error("--out", "--out is missing", "name the file to write: smexec profile --out here.toml");
    const bool on_gpu = options.choice("--backend", {"cpu", "cuda"}).value_or("cpu") == "cuda";
    if (on_gpu && !options.text("--base"))
        options.error("--base", "--backend cuda needs --base",
                      "name an instance with this GPU: smexec profile --backend cuda --base p5en.48xlarge "
                      "--out h200.toml");
    if (!on_gpu && options.text("--base"))
        options.error("--base", "--base is of --backend cuda", "leave it out");
    if (options.has("--links-only")) {
        const bool has_processes = exec::transport::find_launch(
                                       options.choice("--ranks-from", {"threads", "mpi", "env"}).value_or(""),
                                       exec::transport::environment_variable, diagnostics)
                                       .has_value();
        if (!has_processes && !diagnostics.has_errors())
            options.error("--links-only", "--links-only measures what lies between processes",
                          "start several: mpirun -n 2 smexec profile ...");
        if (options.text("--model"))
            options.error("--links-only", "--links-only and --model contradict each other", "leave one out");
        if (on_gpu) options.error("--links-only", "--links-only is not of --backend cuda", "leave it out");
    }
    if (on_gpu && options.text("--model"))
        options.error("--model",
                      "operators of a model are measured on a GPU by smexec PLAN.toml --backend cuda itself",
                      "leave it out");
    for (const std::string& stray : options.positional())
        options.error(stray, fmt::format("unexpected argument {}", core::in_quotes(stray)),
                      "smexec profile --help shows an example");
    ModelRequest request;
    request.plan.micro_batch = core::narrow<int>(options.integer("--micro-batch", 1, 1 << 20).value_or(1));
    request.plan.layout.tensor = core::narrow<int>(options.integer("--tensor-parallel", 1, 1024).value_or(1));
    request.plan.precision = {core::DataType::fp32, core::DataType::fp32, core::DataType::fp32, false};
    std::shared_ptr<const exec::DataSource> data;
    if (const std::optional<std::string> name = options.text("--model")) {
        model::LoadOptions load;
        load.sequence_length = options.integer("--seq-len", 1, 1 << 24);
        request.graph = model::load_model(*name, load, diagnostics, {}, "--model");
        if (request.graph) {
            exec::check_runnable(request.plan, *request.graph, diagnostics);
            if (const auto unsupported =
                    model::tensor_parallel_unsupported(*request.graph, request.plan.layout.tensor))
                diagnostics.error({}, "--tensor-parallel",
                                  fmt::format("{} cannot be split {} ways: {}", request.graph->name,
                                              request.plan.layout.tensor, unsupported->reason),
                                  "");
            data = exec::load_data("", "synthetic", 1, *request.graph, diagnostics);
        }
    }
    if (on_gpu && !diagnostics.has_errors()) {
        if (const exec::cuda::DeviceReport device = exec::cuda::probe_device(); !device.available)
            throw core::MachineError(exec::cuda::describe(device));
        const std::optional<exec::transport::Launch> launch = exec::transport::find_launch(
            options.choice("--ranks-from", {"threads", "mpi", "env"}).value_or(""),
            exec::transport::environment_variable, diagnostics);
        const bool is_alone = !launch || launch->size < 2;
        if (is_alone) check_output("--out", *options.text("--out"), diagnostics);
        if (diagnostics.has_errors()) return show(diagnostics, as_json, out, err);
        if (is_alone)
            return profile_on_gpu(*options.text("--base"), *options.text("--out"), as_json, nullptr, out,
                                  err);
        const auto join = join_options(*launch, joining, diagnostics, err);
        if (!join) return show(diagnostics, as_json, out, err);
        exec::transport::World world(*launch, core::seconds(120), *join);
        if (const int code = agree_on_output(world, *options.text("--out"), as_json, out, err); code != good)
            return code;
        std::ostringstream unheard;
        const bool is_first = world.rank() == 0;
        const int code = profile_on_gpu(*options.text("--base"), *options.text("--out"), as_json, &world,
                                        is_first ? out : unheard, is_first ? err : unheard);
        world.leave();
        return code;
    }
    std::optional<cluster::InstanceType> base = cluster::load_instance("local-cpu", diagnostics);
    if (!base || diagnostics.has_errors()) return show(diagnostics, as_json, out, err);

    const std::string ranks_from = options.choice("--ranks-from", {"threads", "mpi", "env"}).value_or("");
    const std::optional<exec::transport::Launch> launch =
        exec::transport::find_launch(ranks_from, exec::transport::environment_variable, diagnostics);
    if (!launch) check_not_joining(joining, "no processes are joined", diagnostics);
    if (!launch) check_output("--out", *options.text("--out"), diagnostics);
    if (diagnostics.has_errors()) return show(diagnostics, as_json, out, err);
    std::optional<exec::transport::World> world;
    exec::transport::LinkProfile links;
    if (launch) {
        const auto join = join_options(*launch, joining, diagnostics, err);
        if (!join) return show(diagnostics, as_json, out, err);
        world.emplace(*launch, core::seconds(60), *join);
        if (const int code = agree_on_output(*world, *options.text("--out"), as_json, out, err); code != good)
            return code;
        links = exec::transport::measure_links(*world);
        if (world->rank() != 0) {
            // The cores are rank 0's while it measures them.
            world->number_of_first(tag_written, good);
            world->leave();
            return good;
        }
    }
    std::string transport = "threads";
    std::vector<exec::transport::MeasuredTransport> others;
    cluster::InstanceType measured =
        options.has("--links-only") ? std::move(*base) : exec::profile_machine(std::move(*base), today());
    if (!world && measured.devices > 1) {
        others = exec::transport::measure_transports(
            {std::filesystem::read_symlink("/proc/self/exe").string(), "profile", "--links-only", "--out"},
            core::seconds(15));
        for (const exec::transport::MeasuredTransport& other : others) {
            if (other.failure) {
                measured.notes.push_back(
                    fmt::format("links over {} not measured: {}", other.name, *other.failure));
                continue;
            }
            measured.transports[other.name] = other.rate;
            measured.provenance["transport." + other.name] = {
                "measured by `smexec profile` between two processes of this machine: ring all-reduces of 8 B "
                "and 4 MiB",
                today(), "measured"};
        }
    }
    if (world) {
        transport = world->transport();
        measured = exec::transport::cluster_of(measured, links, *world, today()).instance;
        measured.notes.push_back(fmt::format("links over {} between {} processes on {} hosts", transport,
                                             world->size(), world->host_count()));
    }
    if (request.graph)
        measured.device.measured_operators =
            exec::profile_plan(program_on_all_cores(request.plan, *request.graph, measured.devices),
                               *request.graph, data)
                .operators;
    core::write_file_atomically(*options.text("--out"), cluster::instance_to_toml(measured));
    if (world) {
        world->number_of_first(tag_written, good);
        world->leave();
    }

    const cluster::DeviceSpec& device = measured.device;
    const double link = measured.links.empty() ? 0 : measured.links[0].effective().value;
    if (as_json) {
        core::Value value = core::Value::table();
        value["out"] = *options.text("--out");
        value["cores"] = measured.devices;
        value["instructions"] = exec::cpu::kernels().instruction_set;
        value["matrix_product_flops_per_s"] = device.peak.at(core::DataType::fp32).value;
        value["memory_bandwidth_bytes_per_s"] = device.memory_bandwidth.value;
        value["transport"] = transport;
        value["link_bandwidth_bytes_per_s"] = link;
        value["link_latency_s"] =
            measured.links.empty() ? 0 : 2 * measured.links[0].latency.value;  // a route passes two
        if (cluster::has_network(measured))
            value["network_bandwidth_bytes_per_s"] = measured.network_bandwidth.value;
        value["transports"] = core::Value::table();
        for (const auto& [name, rate] : measured.transports) {
            core::Value one = core::Value::table();
            one["bandwidth_bytes_per_s"] = rate.bandwidth.value;
            one["latency_s"] = rate.latency.value;
            value["transports"][name] = std::move(one);
        }
        value["kernel_launch_s"] = device.kernel_launch.value;
        value["measured_operators"] = device.measured_operators.size();
        out << core::to_json(value) << '\n';
        return good;
    }
    out << fmt::format("{} cores, {} kernels\n", measured.devices, exec::cpu::kernels().instruction_set);
    if (const auto curve = device.matrix_product.find(core::DataType::fp32);
        curve != device.matrix_product.end() && !options.has("--links-only"))
        for (const auto& point : curve->second.points)
            out << fmt::format("  matrix product of {:>9.3g} MFLOP  {}\n", point.flops.value / 1e6,
                               core::format(point.rate));
    out << fmt::format("  memory streams                     {} a core\n  from core to core, by {:<12} {}\n",
                       core::format(device.memory_bandwidth), transport,
                       core::format(core::BytesPerSecond(link)));
    for (const auto& [name, rate] : measured.transports)
        if (!world)
            out << fmt::format("  rank to rank by {:<18} {}, {}\n", name, core::format(rate.bandwidth),
                               core::format(rate.latency));
    for (const exec::transport::MeasuredTransport& other : others)
        if (other.failure)
            err << fmt::format("remark: links over {} not measured: {}\n", other.name, *other.failure);
    if (cluster::has_network(measured))
        out << fmt::format("  from host to host                  {}\n",
                           core::format(measured.network_bandwidth));
    if (!device.measured_operators.empty())
        out << fmt::format("  {} operators of {}\n", device.measured_operators.size(), request.graph->name);
    out << fmt::format("wrote {}\n", *options.text("--out"));
    return good;
}

}  // namespace apps
