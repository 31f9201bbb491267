#include "core/document.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "core/diagnostics.h"
#include "core/units.h"

namespace core {

namespace {

std::string system_message(int code) { return std::generic_category().message(code); }

// A link is followed, so that its target is replaced.
std::string target_of(const std::string& path) {
    std::error_code failure;
    const std::filesystem::path resolved = std::filesystem::weakly_canonical(path, failure);
    return failure || path.empty() ? path : resolved.string();
}

// A device or a pipe (/dev/stdout) is written to, never renamed over.
bool is_special(const std::string& target) {
    struct stat status = {};
    return ::stat(target.c_str(), &status) == 0 && !S_ISREG(status.st_mode);
}

class File {
public:
    explicit File(int descriptor) : descriptor_(descriptor) {}
    ~File() {
        if (descriptor_ >= 0) ::close(descriptor_);
    }
    File(const File&) = delete;
    File& operator=(const File&) = delete;
    int descriptor() const { return descriptor_; }
    int close() { return ::close(std::exchange(descriptor_, -1)); }

private:
    int descriptor_;
};

// The file beside it whose name is nearly the one asked for.
std::string neighbour_hint(const std::string& path) {
    const std::filesystem::path asked(path);
    std::error_code failure;
    std::vector<std::string> names;
    const std::filesystem::path folder =
        asked.has_parent_path() ? asked.parent_path() : std::filesystem::path(".");
    for (std::filesystem::directory_iterator entry(folder, failure), end;
         !failure && entry != end && names.size() < 10000; entry.increment(failure))
        names.push_back(entry->path().filename().string());
    std::sort(names.begin(), names.end());
    const std::string nearest = did_you_mean(asked.filename().string(), names);
    if (nearest.empty()) return "check the path; relative paths in a file start at that file";
    return "did you mean " + in_quotes((asked.parent_path() / nearest).string(), 300) + "?";
}

}  // namespace

std::optional<std::string> read_file(const std::string& path, Diagnostics& diagnostics,
                                     const SourceLocation& referrer, const std::string& key,
                                     std::size_t largest_bytes) {
    // The location of a fault: where the path was written, or without a referrer the file itself.
    SourceLocation location = referrer;
    if (location.file.empty() && location.line == 0) location.file = path;
    const std::string name = "file " + in_quotes(path, 300);
    const auto refuse = [&](const std::string& message, std::string hint) {
        diagnostics.error(location, key, (key.empty() ? "" : key + ": ") + message, std::move(hint));
        return std::nullopt;
    };
    if (path.empty() || path.find('\0') != std::string::npos)
        return refuse("a file name is expected, but " + in_quotes(path) + " is given",
                      "give the path of a file");
    File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (file.descriptor() < 0) {
        const int code = errno;
        return refuse("cannot open " + name + ": " + system_message(code),
                      code == ENOENT ? neighbour_hint(path) : std::string());
    }
    struct stat status = {};
    if (::fstat(file.descriptor(), &status) == 0 && S_ISDIR(status.st_mode))
        return refuse(name + " is a directory", "give the path of a file");
    std::string content;
    if (S_ISREG(status.st_mode) && status.st_size > 0)
        content.reserve(std::min(static_cast<std::size_t>(status.st_size), largest_bytes) + 1);
    char buffer[1 << 16];
    while (true) {
        const ssize_t count = ::read(file.descriptor(), buffer, sizeof buffer);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) return refuse("cannot read " + name + ": " + system_message(errno), {});
        if (count == 0) return content;
        content.append(buffer, static_cast<std::size_t>(count));
        if (content.size() > largest_bytes)
            return refuse(name + " is larger than " + format(bytes(largest_bytes)),
                          "no file of this kind is that large: check the path");
    }
}

std::optional<Value> load_document(const std::string& path, Diagnostics& diagnostics,
                                   const SourceLocation& referrer, const std::string& key) {
    const auto text = read_file(path, diagnostics, referrer, key);
    if (!text) return std::nullopt;
    return path.ends_with(".json") ? parse_json(*text, path, diagnostics)
                                   : parse_toml(*text, path, diagnostics);
}

Value to_value(const Diagnostics& diagnostics) {
    Value errors = Value::array();
    Value warnings = Value::array();
    for (const Diagnostic& entry : diagnostics.entries()) {
        Value one = Value::table();
        one["file"] = entry.location.file;
        one["line"] = entry.location.line;
        one["column"] = entry.location.column;
        one["key"] = entry.key;
        one["message"] = entry.message;
        one["hint"] = entry.hint;
        if (!entry.value.empty()) one["value"] = entry.value;
        if (!entry.allowed.empty()) one["allowed"] = entry.allowed;
        (entry.severity == Severity::error ? errors : warnings).append(std::move(one));
    }
    Value document = Value::table();
    document["errors"] = std::move(errors);
    if (warnings.size() > 0) document["warnings"] = std::move(warnings);
    return document;
}

std::optional<std::string> writing_failure(const std::string& path) {
    if (path.empty()) return "no file is named";
    const std::string target = target_of(path);
    std::error_code error;
    if (std::filesystem::is_directory(target, error)) return "it is a folder";
    if (is_special(target)) return std::nullopt;
    const std::filesystem::path parent = std::filesystem::path(target).parent_path();
    const std::string folder = parent.empty() ? "." : parent.string();
    if (!std::filesystem::exists(folder, error)) return folder + " does not exist";
    if (!std::filesystem::is_directory(folder, error)) return folder + " is no folder";
    if (::access(folder.c_str(), W_OK | X_OK) != 0)
        return folder + " cannot be written: " + system_message(errno);
    return std::nullopt;
}

void write_file_atomically(const std::string& path, std::string_view content) {
    const auto fail = [&](const std::string& call, const std::string& object, int code) {
        throw MachineError(call + " " + in_quotes(object, 300) + ": " + system_message(code));
    };
    const std::string target = target_of(path);
    const bool writes_in_place = is_special(target);
    std::string written = target;
    int descriptor = -1;
    if (writes_in_place) {
        descriptor = ::open(target.c_str(), O_WRONLY | O_CLOEXEC);
    } else {
        for (int attempt = 0; attempt < 1000 && descriptor < 0; ++attempt) {
            written = target + ".partial-" + std::to_string(::getpid()) + "-" + std::to_string(attempt);
            descriptor = ::open(written.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
            if (descriptor < 0 && errno != EEXIST) break;
        }
    }
    if (descriptor < 0) fail("cannot create", path, errno);
    File file(descriptor);
    const auto give_up = [&](const std::string& call) {
        const int code = errno;
        if (!writes_in_place) ::unlink(written.c_str());
        fail(call, path, code);
    };
    for (std::size_t offset = 0; offset < content.size();) {
        const ssize_t count = ::write(file.descriptor(), content.data() + offset, content.size() - offset);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) give_up("cannot write");
        offset += count;
    }
    if (file.close() != 0) give_up("cannot write");
    if (!writes_in_place && ::rename(written.c_str(), target.c_str()) != 0) give_up("cannot replace");
}

}  // namespace core
