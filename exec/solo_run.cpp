#include "exec/solo_run.h"

#include <algorithm>
#include <exception>
#include <thread>

#include "exec/cpu/kernels.h"
#include "exec/no_peers.h"

namespace exec {

std::vector<RankRecord> run_alone(const schedule::Program& program, const model::ModelGraph& graph, std::shared_ptr<const DataSource> data, const RunOptions& options,
                                  const std::vector<int>& ranks) {
    core::require(options.checkpoints.directory.empty() && !options.overlaps, "ranks without peers do nothing but compute");
    const InputReader inputs(graph, std::move(data));
    const RunPreparation preparation = prepare_run(program, graph);
    std::vector<RankRecord> records(ranks.size());
    std::vector<std::exception_ptr> failures(ranks.size());
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < ranks.size(); ++i)
        threads.emplace_back([&, i] {
            NoPeers communicator(ranks[i], program.plan.layout.ranks());
            try {
                records[i] = run_rank(program, graph, inputs, options, communicator, preparation, static_cast<int>(i), static_cast<int>(ranks.size()));
            } catch (...) {
                failures[i] = std::current_exception();
            }
            cpu::free_scratch();
        });
    for (std::thread& thread : threads) thread.join();
    for (const std::exception_ptr& failure : failures)
        if (failure) std::rethrow_exception(failure);
    return records;
}

}  // namespace exec
