// Measured choices on disk: what another run finds there, what it leaves out and says, and writers at once.
#include <catch2/catch.hpp>

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "exec/cuda/device/tuning/choice_cache.h"

namespace {

using exec::cuda::ChoiceCache;

const std::string h100 = "NVIDIA H100 80GB HBM3, driver 13000, cuBLASLt 130100, cuDNN 91900",
                  a100 = "NVIDIA A100-SXM4-40GB, driver 13000, cuBLASLt 130100, cuDNN 91900";

class Folder {
public:
    Folder()
        : path_(std::filesystem::temp_directory_path() /
                ("smsim-choices-" + std::to_string(::getpid()) + "-" + std::to_string(count_++))) {}
    ~Folder() { std::filesystem::remove_all(path_); }
    std::filesystem::path file() const { return path_ / "card.choices"; }
    std::size_t files() const {
        return static_cast<std::size_t>(
            std::distance(std::filesystem::directory_iterator(path_), std::filesystem::directory_iterator()));
    }

private:
    static inline int count_ = 0;
    const std::filesystem::path path_;
};

std::string text_of(const std::filesystem::path& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}
void write(const std::filesystem::path& file, const std::string& text) {
    std::ofstream(file, std::ios::binary | std::ios::trunc) << text;
}

}  // namespace

TEST_CASE("a run finds what a run before it has measured on the same card") {
    const Folder folder;
    const std::string any_bytes("\0\n \xff", 4);
    {
        ChoiceCache cache(folder.file(), h100);
        CHECK(cache.entries() == 0);
        CHECK_FALSE(cache.find("product:1,2,3"));
        cache.put("product:1,2,3", any_bytes);
        cache.put("pays:residual-norm", "");
        cache.save();
        CHECK(cache.remarks().empty());
    }
    const ChoiceCache cache(folder.file(), h100);
    CHECK(cache.find("product:1,2,3") == any_bytes);
    CHECK(cache.find("pays:residual-norm") == std::string());
    CHECK_FALSE(cache.find("product:1,2"));
    CHECK(cache.remarks().empty());
    CHECK(folder.files() == 1);  // nothing of the writing is left
}

TEST_CASE("choices of another card or library are left out and said, and are replaced") {
    const Folder folder;
    ChoiceCache first(folder.file(), h100);
    first.put("key", "value");
    first.save();
    ChoiceCache other(folder.file(), a100);
    CHECK_FALSE(other.find("key"));
    REQUIRE(other.remarks().size() == 1);
    CHECK_THAT(other.remarks()[0], Catch::Contains("H100") && Catch::Contains("A100"));
    other.put("own", "1");
    other.save();
    CHECK(ChoiceCache(folder.file(), a100).find("own") == "1");
    CHECK(ChoiceCache(folder.file(), a100).entries() == 1);
}

TEST_CASE("of a file that is cut, or has a digit changed anywhere, no wrong choice is taken") {
    const Folder folder;
    ChoiceCache first(folder.file(), h100);
    first.put("a", "one");
    first.put("b", "two");
    first.save();
    const std::string whole = text_of(folder.file());
    const auto holds_no_other = [&](const std::string& text) {
        write(folder.file(), text);
        const ChoiceCache cache(folder.file(), h100);
        CHECK((!cache.find("a") || cache.find("a") == "one"));
        CHECK((!cache.find("b") || cache.find("b") == "two"));
        return cache.entries() == 2 || !cache.remarks().empty();
    };
    for (std::size_t length = 0; length < whole.size(); ++length) {
        const bool is_told = holds_no_other(whole.substr(0, length));
        // Cut at the end of a line nothing is wrong but what is missing.
        if (length > 0 && whole[length - 1] != '\n' && whole[length] != '\n') CHECK(is_told);
    }
    for (std::size_t i = 0; i < whole.size(); ++i) {
        std::string changed = whole;
        changed[i] = changed[i] == '7' ? '8' : '7';
        CHECK(holds_no_other(changed));
    }
    CHECK(holds_no_other(std::string(1000, '\0')));
}

TEST_CASE("writers at once leave a whole file, and later ones keep what is there") {
    const Folder folder;
    std::vector<std::thread> writers;
    for (int writer = 0; writer < 8; ++writer)
        writers.emplace_back([&folder, writer] {
            for (int round = 0; round < 20; ++round) {
                ChoiceCache cache(folder.file(), h100);
                cache.put("writer-" + std::to_string(writer),
                          std::string(500, static_cast<char>('a' + writer)));
                cache.save();
            }
        });
    for (std::thread& writer : writers) writer.join();
    ChoiceCache cache(folder.file(), h100);
    CHECK(cache.remarks().empty());
    CHECK(cache.entries() > 0);
    for (int writer = 0; writer < 8; ++writer)
        if (const auto value = cache.find("writer-" + std::to_string(writer)))
            CHECK(*value == std::string(500, static_cast<char>('a' + writer)));
    ChoiceCache later(folder.file(), h100);
    later.put("one-more", "1");
    later.save();
    CHECK(ChoiceCache(folder.file(), h100).entries() == cache.entries() + 1);
    CHECK(folder.files() == 1);
}

TEST_CASE("a folder that cannot be written is a remark, and choices stay in memory") {
    const Folder folder;
    ChoiceCache cache("/proc/no-such-folder/card.choices", h100);
    cache.put("key", "value");
    cache.save();
    CHECK(cache.find("key") == "value");
    REQUIRE(cache.remarks().size() == 1);
    CHECK_THAT(cache.remarks()[0], Catch::Contains("not kept in /proc"));
    ChoiceCache nowhere({}, h100);
    nowhere.put("key", "value");
    nowhere.save();
    CHECK(nowhere.remarks().empty());
}
