#!/bin/sh
# The bad tree has one breach of every kind: the check must name each of them, and nothing else.
set -u
here=$(cd "$(dirname "$0")" && pwd) || exit 2
found=$("$here/check.sh" "$here/bad_tree")
status=$?
if [ "$status" -ne 1 ]; then
    echo "check.sh ended with $status on the bad tree, not with 1"
    exit 1
fi
if [ "$found" != "$(cat "$here/bad_tree/breaches.txt")" ]; then
    echo "found:"
    echo "$found"
    echo "expected:"
    cat "$here/bad_tree/breaches.txt"
    exit 1
fi
