#!/usr/bin/env python3
"""What every kernel of ours takes of a multiprocessor: registers, stack, spilled bytes, shared memory.

  kernel_resources.py TABLE [--nvcc NVCC] [--launcher ccache] [--arch 75,90] [--files norm,attention] [--write] [--objects FOLDER]
                      [--log LOG --arch A --files F]

Compiles exec/cuda/device/kernels_*.cu for each architecture with -Xptxas -v, two at a time, and compares with TABLE:
exit 1 where a kernel takes more of anything than recorded, is not recorded, or is recorded and gone. --write records what
was compiled and keeps the rest. --launcher ccache keeps ptxas' words, so that a file that has not changed costs nothing;
--objects is the folder of the build's own kernels_*.cu.o: what ptxas said of them (cmake/keep_ptxas_words.sh) serves for
the architectures that were built.
Without nvcc, or with another version of it than recorded (ptxas chooses anew), it says "skipped:" and ends with 0.
Registers are those of a thread; shared memory is what the compiler sees, not what a launch asks for besides.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIELDS = ("registers", "stack", "spilled", "shared")
ENTRY = re.compile(r"Compiling entry function '(\w+)' for 'sm_(\d+)'")
STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")


def parse(text):
    """Kernel (mangled) and architecture -> figures, from ptxas' words."""
    found, entry, figures = {}, None, {}
    for line in text.splitlines():
        if match := ENTRY.search(line):
            entry, figures = (match[1], match[2]), {}
        elif entry and (match := STACK.search(line)):
            figures["stack"], figures["spilled"] = int(match[1]), int(match[2]) + int(match[3])
        elif entry and (match := USED.search(line)):
            shared = SHARED.search(line)
            figures["registers"], figures["shared"] = int(match[1]), int(shared[1]) if shared else 0
            if len(figures) != len(FIELDS):
                raise SystemExit(f"ptxas did not tell all of {entry[0]}: {line}")
            found[entry] = tuple(figures[field] for field in FIELDS)
            entry = None
    return found


def short_names(mangled):
    """run<Norm<Bf16, 8, 4, true>>, as a reader of the source knows it."""
    told = subprocess.run(["c++filt"], input="\n".join(mangled), capture_output=True, text=True, check=True).stdout.splitlines()
    names = {}
    for own, text in zip(mangled, told):
        text = re.sub(r"^void |exec::cuda::(device_body::)?|\(bool\)|\(int\)|\(exec::\w+\)", "", text)
        names[own] = re.sub(r"\s+", "", text[: text.rindex("(")] if text.endswith(")") else text)
    return names


def compile_one(compiler, arch, file):
    source = ROOT / "exec/cuda/device" / f"kernels_{file}.cu"
    flags = ["-std=c++20", "-O3", "-DNDEBUG", "--expt-relaxed-constexpr", f"-I{ROOT}", f"-arch=sm_{arch}", "-Xptxas", "-v", "-c"]
    environment = os.environ | {"CCACHE_BASEDIR": str(ROOT), "CCACHE_NOHASHDIR": "1"}  # what another checkout compiled serves too
    with tempfile.TemporaryDirectory() as scratch:  # ccache keeps nothing of what goes to /dev/null
        done = subprocess.run([*compiler, *flags, str(source), "-o", f"{scratch}/kernels.o"], capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        raise SystemExit(f"kernels_{file}.cu does not compile for sm_{arch}:\n{done.stderr[-2000:]}")
    return done.stdout + done.stderr


def words_of_build(objects, arch, file):
    """What ptxas said when the build compiled the file for the architecture; None where it did not."""
    kept = objects / f"kernels_{file}.cu.o.ptxas" if objects else None
    words = kept.read_text() if kept and kept.exists() else ""
    return words if f"for 'sm_{arch}'" in words else None


def read(table):
    recorded, version = {}, None
    for line in table.read_text().splitlines() if table.exists() else []:
        if line.startswith("# nvcc "):
            version = line[len("# nvcc ") :]
        elif line and not line.startswith("#"):
            arch, file, name, *figures = line.split("\t")
            recorded[arch, file, name] = tuple(map(int, figures))
    return recorded, version


def write(table, recorded, version):
    lines = [
        "# Registers of a thread, stack, spilled and shared bytes of every kernel, by architecture and file.",
        "# tests/gpu/kernel_resources.py TABLE --write writes this.",
        f"# nvcc {version}",
        "# arch\tfile\tkernel\t" + "\t".join(FIELDS),
    ]
    lines += ["\t".join([*key, *map(str, figures)]) for key, figures in sorted(recorded.items())]
    table.write_text("\n".join(lines) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=pathlib.Path)
    parser.add_argument("--nvcc", default=shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc")
    parser.add_argument("--launcher", default="", help="put before nvcc: ccache")
    parser.add_argument("--arch", default="75,90")
    parser.add_argument("--files", default=",".join(sorted(p.stem.removeprefix("kernels_") for p in (ROOT / "exec/cuda/device").glob("kernels_*.cu"))))
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--objects", type=pathlib.Path, help="the folder of the objects that the build made of exec/cuda/device")
    parser.add_argument("--log", type=pathlib.Path, help="ptxas' words of one architecture and file, instead of compiling")
    arguments = parser.parse_args()
    if not arguments.log and not os.access(arguments.nvcc, os.X_OK):
        print("skipped: there is no nvcc here")
        return 0
    recorded, of_version = read(arguments.table)
    version = of_version or "unknown"
    if not arguments.log:
        told = subprocess.run([arguments.nvcc, "--version"], capture_output=True, text=True, check=True).stdout
        version = re.search(r"release [\d.]+, (V[\d.]+)", told)[1]
        if not arguments.write and version != of_version:
            print(f"skipped: the table is of nvcc {of_version}, and this is {version}")
            return 0
    compiler = [*filter(None, [arguments.launcher]), arguments.nvcc]
    pairs = [(arch, file) for arch in arguments.arch.split(",") for file in arguments.files.split(",")]

    def words_of(pair):
        if arguments.log:
            return arguments.log.read_text()
        return words_of_build(arguments.objects, *pair) or compile_one(compiler, *pair)

    with ThreadPoolExecutor(max_workers=2) as workers:
        told = list(workers.map(words_of, pairs))
    failures, kernels = [], 0
    for (arch, file), words in zip(pairs, told):
        found = parse(words)
        names = short_names([kernel for kernel, _ in found])
        figures_of = {(arch, file, names[kernel]): figures for (kernel, of), figures in found.items() if of == arch}
        kernels += len(figures_of)
        if not figures_of:
            failures.append(f"kernels_{file}.cu for sm_{arch}: no kernel was told of")
        if len(figures_of) != sum(of == arch for _, of in found):
            failures.append(f"kernels_{file}.cu for sm_{arch}: two kernels have one name")
        if arguments.write:
            recorded = {key: figures for key, figures in recorded.items() if key[:2] != (arch, file)} | figures_of
            continue
        failures += [f"sm_{arch} {file} {key[2]}: is recorded and gone" for key in recorded if key[:2] == (arch, file) and key not in figures_of]
        for key, figures in sorted(figures_of.items()):
            if key not in recorded:
                failures.append(f"sm_{arch} {file} {key[2]}: is not recorded")
                continue
            for field, now, then in zip(FIELDS, figures, recorded[key]):
                if now > then:
                    failures.append(f"sm_{arch} {file} {key[2]}: {field} {then} -> {now}")
    if arguments.write:
        write(arguments.table, recorded, version)
        print(f"{kernels} kernels recorded, {len(recorded)} in all")
        return 0
    for failure in failures:
        print(failure)
    print(f"{kernels} kernels, {len(failures)} differ for the worse, are new or are gone" + (": kernel_resources.py TABLE --write records them" if failures else ""))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
