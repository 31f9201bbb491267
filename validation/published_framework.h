// Which framework profile the free text of a published row means. The table in the .cpp knows whole words and
// dates; nothing outside validation/ looks into such a text.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace validation {

struct PublishedFramework {
    std::string profile;  // a name of framework_profiles/
    std::string because;  // a sentence for the reader: which word and which date decided
};

// `text` is the cell, not blank: "NeMo 24.05", "DeepSpeed ZeRO-3". A text without a known word is a plain
// eager PyTorch, and the sentence says so. `usual_year` is of a text without a date or version.
PublishedFramework framework_of(std::string_view text, int usual_year);

// The year of a code that a row does not date, by what it trains on and what it trains: nobody had the device
// or the architecture before. `gpu` and `model` as in the columns.
int usual_year_of(std::string_view gpu, std::string_view model);

// A family of versions by its year, for rows that name no framework at all.
enum class FrameworkFamily { eager, apex, sharded, megatron, compiled_graph, llm_foundry, internlm };
std::string profile_of(FrameworkFamily family, int year);

// Every profile that a row can be taken for.
std::vector<std::string> profiles_of_published_frameworks();

}  // namespace validation
