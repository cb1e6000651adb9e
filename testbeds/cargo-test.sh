#!/usr/bin/env bash
# Runs `cargo test` on the whole workspace with these arguments. The workspace is named each time, because packages on
# their own would be built with other features and so from nothing.
#
# usage: cargo-test.sh AREA ARGUMENT...
#
# With LOGS set to a directory, the output goes to a file there, and only the outcome, tests that were skipped and those that
# failed are printed.
set -euo pipefail

area=$1
shift
run=(cargo test --locked --workspace --no-fail-fast "$@")
[ -n "${LOGS-}" ] || exec "${run[@]}"

mkdir -p "$LOGS"
log=$LOGS/$area.log
echo "\$ ${run[*]}" >> "$log"
start=$SECONDS
status=0
"${run[@]}" > "$log.part" 2>&1 || status=$?
cat "$log.part" >> "$log"

passed=$(awk '/^test result:/ {passed += $4; ignored += $8} END {printf "%d passed, %d ignored", passed, ignored}' "$log.part")
echo "$area: exit code $status, $passed, $((SECONDS - start)) s (${*})"
grep '^SKIPPED' "$log.part" | sort | uniq -c || true
if [ "$status" != 0 ]; then
    # From the first failure to the end, and what did not compile.
    sed -n '/^failures:$/,$p; /^error/,/^$/p' "$log.part" | head -300
    echo "$area: the whole output is in $log"
fi
rm "$log.part"
exit "$status"
