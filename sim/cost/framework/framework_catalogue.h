// All framework profiles by name. The shipped ones are read once a process and never change.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/diagnostics_fwd.h"
#include "sim/cost/framework/framework_profile.h"

namespace sim {

class FrameworkCatalogue {
public:
    // Profiles of all files together: one may extend a profile of another file. What is wrong with one, an
    // unknown name after `extends` or a circle of them is an error, and that profile is left out.
    static FrameworkCatalogue read(const std::vector<std::string>& files, core::Diagnostics& diagnostics);

    const FrameworkProfile* find(std::string_view name) const;  // null when there is none
    std::vector<std::string> names() const;
    const std::vector<FrameworkProfile>& profiles() const { return profiles_; }  // by name

private:
    std::vector<FrameworkProfile> profiles_;
};

// framework_profiles/*.toml of $SMSIM_FRAMEWORK_PROFILES, the installed folder and the source tree; of files
// with one name the first.
std::vector<std::string> framework_files();
const FrameworkCatalogue& framework_catalogue();

// An unknown name is an error at `location`, with did-you-mean and the list; so is what is wrong with the
// files then. An empty name is no framework.
void check_framework(const std::string& name, core::Diagnostics& diagnostics,
                     const core::SourceLocation& location = {}, const std::string& key = "plan.framework");
// Of a name that has been checked; InternalError when there is none.
const FrameworkProfile& framework_profile(std::string_view name);

}  // namespace sim
