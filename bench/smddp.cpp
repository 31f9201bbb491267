// SageMaker's data-parallel library against PyTorch DDP over NCCL, BERT-large on p3dn.24xlarge, beside the
// published gains, which went into no constant. The published runs do not state their batch, sequence length
// or gradient type, so several are shown.
#include <fmt/core.h>

#include <cstdlib>
#include <optional>

#include "cluster/profile/load.h"
#include "core/diagnostics.h"
#include "core/value.h"
#include "model/load.h"
#include "sim/evaluate.h"

namespace {

std::optional<double> samples_per_second(const char* communication, int nodes, int sequence,
                                         int micro_batch) {
    core::Diagnostics diagnostics;
    core::Value model_table = core::Value::table(), cluster_table = core::Value::table();
    model_table["name"] = "bert-large";
    model_table["sequence_length"] = sequence;
    cluster_table["instance"] = "p3dn.24xlarge";
    cluster_table["nodes"] = nodes;
    const auto graph = model::load_model(model_table, {}, diagnostics);
    const auto cluster = cluster::load_cluster(cluster_table, diagnostics);
    if (!graph || !cluster) return std::nullopt;
    schedule::Plan plan;
    plan.layout.data = 8 * nodes;
    plan.micro_batch = micro_batch;
    plan.precision = {core::DataType::fp16, core::DataType::fp16, core::DataType::fp16, true};
    plan.attention = model::AttentionImplementation::unfused;
    plan.optimizer.kind = schedule::OptimizerKind::lamb;
    plan.communication = communication;
    const auto evaluation = sim::evaluate(*graph, *cluster, plan, diagnostics);
    if (!evaluation) return std::nullopt;
    return evaluation->samples_per_second;
}

}  // namespace

int main() {
    fmt::print(
        "  samples/s of SMDDP over those of DDP, BERT-large on p3dn.24xlarge (SageMaker developer guide, "
        "data-parallel-intro: +41, +52 and +13 %)\n");
    fmt::print("  {:<28} {:>9} {:>9} {:>9}\n", "", "2 nodes", "4 nodes", "8 nodes");
    fmt::print("  {:<28} {:>+8.0f}% {:>+8.0f}% {:>+8.0f}%\n", "published", 41.0, 52.0, 13.0);
    struct Setting {
        int sequence, micro_batch;
    };
    for (const Setting& setting : {Setting{128, 8}, Setting{128, 32}, Setting{512, 4}, Setting{512, 8}}) {
        fmt::print("  {:<28}", fmt::format("sequence {}, {} a GPU", setting.sequence, setting.micro_batch));
        for (int nodes : {2, 4, 8}) {
            const auto smddp = samples_per_second("smddp", nodes, setting.sequence, setting.micro_batch),
                       nccl = samples_per_second("nccl", nodes, setting.sequence, setting.micro_batch);
            if (!smddp || !nccl) return EXIT_FAILURE;
            fmt::print(" {:>+8.0f}%", 100 * (*smddp / *nccl - 1));
        }
        fmt::print("\n");
    }
    fmt::print("  four nodes, sequence 128, 8 a GPU, samples/s:");
    for (const char* library : {"nccl", "smddp", "horovod", "mpi", "parameter-server"}) {
        const auto rate = samples_per_second(library, 4, 128, 8);
        if (!rate) return EXIT_FAILURE;
        fmt::print("  {} {:.0f}", library, *rate);
    }
    fmt::print("\n");
    return EXIT_SUCCESS;
}
