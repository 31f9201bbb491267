#include "exec/weights/weight_export.h"

#include <algorithm>
#include <map>

#include <fmt/core.h>

#include "core/errors.h"
#include "exec/checkpoint/durable_file.h"

namespace exec {

namespace {

// Puts rows of a parameter, all of whose values are given, where the tensor has them.
void place(const WeightRows& rows, std::int64_t columns, const std::vector<float>& parameter,
           std::vector<float>& tensor) {
    const auto from = parameter.begin() + rows.first * columns;
    if (!rows.is_transposed) {
        std::copy_n(from, rows.count * columns, tensor.begin() + rows.first_in_tensor * columns);
        return;
    }
    const std::int64_t outputs = rows.shape[1];
    for (std::int64_t r = 0; r < rows.count; ++r)
        for (std::int64_t c = 0; c < columns; ++c)
            tensor[c * outputs + rows.first_in_tensor + r] = from[r * columns + c];
}

}  // namespace

std::uint64_t export_weights(const Checkpoint& checkpoint, const model::ModelGraph& graph,
                             const WeightNames& names, const std::string& folder, const std::string& name) {
    struct Tensor {
        std::vector<std::int64_t> shape;
        std::vector<float> values;
    };
    std::map<std::string, Tensor> tensors;
    for (const model::ParameterId id : graph.parameters.ids()) {
        const model::Parameter& parameter = graph.parameter(id);
        std::vector<float> values(model::element_count(parameter.shape));
        if (!checkpoint.read(parameter.name, StateKind::value, 0, values))
            throw core::MachineError(fmt::format("the checkpoint of step {} has not all of {}",
                                                 checkpoint.manifest().step, parameter.name));
        const std::int64_t columns = parameter.shape.size() > 1 ? parameter.shape.back() : 1;
        for (const WeightRows& rows : names.rows[id]) {
            Tensor& tensor = tensors[rows.tensor];
            if (tensor.values.empty()) {
                tensor.shape = rows.shape;
                tensor.values.resize(model::element_count(rows.shape));
            }
            place(rows, columns, values, tensor.values);
        }
    }
    std::vector<OutgoingTensor> outgoing;
    std::vector<std::span<const std::byte>> parts(1);
    std::uint64_t bytes = 0;
    for (const auto& [tensor_name, tensor] : tensors) {
        outgoing.push_back({tensor_name, tensor.shape});
        parts.push_back(std::as_bytes(std::span(tensor.values)));
        bytes += parts.back().size();
    }
    // transformers asks for the word "pt" before it believes that the layout is PyTorch's.
    const std::string header = safetensors_header(outgoing, {{"format", "pt"}});
    parts[0] = std::as_bytes(std::span(header));
    write_durably(folder, name, parts);
    return bytes + header.size();
}

}  // namespace exec
