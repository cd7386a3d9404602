#!/usr/bin/env bash
# Checks form and types of everything in the tree: clang-format and clang-tidy, ruff and mypy, prettier, eslint and the
# TypeScript compiler. Every check runs; the exit status is 0 only if all passed. --fix repairs what can be repaired.
set -euo pipefail
# shellcheck source=ci/setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

FIX=
case ${1:-} in
  "") ;;
  --fix) FIX=1 ;;
  -h | --help)
    echo "usage: ci/lint.sh [--fix]    checks the form and the types of all sources; --fix repairs what it can"
    exit 0
    ;;
  *) fail "unknown argument $1 (see ci/lint.sh --help)" ;;
esac

cd "$ROOT"
# shellcheck disable=SC2086  # a list of words
setup_debian $BUILD_PACKAGES clang-format clang-tidy shellcheck
setup_python
# clang-tidy and mypy see what the compiler and the interpreter see: the build's commands, the installed extension.
setup_trendprobe

FAILED=()
check() {
  local name=$1
  shift
  note "$name"
  "$@" </dev/null || FAILED+=("$name")
}

mapfile -t CPP_FILES < <(git ls-files '*.cpp' '*.h')
mapfile -t CPP_SOURCES < <(git ls-files '*.cpp')
mapfile -t SHELL_SCRIPTS < <(git ls-files 'ci/*.sh' .ci/run)
TYPED_PYTHON=(hook/trendprobe tb_plugin/trendprobe_tb examples)

# Only errors count (WarningsAsErrors is '*'); the number of warnings in system headers is noise. The compile commands
# are GCC's, whose warning switches clang need not know.
tidy() {
  printf '%s\0' "${CPP_SOURCES[@]}" |
    xargs -0 -n 1 -P "$(nproc)" clang-tidy -p build/ci --quiet ${FIX:+--fix} --extra-arg=-Wno-unknown-warning-option \
      2> >(grep -v ' generated\.$' >&2)
}

# An operator that brings a number to the host makes the training wait for the device, 40 to 50 ms a step in other tools:
# none in the hooks but those that ci/allowed_host_syncs.txt gives a reason for, and no reason for what is not there.
host_syncs() {
  local found allowed line entry path text unused=0
  found=$(git grep -nE '\.item\(|\.cpu\(|\.tolist\(|_local_scalar_dense|\bsynchronize\b' -- hook)
  mapfile -t allowed < <(grep -vE '^(#|$)' ci/allowed_host_syncs.txt)
  for entry in "${allowed[@]}"; do
    path=${entry%%: *} text=${entry#*: }
    line=$(grep -F "$path:" <<<"$found" | grep -F -- "$text") || {
      echo "ci/allowed_host_syncs.txt: no such line any more: $entry"
      unused=1
    }
    found=$(grep -vxF -- "$line" <<<"$found")
  done
  [ -z "$found" ] || echo "waits for a device, or copies from one, in the training (ci/allowed_host_syncs.txt):"$'\n'"$found"
  [ -z "$found" ] && [ $unused = 0 ]
}

if [ "$FIX" ]; then
  check clang-format clang-format -i "${CPP_FILES[@]}"
else
  check clang-format clang-format --dry-run -Werror "${CPP_FILES[@]}"
fi
check clang-tidy tidy
check "host syncs" host_syncs
check "ruff check" "$VENV_PYTHON" -m ruff check ${FIX:+--fix} .
if [ "$FIX" ]; then
  check "ruff format" "$VENV_PYTHON" -m ruff format .
else
  check "ruff format" "$VENV_PYTHON" -m ruff format --check .
fi
for path in "${TYPED_PYTHON[@]}"; do
  check "mypy $path" "$VENV_PYTHON" -m mypy --strict "$path"
done
check shellcheck shellcheck -x "${SHELL_SCRIPTS[@]}"
if [ -e tb_plugin/page/package.json ]; then
  check "page: packages" npm --prefix tb_plugin/page ci --no-audit --no-fund
  [ ! "$FIX" ] || check "page: fix" npm --prefix tb_plugin/page run fix
  check "page: lint" npm --prefix tb_plugin/page run lint
fi

note "Summary"
if [ ${#FAILED[@]} -gt 0 ]; then
  printf 'failed: %s\n' "${FAILED[@]}" >&2
  exit 1
fi
echo "All checks passed."
