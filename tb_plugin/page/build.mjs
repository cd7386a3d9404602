// Bundles the page into one ES module that TensorBoard imports: ../trendprobe_tb/static/index.js, or the given directory.
import { build } from "esbuild";
import { mkdir, stat } from "node:fs/promises";
import path from "node:path";
import process from "node:process";
import { fileURLToPath } from "node:url";

const here = path.dirname(fileURLToPath(import.meta.url));
const out = path.resolve(process.argv[2] ?? path.join(here, "../trendprobe_tb/static"));
await mkdir(out, { recursive: true });
const outfile = path.join(out, "index.js");
await build({
  entryPoints: [path.join(here, "src/main.ts")],
  outfile,
  bundle: true,
  format: "esm",
  target: "es2022",
  jsx: "automatic",
  jsxImportSource: "preact",
  loader: { ".css": "text" },
  minify: true,
  legalComments: "none",
  banner: {
    js:
      "/* TrendProbe, Apache-2.0. Contains Preact (MIT, Copyright (c) 2015-present Jason Miller) and " +
      "uPlot (MIT, Copyright (c) 2022 Leon Sorokin); their license: https://opensource.org/license/mit */",
  },
});
process.stdout.write(`${outfile}: ${(await stat(outfile)).size} bytes\n`);
