#include <catch2/catch.hpp>

#include <filesystem>
#include <functional>
#include <map>
#include <regex>

#include "schedule/pipeline/registry.h"
#include "schedule/schedule_text.h"
#include "schedule/verify.h"
#include "tests/schedule/reference_lists.h"

namespace {

namespace fs = std::filesystem;
using reference_lists::are_absent;
using reference_lists::files_of;
using reference_lists::load;
using schedule::Schedule;

// Which list a file name describes: the expression's groups become numbers.
struct Family {
    const char* folder;
    const char* pattern;
    const char* name;
    std::function<void(schedule::PipelineShape&, const std::vector<int>&)> shape;
};

int matches = 0;

void check_family(const Family& family) {
    const std::regex pattern(family.pattern);
    int equal = 0, files = 0;
    for (const fs::path& path : files_of(family.folder)) {
        std::smatch match;
        const std::string file = path.filename().string();
        if (!std::regex_match(file, match, pattern)) continue;
        std::vector<int> numbers;
        for (std::size_t i = 1; i < match.size(); ++i) numbers.push_back(std::stoi(match[i].str()));
        schedule::PipelineShape shape;
        family.shape(shape, numbers);
        const schedule::PipelineSchedule* entry = schedule::find_pipeline_schedule(family.name);
        REQUIRE(entry);
        ++files;
        INFO(file << " " << unsupported(*entry, shape).value_or(core::Unsupported{}).reason);
        CHECK_FALSE(unsupported(*entry, shape));
        if (unsupported(*entry, shape)) continue;
        const std::optional<Schedule> expected = load(path);
        REQUIRE(expected);
        const Schedule made = entry->generate(shape);
        const bool is_equal = made.actions == compute_only(*expected).actions;
        if (!is_equal) {
            const Schedule wanted = compute_only(*expected);
            for (std::size_t rank = 0; rank < made.actions.size() && rank < wanted.actions.size(); ++rank)
                if (made.actions[rank] != wanted.actions[rank]) {
                    Schedule a = made, b = wanted;
                    a.actions = {made.actions[rank]};
                    b.actions = {wanted.actions[rank]};
                    FAIL_CHECK("rank " << rank << "\nours      " << print_schedule(a) << "reference "
                                       << print_schedule(b));
                    break;
                }
        }
        equal += is_equal;
    }
    INFO(family.pattern);
    CHECK(files > 0);
    CHECK(equal == files);
    matches += equal;
}

}  // namespace

TEST_CASE("Every reference list passes verify") {
    if (are_absent()) return;
    std::map<std::string, int> passed;
    for (const char* folder : {"pytorch", "pytorch_gen", "sail_gen", "megatron_gen", "dualpipe_gen"})
        for (const fs::path& path : files_of(folder)) {
            const std::optional<Schedule> schedule = load(path);
            INFO(path.string());
            REQUIRE(schedule);
            const std::vector<schedule::Violation> violations = verify(*schedule);
            if (violations.empty()) ++passed[folder];
            else
                FAIL_CHECK(violations[0].rule << ": " << violations[0].message << "\n"
                                              << draw(*schedule, &violations[0], 12));
        }
    CHECK(passed["pytorch"] == 3);
    CHECK(passed["pytorch_gen"] == 1284);
    CHECK(passed["sail_gen"] == 890);
}

TEST_CASE("The list of PyTorch 2.14.1 whose last rank starts at micro-batch 1 is rejected") {
    if (are_absent()) return;
    for (const fs::path& path : files_of("negative_fixtures")) {
        const std::optional<Schedule> schedule = load(path);
        REQUIRE(schedule);
        const std::vector<schedule::Violation> violations = verify(*schedule);
        REQUIRE_FALSE(violations.empty());
        CHECK(violations[0].rule == "completeness");
        bool names_missing = false;
        for (const schedule::Violation& violation : violations)
            names_missing = names_missing || violation.message.find("1F0 is missing") != std::string::npos;
        CHECK(names_missing);
    }
}

TEST_CASE("Our generators equal the reference lists action by action") {
    if (are_absent()) return;
    using Numbers = std::vector<int>;
    using Shape = schedule::PipelineShape;
    auto pvm = [](Shape& s, const Numbers& n) { s.ranks = n[0], s.chunks = n[1], s.micro_batches = n[2]; };
    auto pvmg = [](Shape& s, const Numbers& n) {
        s.ranks = n[0], s.chunks = n[1], s.micro_batches = n[2],
        s.parameters = schedule::GroupParameters{n[3]};
    };
    auto pm = [](Shape& s, const Numbers& n) { s.ranks = n[0], s.micro_batches = n[1]; };
    // PyTorch chooses the group from the number of rounds: g = m / max(1, m / p).
    auto rounds = [](Shape& s, const Numbers& n) {
        s.ranks = n[0], s.chunks = n[1], s.micro_batches = n[2],
        s.parameters = schedule::GroupParameters{n[2] / std::max(1, n[2] / n[0])};
    };
    // Times and memory of the zero-bubble lists: every stage the same; a forward holds 34h + 5as, W frees 32h
    // of it, I the rest (arXiv 2401.10241, table 1, with h = 4096, a = 32, s = 1024 as for the 6.2B model).
    auto measured = [](Shape& s, const Numbers& n, int chunks) {
        s.ranks = n[0], s.chunks = chunks, s.micro_batches = n[1], s.transfer = n[5];
        const double whole = 34 * 4096 + 5 * 32 * 1024, weight = 32 * 4096;
        s.stage_costs.assign(static_cast<std::size_t>(s.stages()),
                             {1.0 * n[2], 1.0 * n[3], 1.0 * n[4], whole, weight - whole, -weight});
    };
    auto within = [measured](double ranks) {
        return [measured, ranks](Shape& s, const Numbers& n) {
            measured(s, n, 1);
            s.memory_limit =
                (ranks > 0 ? ranks * s.ranks : 3.0 * s.micro_batches) * s.stage_costs.front().memory_forward;
        };
    };
    auto pm2 = [](Shape& s, const Numbers& n) { s.ranks = n[0], s.chunks = 2, s.micro_batches = n[1]; };
    for (const Family& family : std::vector<Family>{
             {"pytorch_gen", "GPipe_p(\\d+)_v(\\d+)_m(\\d+)_compute.csv", "simple", pvm},
             {"sail_gen", "1f1b_p(\\d+)_m(\\d+).csv", "1f1b", pm},
             {"megatron_gen", "megatron_p(\\d+)_v(\\d+)_m(\\d+)_g(\\d+).csv", "interleaved-1f1b", pvmg},
             {"megatron_gen", "megatron_fwdonly_p(\\d+)_v(\\d+)_m(\\d+)_g(\\d+).csv", "forward-only", pvmg},
             {"sail_gen", "vpp_p(\\d+)_v(\\d+)_m(\\d+).csv", "interleaved-1f1b", pvm},
             {"pytorch_gen", "Interleaved1F1B_p(\\d+)_v(\\d+)_m(\\d+)_compute.csv", "interleaved-1f1b",
              rounds},
             {"pytorch_gen", "LoopedBFS_p(\\d+)_v(\\d+)_m(\\d+)_compute.csv", "looped-bfs", pvm},
             {"pytorch_gen", "InterleavedZeroBubble_p(\\d+)_v(\\d+)_m(\\d+)_compute.csv",
              "interleaved-zero-bubble", pvm},
             {"pytorch_gen", "ZBVZeroBubble_p(\\d+)_v(\\d+)_m(\\d+)_compute.csv", "zb-v", pvm},
             {"pytorch_gen", "DualPipeV_p(\\d+)_v(\\d+)_m(\\d+)_compute.csv", "dualpipe-v", pvm},
             {"pytorch", "dualpipev_(\\d)rank_(\\d+)mb.csv", "dualpipe-v",
              [](Shape& s, const Numbers& n) { s.ranks = n[0], s.chunks = 2, s.micro_batches = n[1]; }},
             {"dualpipe_gen", "DualPipeV_p(\\d+)_m(\\d+).csv", "dualpipe-v",
              [](Shape& s, const Numbers& n) { s.ranks = n[0], s.chunks = 2, s.micro_batches = n[1]; }},
             {"dualpipe_gen", "DualPipe_p(\\d+)_m(\\d+).csv", "dualpipe", pm},
             {"sail_gen", "zb_unit_p(\\d+)_m(\\d+)_memp.csv", "zb-h1", pm},
             {"sail_gen", "zb_unit_p(\\d+)_m(\\d+)_mem2p-1.csv", "zb-h2", pm},
             {"sail_gen", "zb_p(\\d+)_m(\\d+)_f(\\d+)b(\\d+)w(\\d+)c(\\d+)_mem1p.csv", "zb-1p", within(1)},
             {"sail_gen", "zb_p(\\d+)_m(\\d+)_f(\\d+)b(\\d+)w(\\d+)c(\\d+)_mem2p.csv", "zb-2p", within(2)},
             {"sail_gen", "zb_p(\\d+)_m(\\d+)_f(\\d+)b(\\d+)w(\\d+)c(\\d+)_meminfp.csv", "zb-2p", within(0)},
             {"sail_gen", "zbv_p(\\d+)_m(\\d+)_f(\\d+)b(\\d+)w(\\d+)c(\\d+).csv", "zb-v-auto",
              [measured](Shape& s, const Numbers& n) { measured(s, n, 2); }},
             {"sail_gen", "vmin_p(\\d+)_m(\\d+)_f1000b1000w1000c0.csv", "v-min", pm2},
             {"sail_gen", "vhalf_p(\\d+)_m(\\d+)_f1000b1000w1000c0.csv", "v-half", pm2},
             {"sail_gen", "v1f1b_p(\\d+)_m(\\d+).csv", "1f1b-v", pm2},
             {"sail_gen", "groupint_p(\\d+)_v(\\d+)_m(\\d+)_g(\\d+).csv", "grouped-interleaved", pvmg},
             {"sail_gen", "seq1f1b_p(\\d+)_m(\\d+)_s(\\d+).csv", "seq1f1b",
              [](Shape& s, const Numbers& n) {
                  s.ranks = n[0], s.micro_batches = n[1], s.parameters = schedule::SegmentParameters{n[2]};
              }},
         })
        check_family(family);
    WARN(matches << " reference lists equal ours");
}
