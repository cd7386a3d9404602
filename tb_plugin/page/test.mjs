// Bundles test/*.test.ts, runs them with node's own test runner, and ends with one line that sums up.
import { build } from "esbuild";
import { mkdtemp, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import process from "node:process";
import { run } from "node:test";
import { spec } from "node:test/reporters";
import { finished } from "node:stream/promises";
import { fileURLToPath } from "node:url";

const here = path.dirname(fileURLToPath(import.meta.url));
const out = await mkdtemp(path.join(tmpdir(), "trendprobe-page-test-"));
try {
  const tests = (await readdir(path.join(here, "test"))).filter((name) => name.endsWith(".test.ts"));
  await build({
    entryPoints: tests.map((name) => path.join(here, "test", name)),
    outdir: out,
    outExtension: { ".js": ".mjs" },
    bundle: true,
    format: "esm",
    platform: "node",
    sourcemap: "inline",
  });
  // For the processes that run the tests: stack traces then name lines of the sources.
  process.env.NODE_OPTIONS = "--enable-source-maps";
  const files = tests.map((name) => path.join(out, name.replace(/\.ts$/, ".mjs")));
  let passed = 0;
  let failed = 0;
  const events = run({ files });
  events.on("test:pass", () => ++passed);
  events.on("test:fail", () => ++failed);
  const report = events.compose(new spec());
  report.pipe(process.stdout);
  await finished(report);
  process.stdout.write(`page tests: ${passed} passed, ${failed} failed\n`);
  process.exitCode = failed > 0 || passed === 0 ? 1 : 0;
} finally {
  await rm(out, { recursive: true });
}
