#!/usr/bin/env python3
"""Every launcher that `smplan export` writes for, started: Slurm (check_slurm.py), torchrun and Open MPI's mpirun on two
emulated hosts, and the Kubernetes manifest held against the schema of its custom resource. What they start trains as
threads do, to the bit.

    python3 tests/launchers/check_launchers.py [slurm torchrun mpirun kubernetes] --smplan build/smplan --smexec build/smexec
        [--torchrun FILE] [--crd FILE]

--torchrun: torch's, where it is not in PATH. --crd, or SMSIM_PYTORCHJOB_CRD in the environment: the file
manifests/base/crds/kubeflow.org_pytorchjobs.yaml of github.com/kubeflow/training-operator; PyYAML and jsonschema read it.
A line for each launcher, "skipped: ..." where something is not installed. Exit codes: 0 good, 1 not, 77 all skipped."""

import argparse, copy, json, os, pathlib, signal, subprocess, sys, tempfile, time

import check_slurm, training
from emulated_hosts import Hosts, find, what_hosts_lack

HOSTS, STEPS = 2, 20
ROOT = pathlib.Path(__file__).resolve().parents[2]


class Skipped(Exception):
    pass


def prepare(arguments, folder):
    """The plan, the bits that it comes to as threads, and where a launcher's ranks keep their checkpoints."""
    plan = training.write_plan(folder, HOSTS, STEPS)
    return plan, training.train_as_threads(arguments.smexec, plan, folder / "threads"), folder / "states"


def check_torchrun(arguments, folder):
    """An agent on each host, as a person would start them."""
    torchrun = arguments.torchrun or find("torchrun")
    if not torchrun: raise Skipped("torch (torchrun) is not installed")
    if missing := what_hosts_lack(): raise Skipped(missing)
    plan, wanted, states = prepare(arguments, folder)
    line = training.export(arguments.smplan, plan, "torchrun", "--checkpoint", states)
    environment = os.environ | {"PATH": str(pathlib.Path(torchrun).parent) + os.pathsep + os.environ["PATH"]}
    with Hosts(HOSTS) as hosts:
        line = line.replace("REPLACE_WITH_FIRST_HOST", hosts.names[0])
        agents = [subprocess.Popen(hosts.on(host, "sh", "-c", f"NODE_RANK={rank}; {line}"), env=environment, cwd=folder, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for rank, host in enumerate(hosts.names)]
        said = [agent.communicate(timeout=120)[0] for agent in agents]
        for agent, text in zip(agents, said):
            if agent.returncode: raise AssertionError(f"torchrun: exit {agent.returncode}\n{text[-3000:]}")
    wanted.compare(training.Outcome(states))
    return f"torchrun of torch {torch_version(torchrun)}: {training.RANKS} ranks on {HOSTS} hosts"


def torch_version(torchrun):
    python = pathlib.Path(torchrun).read_text(errors="replace").splitlines()[0].removeprefix("#!").strip()
    return training.command(python, "-c", "import importlib.metadata as m; print(m.version('torch'))").strip()


def check_mpirun(arguments, folder):
    """mpirun on one host starts its daemon on the other through an agent that stands for ssh."""
    if not find("mpirun"): raise Skipped("Open MPI (mpirun) is not installed")
    version = training.command("mpirun", "--version").splitlines()[0]
    if "Open MPI" not in version: raise Skipped(f"{version} is not Open MPI")
    if missing := what_hosts_lack(): raise Skipped(missing)
    plan, wanted, states = prepare(arguments, folder)
    line = training.export(arguments.smplan, plan, "mpirun", "--checkpoint", states)
    agent = folder / "agent"
    agent.write_text('#!/bin/sh\nhost=$1\nshift\nexec ip netns exec "$host" unshare --uts sh -c \'hostname "$0"; eval "exec $*"\' "$host" "$@"\n')
    agent.chmod(0o755)
    settings = {"plm": "rsh", "plm_rsh_agent": agent, "plm_rsh_no_tree_spawn": 1, "oob_tcp_if_include": "eth0", "btl_tcp_if_include": "eth0",
                "btl_vader_single_copy_mechanism": "none", "rmaps_base_oversubscribe": 1, "mpi_yield_when_idle": 1}  # both hosts have the same cores
    environment = os.environ | {f"OMPI_MCA_{name}": str(value) for name, value in settings.items()}
    environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    with Hosts(HOSTS) as hosts:
        for rank, host in enumerate(hosts.names): line = line.replace(f"REPLACE_WITH_HOST_{rank}", host)
        done = subprocess.run(hosts.on(hosts.names[0], "sh", "-c", line), env=environment, cwd=folder, text=True, capture_output=True, timeout=120)
        if done.returncode: raise AssertionError(f"{line}exit {done.returncode}\n{done.stdout[-1500:]}{done.stderr[-1500:]}")
        if f"on {HOSTS} hosts" not in done.stdout: raise AssertionError(f"it is not told that there are {HOSTS} hosts:\n{done.stdout}")
    wanted.compare(training.Outcome(states))
    return f"{version}: {training.RANKS} ranks on {HOSTS} hosts"


def strict(schema):
    """The custom resource's schema as JSON Schema that refuses what it does not know: a server drops that, silently or not."""
    if not isinstance(schema, dict): return schema
    schema = {key: value for key, value in schema.items() if key != "format"}
    if schema.pop("x-kubernetes-int-or-string", False): return {"type": ["integer", "string"]}
    if "properties" in schema:
        schema["properties"] = {name: strict(part) for name, part in schema["properties"].items()}
        schema.setdefault("additionalProperties", False)
    if isinstance(schema.get("additionalProperties"), dict): schema["additionalProperties"] = strict(schema["additionalProperties"])
    if "items" in schema: schema["items"] = strict(schema["items"])
    return schema


def check_kubernetes(arguments, folder):
    path = arguments.crd or os.environ.get("SMSIM_PYTORCHJOB_CRD")
    if not path: raise Skipped("no schema of PyTorchJob is given (--crd)")
    try:
        import jsonschema, yaml
    except ImportError as missing:
        raise Skipped(str(missing)) from missing
    definition = yaml.safe_load(pathlib.Path(path).read_text())
    (version,) = definition["spec"]["versions"]
    validator = jsonschema.Draft202012Validator(strict(version["schema"]["openAPIV3Schema"]))
    wanted = {"apiVersion": f"{definition['spec']['group']}/{version['name']}", "kind": definition["spec"]["names"]["kind"]}
    plans = sorted((ROOT / "interop" / "check" / "plans").glob("*.toml"))
    for plan in plans:
        manifest = yaml.safe_load(training.export(arguments.smplan, plan, "kubernetes", "--checkpoint", "/checkpoints", "--every", 100))
        for key, value in wanted.items():
            if manifest[key] != value: raise AssertionError(f"{plan.name}: {key} = {manifest[key]} instead of {value}")
        for fault in validator.iter_errors(manifest): raise AssertionError(f"{plan.name}: {fault.json_path}: {fault.message}")
    # What is not of the schema is refused, so that the above can fail.
    for spoil in (lambda job: job["spec"].update(nodes=2), lambda job: job["spec"].pop("pytorchReplicaSpecs"),
                  lambda job: job["spec"]["pytorchReplicaSpecs"]["Master"].update(replicas="one"),
                  lambda job: job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0].pop("name")):
        spoiled = copy.deepcopy(manifest)
        spoil(spoiled)
        if validator.is_valid(spoiled): raise AssertionError(f"the schema takes anything: {json.dumps(spoiled)[:300]}")
    return f"Kubernetes: {len(plans)} manifests of {wanted['kind']} {wanted['apiVersion']} hold its schema"


LAUNCHERS = {"torchrun": check_torchrun, "mpirun": check_mpirun, "kubernetes": check_kubernetes}


def run(name, arguments):
    """The exit code of one launcher, which has said its line."""
    if name == "slurm": return check_slurm.run(arguments)
    begin = time.monotonic()
    try:
        with tempfile.TemporaryDirectory() as folder: told = LAUNCHERS[name](arguments, pathlib.Path(folder))
    except Skipped as reason:
        print(f"skipped: {name}: {reason}", flush=True)
        return 77
    except (AssertionError, RuntimeError, subprocess.SubprocessError) as failure:
        print(f"FAILED: {name}: {failure}", flush=True)
        return 1
    print(f"{told} ({time.monotonic() - begin:.1f} s)", flush=True)
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ["slurm", *LAUNCHERS]
    parser.add_argument("launchers", nargs="*", metavar="launcher", help=", ".join(names))
    parser.add_argument("--torchrun")
    parser.add_argument("--crd")
    check_slurm.add_arguments(parser)
    arguments = parser.parse_args()
    # Ended by whoever runs tests, it ends what it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    arguments.smplan, arguments.smexec = os.path.abspath(arguments.smplan), os.path.abspath(arguments.smexec)
    os.environ["PATH"] = os.path.dirname(arguments.smexec) + os.pathsep + os.environ["PATH"]
    if unknown := set(arguments.launchers) - set(names): parser.error(f"{', '.join(sorted(unknown))}: the launchers are {', '.join(names)}")
    codes = [run(name, arguments) for name in arguments.launchers or names]
    return 1 if 1 in codes else 0 if 0 in codes else 77


if __name__ == "__main__": sys.exit(main())
