// smplan: the best plan of the whole space, why it is best, and what binds; and partitions of any graph with
// a proof.
#include "apps/command.h"
#include "apps/smplan/smplan_export.h"
#include "apps/smplan/smplan_order.h"
#include "apps/smplan/smplan_partition.h"
#include "apps/smplan/smplan_plan.h"
#include "apps/smplan/smplan_verify.h"
#include "apps/smplan/why_not/smplan_why_not.h"

namespace {

const char* const help =
    "smplan: planner for distributed training\n"
    "\n"
    "Usage: smplan --target INSTANCE[,INSTANCE...] [--model MODEL] [--global-batch B] [--nodes N | "
    "--max-nodes N] [...]\n"
    "       smplan partition --graph FILE --devices K [...]   partition a graph and prove the optimum\n"
    "       smplan verify FILE                              check a certificate that --certificate wrote\n"
    "       smplan why-not plan.toml                        what keeps a plan from being the best one\n"
    "       smplan order plan.toml --out ordered.toml       search the compute order of a plan and keep it "
    "in the plan\n"
    "       smplan export plan.toml --to TARGET             write a plan for SageMaker, Megatron-LM, "
    "DeepSpeed, torchtitan, NeMo, Slurm...\n"
    "       smplan import FILE --from TARGET                read one back\n"
    "       smplan --version | --help; `smplan COMMAND --help` (plan, why-not, verify, partition, order, "
    "export, import) "
    "lists all options\n"
    "\n"
    "Searches degrees of data, tensor and pipeline parallelism, schedules, sharding, recomputation and "
    "micro-batches; prints the best\n"
    "plans with time, memory and cost, why they are best, what binds them, and what was rejected for which "
    "reason.\n"
    "\n"
    "Exit codes: 0 good, 1 internal failure, 2 wrong input, 3 no plan, 4 machine failure.\n"
    "\n"
    "Example:\n"
    "  smplan --target p4d.24xlarge --nodes 16 --model llama-2-70b --global-batch 512 --out plan.toml\n";

}  // namespace

int main(int argc, char** argv) {
    const apps::Tool tool{"smplan",
                          help,
                          {{"partition", "", apps::run_partition_command},
                           {"plan", "", apps::run_plan_command},
                           {"verify", "", apps::run_verify_command},
                           {"why-not", "", apps::run_why_not_command},
                           {"order", "", apps::run_order_command},
                           {"export", "", apps::run_export_command},
                           {"import", "", apps::run_import_command}},
                          {"", "", apps::run_plan_command}};
    return apps::run_tool(tool, argc, argv);
}
