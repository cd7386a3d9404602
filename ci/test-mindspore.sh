#!/usr/bin/env bash
# Tests TrendProbe with MindSpore's dynamic graph on the CPU, in an environment of its own that has no torch (3 GB, made
# at the first call). No part of ci/test.sh. Installs what is missing and asks for nothing.
set -euo pipefail
# shellcheck source=ci/setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

case ${1:-} in
  "") ;;
  -h | --help)
    echo "usage: ci/test-mindspore.sh    builds TrendProbe without torch and tests it with MindSpore on the CPU"
    exit 0
    ;;
  *) fail "unknown argument $1 (ci/test-mindspore.sh takes none)" ;;
esac

cd "$ROOT"
# shellcheck disable=SC2086  # a list of words
setup_debian $BUILD_PACKAGES
setup_environment requirements-mindspore.txt build/mindspore/venv
install_trendprobe build/mindspore/cmake TRENDPROBE_BUILD_TESTS=OFF TRENDPROBE_BUILD_PAGE=OFF TRENDPROBE_WITH_TORCH=OFF
"$VENV_PYTHON" -m pytest tests/mindspore
