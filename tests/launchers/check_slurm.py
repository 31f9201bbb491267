"""A plan that `smplan export --to slurm` wrote, submitted with sbatch to a Slurm cluster of its own on three emulated
hosts; its ranks are started by srun. On its way the job is disturbed: its ranks get a signal as they do near the time
limit, a node is drained and the job requeued. Each time it is begun anew and goes on from its checkpoint, and it ends as
threads end it, to the bit. A job that is cancelled stays cancelled.

--long: a rank is killed too; also Slurm's own time limit, and a node that is lost. --torch: also a script of torch.distributed, as --command
starts it. Started by check_launchers.py."""

import datetime, os, pathlib, re, signal, tempfile, time

import training
from slurm_cluster import Cluster, what_is_missing

NODES, STEPS, EVERY = 2, 1000, 50
OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")

# All ranks add up their numbers, and rank 0 says what it comes to.
TORCH_SCRIPT = """import datetime, os, torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
value = torch.tensor([2.0 ** dist.get_rank()])
dist.all_reduce(value)
if dist.get_rank() == 0: print("sum", value.item(), "of", dist.get_world_size())
dist.destroy_process_group()
"""


class Bench:
    """A cluster, the plan, and what the training comes to as threads."""

    def __init__(self, cluster, folder, arguments):
        self.cluster, self.folder, self.arguments = cluster, pathlib.Path(folder), arguments
        self.plan = training.write_plan(folder, NODES, STEPS)
        self.wanted = training.train_as_threads(arguments.smexec, self.plan, self.folder / "threads")

    def submit(self, name, *options):
        """The number of the job that keeps its checkpoints in the folder `name`."""
        script = self.folder / f"{name}.sh"
        script.write_text(training.export(self.arguments.smplan, self.plan, "slurm", "--checkpoint", self.folder / name, "--every", EVERY))
        return self.cluster.submit(script, f"--output={self.folder}/{name}.out", *options, folder=self.folder)

    def has_trained(self, name, number):
        """Waits for the first checkpoint; the job as it then is."""
        self.cluster.wait(lambda: any((self.folder / name).glob("step-????????")), 60, f"no checkpoint in {name}")
        job = self.cluster.job(number)
        if job["JobState"] != "RUNNING": raise AssertionError(f"job {number} is {job['JobState']} already")
        return job

    def goes_on(self, name, number):
        """Waits for a checkpoint that is newer than what is there."""
        before = training.newest_step(self.folder / name)
        self.cluster.wait(lambda: training.newest_step(self.folder / name) > before, 60, f"no further checkpoint in {name}")

    def output(self, name):
        path = self.folder / f"{name}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def ends_well(self, name, number, restarts):
        """Waits for the end; the job. Raises unless it ended well, was begun anew so often, and has the same bits."""
        job = self.cluster.wait_for_state(number, OVER, 120)
        self.cluster.say(f"$ cat {name}.out\n" + self.output(name).rstrip())
        if job["JobState"] != "COMPLETED": raise AssertionError(f"job {number} ends as {job['JobState']}:\n{self.output(name)}")
        if int(job["Restarts"]) != restarts: raise AssertionError(f"{job['Restarts']} restarts instead of {restarts}")
        self.wanted.compare(training.Outcome(self.folder / name))
        self.cluster.say(f"# {STEPS} losses and {training.RANKS} ranks' files of step {STEPS}: the same bits as threads")
        return job


def runs(bench):
    """sbatch, srun, the end; what goes wrong on the way is put right by Slurm and the script alone."""
    number = bench.submit("job")
    bench.has_trained("job", number)
    told = [f"{training.RANKS} ranks on {NODES} nodes"]
    disturbances = (signals, kills, drains) if bench.arguments.long else (signals, drains)
    for restart, disturb in enumerate(disturbances, 1):
        told.append(disturb(bench, "job", number))
        bench.cluster.wait(lambda: int(bench.cluster.job(number)["Restarts"]) == restart, 40, f"restart {restart} does not come")
        if disturb is not drains: bench.goes_on("job", number)
    job = bench.ends_well("job", number, restart)
    if bench.drained in bench.cluster.hosts_of(job): raise AssertionError("it ends on the drained node")
    bench.cluster.run("sinfo", "--Node", "--long")
    bench.cluster.run("scontrol", "update", f"NodeName={bench.drained}", "State=RESUME")
    return ", ".join(told)


def signals(bench, name, number):
    """As Slurm's --signal=TERM@ does near the time limit: to the ranks."""
    bench.cluster.run("scancel", "--signal=TERM", number)
    bench.cluster.wait(lambda: "SIGTERM" in bench.output(name), 40, "no rank tells of the signal")
    return "goes on after SIGTERM"


def kills(bench, name, number):
    ranks = ranks_of(bench.folder / name)
    if len(ranks) != training.RANKS: raise AssertionError(f"ranks {ranks}")
    bench.cluster.say(f"$ kill -KILL {ranks[-1]}   # of the ranks {ranks}")
    os.kill(ranks[-1], signal.SIGKILL)
    return "after a killed rank"


def drains(bench, name, number):
    cluster = bench.cluster
    bench.drained = cluster.hosts_of(cluster.job(number))[1]
    cluster.run("scontrol", "update", f"NodeName={bench.drained}", "State=DRAIN", "Reason=maintenance")
    cluster.run("scontrol", "requeue", number)
    return "after a drain and requeue on another node"


def ranks_of(states):
    """Processes of smexec whose command line names the folder: of this test alone."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0].endswith(b"smexec") and str(states).encode() in words: found.append(int(path.name))
    return sorted(found)


def stays_cancelled(bench):
    number = bench.submit("cancelled")
    bench.has_trained("cancelled", number)
    bench.cluster.run("scancel", number)
    bench.cluster.wait_for_state(number, OVER, 40)
    bench.cluster.wait(lambda: not ranks_of(bench.folder / "cancelled"), 40, "its ranks run on")
    time.sleep(1)  # for the script, which would ask for its requeue at once
    job = bench.cluster.job(number)
    if (job["JobState"], job["Restarts"]) != ("CANCELLED", "0"): raise AssertionError(f"cancelled, it is {job['JobState']} after {job['Restarts']} restarts")
    return "scancel: stays cancelled"


def survives_time_limit(bench):
    """The shortest limit is a minute, and the time is looked at every half."""
    plan = bench.plan.read_text()
    bench.plan.write_text(plan.replace(f"steps = {STEPS}", f"steps = {20 * STEPS}"))
    try:
        number = bench.submit("limited", "--time=1", "--signal=TERM@55")
        bench.has_trained("limited", number)
        bench.cluster.wait(lambda: int(bench.cluster.job(number)["Restarts"]) >= 1, 90, "the time limit does not have it requeued")
        bench.cluster.run("scontrol", "show", "job", number)
        bench.cluster.say("$ cat limited.out\n" + bench.output("limited").rstrip())
        step = training.Outcome(bench.folder / "limited").step
        bench.cluster.run("scancel", number)
    finally:
        bench.plan.write_text(plan)
    return f"time limit: requeued with the checkpoint of step {step}"


def survives_node_failure(bench):
    number = bench.submit("failed")
    job = bench.has_trained("failed", number)
    node = bench.cluster.hosts_of(job)[1]  # the other one runs the script
    bench.cluster.lose(node)
    bench.cluster.wait(lambda: int(bench.cluster.job(number)["Restarts"]) >= 1, 120, "the job is not requeued")
    job = bench.cluster.wait_for_state(number, OVER, 120)
    bench.ends_well("failed", number, int(job["Restarts"]))
    if node in bench.cluster.hosts_of(job): raise AssertionError("it ends on the lost node")
    return "a node lost: goes on elsewhere"


def starts_torch(bench):
    """Another program than smexec: torch finds its ranks by what the script exports."""
    (bench.folder / "train.py").write_text(TORCH_SCRIPT)
    script = bench.folder / "torch.sh"
    script.write_text(training.export(bench.arguments.smplan, bench.plan, "slurm", "--command", f"{bench.arguments.torch} train.py"))
    number = bench.cluster.submit(script, f"--output={bench.folder}/torch.out", folder=bench.folder)
    bench.cluster.wait_for_state(number, OVER, 120)
    bench.cluster.say("$ cat torch.out\n" + bench.output("torch").rstrip())
    if "0: sum 15.0 of 4" not in bench.output("torch"): raise AssertionError(bench.output("torch"))
    return "torch.distributed: env:// finds its ranks"


# What smexec's ranks report of prediction and measurement, which is no part of starting them.
REPORT = re.compile(r"^\d: (| .*|(step|peak memory of a rank) .*|\[W.*socket.cpp.*|a rank's time.*|its communication.*|the fullest rank.*|machine: .*|.* misses most: .*|.* of them left out: .*)$")


def log_of(bench, version, told):
    """What was said to Slurm and what it answered, as Markdown."""
    lines = [line for line in "\n".join(bench.cluster.transcript).splitlines() if not REPORT.match(line)]
    shorter = {str(bench.folder) + "/": "", bench.cluster.nodes[0][:-1]: "node", bench.cluster.controller: "controller",
               str(bench.arguments.torch): "python3"}

    def shortened(text):
        for long, short in shorter.items(): text = text.replace(long, short)
        return text

    text = shortened("\n".join(lines))
    scripts = "\n".join(f"```sh\n{shortened((bench.folder / name).read_text())}```\n" for name in ("job.sh", "torch.sh") if (bench.folder / name).exists())
    glibc, kernel = os.confstr("CS_GNU_LIBC_VERSION"), os.uname().release
    return (f"# A Slurm cluster of its own, and what it did with a plan\n\nWritten by `tests/launchers/check_launchers.py slurm --long --torch PYTHON "
            f"--log tests/launchers/slurm.md`, {datetime.date.today()}: {version},\n{glibc}, Linux {kernel}; {NODES + 1} nodes, each a network namespace with slurmd, "
            f"`KillWait` {bench.cluster.kill_wait} s. Lines of smexec's\nreport of prediction and measurement are left out, paths and names of nodes shortened.\n\n"
            + "".join(f"* {line}\n" for line in told) + f"\nThe scripts, as `smplan export` wrote them:\n\n{scripts}\n```\n{text.strip()}\n```\n")


def add_arguments(parser):
    root = pathlib.Path(__file__).resolve().parents[2]
    parser.add_argument("--smplan", default=root / "build" / "smplan")
    parser.add_argument("--smexec", default=root / "build" / "smexec")
    parser.add_argument("--long", action="store_true", help="Slurm: also the time limit and the loss of a node, minutes")
    parser.add_argument("--log", help="Slurm: what was said to it and what it answered")
    parser.add_argument("--torch", help="Slurm: a python with torch, to start torch.distributed too")


def run(arguments):
    """The exit code; a line for each case."""
    if missing := what_is_missing():
        print(f"skipped: slurm: {missing}", flush=True)
        return 77
    cases = [runs, stays_cancelled]
    if arguments.long: cases += [survives_time_limit, survives_node_failure]
    if arguments.torch: cases += [starts_torch]
    is_good, told = True, []
    with tempfile.TemporaryDirectory() as folder, Cluster(NODES + 1) as cluster:
        bench = Bench(cluster, folder, arguments)
        version = cluster.run("sbatch", "--version")
        for case in cases:
            cluster.say(f"\n## {case.__name__}")
            begin = time.monotonic()
            try:
                told.append(f"{version}: {case(bench)} ({time.monotonic() - begin:.1f} s)")
                print(told[-1], flush=True)
            except (AssertionError, RuntimeError, TimeoutError) as failure:
                is_good = False
                print(f"FAILED: slurm: {case.__name__}: {failure}", flush=True)
        if arguments.log: pathlib.Path(arguments.log).write_text(log_of(bench, version, told))
    return 0 if is_good else 1
