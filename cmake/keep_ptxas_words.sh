#!/bin/sh
# keep_ptxas_words.sh COMPILER... -o OBJECT ...: compiles, and keeps beside OBJECT, as OBJECT.ptxas, what ptxas says of every kernel
# (-Xptxas -v): tests/gpu/kernel_resources.py reads it and need not compile them again. Everything else goes where it went.
object=
previous=
for argument in "$@"; do
    [ "$previous" != -o ] || object=$argument
    previous=$argument
done
[ -n "$object" ] || exec "$@"
"$@" 2>"$object.ptxas"
code=$?
grep -vE '^ptxas info|^ +[0-9]+ bytes stack frame' "$object.ptxas" >&2
[ $code -eq 0 ] || rm -f "$object.ptxas"
exit $code
