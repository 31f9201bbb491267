// The text report of DeepSpeed's flops profiler: the forward pass of one micro-batch, module by module.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/diagnostics_fwd.h"
#include "core/units.h"
#include "validation/measured/measured_step.h"

namespace validation {

struct FlopsProfile {
    struct Module {
        std::string class_name;
        std::optional<std::size_t> parent;  // an earlier one
        int instances = 1;                  // in the model: of "(0-3): 4 x Dropout" 4 for each parent
        bool has_modules = false;
        // Nothing where the class prints no figures (ModuleList).
        struct Figures {
            double parameters = 0, macs = 0;
            std::optional<core::Seconds> latency;  // with that of its modules
        };
        std::optional<Figures> figures;
    };
    std::vector<Module> modules;      // as printed: the model first, each before its modules
    double parameters = 0, macs = 0;  // of the whole model, on this GPU
    // Under wall_clock_breakdown: forward, backward and update of all micro-batches.
    std::optional<core::Seconds> step;
};

bool is_flops_profile(std::string_view text);  // by the report's headline, anywhere in it

// As print_model_profile(detailed=True) of DeepSpeed 0.19.8 prints it, other lines around it; of several
// reports the last. Diagnosed with line: a report without its module tree, figures in another form, a tree
// that ends early. With a warning the model's own latency is left out where it is the clock: DeepSpeed's
// engine starts the profile within the model's forward, after the hook that would have noted its begin.
std::optional<FlopsProfile> read_flops_profile(std::string_view text, const std::string& file,
                                               core::Diagnostics& diagnostics);

// The kind of what a module does outside of the modules in it, by the name of its class.
StepKind kind_of_module(std::string_view class_name, bool has_modules);

// The time of each module less that of its modules, by kind. Modules that several others hold are printed
// under each with the time of all calls: what exceeds their holder is scaled down to it. Modules without a
// latency have that of their modules.
MeasuredStep forward_of(const FlopsProfile& profile);

}  // namespace validation
