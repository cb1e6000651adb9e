#!/usr/bin/env bash
# Runs `cargo test` on the whole workspace with these arguments. The workspace is named each time, because packages on
# their own would be built with other features and so from nothing.
#
# usage: cargo-test.sh AREA ARGUMENT...
#
# With NODEYARD_TEST_LOGS set to a directory, the output goes to a file there, and only the outcome, tests that were skipped and those that
# failed are printed.
set -euo pipefail

area=$1
shift
run=(cargo test --locked --workspace --no-fail-fast "$@")
logs=${NODEYARD_TEST_LOGS-}
[ -n "$logs" ] || exec "${run[@]}"

mkdir -p "$logs"
log=$logs/$area.log
echo "\$ ${run[*]}" >> "$log"
start=$SECONDS
status=0
TIMEFORMAT='%U %S'
{ time "${run[@]}" > "$log.part" 2>&1 || status=$?; } 2> "$log.time"
processor=$(awk 'END {print int($1 + $2)}' "$log.time")
cat "$log.part" >> "$log"

read -r passed failed < <(awk '/^test result:/ {p += $4; f += $6} END {print p + 0, f + 0}' "$log.part")
skipped=$(grep -c '^SKIPPED' "$log.part" || true)
echo "$area: exit code $status after $((SECONDS - start)) s, $processor s of processor time (${*})"
echo "$area: $passed passed, $failed failed, $skipped skipped"
grep '^SKIPPED' "$log.part" | sort | uniq -c || true
if [ "$status" != 0 ]; then
    # What did not compile, why tests panicked, and their names.
    grep --after-context=20 '^error\[' "$log.part" | head -60 || true
    grep --after-context=3 ' panicked at ' "$log.part" | cut -c 1-500 | head -100 || true
    grep '^test .* FAILED' "$log.part" || true
    echo "$area: the whole output is in $log"
fi
rm "$log.part" "$log.time"
exit "$status"
