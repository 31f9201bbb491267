// smexec convert on the command line: what goes on from a converted checkpoint is the training that was never
// interrupted.
#include "core/diagnostics.h"
#include "tests/processes/processes.h"

namespace {

using namespace processes;

struct Setting {
    Folder folder;
    std::string pipeline, data, tensor;

    Setting() {
        pipeline = plan("pipeline2", "pipeline_parallel = 2\nmicro_batches = 8");
        data = plan("data2", "data_parallel = 2\nmicro_batches = 4\nsharding = \"parameters\"");
        tensor = plan("tensor2", "tensor_parallel = 2\nsequence_parallel = true\nmicro_batches = 8");
    }
    std::string plan(const std::string& name, const std::string& degrees,
                     const std::string& training = "optimizer = \"adamw\"\nweight_decay = 0.1") const {
        return write_plan(folder.path + "/" + name + ".toml", {"gpt", "dropout = 0.1", degrees, training});
    }
    std::string at(const std::string& name) const { return folder.path + "/" + name; }
    Process call(const std::vector<std::string>& arguments) const {
        std::vector<std::string> command = {smexec};
        command.insert(command.end(), arguments.begin(), arguments.end());
        return run(command, at("log"));
    }
    std::vector<double> train(const std::string& plan, const std::string& checkpoints, int steps,
                              bool resumes) const {
        std::vector<std::string> arguments = {
            plan,           "--no-compare",  "--steps",      std::to_string(steps),
            "--checkpoint", at(checkpoints), "--ranks-from", "threads"};
        if (resumes) arguments.push_back("--resume");
        const Process process = call(arguments);
        INFO(content_of(process.err));
        REQUIRE(process.code() == 0);
        // A converted checkpoint is the plan's own: nothing is said about another one.
        CHECK(content_of(process.err).find("was written by") == std::string::npos);
        CHECK(content_of(process.out).find("was written by") == std::string::npos);
        return losses_of(at(checkpoints));
    }
    void convert(const std::string& from, const std::string& plan, const std::string& to) const {
        const Process process = call({"convert", at(from), "--plan", plan, "--out", at(to)});
        INFO(content_of(process.err));
        REQUIRE(process.code() == 0);
    }
    std::string refusal(const std::vector<std::string>& arguments, int code = 2) const {
        std::vector<std::string> all = {"convert"};
        all.insert(all.end(), arguments.begin(), arguments.end());
        const Process process = call(all);
        CHECK(process.code() == code);
        return content_of(process.err);
    }
};

std::vector<std::string> files_of(const std::string& checkpoint) {
    core::Diagnostics diagnostics;
    const auto opened = exec::Checkpoint::open(checkpoint, std::nullopt, diagnostics);
    REQUIRE(opened);
    std::vector<std::string> result;
    for (const auto& file : opened->manifest().files)
        result.push_back(fmt::format("{} {} {:016x}", file.name, file.bytes, file.checksum));
    return result;
}

}  // namespace

TEST_CASE(
    "training goes on from pipeline 2 to data 2 to tensor 2 through converted checkpoints with the losses of "
    "an unbroken run") {
    const Setting setting;
    const std::vector<double> unbroken = setting.train(setting.pipeline, "unbroken", 12, false);
    setting.train(setting.pipeline, "first", 4, false);
    setting.convert("first", setting.data, "second");
    setting.train(setting.data, "second", 8, true);
    setting.convert("second", setting.tensor, "third");
    const std::vector<double> losses = setting.train(setting.tensor, "third", 12, true);
    REQUIRE(losses.size() == unbroken.size());
    for (std::size_t i = 0; i < 4; ++i) CHECK(losses[i] == unbroken[i]);
    for (std::size_t i = 4; i < 12; ++i) CHECK(losses[i] == Approx(unbroken[i]).epsilon(1e-5));
}

TEST_CASE("there and back again a checkpoint is the same to the byte") {
    const Setting setting;
    setting.train(setting.pipeline, "here", 3, false);
    for (const std::string& plan :
         {setting.pipeline, setting.data, setting.tensor,
          setting.plan("both",
                       "data_parallel = 4\nsharding = \"optimizer\"\nshard_degree = 2\nmicro_batches = 2"),
          setting.plan("hosts",
                       "data_parallel = 2\nsharding = \"parameters\"\nmicro_batches = 4\n"
                       "optimizer_offload = \"host\"\nparameter_offload = \"host\"")}) {
        setting.convert("here", plan, "there");
        setting.convert("there", setting.pipeline, "back");
        CHECK(files_of(setting.at("back")) == files_of(setting.at("here")));
        if (plan != setting.pipeline) CHECK(files_of(setting.at("there")) != files_of(setting.at("here")));
        fs::remove_all(setting.at("there"));
        fs::remove_all(setting.at("back"));
    }
    // What a plan wrote itself is what a conversion to it writes: a run of tensor 2 converted to itself.
    setting.train(setting.tensor, "own", 3, false);
    setting.convert("own/step-00000003", setting.tensor, "own again");
    CHECK(files_of(setting.at("own again")) == files_of(setting.at("own")));
}

TEST_CASE("a checkpoint that cannot be converted is refused with what is wrong") {
    using Catch::Contains;
    const Setting setting;
    setting.train(setting.pipeline, "here", 2, false);
    const std::string here = setting.at("here"), out = setting.at("out");
    CHECK_THAT(setting.refusal({}), Contains("no checkpoint is given") && Contains("--plan is missing") &&
                                        Contains("--out is missing"));
    CHECK_THAT(setting.refusal({setting.at("nowhere"), "--plan", setting.data, "--out", out}),
               Contains("there is no checkpoint in"));
    CHECK_THAT(setting.refusal({here, "--plan", setting.data, "--out", out, "--from-step", "7"}),
               Contains("there is no checkpoint of step 7") && Contains("there are those of 2"));
    CHECK_THAT(setting.refusal({here, "--plan", setting.at("no.toml"), "--out", out}), Contains("no.toml"));
    CHECK_THAT(setting.refusal({here, "--plan", setting.data, "--out", here}),
               Contains("--out is the folder of the checkpoint itself"));
    CHECK_THAT(setting.refusal({here, "--plan", setting.data, "--out", setting.data}),
               Contains("is no folder"));
    setting.convert("here", setting.data, "taken");
    CHECK_THAT(setting.refusal({here, "--plan", setting.data, "--out", setting.at("taken")}),
               Contains("has a checkpoint of step 2 already"));
    CHECK_THAT(setting.refusal({here, "--plan",
                                write_plan(setting.at("llama.toml"), {"llama", "", "data_parallel = 2", ""}),
                                "--out", out}),
               Contains("of another model"));
    CHECK_THAT(setting.refusal(
                   {here, "--plan", setting.plan("seed", "data_parallel = 2", "seed = 99"), "--out", out}),
               Contains("the plan says 99"));
    CHECK_THAT(
        setting.refusal(
            {here, "--plan", setting.plan("sgd", "data_parallel = 2", "optimizer = \"sgd\""), "--out", out}),
        Contains("sgd does not keep: they would be lost"));
    CHECK_THAT(setting.refusal(
                   {here, "--plan", setting.plan("evaluation", "schedule = \"forward-only\""), "--out", out}),
               Contains("only evaluates"));
    const std::string file = exec::checkpoint_folder(here, 2) + "/rank-0001.safetensors";
    fs::resize_file(file, fs::file_size(file) - 3);
    CHECK_THAT(setting.refusal({here, "--plan", setting.data, "--out", out}),
               Contains("rank-0001.safetensors") && Contains("it is truncated"));
    CHECK_FALSE(fs::exists(out));
}

TEST_CASE("a checkpoint without what the optimizer needs is refused when it is resumed") {
    const Setting setting;
    const std::string sgd = setting.plan("sgd", "data_parallel = 2", "optimizer = \"sgd\"");
    setting.train(sgd, "here", 2, false);
    const Process process = setting.call({setting.data, "--no-compare", "--steps", "4", "--checkpoint",
                                          setting.at("here"), "--resume", "--ranks-from", "threads"});
    CHECK(process.code() == 2);
    CHECK_THAT(content_of(process.err),
               Catch::Contains("has no first moments") && Catch::Contains("second moments"));
}
