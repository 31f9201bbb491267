#!/usr/bin/env python3
"""Passes what `smplan export` writes through the real packages, and records what they made of it.

    python3 interop/check/exports.py TARGET... --smplan build/smplan [--write]

Every plan of plans/ is exported to the targets named, with the interpreter that has their packages (README.md
beside this file), and read by the package's own parser or validator. What the validator's object says of the
plan (degrees, batches, sharding) must be what plan.toml says. `--write` merges the answers into exports.json:
of each export its SHA-256 and the facts, or the keys of the plan that were refused before a file was written.
tests/interop/test_exports.py holds the record against today's exporters, without the packages.
"""
import argparse
import contextlib
import datetime
import glob
import hashlib
import importlib.metadata
import inspect
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
import types

HERE = os.path.dirname(os.path.abspath(__file__))
RECORD = os.path.join(HERE, "exports.json")


# ---------------------------------------------------------------- plans and exports

def read_plans():
    plans = {}
    for path in sorted(glob.glob(os.path.join(HERE, "plans", "*.toml"))):
        with open(path, "rb") as file:
            plans[os.path.basename(path)[:-len(".toml")]] = tomllib.load(file)
    return plans


def expected_facts(document):
    """What a plan says, in the words of this check. Degrees multiply to the ranks: data x context x tensor x
    pipeline; expert is a part of data x context, or of it and tensor where expert_tensor, the ranks that divide an expert, is one."""
    plan = document["plan"]
    facts = {
        "tensor": plan.get("tensor_parallel", 1), "pipeline": plan.get("pipeline_parallel", 1),
        "data": plan.get("data_parallel", 1), "context": plan.get("context_parallel", 1),
        "expert": plan.get("expert_parallel", 1), "expert_tensor": plan.get("expert_tensor_parallel", plan.get("tensor_parallel", 1)),
        "virtual_stages": plan.get("virtual_stages", 1),
        "sequence_parallel": plan.get("sequence_parallel", False) and plan.get("tensor_parallel", 1) > 1,
        "micro_batch": plan["micro_batch"], "micro_batches": plan.get("micro_batches", 1),
        "zero_stage": ["none", "optimizer", "gradients", "parameters"].index(plan.get("sharding", "none")),
        "recompute_full": plan.get("recompute", "none") == "full",
        "recompute_layers": plan.get("recompute_layers", 0),
        "recompute_modules": plan.get("recompute_modules", ["core_attn"]) if plan.get("recompute") == "selective" else [],
        "context_communication": plan.get("context_communication", "all_gather"),
        "gradient_clipping": document["training"]["gradient_clipping"],
        "nodes": document["cluster"]["nodes"], "instance": document["cluster"]["instance"],
        "sequence_length": document["model"]["sequence_length"],
    }
    facts["global_batch"] = facts["data"] * facts["micro_batch"] * facts["micro_batches"]
    facts["ranks"] = facts["data"] * facts["context"] * facts["tensor"] * facts["pipeline"]
    facts["processes_per_node"] = facts["ranks"] // facts["nodes"]
    replicas_and_context = facts["data"] * facts["context"]
    facts["shard_degree"] = 1 if facts["zero_stage"] == 0 else plan.get("shard_degree", replicas_and_context)
    precision = plan.get("precision")
    facts["fp8"] = isinstance(precision, dict) and precision["compute"] == "fp8"
    facts["offload"] = plan.get("offload", "none") != "none"
    facts["optimizer_on_host"] = plan.get("optimizer_offload", "none") == "host"
    facts["parameters_on_host"] = plan.get("parameter_offload", "none") == "host"
    if "partition" in plan:
        facts["first_units"] = plan["partition"]
    return facts


def export(smplan, name, target):
    """The JSON document of `smplan export`, run where the plans are: paths in files are bare names."""
    done = subprocess.run([os.path.abspath(smplan), "export", name + ".toml", "--to", target, "--json"],
                          capture_output=True, text=True, cwd=os.path.join(HERE, "plans"))
    if done.returncode not in (0, 2):
        raise SystemExit(f"{name} to {target}: exit {done.returncode}: {done.stderr}")
    return json.loads(done.stdout)


def digest(document):
    text = document["text"] + "".join("\0" + c["name"] + "\0" + c["text"] for c in document["companions"])
    return hashlib.sha256(text.encode()).hexdigest()


def refused_keys(document):
    return sorted({error["key"] for error in document["errors"]})


# ---------------------------------------------------------------- what each package says
# A check takes the export and the plan's facts, raises where the package refuses, returns facts.

def version_of(*packages):
    return {package: importlib.metadata.version(package) for package in packages}


def load_module(name, text, folder):
    with open(os.path.join(folder, name + ".py"), "w") as file:
        file.write(text)
    sys.modules.pop(name, None)
    sys.path.insert(0, folder)
    try:
        return __import__(name)
    finally:
        sys.path.remove(folder)


def companion(document, name):
    return next(c["text"] for c in document["companions"] if c["name"] == name)


@contextlib.contextmanager
def environment(**values):
    before = dict(os.environ)
    os.environ.update({key: str(value) for key, value in values.items()})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def megatron_source():
    path = os.environ.get("MEGATRON_LM")
    if not path:
        raise SystemExit("set MEGATRON_LM to a checkout of NVIDIA/Megatron-LM (and MEGATRON_LM_COMMIT)")
    os.environ["NO_VCS_VERSION"] = "1"
    sys.path.insert(0, path)
    import megatron.core
    return {"Megatron-LM": megatron.core.__version__ + " " + os.environ.get("MEGATRON_LM_COMMIT", "")}


def context_communication(kind, degree):
    """cp_comm_type in a plan's words."""
    kind = kind[0] if isinstance(kind, list) else kind
    return "all_gather" if degree == 1 else {"a2a": "all_to_all", "p2p": "ring"}.get(kind, kind)


def recompute_modules(config):
    """What Megatron-core runs again of every layer by these arguments, or this configuration."""
    return config.recompute_modules or ["core_attn"] if config.recompute_granularity == "selective" else []


def divides_optimizer(is_distributed, facts):
    """ZeRO-1? An optimizer on the host is a distributed one there, also of one rank."""
    is_alone = facts["optimizer_on_host"] and facts["data"] * facts["context"] == 1
    return 1 if is_distributed and not is_alone else 0


def megatron_arguments(words):
    """What Megatron-LM's own parser and checks make of them, by the environment's ranks."""
    import torch
    from megatron.training.arguments import parse_args, validate_args
    # An H100, as in the plans' p5, where there is none.
    torch.cuda.get_device_capability = lambda *a, **k: (9, 0)
    torch.cuda.get_device_properties = lambda *a, **k: types.SimpleNamespace(major=9, minor=0)
    before = sys.argv
    sys.argv = ["pretrain_gpt.py"] + words
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return validate_args(parse_args())
    finally:
        sys.argv = before


def check_megatron(document, facts, folder):
    versions = megatron_source()
    with environment(RANK=0, LOCAL_RANK=0, WORLD_SIZE=facts["ranks"], CUDA_DEVICE_MAX_CONNECTIONS=1):
        args = megatron_arguments(shlex.split(document["text"]))
    seen = {"tensor": args.tensor_model_parallel_size, "pipeline": args.pipeline_model_parallel_size,
            "context": args.context_parallel_size, "expert": args.expert_model_parallel_size, "expert_tensor": args.expert_tensor_parallel_size,
            "data": args.data_parallel_size, "ranks": args.world_size,
            "virtual_stages": args.virtual_pipeline_model_parallel_size or 1,
            "sequence_parallel": args.sequence_parallel, "micro_batch": args.micro_batch_size,
            "global_batch": args.global_batch_size, "sequence_length": args.seq_length,
            "zero_stage": divides_optimizer(args.use_distributed_optimizer, facts),
            "recompute_full": args.recompute_granularity == "full", "gradient_clipping": args.clip_grad,
            "recompute_layers": args.recompute_num_layers if args.recompute_method == "block" else 0,
            "recompute_modules": recompute_modules(args),
            "context_communication": context_communication(args.cp_comm_type, args.context_parallel_size),
            "fp8": args.fp8 is not None, "optimizer_on_host": args.optimizer_cpu_offload}
    layout = args.pipeline_model_parallel_layout
    if layout is not None:
        counts = [len(stage) for rank in zip(*layout.layout) for stage in rank] if not isinstance(layout, str) else None
        if counts:
            seen["first_units"] = [sum(counts[:i]) for i in range(len(counts))]
    elif args.decoder_first_pipeline_num_layers is not None:
        first, last = args.decoder_first_pipeline_num_layers, args.decoder_last_pipeline_num_layers
        stages = args.pipeline_model_parallel_size
        middle = (args.num_layers - first - last) // max(1, stages - 2)
        seen["first_units"] = [0] + [1 + first + middle * i for i in range(stages - 1)]
    elif args.pipeline_model_parallel_size > 1:
        stages = args.pipeline_model_parallel_size * seen["virtual_stages"]
        seen["first_units"] = [0] + [1 + i * (args.num_layers // stages) for i in range(1, stages)]
    return versions, seen


class AbsentPackage:
    """Stands for a package that needs a GPU to be installed: every name in it is an empty class."""
    def __init__(self, root):
        self.root = root

    def find_spec(self, name, path=None, target=None):
        import importlib.machinery
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.split(".")[0] == self.root else None

    def create_module(self, spec):
        class Anything(type):
            def __getattr__(cls, name):
                if name.startswith("__"):
                    raise AttributeError(name)
                return Anything(name, (), {"__init__": lambda self, *a, **k: None})

        class Module(types.ModuleType):
            def __getattr__(self, name):
                if name.startswith("__"):
                    raise AttributeError(name)
                return Anything(name, (), {"__init__": lambda self, *a, **k: None})
        module = Module(spec.name)
        module.__version__ = "2.9.0"
        return module

    def exec_module(self, module):
        module.__path__ = []


def check_megatron_bridge(document, facts, folder):
    versions = megatron_source()
    path = os.environ.get("MEGATRON_BRIDGE")
    if not path:
        raise SystemExit("set MEGATRON_BRIDGE to a checkout of NVIDIA-NeMo/Megatron-Bridge")
    if "transformer_engine" not in sys.modules:
        for root in ("transformer_engine", "transformer_engine_torch"):
            sys.meta_path.insert(0, AbsentPackage(root))
    sys.path.insert(0, os.path.join(path, "src"))
    versions["Megatron-Bridge"] = os.environ.get("MEGATRON_BRIDGE_COMMIT", "")
    versions["transformer_engine"] = "empty classes in its place"
    with environment(RANK=0, LOCAL_RANK=0, WORLD_SIZE=facts["ranks"]):
        module = load_module("smplan_recipe", document["text"], folder)
        config = module.plan()
        config.validate()
    m = config.model
    seen = {"tensor": m.tensor_model_parallel_size, "pipeline": m.pipeline_model_parallel_size,
            "context": m.context_parallel_size, "expert": m.expert_model_parallel_size, "expert_tensor": m.expert_tensor_parallel_size or m.tensor_model_parallel_size,
            "data": config.data_parallel_size, "virtual_stages": m.virtual_pipeline_model_parallel_size or 1,
            "sequence_parallel": m.sequence_parallel, "micro_batch": config.train.micro_batch_size,
            "global_batch": config.train.global_batch_size, "sequence_length": m.seq_length,
            "zero_stage": divides_optimizer(config.optimizer.use_distributed_optimizer, facts),
            "recompute_full": m.recompute_granularity == "full",
            "recompute_layers": m.recompute_num_layers if m.recompute_method == "block" else 0,
            "recompute_modules": recompute_modules(m),
            "context_communication": context_communication(m.cp_comm_type, m.context_parallel_size), "fp8": config.mixed_precision.fp8 == "hybrid",
            "gradient_clipping": config.optimizer.clip_grad, "optimizer_on_host": config.optimizer.optimizer_cpu_offload}
    return versions, seen


def check_deepspeed(document, facts, folder):
    import deepspeed
    import deepspeed.runtime.config as config
    from deepspeed.pipe import PipelineModule
    config.dist.get_rank = lambda *a, **k: 0
    replicas = types.SimpleNamespace(get_data_parallel_world_size=lambda: facts["data"])
    parsed = config.DeepSpeedConfig(json.loads(document["text"]), mpu=replicas)
    seen = {"global_batch": parsed.train_batch_size, "micro_batch": parsed.train_micro_batch_size_per_gpu,
            "micro_batches": parsed.gradient_accumulation_steps, "zero_stage": int(parsed.zero_optimization_stage),
            "gradient_clipping": parsed.gradient_clipping, "tensor": parsed.tensor_parallel_config.autotp_size or 1,
            "optimizer_on_host": bool(parsed.zero_config.offload_optimizer) and parsed.zero_config.offload_optimizer.device == "cpu",
            "parameters_on_host": bool(parsed.zero_config.offload_param) and parsed.zero_config.offload_param.device == "cpu"}
    if facts["context"] > 1:
        sizes = json.loads(document["text"])
        seen.update(data=sizes["data_parallel_size"], context=sizes["sequence_parallel_size"], context_communication="all_to_all")
    if document["companions"]:
        calls = []
        text = companion(document, "pipeline.py").replace("PipelineModule(", "record(")
        text = re.sub(r"REPLACE_WITH_YOUR_(LAYERS|LOSS)", "None", text)
        scope = {"record": lambda **arguments: calls.append(arguments)}
        exec(text, scope)
        inspect.signature(PipelineModule.__init__).bind(None, **calls[0])
        topology = calls[0]["topology"]
        seen.update(pipeline=topology.get_dim("pipe"), data=topology.get_dim("data"))
    return version_of("deepspeed"), seen


def check_torchtitan(document, facts, folder):
    import torch
    from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class
    from torchtitan.config import ConfigManager
    from torchtitan.distributed.fsdp import get_fsdp_reshard_after_forward_policy
    from torchtitan.distributed.parallel_dims import ParallelDims
    load_module("smplan_config", document["text"], folder)
    config = ConfigManager().parse_args(["--module", "smplan_config", "--config", "plan"])
    p, t = config.parallelism, config.training
    dims = ParallelDims.from_config(p, facts["ranks"])
    config.model_spec.model.update_from_config(config=config)
    with torch.device("meta"):
        model = config.model_spec.model.build()
    replicas = dims.dp_replicate * dims.dp_shard
    accumulation = t.global_batch_size // (t.local_batch_size * replicas)
    assert t.global_batch_size % (t.local_batch_size * replicas) == 0
    seen = {"tensor": dims.tp, "pipeline": dims.pp, "context": dims.cp, "expert": dims.ep, "data": replicas,
            "ranks": dims.world_size, "shard_degree": dims.dp_shard * dims.cp, "global_batch": t.global_batch_size,
            "sequence_length": t.seq_len, "gradient_clipping": t.max_norm,
            "sequence_parallel": dims.tp > 1 and p.enable_sequence_parallel,
            "recompute_full": config.activation_checkpoint is not None,
            "optimizer_on_host": t.enable_cpu_offload, "parameters_on_host": t.enable_cpu_offload,
            "parameters": sum(w.numel() for w in model.parameters())}
    # Parameters stay whole without resharding; gradients too in a pipeline, to its last micro-batch.
    reshards = get_fsdp_reshard_after_forward_policy(p.fsdp_reshard_after_forward, dims.pp > 1)
    kept_stage = 1 if dims.pp > 1 else 2
    seen["zero_stage"] = 0 if seen["shard_degree"] == 1 else 3 if reshards else kept_stage
    if dims.pp > 1:
        kind = get_schedule_class(p.pipeline_parallel_schedule)
        parts = p.module_fqns_per_model_part
        held = [name for part in parts for name in part]
        assert held == ["tok_embeddings"] + [f"layers.{i}" for i in range(len(model.layers))] + ["norm", "lm_head"]
        for name in held:
            model.get_submodule(name)
        assert issubclass(kind, PipelineScheduleMulti) == (len(parts) > dims.pp)
        units = [sum(len([n for n in part if n != "norm"]) for part in parts[:i]) for i in range(len(parts))]
        seen.update(virtual_stages=len(parts) // dims.pp, micro_batch=p.pipeline_parallel_microbatch_size,
                    micro_batches=t.local_batch_size // p.pipeline_parallel_microbatch_size)
        if "first_units" in facts:
            seen["first_units"] = units
    else:
        seen.update(micro_batch=t.local_batch_size, micro_batches=accumulation)
    return version_of("torchtitan", "torch"), seen


def check_accelerate(document, facts, folder):
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.parallelism_config import ParallelismConfig
    from accelerate.utils import FullyShardedDataParallelPlugin
    from accelerate.utils.launch import prepare_multi_gpu_env
    from torch.distributed.fsdp import CPUOffloadPolicy
    path = os.path.join(folder, "accelerate.yaml")
    with open(path, "w") as file:
        file.write(document["text"])
    args = launch_command_parser().parse_args(["--config_file", path, "train.py"])
    args, defaults, _ = _validate_launch_command(args)
    variables = prepare_multi_gpu_env(args)
    seen = {"ranks": defaults.num_processes, "nodes": defaults.num_machines}
    with environment(**variables):
        if args.use_fsdp:
            plugin = FullyShardedDataParallelPlugin()
            mesh = ParallelismConfig()
            assert plugin.fsdp_version == 2
            seen.update(tensor=mesh.tp_size, context=mesh.cp_size,
                        data=mesh.dp_replicate_size * mesh.dp_shard_size,
                        shard_degree=mesh.dp_shard_size * mesh.cp_size,
                        zero_stage=3 if plugin.reshard_after_forward else 2,
                        recompute_full=plugin.activation_checkpointing,
                        parameters_on_host=isinstance(plugin.cpu_offload, CPUOffloadPolicy))
    return version_of("accelerate"), seen


def check_smp_v1(document, facts, folder):
    from unittest import mock
    from sagemaker import fw_utils
    from sagemaker.pytorch import PyTorch
    estimator = json.loads(companion(document, "estimator.json"))
    estimator["entry_point"] = os.path.join(folder, "train.py")
    open(estimator["entry_point"], "w").close()
    fw_utils.validate_mp_config(fw_utils.get_mp_parameters(estimator["distribution"]))
    made = PyTorch(role="arn:aws:iam::000000000000:role/none", framework_version="1.13.1", py_version="py39",
                   sagemaker_session=mock.MagicMock(
                       boto_region_name="us-east-1", local_mode=False, sagemaker_config={}), **estimator)
    made._set_hyperparameters = None
    parameters = made.distribution["smdistributed"]["modelparallel"]["parameters"]
    shown = made._distribution_configuration(made.distribution)
    assert json.loads(json.dumps(shown["mp_parameters"])) == parameters
    processes = made.distribution["mpi"]["processes_per_host"]
    return version_of("sagemaker"), {"pipeline": parameters["partitions"], "micro_batches": parameters["microbatches"],
                                     "nodes": made.instance_count, "instance": made.instance_type[len("ml."):],
                                     "processes_per_node": processes,
                                     "tensor": parameters.get("tensor_parallel_degree", 1),
                                     "data": processes * made.instance_count // parameters["partitions"]
                                     // parameters.get("tensor_parallel_degree", 1)}


def smp_v2_facts(p, facts):
    assert p["sm_activation_offloading"] == facts["offload"]
    return {"tensor": p["tensor_parallel_degree"], "context": p["context_parallel_degree"],
            "expert": p["expert_parallel_degree"], "shard_degree": p["hybrid_shard_degree"],
            "offload": p["sm_activation_offloading"]}


def check_smp_v2(document, facts, folder):
    """SageMaker's SDK 2 where it is installed (estimator.json), else SDK 3 (model_trainer.py)."""
    versions = version_of("sagemaker")
    if versions["sagemaker"].startswith("2."):
        from unittest import mock
        from sagemaker.pytorch import PyTorch
        estimator = json.loads(companion(document, "estimator.json"))
        estimator["entry_point"] = os.path.join(folder, "train.py")
        open(estimator["entry_point"], "w").close()
        made = PyTorch(role="arn:aws:iam::000000000000:role/none", framework_version="2.2.0", py_version="py310",
                       sagemaker_session=mock.MagicMock(
                       boto_region_name="us-east-1", local_mode=False, sagemaker_config={}), **estimator)
        shown = made._distribution_configuration(made.distribution)
        return versions, dict(smp_v2_facts(shown["mp_parameters"], facts), nodes=made.instance_count,
                              instance=made.instance_type[len("ml."):])
    import functools
    from unittest import mock
    import sagemaker.train as train
    open(os.path.join(folder, "REPLACE_WITH_YOUR_TRAINING_SCRIPT.py"), "w").close()
    from sagemaker.train.model_trainer import Session
    session = mock.MagicMock(boto_region_name="us-east-1", sagemaker_config={})
    session.__class__ = Session  # its constructor would ask an account
    from sagemaker.train.defaults import TrainDefaults
    TrainDefaults.get_role = staticmethod(lambda role=None, **_: role)  # would ask an account
    account = functools.partial(train.ModelTrainer, sagemaker_session=session, base_job_name="plan",
                                role="arn:aws:iam::000000000000:role/none")
    before = os.getcwd()
    os.chdir(folder)
    try:
        scope = {"make": account}
        exec(companion(document, "model_trainer.py").replace("ModelTrainer(", "make("), scope)
    finally:
        os.chdir(before)
    trainer = scope["trainer"]
    parameters = json.loads(trainer.distributed.smp._to_mp_hyperparameters()["mp_parameters"])
    return versions, dict(smp_v2_facts(parameters, facts), nodes=trainer.compute.instance_count,
                          instance=trainer.compute.instance_type[len("ml."):],
                          processes_per_node=trainer.distributed.process_count_per_node)


def launch_line(text):
    line = next(line for line in text.replace("\\\n", " ").splitlines() if line.strip().startswith("torchrun "))
    return line


def torchrun_facts(line):
    from torch.distributed.run import config_from_args, parse_args
    words = shlex.split(line.replace("$NODE_RANK", "0").replace("$SKYPILOT_NODE_RANK", "0")
                        .replace('$(echo "$SKYPILOT_NODE_IPS" | head -n 1)', "127.0.0.1"))
    config, command, arguments = config_from_args(parse_args(words[1:]))
    assert [command, *arguments][0] == "smexec"
    return config


def check_torchrun(document, facts, folder):
    config = torchrun_facts(launch_line(document["text"]))
    return version_of("torch"), {"nodes": config.max_nodes, "processes_per_node": config.nproc_per_node}


def check_kubernetes(document, facts, folder):
    import yaml
    from kubernetes import client
    from kubeflow.training import KubeflowOrgV1PyTorchJob
    import kubeflow.training.models as models
    job = yaml.safe_load(document["text"])
    api = client.ApiClient()
    # The SDK's classes are not among the client's own.
    for name in dir(models):
        if not hasattr(client.models, name):
            setattr(client.models, name, getattr(models, name))
    made = api.deserialize(types.SimpleNamespace(data=json.dumps(job)), KubeflowOrgV1PyTorchJob)
    assert api.sanitize_for_serialization(made) == job, "a field that the SDK does not know"
    replicas = made.spec.pytorch_replica_specs
    workers = replicas["Worker"].replicas if "Worker" in replicas else 0
    pod = replicas["Master"].template.spec
    return (version_of("kubeflow-training", "kubernetes"),
            {"nodes": replicas["Master"].replicas + workers, "processes_per_node": int(made.spec.nproc_per_node),
             "instance": pod.node_selector["node.kubernetes.io/instance-type"]})


def check_skypilot(document, facts, folder):
    """Its schema and its Task; the instance type is not looked up, as its catalogue is downloaded."""
    import sky
    import yaml
    task = sky.Task.from_yaml_config(yaml.safe_load(document["text"]))
    (resources,) = task.resources
    return version_of("skypilot"), {"nodes": task.num_nodes, "instance": resources.instance_type}


def check_slurm(document, facts, folder):
    """`sbatch --test-only` of a controller that knows nodes with 8 GPUs each (SLURM_CONF)."""
    path = os.path.join(folder, "job.sh")
    with open(path, "w") as file:
        file.write(document["text"])
    subprocess.run(["bash", "-n", path], check=True)
    done = subprocess.run(["sbatch", "--test-only", path], capture_output=True, text=True, cwd=folder)
    if done.returncode != 0:
        raise ValueError(done.stderr)
    nodes = re.search(r"on nodes (\S+)", done.stderr).group(1)
    listed = subprocess.run(["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, check=True)
    version = subprocess.run(["sbatch", "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    tasks = int(re.search(r"--ntasks-per-node=(\d+)", document["text"]).group(1))
    return {"slurm": version}, {"nodes": len(listed.stdout.split()), "processes_per_node": tasks}


CHECKS = {"megatron": check_megatron, "megatron-bridge": check_megatron_bridge, "deepspeed": check_deepspeed,
          "torchtitan": check_torchtitan, "accelerate": check_accelerate, "sagemaker-smp-v1": check_smp_v1,
          "sagemaker-smp-v2": check_smp_v2, "torchrun": check_torchrun, "kubernetes": check_kubernetes,
          "skypilot": check_skypilot, "slurm": check_slurm,
          "mpirun": None, "nemo": None}  # no package of today reads these: recorded, not checked


def model_parameters(smplan, document):
    smsim = os.path.join(os.path.dirname(os.path.abspath(smplan)), "smsim")
    done = subprocess.run([smsim, "model", document["model"]["name"], "--json"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["parameters"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="+", choices=sorted(CHECKS))
    parser.add_argument("--smplan", default="build/smplan")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    failures = 0
    record = {"plans": {}, "packages": {}}
    if os.path.exists(RECORD):
        with open(RECORD) as file:
            record = json.load(file)
    for target in options.targets:
        check = CHECKS[target]
        counts = {"accepted": 0, "refused": 0, "rejected": 0, "not checked": 0}
        for name, plan in read_plans().items():
            facts = expected_facts(plan)
            document = export(options.smplan, name, target)
            if "errors" in document:
                answer = {"status": "refused", "keys": refused_keys(document)}
            elif check is None:
                answer = {"status": "not checked", "sha256": digest(document)}
            else:
                with tempfile.TemporaryDirectory() as folder:
                    try:
                        versions, seen = check(document, facts, folder)
                    except Exception as error:  # whatever the package raises is its refusal
                        failures += 1
                        counts["rejected"] += 1
                        print(f"{target:17} {name:20} REJECTED {type(error).__name__}: {str(error)[:600]}")
                        if os.environ.get("SHOW_TRACE"):
                            raise
                        continue
                if "parameters" in seen:
                    facts["parameters"] = model_parameters(options.smplan, plan)
                wrong = {key: (value, facts[key]) for key, value in seen.items() if value != facts[key]}
                if wrong:
                    failures += 1
                    counts["rejected"] += 1
                    print(f"{target:17} {name:20} DIFFERS (seen, planned): {wrong}")
                    continue
                answer = {"status": "accepted", "sha256": digest(document), "facts": seen}
                packages = record["packages"].setdefault(target, {})
                known = packages.setdefault("versions", {})
                for package, version in versions.items():
                    major = version.split(".")[0]
                    others = [v for v in known.get(package, []) if v.split(".")[0] != major]
                    known[package] = sorted(others + [version])
                packages["date"] = datetime.date.today().isoformat()
            counts[answer["status"]] += 1
            record["plans"].setdefault(name, {})[target] = answer
        print(f"{target:17} " + ", ".join(f"{count} {status}" for status, count in counts.items() if count))
    if options.write and not failures:
        with open(RECORD, "w") as file:
            json.dump(record, file, indent=1, sort_keys=True)
            file.write("\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
