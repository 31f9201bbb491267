// What `smexec PLAN.toml` is asked to do, from its command line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/diagnostics_fwd.h"
#include "core/units.h"

namespace apps {

struct ExecutionRequest {
    std::string plan, trace, html, ranks_from;
    std::string checkpoint;  // folder; empty = none
    std::string metrics;     // file; empty = none
    std::optional<std::string> data, init;
    std::optional<std::int64_t> steps, every, from_step;
    std::optional<double> tolerance;
    std::string learning_rate;  // schedule; empty = constant
    std::int64_t warmup_steps = 0;
    std::optional<std::string> eval_data;
    std::optional<std::int64_t> eval_every, eval_batches;
    core::Seconds time_limit{120}, join_limit{30};
    std::optional<std::string> interface, token_file;
    bool on_gpu = false, captures_steps = false, measures_products = false;
    std::optional<double> expert_room;
    bool checks = false, as_json = false, is_verbose = false, compares = true, resumes = false,
         sets_aside = false;
};

// Mistakes are diagnosed, all of them; then the request is not to be used.
ExecutionRequest parse_execution(const std::vector<std::string>& arguments, core::Diagnostics& diagnostics);

}  // namespace apps
