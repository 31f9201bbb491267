#!/bin/sh
# The tree bad_names names a framework and a group in code in every way that is looked for, and in ways that are none:
# the check must find the former, and the line of allowed.txt that allows nothing.
set -u
here=$(cd "$(dirname "$0")" && pwd) || exit 2
command -v python3 >/dev/null || { echo "skipped: python3 is not installed"; exit 77; }
found=$(python3 "$here/names.py" "$here/bad_names" "$here/bad_names/allowed.txt")
status=$?
expected="sim/cost.cpp:2: identifiers name frobnicator
sim/cost.cpp:3: strings name frobnicator
sim/cost.cpp:4: identifiers name gizmo
sim/cost.cpp:5: strings name some_group
names_allowed.txt: core/* strings allows nothing: take it out"
if [ "$status" -ne 1 ] || [ "$found" != "$expected" ]; then
    echo "names.py ended with $status, it should with 1, and found:"
    echo "$found"
    echo "expected:"
    echo "$expected"
    exit 1
fi
