#!/usr/bin/env bash
# Builds TrendProbe and runs its benchmarks, which compare it with what it replaces and with what the machine can do, in
# turn, and print tables. Nothing here passes or fails. Installs what is missing and asks for nothing.
set -euo pipefail
# shellcheck source=ci/setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

BENCHMARKS=$ROOT/tests/bench
usage() {
  echo "usage: ci/bench.sh [NAME...] [-- OPTION...]    runs benchmarks, all by default"
  echo
  echo "names:"
  for file in "$BENCHMARKS"/bench_*.py; do
    printf '  %-14s %s\n' "$(basename "$file" .py | sed 's/^bench_//')" "$(sed -n '1s/^"""//p' "$file")"
  done
  echo
  echo "Options behind -- go to the benchmark; see ci/bench.sh NAME -- --help."
}

NAMES=()
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help)
      usage
      exit 0
      ;;
    --)
      shift
      break
      ;;
    *)
      [ -e "$BENCHMARKS/bench_$1.py" ] || fail "there is no benchmark $1 (see ci/bench.sh --help)"
      NAMES+=("$1")
      shift
      ;;
  esac
done
if [ ${#NAMES[@]} = 0 ]; then
  for file in "$BENCHMARKS"/bench_*.py; do
    name=$(basename "$file" .py)
    NAMES+=("${name#bench_}")
  done
fi

cd "$ROOT"
# shellcheck disable=SC2086  # a list of words
setup_debian $BUILD_PACKAGES
setup_node
setup_python
setup_trendprobe

for name in "${NAMES[@]}"; do
  note "$name"
  PATH=$(dirname "$VIEWER_PYTHON"):$PATH "$VENV_PYTHON" "$BENCHMARKS/bench_$name.py" "$@"
done
