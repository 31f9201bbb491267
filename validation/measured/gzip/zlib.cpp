// The one file of zlib.
#include <zlib.h>

#include <algorithm>
#include <array>
#include <limits>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "core/errors.h"
#include "validation/measured/gzip/gzip.h"

namespace validation {

namespace {

constexpr int gzip_alone = MAX_WBITS + 16;  // zlib.h: 16 more than the window's bits read gzip, not zlib

// An inflate stream that ends with its owner.
class Stream {
public:
    Stream() {
        if (inflateInit2(&stream_, gzip_alone) != Z_OK)
            throw core::MachineError("inflateInit2: no memory for a window");
    }
    ~Stream() { inflateEnd(&stream_); }
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;
    z_stream* operator->() { return &stream_; }
    z_stream* get() { return &stream_; }

private:
    z_stream stream_{};
};

}  // namespace

std::optional<std::string> unpacked(std::string_view bytes, const std::string& file,
                                    core::Diagnostics& diagnostics, std::size_t most_bytes) {
    Stream stream;
    std::string text;
    std::array<unsigned char, 1 << 16> buffer{};
    std::size_t given = 0;
    const auto place = [&] { return given - stream->avail_in; };
    const auto refuse = [&](const std::string& what) {
        diagnostics.error(
            {file, 0, 0}, "",
            fmt::format("no sound gzip file: at byte {} of {}: {}", place(), bytes.size(), what),
            "copy the trace again; gunzip -t tests it");
        return std::nullopt;
    };
    for (;;) {
        if (stream->avail_in == 0 && given < bytes.size()) {
            const std::size_t part =
                std::min<std::size_t>(bytes.size() - given, std::numeric_limits<unsigned>::max());
            // zlib reads these bytes; its field is not const unless ZLIB_CONST is defined.
            stream->next_in =
                const_cast<unsigned char*>(reinterpret_cast<const unsigned char*>(bytes.data() + given));
            stream->avail_in = static_cast<unsigned>(part);
            given += part;
        }
        stream->next_out = buffer.data();
        stream->avail_out = static_cast<unsigned>(buffer.size());
        const int answer = inflate(stream.get(), Z_NO_FLUSH);
        text.append(reinterpret_cast<const char*>(buffer.data()), buffer.size() - stream->avail_out);
        if (text.size() > most_bytes)
            return refuse(fmt::format("it unpacks to more than {} MiB", most_bytes >> 20));
        if (answer == Z_STREAM_END) {
            if (place() == bytes.size()) return text;
            if (bytes.substr(place(), 2) != "\x1f\x8b") return refuse("other bytes follow the packed text");
            if (inflateReset(stream.get()) != Z_OK) throw core::MachineError("inflateReset failed");
        } else if (answer == Z_BUF_ERROR ||
                   (answer == Z_OK && place() == bytes.size() && stream->avail_out == buffer.size())) {
            return refuse("the file ends early");
        } else if (answer != Z_OK) {
            return refuse(stream->msg ? stream->msg : "it is damaged");
        }
    }
}

}  // namespace validation
