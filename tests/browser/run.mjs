// Runs the browser tests with node's own test runner, and ends with one line that sums up.
import path from "node:path";
import process from "node:process";
import { finished } from "node:stream/promises";
import { run } from "node:test";
import { spec } from "node:test/reporters";
import { fileURLToPath } from "node:url";

const here = path.dirname(fileURLToPath(import.meta.url));
let passed = 0;
let failed = 0;
const events = run({ files: [path.join(here, "plugin.test.mjs")] });
events.on("test:pass", () => ++passed);
events.on("test:fail", () => ++failed);
const report = events.compose(new spec());
report.pipe(process.stdout);
await finished(report);
process.stdout.write(`browser tests: ${passed} passed, ${failed} failed\n`);
process.exitCode = failed > 0 || passed === 0 ? 1 : 0;
