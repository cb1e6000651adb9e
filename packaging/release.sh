#!/usr/bin/env bash
# Makes the program as it is meant to be handed out: compiled, watched at work, and linked again with what it runs side by
# side in the file. A launcher that waits has half the memory then; docs/decisions/idle-memory.md says why.
set -euo pipefail
export LC_ALL=C

folder=${1:?usage: release.sh FOLDER-FOR-THE-PROGRAM}
mkdir -p "$folder"
folder=$(realpath "$folder")
cd "$(dirname "$0")/.."
target=$(realpath --canonicalize-missing "${CARGO_TARGET_DIR:-target}")

# The profile has symbols: callgrind needs the names of functions.
compile() { cargo rustc --locked --profile packaged --package nodeyard --bin nodeyard -- "$@"; }
# Installs the program without symbols, and the symbols beside it as nodeyard.debug, where debuggers look for them.
hand_out() {
  objcopy --only-keep-debug "$target/packaged/nodeyard" "$folder/nodeyard.debug"
  chmod 644 "$folder/nodeyard.debug"
  install "$target/packaged/nodeyard" "$folder/nodeyard"
  objcopy --strip-all --add-gnu-debuglink="$folder/nodeyard.debug" "$folder/nodeyard"
  "$folder/nodeyard" --version
}

compile
if [ "$(uname -m)" != x86_64 ]; then
  echo 'release.sh: Rust brings a linker that can order code for x86_64 only; this one is as cargo makes it' >&2
  hand_out
  exit
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/recorded" "$work/calls"
touch "$work/order"
cp "$target/packaged/nodeyard" "$work/recorded/"
for name in nodepool-launcher nodepool-builder; do ln -s nodeyard "$work/recorded/$name"; done
# Stands in for the program, also by its other names.
cat > "$work/nodeyard" << END
#!/bin/sh
exec valgrind --tool=callgrind --quiet --demangle=no --compress-strings=no --callgrind-out-file="$work/calls/%p" \\
  "$work/recorded/\$(basename "\$0")" "\$@"
END
chmod +x "$work/nodeyard"

cargo build --locked --profile packaged --package nodeyard-bench
# Puts what is run in this load, and was in none before, behind the others.
record() {
  # What it measures is of no use: the program is fifty times slower.
  "$target/packaged/nodeyard-bench" --program "$work/nodeyard" "$@" > "$work/figures"
  if ! cat "$work/calls"/* > "$work/all" 2> /dev/null; then
    echo "release.sh: nothing was recorded by nodeyard-bench $*, which said:" >&2
    cat "$work/figures" >&2
    exit 1
  fi
  awk -v program="$work/recorded/" '
    /^ob=/ { ours = index($0, "ob=" program) == 1 }
    /^fn=/ && ours { print substr($0, 4) }' "$work/all" | sed "s/'[0-9]*$//" | sort --unique > "$work/run"
  sort "$work/order" | comm -13 - "$work/run" > "$work/new"
  cat "$work/new" >> "$work/order"
  echo "release.sh: $(wc -l < "$work/new") functions were run by $*"
  rm "$work/calls"/*
}
record launcher --alone --quick --row idle
record launcher --alone --quick --row restart
record api --clients 5 --requests 50
# A launcher alone runs more than that.
if [ "$(wc -l < "$work/order")" -lt 3000 ]; then
  echo "release.sh: only $(wc -l < "$work/order") functions were seen; nodeyard-bench said last:" >&2
  cat "$work/figures" >&2
  exit 1
fi

arguments=("-Clink-arg=-Wl,--symbol-ordering-file=$work/order" "-Clink-arg=-Wl,--no-warn-symbol-ordering")
# Pages with addresses to be adjusted at the start are read once and stay; packed they are few.
if [ "$(printf '%s\n' 2.36 "$(getconf GNU_LIBC_VERSION | cut -d ' ' -f 2)" | sort --version-sort | head -1)" = 2.36 ]; then
  arguments+=("-Clink-arg=-Wl,-z,pack-relative-relocs")
fi
compile "${arguments[@]}"
hand_out
