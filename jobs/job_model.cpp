#include "jobs/job_model.h"

namespace jobs {

core::Seconds JobModel::undisturbed() const {
    return acquire + preparation() + axis(step).length() + upload + release;
}

std::optional<core::Seconds> JobModel::cluster_mtbf() const {
    if (!failures && !spot) return std::nullopt;
    double rate = 0;  // of a node, per second
    if (failures) rate += 1 / failures->node_mtbf.value;
    if (spot) rate += 1 / spot->node_mean_time.value;
    return core::seconds(1 / (rate * double(nodes)));
}

}  // namespace jobs
