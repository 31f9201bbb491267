// What is known of a run before anything is predicted: on what it runs, in which precision, with which kind
// of training code, and how it is divided. How far a run is from all that was ever measured is told by these.
#pragma once

#include <string>

#include "cluster/topology.h"
#include "model/model_fwd.h"
#include "schedule/plan/plan.h"

namespace sim {

struct RunFacts {
    std::string device;     // architecture: "sm80"
    std::string precision;  // of products: "bf16"
    std::string framework;  // kind of training code, as reports name it
    std::string family;     // of the model: "gpt", "bert", "resnet"
    std::string transport;  // between nodes: "infiniband"; "none" on one node
    int nodes = 1, devices = 1;
    int tensor = 1, pipeline = 1;
    bool shards_parameters = false;
};

RunFacts facts_of(const model::ModelGraph& graph, const cluster::Cluster& cluster,
                  const schedule::Plan& plan);

}  // namespace sim
