#include <catch2/catch.hpp>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "core/diagnostics.h"
#include "schedule/schedule_text.h"
#include "schedule/verify.h"

namespace {

schedule::Schedule parsed(const std::string& text) {
    core::Diagnostics diagnostics;
    const std::optional<schedule::Schedule> result =
        schedule::parse_schedule(text, "folder/list.csv", diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(result);
    return *result;
}

core::Diagnostics refused(const std::string& text) {
    core::Diagnostics diagnostics;
    CHECK_FALSE(schedule::parse_schedule(text, "list.csv", diagnostics));
    CHECK(diagnostics.has_errors());
    return diagnostics;
}

}  // namespace

TEST_CASE("Every kind of cell is read and written back as it was") {
    for (const std::string text :
         {"0F0,0B0\n1F0,1B0\n", "0F0,0I0,0W0\n",
          "0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD,0OPT\n1RECV_F0,1F0,1B0,1SEND_B0,1REDUCE_GRAD,1OPT\n",
          "0UNSHARD,0F0,0R0,0B0,0RESHARD\n", "0F0.0,0F0.1,0B0.1,0B0.0\n",
          "0F0,0F1,(0F2;0B0)OVERLAP_F_B,0B1,0B2\n",
          "d0:0F0,d1:1F0,d1:1B0,d0:0B0\nd1:0F0,d0:1F0,d0:1B0,d1:0B0\n", "0F0,0B0,0OPT0,0F1,0B1,0OPT1\n"}) {
        const schedule::Schedule schedule = parsed(text);
        CHECK(print_schedule(schedule) == text);
        CHECK(schedule.name == "list");
    }
}

TEST_CASE("Waiting cells, blanks and carriage returns are passed over") {
    CHECK(print_schedule(parsed("0F0,,  , 0B0 \r\n,1F0,1B0\r\n\n")) == "0F0,0B0\n1F0,1B0\n");
}

TEST_CASE("The placement of stages is read from the rows") {
    CHECK(parsed("0F0,2F0\n1F0,3F0\n").placement == schedule::StagePlacement::loop);
    CHECK(parsed("0F0,3F0\n1F0,2F0\n").placement == schedule::StagePlacement::v_shape);
    CHECK(parsed("d0:0F0,d1:1F0\nd0:1F0,d1:0F0\n").placement == schedule::StagePlacement::bidirectional);
    const schedule::Schedule custom = parsed("0F0,1F0\n2F0,3F0\n");
    CHECK(custom.placement == schedule::StagePlacement::custom);
    CHECK(custom.stage_ranks == std::vector<std::int32_t>{0, 0, 1, 1});
    CHECK(verify(custom).empty());
}

TEST_CASE("A list without backward cells is forward-only") {
    CHECK(parsed("0F0,0F1\n").is_forward_only);
    CHECK_FALSE(parsed("0F0,0B0\n").is_forward_only);
}

TEST_CASE("A malformed cell is refused at its line and column") {
    const core::Diagnostics diagnostics = refused("0F0,0B0\n1F0,1X0,1B0\n");
    REQUIRE(diagnostics.entries().size() == 1);
    CHECK(diagnostics.entries()[0].location.line == 2);
    CHECK(diagnostics.entries()[0].location.column == 5);
    CHECK(diagnostics.entries()[0].message.find("1X0") != std::string::npos);
    for (const char* cell :
         {"F0", "0F", "0F-1", "-1F0", "0F0x", "0F99999999999", "0f0", "0UNSHARD3", "(0F0;0B0)",
          "(0F0,0B0)OVERLAP_F_B", "(0B0;0F0)OVERLAP_F_B", "d:0F0", "0F0.", "99999999F0", "\xff\xfe"})
        refused(cell);
    refused("");
    refused("\n\n");
}

TEST_CASE("A file that is no schedule gives a bounded number of diagnostics") {
    std::string noise;
    for (int i = 0; i < 100000; ++i) noise += "noise,";
    CHECK(refused(noise).entries().size() <= 20);
}

TEST_CASE("Cells with far-apart numbers do not claim memory for what is between them") {
    refused("60000F0,0F1000000\n0F0\n");
}

TEST_CASE("The drawing shows waiting as dots and brackets the marked cell") {
    const schedule::Schedule schedule = parsed("0F0,0B0\n1F0,1B0\n");
    CHECK(draw(schedule) == "  rank 0 | 0F0 .   .   0B0\n  rank 1 | .   1F0 1B0 .\n");
    const schedule::Violation violation{"local order", "", 1, 0};
    CHECK(draw(schedule, &violation) == "  rank 0 | 0F0   .     .     0B0\n> rank 1 | .     [1F0] 1B0   .\n");
}

TEST_CASE("The drawing keeps to its width around the mark") {
    std::string text;
    for (int i = 0; i < 100; ++i) text += "0F" + std::to_string(i) + ",";
    const schedule::Schedule schedule = parsed(text + "\n");
    const schedule::Violation violation{"", "", 0, 50};
    const std::string drawn = draw(schedule, &violation, 5);
    CHECK(drawn == "> rank 0 | .. 0F48   0F49   [0F50] 0F51   0F52   ..\n");
}

TEST_CASE("A grid in blocks keeps to its width, and the blocks side by side are the whole grid") {
    std::string text;
    for (int rank = 0; rank < 3; ++rank) {
        for (int i = 0; i < 20; ++i) text += std::to_string(rank) + "F" + std::to_string(i) + ",";
        text += "\n";
    }
    const schedule::Schedule schedule = parsed(text);
    const std::size_t width = 31;
    const std::string whole = draw(schedule, nullptr, 1000),
                      blocks = draw_in_blocks(schedule, nullptr, width);
    CHECK(draw_in_blocks(schedule, nullptr, 1000) == whole);
    // Cells of four characters and a blank: four of them beside "  rank 0 |".
    std::vector<std::string> joined(3);
    std::istringstream lines(blocks);
    int headings = 0;
    for (std::string line; std::getline(lines, line);) {
        CHECK(line.size() <= width);
        if (line.starts_with("  cells ") || line.starts_with("  steps ")) ++headings;
        if (!line.starts_with("  rank ")) continue;
        std::string& row = joined[static_cast<std::size_t>(line[7] - '0')];
        line.resize(std::max(line.size(), std::size_t{10 + 4 * 5}), ' ');
        row += row.empty() ? line : line.substr(10);
    }
    std::string together;
    for (std::string row : joined) together += row.erase(row.find_last_not_of(' ') + 1) + "\n";
    CHECK(together == whole);
    CHECK(headings > 20 / 4);
}
