#!/bin/bash
# check_configure.sh SOURCE CMAKE: the build that is configured where there is no ccache calls no program that was not found.
set -u
source=$1
cmake=$2
place=$(mktemp -d) || exit 2
trap 'rm -rf "$place"' EXIT
if ! "$cmake" -S "$source" -B "$place" -G Ninja -DCMAKE_BUILD_TYPE=Release -DSMSIM_CCACHE=OFF >"$place/log" 2>&1; then
    cat "$place/log"
    exit 1
fi
# What compiles and links: commands, not paths of headers that a generator writes down.
called=$(grep -hE '^ *(LAUNCHER|COMMAND|command) = ' "$place/build.ninja" "$place/CMakeFiles/rules.ninja" | grep -E 'NOTFOUND|ccache')
[[ -z $called ]] && exit 0
printf 'not found, and called:\n%s\n' "$called"
exit 1
