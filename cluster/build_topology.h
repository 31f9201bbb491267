// Steps from which readers put the graph of a node together.
#pragma once

#include <string>

#include "cluster/topology.h"

namespace cluster {

inline constexpr int most_devices = 256;  // of one node
inline constexpr int most_vertices = 1024;
inline constexpr int most_links = 8192;
inline constexpr int most_nodes = 100000;

int add_vertex(InstanceType& instance, std::string name, VertexKind kind);
// `count` parallel links of the given kind.
void add_link(InstanceType& instance, int a, int b, const LinkSpec& spec, int count = 1);
// The fabric and a link to it from every network card vertex; `cards` physical cards are dealt out equally
// over those vertices. Each link carries its share of the sustained rate. Replaces what an earlier call
// added.
void add_fabric(InstanceType& instance, int cards);
// Physical cards: the links to the fabric, counted.
int network_cards(const InstanceType& instance);
// Ranks of a node reach each other at this rate and latency through its memory links; each receiver copies
// for itself, so opposite directions do not share. Routes are prepared again.
void set_memory_links(InstanceType& instance, const TransportRate& rate);
// Every vertex takes the number of the nearest host.
void assign_numa(InstanceType& instance);
// Links per pair of the 8-V100 hybrid cube mesh, as `nvidia-smi topo -m` prints them on such a server
// (kyumdoctor.tistory.com/74; NVIDIA/nccl issue 671 has the same first rows).
int hybrid_cube_mesh_links(int a, int b);

}  // namespace cluster
