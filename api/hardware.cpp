#include "api/hardware.h"

#include <utility>
#include <vector>

#include "cluster/describe.h"
#include "cluster/profile/load.h"
#include "core/diagnostics.h"

namespace api {

Reply hardware(const std::string& name, std::size_t width) {
    Reply reply;
    if (!name.empty()) {
        const auto instance = cluster::load_instance(name, reply.diagnostics, {}, "NAME");
        if (reply.diagnostics.has_errors() || !instance) return refusal(std::move(reply.diagnostics));
        reply.document = cluster::describe_to_value(*instance);
        reply.text = cluster::describe(*instance);
        return reply;
    }
    std::vector<cluster::InstanceType> instances;
    for (const std::string& known : cluster::instance_names())
        if (auto instance = cluster::load_instance(known, reply.diagnostics))
            instances.push_back(std::move(*instance));
    if (reply.diagnostics.has_errors()) return refusal(std::move(reply.diagnostics));
    reply.document = cluster::list_to_value(instances);
    reply.text = cluster::describe_list(instances, width);
    return reply;
}

}  // namespace api
