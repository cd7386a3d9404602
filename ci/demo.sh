#!/usr/bin/env bash
# Trains a small GPT under msProbe on two ranks, streams its statistics into shards, merges them and shows the result
# in TensorBoard. Installs what is missing and asks for nothing.
set -euo pipefail
# shellcheck source=ci/setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

USAGE="usage: ci/demo.sh [--no-serve] [--screenshot FILE] [--out DIR] [--port PORT]

  --no-serve          stop after the merge
  --screenshot FILE   write a picture of the heat map (PNG)
  --out DIR           where all files go, emptied first if an earlier demo made it (default: build/demo)
  --port PORT         TensorBoard's port (default: 6006)"

OUT=$ROOT/build/demo
PORT=6006
SERVE=1
SCREENSHOT=
while [ $# -gt 0 ]; do
  case $1 in
    --no-serve) SERVE= ;;
    --screenshot | --out | --port)
      [ $# -ge 2 ] || fail "$1 needs a value (see ci/demo.sh --help)"
      case $1 in
        --screenshot) SCREENSHOT=$(realpath -m "$2") ;;
        --out) OUT=$(realpath -m "$2") ;;
        --port) PORT=$2 ;;
      esac
      shift
      ;;
    -h | --help)
      echo "$USAGE"
      exit 0
      ;;
    *) fail "unknown argument $1 (see ci/demo.sh --help)" ;;
  esac
  shift
done
[[ $PORT =~ ^[0-9]+$ ]] || fail "--port $PORT is no port number"

if [ -e "$OUT" ] && [ ! -e "$OUT/made-by-demo" ] && [ -n "$(ls -A "$OUT")" ]; then
  fail "$OUT exists and was not made by an earlier demo: name another directory with --out"
fi

# shellcheck disable=SC2086  # a list of words
setup_debian $BUILD_PACKAGES
[ -z "$SCREENSHOT" ] || setup_debian chromium
setup_node
setup_python
setup_trendprobe
[ -z "$SCREENSHOT" ] || npm --prefix "$ROOT/tests/browser" ci --silent --ignore-scripts --no-audit --no-fund

rm -rf "$OUT"
mkdir -p "$OUT"
touch "$OUT/made-by-demo"
cd "$OUT"

note "Training a small GPT under msProbe: 2 ranks, 8 steps of 2 micro-batches; log in $OUT/training.log"
echo "Planted: a gradient spike on rank 0 at step 3, a NaN on rank 1 at step 5."
if ! MONITOR_OUTPUT_DIR=$OUT/monitor OMP_NUM_THREADS=1 "$VENV_PYTHON" -m torch.distributed.run --nproc-per-node 2 \
  --master-port 0 --rdzv-backend c10d --rdzv-endpoint localhost:0 \
  -m trendprobe.run "$ROOT/examples/train_gpt.py" \
  --dump-config "$ROOT/examples/msprobe_dump.json" --monitor-config "$ROOT/examples/msprobe_monitor.json" \
  --spike-step 3 --spike-rank 0 --nan-step 5 --nan-rank 1 --loss-file "$OUT/losses-rank{rank}.txt" \
  >training.log 2>&1; then
  tail -n 30 training.log >&2
  fail "the training failed; all of its output is in $OUT/training.log"
fi
grep '^step ' training.log

note "Merging the shards"
"$ROOT/.venv/bin/trendprobe" merge --data trend --db trend_db

if [ -n "$SCREENSHOT" ] || [ "$SERVE" ]; then
  note "TensorBoard, tab TREND ANALYZER: http://localhost:$PORT/"
fi
serve() { exec "$VENV_PYTHON" -m tensorboard.main --logdir "$OUT/trend_db" --port "$PORT" --host localhost; }
if [ -n "$SCREENSHOT" ]; then
  serve >tensorboard.log 2>&1 &
  SERVER=$!
  trap 'kill "$SERVER" 2>/dev/null || true' EXIT
  for _ in $(seq 100); do
    "$VENV_PYTHON" -c "import urllib.request as r; r.urlopen('http://localhost:$PORT/')" 2>/dev/null && break
    kill -0 "$SERVER" 2>/dev/null || fail "TensorBoard ended; its log is $OUT/tensorboard.log"
    sleep 0.3
  done
  mkdir -p "$(dirname "$SCREENSHOT")"
  node "$ROOT/tests/browser/screenshot.mjs" "http://localhost:$PORT/" "$SCREENSHOT" --size 1500x950
  echo "wrote $SCREENSHOT"
  [ "$SERVE" ] || exit 0
  wait "$SERVER"
elif [ "$SERVE" ]; then
  serve
fi
