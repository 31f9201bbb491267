// What is known of one training code or of some versions of it: facts of framework_profiles/*.toml, each with
// source and date, or the constant of the cost model that it is.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cluster/topology.h"
#include "core/diagnostics_fwd.h"
#include "core/value.h"
#include "sim/cost/constants.h"
#include "sim/cost/framework/framework_fact.h"

namespace sim {

inline constexpr int framework_schema = 1;

struct FrameworkProfile {
    // One fact as a file states it.
    struct Statement {
        const FrameworkFact* fact = nullptr;
        const NamedConstant* constant = nullptr;  // null: a value with its provenance
        cluster::Provenance provenance;
        std::string profile;  // that states it: this one, or one that it extends
    };

    std::string name, title, versions;
    std::optional<std::string> extends;  // name of the profile whose facts hold where this one says nothing
    std::string file;
    std::vector<std::string> notes;
    std::vector<Statement> statements;  // own and inherited, at most one a fact

    // What the profile says, its constants at these values.
    FrameworkFacts with(const CostConstants& constants) const;
    FrameworkTraits traits(const CostConstants& constants) const { return with(constants).traits; }
    FrameworkMemory memory(const CostConstants& constants) const { return with(constants).memory; }

    const Statement* statement_of(const FrameworkFact& fact) const;
    FrameworkFacts values;  // of facts that are no constants
};

// Reads `table`, one entry of a file's [[profile]], over what `parent` says (null: over nothing). Unknown
// keys, facts without source or date and unknown constants are errors.
FrameworkProfile read_framework_profile(const core::Value& table, const FrameworkProfile* parent,
                                        core::Diagnostics& diagnostics);

}  // namespace sim
