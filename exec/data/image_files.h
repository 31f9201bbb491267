// Images with labels.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/diagnostics_fwd.h"
#include "exec/data/data_source.h"
#include "model/model_fwd.h"

namespace exec {

// Grey images of one channel in the IDX format, as MNIST's; the labels' file is named by theirs. `input` is
// the model's tensor of images. Null after a diagnostic.
std::shared_ptr<const DataSource> load_images(const std::string& path, const model::Tensor& input,
                                              std::int64_t classes, const DataReferrer& referrer,
                                              core::Diagnostics& diagnostics);

// The binary version of CIFAR-10 and CIFAR-100 (A. Krizhevsky, 2009): RGB images of 32 x 32.
struct CifarFormat {
    std::size_t labels = 1;  // bytes before the pixels; the last is the label: CIFAR-100 has a coarse one too
    std::int64_t channels = 3, side = 32;
};
std::shared_ptr<const DataSource> load_cifar(const std::string& path, CifarFormat format,
                                             const model::Tensor& input, std::int64_t classes,
                                             const DataReferrer& referrer, core::Diagnostics& diagnostics);

}  // namespace exec
