// Framework profiles: what a file may say, what is refused and where, what a profile inherits.
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "core/diagnostics.h"
#include "sim/cost/framework/framework.h"
#include "sim/cost/framework/framework_catalogue.h"
#include "sim/cost/framework/framework_lookup.h"

namespace {

namespace fs = std::filesystem;

// A file of profiles, gone with the object.
class ProfileFile {
public:
    explicit ProfileFile(const std::string& text)
        : path_((fs::temp_directory_path() / ("frameworks_" + std::to_string(getpid()) + ".toml")).string()) {
        std::ofstream(path_) << text;
    }
    ~ProfileFile() { fs::remove(path_); }
    ProfileFile(const ProfileFile&) = delete;
    ProfileFile& operator=(const ProfileFile&) = delete;
    const std::string& path() const { return path_; }

private:
    std::string path_;
};

std::string errors_of(const std::string& text) {
    const ProfileFile file(text);
    core::Diagnostics diagnostics;
    sim::FrameworkCatalogue::read({file.path()}, diagnostics);
    return core::format(diagnostics);
}

const std::string base =
    "schema = 1\n"
    "[[profile]]\n"
    "name = \"one\"\n"
    "title = \"One\"\n"
    "versions = \"1.0\"\n";

using Catch::Matchers::Contains;

}  // namespace

TEST_CASE("the shipped framework profiles have no errors, and name every fact that code knows") {
    core::Diagnostics diagnostics;
    const sim::FrameworkCatalogue catalogue =
        sim::FrameworkCatalogue::read(sim::framework_files(), diagnostics);
    INFO(core::format(diagnostics));
    CHECK(diagnostics.entries().empty());
    CHECK(catalogue.profiles().size() > 20);
    std::set<const sim::FrameworkFact*> stated;
    for (const sim::FrameworkProfile& profile : catalogue.profiles())
        for (const auto& statement : profile.statements) {
            INFO(profile.name << " " << statement.fact->key);
            stated.insert(statement.fact);
            CHECK((statement.constant != nullptr || statement.provenance.source.size() > 5));
            CHECK((statement.constant != nullptr || statement.provenance.date.size() >= 4));
        }
    for (const sim::FrameworkFact& fact : sim::framework_facts()) {
        INFO(fact.section << "." << fact.key);
        CHECK(stated.contains(&fact));
    }
}

TEST_CASE("a profile that extends another says what that one says, but for its own facts") {
    const ProfileFile file(base +
                           "[profile.host]\n"
                           "dispatch = { constant = \"dispatch_graph_us\" }\n"
                           "copies_inputs = true\n"
                           "source = \"somebody\"\n"
                           "date = \"2024\"\n"
                           "[[profile]]\n"
                           "name = \"two\"\n"
                           "title = \"Two\"\n"
                           "versions = \"2.0\"\n"
                           "extends = \"one\"\n"
                           "[profile.host]\n"
                           "dispatch = \"7us\"\n"
                           "dispatch_source = \"measured\"\n"
                           "dispatch_date = \"2025-02\"\n"
                           "[profile.memory]\n"
                           "process_memory = { constant = \"eager_loading_gib\" }\n");
    core::Diagnostics diagnostics;
    const sim::FrameworkCatalogue catalogue = sim::FrameworkCatalogue::read({file.path()}, diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE_FALSE(diagnostics.has_errors());
    const sim::FrameworkProfile *one = catalogue.find("one"), *two = catalogue.find("two");
    REQUIRE((one != nullptr && two != nullptr));
    sim::CostConstants constants;
    constants.dispatch_graph_us = 5.5;
    constants.eager_loading_gib = 2;
    CHECK(one->traits(constants).dispatch.value == Approx(5.5e-6));
    CHECK(two->traits(constants).dispatch.value == Approx(7e-6));
    CHECK(two->traits(constants).copies_inputs);
    CHECK(two->traits(constants).title == "Two");
    CHECK(one->memory(constants).process_memory.value == 0);
    CHECK(two->memory(constants).process_memory.value == 2.0 * 1024 * 1024 * 1024);
}

TEST_CASE("wrong framework profiles are refused with place and hint") {
    // A fact without a source, without a date.
    CHECK_THAT(errors_of(base + "[profile.host]\ncopies_inputs = true\n"),
               Contains(":7:") && Contains("one.host.copies_inputs has no source") &&
                   Contains("has no date") && Contains("copies_inputs_source"));
    CHECK_THAT(errors_of(base + "[profile.host]\nsource = \"x\"\ndate = \"2024\"\ncopies_input = true\n"),
               Contains(":9:") && Contains("copies_inputs"));
    CHECK_THAT(errors_of(base + "[profile.hosts]\n"), Contains("hosts") && Contains("did you mean"));
    // Constants: unknown, and of another unit than the fact.
    CHECK_THAT(errors_of(base + "[profile.host]\ndispatch = { constant = \"dispatch_graf_us\" }\n"),
               Contains(":7:") && Contains("no constant") && Contains("dispatch_graph_us"));
    CHECK_THAT(errors_of(base + "[profile.host]\ndispatch = { constant = \"eager_loading_gib\" }\n"),
               Contains("counts something else"));
    CHECK_THAT(errors_of(base + "[profile.kernels]\nattention = { constant = \"memory_rate\" }\n"),
               Contains("counts something else"));
    CHECK_THAT(errors_of(base + "[profile.host]\ndispatch = { konstant = \"memory_rate\" }\n"),
               Contains("constant"));
    // Values outside what a fact may be.
    const std::string sourced = "source = \"x\"\ndate = \"2024\"\n";
    CHECK_THAT(errors_of(base + "[profile.kernels]\nvocabulary_multiple = 0\n" + sourced), Contains("zero"));
    CHECK_THAT(errors_of(base + "[profile.kernels]\nmemory_passes = -1\n" + sourced),
               Contains("memory_passes"));
    CHECK_THAT(errors_of(base + "[profile.kernels]\nattention = \"flesh\"\n" + sourced), Contains("flash"));
    CHECK_THAT(errors_of(base + "[profile.gradients]\nbucket = 25\n" + sourced), Contains("bucket"));
    // Names.
    CHECK_THAT(errors_of(base + "extends = \"onr\"\n"), Contains(":6:") && Contains("names no profile"));
    CHECK_THAT(errors_of(base + "[[profile]]\nname = \"one\"\ntitle = \"x\"\nversions = \"x\"\n"),
               Contains("stands twice"));
    CHECK_THAT(errors_of("schema = 1\n[[profile]]\ntitle = \"x\"\nversions = \"x\"\n"),
               Contains("without a name"));
    CHECK_THAT(errors_of("schema = 2\n[[profile]]\nname = \"x\"\ntitle = \"x\"\nversions = \"x\"\n"),
               Contains("schema = 2"));
    CHECK_THAT(
        errors_of(base + "extends = \"two\"\n"
                         "[[profile]]\nname = \"two\"\ntitle = \"x\"\nversions = \"x\"\nextends = \"one\"\n"),
        Contains("circle of profiles: one extends two extends one"));
    CHECK_THAT(errors_of(base + "extends = \"one\"\n"), Contains("circle of profiles: one extends one"));
}

TEST_CASE("a name that no framework profile has is an error with the nearest name and the list") {
    core::Diagnostics diagnostics;
    sim::check_framework("", diagnostics);
    sim::check_framework("megatron-lm", diagnostics);
    CHECK(diagnostics.entries().empty());
    sim::check_framework("Megatron-LN", diagnostics, {"plan.toml", 3, 13});
    CHECK_THAT(core::format(diagnostics), Contains("plan.toml:3:13: error: plan.framework = 'Megatron-LN'") &&
                                              Contains("did you mean 'megatron-lm'?") &&
                                              Contains("llm-foundry"));
    // Part of a name is none.
    core::Diagnostics part;
    sim::check_framework("megatron", part);
    CHECK(part.has_errors());
}

TEST_CASE("parameters that a pipeline gathers once are whole through the step") {
    // torchtitan does not reshard between the micro-batches of a pipeline: what stays sharded is optimizer
    // state.
    for (const int pipeline : {1, 8}) {
        schedule::Plan plan;
        plan.layout.data = 8;
        plan.layout.pipeline = pipeline;
        plan.sharding = schedule::Sharding::parameters;
        sim::adopt(sim::framework_traits("torchtitan"), plan);
        CHECK(plan.sharding ==
              (pipeline == 1 ? schedule::Sharding::parameters : schedule::Sharding::optimizer));
        CHECK(plan.precision.gradients == core::DataType::fp32);
    }
}

TEST_CASE("a plan without a framework adds nothing to the device profile") {
    const sim::FrameworkTraits traits = sim::framework_traits("");
    CHECK(traits.dispatch.value == 0);
    CHECK(traits.memory_passes == 1);
    CHECK(sim::framework_memory("").process_memory.value == 0);
}
