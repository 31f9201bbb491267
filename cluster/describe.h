// Words for `smsim hardware [NAME]`: the applications only print them.
#pragma once

#include <string>
#include <vector>

#include "cluster/topology.h"
#include "core/value.h"

namespace cluster {

// One line an instance, with a heading: devices, memory, links inside the node, network, price.
std::string describe_list(const std::vector<InstanceType>& instances, std::size_t width);
core::Value list_to_value(const std::vector<InstanceType>& instances);
// Origin of a figure, by its dotted path: its own entry, else that of the nearest section around it.
// Null when nobody said.
const Provenance* provenance_of(const InstanceType& instance, std::string path);
// The section of the profile in which a kind of link has its figures.
std::string link_section(const InstanceType& instance, const std::string& type);
// Everything known of one instance with its sources, what is assumed, the matrix of routes between its
// devices.
std::string describe(const InstanceType& instance);
core::Value describe_to_value(const InstanceType& instance);

}  // namespace cluster
