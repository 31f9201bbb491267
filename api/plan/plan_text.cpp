// The plan file of an answer.
#include <ctime>
#include <filesystem>

#include <fmt/core.h>

#include "api/plan/answer.h"
#include "api/version.h"
#include "cluster/profile/load.h"
#include "schedule/plan/plan_file.h"

namespace api {

namespace {

core::Value model_table(const Request& request, const model::ModelGraph& graph) {
    core::Value table = core::Value::table();
    // A file is named so that the plan finds it from wherever it lies.
    std::string reference = request.model_reference;
    if (std::filesystem::exists(reference))
        reference = std::filesystem::absolute(reference).lexically_normal().string();
    table["name"] = reference;
    if (graph.tokens_per_sample > 0 && request.sequence_length)
        table["sequence_length"] = *request.sequence_length;
    return table;
}

std::string today() {
    std::time_t now = std::time(nullptr);
    std::tm utc{};
    gmtime_r(&now, &utc);
    return fmt::format("{:04}-{:02}-{:02}", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday);
}

// How a plan file names the instance: a shipped profile by its name, any other by its path from the plan's
// folder, so that the plan finds it again.
std::string instance_reference(const cluster::InstanceType& instance, const std::string& plan_path) {
    if (instance.files.empty()) return instance.name;
    const std::filesystem::path profile(instance.files.front());
    std::error_code failure;
    if (std::filesystem::equivalent(profile, cluster::profile_path(instance.name), failure))
        return instance.name;
    const std::filesystem::path folder = std::filesystem::absolute(plan_path, failure).parent_path();
    const std::filesystem::path relative = std::filesystem::relative(profile, folder, failure);
    return failure || relative.empty() ? profile.string() : relative.string();
}

// What the cluster was read from, with the nodes of the plan.
core::Value cluster_table(const cluster::Cluster& cluster, const std::string& plan_path) {
    core::Value table = cluster.table.is_table() ? cluster.table : core::Value::table();
    const bool is_made_to_measure = table.find("device") != nullptr && table.find("instance") == nullptr;
    if (!is_made_to_measure) table["instance"] = instance_reference(cluster.instance, plan_path);
    table["nodes"] = cluster.nodes;
    return table;
}

}  // namespace

std::string plan_text(const Request& request, const model::ModelGraph& graph, const planner::RankedPlan& best,
                      const planner::Target& target, const std::string& path) {
    schedule::PlanFile file;
    file.path = path;
    file.model = model_table(request, graph);
    file.cluster = cluster_table(target.cluster, path);
    file.plan = best.plan;
    file.prediction = core::Value::table();
    file.prediction["step_time_s"] = best.evaluation.step_time.value;
    file.prediction["samples_per_s"] = best.evaluation.samples_per_second;
    file.prediction["peak_memory_gib"] = core::to_gibibytes(best.evaluation.peak_memory);
    file.prediction["mfu"] = best.evaluation.mfu;
    file.prediction["bound_by"] = best.bound_by;
    file.provenance = core::Value::table();
    file.provenance["tool"] = "smplan";
    file.provenance["version"] = version;
    file.provenance["model_hash"] = model::hash_of(graph);
    file.provenance["date"] = today();
    return schedule::write_plan_file(file);
}

}  // namespace api
