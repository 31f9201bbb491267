#!/bin/bash
# Usage: format.sh --check | --apply [ROOT]. The format of every C++ and CUDA file: .clang-format, by clang-format 19 alone, so
# that no two machines disagree. --check names each file and line that differs or exceeds the line limit and exits 1;
# without clang-format 19 it says "skipped" and exits 77.
set -euo pipefail
mode=${1:?--check or --apply}
cd -- "${2:-$(dirname -- "${BASH_SOURCE[0]}")/../..}"
version=19
limit=110

formatter=""
for candidate in "clang-format-$version" clang-format; do
    if command -v "$candidate" >/dev/null && "$candidate" --version | grep -q "version $version\."; then
        formatter=$candidate
        break
    fi
done
if [[ -z $formatter ]]; then
    echo "skipped: clang-format $version is not installed (Debian and Ubuntu: apt-get install clang-format-$version)"
    exit 77
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
