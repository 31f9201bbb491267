// Clusters that no profile describes: a device of the catalogue, a way to join it inside a node, and a
// network between nodes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cluster/topology.h"
#include "core/diagnostics_fwd.h"

namespace cluster {

// How the devices of a node are joined.
//   nvswitch          every device on one switch with all its NVLinks
//   hybrid-cube-mesh  the 8-V100 mesh (4 devices: one half of it)
//   full-mesh         every pair joined directly, the device's NVLinks dealt out equally (4-GPU quads)
//   pcie              two devices on a PCIe switch, switches on two sockets
//   host              every device straight on its socket
struct NodeShape {
    std::string device;  // name or alias of a file in hardware_profiles/devices
    int devices_per_node = 8;
    std::string intra = "nvswitch";
    std::optional<core::BytesPerSecond>
        intra_bandwidth;  // of one device, all NVLinks, per direction; absent: as the device file says
    std::optional<core::BytesPerSecond>
        pcie_bandwidth;  // of one device, per direction; absent: as the device file says
    int network_cards =
        0;  // 0: one beside every PCIe switch (one in all without GPUDirect), noted as assumed
    core::BytesPerSecond network_bandwidth;  // of a node, per direction; zero: no network, one node only
    std::optional<core::Seconds> network_latency;  // absent: an assumed figure of the transport, noted
    std::optional<double> network_efficiency;      // absent: likewise
    std::string transport = "infiniband";          // infiniband, roce, omnipath, efa, tcp
    std::optional<bool> has_gpudirect;           // absent: true for all but tcp and devices without it, noted
    core::Bytes host_memory;                     // zero: unknown
    core::BytesPerSecond host_memory_bandwidth;  // of a node, all channels; zero: unknown
};

std::vector<std::string> intra_names();
std::vector<std::string> transport_names();
// Figures assumed for a kind of network that was not measured.
struct TransportFigures {
    double efficiency = 1;
    core::Seconds latency;
    bool has_gpudirect = false;
};
TransportFigures transport_figures(const std::string& name);  // one of transport_names()
// Another use of an instance's cards: EFA's also carry TCP. Routes have to be prepared again.
void use_transport(InstanceType& instance, const std::string& name);
// The device file by name or alias ("A100-SXM4-80GB", "A100-80"); unknown: did-you-mean.
std::optional<DeviceSpec> load_device(const std::string& name, core::Diagnostics& diagnostics,
                                      const core::SourceLocation& referrer = {},
                                      const std::string& key = "cluster.device");
std::vector<std::string> device_names();
// The instance with its graph and routes; every assumed figure is in its notes.
std::optional<InstanceType> build_instance(const NodeShape& shape, core::Diagnostics& diagnostics,
                                           const core::SourceLocation& referrer = {},
                                           const std::string& key = "cluster");

}  // namespace cluster
