#include "apps/smplan/smplan_verify.h"

#include <algorithm>
#include <ostream>

#include "api/plan/certificate.h"
#include "apps/command.h"

namespace apps {

namespace {

const char* const verify_help =
    "Usage: smplan verify FILE [--samples N] [--seed N] [--json]\n"
    "\n"
    "Checks a certificate that smplan --certificate wrote, without the bounds of the search: counts the "
    "space "
    "again, simulates the\n"
    "claimed plan and those with one of its cuts moved, and draws plans of the space that must not be "
    "better.\n"
    "\n"
    "  --samples N          plans to draw (default 200)\n"
    "  --seed N             of the draws (default 1)\n"
    "\n"
    "Exit code 3 when the certificate does not hold.\n"
    "\n"
    "Example:\n"
    "  smplan --target p3.16xlarge --model gpt2-xl --nodes 1 --certificate proof.json\n"
    "  smplan verify proof.json\n";

}  // namespace

int run_verify_command(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
    if (std::find(arguments.begin(), arguments.end(), "--help") != arguments.end()) {
        out << verify_help;
        return good;
    }
    return show_reply(api::verify_certificate(arguments), wants_json(arguments), out, err);
}

}  // namespace apps
