#include "exec/data/image_files.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "core/document.h"
#include "exec/checkpoint/checksum.h"
#include "exec/data/mapped_file.h"
#include "model/model_graph.h"

namespace exec {

namespace {

// A byte of a file as a number.
unsigned char number_of(char byte) { return byte; }

std::string checksum_text(std::string_view content) {
    return fmt::format("xxh64 {:016x}", checksum(std::as_bytes(std::span(content))));
}

class IdxImages : public DataSource {
public:
    IdxImages(std::string path, std::string pixels, std::string labels, std::size_t image_pixels)
        : path_(std::move(path)),
          pixels_(std::move(pixels)),
          labels_(std::move(labels)),
          image_pixels_(image_pixels),
          identity_(fmt::format("{} images, {}, labels {}", labels_.size(), checksum_text(pixels_),
                                checksum_text(labels_))) {}

    void image(std::int64_t sample, std::span<float> into) const override {
        const std::size_t begin = index(sample) * image_pixels_;
        for (std::size_t i = 0; i < into.size(); ++i) into[i] = (number_of(pixels_[begin + i])) / 255.0f;
    }
    std::int64_t label(std::int64_t sample, std::int64_t) const override {
        return number_of(labels_[index(sample)]);
    }
    std::optional<std::int64_t> samples() const override { return labels_.size(); }
    std::string describe() const override { return fmt::format("{} images of {}", labels_.size(), path_); }
    std::string identity() const override { return identity_; }

private:
    std::size_t index(std::int64_t sample) const { return sample % labels_.size(); }

    const std::string path_, pixels_, labels_;
    const std::size_t image_pixels_;
    const std::string identity_;
};

std::uint32_t big_endian(const std::string& bytes, std::size_t at) {
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < 4; ++i) value = value << 8 | number_of(bytes[at + i]);
    return value;
}

struct IdxFile {
    std::vector<std::size_t> extents;
    std::string content;
};

constexpr std::size_t largest_data_bytes = std::size_t(2) << 30;

// The IDX format (Y. LeCun, C. Cortes, "THE MNIST DATABASE"): two zero bytes, element type (8 = unsigned
// byte), number of dimensions, extents as big-endian 32-bit integers, then the elements.
std::optional<IdxFile> read_idx(const std::string& path, std::size_t dimensions, const DataReferrer& referrer,
                                core::Diagnostics& diagnostics) {
    std::optional<std::string> bytes =
        core::read_file(path, diagnostics, referrer.location, referrer.key, largest_data_bytes);
    if (!bytes) return std::nullopt;
    const auto refuse = [&](const std::string& message, const std::string& hint) {
        diagnostics.error({path, 0, 0}, referrer.key, message, hint);
        return std::nullopt;
    };
    const std::size_t header = 4 + 4 * dimensions;
    if (bytes->size() < header)
        return refuse(
            fmt::format("{} is cut off: {} bytes, the header alone has {}", path, bytes->size(), header),
            "download it again");
    if ((*bytes)[0] != 0 || (*bytes)[1] != 0)
        return refuse(fmt::format("{} is no IDX file: it does not begin with two zero bytes", path),
                      (*bytes)[0] == '\x1f' ? "unpack it first: gunzip" : "an IDX file is wanted");
    if ((*bytes)[2] != 8)
        return refuse(
            fmt::format("{} holds elements of type {}, not unsigned bytes (8)", path, int{(*bytes)[2]}), "");
    if (std::size_t{number_of((*bytes)[3])} != dimensions)
        return refuse(fmt::format("{} has {} dimensions instead of {}", path, int{(*bytes)[3]}, dimensions),
                      "images have 3 dimensions, labels 1");
    IdxFile file;
    std::size_t elements = 1;
    for (std::size_t i = 0; i < dimensions; ++i) {
        file.extents.push_back(big_endian(*bytes, 4 + 4 * i));
        if (file.extents.back() == 0)
            return refuse(fmt::format("{} is empty: dimension {} is 0", path, i), "");
        if (file.extents.back() > largest_data_bytes / elements)
            return refuse(fmt::format("{} states more than {} elements", path, largest_data_bytes),
                          "its header is corrupt");
        elements *= file.extents.back();
    }
    if (bytes->size() != header + elements)
        return refuse(fmt::format("{} holds {} bytes after its header, which states {}", path,
                                  bytes->size() - header, elements),
                      "it is cut off or corrupt: download it again");
    file.content = bytes->substr(header);
    return file;
}

// Records of one or two bytes of labels, the last of which counts, and the pixels: all of a channel, row by
// row, before the next one's (www.cs.toronto.edu/~kriz/cifar.html, "binary version").
class CifarImages : public DataSource {
public:
    CifarImages(std::string path, MappedFile file, CifarFormat format, std::size_t pixels)
        : path_(std::move(path)),
          file_(std::move(file)),
          format_(format),
          pixels_(pixels),
          identity_(fmt::format("{} images of {} channels, {}", count(), format.channels,
                                identity_of(file_.bytes(), most_whole_bytes))) {}

    std::size_t record_bytes() const { return format_.labels + pixels_; }
    std::size_t count() const { return file_.size() / record_bytes(); }
    std::int64_t label_at(std::size_t index) const {
        return std::to_integer<std::int64_t>(file_.bytes()[index * record_bytes() + format_.labels - 1]);
    }
    void image(std::int64_t sample, std::span<float> into) const override {
        const auto pixels =
            file_.bytes().subspan(sample % count() * record_bytes() + format_.labels, pixels_);
        for (std::size_t i = 0; i < into.size(); ++i)
            into[i] = std::to_integer<std::uint8_t>(pixels[i]) / 255.0f;
    }
    std::int64_t label(std::int64_t sample, std::int64_t) const override {
        return label_at(sample % count());
    }
    std::optional<std::int64_t> samples() const override { return count(); }
    std::string describe() const override { return fmt::format("{} images of {}", count(), path_); }
    std::string identity() const override { return identity_; }

private:
    const std::string path_;
    const MappedFile file_;
    const CifarFormat format_;
    const std::size_t pixels_;
    const std::string identity_;
};

}  // namespace

std::shared_ptr<const DataSource> load_images(const std::string& path, const model::Tensor& input,
                                              std::int64_t classes, const DataReferrer& referrer,
                                              core::Diagnostics& diagnostics) {
    std::string labels_path = path;
    const auto replace = [&](const std::string& from, const std::string& to) {
        const std::size_t at = labels_path.rfind(from);
        if (at != std::string::npos) labels_path.replace(at, from.size(), to);
        return at != std::string::npos;
    };
    const bool has_name = replace("images", "labels");
    replace("idx3", "idx1");
    if (!has_name) {
        diagnostics.error(
            referrer.location, referrer.key,
            fmt::format("{} = {}: the name has no 'images', so that of the labels cannot be told",
                        referrer.key, core::in_quotes(path)),
            "name the files as MNIST does: train-images-idx3-ubyte and train-labels-idx1-ubyte");
        return nullptr;
    }
    std::optional<IdxFile> images = read_idx(path, 3, referrer, diagnostics),
                           labels = read_idx(labels_path, 1, referrer, diagnostics);
    if (!images || !labels) return nullptr;
    if (images->extents[0] != labels->extents[0]) {
        diagnostics.error({labels_path, 0, 0}, referrer.key,
                          fmt::format("{} images but {} labels", images->extents[0], labels->extents[0]),
                          "they must belong together");
        return nullptr;
    }
    if (input.shape[0] != 1 || input.shape[1] != static_cast<std::int64_t>(images->extents[1]) ||
        input.shape[2] != static_cast<std::int64_t>(images->extents[2])) {
        diagnostics.error(
            referrer.location, referrer.key,
            fmt::format("images of {} x {} with one channel, but the model takes {} channels of {} x {}",
                        images->extents[1], images->extents[2], input.shape[0], input.shape[1],
                        input.shape[2]),
            "set the model's image_size and channels to the data's");
        return nullptr;
    }
    const auto worst = std::max_element(labels->content.begin(), labels->content.end(),
                                        [](char a, char b) { return number_of(a) < number_of(b); });
    if (number_of(*worst) >= classes) {
        diagnostics.error({labels_path, 0, 0}, referrer.key,
                          fmt::format("label {} of a model with {} classes", number_of(*worst), classes),
                          "raise the model's classes");
        return nullptr;
    }
    return std::make_shared<IdxImages>(path, std::move(images->content), std::move(labels->content),
                                       images->extents[1] * images->extents[2]);
}

std::shared_ptr<const DataSource> load_cifar(const std::string& path, CifarFormat format,
                                             const model::Tensor& input, std::int64_t classes,
                                             const DataReferrer& referrer, core::Diagnostics& diagnostics) {
    const auto refuse = [&](const std::string& message, const std::string& hint) {
        diagnostics.error(referrer.location, referrer.key, message, hint);
        return nullptr;
    };
    if (input.shape[0] != format.channels || input.shape[1] != format.side || input.shape[2] != format.side)
        return refuse(
            fmt::format("images of {0} x {0} with {1} channels, but the model takes {2} channels of "
                        "{3} x {4}",
                        format.side, format.channels, input.shape[0], input.shape[1], input.shape[2]),
            "set the model's image_size and channels to the data's");
    std::optional<MappedFile> file = MappedFile::open(path, diagnostics, referrer.location, referrer.key);
    if (!file) return nullptr;
    const std::size_t pixels = model::element_count(input.shape), record = format.labels + pixels;
    if (file->size() % record != 0)
        return refuse(
            fmt::format("{} has {} bytes, and an image with its labels takes {}", path, file->size(), record),
            "give the binary version, unpacked; several of its files may be joined with cat");
    auto images = std::make_shared<CifarImages>(path, std::move(*file), format, pixels);
    for (std::size_t i = 0; i < images->count(); ++i)
        if (images->label_at(i) >= classes)
            return refuse(fmt::format("{} has label {} at image {}, the model has {} classes", path,
                                      images->label_at(i), i, classes),
                          "raise the model's classes");
    return images;
}

}  // namespace exec
