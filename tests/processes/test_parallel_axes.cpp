// Experts and sequences divided over processes, activations that wait elsewhere: over threads, TCP and MPI to
// the same bits, and through checkpoints.
#include "tests/processes/processes.h"

namespace {

using namespace processes;

struct Case {
    const char* what;
    int ranks;
    TinyPlan plan;
};

const char* const experts = "experts = 4\nexperts_per_token = 2\nauxiliary_loss = 0.1";

const std::vector<Case>& cases() {
    static const std::vector<Case> all = {
        {"experts over two ranks", 2, {"mixtral", experts, "data_parallel = 2\nexpert_parallel = 2", ""}},
        {"sequences over two ranks, with dropout",
         2,
         {"gpt", "dropout = 0.1\nattention_dropout = 0.1", "context_parallel = 2", ""}},
        {"offload to the host in a pipeline",
         2,
         {"gpt", "",
          "pipeline_parallel = 2\nschedule = \"gpipe\"\noffload = \"host\"\nactivation_loading_horizon = 1",
          ""}},
        {"offload to disk",
         2,
         {"gpt", "",
          "data_parallel = 2\noffload = \"disk\"\noffload_bandwidth = \"1GB/s\"\nactivation_loading_horizon "
          "= 1",
          ""}},
        {"experts in a pipeline with split backward, sharded",
         4,
         {"mixtral", experts,
          "data_parallel = 2\nexpert_parallel = 2\npipeline_parallel = 2\nschedule = \"zb-h1\"\nsharding = "
          "\"optimizer\"",
          ""}},
        {"sequences in a pipeline with split backward in bf16",
         4,
         {"llama", "",
          "context_parallel = 2\npipeline_parallel = 2\nschedule = \"zb-h1\"\nprecision = \"bf16\"", ""}},
        {"experts beside tensor and sequence parallelism in bf16",
         4,
         {"mixtral", experts,
          "data_parallel = 2\nexpert_parallel = 2\ntensor_parallel = 2\nsequence_parallel = true\nprecision "
          "= \"bf16\"",
          ""}},
        {"experts, sequences, offload, recomputation, clipping and sharded parameters together",
         4,
         {"mixtral", "experts = 4\nexperts_per_token = 2",
          "data_parallel = 2\ncontext_parallel = 2\nexpert_parallel = 4\nsharding = "
          "\"parameters\"\nrecompute = \"selective\"\noffload = \"host\"\n"
          "activation_loading_horizon = 1",
          "gradient_clipping = 0.1"}},
        {"sequences of a mixture with balance and capacity, its experts over the same ranks",
         2,
         {"mixtral", "experts = 4\nexperts_per_token = 2\nauxiliary_loss = 0.1\ncapacity_factor = 1.0",
          "context_parallel = 2\nexpert_parallel = 2", ""}},
        {"LAMB, its norms over shards, experts and tensor ranks",
         4,
         {"mixtral", "experts = 4\nexperts_per_token = 2",
          "data_parallel = 2\nexpert_parallel = 2\ntensor_parallel = 2\nsharding = \"optimizer\"",
          "optimizer = \"lamb\"\nlearning_rate = 0.02\nweight_decay = 0.01\ngradient_clipping = 0.5"}},
        {"offload in a pipeline with split backward",
         2,
         {"gpt", "dropout = 0.1",
          "pipeline_parallel = 2\nmicro_batches = 8\nschedule = \"zb-h2\"\noffload = "
          "\"host\"\nactivation_loading_horizon = 1",
          ""}},
        {"experts of segments of sequences in a pipeline",
         4,
         {"mixtral", experts,
          "data_parallel = 2\nexpert_parallel = 2\npipeline_parallel = 2\nschedule = \"seq1f1b\"\nsegments = "
          "4",
          ""}},
    };
    return all;
}

enum class Transport { threads, tcp, mpi };

// Trains `steps` steps in all and returns the losses of all, as the last checkpoint has them.
std::vector<double> train(Transport transport, int ranks, const std::string& plan,
                          const std::string& checkpoints, int steps, bool resumes = false) {
    const std::string output = checkpoints + "-log";
    std::filesystem::create_directories(output);
    std::vector<std::string> command =
        transport == Transport::mpi ? mpirun(ranks) : std::vector<std::string>();
    for (const std::string& word : {smexec, plan, std::string("--no-compare"), std::string("--steps"),
                                    std::to_string(steps), std::string("--checkpoint"), checkpoints})
        command.push_back(word);
    if (resumes) command.push_back("--resume");
    if (transport == Transport::threads) command.insert(command.end(), {"--ranks-from", "threads"});
    std::vector<Process> job = transport == Transport::tcp
                                   ? start_ranks(command, ranks, output)
                                   : std::vector<Process>{start(command, {}, output + "/run")};
    REQUIRE(wait_for_all(job, std::chrono::seconds(60)));
    INFO(content_of(job[0].out) << content_of(job[0].err));
    REQUIRE(job[0].code() == 0);
    return losses_of(checkpoints);
}

}  // namespace

TEST_CASE("experts, sequences and offloaded activations train to the same bits over threads, TCP and MPI") {
    const Folder folder;
    if (!has_mpirun()) WARN("skipped: no mpirun on this machine");
    for (const Case& one : cases()) {
        INFO(one.what << "\n" << one.plan.plan);
        const std::string plan = write_plan(folder.path + "/plan.toml", one.plan),
                          at = folder.path + "/" + std::to_string(&one - cases().data());
        const std::vector<double> threads = train(Transport::threads, one.ranks, plan, at + "-threads", 5);
        REQUIRE(threads.size() == 5);
        CHECK(threads[4] < threads[0]);
        CHECK(train(Transport::tcp, one.ranks, plan, at + "-tcp", 5) == threads);
        if (has_mpirun()) CHECK(train(Transport::mpi, one.ranks, plan, at + "-mpi", 5) == threads);
    }
}

TEST_CASE("experts, sequences and offloaded activations go on from a checkpoint to the same bits, over TCP") {
    const Folder folder;
    for (const Case& one : cases()) {
        INFO(one.what << "\n" << one.plan.plan);
        const std::string plan = write_plan(folder.path + "/plan.toml", one.plan),
                          at = folder.path + "/" + std::to_string(&one - cases().data());
        const std::vector<double> unbroken = train(Transport::tcp, one.ranks, plan, at + "-unbroken", 5);
        train(Transport::tcp, one.ranks, plan, at, 2);
        CHECK(train(Transport::tcp, one.ranks, plan, at, 5, true) == unbroken);
    }
}

TEST_CASE("experts and sequences go on at another data-parallel degree") {
    // Momentum: Adam divides by gradients, and so magnifies their rounding. No balance loss: it is one
    // rank's, and so another one with fewer samples a rank.
    const std::string sgd = "optimizer = \"sgd\"\nmomentum = 0.9",
                      mixture = "experts = 4\nexperts_per_token = 2";
    const struct {
        const char* what;
        TinyPlan before, after;
        int ranks_before, ranks_after;
    } changes[] = {
        {"experts over two of two ranks, then two of four, sharded",
         {"mixtral", mixture, "data_parallel = 2\nexpert_parallel = 2", sgd},
         {"mixtral", mixture,
          "data_parallel = 4\nexpert_parallel = 2\nmicro_batches = 2\nsharding = \"gradients\"", sgd},
         2,
         4},
        {"experts over four ranks, then all on one",
         {"mixtral", mixture, "data_parallel = 4\nexpert_parallel = 4\nmicro_batches = 2", sgd},
         {"mixtral", mixture, "data_parallel = 1\nmicro_batches = 8\noffload = \"host\"", sgd},
         4,
         1},
        {"whole sequences, then halves beside replicas",
         {"gpt", "", "data_parallel = 1\nmicro_batches = 4", sgd},
         {"gpt", "", "data_parallel = 2\ncontext_parallel = 2\nmicro_batches = 2\nsharding = \"parameters\"",
          sgd},
         1,
         4},
    };
    const Folder folder;
    for (const auto& change : changes) {
        INFO(change.what);
        const std::string before = write_plan(folder.path + "/before.toml", change.before),
                          after = write_plan(folder.path + "/after.toml", change.after);
        const std::string at = folder.path + "/" + std::to_string(&change - changes);
        const std::vector<double> unbroken =
            train(Transport::tcp, change.ranks_before, before, at + "-unbroken", 5);
        train(Transport::tcp, change.ranks_before, before, at, 3);
        const std::vector<double> resumed = train(Transport::tcp, change.ranks_after, after, at, 5, true);
        REQUIRE(resumed.size() == 5);
        for (std::size_t i = 0; i < 5; ++i) CHECK(resumed[i] == Approx(unbroken[i]).epsilon(1e-5));
    }
}
