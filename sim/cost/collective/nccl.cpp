// Figures are those of NCCL 2.30.7 (2026-06-11), src/graph/tuning.cc and topo.h, unless said otherwise; times
// in microseconds, rates in GB/s.
//
// Latency. A ring's piece takes one step to each next member, over NVLink or PCIe inside a node and over the
// network between nodes. A tree takes a step to each next member of the chain in its node and one for each
// level over the nodes, up and down again.
//
// Bandwidth. Bytes on links: 2(n-1)/n of the payload over every edge of a ring (nccl-tests,
// doc/PERFORMANCE.md), the payload up and down every edge of a tree, and with NVLink SHARP 1 + 1/k of it in
// and out of each of k devices: the switch reads every device's copy once, and writes every device's result
// once. LL sends a flag with every 4 bytes, LL128 one with every 120.
#include "sim/cost/collective/nccl.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/index/integers.h"
#include "sim/cost/collective/host_path.h"
#include "sim/cost/collective/rings.h"
#include "sim/cost/collective/trees.h"

namespace sim {

namespace {

using schedule::CollectiveKind;

enum Protocol : std::size_t { ll, ll128, simple };
constexpr std::array<const char*, 3> protocol_names = {"LL", "LL128", "Simple"};
using PerProtocol = std::array<double, 3>;

constexpr PerProtocol ring_base = {6.6, 14, 8.4}, tree_base = {6.8, 14, 8.4};
constexpr PerProtocol ring_nvlink = {0.6, 1.9, 3.4}, ring_pcie = {1.0, 2.5, 5.7},
                      ring_network = {2.7, 4.0, 14};
constexpr PerProtocol tree_nvlink = {0.6, 1.25, 4}, tree_pcie = {1.0, 1.9, 4}, tree_network = {5.0, 8.5, 14};
constexpr double nvls_base = 25, nvls_network = 20.9;

// By generation: up to sm75, sm80 to sm89, sm90 and later. By nodes: one, two, more.
constexpr double ll_cap[3][3] = {{39, 39, 20.4}, {87.7, 22.5, 19}, {141, 45, 35}};
constexpr double ring_ll128_cap[3] = {20, 20, 36.7};                                       // of a channel
constexpr double tree_cap[3][3] = {{26.5, 18.5, 10}, {24, 23.6, 17.8}, {38.7, 41.4, 36}};  // of a channel
constexpr double tree_ll128_cap[3][3] = {
    {20, 20, 20},
    {20, 20, 20},
    {36.7, 36.7, 29}};  // of a channel; LL128 also keeps below its share of tree_cap

// Share of a tree's bandwidth that payloads of 64 B, 128 B, ... reach.
const std::array<std::vector<double>, 3> tree_reached = {{
    {1.0, 1.0, 1.0, 1.0, .9, .8, .7, .7, .7, .7, .6, .5, .4, .4, .5, .6, .7, .8, .9, 1.0, 1.0, 1.0, 1.0, 1.0},
    {1.0, 1.0, 1.0, 1.0, 1.0, .9, .8, .8, .8, .7, .6, .6, .6, .6, .6, .6, .8, .9, .9, .9, .9, 1.0, 1.0, 1.0},
    {.9, .9, .9, .9, .9, .9, .9, .8, .7, .6, .6, .5, .5, .5, .5, .6, .7, .8, .7, .7, .8, .9, .9, 1.0},
}};

// Bytes of one chunk in a channel's buffer: 4 MiB in eight steps, four a chunk (src/include/device.h,
// NCCL_STEPS; ALLREDUCE_CHUNKSTEPS), handed on in two slices.
constexpr core::Bytes chunk = core::mebibytes(2);
constexpr int slices_of_chunk = 2;
// A slice is handed on with a fence, a flag and the next one's wait: 256 MiB to 1 GiB on one node of eight
// A100 lose this much to it (stas00/ml-engineering, network/README.md: 8.2 ms where the links need 7.8 and
// the steps 0.06, three loops of 28 slices).
constexpr core::Seconds slice_time = core::microseconds(2.4);
// NCCL_NVLS_CHUNKSIZE, and the channels that NVLink SHARP uses (log of a p5, aws-samples).
constexpr core::Bytes nvls_chunk = core::kibibytes(128);
constexpr int nvls_channels = 16;
// Point-to-point operations of one kernel that run at the same time (src/include/device.h,
// NCCL_MAX_DEV_WORK_P2P_PER_BATCH).
constexpr int transfers_at_once = 8;

std::size_t generation(const cluster::DeviceSpec& device) {
    const std::string& name = device.architecture;
    if (name == "sm80" || name == "sm86" || name == "sm87" || name == "sm89") return 1;
    return name == "sm90" || name.starts_with("sm10") || name.starts_with("sm12") ? 2 : 0;
}

// Share of NVLink's rate that NVLink SHARP reaches (NCCL's tuning, src/graph/tuning.cc).
double nvls_efficiency(const cluster::DeviceSpec& device) {
    constexpr double of_hopper = 0.85, of_others = 0.74;
    return device.architecture == "sm90" ? of_hopper : of_others;
}

// LL sends a flag with every 4 bytes of data. LL128 sends lines of 128 bytes with 120 of data.
constexpr double ll_wire = 2, ll128_data = 120.0 / 128.0, ll128_wire = 128.0 / 120.0;
// On one node LL128 reaches 7/9 of a tree's rate; the slowdown is what comes on top of the bytes on the wire.
constexpr double ll128_tree_in_a_node = 7.0 / 9.0, ll128_tree_slowdown = 9.0 / 7.0 * 120.0 / 128.0;
// Of a tree, whose ranks read, add and pass on in both directions: share of a ring's rate. LL loses this much
// of a tree's rate, its flags among it.
constexpr double tree_of_ring = 0.92, ll_tree_loss = 3.8;

using Group = std::vector<std::int32_t>;  // devices, in order

void add_rings(const cluster::Cluster& cluster, const Group& group, double share, std::vector<Flow>& flows) {
    for (const Ring& ring : rings(cluster, group))
        for (std::size_t i = 0; i < ring.devices.size(); ++i)
            flows.push_back(
                {ring.devices[i], ring.devices[(i + 1) % ring.devices.size()], ring.share * share});
}

void add_edges(const std::vector<TreeEdge>& edges, std::vector<Flow>& flows) {
    for (const TreeEdge& edge : edges) {
        flows.push_back({edge.child, edge.parent, edge.share});
        flows.push_back({edge.parent, edge.child, edge.share});
    }
}

// Everything the candidates of one collective have in common.
class Tuner {
public:
    Tuner(const cluster::Cluster& cluster, Network& network, CollectiveKind kind, const Groups& groups)
        : cluster_(cluster),
          network_(network),
          kind_(kind),
          groups_(groups),
          shape_(shape_of(cluster, groups.devices.front())),
          generation_(generation(cluster.instance.device)),
          nodes_index_(std::min(shape_.nodes, 3) - 1),
          channels_(nccl_channels(cluster, shape_)) {}

    std::vector<Candidate> candidates() {
        if (kind_ == CollectiveKind::all_to_all || kind_ == CollectiveKind::rotate) {
            result_.push_back(direct());
            return std::move(result_);
        }
        const Load links = load_of([&](const Group& group, std::vector<Flow>& flows) {
            add_rings(cluster_, group, bytes_over_an_edge(), flows);
        });
        for (Protocol protocol : {ll, ll128, simple})
            if (is_allowed(protocol)) result_.push_back(ring(protocol, links));
        if (kind_ == CollectiveKind::all_reduce) {
            add_trees();
            add_sharp();
        }
        return std::move(result_);
    }

private:
    int steps() const {
        return kind_ == CollectiveKind::all_reduce ? 2 * (shape_.ranks - 1) : shape_.ranks - 1;
    }
    double bytes_over_an_edge() const {
        return kind_ == CollectiveKind::broadcast ? 1.0 : static_cast<double>(steps()) / shape_.ranks;
    }

    // LL128 needs 128-byte stores to arrive whole: NVLink inside the node; between nodes cards that write
    // device memory, which EFA before p5 does not do in order.
    bool is_allowed(Protocol protocol) const {
        if (protocol != ll128) return true;
        if (cluster_.instance.device.architecture == "sm75" ||
            (shape_.ranks_per_node > 1 && !shape_.is_over_nvlink))
            return false;
        if (shape_.nodes == 1) return true;
        return cluster_.instance.has_gpudirect &&
               (cluster_.instance.network_name != "efa" || generation_ == 2);
    }

    // NCCL's figures are of InfiniBand, whose plugin states no latency of its own (src/transport/net_ib:
    // props.latency = 0); other networks add theirs.
    double own_latency() const {
        const std::string& network = cluster_.instance.network_name;
        return network == "infiniband" || network == "roce" ? 0 : network_.step().value * 1e6;
    }
    double between_nodes(const PerProtocol& step, Protocol protocol) const {
        return step[protocol] + own_latency();
    }

    // What bytes keep busy: the links of all groups together, and the busiest of one group by itself.
    struct Load {
        std::vector<LinkShare> links;
        double of_a_group = 0, bytes_of_a_group = 0;
    };
    template <class AddFlows>
    Load load_of(const AddFlows& add_flows) {
        std::vector<Flow> all, own;
        for (const Group& group : groups_.devices) add_flows(group, all);
        add_flows(groups_.devices.front(), own);
        const std::vector<LinkShare> own_links = network_.links(own);
        return {network_.links(all), busiest(own_links), network_.most_bytes(own_links)};
    }

    Candidate ring(Protocol protocol, const Load& links) {
        Candidate candidate{"ring", protocol_names[protocol], {}};
        const double n = shape_.ranks;
        // A piece crosses to another node on as many of its hops as the ring has such edges.
        const double crossings = shape_.nodes > 1 ? steps() * shape_.nodes / n : 0;
        const double inside = (shape_.is_over_nvlink ? ring_nvlink : ring_pcie)[protocol];
        candidate.latency = core::microseconds(ring_base[protocol] + (steps() - crossings) * inside +
                                               crossings * between_nodes(ring_network, protocol));
        set_rate(candidate, links, protocol,
                 protocol == ll      ? ll_cap[generation_][nodes_index_]
                 : protocol == ll128 ? channels_ * ring_ll128_cap[generation_]
                                     : 0,
                 bytes_over_an_edge());
        if (protocol == simple && shape_.is_over_nvlink && kind_ != CollectiveKind::broadcast) {
            candidate.loop = chunk * (channels_ * n);
            candidate.loop_overhead = slice_time * (slices_of_chunk * steps());
        }
        return candidate;
    }

    // `load` of bytes only, to which the protocol adds; one group reaches a `slowdown`-th part of its links'
    // rate, and what it leaves of it is for others. `cap` of what crosses an edge, GB/s (0: none).
    void set_rate(Candidate& candidate, const Load& load, Protocol protocol, double cap, double over_an_edge,
                  double slowdown = 1) {
        candidate.links = load.links;
        const double wire = protocol == ll ? ll_wire : protocol == ll128 ? ll128_wire : 1.0;
        for (LinkShare& link : candidate.links) link.busy *= wire;
        candidate.shared_seconds_per_byte = busiest(candidate.links);
        candidate.bytes_of_a_group = load.bytes_of_a_group * wire;
        candidate.seconds_per_byte = load.of_a_group * wire * slowdown;
        if (cap > 0)
            candidate.seconds_per_byte = std::max(candidate.seconds_per_byte, over_an_edge / (cap * 1e9));
        candidate.multiprocessors = nccl_multiprocessors(cluster_.instance.device);
    }

    void add_trees() {
        const Load load = load_of([&](const Group& group, std::vector<Flow>& flows) {
            add_edges(tree_edges(cluster_, group), flows);
        });
        const double levels = std::log2(static_cast<double>(shape_.nodes));
        for (Protocol protocol : {ll, ll128, simple}) {
            if (!is_allowed(protocol)) continue;
            Candidate candidate{"tree", protocol_names[protocol], {}};
            const double inside = (shape_.is_over_nvlink ? tree_nvlink : tree_pcie)[protocol];
            candidate.latency = core::microseconds(
                tree_base[protocol] +
                2 * ((shape_.ranks_per_node - 1) * inside + levels * between_nodes(tree_network, protocol)));
            const double of_simple = tree_cap[generation_][nodes_index_];
            const double of_ll128 =
                std::min(of_simple * (shape_.nodes == 1 ? ll128_tree_in_a_node : ll128_data),
                         tree_ll128_cap[generation_][nodes_index_]);
            const double cap = protocol == ll ? ll_cap[generation_][nodes_index_]
                                              : channels_ * (protocol == ll128 ? of_ll128 : of_simple);
            // Beside the bytes that the protocol adds on the wire.
            const double slowdown = protocol == ll                           ? ll_tree_loss / ll_wire
                                    : protocol == ll128 && shape_.nodes == 1 ? ll128_tree_slowdown
                                                                             : 1.0;
            set_rate(candidate, load, protocol, cap, 2.0, slowdown / tree_of_ring);
            candidate.reached = tree_reached[protocol];
            result_.push_back(std::move(candidate));
        }
    }

    // NVLink SHARP: the switch adds. Between nodes the sums go over two trees, each device's part through its
    // own card.
    void add_sharp() {
        if (generation_ < 2 || !shape_.is_over_nvswitch || shape_.ranks_per_node < 2 ||
            shape_.ranks % shape_.ranks_per_node != 0)
            return;
        const double k = shape_.ranks_per_node;
        const Load load = load_of([&](const Group& group, std::vector<Flow>& flows) {
            for (const Group& order : orders_in_nodes(cluster_, group))
                for (std::size_t i = 0; i < order.size(); ++i)
                    flows.push_back({order[i], order[(i + 1) % order.size()],
                                     (1 + 1 / k) / nvls_efficiency(cluster_.instance.device)});
            if (shape_.nodes > 1) add_edges(tree_edges_between_nodes(cluster_, group), flows);
        });
        Candidate candidate{shape_.nodes > 1 ? "nvls-tree" : "nvls", protocol_names[simple], {}};
        const double levels = std::log2(static_cast<double>(shape_.nodes));
        candidate.latency = core::microseconds(nvls_base);
        if (shape_.nodes > 1)
            candidate.latency += core::microseconds(2 * levels * (nvls_network + own_latency()));
        set_rate(candidate, load, simple, 0, 0);
        candidate.multiprocessors = nvls_channels;
        candidate.fill = nvls_chunk * (nvls_channels * k);
        candidate.fill_times = 1 + 2 * levels;
        result_.push_back(std::move(candidate));
    }

    // Point to point: of an all-to-all every pair at once, some operations at a time; of a rotation one.
    Candidate direct() {
        const bool rotates = kind_ == CollectiveKind::rotate;
        const double n = rotates ? 2 : shape_.ranks;
        const Load load = load_of([&](const Group& group, std::vector<Flow>& flows) {
            for (std::size_t i = 0; i < group.size(); ++i) {
                if (rotates) flows.push_back({group[i], group[(i + 1) % group.size()], 1.0});
                for (std::size_t j = 0; !rotates && j < group.size(); ++j)
                    if (i != j) flows.push_back({group[i], group[j], 1 / n});
            }
        });
        Candidate candidate{"direct", protocol_names[simple], {}};
        const double step = shape_.nodes > 1 ? between_nodes(ring_network, simple)
                                             : (shape_.is_over_nvlink ? ring_nvlink : ring_pcie)[simple];
        candidate.latency =
            core::microseconds(ring_base[simple] + std::ceil((n - 1) / transfers_at_once) * step);
        set_rate(candidate, load, simple, 0, 0);
        return candidate;
    }

    const cluster::Cluster& cluster_;
    Network& network_;
    CollectiveKind kind_;
    const Groups& groups_;
    GroupShape shape_;
    std::size_t generation_, nodes_index_;
    int channels_;
    std::vector<Candidate> result_;
};

}  // namespace

bool has_nccl(const cluster::DeviceSpec& device) { return device.architecture.starts_with("sm"); }

// Share of a link's rate (25 GB/s up to sm90, 50 GB/s on sm100) that collectives reach. Twelve links at 20
// GB/s are the 235 GB/s that nccl-tests reach on eight A100; eighteen at 20.6 the 370 of an H100 node without
// SHARP (NVIDIA GTC 2024, S62129). Peer copies are faster.
std::optional<double> nccl_nvlink_efficiency(const cluster::DeviceSpec& device) {
    constexpr double link_gbs = 25, sm100_link_gbs = 50;
    constexpr double volta_and_ampere_gbs = 20, hopper_gbs = 20.6, sm100_gbs = 40.1;
    if (device.architecture == "sm70" || device.architecture == "sm80")
        return volta_and_ampere_gbs / link_gbs;
    if (device.architecture == "sm90") return hopper_gbs / link_gbs;
    if (device.architecture == "sm100") return sm100_gbs / sm100_link_gbs;
    return std::nullopt;
}

GroupShape shape_of(const cluster::Cluster& cluster, const std::vector<std::int32_t>& group) {
    GroupShape shape;
    const std::vector<std::vector<std::int32_t>> nodes = orders_in_nodes(cluster, group);
    shape.ranks = core::count_of(group);
    shape.nodes = core::count_of(nodes);
    bool has_neighbours = false, all_nvlink = true, all_switched = true;
    for (const std::vector<std::int32_t>& order : nodes) {
        shape.ranks_per_node = std::max(shape.ranks_per_node, core::count_of(order));
        for (std::size_t i = 0; i + 1 < order.size(); ++i) {
            if (order[i] == order[i + 1]) continue;
            has_neighbours = true;
            const cluster::Route path =
                cluster::route(cluster, cluster::DeviceId(order[i]), cluster::DeviceId(order[i + 1]));
            for (const cluster::DirectedLink& link : path.links) {
                const cluster::Link& spec = cluster.instance.links[link.link];
                all_nvlink = all_nvlink && spec.kind == cluster::LinkKind::nvlink;
                const auto is_switch = [&](int vertex) {
                    return cluster.instance.vertices[vertex].kind == cluster::VertexKind::nvswitch;
                };
                all_switched = all_switched && (is_switch(spec.a) || is_switch(spec.b));
            }
        }
        if (shape.nodes > 1 && order.size() > 1) break;  // nodes are alike
    }
    shape.is_over_nvlink = has_neighbours && all_nvlink;
    shape.is_over_nvswitch = shape.is_over_nvlink && all_switched;
    return shape;
}

// One channel for each NVLink of a device and direction on V100, two on later ones ("up to 24" of A100's 108
// multiprocessors, SageMaker's documentation of SMDDP; a p5's log says 24). Between nodes two for each
// network card. Two over PCIe.
int nccl_channels(const cluster::Cluster& cluster, const GroupShape& shape) {
    constexpr int of_volta = 12, most = 24, least = 2;
    if (shape.nodes > 1) {
        int cards = 0;
        for (const cluster::Link& link : cluster.instance.links)
            if (link.kind == cluster::LinkKind::network) cards += link.count;
        return std::clamp(2 * cards, least, most);
    }
    if (!shape.is_over_nvlink) return least;
    return generation(cluster.instance.device) == 0 ? of_volta : most;
}

// One for each channel of a node's ring.
double nccl_multiprocessors(const cluster::DeviceSpec& device) {
    constexpr double of_volta = 12, of_others = 24;
    return generation(device) == 0 ? of_volta : of_others;
}

std::vector<Candidate> nccl_candidates(const cluster::Cluster& cluster, Network& network, CollectiveKind kind,
                                       const Groups& groups) {
    return Tuner(cluster, network, kind, groups).candidates();
}

}  // namespace sim
