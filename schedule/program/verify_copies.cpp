// What a Program copies between its devices and the hosts that keep optimizers and parameters: the "update"
// rule's part of it.
#include <fmt/core.h>

#include "schedule/program/program_checker.h"

namespace schedule {

// An optimizer on the host: what a rank updates of a gradient goes there when it is whole and before the
// step, and the values come back after it, once each. Where hosts keep parameters, these come before each
// gather, and gradients go after each pass that makes them.
void ProgramChecker::add_bucket_copy(std::int32_t c, std::int32_t n, BucketUpdate& s) {
    const Instruction& i = list(c).instructions[n];
    const ParameterBucket& bucket = list(c).buckets[*i.bucket];
    const Precision& precision = program_.plan.precision;
    if (!program_.plan.updates_on_hosts()) report("update", c, n, "copies what no host updates");
    const PayloadKind payload = i.loads ? PayloadKind::parameter : PayloadKind::parameter_gradient;
    if (i.payload != payload)
        report("update", c, n, fmt::format("copies {}, not {}", name_of(i.payload), name_of(payload)));
    const core::Bytes own = static_cast<double>(bucket.padded_elements / bucket.pieces) *
                            core::size_of(i.loads ? precision.parameters : precision.gradients);
    if (i.bytes != own)
        report("update", c, n, fmt::format("this rank updates {:.0f} B of its bucket", own.value));
    if (i.loads && program_.plan.keeps_parameters_on_hosts()) {
        if (s.step >= 0) report("update", c, n, "comes after the update");
        if (bucket.pieces == 1) ++s.gathered_before;
        else if (s.fetched >= 0) report("update", c, n, "is there twice before a gather");
        s.fetched = n;
        return;
    }
    if (i.loads ? s.returned >= 0 : !s.sent.empty() && !bucket.sums_on_host)
        report("update", c, n, "is there twice");
    if (i.loads) {
        if (s.step < 0 || !is_ordered(c, s.step, n)) report("update", c, n, "does not wait for the update");
        s.returned = n;
        return;
    }
    s.sent.push_back(n);
    if (s.step >= 0) report("update", c, n, "comes after the update");
    for (const std::int32_t reduction : s.reductions)
        if (!is_ordered(c, reduction, n))
            report("update", c, n, fmt::format("does not wait for instruction {}", reduction));
}

// Each gradient that goes to the host after the pass that makes it, and all of them before the step.
void ProgramChecker::check_copies(std::int32_t c, std::size_t b, const BucketUpdate& s,
                                  const std::vector<std::int32_t>& begun) {
    const bool sums = list(c).buckets[b].sums_on_host;
    const auto expect = [&](std::size_t found, std::size_t wanted, const char* what) {
        if (found != wanted)
            report("update", c,
                   fmt::format("bucket {} has {} copies of its {}, not {}", b, found, what, wanted));
    };
    expect(s.sent.size(), sums ? begun.size() : 1, "gradient to the host");
    expect(s.returned >= 0, !program_.plan.keeps_parameters_on_hosts(), "values from the host");
    for (std::size_t k = 0; k < s.sent.size(); ++k) {
        if (!is_ordered(c, s.sent[k], s.step))
            report("update", c, s.step, "does not wait for the gradient on the host");
        if (begun.empty() || k >= begun.size()) continue;
        const std::int32_t pass = sums ? begun[k] : begun.back();
        if (pass > s.sent[k] || !is_ordered(c, pass, s.sent[k]))
            report("update", c, s.sent[k], "does not wait for the backward that it is of");
    }
}

}  // namespace schedule
