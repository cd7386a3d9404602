#!/usr/bin/env bash
# Builds TrendProbe and runs all its tests. Every suite runs, whatever happened to the others; the exit status is 0 only
# if all passed. Installs what is missing (Debian packages, Python packages, npm packages) and asks for nothing.
set -euo pipefail
# shellcheck source=ci/setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

case ${1:-} in
  "") ;;
  -h | --help)
    echo "usage: ci/test.sh    builds TrendProbe and runs all its tests; logs in build/test-logs"
    exit 0
    ;;
  *) fail "unknown argument $1 (ci/test.sh takes none)" ;;
esac

cd "$ROOT"
# shellcheck disable=SC2086  # a list of words
setup_debian $BUILD_PACKAGES chromium
setup_node
setup_python
setup_trendprobe

LOGS=$ROOT/build/test-logs
rm -rf "$LOGS"
mkdir -p "$LOGS"
FAILED=()

# suite NAME COMMAND...: runs one suite, its output both here and in the logs.
suite() {
  local name=$1
  shift
  note "Running $name"
  "$@" 2>&1 </dev/null | tee "$LOGS/$name.log" || FAILED+=("$name")
}

suite ctest ctest --test-dir build/ci --output-on-failure --no-tests=error -j "$(nproc)"
suite pytest env TRENDPROBE_VIEWER_PYTHON="$VIEWER_PYTHON" "$VENV_PYTHON" -m pytest tests/python
suite page npm --silent --prefix tb_plugin/page test
npm --prefix tests/browser ci --silent --ignore-scripts --no-audit --no-fund
suite browser env TRENDPROBE_PYTHON="$VENV_PYTHON" npm --silent --prefix tests/browser test

# The runners' own last words once more, together, where a reader looks first.
note "Summary"
for log in "$LOGS"/*.log; do
  printf '%s:\n' "$(basename "$log" .log)"
  case $log in
    */ctest.log) sed -n '/tests passed,/,$p' "$log" ;;
    *) tail -n 1 "$log" ;;
  esac
done
if [ ${#FAILED[@]} -gt 0 ]; then
  echo "failed: ${FAILED[*]}" >&2
  exit 1
fi
