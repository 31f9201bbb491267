#include "exec/data/data_source.h"

#include "core/errors.h"
#include "core/random.h"

namespace exec {

void DataSource::tokens(std::int64_t, std::span<std::int64_t>) const {
    core::require(false, "this data source has tokens");
}
void DataSource::image(std::int64_t, std::span<float>) const {
    core::require(false, "this data source has images");
}
std::int64_t DataSource::label(std::int64_t sample, std::int64_t classes) const {
    return core::mix64(sample) % classes;
}

}  // namespace exec
