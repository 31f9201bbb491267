// What was measured on a machine, in a file for the next run: which algorithm of a product, which engine of
// an attention, which fusion.
//
// A file is of one card with one set of libraries (`identity`) and says so in its first lines; every entry
// has a sum of its own. A file that is damaged, or of another card or version, is left out and said. Writers
// do not wait for each other: each writes a file of its own and renames it; of two at once the later one
// stays, and what it lacks is measured again.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace exec::cuda {

class ChoiceCache {
public:
    // `file` empty: kept in memory alone. Reads the file where there is one.
    ChoiceCache(std::filesystem::path file, std::string identity);

    // The value of a key (without white space) where it is known.
    std::optional<std::string> find(const std::string& key) const;
    void put(const std::string& key, std::string value);
    // Writes what is new, together with what others have written since; nothing where nothing is new. What
    // keeps it from it is a remark.
    void save();

    // What was left out of the file or could not be written, and why: a sentence each.
    const std::vector<std::string>& remarks() const { return remarks_; }
    std::size_t entries() const { return known_.size(); }

private:
    // Entries of the file; a remark where it is not to be used.
    std::map<std::string, std::string> read(std::vector<std::string>& remarks) const;

    const std::filesystem::path file_;
    const std::string identity_;
    std::map<std::string, std::string> known_, new_;
    std::vector<std::string> remarks_;
};

// $SMSIM_CUDA_CACHE, else smsim/ under $XDG_CACHE_HOME or ~/.cache; a file for each identity. Empty where no
// folder is named, or SMSIM_CUDA_CACHE is empty.
std::filesystem::path choice_cache_file(std::string_view identity);

}  // namespace exec::cuda
