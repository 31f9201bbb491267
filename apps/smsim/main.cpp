// smsim: what-if questions about one plan on one cluster, and the catalogues behind them.
#include "apps/command.h"
#include "apps/smsim/calibrate/smsim_calibrate.h"
#include "apps/smsim/calibrate/smsim_locate.h"
#include "apps/smsim/published/smsim_published.h"
#include "apps/smsim/smsim_campaign.h"
#include "apps/smsim/smsim_compare.h"
#include "apps/smsim/smsim_frameworks.h"
#include "apps/smsim/smsim_hardware.h"
#include "apps/smsim/smsim_job.h"
#include "apps/smsim/smsim_model.h"
#include "apps/smsim/smsim_schedule.h"
#include "apps/smsim/smsim_simulate.h"
#include "apps/smsim/smsim_validate.h"

namespace {

const char* const help =
    "smsim: discrete-event simulation of distributed training\n"
    "\n"
    "Usage: smsim SCENARIO.toml [--set KEY=VALUE]... [--sweep KEY=A,B,C]... [--trace OUT.json] [--html "
    "OUT.html] [--csv OUT.csv] [--json]\n"
    "       smsim schedule NAME --stages P --micro-batches M [...]   generate, verify and time a pipeline "
    "schedule\n"
    "       smsim job SCENARIO.toml                                  a whole training: time, cost, "
    "interruptions\n"
    "       smsim campaign SCENARIO.toml                             many jobs on one pool of instances\n"
    "       smsim compare A.toml B.toml [...]                        why the one is faster, key by key\n"
    "       smsim ablate SCENARIO.toml                               what each optimisation of a plan is "
    "worth\n"
    "       smsim published CASES.toml                               our figures beside published ones\n"
    "       smsim model MODEL                                        parameters, FLOPs and layers of a "
    "model\n"
    "       smsim hardware [NAME]                                    hardware profiles with their sources\n"
    "       smsim frameworks [NAME]                                  training codes that plans may name, "
    "with "
    "their sources\n"
    "       smsim validate FILE.csv --clusters CLUSTERS.csv          predictions against published "
    "measurements\n"
    "       smsim calibrate RUNS.csv --out FILE.toml                 an installation's constants from its "
    "own "
    "runs\n"
    "       smsim locate SCENARIO.toml MEASURED                      where a measured step loses against its "
    "prediction\n"
    "       smsim --version | --help; every subcommand has its own --help\n"
    "\n"
    "A scenario names a model, a cluster and a plan; smsim says how long one step takes, what it costs, "
    "whether it fits in memory,\n"
    "and where the time goes.\n"
    "\n"
    "Exit codes: 0 good, 1 internal failure, 2 wrong input, 3 does not fit, 4 machine failure.\n"
    "\n"
    "Example:\n"
    "  smsim scenarios/llama2_7b_p4d.toml --set plan.micro_batch=1 --trace step.json\n";

}  // namespace

int main(int argc, char** argv) {
    const apps::Tool tool{"smsim",
                          help,
                          {{"schedule", "", apps::run_schedule_command},
                           {"job", "", apps::run_job_command},
                           {"campaign", "", apps::run_campaign_command},
                           {"compare", "", apps::run_compare_command},
                           {"ablate", "", apps::run_ablate_command},
                           {"published", "", apps::run_published_command},
                           {"model", "", apps::run_model_command},
                           {"hardware", "", apps::run_hardware_command},
                           {"frameworks", "", apps::run_frameworks_command},
                           {"validate", "", apps::run_validate_command},
                           {"calibrate", "", apps::run_calibrate_command},
                           {"locate", "", apps::run_locate_command}},
                          {"", "", apps::run_simulate_command}};
    return apps::run_tool(tool, argc, argv);
}
