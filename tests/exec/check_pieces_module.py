#!/usr/bin/env python3
"""Usage: check_pieces_module.py MODULE.so SENTENCEPIECE.cpp [--can-fail]

Loads SentencePiece's module as smexec does and finds each function by the name that sentencepiece.cpp looks up: flags of
the build (-fvisibility) may hide them. --can-fail asks for a name that is not there, and fails when it is found.
"""
import ctypes
import pathlib
import re
import sys

names = re.findall(r'find\(functions\.\w+, "(\w+)"\)', pathlib.Path(sys.argv[2]).read_text())
if len(names) < 5:
    sys.exit(f"{sys.argv[2]}: the names are looked up in another way now")
module = ctypes.CDLL(sys.argv[1])
if sys.argv[3:] == ["--can-fail"]:
    names = ["smsim_pieces_nowhere"]
missing = [name for name in names if not hasattr(module, name)]
if sys.argv[3:] == ["--can-fail"]:
    sys.exit(0 if missing else "a function that is not there was found")
sys.exit(f"{sys.argv[1]} hides {', '.join(missing)}" if missing else 0)
