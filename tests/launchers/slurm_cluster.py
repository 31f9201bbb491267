"""A Slurm cluster of its own on this machine: munged, slurmctld and a slurmd for each of several nodes, in a private
folder. Every node is an emulated host with an address of its own: names are resolved, ranks listen where others
reach them, and all nodes have the same ports.

Nothing of the system's own Slurm is read or touched. Root, iproute2 and Debian's slurm-wlm and munge are needed.
What is unlike a real cluster is in CONFIGURATION, with the reason."""

import contextlib, os, pathlib, shutil, subprocess, tempfile, time

from emulated_hosts import Hosts, find, what_hosts_lack

# Control groups belong to whoever runs this machine, so processes are found through /proc and bound to nothing.
# cred_expire is also how long a requeued job waits before it may start again: 120 s by default, 5 at least.
CONFIGURATION = """ClusterName=launchers
SlurmctldHost={controller}({controller_address})
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire={requeue_delay}
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/controller
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdSpoolDir={folder}/%n
SlurmdPidFile={folder}/%n/slurmd.pid
SlurmdLogFile={folder}/%n/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1,sched_min_interval=0
SlurmctldParameters=idle_on_node_suspend
SlurmdParameters=config_overrides
KillWait={kill_wait}
SlurmdTimeout=10
ReturnToService=2
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=60 State=UP
"""


def what_is_missing():
    """A word for the first thing without which no cluster starts, or None."""
    for command, package in (("slurmctld", "slurm-wlm"), ("slurmd", "slurm-wlm"), ("sbatch", "slurm-wlm"), ("munged", "munge")):
        if not find(command): return f"{package} ({command}) is not installed"
    return what_hosts_lack()


class Cluster:
    """`with Cluster(nodes=3) as cluster:` All daemons are ended by their process ids, all namespaces removed.

    kill_wait: seconds between SIGTERM and SIGKILL of a job that is ended; Slurm's own default is 30."""

    def __init__(self, nodes, cpus=2, requeue_delay=5, kill_wait=30):
        self.hosts = Hosts(nodes + 1)
        self.controller, *self.nodes = self.hosts.names
        self.cpus, self.requeue_delay, self.kill_wait = cpus, requeue_delay, kill_wait
        self.daemons, self.transcript = [], []

    def __enter__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="slurm-"))
        try:
            self.hosts.__enter__()
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for daemon in reversed(self.daemons): self.end(daemon)
        self.hosts.__exit__()  # what a step's daemon left runs there
        shutil.rmtree(self.folder, ignore_errors=True)

    @staticmethod
    def end(daemon):
        if daemon.poll() is not None: return
        daemon.terminate()
        try:
            daemon.wait(timeout=5)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()

    def start(self):
        for part in ("controller", *self.nodes): (self.folder / part).mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        lines = "\n".join(f"NodeName={node} NodeAddr={self.hosts.address(node)} CPUs={self.cpus} RealMemory=512 State=UNKNOWN" for node in self.nodes)
        (self.folder / "slurm.conf").write_text(CONFIGURATION.format(
            controller=self.controller, controller_address=self.hosts.address(self.controller), folder=self.folder,
            requeue_delay=self.requeue_delay, kill_wait=self.kill_wait, nodes=lines))
        # A daemon asks which kind of control groups there is even where it uses none, and a namespace shows none.
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        self.folder.chmod(0o755)  # munge wants its socket within everybody's reach
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH", "SRUN"))}
        self.environment |= {"SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin"}
        self.daemon([find("munged"), "--foreground", "--force", f"--socket={self.folder}/munge.socket", f"--key-file={key}",
                     f"--pid-file={self.folder}/munged.pid", f"--log-file={self.folder}/munged.log", f"--seed-file={self.folder}/munged.seed"], "munged")
        self.wait(lambda: (self.folder / "munge.socket").exists(), 10, "munged does not listen")
        self.daemon(self.hosts.on(self.controller, find("slurmctld"), "-D"), "slurmctld")
        for node in self.nodes: self.daemon(self.hosts.on(node, find("slurmd"), "-D"), node)
        self.wait(lambda: self.states().count("idle") == len(self.nodes), 30, "nodes do not become idle")

    def daemon(self, command, name):
        with open(self.folder / f"{name}.out", "w") as out:
            self.daemons.append(subprocess.Popen(command, env=self.environment, stdout=out, stderr=subprocess.STDOUT, cwd=self.folder,
                                                 start_new_session=True))

    def wait(self, condition, seconds, complaint):
        """Until the condition holds; after `seconds` what the daemons said."""
        end = time.monotonic() + seconds
        while True:
            if (value := condition()): return value
            if time.monotonic() > end:
                logs = "\n".join(f"--- {path.relative_to(self.folder)}\n" + path.read_text(errors="replace")[-1000:]
                                 for path in [*self.folder.glob("*/slurmd.log"), self.folder / "slurmctld.out"] if path.exists())
                raise TimeoutError(f"{complaint} within {seconds} s\n{logs}")
            time.sleep(0.2)

    def run(self, *words, check=True, timeout=60, folder=None):
        """A command on the controller's host; its output."""
        output = self.ask(*words, check=check, timeout=timeout, folder=folder)
        self.say("$ " + " ".join(map(str, words)) + (f"\n{output}" if output else ""))
        return output

    def ask(self, *words, check=True, timeout=60, folder=None):
        """As run, but not in the transcript."""
        done = subprocess.run(self.hosts.on(self.controller, *words), env=self.environment, capture_output=True, text=True,
                              timeout=timeout, cwd=folder or self.folder)
        if check and done.returncode: raise RuntimeError(f"{' '.join(map(str, words))}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout.strip()

    def say(self, text):
        self.transcript.append(text)

    def lose(self, node):
        """The node's daemon and all that runs there are killed at once."""
        self.say(f"# {node} is lost")
        self.hosts.kill(node)

    def states(self):
        return self.ask("sinfo", "--noheader", "--Node", "--format=%T", check=False).split()

    def submit(self, script, *options, folder):
        """The job's number."""
        return self.run("sbatch", "--parsable", *options, script, folder=folder)

    def job(self, number):
        """What scontrol says of it: {"JobState": "RUNNING", "Restarts": "0", "NodeList": ..., ...}"""
        words = self.ask("scontrol", "--oneliner", "show", "job", number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait_for_state(self, number, states, seconds):
        """The job as it is when it is in one of the states."""
        def now():
            job = self.job(number)
            return job if job["JobState"] in states else None
        return self.wait(now, seconds, f"job {number} is not {' or '.join(states)}: {self.job(number)['JobState']}")

    def hosts_of(self, job):
        return self.ask("scontrol", "show", "hostnames", job["NodeList"]).split()
