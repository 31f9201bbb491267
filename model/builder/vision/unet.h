// 3D U-Net (arXiv 1606.06650): volumes [channels, x, y, z] to a class of every voxel. Valid convolutions
// shrink the volume, and what is joined from the way down is cut to it.
#pragma once

#include <optional>
#include <vector>

#include "model/model_graph.h"

namespace model {

struct UnetDescription {
    std::string name, family = "unet3d";
    std::vector<std::int64_t> volume;  // three extents
    std::int64_t channels = 1, classes = 2, base = 32, levels = 4;
    bool is_padded = false;  // convolutions keep the volume (arXiv 1606.06650 does not)
};

// The extent that is left of one of the volume's, or nothing where a level halves an odd number or nothing
// is left.
std::optional<std::int64_t> unet_extent(const UnetDescription& description, std::int64_t extent);
// Every extent of the volume leaves something.
ModelGraph build_unet(const UnetDescription& description);

}  // namespace model
