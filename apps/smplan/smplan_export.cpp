#include "apps/smplan/smplan_export.h"

#include <algorithm>
#include <ostream>

#include "api/exchange.h"
#include "apps/command.h"
#include "core/value.h"

namespace apps {

namespace {

const char* const export_help =
    "Usage: smplan export plan.toml --to TARGET [--out FILE] [--script FILE] [--command COMMAND] "
    "[--checkpoint DIR] [--every N]\n"
    "                     [--tensorflow] [--json]\n"
    "\n"
    "Writes a plan in another tool's words. What the target cannot express is an error that names it and "
    "what to change; what it leaves\n"
    "to the training script is a warning; what the plan does not say stands as REPLACE...\n"
    "\n"
    "  --to TARGET        sagemaker-smp-v1, sagemaker-smp-v2, sagemaker-smddp, megatron, megatron-bridge, "
    "deepspeed, "
    "torchtitan,\n"
    "                     accelerate, nemo, torchrun, mpirun, slurm, kubernetes or skypilot\n"
    "  --out FILE         write there, with companion files beside it (default: standard output, without "
    "companions)\n"
    "  --script FILE      the training script (sagemaker)\n"
    "  --command COMMAND  what every rank runs (launchers: torchrun to skypilot; default: smexec with "
    "the plan)\n"
    "  --checkpoint DIR   smexec keeps its checkpoints there, one every N steps with --every N, and goes on "
    "from them when it is\n"
    "                     started again; Slurm then requeues the job at its time limit, or when a rank or a "
    "node fails (launchers)\n"
    "  --tensorflow       Horovod instead of DistributedDataParallel (sagemaker-smp-v1)\n"
    "  --json             one JSON document: target, text, companions[], notes[], warnings[]\n"
    "\n"
    "Example:\n"
    "  smplan export scenarios/llama2_70b_p4d.toml --to megatron\n";

const char* const import_help =
    "Usage: smplan import FILE --from TARGET [--model MODEL] [--seq-len S] [--instance TYPE] [--nodes N] "
    "[--processes-per-node P]\n"
    "                     [--micro-batch B] [--out plan.toml] [--json]\n"
    "\n"
    "Reads another tool's file back into a plan. JSON and Python are accepted for SageMaker and DeepSpeed, a "
    "whole estimator call too.\n"
    "What the file does not hold comes from the options; what neither says is a placeholder and a warning.\n"
    "\n"
    "  --from TARGET          sagemaker-smp-v1, sagemaker-smp-v2, sagemaker-smddp, megatron, deepspeed or "
    "torchtitan\n"
    "  --model MODEL          catalogue name of the model; --seq-len S tokens a sample\n"
    "  --instance TYPE        instance type; --nodes N of them\n"
    "  --processes-per-node P ranks on each (default: the file's, or one a device)\n"
    "  --micro-batch B        samples of a micro-batch\n"
    "  --out plan.toml        write there (default: standard output)\n"
    "  --json                 one JSON document: target, plan (as in plan.toml), warnings[]\n"
    "\n"
    "Example:\n"
    "  smplan import distribution.json --from sagemaker-smp-v1 --model bert-large --instance p3.16xlarge "
    "--nodes 1\n";

bool wants_help(const std::vector<std::string>& arguments) {
    return std::find(arguments.begin(), arguments.end(), "--help") != arguments.end();
}

}  // namespace

int run_export_command(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
    if (wants_help(arguments)) {
        out << export_help;
        return good;
    }
    const bool as_json = wants_json(arguments);
    const api::Reply reply = api::export_plan(arguments);
    const int code = show_reply(reply, as_json, out, err);
    if (const core::Value* notes = reply.document.find("notes"); notes != nullptr && !as_json)
        for (const core::Value& note : notes->items()) err << "note: " << note.string() << '\n';
    return code;
}

int run_import_command(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
    if (wants_help(arguments)) {
        out << import_help;
        return good;
    }
    return show_reply(api::import_plan(arguments), wants_json(arguments), out, err);
}

}  // namespace apps
