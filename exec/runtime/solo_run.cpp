#include "exec/runtime/solo_run.h"

#include <algorithm>
#include <exception>

#include "core/errors.h"
#include "core/index/integers.h"
#include "exec/cpu/kernels.h"
#include "exec/runtime/rank_threads.h"
#include "exec/transport/no_peers.h"

namespace exec {

std::vector<RankRecord> run_alone(const schedule::Program& program, const model::ModelGraph& graph,
                                  std::shared_ptr<const DataSource> data, const RunOptions& options,
                                  const std::vector<int>& ranks) {
    core::require(options.checkpoints.directory.empty() && !options.overlaps,
                  "ranks without peers do nothing but compute");
    const InputReader inputs(graph, std::move(data));
    const RunPreparation preparation = prepare_run(program, graph);
    std::vector<RankRecord> records(ranks.size());
    std::vector<std::exception_ptr> failures(ranks.size());
    const auto work = [&](int index) {
        const std::size_t i = index;
        NoPeers communicator(ranks[i], program.plan.layout.ranks());
        try {
            records[i] = run_rank(program, graph, inputs, options, communicator, preparation, index,
                                  core::count_of(ranks));
        } catch (...) {
            failures[i] = std::current_exception();
        }
        cpu::free_scratch();
    };
    run_in_threads(core::count_of(ranks), work,
                   [](const std::string&) {});  // no rank waits for another: each comes to its end
    for (const std::exception_ptr& failure : failures)
        if (failure) std::rethrow_exception(failure);
    return records;
}

}  // namespace exec
