# shellcheck shell=bash disable=SC2034  # sourced: its variables are for the callers
# Prepares a Debian 12 machine for the scripts beside this one, which source it. Asks for nothing; does nothing that is
# done already, so that a prepared machine needs no network and loses no time.
#
#   setup_debian PACKAGE...   installs what is missing of the Debian packages
#   setup_node                makes sure of Node.js 18 or newer with npm
#   setup_python              makes .venv, with the packages of requirements.txt and without TrendProbe
#   setup_trendprobe          builds the tree in build/ci, C++ tests included, and installs it into .venv
#
# Variables that a caller may set:
#   PYTHON             the Python to use (default: python3.11, else python3)
#   TRENDPROBE_CACHE   where Python packages are kept between checkouts (default: ~/.cache/trendprobe)
#
# Variables that are set here:
#   ROOT               the top of the tree
#   VENV_PYTHON        the Python of .venv: msProbe, torch, TensorBoard and, after setup_trendprobe, TrendProbe
#   VIEWER_PYTHON      a Python with msProbe's viewer and TensorBoard that has never seen TrendProbe

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
VENV_PYTHON=$ROOT/.venv/bin/python
BUILD_PACKAGES="g++ make cmake ninja-build ccache libsqlite3-dev libspdlog-dev nlohmann-json3-dev libcli11-dev
  libgtest-dev libgmock-dev"
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore

note() { printf '\n== %s\n' "$*"; }

fail() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

setup_debian() {
  local package missing=()
  for package in "$@"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  note "Installing Debian packages: ${missing[*]}"
  local as_root=()
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || fail "not root, and no sudo: install these packages, then start again: ${missing[*]}"
    as_root=(sudo)
  fi
  "${as_root[@]}" apt-get update -q
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}"
}

setup_node() {
  if ! command -v node >/dev/null || ! command -v npm >/dev/null; then
    setup_debian nodejs npm
  fi
  local version
  version=$(node --version)
  version=${version#v}
  [ "${version%%.*}" -ge 18 ] || fail "node $version is too old: the page is built with Node.js 18 or newer"
}

# Prints the first Python that can make a virtual environment and has sqlite3 (a Python built from source may lack it).
find_python() {
  local candidate
  for candidate in ${PYTHON:-python3.11 /usr/bin/python3.11 python3 /usr/bin/python3}; do
    if "$candidate" -c 'import sqlite3, venv, ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      "$candidate" -c 'import sys; print(sys.executable)'
      return 0
    fi
  done
  return 1
}

# setup_environment REQUIREMENTS VENV: makes VENV with the packages that a file in ci/ names, and sets VENV_PYTHON and
# VIEWER_PYTHON to it. The packages (gigabytes) lie in an environment outside the tree, one for each content of
# that file, so that a second checkout need not install them again. VENV is a thin environment on top of it, which alone
# gets TrendProbe: two checkouts can't see each other's build.
setup_environment() {
  local requirements=$ROOT/ci/$1 venv=$ROOT/$2 python cache key packages site
  python=$(find_python) || {
    setup_debian python3 python3-dev python3-venv
    python=$(find_python) || fail "no Python 3.11 or newer with sqlite3 and venv; set PYTHON to one"
  }
  case $python in /usr/bin/*) setup_debian python3-dev python3-venv ;; esac
  cache=${TRENDPROBE_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/trendprobe}
  key=$({ "$python" -c 'import sys; print(sys.version, sys.executable)'; cat "$requirements"; } | sha256sum)
  packages=$cache/packages-${key:0:16}
  VIEWER_PYTHON=$packages/bin/python
  VENV_PYTHON=$venv/bin/python
  mkdir -p "$cache"
  (
    flock 9
    if [ ! -e "$packages/complete" ]; then
      note "Installing Python packages into $packages"
      rm -rf "$packages"
      "$python" -m venv "$packages"
      "$VIEWER_PYTHON" -m pip install -q -r "$requirements"
      touch "$packages/complete"
    fi
  ) 9>"$packages.lock" || fail "the Python packages could not be installed"
  site=$("$VIEWER_PYTHON" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  if [ "$(cat "$venv/packages" 2>/dev/null)" != "$packages" ]; then
    rm -rf "$venv"
    "$python" -m venv --without-pip "$venv"
    # addsitedir, not the bare path: the .pth files inside the packages count, too.
    echo "import site; site.addsitedir('$site')" \
      >"$("$VENV_PYTHON" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/packages.pth"
    echo "$packages" >"$venv/packages"
  fi
}

setup_python() { setup_environment requirements.txt .venv; }

setup_trendprobe() {
  # One CMake build serves the wheel and ctest.
  install_trendprobe build/ci TRENDPROBE_BUILD_TESTS=ON TRENDPROBE_WITH_TORCH=ON
}

# install_trendprobe BUILD_DIRECTORY DEFINITION...: builds the tree and installs it into the environment of VENV_PYTHON.
install_trendprobe() {
  note "Building TrendProbe"
  local settings=(-C "build-dir=$1") definition
  for definition in "${@:2}"; do
    settings+=(-C "cmake.define.$definition")
  done
  if command -v ccache >/dev/null; then
    # Checkouts share what they have in common: no absolute paths in the keys.
    export CCACHE_BASEDIR=$ROOT CCACHE_NOHASHDIR=1
    settings+=(-C cmake.define.CMAKE_CXX_COMPILER_LAUNCHER=ccache)
  fi
  (
    cd "$ROOT"
    CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)} "$VIEWER_PYTHON" -m pip --python "$VENV_PYTHON" \
      install -q --no-build-isolation --no-deps --force-reinstall --no-warn-script-location "${settings[@]}" .
  ) || fail "TrendProbe could not be built"
}
