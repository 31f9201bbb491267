#include "sim/engine/simulation_record.h"

#include <algorithm>
#include <utility>

#include "sim/engine/memory_sweep.h"

namespace sim {

void record(const Performer& performer, const schedule::RankProgram& list, core::Seconds end,
            std::vector<schedule::Span>& spans, std::vector<core::Seconds>& active_from,
            const SimulateOptions& options, Simulation& simulation) {
    simulation.end.push_back(end);
    simulation.timeline.makespan = std::max(simulation.timeline.makespan, end);
    simulation.timeline.class_of.push_back(performer.class_index);
    simulation.timeline.rank.push_back(performer.rank);
    simulation.instructions += list.instructions.size();
    if (options.tracks_memory) {
        static const ExtraMemory none;
        const ExtraMemory& extra =
            options.extra_memory ? (*options.extra_memory)[performer.class_index] : none;
        simulation.memory_peak.push_back(
            sweep_memory(list, extra, spans, options.keeps_memory_samples, simulation.memory));
    }
    if (!options.keeps_spans) return;
    simulation.timeline.spans.push_back(std::move(spans));
    simulation.active_from.push_back(std::move(active_from));
}

}  // namespace sim
