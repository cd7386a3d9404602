// A real TensorBoard process on a free port.
import { execFile, spawn } from "node:child_process";
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import process from "node:process";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "../..");
export const python = process.env.TRENDPROBE_PYTHON ?? "python3";
const START_MILLISECONDS = 120_000;
const INSTALLED =
  "import importlib.metadata as m, sys; sys.exit('trendprobe' not in {d.metadata['Name'] for d in m.distributions()})";

export async function writeDatabases(directory, ...options) {
  const script = path.join(root, "tests/browser/write_databases.py");
  await promisify(execFile)(python, [script, directory, ...options]);
}

/** The plugin of this source tree, for a Python that has none: what an installed wheel would tell TensorBoard. */
async function sourceEnvironment(directory) {
  const info = path.join(directory, "trendprobe-0.dist-info");
  await mkdir(info);
  await writeFile(path.join(info, "METADATA"), "Metadata-Version: 2.1\nName: trendprobe\nVersion: 0\n");
  const entryPoint = "[tensorboard_plugins]\ntrendprobe = trendprobe_tb.plugin:TrendProbePlugin\n";
  await writeFile(path.join(info, "entry_points.txt"), entryPoint);
  const places = [directory, path.join(root, "tb_plugin"), process.env.PYTHONPATH];
  return { ...process.env, PYTHONPATH: places.filter(Boolean).join(path.delimiter) };
}

/** Starts TensorBoard on a log directory. Resolves once it answers, to its address and a function that ends it. */
export async function startTensorBoard(logdir) {
  const scratch = await mkdtemp(path.join(tmpdir(), "trendprobe-tensorboard-"));
  const installed = await promisify(execFile)(python, ["-c", INSTALLED]).then(
    () => true,
    () => false,
  );
  const child = spawn(python, ["-m", "tensorboard.main", "--logdir", logdir, "--port", "0"], {
    env: installed ? process.env : await sourceEnvironment(scratch),
    // A group of its own: TensorBoard starts its data server as another process.
    detached: true,
    stdio: ["ignore", "pipe", "pipe"],
  });
  let output = "";
  const stop = async () => {
    if (child.exitCode === null && child.signalCode === null) {
      const ended = new Promise((resolve) => child.once("exit", resolve));
      process.kill(-child.pid, "SIGTERM");
      await ended;
    }
    await rm(scratch, { recursive: true, force: true });
  };
  const url = await new Promise((resolve, reject) => {
    const timer = setTimeout(() => fail("did not start in time"), START_MILLISECONDS);
    const fail = (what) => {
      clearTimeout(timer);
      reject(new Error(`TensorBoard ${what}:\n${output}`));
    };
    const read = (chunk) => {
      output += chunk;
      const address = /at (http:\/\/\S+\/)/.exec(output)?.[1];
      if (address) {
        clearTimeout(timer);
        resolve(address);
      }
    };
    child.stdout.on("data", read);
    child.stderr.on("data", read);
    child.once("error", (error) => fail(`can't be started with ${python} (${error.message})`));
    child.once("exit", (code) => fail(`ended with ${code}`));
  }).catch(async (error) => {
    await stop();
    throw error;
  });
  return { url, stop };
}
