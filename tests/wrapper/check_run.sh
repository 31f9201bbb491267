#!/bin/bash
# ./run in a small checkout of its own, whose path has blanks, with a stand-in for cmake and ninja that counts its calls: what is built when, what is said where.
set -u
real_run=$1
place=$(mktemp -d) || exit 2
trap 'rm -rf "$place"' EXIT
checkout="$place/a check out"
mkdir -p "$checkout/core" "$checkout/apps" "$place/bin" "$place/elsewhere"
cp "$real_run" "$checkout/run"
: >"$checkout/CMakeLists.txt"
: >"$checkout/core/a.cpp"

cat >"$place/bin/cmake" <<'SCRIPT'
#!/bin/bash
echo cmake >>"$CALLS"
while [[ $# -gt 0 ]]; do
    case "$1" in
        -S) source=$2; shift 2 ;;
        -B) build=$2; shift 2 ;;
        *) shift ;;
    esac
done
echo "CMAKE_HOME_DIRECTORY:INTERNAL=$source" >"$build/CMakeCache.txt"
: >"$build/build.ninja"
SCRIPT
cat >"$place/bin/ninja" <<'SCRIPT'
#!/bin/bash
echo "ninja ${*:3}" >>"$CALLS"
echo "compiling"
sleep 0.2
if [[ -e $(dirname "$2")/core/broken.cpp ]]; then
    echo "core/broken.cpp:1: error: expected a declaration"
    exit 1
fi
printf '#!/bin/bash\nprintf "<%%s>" "$@"\nexit 3\n' >"$2/smsim"
chmod +x "$2/smsim"
SCRIPT
# shellcheck disable=SC2016  # the stand-in expands it
printf '#!/bin/bash\nfor p in "${@:3}"; do echo "$p installed"; done\n' >"$place/bin/dpkg-query"
chmod +x "$place/bin/"*
export PATH="$place/bin:$PATH" CALLS="$place/calls"
cd "$place/elsewhere" || exit 2

failures=0
# expect NAME WANTED FOUND
expect() {
    [[ $2 == "$3" ]] && return
    printf '%s: wanted "%s", found "%s"\n' "$1" "$2" "$3"
    failures=$((failures + 1))
}
calls() { if [[ -e $CALLS ]]; then tr '\n' ' ' <"$CALLS"; fi; rm -f "$CALLS"; }
run() {
    out=$("$checkout/run" "$@" 2>"$place/err" </dev/null)
    code=$?
    err=$(cat "$place/err")
}

run smsim "two words" --flag ""
expect "first call: output is the tool's alone" "<two words><--flag><>" "$out"
expect "first call: the tool's exit code" 3 "$code"
expect "first call: nothing on stderr" "" "$err"
expect "first call: configures and builds the one tool" "cmake ninja smsim " "$(calls)"

run smsim again
expect "second call: output" "<again>" "$out"
expect "second call: builds nothing" "" "$(calls)"

touch "$checkout/core/a.cpp"
run smsim
expect "a changed source: builds without configuring" "ninja smsim " "$(calls)"

rm "$checkout/core/a.cpp"
run smsim
expect "a removed source: builds" "ninja smsim " "$(calls)"

touch "$checkout/CMakeLists.txt"
for _ in 1 2 3; do "$checkout/run" smsim x >>"$place/together" & done
wait
expect "three at once: all run" "<x><x><x>" "$(cat "$place/together")"
expect "three at once: one build" "ninja smsim " "$(calls)"

: >"$checkout/core/broken.cpp"
run smsim
expect "a broken source: exit code" 4 "$code"
expect "a broken source: stdout is empty" "" "$out"
[[ $err == *"core/broken.cpp:1: error"* && $err == *"the build of smsim failed"* ]]
expect "a broken source: stderr has the compiler's words" 0 $?
run smsim
expect "a broken source: fails again, the old program is not run" 4 "$code"
rm "$checkout/core/broken.cpp"
run smsim
expect "a mended source: runs" 3 "$code"
calls >/dev/null

mv "$checkout" "$place/moved"
checkout="$place/moved"
run smsim
expect "a moved checkout: configures anew" "cmake ninja smsim " "$(calls)"
ln -s "$checkout/run" "$place/link"
expect "a link to it runs the same" "<y>" "$("$place/link" smsim y)"

run nonsense
expect "an unknown command: exit code" 2 "$code"
expect "an unknown command: stdout is empty" "" "$out"
run help
expect "help: exit code" 0 "$code"
expect "unknown command and help build nothing" "" "$(calls)"

[[ $failures -eq 0 ]]
