// Object detectors on a ResNet-50: SSD300 and Mask R-CNN with a feature pyramid.
#pragma once

#include <string>

#include "model/model_graph.h"

namespace model {

// NVIDIA's SSD300: backbone to the fourth stage, which keeps its resolution; five further levels; 81 classes
// (COCO).
struct SsdDescription {
    std::string name, family = "ssd";
    std::int64_t image_size = 300, channels = 3, classes = 81;
};
ModelGraph build_ssd(const SsdDescription& description);

// Mask R-CNN (arXiv 1703.06870, 1612.03144): frozen stem, first stage and batch norms; pyramid of five levels
// with 256 channels; 512 regions a sample in the box head, a quarter of them in the mask head.
struct MaskRcnnDescription {
    std::string name, family = "mask_rcnn";
    std::int64_t image_size = 800;  // short side; the long side is 4/3 of it on average (COCO)
    std::int64_t channels = 3, classes = 81, regions = 512;
};
ModelGraph build_mask_rcnn(const MaskRcnnDescription& description);

}  // namespace model
