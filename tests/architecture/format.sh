#!/bin/bash
# Usage: format.sh --check | --apply [ROOT]. The format of every C++ and CUDA file: .clang-format, by clang-format 19 alone, so
# that no two machines disagree. --check names each file and line that differs or exceeds the line limit and exits 1;
# without clang-format 19 or outside a git checkout it says "skipped" and exits 77, in CI (CI=true) it fails.
set -euo pipefail
mode=${1:?--check or --apply}
cd -- "${2:-$(dirname -- "${BASH_SOURCE[0]}")/../..}"
version=19
limit=110

# skip REASON: what a user may lack, CI may not.
skip() {
    if [[ ${CI:-} == true ]]; then
        echo "failed: $1; in CI the format is checked"
        exit 1
    fi
    echo "skipped: $1"
    exit 77
}

# Whose checkout: an unpacked copy inside a foreign one is none.
[[ $(git rev-parse --show-toplevel 2>/dev/null) == "$(pwd -P)" ]] || skip "$PWD is not a git checkout"

formatter=""
for candidate in "clang-format-$version" clang-format; do
    if command -v "$candidate" >/dev/null && "$candidate" --version | grep -q "version $version\."; then
        formatter=$candidate
        break
    fi
done
if [[ -z $formatter ]]; then
    skip "clang-format $version is not installed (Debian and Ubuntu: apt-get install clang-format-$version)"
fi

mapfile -t files < <(git ls-files --cached --others --exclude-standard -- '*.h' '*.cpp' '*.cu' '*.cuh' '*.inc' |
    grep -v '^tests/architecture/bad_' | while read -r file; do [[ ! -f $file ]] || echo "$file"; done)
if [[ $mode == --apply ]]; then
    printf '%s\0' "${files[@]}" | xargs -0 -n 16 -P "$(nproc)" "$formatter" -i
    exit 0
fi
status=0
# The formatter's own words, a line a place: FILE:LINE:COLUMN: error: code should be clang-formatted.
printf '%s\0' "${files[@]}" | xargs -0 -n 16 -P "$(nproc)" "$formatter" --dry-run --Werror 2>&1 |
    grep -E '^[^ ].*: (error|warning): ' && status=1
# What the formatter leaves: long literals and macros.
printf '%s\0' "${files[@]}" | xargs -0 awk -v limit="$limit" \
    'length($0) > limit { print FILENAME ":" FNR ": " length($0) " columns, the limit is " limit; found = 1 } END { exit found }' || status=1
exit "$status"
