#!/bin/sh
# Beside the real tree one more file names the most expensive member of every kind: held against the figures of the tree
# without it, the check must name every kind and that file; without it the check must pass.
set -u
here=$(cd "$(dirname "$0")" && pwd) || exit 2
root=$(cd "$here/../.." && pwd) || exit 2
command -v python3 >/dev/null || { echo "skipped: python3 is not installed"; exit 77; }
tree=$(mktemp -d) || exit 2
trap 'rm -rf "$tree"' EXIT
for folder in "$root"/*/; do
    name=$(basename "$folder")
    case $name in build* | tests | bench) ;; *) ln -s "$folder" "$tree/$name" || exit 2 ;; esac
done
"$here/change_cost.py" "$tree" >"$tree/table" || exit 1
awk 'NR > 1 { print "change_" $1, $4, "as it is" }' "$tree/table" >"$tree/limits.txt"
"$here/change_cost.py" "$tree" --check "$tree/limits.txt" || {
    echo "change_cost.py refuses a tree that is at its limits"
    exit 1
}
mkdir "$tree/intruder" || exit 2
awk 'NR > 1 {
    kind = $1; name = $5
    if (kind == "instance_type" || kind == "schedule_name") print "auto x_" NR " = \"" name "\";"
    else if (kind == "collective_algorithm") { gsub("-", "_", name); print "auto x = " name "_algorithm();" }
    else if (kind == "pipeline_schedule" || kind == "model_builder" || kind == "export_target") print "auto y_" NR " = " name "();"
    else if (kind == "model_reader" || kind == "graph_reader" || kind == "cost_mechanism") print "#include \"" name "\""
    else if (kind == "operator_kind") print "auto kind = OperatorKind::" name ";"
    else if (kind == "operator_dispatch") print "void f() { switch (k) { case OperatorKind::add: break; } }"
    else if (kind == "parallel_axis") print "int " (name == "segments" ? name : name "_parallel") ";"
    else if (kind == "backend") print "#include \"exec/" name "/kernels.h\""
}' "$tree/table" >"$tree/intruder/intruder.cpp"
found=$("$here/change_cost.py" "$tree" --check "$tree/limits.txt")
status=$?
if [ "$status" -ne 1 ]; then
    echo "change_cost.py ended with $status beside an intruder, not with 1"
    exit 1
fi
awk 'NR > 1 { print $1 }' "$tree/table" | {
    missed=0
    while read -r kind; do
        echo "$found" | sed -n "/^change_$kind: /,/^change_/p" | grep -q 'intruder/intruder.cpp' || { echo "change_$kind does not name the intruder"; missed=1; }
    done
    exit $missed
}
