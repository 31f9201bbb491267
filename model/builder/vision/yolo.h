// YOLOv4 (arXiv 2004.10934): CSPDarknet53, pyramid pooling, two ways through a pyramid of three levels, and
// three boxes for every cell of a level, each with an objectness and a score a class.
#pragma once

#include "model/model_graph.h"

namespace model {

struct YoloDescription {
    std::string name, family = "yolov4";
    std::int64_t image_size = 608, channels = 3, classes = 80;
};
// Matching of boxes to cells and suppression are left out; a cell is trained as one choice among the values
// that it predicts, which are as many as those of its boxes.
ModelGraph build_yolo(const YoloDescription& description);

}  // namespace model
