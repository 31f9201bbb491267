#include "cluster/profile/profile_reader.h"

#include <algorithm>
#include <array>
#include <filesystem>

#include "cluster/build_topology.h"
#include "cluster/profile/load.h"
#include "cluster/profile/local_machine.h"
#include "cluster/profile/profile_device.h"
#include "cluster/profile/profile_topology.h"
#include "cluster/synthetic.h"
#include "core/diagnostics.h"
#include "core/document.h"
#include "core/index/integers.h"

namespace cluster {

namespace {

namespace fs = std::filesystem;

void read_schema(core::TableReader& reader) {
    std::int64_t schema = reader.required_integer("schema");
    if (reader.has("schema") && schema != profile_schema)
        reader.error("schema", "schema = " + std::to_string(schema) + " is not one this program reads",
                     "write schema = " + std::to_string(profile_schema));
}

std::vector<Price> read_prices(core::TableReader& reader, ProfileContext& context) {
    std::vector<Price> prices;
    const core::Value* array = reader.optional_array("price");
    if (!array) return prices;
    if (array->size() > 1000) {
        reader.error("price", std::to_string(array->size()) + " prices", "give at most 1000");
        return prices;
    }
    for (const core::Value& item : array->items()) {
        core::TableReader entry(item, "price[" + std::to_string(prices.size()) + "]", context.diagnostics);
        Price price;
        price.kind =
            entry.required_choice("kind", {"on-demand", "spot", "sagemaker", "reserved", "capacity-block"});
        price.region = entry.string("region", "");
        price.rate =
            core::dollars_per_hour(entry.required_real("usd_per_hour", {.least = 0, .greatest = 1e6}));
        price.date = entry.string("date", "");
        price.source = entry.string("source", "");
        if (!price.date.empty() && !is_date(price.date))
            entry.error("date", entry.path_of("date") + " = \"" + price.date + "\" is no date",
                        "write it as \"2026-07-20\", \"2026-07\" or \"2026\"");
        if (context.must_have_provenance && price.source.empty())
            entry.error("usd_per_hour", "a price without source", "add source = \"...\"");
        if (context.must_have_provenance && price.date.empty())
            entry.error("usd_per_hour", "a price without date", "add date = \"2026-07-20\": prices change");
        entry.finish();
        prices.push_back(std::move(price));
    }
    return prices;
}

// [spot]: held against the format here, read where it is needed (supply.h).
void check_spot(const core::Value& table, ProfileContext& context) {
    ProfileSection section(table, "spot", context);
    section.real("reclaimed_per_month_least", {.least = 0, .greatest = 1});
    section.real("reclaimed_per_month_most", {.least = 0, .greatest = 1});
    section.finish();
    // An InstanceType does not hold them, nor where they come from.
    for (const char* path : {"spot", "spot.reclaimed_per_month_least", "spot.reclaimed_per_month_most"})
        context.provenance.erase(path);
}

// [network]: figures of the node; returns the number of cards, 0 when the section is absent.
int read_network(const core::Value& table, InstanceType& instance, ProfileContext& context) {
    ProfileSection section(table, "network", context);
    instance.network_name = section.reader().required_string("name");
    const auto has = [&](const char* key) { return section.has(key); };
    static constexpr std::array figures = {"bandwidth",  "baseline",  "per_flow_limit", "latency",
                                           "efficiency", "gpudirect", "cards"};
    if (std::none_of(figures.begin(), figures.end(), has)) {
        // A name alone says how ranks of one node talk ("shared-memory"); there is no way to another node.
        section.finish();
        return 0;
    }
    instance.network_bandwidth = section.required_bytes_per_second("bandwidth");
    instance.network_baseline = section.bytes_per_second("baseline").value_or(instance.network_bandwidth);
    if (instance.network_baseline.value <= 0 && section.has("baseline"))
        section.reader().error("baseline", "network.baseline is zero",
                               "give the sustained rate, or leave it out where it equals bandwidth");
    if (instance.network_baseline > instance.network_bandwidth)
        section.reader().error("baseline", "network.baseline is above network.bandwidth",
                               "baseline is the sustained rate, bandwidth the most a burst reaches");
    instance.per_flow_limit = section.bytes_per_second("per_flow_limit").value_or(core::BytesPerSecond());
    if (!section.has("latency")) section.reader().required_seconds("latency");
    instance.network_latency = section.seconds("latency").value_or(core::Seconds());
    instance.network_efficiency = section.required_efficiency("efficiency");
    instance.has_gpudirect = section.boolean("gpudirect").value_or(false);
    int cards = core::narrow<int>(section.integer("cards", {.least = 1, .greatest = 256}).value_or(1));
    section.finish();
    return cards;
}

// [transport.NAME]: rank to rank of one node, by how ranks are joined.
void read_transports(const core::Value& table, InstanceType& instance, ProfileContext& context) {
    core::TableReader reader(table, "transport", context.diagnostics);
    for (const char* name : {"threads", "tcp", "mpi"})
        if (const core::Value* one = reader.optional_table(name)) {
            ProfileSection section(*one, std::string("transport.") + name, context);
            TransportRate& rate = instance.transports[name];
            rate.bandwidth = section.required_bytes_per_second("bandwidth");
            rate.latency = section.seconds("latency").value_or(core::Seconds());
            section.finish();
        }
    reader.finish();
}

void read_instance_section(const core::Value& table, InstanceType& instance,
                           std::optional<std::string>& device_name, ProfileContext& context) {
    ProfileSection section(table, "instance", context);
    const core::Value* devices = table.find("devices");
    if (devices && devices->is_string() && devices->string() == "cores") {
        section.figure("devices");
        section.reader().ignore("devices");
        instance.devices = std::min(probe_local_machine().cores, most_devices);
    } else {
        section.figure("devices");
        instance.devices = core::narrow<int>(
            section.reader().required_integer("devices", {.least = 1, .greatest = most_devices}));
    }
    const core::Value* memory = table.find("host_memory");
    if (memory && memory->is_string() && memory->string() == "machine") {
        section.figure("host_memory");
        section.reader().ignore("host_memory");
        instance.host_memory = probe_local_machine().host_memory;
    } else {
        instance.host_memory = section.bytes("host_memory").value_or(core::Bytes());
    }
    instance.host_memory_bandwidth =
        section.bytes_per_second("host_memory_bandwidth").value_or(core::BytesPerSecond());
    instance.virtual_cpus =
        core::narrow<int>(section.integer("virtual_cpus", {.least = 0, .greatest = 100000}).value_or(0));
    device_name = section.reader().optional_string("device");
    section.finish();
}

}  // namespace

std::optional<DeviceFile> read_device_file(const core::Value& document, const std::string& file,
                                           core::Diagnostics& diagnostics, bool must_have_provenance) {
    core::Diagnostics own;
    DeviceFile result;
    result.file = file;
    ProfileContext context{own, result.provenance, must_have_provenance};
    core::TableReader reader(document, "", own);
    read_schema(reader);
    result.aliases = reader.optional_strings("aliases").value_or(std::vector<std::string>{});
    result.notes = reader.optional_strings("notes").value_or(std::vector<std::string>{});
    if (const core::Value* device = reader.required_table("device"))
        result.device = read_device(*device, "device", context);
    reader.finish();
    diagnostics.append(own);
    if (own.has_errors()) return std::nullopt;
    return result;
}

std::optional<DeviceFile> find_device_file(const std::string& name, core::Diagnostics& diagnostics,
                                           const core::SourceLocation& referrer, const std::string& key) {
    std::vector<std::string> known;
    for (const std::string& directory : profile_directories()) {
        std::error_code failure;
        std::vector<std::string> files;
        for (const fs::directory_entry& entry : fs::directory_iterator(directory + "/devices", failure))
            if (entry.path().extension() == ".toml") files.push_back(entry.path().string());
        std::sort(files.begin(), files.end());
        // By file name first: only an alias needs the files opened.
        std::stable_partition(files.begin(), files.end(),
                              [&](const std::string& file) { return fs::path(file).stem() == name; });
        for (const std::string& file : files) {
            std::string stem = fs::path(file).stem().string();
            core::Diagnostics own;
            std::optional<core::Value> document = core::load_document(file, own, referrer, key);
            const core::Value* aliases = document ? document->find("aliases") : nullptr;
            bool is_alias = false;
            if (aliases && aliases->is_array())
                for (const core::Value& alias : aliases->items()) {
                    if (!alias.is_string()) continue;
                    known.push_back(alias.string());
                    is_alias = is_alias || alias.string() == name;
                }
            known.push_back(stem);
            if (stem != name && !is_alias) continue;
            diagnostics.append(own);
            if (!document) return std::nullopt;
            return read_device_file(*document, file, diagnostics);
        }
    }
    std::sort(known.begin(), known.end());
    known.erase(std::unique(known.begin(), known.end()), known.end());
    std::string near = core::did_you_mean(name, known);
    diagnostics.error(referrer, key, key + " = " + core::in_quotes(name) + " names no device",
                      !near.empty() ? "did you mean " + core::in_quotes(near) + "?"
                                    : "known: " + core::list_in_words(known));
    return std::nullopt;
}

std::optional<InstanceType> read_instance(const core::Value& document, const std::string& file,
                                          core::Diagnostics& diagnostics, bool must_have_provenance) {
    core::Diagnostics own;
    InstanceType instance;
    ProfileContext context{own, instance.provenance, must_have_provenance};
    core::TableReader reader(document, "", own);
    read_schema(reader);
    instance.name = reader.required_string("name");
    instance.provider = reader.string("provider", "");
    instance.notes = reader.optional_strings("notes").value_or(std::vector<std::string>{});
    instance.files.push_back(file);

    std::optional<std::string> device_name;
    const core::Value* section = reader.required_table("instance");
    if (section) read_instance_section(*section, instance, device_name, context);
    const core::Value* device = reader.optional_table("device");
    if (device) {
        std::optional<core::Bytes> share;
        if (instance.host_memory.value > 0 && instance.devices > 0)
            share = instance.host_memory / instance.devices;
        instance.device = read_device(*device, "device", context, share);
        if (device_name)
            own.error(section->location, "instance.device",
                      "instance.device = \"" + *device_name + "\" stands beside a [device] section",
                      "keep one of the two");
    } else if (device_name) {
        const core::Value* value = section->find("device");
        if (std::optional<DeviceFile> found =
                find_device_file(*device_name, own, value->location, "instance.device")) {
            instance.device = std::move(found->device);
            instance.provenance.merge(found->provenance);
            instance.notes.insert(instance.notes.end(), found->notes.begin(), found->notes.end());
            instance.files.push_back(found->file);
        }
    } else if (section) {
        own.error(section->location, "instance.device", "no device",
                  "name one: device = \"A100-SXM4-40GB\", or describe it in a [device] section");
    }
    int cards = 0;
    if (const core::Value* network = reader.optional_table("network"))
        cards = read_network(*network, instance, context);
    if (const core::Value* transports = reader.optional_table("transport"))
        read_transports(*transports, instance, context);
    instance.prices = read_prices(reader, context);
    if (const core::Value* spot = reader.optional_table("spot")) check_spot(*spot, context);
    const core::Value* topology = reader.required_table("topology");
    // A graph of a wrong number of devices would only repeat what is said already.
    if (topology && section && instance.devices > 0 && !own.has_errors())
        read_topology(*topology, instance, cards, context);
    else reader.ignore("topology");
    reader.finish();
    for (std::string& note : notes_of_assumptions(instance.provenance))
        instance.notes.push_back(std::move(note));
    diagnostics.append(own);
    if (own.has_errors()) return std::nullopt;
    return instance;
}

}  // namespace cluster
