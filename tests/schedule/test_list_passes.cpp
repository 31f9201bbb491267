#include <catch2/catch.hpp>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "core/document.h"
#include "schedule/pass/list_passes.h"
#include "schedule/pipeline/registry.h"
#include "schedule/schedule_text.h"
#include "schedule/verify.h"

namespace {

namespace fs = std::filesystem;
using schedule::Action;
using schedule::ActionKind;
using schedule::Schedule;

const fs::path reference = fs::path(SHARED_DIR) / "reference/schedules";

Schedule parsed(const std::string& text, const std::string& name = "list.csv") {
    core::Diagnostics diagnostics;
    const std::optional<Schedule> result = schedule::parse_schedule(text, name, diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(result);
    return *result;
}

std::string read(const fs::path& path) {
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

// Does `make` turn every *_compute list of PyTorch into the list beside it? Counted by family.
template <class Make>
std::map<std::string, std::pair<int, int>> compare(const std::string& suffix, Make make) {
    std::map<std::string, std::pair<int, int>> equal_of;
    for (const fs::directory_entry& entry : fs::directory_iterator(reference / "pytorch_gen")) {
        const std::string file = entry.path().filename().string(), ending = "_compute.csv";
        if (!file.ends_with(ending)) continue;
        const std::string stem = file.substr(0, file.size() - ending.size());
        const Schedule wanted = parsed(read(reference / "pytorch_gen" / (stem + suffix)), stem);
        const Schedule made = make(parsed(read(entry.path()), stem));
        auto& [equal, files] = equal_of[stem.substr(0, stem.find('_'))];
        ++files;
        equal += made.actions == wanted.actions;
        for (std::size_t rank = 0; rank < made.actions.size(); ++rank)
            if (made.actions[rank] != wanted.actions[rank]) {
                Schedule a = made, b = wanted;
                a.actions = {made.actions[rank]};
                b.actions = {wanted.actions[rank]};
                UNSCOPED_INFO(stem << " rank " << rank << "\nours    " << print_schedule(a) << "PyTorch " << print_schedule(b));
                break;
            }
    }
    return equal_of;
}

}  // namespace

TEST_CASE("Transfers stand where PyTorch's pass puts them, in every list") {
    if (!fs::is_directory(reference)) {
        WARN("skipped: no reference lists at " << reference.string());
        return;
    }
    int lists = 0;
    for (const auto& [family, count] : compare("_comms.csv", schedule::with_transfers)) {
        INFO(family);
        CHECK(count.first == count.second);
        lists += count.first;
    }
    CHECK(lists == 428);
}

TEST_CASE("Windows of gathered parameters and gradient reductions stand where PyTorch's passes put them, in every list") {
    if (!fs::is_directory(reference)) {
        WARN("skipped: no reference lists at " << reference.string());
        return;
    }
    int lists = 0;
    for (const auto& [family, count] : compare("_fsdp.csv", [](const Schedule& list) { return with_gradient_reductions(schedule::with_sharded_parameters(list)); })) {
        INFO(family);
        CHECK(count.first == count.second);
        lists += count.first;
    }
    CHECK(lists == 428);
}
