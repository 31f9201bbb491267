#!/usr/bin/env python3
"""Prints the licences of what the page is made of, from the copyright files of Debian's packages: they go with the page."""

import pathlib
import re
import sys

# Package, what it gives to the page, and the folders of its source that end there ("*": all of it).
PARTS = [
    *((f"node-d3-{module}", f"D3: d3-{module}", ["*"]) for module in
      "array axis collection color format interpolate path scale selection shape time time-format".split()),
    ("emscripten", "Emscripten's runtime, musl, dlmalloc, LLVM's libc++ and compiler-rt",
     ["*", "system/lib/libc/", "system/lib/libcxx", "system/lib/compiler-rt/", "system/lib/dlmalloc"]),
    ("libfmt-dev", "fmt: text", ["*", "include/"]),
    ("nlohmann-json3-dev", "JSON for Modern C++", ["*", "include/"]),
    ("libtomlplusplus-dev", "toml++", ["*", "include/"]),
    (next((path.name for path in sorted(pathlib.Path("/usr/share/doc").glob("libboost1.*-dev"))
           if re.fullmatch(r"libboost1\.\d+-dev", path.name)), "libboost-dev"), "Boost.Graph", ["*"]),
]


def paragraphs(path):
    text = path.read_text(encoding="utf-8", errors="replace")
    return [part.strip("\n") for part in re.split(r"\n\s*\n", text)]


def files_of(paragraph):
    found = re.match(r"Files:((?:.*\n)(?:[ \t].*\n)*)", paragraph + "\n")
    return found.group(1).split() if found else []


def licences_of(package, folders):
    all_of = paragraphs(pathlib.Path("/usr/share/doc") / package / "copyright")
    wanted = [part for part in all_of
              if any(name == "*" if folder == "*" else name.startswith(folder) for name in files_of(part) for folder in folders)]
    names = {name for part in wanted for line in re.findall(r"^License:(.*)$", part, re.M)
             for name in re.split(r"\s+(?:or|and|with)\s+|[\s,]+", line.strip()) if name}
    texts = [part for part in all_of if (found := re.match(r"License:\s*(.*)", part)) and
             set(re.split(r"\s+", found.group(1).strip())) & names]
    return wanted + texts


def main(root):
    print("This page is smsim, compiled with the software below. Each part keeps its own licence.")
    print(f"\n======== smsim\n\n{(pathlib.Path(root) / 'LICENSE').read_text()}")
    for package, what, folders in PARTS:
        print(f"\n======== {what} (Debian's package {package})\n")
        try:
            print("\n\n".join(licences_of(package, folders)))
        except OSError as error:
            print(f"no licence file on the machine that made this page: {error}")


if __name__ == "__main__":
    main(sys.argv[1])
