#include "apps/smexec_profile.h"

#include <algorithm>
#include <ctime>
#include <ostream>

#include <fmt/core.h>

#include "apps/command.h"
#include "apps/options.h"
#include "cluster/load.h"
#include "cluster/write.h"
#include "core/document.h"
#include "exec/cpu/kernels.h"
#include "exec/cuda/device/device.h"
#include "exec/cuda/device/open.h"
#include "exec/cuda/profile.h"
#include "exec/exchange.h"
#include "exec/process/launch.h"
#include "exec/process/link_profile.h"
#include "exec/profile.h"
#include "exec/run.h"
#include "model/load.h"
#include "schedule/explicit_order.h"
#include "schedule/lower.h"
#include "schedule/partition.h"

namespace apps {

namespace {

enum : exec::Tag { tag_written = 24 };

const char* const help =
    "Usage: smexec profile --out FILE [--model MODEL [--seq-len S] [--micro-batch B] [--tensor-parallel T]] [--json]\n"
    "       mpirun --bind-to none -n 2 smexec profile --out FILE   (or torchrun, srun) with the links between these processes, by their transport\n"
    "       smexec profile --backend cuda --base INSTANCE --out FILE [--json]\n"
    "\n"
    "Measures this machine with all cores busy: matrix products over sizes, memory streams, exchange between cores; writes a hardware profile\n"
    "that smsim, smplan and smexec read (cluster.instance = \"FILE\"). Takes some ten seconds. Ranks are threads; started as several processes it measures what\n"
    "lies between those instead: shared memory or the network under MPI, TCP connections under torchrun and srun, also between hosts.\n"
    "\n"
    "  --model MODEL   also the operators of a model (catalogue name, config.json or .toml), which then win over the curves\n"
    "  --backend cuda  the first GPU: matrix products by size and layout, attention, streaming kernels, launches, copies from and to the host\n"
    "  --base INSTANCE the profile whose figures are replaced by measured ones (an instance with this GPU, e.g. p5en.48xlarge)\n"
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
schedule::Program program_on_all_cores(schedule::Plan plan, const model::ModelGraph& graph, int cores) {
    plan.layout.data = std::max(1, cores / plan.layout.tensor);
    plan.micro_batches = 2;  // the second one adds to gradients that are there
    core::Diagnostics diagnostics;
    const std::optional<schedule::Partition> partition = schedule::complete_partition(plan, graph);
    core::require(partition.has_value(), "one stage always has a partition");
    plan.partition = *partition;
    const std::optional<schedule::Schedule> order = schedule::make_schedule(plan, diagnostics);
    core::require(order.has_value(), "one stage always has a schedule");
    return schedule::lower(plan, graph, *order);
}

int profile_on_gpu(const std::string& base, const std::string& file, bool as_json, std::ostream& out, std::ostream& err) {
    core::Diagnostics diagnostics;
    std::optional<cluster::InstanceType> instance = cluster::load_instance(base, diagnostics);
    if (!instance || diagnostics.has_errors()) return show(diagnostics, as_json, out, err);
    const std::shared_ptr<exec::cuda::Machine> machine = exec::cuda::open_machine(0);
    const exec::cuda::GpuProfile profile = exec::cuda::profile_gpu(*machine);
    exec::cuda::apply(profile, *instance, today());
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
        out << core::to_json(value) << '\n';
        return good;
    }
    out << machine->describe() << '\n';
    out << fmt::format("  copy on the device {}, to it {}, from it {}; small copy {}\n", core::format(profile.copy_bandwidth), core::format(profile.to_device),
                       core::format(profile.to_host), core::format(profile.copy_latency));
    out << fmt::format("  smallest kernel {}, its launch {}\n", core::format(profile.kernel), core::format(profile.launch));
    for (const exec::cuda::GpuProfile::Rate& rate : profile.rates)
        out << fmt::format("  {:<70} {:>9}  {}\n", rate.what, core::format(rate.time),
                           rate.flops.value > 0 ? core::format(rate.flops / rate.time)
                                                : fmt::format("{} ({:.0f}% of a copy)", core::format(rate.bytes / rate.time),
                                                              100 * (rate.bytes / rate.time / profile.copy_bandwidth)));
    out << fmt::format("farthest from a copy: {}, {:.0f}%\nwritten to {}\n", profile.worst_kernel, 100 * profile.worst_kernel_share, file);
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
    Options options(arguments, {{"--backend", "--base", "--out", "--model", "--seq-len", "--micro-batch", "--tensor-parallel", "--ranks-from"}, {"--json", "--help"}}, diagnostics);
    if (!options.text("--out")) options.error("--out", "--out is missing", "name the file to write: smexec profile --out here.toml");
    const bool on_gpu = options.choice("--backend", {"cpu", "cuda"}).value_or("cpu") == "cuda";
    if (on_gpu && !options.text("--base")) options.error("--base", "--backend cuda needs --base", "name an instance with this GPU: smexec profile --backend cuda --base p5en.48xlarge --out h200.toml");
    if (!on_gpu && options.text("--base")) options.error("--base", "--base is of --backend cuda", "leave it out");
    if (on_gpu && options.text("--model")) options.error("--model", "operators of a model are measured on a GPU by smexec PLAN.toml --backend cuda itself", "leave it out");
    if (!options.positional().empty())
        diagnostics.error({}, "", fmt::format("{} is no option", core::in_quotes(options.positional()[0])), "smexec profile --help shows an example");
    ModelRequest request;
    request.plan.micro_batch = static_cast<int>(options.integer("--micro-batch", 1, 1 << 20).value_or(1));
    request.plan.layout.tensor = static_cast<int>(options.integer("--tensor-parallel", 1, 1024).value_or(1));
    request.plan.precision = {core::DataType::fp32, core::DataType::fp32, core::DataType::fp32, false};
    std::shared_ptr<const exec::DataSource> data;
    if (const std::optional<std::string> name = options.text("--model")) {
        model::LoadOptions load;
        load.sequence_length = options.integer("--seq-len", 1, 1 << 24);
        request.graph = model::load_model(*name, load, diagnostics, {}, "--model");
        if (request.graph) {
            exec::check_runnable(request.plan, *request.graph, diagnostics);
            const std::string obstacle = request.plan.layout.tensor > 1 ? model::tensor_parallel_obstacle(*request.graph, request.plan.layout.tensor) : "";
            if (!obstacle.empty())
                diagnostics.error({}, "--tensor-parallel",
                                  fmt::format("{} cannot be split {} ways: {}", request.graph->name, request.plan.layout.tensor, obstacle), "");
            data = exec::load_data("", "synthetic", 1, *request.graph, diagnostics);
        }
    }
    if (on_gpu && !diagnostics.has_errors()) return profile_on_gpu(*options.text("--base"), *options.text("--out"), as_json, out, err);
    std::optional<cluster::InstanceType> base = cluster::load_instance("local-cpu", diagnostics);
    if (!base || diagnostics.has_errors()) return show(diagnostics, as_json, out, err);

    const std::string ranks_from = options.choice("--ranks-from", {"threads", "mpi", "env"}).value_or("");
    const std::optional<exec::process::Launch> launch = exec::process::find_launch(ranks_from, exec::process::environment_variable, diagnostics);
    if (diagnostics.has_errors()) return show(diagnostics, as_json, out, err);
    std::optional<exec::process::World> world;
    exec::process::LinkProfile links;
    if (launch) {
        world.emplace(*launch, core::seconds(60));
        links = exec::process::measure_links(*world);
        if (world->rank() != 0) {
            // The cores are rank 0's while it measures them.
            exec::broadcast_text(world->communicator(), tag_written, "");
            world->leave();
            return good;
        }
    }
    std::string transport = "threads";
    cluster::InstanceType measured = exec::profile_machine(std::move(*base), today());
    if (world) {
        transport = world->transport();
        measured = exec::process::cluster_of(measured, links, *world, today()).instance;
        measured.notes.push_back(fmt::format("links over {} between {} processes on {} hosts", transport, world->size(), world->host_count()));
    }
    if (request.graph) measured.device.measured_operators = exec::profile_plan(program_on_all_cores(request.plan, *request.graph, measured.devices), *request.graph, data).operators;
    core::write_file_atomically(*options.text("--out"), cluster::instance_to_toml(measured));
    if (world) {
        exec::broadcast_text(world->communicator(), tag_written, "");
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
        value["link_latency_s"] = measured.links.empty() ? 0 : 2 * measured.links[0].latency.value;  // a route passes two
        if (measured.network_bandwidth.value > 0) value["network_bandwidth_bytes_per_s"] = measured.network_bandwidth.value;
        value["kernel_launch_s"] = device.kernel_launch.value;
        value["measured_operators"] = device.measured_operators.size();
        out << core::to_json(value) << '\n';
        return good;
    }
    out << fmt::format("{} cores, {} kernels\n", measured.devices, exec::cpu::kernels().instruction_set);
    for (const auto& point : device.matrix_product.at(core::DataType::fp32).points)
        out << fmt::format("  matrix product of {:>9.3g} MFLOP  {}\n", point.flops.value / 1e6, core::format(point.rate));
    out << fmt::format("  memory streams                     {} a core\n  from core to core, by {:<12} {}\n", core::format(device.memory_bandwidth), transport,
                       core::format(core::BytesPerSecond(link)));
    if (measured.network_bandwidth.value > 0) out << fmt::format("  from host to host                  {}\n", core::format(measured.network_bandwidth));
    if (!device.measured_operators.empty()) out << fmt::format("  {} operators of {}\n", device.measured_operators.size(), request.graph->name);
    out << fmt::format("written to {}\n", *options.text("--out"));
    return good;
}

}  // namespace apps
