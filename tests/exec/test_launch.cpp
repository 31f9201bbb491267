#include <catch2/catch.hpp>
#include <map>

#include "core/diagnostics.h"
#include "exec/transport/launch.h"

namespace {

using exec::transport::find_launch;
using exec::transport::Launch;

struct Found {
    std::optional<Launch> launch;
    std::string errors;
};
Found find(const std::map<std::string, std::string>& variables, const std::string& wanted = "") {
    core::Diagnostics diagnostics;
    const auto environment = [&](const char* name) -> std::optional<std::string> {
        const auto found = variables.find(name);
        return found == variables.end() ? std::nullopt : std::optional(found->second);
    };
    Found result;
    result.launch = find_launch(wanted, environment, diagnostics);
    result.errors = core::format(diagnostics);
    return result;
}

}  // namespace

TEST_CASE("without a launcher's variables ranks are threads") {
    CHECK_FALSE(find({}).launch);
    CHECK(find({}).errors.empty());
    // The script of a Slurm batch job is no rank, though it has a number.
    CHECK_FALSE(find({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}}).launch);
    CHECK_FALSE(find({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}}, "threads").launch);
}

TEST_CASE("torchrun's variables say which rank this is and where rank 0 listens") {
    const Found found =
        find({{"RANK", "3"}, {"WORLD_SIZE", "8"}, {"MASTER_ADDR", "10.0.0.7"}, {"MASTER_PORT", "1234"}});
    REQUIRE(found.launch);
    CHECK((found.launch->rank == 3 && found.launch->size == 8 && found.launch->address == "10.0.0.7" &&
           found.launch->port == 1234 && !found.launch->is_mpi));
    // torchrun's agent holds MASTER_PORT itself when it says that workers use its store.
    CHECK(find({{"RANK", "3"},
                {"WORLD_SIZE", "8"},
                {"MASTER_ADDR", "a"},
                {"MASTER_PORT", "1234"},
                {"TORCHELASTIC_USE_AGENT_STORE", "True"}})
              .launch->port == 1235);
}

TEST_CASE("Slurm's variables say it too, with the first host of the list for rank 0") {
    const Found found = find({{"SLURM_PROCID", "5"},
                              {"SLURM_STEP_NUM_TASKS", "6"},
                              {"SLURM_STEP_NODELIST", "gpu[07-08,11]"},
                              {"SLURM_JOB_ID", "4002"}});
    REQUIRE(found.launch);
    CHECK((found.launch->rank == 5 && found.launch->size == 6 && found.launch->address == "gpu07" &&
           found.launch->port == 29502));
    CHECK(find({{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "29500"}},
               "env")
              .launch->address == "h");
}

TEST_CASE("the first host of a Slurm node list") {
    CHECK(exec::transport::first_host("n1") == "n1");
    CHECK(exec::transport::first_host("n1,n2") == "n1");
    CHECK(exec::transport::first_host("n[01-03,7],login") == "n01");
    CHECK(exec::transport::first_host("rack[3,5]-node") == "rack3-node");
    CHECK(exec::transport::first_host("n[") == "");
}

TEST_CASE("wrong or missing variables are named") {
    CHECK(find({}, "env").errors.find("WORLD_SIZE is not set") != std::string::npos);
    CHECK(find({{"RANK", "1"}, {"WORLD_SIZE", "2"}}, "env").errors.find("MASTER_ADDR is not set") !=
          std::string::npos);
    // Two such processes would each train alone, and write the same files.
    CHECK(find({{"RANK", "1"}, {"WORLD_SIZE", "2"}}).errors.find("MASTER_ADDR is not set") !=
          std::string::npos);
    CHECK(find({{"RANK", "0"}, {"WORLD_SIZE", "1"}}).errors.empty());
    CHECK(find({{"RANK", "2"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}}).errors.find("RANK = ") !=
          std::string::npos);
    CHECK(find({{"RANK", "x"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}})
              .errors.find("a number from 0 to 1") != std::string::npos);
    CHECK(find({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "70000"}})
              .errors.find("MASTER_PORT") != std::string::npos);
}
