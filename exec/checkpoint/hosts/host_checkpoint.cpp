#include "exec/checkpoint/hosts/host_checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>
#include <utility>

#include <fmt/core.h>

#include "core/errors.h"
#include "core/index/integers.h"
#include "exec/checkpoint/checksum.h"
#include "exec/checkpoint/hosts/host_copies.h"
#include "exec/checkpoint/hosts/host_files.h"
#include "exec/checkpoint/rank_file.h"
#include "exec/transport/exchange.h"

namespace exec {

namespace {

namespace fs = std::filesystem;

enum : Tag {
    tag_steps = 37,
    tag_candidates = 38,
    tag_text = 39,
    tag_manifest = 40,
    tag_found = 41,
    tag_holders = 42,
    tag_arrays = 43,
    tag_all_arrays = 44,
    tag_wanted = 45
};

std::vector<std::string> split(const std::string& text, char at) {
    std::vector<std::string> parts;
    std::istringstream stream(text);
    for (std::string part; std::getline(stream, part, at);) parts.push_back(part);
    return parts;
}

// A manifest that is in some folder; without a provider: why there is none of this step.
struct Candidate {
    std::int64_t step = 0;
    std::string checksum;  // of its text
    int provider = -1;
    std::string failure;
};

std::vector<Candidate> candidates_in(const std::string& directory, std::optional<std::int64_t> only,
                                     int rank) {
    std::vector<Candidate> result;
    for (const std::int64_t step : begun_steps(directory)) {
        if (only && step != *only) continue;
        Candidate candidate{step, {}, rank, {}};
        for (const std::string& folder : folders_of(directory, step)) {
            std::string failure;
            std::error_code none;
            // One that is being written has no manifest yet, and is none.
            if (!fs::exists(folder + "/manifest.json", none) && folder.ends_with(".partial")) continue;
            if (!fs::exists(folder, none)) continue;
            const std::optional<CheckpointManifest> manifest = read_manifest(folder, failure);
            if (manifest) {
                const std::string text = text_of(*manifest);
                candidate.checksum = fmt::format("{:016x}", checksum(std::as_bytes(std::span(text))));
                break;
            }
            candidate.failure = failure;
        }
        if (!candidate.checksum.empty() || !candidate.failure.empty()) result.push_back(candidate);
    }
    return result;
}

std::string to_line(const Candidate& one) {
    std::string failure = one.failure;
    std::replace(failure.begin(), failure.end(), '\n', ' ');
    return fmt::format("{}\t{}\t{}\t{}\n", one.step, one.checksum, one.provider, failure);
}

std::vector<Candidate> from_lines(const std::string& text) {
    std::vector<Candidate> result;
    for (const std::string& line : split(text, '\n')) {
        const std::vector<std::string> parts = split(line, '\t');
        core::require(parts.size() >= 3, "a rank's list of checkpoints is complete");
        result.push_back(
            {std::stoll(parts[0]), parts[1], std::stoi(parts[2]), parts.size() > 3 ? parts[3] : ""});
    }
    return result;
}

// The newest first; a step whose manifest is damaged in every folder is a candidate without a checksum.
std::vector<Candidate> merged(const std::vector<std::string>& all) {
    std::map<std::pair<std::int64_t, std::string>, Candidate> known;
    std::set<std::int64_t> has_manifest;
    for (const std::string& text : all)
        for (Candidate& one : from_lines(text)) {
            if (!one.checksum.empty()) has_manifest.insert(one.step);
            known.try_emplace({-one.step, one.checksum}, std::move(one));
        }
    std::vector<Candidate> result;
    for (auto& [key, one] : known)
        if (!one.checksum.empty() || !has_manifest.contains(one.step)) result.push_back(std::move(one));
    return result;
}

// Parts of a file's arrays that came from another rank.
class FetchedFile : public RankFile {
public:
    struct Part {
        std::vector<ElementRange> runs;  // in the array, ascending, none touching the next
        std::vector<float> values;       // of all runs
    };
    explicit FetchedFile(std::vector<Array> arrays) {
        arrays_ = std::move(arrays);
        parts_.resize(arrays_.size());
    }
    std::vector<Part>& parts() { return parts_; }

    bool verify(std::size_t, std::string&) const override { return true; }  // its owner did
    bool read(std::size_t index, std::int64_t at, std::span<float> into,
              std::string& failure) const override {
        const Part& part = parts_[index];
        std::int64_t before = 0;
        for (const ElementRange& run : part.runs) {
            if (run.first <= at && at + std::ssize(into) <= run.first + run.count) {
                std::copy_n(part.values.begin() + before + (at - run.first), into.size(), into.begin());
                return true;
            }
            before += run.count;
        }
        failure = "what is read of another host's file was not asked for";
        return false;
    }

private:
    std::vector<Part> parts_;
};

// What of an array is needed, in the array's own elements.
std::vector<ElementRange> runs_in(const RankFile::Array& array, const StateNeeds& needs) {
    std::vector<ElementRange> runs;
    const auto found = needs.find({array.parameter, array.kind});
    if (found == needs.end()) return runs;
    auto needed = found->second.begin();
    std::int64_t at = 0;
    for (const ElementRange& range : array.ranges) {
        while (needed != found->second.end() && needed->first + needed->count <= range.first) ++needed;
        for (auto one = needed; one != found->second.end() && one->first < range.first + range.count; ++one) {
            const std::int64_t low = std::max(one->first, range.first),
                               high = std::min(one->first + one->count, range.first + range.count);
            if (low >= high) continue;
            const std::int64_t begin = at + low - range.first, end = begin + high - low;
            if (!runs.empty() && begin <= runs.back().first + runs.back().count)
                runs.back().count = std::max(runs.back().count, end - runs.back().first);
            else runs.push_back({begin, end - begin});
        }
        at += range.count;
    }
    return runs;
}

std::int64_t count_of(const std::vector<ElementRange>& ranges) {
    std::int64_t count = 0;
    for (const ElementRange& range : ranges) count += range.count;
    return count;
}

class Search {
public:
    Search(Communicator& communicator, const HostFolders& folders, const std::string& directory,
           const StateNeeds& needs)
        : communicator_(communicator), folders_(folders), directory_(directory), needs_(needs) {}

    HostCheckpoint newest(std::optional<std::int64_t> only) {
        HostCheckpoint result;
        for (const Candidate& candidate : all_candidates(only)) {
            std::string failure = candidate.failure;
            if (!candidate.checksum.empty()) {
                failure.clear();
                manifest_ = manifest_of(candidate);
                if (find_holders(failure)) {
                    result.checkpoint = collect();
                    result.holders = holders_;
                    break;
                }
            }
            // Manifests of two trainings may say the same step.
            if (result.damaged.empty() || result.damaged.back().step != candidate.step)
                result.damaged.push_back({candidate.step, failure});
        }
        if (result.checkpoint)
            std::erase_if(result.damaged,
                          [&](const DamagedCheckpoint& damaged) { return damaged.step == manifest_.step; });
        return result;
    }

private:
    int rank() const { return communicator_.rank(); }
    int own_folder() const { return folders_.folder_of_rank[rank()]; }

    std::vector<Candidate> all_candidates(std::optional<std::int64_t> only) {
        std::string own;
        if (folders_.leads(rank()))
            for (const Candidate& one : candidates_in(directory_, only, rank())) own += to_line(one);
        const std::vector<std::string> all = gather_texts(communicator_, tag_steps, own);
        std::string text;
        for (const Candidate& one : merged(all)) text += to_line(one);
        return from_lines(broadcast_text(communicator_, tag_candidates, text));
    }

    CheckpointManifest manifest_of(const Candidate& candidate) {
        std::string text, failure;
        if (rank() == candidate.provider) {
            for (const std::string& folder : folders_of(directory_, candidate.step))
                if (const auto manifest = read_manifest(folder, failure); manifest && text.empty())
                    text = text_of(*manifest);
            if (rank() != 0) send_text(communicator_, 0, tag_text, text);
        } else if (rank() == 0) {
            text = receive_text(communicator_, candidate.provider, tag_text);
        }
        text = broadcast_text(communicator_, tag_manifest, text);
        std::optional<CheckpointManifest> manifest = read_manifest_text(text, "manifest.json", failure);
        if (!manifest) throw core::MachineError(failure);
        return std::move(*manifest);
    }

    // The ranks of a folder divide its files: each is read once and verified as a whole.
    std::string found_here() {
        const std::vector<int> beside = folders_.ranks_in(own_folder());
        const auto position = std::find(beside.begin(), beside.end(), rank()) - beside.begin();
        std::string found;
        for (const std::int32_t f : core::indices(manifest_.files)) {
            if (f % std::ssize(beside) != position) continue;
            std::string failure;
            if (open_here(f, failure, true)) found += fmt::format("{}\t\n", f);
            else if (!failure.empty()) found += fmt::format("{}\t{}\n", f, failure);
        }
        return found;
    }

    std::unique_ptr<const RankFile> open_here(std::int32_t f, std::string& failure, bool verifies) const {
        return open_host_file(directory_, manifest_, f, verifies, failure).content;
    }

    // Fills holders_ on every rank; false, and words, when a file is nowhere whole.
    bool find_holders(std::string& failure) {
        const std::vector<std::string> all = gather_texts(communicator_, tag_found, found_here());
        std::vector<std::set<int>> holders(manifest_.files.size());
        std::vector<std::string> damage(manifest_.files.size());
        for (const std::int32_t r : core::indices(all))
            for (const std::string& line : split(all[r], '\n')) {
                const std::vector<std::string> parts = split(line, '\t');
                const std::size_t f = std::stoull(parts[0]);
                if (parts.size() < 2) holders[f].insert(folders_.folder_of_rank[r]);
                else damage[f] = fmt::format("{} on {}", parts[1], place_of_folder(r));
            }
        std::string text;
        if (rank() == 0) text = "!" + missing_in_words(holders, damage);
        if (text == "!") {
            text.clear();
            for (const std::set<int>& of_file : holders) {
                for (const int folder : of_file) text += fmt::format("{} ", folder);
                text += '\n';
            }
        }
        text = broadcast_text(communicator_, tag_holders, text);
        if (text.starts_with('!')) {
            failure = text.substr(1);
            return false;
        }
        holders_.clear();
        for (const std::string& line : split(text, '\n')) {
            std::vector<int>& of_file = holders_.emplace_back();
            for (const std::string& folder : split(line, ' ')) of_file.push_back(std::stoi(folder));
        }
        return true;
    }

    const std::string& place_of_folder(int rank) const {
        return folders_.places[folders_.folder_of_rank[rank]];
    }

    // "rank-0002.safetensors is damaged: ... on node1:/scratch; rank-0003.safetensors of step 40 was written
    // to node2:/scratch and lies in no folder of this job's hosts". Empty when nothing is missing.
    std::string missing_in_words(const std::vector<std::set<int>>& holders,
                                 const std::vector<std::string>& damage) const {
        std::string words;
        std::map<std::string, std::vector<std::string>> missing;  // by place
        for (const std::int32_t f : core::indices(manifest_.files)) {
            if (!holders[f].empty()) continue;
            if (!damage[f].empty()) words += (words.empty() ? "" : "; ") + damage[f];
            else
                missing[manifest_.places.empty() ? "a folder that hosts shared" : manifest_.places[f]]
                    .push_back(manifest_.files[f].name);
        }
        for (const auto& [place, names] : missing) {
            std::string list;
            for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
            words +=
                fmt::format("{}{} of step {} {} written to {} and {} in no folder of this job's hosts",
                            words.empty() ? "" : "; ", list, manifest_.step,
                            names.size() == 1 ? "was" : "were", place, names.size() == 1 ? "lies" : "lie");
        }
        return words;
    }

    bool is_here(std::int32_t f, int folder) const {
        return std::find(holders_[f].begin(), holders_[f].end(), folder) != holders_[f].end();
    }
    // Who sends of a file to those in whose folder it is not; nobody when it is in all.
    std::optional<int> server_of(std::int32_t f) const {
        if (std::cmp_equal(holders_[f].size(), folders_.count())) return std::nullopt;
        const std::vector<int> there = folders_.ranks_in(holders_[f].front());
        return there[f % std::ssize(there)];
    }

    std::shared_ptr<const Checkpoint> collect() {
        std::vector<std::unique_ptr<const RankFile>> files(manifest_.files.size());
        std::string failure;
        for (const std::int32_t f : core::indices(manifest_.files)) {
            if (!is_here(f, own_folder())) continue;
            files[f] = open_here(f, failure, false);
            if (!files[f])
                throw core::MachineError(
                    failure.empty() ? fmt::format("file {} of the checkpoint of step {} is no longer in {}",
                                                  f, manifest_.step, directory_)
                                    : failure);
        }
        std::map<std::int32_t, FetchedFile*> fetched = fetched_files(files);
        std::set<int> servers;
        for (const std::int32_t f : core::indices(manifest_.files))
            if (const std::optional<int> server = server_of(f)) servers.insert(*server);
        for (const int server : servers)
            if (server != rank()) send_text(communicator_, server, tag_wanted, wanted_from(server, fetched));
        if (servers.contains(rank()))
            for (int other = 0; other < communicator_.size(); ++other)
                if (other != rank()) serve(other, files);
        for (const int server : servers)
            if (server != rank()) receive_from(server, fetched);
        return Checkpoint::of_files(manifest_, std::move(files));
    }

    // Which arrays files have that are not here: their servers tell all ranks.
    std::map<std::int32_t, FetchedFile*> fetched_files(std::vector<std::unique_ptr<const RankFile>>& files) {
        std::string own;
        for (const std::int32_t f : core::indices(manifest_.files)) {
            if (server_of(f) != rank()) continue;
            for (const RankFile::Array& array : files[f]->arrays())
                own += fmt::format("{}\t{}\t{}\t{}\t{}\n", f, core::position_of(array.kind),
                                   count_of(array.ranges), words_of(array.ranges), array.parameter);
        }
        std::string text;
        for (const std::string& one : gather_texts(communicator_, tag_arrays, own)) text += one;
        text = broadcast_text(communicator_, tag_all_arrays, text);
        std::map<std::int32_t, std::vector<RankFile::Array>> arrays;
        for (const std::string& line : split(text, '\n')) {
            const std::vector<std::string> parts = split(line, '\t');
            core::require(parts.size() == 5, "a rank's list of arrays is complete");
            std::optional<std::vector<ElementRange>> ranges = ranges_of(parts[3], std::stoll(parts[2]));
            core::require(ranges.has_value(), "a rank's list of arrays adds up");
            arrays[std::stoi(parts[0])].push_back(
                {parts[4], static_cast<StateKind>(std::stoul(parts[1])), std::move(*ranges)});
        }
        std::map<std::int32_t, FetchedFile*> fetched;
        for (const std::int32_t f : core::indices(manifest_.files)) {
            if (files[f]) continue;
            auto file = std::make_unique<FetchedFile>(std::move(arrays[f]));
            fetched[f] = file.get();
            files[f] = std::move(file);
        }
        return fetched;
    }

    std::string wanted_from(int server, const std::map<std::int32_t, FetchedFile*>& fetched) {
        std::string text;
        for (const auto& [f, file] : fetched) {
            if (server_of(f) != server) continue;
            for (std::size_t i = 0; i < file->arrays().size(); ++i) {
                std::vector<ElementRange> runs = runs_in(file->arrays()[i], needs_);
                if (runs.empty()) continue;
                text += fmt::format("{}\t{}\t{}\t{}\n", f, i, count_of(runs), words_of(runs));
                file->parts()[i].runs = std::move(runs);
            }
        }
        return text;
    }

    void serve(int other, const std::vector<std::unique_ptr<const RankFile>>& files) {
        std::vector<float> values;
        for (const std::string& line : split(receive_text(communicator_, other, tag_wanted), '\n')) {
            const std::vector<std::string> parts = split(line, '\t');
            const auto runs = ranges_of(parts.at(3), std::stoll(parts[2]));
            core::require(runs.has_value(), "what a rank asks for adds up");
            values.resize(count_of(*runs));
            std::span<float> rest = values;
            std::string failure;
            for (const ElementRange& run : *runs) {
                if (!files.at(std::stoull(parts[0]))
                         ->read(std::stoull(parts[1]), run.first, rest.first(run.count), failure))
                    throw core::MachineError(failure);
                rest = rest.subspan(run.count);
            }
            for (std::size_t at = 0; at < values.size(); at += most_floats_in_a_piece)
                communicator_.finish(communicator_.start_send(
                    other, file_tag,
                    std::span(values).subspan(at, std::min(most_floats_in_a_piece, values.size() - at)),
                    nullptr));
        }
    }

    void receive_from(int server, const std::map<std::int32_t, FetchedFile*>& fetched) {
        for (const auto& [f, file] : fetched) {
            if (server_of(f) != server) continue;
            for (FetchedFile::Part& part : file->parts()) {
                part.values.resize(count_of(part.runs));
                for (std::size_t at = 0; at < part.values.size(); at += most_floats_in_a_piece)
                    communicator_.receive(
                        server, file_tag,
                        std::span(part.values)
                            .subspan(at, std::min(most_floats_in_a_piece, part.values.size() - at)),
                        Arrival::overwrites);
            }
        }
    }

    Communicator& communicator_;
    const HostFolders& folders_;
    const std::string& directory_;
    const StateNeeds& needs_;
    CheckpointManifest manifest_;            // of the candidate at hand
    std::vector<std::vector<int>> holders_;  // by file: folders in which it is whole
};

}  // namespace

HostCheckpoint open_newest(Communicator& communicator, const HostFolders& folders,
                           const std::string& directory, std::optional<std::int64_t> only,
                           const StateNeeds& needs) {
    return Search(communicator, folders, directory, needs).newest(only);
}

}  // namespace exec
