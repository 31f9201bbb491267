#!/bin/bash
# Usage: recompiled.sh [-C BUILD] HEADER... Prints for each header how many objects a change of it compiles again, of
# how many there are, by the dependencies that ninja recorded: BUILD (else build/) must be built.
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd -P)
build="$root/build"
if [[ ${1:-} == -C ]]; then
    build=$2
    shift 2
fi
[[ $# -gt 0 ]] || {
    sed -n '2,3s/^# //p' "${BASH_SOURCE[0]}" >&2
    exit 2
}
# A target's line is `OBJECT: #deps ...`; its headers follow, indented, as seen from the root or from the build folder.
ninja -C "$build" -t deps | awk -v root="$root/" -v headers="$*" '
    BEGIN { count = split(headers, header, " ") }
    /^[^ ]/ {
        is_object = $1 ~ /\.o:$/
        objects += is_object
        next
    }
    is_object && NF {
        path = $1
        sub("^" root, "", path)
        ++dependents[path]
    }
    END {
        for (i = 1; i <= count; ++i)
            printf "%s: %d of %d objects\n", header[i], dependents[header[i]], objects
    }'
