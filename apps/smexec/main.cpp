// smexec: runs a plan on this machine, and measures the machine.
#include "apps/command.h"
#include "apps/smexec/smexec_convert.h"
#include "apps/smexec/smexec_profile.h"
#include "apps/smexec/smexec_run.h"

int main(int argc, char** argv) {
    const apps::Tool tool{"smexec",
                          apps::smexec_help(),
                          {{"profile", "measures this machine", apps::run_smexec_profile},
                           {"convert", "rewrites a checkpoint for another plan", apps::run_smexec_convert}},
                          {"", "", apps::run_smexec}};
    return apps::run_tool(tool, argc, argv);
}
