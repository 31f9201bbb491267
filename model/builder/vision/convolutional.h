// Convolutional networks: ResNet and wide ResNet as torchvision builds them, and small stacks like the MNIST
// network of the SageMaker model-parallel announcement.
#pragma once

#include <vector>

#include "model/model_graph.h"

namespace model {

struct ResnetDescription {
    std::string name, family = "resnet";
    std::int64_t depth = 50;        // 18, 34 (basic blocks), 50, 101, 152 (bottlenecks)
    std::int64_t width_factor = 1;  // of the bottleneck's inner convolutions: 2 in wide_resnet50_2
    bool widens_reduction = true;   // ... of the 1x1 that leads to the 3x3 too (torchvision); false: the 3x3
                                    // alone (alpa-projects/alpa, alpa/model/wide_resnet.py)
    std::int64_t image_size = 224, channels = 3, classes = 1000;
    std::int64_t base_channels = 64;  // of the first stage; each further one doubles it
    bool has_small_stem =
        false;  // 3x3 convolution of stride 1 and no pooling, as for CIFAR (kuangliu/pytorch-cifar)
};
inline constexpr std::int64_t resnet_depths[] = {18, 34, 50, 101, 152};
ModelGraph build_resnet(const ResnetDescription& description);

// Convolutions (valid, stride 1, relu), flatten, dense layers (relu), classifier.
struct ConvnetDescription {
    std::string name, family = "convnet";
    std::int64_t image_size = 28, channels = 1, kernel = 3, classes = 10;
    std::vector<std::int64_t> convolutions, dense;  // widths
};
ModelGraph build_convnet(const ConvnetDescription& description);

}  // namespace model
