#include "exec/checkpoint/checkpoint.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <limits>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "core/document.h"
#include "core/reader.h"
#include "exec/checkpoint/checksum.h"

namespace exec {

namespace fs = std::filesystem;

namespace {

constexpr char magic[16] = "smexec state 1\n";
constexpr const char* manifest_name = "manifest.json";
constexpr int manifest_version = 2;  // 1 had neither data_identity nor recipe

std::string partial_folder(const std::string& directory, std::int64_t step) {
    return checkpoint_folder(directory, step) + ".partial";
}

[[noreturn]] void fail(const std::string& what, const std::string& path) {
    throw core::MachineError(fmt::format("{} {}: {}", what, path, std::strerror(errno)));
}

class Descriptor {
public:
    Descriptor(const std::string& path, int flags)
        : descriptor_(::open(path.c_str(), flags | O_CLOEXEC, 0644)) {}
    ~Descriptor() {
        if (descriptor_ >= 0) ::close(descriptor_);
    }
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    int get() const { return descriptor_; }

private:
    const int descriptor_;
};

void synchronize_directory(const std::string& path) {
    const Descriptor directory(path, O_RDONLY | O_DIRECTORY);
    if (directory.get() < 0 || ::fsync(directory.get()) != 0) fail("synchronising", path);
}

// A file beyond the limit of RLIMIT_FSIZE is an error like a full disk, not the end of the process.
class IgnoredSizeSignal {
public:
    IgnoredSizeSignal() {
        sigset_t wanted;
        sigemptyset(&wanted);
        sigaddset(&wanted, SIGXFSZ);
        pthread_sigmask(SIG_BLOCK, &wanted, &before_);
    }
    ~IgnoredSizeSignal() {
        // One that came is taken away before it could be delivered.
        sigset_t wanted;
        sigemptyset(&wanted);
        sigaddset(&wanted, SIGXFSZ);
        const timespec at_once{};
        while (sigtimedwait(&wanted, nullptr, &at_once) > 0) {
        }
        pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    }

private:
    sigset_t before_;
};

// Replaces a file as a whole or not at all: written beside its destination, synchronised, renamed, the folder
// synchronised.
void write_durably(const std::string& folder, const std::string& name, std::span<const std::byte> content) {
    const std::string path = folder + "/" + name, temporary = path + ".writing";
    const IgnoredSizeSignal ignored;
    {
        const Descriptor file(temporary, O_WRONLY | O_CREAT | O_TRUNC);
        if (file.get() < 0) fail("creating", temporary);
        std::size_t written = 0;
        while (written < content.size()) {
            const ssize_t bytes = ::write(file.get(), content.data() + written, content.size() - written);
            if (bytes < 0 && errno == EINTR) continue;
            if (bytes < 0) fail("writing", temporary);
            written += bytes;
        }
        if (::fsync(file.get()) != 0) fail("synchronising", temporary);
    }
    if (::rename(temporary.c_str(), path.c_str()) != 0) fail("renaming", temporary);
    synchronize_directory(folder);
}

class Writer {
public:
    void add(const void* data, std::size_t bytes) {
        const auto* begin = static_cast<const std::byte*>(data);
        content.insert(content.end(), begin, begin + bytes);
    }
    void add(std::uint64_t number) { add(&number, sizeof number); }
    std::vector<std::byte> content;
};

class Cursor {
public:
    explicit Cursor(const std::string& content) : content_(content) {}
    bool take(void* into, std::size_t bytes) {
        if (bytes > content_.size() - at_) return false;
        if (bytes > 0) std::memcpy(into, content_.data() + at_, bytes);
        at_ += bytes;
        return true;
    }
    bool take(std::uint64_t& number) { return take(&number, sizeof number); }
    std::size_t left() const { return content_.size() - at_; }

private:
    const std::string& content_;
    std::size_t at_ = 0;
};

std::optional<std::int64_t> step_of(const std::string& name, const std::string& ending) {
    constexpr std::string_view begin = "step-";
    if (!name.starts_with(begin) || !name.ends_with(ending)) return std::nullopt;
    std::int64_t step = 0;
    const char *first = name.data() + begin.size(), *last = name.data() + name.size() - ending.size();
    const auto [end, error] = std::from_chars(first, last, step);
    if (error != std::errc() || end != last || first == last) return std::nullopt;
    return step;
}

std::vector<std::int64_t> steps_with(const std::string& directory, const std::string& ending) {
    std::vector<std::int64_t> steps;
    std::error_code none;
    for (const fs::directory_entry& entry : fs::directory_iterator(directory, none))
        if (const auto step = step_of(entry.path().filename().string(), ending);
            step && entry.is_directory(none))
            steps.push_back(*step);
    std::sort(steps.begin(), steps.end());
    return steps;
}

core::Value to_value(const CheckpointManifest& manifest) {
    core::Value value = core::Value::table();
    value["format"] = "smexec checkpoint";
    value["version"] = manifest_version;
    value["step"] = manifest.step;
    value["next_sample"] = manifest.next_sample;
    value["seed"] = fmt::format("{}", manifest.seed);  // JSON numbers lose bits above 2^53
    value["model"] = manifest.model;
    value["model_hash"] = manifest.model_hash;
    value["program_hash"] = manifest.program_hash;
    value["plan"] = manifest.plan;
    value["data"] = manifest.data;
    if (!manifest.data_identity.empty()) value["data_identity"] = manifest.data_identity;
    if (!manifest.recipe.empty()) value["recipe"] = manifest.recipe;
    value["files"] = core::Value::array();
    for (const CheckpointManifest::File& file : manifest.files) {
        core::Value entry = core::Value::table();
        entry["name"] = file.name;
        entry["bytes"] = static_cast<std::int64_t>(file.bytes);
        entry["xxh64"] = fmt::format("{:016x}", file.checksum);
        value["files"].append(std::move(entry));
    }
    value["losses"] = core::Value(manifest.losses);
    return value;
}

std::uint64_t checksum_of(const core::Value& value) {
    const std::string text = core::to_json(value);
    return checksum(std::as_bytes(std::span(text)));
}

template <class Number>
bool read_number(const std::string& text, Number& number, int base) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, base);
    return error == std::errc() && end == text.data() + text.size();
}

std::optional<CheckpointManifest> read_manifest(const std::string& folder, std::string& failure) {
    const std::string path = folder + "/" + manifest_name;
    core::Diagnostics diagnostics;
    const std::optional<core::Value> document = core::load_document(path, diagnostics);
    CheckpointManifest manifest;
    if (document) {
        // The last member is the checksum of the others as they were written.
        core::Value rest = *document;
        std::uint64_t sum = 0;
        if (!rest.is_table() || rest.size() == 0 || rest.members().back().first != "xxh64" ||
            !rest.members().back().second.is_string() ||
            !read_number(rest.members().back().second.string(), sum, 16)) {
            failure = fmt::format("{} is damaged: it has no checksum", path);
            return std::nullopt;
        }
        rest.members().pop_back();
        if (sum != checksum_of(rest)) {
            failure = fmt::format("{} is damaged: its checksum is {:016x}, {:016x} was written", path,
                                  checksum_of(rest), sum);
            return std::nullopt;
        }
        core::TableReader reader(rest, "", diagnostics);
        if (reader.required_string("format") != "smexec checkpoint" ||
            reader.required_integer("version", {.least = 1}) > manifest_version)
            diagnostics.error({path, 0, 0}, "format", "this is no checkpoint of this version", "");
        manifest.step = reader.required_integer("step", {.least = 0});
        manifest.next_sample = reader.required_integer("next_sample", {.least = 0});
        if (!read_number(reader.required_string("seed"), manifest.seed, 10))
            diagnostics.error({path, 0, 0}, "seed", "seed is no number", "");
        manifest.model = reader.required_string("model");
        manifest.model_hash = reader.required_string("model_hash");
        manifest.program_hash = reader.required_string("program_hash");
        manifest.plan = reader.required_string("plan");
        manifest.data = reader.required_string("data");
        manifest.data_identity = reader.string("data_identity", "");
        manifest.recipe = reader.string("recipe", "");
        if (const core::Value* losses = reader.required_array("losses"))
            for (const core::Value& loss : losses->items())
                manifest.losses.push_back(loss.is_number() ? loss.number()
                                                           : std::numeric_limits<double>::quiet_NaN());
        if (const core::Value* files = reader.required_array("files"))
            for (const core::Value& entry : files->items()) {
                core::TableReader file_reader(entry, "files", diagnostics);
                CheckpointManifest::File& file = manifest.files.emplace_back();
                file.name = file_reader.required_string("name");
                if (file.name.find('/') != std::string::npos)
                    diagnostics.error({path, 0, 0}, "files.name", "a file's name has no folder", "");
                file.bytes = file_reader.required_integer("bytes", {.least = 0});
                if (!read_number(file_reader.required_string("xxh64"), file.checksum, 16))
                    diagnostics.error({path, 0, 0}, "files.xxh64", "no hexadecimal number", "");
                file_reader.finish();
            }
        reader.finish();
    }
    if (!diagnostics.has_errors()) return manifest;
    failure = fmt::format("{} is damaged: {}", path, diagnostics.entries().front().message);
    return std::nullopt;
}

// Everything about one file that does not need its meaning.
std::optional<std::string> read_verified(const std::string& folder, const CheckpointManifest::File& file,
                                         std::string& failure) {
    const std::string path = folder + "/" + file.name;
    const Descriptor descriptor(path, O_RDONLY);
    struct stat status{};
    if (descriptor.get() < 0 || ::fstat(descriptor.get(), &status) != 0) {
        failure = fmt::format("{} cannot be read: {}", path, std::strerror(errno));
        return std::nullopt;
    }
    const auto bytes = static_cast<std::uint64_t>(status.st_size);
    if (bytes != file.bytes) {
        failure = fmt::format("{} has {} bytes, {} were written: it is {}", path, bytes, file.bytes,
                              bytes < file.bytes ? "truncated" : "damaged");
        return std::nullopt;
    }
    std::string content(bytes, '\0');
    std::size_t done = 0;
    while (done < content.size()) {
        const ssize_t got = ::read(descriptor.get(), content.data() + done, content.size() - done);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) {
            failure = fmt::format("{} cannot be read: {}", path,
                                  got == 0 ? "it became shorter" : std::strerror(errno));
            return std::nullopt;
        }
        done += got;
    }
    const std::uint64_t sum = checksum(std::as_bytes(std::span(content)));
    if (sum != file.checksum) {
        failure = fmt::format("{} is damaged: its checksum is {:016x}, {:016x} was written", path, sum,
                              file.checksum);
        return std::nullopt;
    }
    return content;
}

// The manifest is the last thing written into a folder before it gets its name.
bool lacks_only_its_name(const std::string& directory, std::int64_t step) {
    std::error_code none;
    std::string failure;
    return !fs::exists(checkpoint_folder(directory, step), none) &&
           read_manifest(partial_folder(directory, step), failure);
}

// Where a committed checkpoint is.
std::string present_folder(const std::string& directory, std::int64_t step) {
    return lacks_only_its_name(directory, step) ? partial_folder(directory, step)
                                                : checkpoint_folder(directory, step);
}

}  // namespace

std::string checkpoint_folder(const std::string& directory, std::int64_t step) {
    return fmt::format("{}/step-{:08}", directory, step);
}

std::vector<std::int64_t> committed_steps(const std::string& directory) {
    std::vector<std::int64_t> steps = steps_with(directory, "");
    for (const std::int64_t step : steps_with(directory, ".partial"))
        if (lacks_only_its_name(directory, step)) steps.push_back(step);
    std::sort(steps.begin(), steps.end());
    return steps;
}

std::string damaged_folder(const std::string& directory, std::int64_t step) {
    return checkpoint_folder(directory, step) + ".damaged";
}

std::optional<std::int64_t> step_of_folder(const std::string& name) { return step_of(name, ""); }

bool Checkpoint::load(const std::string& folder, std::string& failure) {
    const std::optional<CheckpointManifest> manifest = read_manifest(folder, failure);
    if (!manifest) return false;
    manifest_ = *manifest;
    for (const CheckpointManifest::File& file : manifest_.files) {
        const std::optional<std::string> content = read_verified(folder, file, failure);
        if (!content) return false;
        const auto is_damaged = [&] {
            failure = fmt::format("{}/{} is damaged: its records do not add up", folder, file.name);
            return false;
        };
        Cursor cursor(*content);
        char start[sizeof magic];
        std::uint64_t records = 0;
        if (!cursor.take(start, sizeof start) || std::memcmp(start, magic, sizeof magic) != 0 ||
            !cursor.take(records))
            return is_damaged();
        for (std::uint64_t i = 0; i < records; ++i) {
            std::uint64_t length = 0, kind = 0, first = 0, count = 0;
            if (!cursor.take(length) || length > cursor.left()) return is_damaged();
            std::string name(length, '\0');
            if (!cursor.take(name.data(), length) || !cursor.take(kind) || kind > 2 || !cursor.take(first) ||
                !cursor.take(count) || count > cursor.left() / sizeof(float))
                return is_damaged();
            Piece& piece = pieces_[{name, static_cast<StateKind>(kind)}].emplace_back();
            piece.first = first;
            piece.values.resize(count);
            cursor.take(piece.values.data(), count * sizeof(float));
        }
        if (cursor.left() > 0) return is_damaged();
    }
    for (auto& [key, pieces] : pieces_)
        std::stable_sort(pieces.begin(), pieces.end(),
                         [](const Piece& a, const Piece& b) { return a.first < b.first; });
    return true;
}

std::shared_ptr<const Checkpoint> Checkpoint::open(const std::string& directory,
                                                   std::optional<std::int64_t> step,
                                                   core::Diagnostics& diagnostics, bool is_resumed) {
    const char* const key = is_resumed ? "--resume" : "CHECKPOINT";
    const std::vector<std::int64_t> steps = committed_steps(directory);
    if (steps.empty()) {
        diagnostics.error(
            {}, key, fmt::format("there is no checkpoint in {}", core::in_quotes(directory)),
            is_resumed ? "start without --resume" : "name a folder that a run was given with --checkpoint");
        return nullptr;
    }
    if (step && std::find(steps.begin(), steps.end(), *step) == steps.end()) {
        std::vector<std::string> known;
        for (const std::int64_t one : steps) known.push_back(std::to_string(one));
        diagnostics.error(
            {}, "--from-step",
            fmt::format("there is no checkpoint of step {} in {}", *step, core::in_quotes(directory)),
            "there are those of " + core::list_in_words(known));
        return nullptr;
    }
    const std::int64_t wanted = step.value_or(steps.back());
    auto checkpoint = std::make_shared<Checkpoint>();
    std::string failure;
    if (checkpoint->load(present_folder(directory, wanted), failure)) return checkpoint;
    std::string hint = is_resumed ? "no older checkpoint is whole: start again without --resume"
                                  : "no older checkpoint is whole";
    for (auto older = steps.rbegin(); older != steps.rend(); ++older) {
        std::string ignored;
        if (*older >= wanted || !Checkpoint().load(present_folder(directory, *older), ignored)) continue;
        hint = fmt::format("the checkpoint of step {} is whole: --from-step {}{}", *older, *older,
                           is_resumed ? " --set-aside" : "");
        break;
    }
    diagnostics.error({}, key, failure, hint);
    return nullptr;
}

NewestCheckpoint Checkpoint::open_newest(const std::string& directory, std::optional<std::int64_t> newest) {
    NewestCheckpoint result;
    const std::vector<std::int64_t> steps = committed_steps(directory);
    for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
        if (newest && *step > *newest) continue;
        auto checkpoint = std::make_shared<Checkpoint>();
        std::string failure;
        if (checkpoint->load(present_folder(directory, *step), failure)) {
            result.checkpoint = std::move(checkpoint);
            break;
        }
        result.damaged.push_back({*step, failure});
    }
    return result;
}

bool Checkpoint::read(const std::string& parameter, StateKind kind, std::int64_t first,
                      std::span<float> into) const {
    const auto found = pieces_.find({parameter, kind});
    if (found == pieces_.end()) return into.empty();
    std::int64_t at = first;
    const std::int64_t end = first + std::ssize(into);
    // The same elements may be there more than once: copies of tied parameters.
    for (const Piece& piece : found->second) {
        const std::int64_t piece_end = piece.first + std::ssize(piece.values);
        if (piece.first > at || at >= end) break;
        if (piece_end <= at) continue;
        const std::int64_t until = std::min(piece_end, end);
        std::copy(piece.values.begin() + (at - piece.first), piece.values.begin() + (until - piece.first),
                  into.begin() + (at - first));
        at = until;
    }
    return at >= end;
}

std::optional<std::string> folder_failure(const std::string& directory) {
    std::error_code error;
    fs::path existing = fs::absolute(directory, error);
    while (!fs::exists(fs::symlink_status(existing, error)) && existing.has_relative_path() &&
           existing != existing.parent_path())
        existing = existing.parent_path();
    if (!fs::is_directory(existing, error)) return fmt::format("{} is no folder", existing.string());
    if (::access(existing.c_str(), W_OK | X_OK) != 0)
        return fmt::format("{} cannot be written: {}", existing.string(), std::strerror(errno));
    return std::nullopt;
}

void tidy_checkpoints(const std::string& directory) {
    std::error_code error;
    fs::create_directories(directory, error);
    if (error) throw core::MachineError(fmt::format("creating {}: {}", directory, error.message()));
    for (const std::int64_t step : steps_with(directory, ".partial")) {
        const std::string partial = partial_folder(directory, step),
                          place = checkpoint_folder(directory, step);
        if (lacks_only_its_name(directory, step)) {
            fs::rename(partial, place, error);
            synchronize_directory(directory);
        } else {
            fs::remove_all(partial, error);
        }
    }
    for (const std::int64_t step : steps_with(directory, ".replaced"))
        fs::remove_all(checkpoint_folder(directory, step) + ".replaced", error);
}

void set_aside_later(const std::string& directory, std::int64_t step) {
    std::vector<std::int64_t> later = steps_with(directory, "");
    std::erase_if(later, [&](std::int64_t one) { return one <= step; });
    if (later.empty()) return;
    std::string aside;
    for (int i = 1; aside.empty(); ++i) {
        const std::string candidate = fmt::format("{}/set-aside-{}", directory, i);
        if (::mkdir(candidate.c_str(), 0755) == 0) aside = candidate;
        else if (errno != EEXIST) fail("creating", candidate);
    }
    // The newest first: a run that ends half-way leaves no gap before the newest.
    for (auto one = later.rbegin(); one != later.rend(); ++one)
        if (::rename(checkpoint_folder(directory, *one).c_str(), checkpoint_folder(aside, *one).c_str()) != 0)
            fail("moving", checkpoint_folder(directory, *one));
    synchronize_directory(aside);
    synchronize_directory(directory);
}

void set_aside_damaged(const std::string& directory, const std::vector<std::int64_t>& steps) {
    std::error_code error;
    for (const std::int64_t step : steps) {
        const std::string place = checkpoint_folder(directory, step), aside = damaged_folder(directory, step);
        if (!fs::exists(place, error)) continue;
        fs::remove_all(aside, error);  // of an earlier attempt at the same step
        if (::rename(place.c_str(), aside.c_str()) != 0) fail("moving", place);
    }
    if (!steps.empty()) synchronize_directory(directory);
}

CheckpointManifest::File write_rank_state(const std::string& directory, std::int64_t step, int rank,
                                          const std::vector<StateRecord>& records) {
    Writer writer;
    writer.add(magic, sizeof magic);
    writer.add(records.size());
    for (const StateRecord& record : records) {
        writer.add(record.parameter.size());
        writer.add(record.parameter.data(), record.parameter.size());
        writer.add(static_cast<std::uint64_t>(record.kind));
        writer.add(static_cast<std::uint64_t>(record.first));
        writer.add(record.values.size());
        writer.add(record.values.data(), record.values.size() * sizeof(float));
    }
    const std::string folder = partial_folder(directory, step);
    if (::mkdir(folder.c_str(), 0755) != 0 && errno != EEXIST) fail("creating", folder);
    CheckpointManifest::File file{fmt::format("rank-{:04}.state", rank), writer.content.size(),
                                  checksum(writer.content)};
    write_durably(folder, file.name, writer.content);
    return file;
}

void commit_checkpoint(const std::string& directory, const CheckpointManifest& manifest, int keep) {
    const std::string partial = partial_folder(directory, manifest.step),
                      place = checkpoint_folder(directory, manifest.step);
    std::error_code error;
    for (const CheckpointManifest::File& file : manifest.files)
        if (fs::file_size(partial + "/" + file.name, error) != file.bytes || error)
            throw core::MachineError(
                fmt::format("{}/{} was written by another rank but is not seen by rank 0: all hosts must "
                            "share the folder of --checkpoint",
                            partial, file.name));
    core::Value value = to_value(manifest);
    const std::uint64_t sum = checksum_of(value);
    value["xxh64"] = fmt::format("{:016x}", sum);
    const std::string text = core::to_json(value) + "\n";
    write_durably(partial, manifest_name, std::as_bytes(std::span(text)));
    if (fs::exists(place, error)) {
        // From an earlier run that went further: it goes when the new one has its place.
        fs::rename(place, place + ".replaced", error);
        if (error) throw core::MachineError(fmt::format("renaming {}: {}", place, error.message()));
    }
    if (::rename(partial.c_str(), place.c_str()) != 0) fail("renaming", partial);
    synchronize_directory(directory);
    fs::remove_all(place + ".replaced", error);
    const std::vector<std::int64_t> steps = steps_with(directory, "");
    for (std::size_t i = 0; i + keep < steps.size(); ++i)
        if (steps[i] < manifest.step) fs::remove_all(checkpoint_folder(directory, steps[i]), error);
}

}  // namespace exec
