#include "apps/smexec/smexec_request.h"

#include <algorithm>

#include <fmt/core.h>

#include "apps/options.h"
#include "exec/runtime/learning_rate.h"

namespace apps {

namespace {

// After --backend.
void read_learning_rate(Options& options, ExecutionRequest& request) {
    request.learning_rate = options.choice("--lr-scheduler-type", exec::learning_rate_names()).value_or("");
    request.warmup_steps = options.integer("--warmup-steps", 0, 1000000).value_or(0);
    const bool is_constant = request.learning_rate.empty() || request.learning_rate == "constant";
    if (request.warmup_steps > 0 && is_constant)
        options.error("--warmup-steps", "a constant learning rate has no warm-up",
                      "add --lr-scheduler-type constant_with_warmup, linear or cosine");
    if (request.on_gpu && !is_constant)
        options.error("--lr-scheduler-type", "--backend cuda trains with a constant learning rate",
                      "leave it out, or train on the CPU");
}

void read_joining(Options& options, ExecutionRequest& request) {
    request.time_limit = core::Seconds(options.real("--time-limit", 0.1, 1e6).value_or(120));
    request.join_limit =
        std::min(request.time_limit, core::Seconds(options.real("--join-limit", 0.1, 1e6).value_or(30)));
    request.interface = options.text("--interface");
    request.token_file = options.text("--token-file");
    request.ranks_from = options.choice("--ranks-from", {"threads", "mpi", "env"}).value_or("");
}

// What a training writes and on what it is evaluated.
void read_training(Options& options, ExecutionRequest& request) {
    request.eval_data = options.text("--eval-data");
    request.eval_every = options.integer("--eval-every", 1, 1000000);
    request.eval_batches = options.integer("--eval-batches", 1, 1000000);
    request.metrics = options.text("--metrics").value_or("");
    if (request.checkpoint.empty())
        for (const char* option : {"--every", "--resume", "--from-step", "--set-aside"})
            if (options.has(option))
                options.error(option, fmt::format("{} needs to know where checkpoints are", option),
                              "add --checkpoint DIR");
    if (request.steps == 0 && request.checkpoint.empty())
        options.error("--steps", "--steps 0 writes the state at the beginning, and nothing else",
                      "add --checkpoint DIR, or perform a step");
    if (request.from_step && !request.resumes)
        options.error("--from-step", "--from-step says where to resume", "add --resume");
}

}  // namespace

ExecutionRequest parse_execution(const std::vector<std::string>& arguments, core::Diagnostics& diagnostics) {
    Options options(arguments,
                    {{"--backend",    "--ranks-from",        "--steps",
                      "--data",       "--tolerance",         "--trace",
                      "--html",       "--checkpoint",        "--every",
                      "--from-step",  "--time-limit",        "--cuda-expert-room",
                      "--join-limit", "--interface",         "--token-file",
                      "--init",       "--lr-scheduler-type", "--warmup-steps",
                      "--eval-data",  "--eval-every",        "--eval-batches",
                      "--metrics"},
                     {"--check", "--json", "--verbose", "--help", "--compare", "--no-compare", "--resume",
                      "--set-aside", "--cuda-graph", "--cuda-tune"}},
                    diagnostics);
    ExecutionRequest request;
    request.as_json = options.has("--json");
    request.checks = options.has("--check");
    request.is_verbose = options.has("--verbose");
    request.compares = !options.has("--no-compare");
    request.resumes = options.has("--resume");
    request.sets_aside = options.has("--set-aside");
    request.data = options.text("--data");
    request.init = options.text("--init");
    request.trace = options.text("--trace").value_or("");
    request.html = options.text("--html").value_or("");
    request.checkpoint = options.text("--checkpoint").value_or("");
    request.steps = options.integer("--steps", 0, 1000000);
    request.every = options.integer("--every", 1, 1000000);
    request.from_step = options.integer("--from-step", 0, 1000000000);
    request.tolerance = options.real("--tolerance", 0, 1e6);
    read_joining(options, request);
    request.on_gpu = options.choice("--backend", {"cpu", "cuda"}).value_or("cpu") == "cuda";
    request.captures_steps = options.has("--cuda-graph");
    request.measures_products = options.has("--cuda-tune");
    request.expert_room = options.real("--cuda-expert-room", 1, 1e6);
    for (const char* option : {"--cuda-graph", "--cuda-tune", "--cuda-expert-room"})
        if (options.has(option) && !request.on_gpu)
            options.error(option, fmt::format("{} is of --backend cuda", option), "add --backend cuda");
    read_learning_rate(options, request);
    if (options.has("--compare") && options.has("--no-compare"))
        options.error("--compare", "--compare and --no-compare contradict each other", "choose one");
    if (!request.compares && request.tolerance)
        options.error("--tolerance", "--tolerance needs a prediction", "leave out --no-compare");
    read_training(options, request);
    request.plan =
        options.only_positional("PLAN.toml", "plan", "smexec PLAN.toml; smexec --help shows an example");
    return request;
}

}  // namespace apps
