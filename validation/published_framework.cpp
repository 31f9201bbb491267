#include "validation/published_framework.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <span>
#include <vector>

#include "core/csv.h"
#include "core/diagnostics.h"

namespace validation {

namespace {

constexpr int latest = 9999;

// Profiles of one code by the last year that they hold for.
struct Version {
    int until;
    const char* profile;
};
using Versions = std::vector<Version>;

// All phrases must stand in the text, each as whole words one after another. The first entry that fits
// decides.
struct Entry {
    std::vector<const char*> phrases;
    Versions versions;
};

const Versions eager = {{2020, "pytorch-2020"}, {2022, "pytorch-1"}, {latest, "pytorch"}};
const Versions apex = {{2020, "pytorch-apex-2020"}, {latest, "pytorch-apex"}};
const Versions containers = {{2020, "pytorch-ngc-2020"}, {2022, "pytorch-ngc"}, {latest, "pytorch"}};
const Versions megatron = {{2021, "megatron-lm-2021"},
                           {2022, "megatron-lm-2022"},
                           {2023, "megatron-lm-2023"},
                           {latest, "megatron-lm"}};
const Versions megatron_deepspeed = {{2021, "megatron-deepspeed-2021"}, {latest, "megatron-deepspeed"}};
const Versions deepspeed = {{2022, "deepspeed-2021"}, {latest, "deepspeed"}};
const Versions xla = {{2022, "xla-2022"}, {latest, "xla"}};
const Versions tensorflow = {{2020, "tensorflow-1"}, {latest, "tensorflow-compiled"}};
const Versions tensorflow_xla = {{2020, "tensorflow-1-compiled"}, {latest, "tensorflow-compiled"}};

Versions always(const char* profile) { return {{latest, profile}}; }

const std::vector<Entry>& entries() {
    static const std::vector<Entry> list = {
        // What another code was compared with.
        {{"baseline", "deepspeed"}, always("pytorch-2020")},
        {{"adaptdl"}, always("adaptdl")},
        // Codes on Megatron-LM's layers.
        {{"vtrain"}, always("megatron-deepspeed-traced")},
        {{"zero bubble"}, always("zero-bubble")},
        {{"megatron bridge"}, always("nemo")},
        {{"nemo", "transformer engine"}, always("nemo")},
        {{"nemo"}, {{2023, "nemo-2023"}, {latest, "nemo"}}},
        {{"neox"}, megatron_deepspeed},
        {{"megatron", "deepspeed"}, megatron_deepspeed},
        {{"megatron core"}, always("megatron-lm")},
        {{"mcore"}, always("megatron-lm")},
        {{"megatron", "transformer engine"}, always("megatron-lm")},
        // A commit of 2021-04.
        {{"megatron", "8aa4619"}, always("megatron-lm-2021")},
        {{"megatron"}, megatron},
        {{"megatronlm"}, megatron},
        // Static graphs.
        {{"tensorflow", "horovod"}, always("tensorflow-horovod")},
        {{"tensorflow", "xla"}, tensorflow_xla},
        {{"tensorflow2"}, always("tensorflow-compiled")},
        {{"tf2"}, always("tensorflow-compiled")},
        {{"keras"}, always("tensorflow-compiled")},
        {{"tensorflow"}, tensorflow},
        {{"mxnet", "ngc"}, always("mxnet-ngc")},
        {{"mxnet"}, always("mxnet")},
        {{"oneflow"}, always("oneflow")},
        {{"libai"}, always("oneflow")},
        {{"paddle"}, always("graph-engine")},
        {{"paddlepaddle"}, always("graph-engine")},
        {{"paddlenlp"}, always("graph-engine")},
        {{"mindspore"}, always("graph-engine")},
        // Compilers of whole graphs.
        {{"alpa"}, always("alpa")},
        {{"maxtext"}, always("xla")},
        {{"levanter"}, always("xla")},
        {{"easylm"}, always("xla")},
        {{"axlearn"}, always("xla")},
        {{"paxml"}, xla},
        {{"praxis"}, xla},
        {{"t5x"}, xla},
        {{"flax"}, xla},
        {{"jax"}, xla},
        {{"xla"}, xla},
        // Without a framework.
        {{"llm c"}, always("llm.c")},
        // On PyTorch.
        {{"internlm"}, always("internlm")},
        {{"internevo"}, always("internlm")},
        {{"foundry"}, always("llm-foundry")},
        {{"composer"}, always("llm-foundry")},
        {{"mosaicml"}, always("llm-foundry")},
        {{"torchtitan", "compile"}, always("torchtitan-compiled")},
        {{"torchtitan"}, always("torchtitan")},
        {{"fms"}, always("pytorch-fsdp-compiled")},
        {{"colossal"}, eager},
        {{"colossalai"}, eager},
        {{"deepspeed", "kernels"}, always("deepspeed-kernels")},
        {{"deepspeed", "kernel"}, always("deepspeed-kernels")},
        {{"deepspeed", "fused"}, always("deepspeed-kernels")},
        {{"deepspeed"}, deepspeed},
        {{"zero 3"}, deepspeed},
        {{"zero 2"}, deepspeed},
        {{"zero 1"}, deepspeed},
        {{"fsdp", "flashattention 1"}, always("pytorch-fsdp-flash-1")},
        {{"fsdp", "compile"}, always("pytorch-fsdp-compiled")},
        {{"fsdp2", "compile"}, always("pytorch-fsdp-compiled")},
        {{"fsdp"}, always("pytorch-fsdp")},
        {{"fsdp2"}, always("pytorch-fsdp")},
        {{"litgpt"}, always("pytorch-fsdp")},
        {{"lit gpt"}, always("pytorch-fsdp")},
        {{"sagemaker"}, always("pytorch-fsdp")},
        {{"smp"}, always("pytorch-fsdp")},
        {{"smdistributed"}, always("pytorch-fsdp")},
        {{"smddp"}, always("pytorch-fsdp")},
        {{"nanogpt", "compile"}, always("pytorch-compiled")},
        {{"nanogpt"}, always("nanogpt")},
        {{"torch", "compile"}, always("pytorch-compiled")},
        {{"pytorch", "compile"}, always("pytorch-compiled")},
        {{"pytorch", "compiled"}, always("pytorch-compiled")},
        {{"inductor"}, always("pytorch-compiled")},
        {{"apex"}, apex},
        {{"ngc"}, containers},
        {{"pytorch"}, eager},
        {{"torch"}, eager},
        {{"ddp"}, eager},
        {{"transformers"}, eager},
        {{"hugging face"}, eager},
        {{"huggingface"}, eager},
        {{"accelerate"}, eager},
        {{"lightning"}, eager},
        {{"nanotron"}, eager},
        {{"axolotl"}, eager},
        {{"axonn"}, eager},
        {{"fairseq"}, eager},
        {{"fairscale"}, eager},
        {{"horovod"}, eager},
        {{"timm"}, eager},
        {{"torchvision"}, eager},
        {{"detectron2"}, eager},
        {{"mmdetection"}, eager},
        {{"c++"}, always("llm.c")},
    };
    return list;
}

// The year of a release, by its code's version number: versions below `major`.`minor` are of `year` or
// before.
struct Release {
    const char* code;
    int major, minor, year;
};
constexpr auto releases = std::to_array<Release>({
    {"pytorch", 1, 8, 2020},
    {"pytorch", 2, 0, 2022},
    {"pytorch", 2, 2, 2023},
    {"pytorch", 2, 6, 2024},
    {"torch", 1, 8, 2020},
    {"torch", 2, 0, 2022},
    {"torch", 2, 2, 2023},
    {"torch", 2, 6, 2024},
    {"tensorflow", 2, 0, 2019},
    {"tensorflow", 99, 0, 2021},
    // Megatron-LM counted to 3; Megatron-Core began again with 0 in 2023.
    {"lm", 0, 5, 2023},
    {"lm", 1, 0, 2024},
    {"lm", 2, 0, 2020},
    {"lm", 3, 0, 2021},
    {"lm", 4, 0, 2022},
    {"nemo", 2, 0, 2023},
    {"nemo", 3, 0, 2024},
    {"deepspeed", 0, 6, 2021},
    {"deepspeed", 0, 8, 2022},
    {"deepspeed", 0, 13, 2023},
    {"jax", 0, 4, 2022},
    {"jax", 0, 5, 2024},
});

struct Number {
    int major = 0, minor = 0;
    std::size_t minor_digits = 0;
    bool has_minor = false;
};

// "2.3", "v0.8", "1": at most three digits before the point. A year is none.
std::optional<Number> number_of(std::string_view word) {
    if (word.starts_with('v')) word.remove_prefix(1);
    const std::size_t point = word.find('.');
    const std::string_view whole = word.substr(0, point);
    const std::optional<long long> major = core::parse_integer(whole);
    if (!major || whole.size() > 3 || *major < 0) return std::nullopt;
    Number number;
    number.major = static_cast<int>(*major);
    if (point == std::string_view::npos) return number;
    std::string_view rest = word.substr(point + 1);
    rest = rest.substr(0, rest.find('.'));
    const std::optional<long long> minor = core::parse_integer(rest);
    if (!minor || rest.size() > 3 || *minor < 0) return std::nullopt;
    number.minor = static_cast<int>(*minor);
    number.minor_digits = rest.size();
    number.has_minor = true;
    return number;
}

// Words in lower case; a point stays where digits stand on both sides of it.
std::vector<std::string> words_of(std::string_view text) {
    const auto is_digit = [&](std::size_t at) {
        return at < text.size() && std::isdigit(static_cast<unsigned char>(text[at])) != 0;
    };
    std::vector<std::string> words(1);
    for (std::size_t i = 0; i < text.size(); ++i) {
        const auto letter = static_cast<unsigned char>(text[i]);
        const bool is_point = letter == '.' && i > 0 && is_digit(i - 1) && is_digit(i + 1);
        // The one name of a language with a sign in it.
        const bool is_sign = letter == '+' && (words.back() == "c" || words.back() == "c+");
        if (std::isalnum(letter) != 0 || is_point || is_sign)
            words.back() += static_cast<char>(std::tolower(letter));
        else if (!words.back().empty()) words.emplace_back();
    }
    if (words.back().empty()) words.pop_back();
    return words;
}

bool has_phrase(const std::vector<std::string>& words, std::string_view phrase) {
    const std::vector<std::string> wanted = words_of(phrase);
    return !std::ranges::search(words, wanted).empty();
}

struct Date {
    int year = 0;
    std::string word;  // that says it
};

constexpr int first_year = 2015, last_year = 2035;

// A four-digit year; else the container of a month ("NGC 20.06"); else the version of a code.
std::optional<Date> date_of(const std::vector<std::string>& words) {
    for (const std::string& word : words)
        if (const std::optional<long long> year = core::parse_integer(word);
            year && word.size() == 4 && *year >= first_year && *year <= last_year)
            return Date{static_cast<int>(*year), word};
    const auto names = [&](const char* word) { return has_phrase(words, word); };
    const bool has_months = names("ngc") || names("nemo") || names("container");
    for (std::size_t i = 0; i < words.size(); ++i) {
        const std::optional<Number> number = number_of(words[i]);
        if (!number) continue;
        constexpr int century = 2000;
        const bool is_versioned = i > 0 && std::ranges::any_of(releases, [&](const Release& release) {
                                      return words[i - 1] == release.code;
                                  });
        const bool is_month = (has_months || is_versioned) && number->has_minor &&
                              number->minor_digits == 2 && number->minor >= 1 && number->minor <= 12 &&
                              century + number->major >= first_year + 2 &&
                              century + number->major <= last_year;
        if (is_month) return Date{century + number->major, words[i]};
        if (i == 0) continue;
        int newest = 0;
        for (const Release& release : releases) {
            if (words[i - 1] != release.code) continue;
            newest = release.year + 1;
            if (std::pair(number->major, number->minor) < std::pair(release.major, release.minor))
                return Date{release.year, words[i - 1] + " " + words[i]};
        }
        if (newest > 0) return Date{newest, words[i - 1] + " " + words[i]};
    }
    return std::nullopt;
}

std::string of_year(const Versions& versions, int year) {
    for (const Version& version : versions)
        if (year <= version.until) return version.profile;
    throw core::InternalError("broken promise: the last version of a code has no end");
}

std::string in_words(const std::vector<const char*>& phrases) {
    std::string text;
    for (const char* phrase : phrases) text += (text.empty() ? "'" : " and '") + std::string(phrase) + "'";
    return text;
}

}  // namespace

PublishedFramework framework_of(std::string_view text, int usual_year) {
    const std::vector<std::string> words = words_of(text);
    const std::optional<Date> date = date_of(words);
    const int year = date ? date->year : usual_year;
    const auto found = std::ranges::find_if(entries(), [&](const Entry& entry) {
        return std::ranges::all_of(entry.phrases,
                                   [&](const char* phrase) { return has_phrase(words, phrase); });
    });
    const Versions& versions = found == entries().end() ? eager : found->versions;
    PublishedFramework framework;
    framework.profile = of_year(versions, year);
    framework.because =
        fmt::format("framework {} is taken for the profile {}", core::in_quotes(text), framework.profile);
    if (found == entries().end()) framework.because += ", a plain eager PyTorch: it has no known word";
    else framework.because += ", by " + in_words(found->phrases);
    if (versions.size() > 1)
        framework.because += date ? fmt::format(" and '{}'", date->word)
                                  : fmt::format("; it has no date: {} as usual for device and model", year);
    return framework;
}

int usual_year_of(std::string_view gpu, std::string_view model) {
    constexpr int year_of_hopper = 2024;  // published runs on it; its first machines are of 2022-10
    constexpr int year_of_llama = 2023;   // Llama, MPT and InternLM
    constexpr int year_of_the_others = 2021;
    const auto is_of = [](std::string_view text, std::initializer_list<const char*> names) {
        return std::ranges::any_of(names, [&](const char* name) { return text.starts_with(name); });
    };
    if (is_of(gpu, {"H100", "H200", "H800", "H20", "GH200", "B200", "B300", "GB200", "GB300", "L4", "MI300"}))
        return year_of_hopper;
    return is_of(model, {"llama", "mpt", "internlm", "mistral", "mixtral", "qwen"}) ? year_of_llama
                                                                                    : year_of_the_others;
}

std::string profile_of(FrameworkFamily family, int year) {
    switch (family) {
        case FrameworkFamily::eager: return of_year(eager, year);
        case FrameworkFamily::apex: return of_year(apex, year);
        case FrameworkFamily::sharded: return "pytorch-fsdp";
        case FrameworkFamily::megatron: return of_year(megatron, year);
        case FrameworkFamily::compiled_graph: return of_year(xla, year);
        case FrameworkFamily::llm_foundry: return "llm-foundry";
        case FrameworkFamily::internlm: return "internlm";
    }
    throw core::InternalError("broken promise: every family has profiles");
}

std::vector<std::string> profiles_of_published_frameworks() {
    std::vector<std::string> profiles;
    for (const Entry& entry : entries())
        for (const Version& version : entry.versions) profiles.emplace_back(version.profile);
    std::ranges::sort(profiles);
    profiles.erase(std::ranges::unique(profiles).begin(), profiles.end());
    return profiles;
}

}  // namespace validation
