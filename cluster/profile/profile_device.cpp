#include "cluster/profile/profile_device.h"

#include <algorithm>
#include <cmath>

#include "core/diagnostics.h"
#include "core/index/integers.h"

namespace cluster {

namespace {

constexpr std::size_t most_points = 4096;
constexpr std::size_t most_measured_operators = 100000;
constexpr std::size_t most_link_specs = 32;

std::vector<std::string> data_type_names() {
    std::vector<std::string> names;
    for (core::DataType type : {core::DataType::fp32, core::DataType::tf32, core::DataType::fp16,
                                core::DataType::bf16, core::DataType::fp8, core::DataType::int64})
        names.emplace_back(core::name_of(type));
    return names;
}

// points = [[flops, flops_per_second], ...], by growing work.
std::vector<MatrixProductCurve::Point> read_points(ProfileSection& section) {
    std::vector<MatrixProductCurve::Point> points;
    section.figure("points");
    const core::Value* array = section.reader().optional_array("points");
    if (!array) return points;
    if (array->size() > most_points) {
        section.reader().error("points", "a curve of " + std::to_string(array->size()) + " points",
                               "give at most " + std::to_string(most_points));
        return points;
    }
    for (const core::Value& item : array->items()) {
        const bool is_pair =
            item.is_array() && item.size() == 2 && item.items()[0].is_number() && item.items()[1].is_number();
        const double work = is_pair ? item.items()[0].number() : 0,
                     rate = is_pair ? item.items()[1].number() : 0;
        const bool is_good = std::isfinite(work) && std::isfinite(rate) && work > 0 && rate > 0 &&
                             (points.empty() || work > points.back().flops.value);
        if (!is_good) {
            section.reader().diagnostics().error(
                item.location, section.reader().path_of("points"),
                "a point that is not [flops, flops_per_second] with growing flops",
                "write positive numbers, for example [2.1e9, 7.5e12]");
            return points;
        }
        points.push_back({core::Flops(work), core::FlopsPerSecond(rate)});
    }
    return points;
}

void read_precision(const core::Value& table, core::DataType type, const std::string& path,
                    DeviceSpec& device, ProfileContext& context) {
    ProfileSection section(table, path, context);
    device.peak[type] = section.required_flops_per_second("peak");
    std::vector<MatrixProductCurve::Point> points = read_points(section);
    // A peak alone is a known precision whose achieved rate is unknown: no curve then.
    if (section.has("compute_efficiency") || section.has("memory_efficiency") || section.has("launch") ||
        !points.empty()) {
        MatrixProductCurve curve;
        curve.compute_efficiency = section.required_efficiency("compute_efficiency");
        curve.memory_efficiency = section.required_efficiency("memory_efficiency");
        if (!section.has("launch")) section.reader().required_seconds("launch");
        curve.launch = section.seconds("launch").value_or(core::Seconds());
        curve.points = std::move(points);
        device.matrix_product[type] = std::move(curve);
    }
    section.finish();
}

void read_measured_operators(ProfileSection& section, DeviceSpec& device, const std::string& path,
                             ProfileContext& context) {
    section.figure("measured_operator");
    const core::Value* array = section.reader().optional_array("measured_operator");
    if (!array) return;
    if (array->size() > most_measured_operators) {
        section.reader().error("measured_operator", std::to_string(array->size()) + " measured operators",
                               "give at most " + std::to_string(most_measured_operators));
        return;
    }
    for (const core::Value& item : array->items()) {
        core::TableReader reader(
            item, path + ".measured_operator[" + std::to_string(device.measured_operators.size()) + "]",
            context.diagnostics);
        MeasuredOperator measured;
        measured.signature = reader.required_string("signature");
        measured.forward = reader.required_seconds("forward");
        measured.backward_input = reader.optional_seconds("backward_input").value_or(core::Seconds());
        measured.backward_weight = reader.optional_seconds("backward_weight").value_or(core::Seconds());
        reader.finish();
        device.measured_operators.push_back(std::move(measured));
    }
}

}  // namespace

std::vector<LinkSpec> read_link_specs(const core::Value& table, const std::string& path,
                                      ProfileContext& context) {
    std::vector<LinkSpec> specs;
    if (!table.is_table()) return specs;
    if (table.size() > most_link_specs) {
        context.diagnostics.error(table.location, path,
                                  path + " defines " + std::to_string(table.size()) + " kinds of link",
                                  "define at most " + std::to_string(most_link_specs));
        return specs;
    }
    for (const auto& [name, value] : table.members()) {
        ProfileSection section(value, path + "." + name, context);
        LinkSpec spec;
        spec.name = name;
        std::string kind =
            section.reader().required_choice("kind", {"nvlink", "pcie", "host_interconnect", "memory"});
        for (LinkKind candidate :
             {LinkKind::nvlink, LinkKind::pcie, LinkKind::host_interconnect, LinkKind::memory})
            if (name_of(candidate) == kind) spec.kind = candidate;
        spec.bandwidth = section.required_bytes_per_second("bandwidth");
        spec.efficiency = section.efficiency("efficiency").value_or(1.0);
        spec.latency = section.seconds("latency").value_or(core::Seconds());
        spec.is_full_duplex = section.reader().boolean("full_duplex", true);
        spec.count = core::narrow<int>(section.integer("count", {.least = 1, .greatest = 64}).value_or(1));
        section.finish();
        specs.push_back(std::move(spec));
    }
    return specs;
}

DeviceSpec read_device(const core::Value& table, const std::string& path, ProfileContext& context,
                       std::optional<core::Bytes> shared_memory) {
    ProfileSection section(table, path, context);
    DeviceSpec device;
    device.name = section.reader().required_string("name");
    device.architecture = section.reader().string("architecture", "");
    const core::Value* memory = table.find("memory");
    if (shared_memory && memory && memory->is_string() && memory->string() == "share") {
        section.figure("memory");
        section.reader().ignore("memory");
        device.memory = *shared_memory;
    } else {
        device.memory = section.required_bytes("memory");
    }
    device.nominal_memory = section.bytes("nominal_memory").value_or(core::Bytes());
    device.memory_bandwidth = section.required_bytes_per_second("memory_bandwidth");
    device.memory_efficiency = section.required_efficiency("memory_efficiency");
    device.kernel_launch = section.seconds("kernel_launch").value_or(core::Seconds());
    device.host_dispatch = section.seconds("host_dispatch").value_or(core::Seconds());
    device.context_memory = section.bytes("context_memory").value_or(core::Bytes());
    device.first_communicator_memory = section.bytes("first_communicator_memory").value_or(core::Bytes());
    device.further_communicator_memory = section.bytes("further_communicator_memory").value_or(core::Bytes());
    device.fragmentation = section.real("fragmentation", {.least = 0, .greatest = 1}).value_or(0);
    device.clock_share = section.real("clock_share", {.least = 0.1, .greatest = 1}).value_or(1);
    device.multiprocessors =
        core::narrow<int>(section.integer("multiprocessors", {.least = 0, .greatest = 100000}).value_or(0));
    // Held against the format here, read where it is needed (supply.h): a DeviceSpec does not hold it.
    section.real("board_watts", {.least = 1, .greatest = 100000});
    context.provenance.erase(path + ".board_watts");
    device.has_concurrent_streams = section.reader().boolean("concurrent_streams", true);
    device.has_gpudirect = section.boolean("gpudirect").value_or(false);
    if (const core::Value* precisions = section.reader().required_table("precision")) {
        core::TableReader types(*precisions, path + ".precision", context.diagnostics);
        for (const std::string& name : data_type_names())
            if (const core::Value* precision = types.optional_table(name))
                read_precision(*precision, *core::data_type_named(name), path + ".precision." + name, device,
                               context);
        types.finish();
        if (device.peak.empty())
            types.error("", path + ".precision names no precision",
                        "add [" + path + ".precision.fp32] with peak = \"...TFLOP/s\"");
    }
    if (const core::Value* links = section.reader().optional_table("link"))
        device.links = read_link_specs(*links, path + ".link", context);
    read_measured_operators(section, device, path, context);
    section.finish();
    return device;
}

}  // namespace cluster
