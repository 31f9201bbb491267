#include "apps/smplan/smplan_plan.h"

#include <ostream>

#include "api/plan/plan_command.h"
#include "apps/command.h"

namespace apps {

const char* const plan_help =
    "Usage: smplan --target INSTANCE[,INSTANCE...] [--nodes N | --max-nodes N] [--model MODEL] [--seq-len S] "
    "[--global-batch B]\n"
    "              [--objective speed|memory|cost|time-to-train] [--tokens T] [--deadline H] [--budget USD]\n"
    "              [--top K] [--threads T] [--time-limit S] [--calibration FILE] [--out plan.toml] [--json]\n"
    "       smplan partition --graph FILE ...      place a costed graph (smplan partition --help)\n"
    "       smplan order plan.toml ...             search the compute order of a plan (smplan order --help)\n"
    "       smplan export plan.toml --to TARGET    write a plan in another tool's words (smplan export "
    "--help)\n"
    "\n"
    "Looks at every legal plan (data x tensor x pipeline x virtual stages x schedule x sharding x "
    "recomputation x micro-batch, and\n"
    "offload where activations do not fit), rejects what cannot fit memory, simulates what its bounds do not "
    "exclude, and ranks the\n"
    "rest.\n"
    "\n"
    "  --target LIST        instance types (smsim hardware lists them), families (p4d), patterns ('p*') or "
    "all\n"
    "  --nodes N            exactly N nodes; without it and --max-nodes the smallest power of two on which "
    "the model fits\n"
    "  --max-nodes N        any number of nodes up to N; above 16 powers of two and N are searched, and the "
    "gap "
    "counts what a bound says of the others\n"
    "  --model MODEL        catalogue name, config.json, .onnx or .toml (default: llama-2-7b)\n"
    "  --seq-len S          tokens per sample (default: what the model was published with)\n"
    "  --global-batch B     samples per step (default: about 4 million tokens, Llama 2's; 256 images)\n"
    "  --objective O        speed (default), memory, cost or time-to-train\n"
    "  --tokens T           tokens of the whole training, e.g. 2e12 or 300B; --deadline in hours and "
    "--budget in USD "
    "are for all of them\n"
    "  --memory-margin PCT  keep so much of every device's memory free (default 0)\n"
    "  --top K              plans to show (default 5)\n"
    "  --pareto             the front of step time, cost and memory over all clusters instead; of "
    "--objective "
    "nothing is asked\n"
    "  --offload WHERE      where activations may go that do not fit: host (default), none, or disk with "
    "--offload-bandwidth 6GB/s,\n"
    "                       the rate of a node's disks together, each way\n"
    "  --threads T          default: all cores; the answer does not depend on it\n"
    "  --time-limit S       stop after the work of S seconds with the best so far and its gap (default 15); "
    "work is counted,\n"
    "                       not timed (two cores do about a second's in a second), so the answer does not "
    "depend on the load\n"
    "  --for TOOL[,TOOL...] search what the tool runs, priced as it runs it: the export of the answer always "
    "works\n"
    "                       (megatron, megatron-bridge, nemo, torchtitan, deepspeed, accelerate, smp-v1, "
    "smp-v2, smexec);\n"
    "                       of several the best of each\n"
    "  --tp --pp --dp --cp --ep --micro-batch N[,N...], --schedule NAME[,...], --sharding none|optimizer|"
    "gradients|parameters,\n"
    "  --recompute none|selective|full, --precision fp32|tf32|fp16|bf16|fp8\n"
    "                       keep plans to these values; the answer says what that costs against all plans\n"
    "  --schedule auto      search the compute order of the plans found, for their own stage times, and keep "
    "it where it is faster\n"
    "  --calibration FILE   constants and site effects of one installation (smsim calibrate --help)\n"
    "  --out plan.toml      write the best plan, for smsim and smexec\n"
    "  --certificate FILE   write what was asked, excluded and simulated, for smplan verify\n"
    "  --json               one JSON document on stdout\n"
    "\n"
    "Exit code 3 when no plan fits, with what is missing and what would make it fit.\n"
    "\n"
    "Example:\n"
    "  smplan --target p4d.24xlarge --nodes 16 --model llama-2-70b --global-batch 512 --out plan.toml\n";

int run_plan_command(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
    for (const std::string& argument : arguments)
        if (argument == "--help") {
            out << plan_help;
            return good;
        }
    return show_reply(api::plan(arguments, {}), wants_json(arguments), out, err);
}

}  // namespace apps
