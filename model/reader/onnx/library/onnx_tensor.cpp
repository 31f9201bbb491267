#include "model/reader/onnx/library/onnx_tensor.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>

#include <onnx/onnx_pb.h>

namespace model {

namespace {

template <typename T>
void append_raw(const std::string& raw, std::vector<double>& data) {
    for (std::size_t i = 0; i + sizeof(T) <= raw.size(); i += sizeof(T)) {
        T x;
        std::memcpy(&x, raw.data() + i, sizeof x);  // ONNX is little endian, as every machine we build for
        data.push_back(static_cast<double>(x));
    }
}

std::int64_t integer_of(double x) {
    if (!(x > -9.2e18)) return std::numeric_limits<std::int64_t>::min();
    if (x > 9.2e18) return std::numeric_limits<std::int64_t>::max();
    return static_cast<std::int64_t>(x);
}

// Of a libonnx that has the field: an older one keeps it among those it does not know.
template <typename Info>
std::optional<std::string> known_metadata(const Info& info, const std::string& key) {
    if constexpr (requires { info.metadata_props(); })
        for (const auto& entry : info.metadata_props())
            if (entry.key() == key) return entry.value();
    return std::nullopt;
}

}  // namespace

OnnxType onnx_type_of(int element) {
    switch (element) {
        case onnx::TensorProto::FLOAT:
        case onnx::TensorProto::DOUBLE:
        case onnx::TensorProto::FLOAT16:
        case onnx::TensorProto::BFLOAT16: return OnnxType::floating;
        case onnx::TensorProto::BOOL: return OnnxType::boolean;
        case onnx::TensorProto::INT8:
        case onnx::TensorProto::INT16:
        case onnx::TensorProto::INT32:
        case onnx::TensorProto::INT64:
        case onnx::TensorProto::UINT8:
        case onnx::TensorProto::UINT16:
        case onnx::TensorProto::UINT32:
        case onnx::TensorProto::UINT64: return OnnxType::integer;
        // Integers of the file: float8, int4, strings, complex numbers and whatever ONNX adds.
        default: return OnnxType::other;
    }
}

std::optional<std::vector<double>> data_of(const onnx::TensorProto& tensor) {
    double count = 1;
    for (std::int64_t extent : tensor.dims()) count *= extent;
    if (!(count >= 0 && count <= most_onnx_constant_elements) ||
        tensor.data_location() == onnx::TensorProto::EXTERNAL)
        return std::nullopt;
    std::vector<double> data;
    const std::string& raw = tensor.raw_data();
    switch (tensor.data_type()) {
        case onnx::TensorProto::FLOAT:
            append_raw<float>(raw, data);
            data.insert(data.end(), tensor.float_data().begin(), tensor.float_data().end());
            break;
        case onnx::TensorProto::DOUBLE:
            append_raw<double>(raw, data);
            data.insert(data.end(), tensor.double_data().begin(), tensor.double_data().end());
            break;
        case onnx::TensorProto::INT64:
            append_raw<std::int64_t>(raw, data);
            for (std::int64_t x : tensor.int64_data()) data.push_back(x);
            break;
        case onnx::TensorProto::INT32:
            append_raw<std::int32_t>(raw, data);
            data.insert(data.end(), tensor.int32_data().begin(), tensor.int32_data().end());
            break;
        case onnx::TensorProto::BOOL:
            append_raw<std::uint8_t>(raw, data);
            data.insert(data.end(), tensor.int32_data().begin(), tensor.int32_data().end());
            break;
        // Integers of the file: arithmetic on constants of other types is not needed for shapes.
        default: return std::nullopt;
    }
    if (data.size() != count) return std::nullopt;
    return data;
}

onnx::TensorProto tensor_of(const std::vector<double>& data, const std::vector<std::int64_t>& shape,
                            int element) {
    onnx::TensorProto tensor;
    tensor.set_data_type(element);
    for (std::int64_t extent : shape) tensor.add_dims(extent);
    for (double x : data) switch (element) {
            case onnx::TensorProto::FLOAT: tensor.add_float_data(static_cast<float>(x)); break;
            case onnx::TensorProto::DOUBLE: tensor.add_double_data(x); break;
            case onnx::TensorProto::INT64: tensor.add_int64_data(integer_of(x)); break;
            // Integers of the file: INT32 and BOOL share the field int32_data.
            default:
                tensor.add_int32_data(static_cast<std::int32_t>(std::clamp(x, -2147483648.0, 2147483647.0)));
                break;
        }
    return tensor;
}

std::optional<std::string> input_kind_of(const onnx::ValueInfoProto& info) {
    constexpr int metadata_field = 4;  // repeated StringStringEntryProto metadata_props, IR version 10
    const std::string wanted = "pkg.torch.export.graph_signature.InputSpec.kind";
    if (auto kind = known_metadata(info, wanted)) return kind;
    onnx::StringStringEntryProto entry;
    const google::protobuf::UnknownFieldSet& fields = info.unknown_fields();
    for (int i = 0; i < fields.field_count(); ++i) {
        const google::protobuf::UnknownField& field = fields.field(i);
        if (field.number() == metadata_field &&
            field.type() == google::protobuf::UnknownField::TYPE_LENGTH_DELIMITED &&
            entry.ParseFromString(field.length_delimited()) && entry.key() == wanted)
            return entry.value();
    }
    return std::nullopt;
}

OnnxAttribute attribute_of(const onnx::AttributeProto& from) {
    OnnxAttribute to;
    if (from.type() == onnx::AttributeProto::INT) to.integers = {from.i()};
    if (from.type() == onnx::AttributeProto::INTS) to.integers.assign(from.ints().begin(), from.ints().end());
    if (from.type() == onnx::AttributeProto::FLOAT) to.reals = {from.f()};
    if (from.type() == onnx::AttributeProto::FLOATS)
        to.reals.assign(from.floats().begin(), from.floats().end());
    if (from.type() == onnx::AttributeProto::STRING) to.text = from.s();
    if (from.type() == onnx::AttributeProto::TENSOR)
        if (auto data = data_of(from.t())) to.reals = std::move(*data);
    return to;
}

}  // namespace model
