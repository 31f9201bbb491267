#include "model/reader/onnx/onnx_operator_kinds.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "model/reader/onnx/onnx_graph.h"

namespace model {

namespace {

constexpr const char* reductions[] = {"ReduceL1",   "ReduceL2",   "ReduceLogSumExp",
                                      "ReduceMax",  "ReduceMean", "ReduceMin",
                                      "ReduceProd", "ReduceSum",  "ReduceSumSquare"};
// How many or which, by data; branches and loops.
constexpr const char* choices[] = {"Compress", "If",       "Loop", "NonMaxSuppression",
                                   "NonZero",  "RoiAlign", "Scan", "TopK"};
constexpr const char* other_operators[] = {"AveragePool",
                                           "BatchNormalization",
                                           "Concat",
                                           "Constant",
                                           "ConstantOfShape",
                                           "Conv",
                                           "ConvTranspose",
                                           "DepthToSpace",
                                           "Dropout",
                                           "Einsum",
                                           "EyeLike",
                                           "Flatten",
                                           "Gather",
                                           "GatherElements",
                                           "GatherND",
                                           "GRU",
                                           "Gelu",
                                           "Gemm",
                                           "GlobalAveragePool",
                                           "GlobalMaxPool",
                                           "GroupNormalization",
                                           "Identity",
                                           "InstanceNormalization",
                                           "LSTM",
                                           "LayerNormalization",
                                           "LogSoftmax",
                                           "LpNormalization",
                                           "MatMul",
                                           "MaxPool",
                                           "MeanVarianceNormalization",
                                           "NegativeLogLikelihoodLoss",
                                           "RMSNormalization",
                                           "RNN",
                                           "Range",
                                           "Relu",
                                           "Reshape",
                                           "Shape",
                                           "Size",
                                           "Slice",
                                           "Softmax",
                                           "SoftmaxCrossEntropyLoss",
                                           "SpaceToDepth",
                                           "Split",
                                           "Squeeze",
                                           "Tanh",
                                           "Transpose",
                                           "Unsqueeze"};

template <std::size_t size>
bool is_one_of(const char* const (&types)[size], const std::string& type) {
    return std::find(std::begin(types), std::end(types), type) != std::end(types);
}

}  // namespace

const std::map<std::string, OnnxKeeps>& onnx_elementwise_operators() {
    static const std::map<std::string, OnnxKeeps> operators{
        {"Abs", OnnxKeeps::inputs},
        {"Add", OnnxKeeps::nothing},
        {"And", OnnxKeeps::no_gradient},
        {"ArgMax", OnnxKeeps::no_gradient},
        {"ArgMin", OnnxKeeps::no_gradient},
        {"Cast", OnnxKeeps::nothing},
        {"Ceil", OnnxKeeps::no_gradient},
        {"Celu", OnnxKeeps::inputs},
        {"Clip", OnnxKeeps::inputs},
        {"Cos", OnnxKeeps::inputs},
        {"CumSum", OnnxKeeps::nothing},
        {"Div", OnnxKeeps::factors},
        {"Elu", OnnxKeeps::output},
        {"Equal", OnnxKeeps::no_gradient},
        {"Erf", OnnxKeeps::inputs},
        {"Exp", OnnxKeeps::output},
        {"Expand", OnnxKeeps::nothing},
        {"Floor", OnnxKeeps::no_gradient},
        {"Greater", OnnxKeeps::no_gradient},
        {"GreaterOrEqual", OnnxKeeps::no_gradient},
        {"HardSigmoid", OnnxKeeps::inputs},
        {"HardSwish", OnnxKeeps::inputs},
        {"IsInf", OnnxKeeps::no_gradient},
        {"IsNaN", OnnxKeeps::no_gradient},
        {"LRN", OnnxKeeps::both},
        {"LeakyRelu", OnnxKeeps::inputs},
        {"Less", OnnxKeeps::no_gradient},
        {"LessOrEqual", OnnxKeeps::no_gradient},
        {"Log", OnnxKeeps::inputs},
        {"Max", OnnxKeeps::inputs},
        {"Mean", OnnxKeeps::nothing},
        {"Min", OnnxKeeps::inputs},
        {"Mod", OnnxKeeps::no_gradient},
        {"Mul", OnnxKeeps::factors},
        {"Neg", OnnxKeeps::nothing},
        {"Not", OnnxKeeps::no_gradient},
        {"OneHot", OnnxKeeps::no_gradient},
        {"Or", OnnxKeeps::no_gradient},
        {"PRelu", OnnxKeeps::inputs},
        {"Pad", OnnxKeeps::nothing},
        {"Pow", OnnxKeeps::inputs},
        {"Reciprocal", OnnxKeeps::output},
        {"Resize", OnnxKeeps::nothing},
        {"Round", OnnxKeeps::no_gradient},
        {"ScatterElements", OnnxKeeps::nothing},
        {"ScatterND", OnnxKeeps::nothing},
        {"Selu", OnnxKeeps::output},
        {"Sigmoid", OnnxKeeps::output},
        {"Sign", OnnxKeeps::no_gradient},
        {"Sin", OnnxKeeps::inputs},
        {"Softplus", OnnxKeeps::inputs},
        {"Softsign", OnnxKeeps::inputs},
        {"Sqrt", OnnxKeeps::output},
        {"Sub", OnnxKeeps::nothing},
        {"Sum", OnnxKeeps::nothing},
        {"ThresholdedRelu", OnnxKeeps::inputs},
        {"Tile", OnnxKeeps::nothing},
        {"Trilu", OnnxKeeps::nothing},
        {"Upsample", OnnxKeeps::nothing},
        {"Where", OnnxKeeps::factors},
        {"Xor", OnnxKeeps::no_gradient},
    };
    return operators;
}

bool has_mapping(const OnnxNode& node) {
    return is_one_of(other_operators, node.type) || is_one_of(choices, node.type) ||
           is_one_of(reductions, node.type) || onnx_elementwise_operators().contains(node.type);
}

}  // namespace model
