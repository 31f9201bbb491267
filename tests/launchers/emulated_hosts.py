"""Several hosts on this machine: network namespaces joined by a bridge, each with an address, a host name and names
for the others, so that what works here works between machines. Root and iproute2 are needed.

As bench/emulated_hosts.sh, which shapes links and starts Open MPI, but for programs that stay until they are ended."""

import contextlib, os, pathlib, shutil, signal, subprocess


def find(command):
    return shutil.which(command, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def what_hosts_lack():
    """A word for the first thing without which there are no hosts, or None."""
    for command, package in (("ip", "iproute2"), ("unshare", "util-linux")):
        if not find(command): return f"{package} ({command}) is not installed"
    if os.geteuid() != 0: return "root is needed"
    name = f"sl{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode: return "this machine makes no network namespaces"
    try:
        card = subprocess.run(["ip", "-n", name, "link", "add", "a0", "type", "veth", "peer", "name", "a1"], capture_output=True)
        return "this machine makes no virtual network cards" if card.returncode else None
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True)


class Hosts:
    """`with Hosts(3) as hosts:` hosts.names has three names; what still runs there at the end is killed."""

    def __init__(self, count):
        prefix = f"sl{os.getpid()}"
        self.switch = f"{prefix}s"
        self.names = [f"{prefix}n{i}" for i in range(count)]
        self.made = []

    def address(self, host):
        return f"10.79.0.{self.names.index(host) + 1}"

    def __enter__(self):
        try:
            self.connect()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for host in self.made:
            self.kill(host)
            subprocess.run(["ip", "netns", "del", host], capture_output=True)
            shutil.rmtree(f"/etc/netns/{host}", ignore_errors=True)

    @staticmethod
    def kill(host):
        """All that runs there."""
        inside = subprocess.run(["ip", "netns", "pids", host], capture_output=True, text=True).stdout.split()
        for process in inside:
            with contextlib.suppress(ProcessLookupError): os.kill(int(process), signal.SIGKILL)

    def connect(self):
        self.namespace(self.switch)
        self.ip("-n", self.switch, "link", "add", "br0", "type", "bridge")
        self.ip("-n", self.switch, "link", "set", "br0", "up")
        names = "127.0.0.1 localhost\n" + "".join(f"{self.address(host)} {host}\n" for host in self.names)
        for i, host in enumerate(self.names):
            self.namespace(host)
            self.ip("-n", host, "link", "set", "lo", "up")
            self.ip("-n", host, "link", "add", "eth0", "type", "veth", "peer", "name", f"p{i}", "netns", self.switch)
            self.ip("-n", host, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
            self.ip("-n", host, "link", "set", "eth0", "up")
            self.ip("-n", self.switch, "link", "set", f"p{i}", "master", "br0", "up")
            etc = pathlib.Path(f"/etc/netns/{host}")
            etc.mkdir(parents=True, exist_ok=True)
            (etc / "hosts").write_text(names)

    def namespace(self, name):
        self.ip("netns", "add", name)
        self.made.append(name)

    @staticmethod
    def ip(*words):
        subprocess.run(["ip", *words], check=True, capture_output=True)

    @staticmethod
    def on(host, *words):
        """The command line that runs `words` on a host."""
        return ["ip", "netns", "exec", host, "unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"', host, *map(str, words)]
