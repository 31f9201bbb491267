#!/bin/sh
# The tree bad_counts holds one thing of every kind that is counted, and things that look alike: against limits of
# zero the check must name each count with its figure and nothing else, and against its own figures it must pass.
set -u
here=$(cd "$(dirname "$0")" && pwd) || exit 2
command -v python3 >/dev/null || { echo "skipped: python3 is not installed"; exit 77; }
command -v git >/dev/null || { echo "skipped: git is not installed"; exit 77; }
tree=$(mktemp -d) || exit 2
trap 'rm -rf "$tree"' EXIT
cp -R "$here/bad_counts/." "$tree" || exit 2
commit() { git -C "$tree" -c user.name=test -c user.email=test@localhost commit -q --allow-empty -m "$1"; }
{ git -C "$tree" init -q && commit "A subject before the first that counts, far longer than the seventy characters allowed"; } || exit 2
first=$(git -C "$tree" rev-parse HEAD)
commit "A subject of exactly seventy characters, which is just short enough, y" || exit 2
commit "A subject of exactly seventy-one characters, that is one more than fits" || exit 2

found=$("$here/counts.py" "$tree" --since "$first" --check "$here/bad_counts/limits.txt" 2>/dev/null)
status=$?
if [ "$status" -ne 1 ] || [ "$found" != "$(cat "$here/bad_counts/grew.txt")" ]; then
    echo "counts.py ended with $status, it should with 1, and found:"
    echo "$found"
    echo "expected:"
    cat "$here/bad_counts/grew.txt"
    exit 1
fi
sed 's/^\([a-z_0-9]*\): \([0-9.]*\),.*/\1 \2 as it is/' "$here/bad_counts/grew.txt" >"$tree/limits.txt"
"$here/counts.py" "$tree" --since "$first" --check "$tree/limits.txt" || {
    echo "counts.py refuses a tree that is at its limits"
    exit 1
}
