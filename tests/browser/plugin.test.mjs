// What a user sees and does, against a real TensorBoard. The databases are those of write_databases.py; what they hold is
// computed here again.
import assert from "node:assert/strict";
import { mkdir, mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import process from "node:process";
import { after, afterEach, before, test } from "node:test";

import { launchChromium } from "./chromium.mjs";
import { startTensorBoard, writeDatabases } from "./tensorboard.mjs";
import { TrendPage } from "./trend_page.mjs";

const DATABASE = "runs/today/dump_data.trend.db";
const MSPROBE = "older/dump_data.trend.db";
const MODULES = 64;
const STEPS = 16;
const RANKS = 2;
const NAN_MODULE = 5;
const PLUS_MODULE = 7;
const MINUS_MODULE = 8;
const MISSING_MODULE = 9;

const moduleNames = (() => {
  const block = [
    "ln_1.LayerNorm.output.0",
    "attn.c_attn.Linear.input.0",
    "attn.c_attn.Linear.output.0",
    "attn.c_proj.Linear.output.0",
    "attn.CausalSelfAttention.output.0",
    "ln_2.LayerNorm.output.0",
    "mlp.c_fc.Linear.output.0",
    "mlp.gelu.GELU.output.0",
    "mlp.c_proj.Linear.output.0",
    "mlp.MLP.output.0",
  ];
  const top = "Module.module.transformer.";
  const names = [`${top}wte.Embedding.output.0`, `${top}wpe.Embedding.output.0`];
  for (let layer = 0; layer < 6; ++layer) names.push(...block.map((name) => `${top}h.${layer}.${name}`));
  return [...names, `${top}ln_f.LayerNorm.output.0`, "Module.module.lm_head.Linear.output.0"];
})();

const norm = (module, rank, step) => Math.fround(1 + module / 10 + rank / 100 + step / 1000);
const stepName = (step) =>
  `step ${step} (training step ${100 + Math.floor(step / 2)}, micro-step ${step % 2})`;
const stepOption = (step) => stepName(step).replace("step ", "");

/** A float32 as the page writes it: the shortest text that reads back as the same one. */
const isShown = (text, value) => Math.fround(Number(text.replaceAll("−", "-"))) === value;

let directory;
let browser;
let tensorBoard;
const open = [];

before(async () => {
  directory = await mkdtemp(path.join(tmpdir(), "trendprobe-browser-"));
  await writeDatabases(directory);
  [browser, tensorBoard] = await Promise.all([launchChromium(), startTensorBoard(directory)]);
});

after(async () => {
  await browser?.close();
  await tensorBoard?.stop();
  if (directory) await rm(directory, { recursive: true });
});

async function openPage(view, options) {
  const page = await TrendPage.open(browser, tensorBoard.url, view, options);
  open.push(page);
  return page;
}

/** A test that ends with a look at the console, and leaves a screenshot when it fails. */
function pageTest(name, body, { expectedProblem } = {}) {
  test(name, { timeout: 180_000 }, async () => {
    try {
      await body();
      for (const { problems } of open) {
        assert.deepEqual(
          problems.filter((problem) => !expectedProblem?.test(problem)),
          [],
          "errors on the console",
        );
      }
    } catch (error) {
      const out = process.env.TRENDPROBE_BROWSER_OUT;
      if (out) {
        await mkdir(out, { recursive: true });
        for (const [number, { page }] of open.entries()) {
          await page.screenshot({ path: path.join(out, `${name.replaceAll(/\W+/g, "_")}_${number}.png`) });
        }
      }
      throw error;
    }
  });
}

afterEach(async () => {
  for (const page of open.splice(0)) await page.close();
});

pageTest("the tab opens and draws the heat map of the first step", async () => {
  const page = await openPage({ db: DATABASE });
  await page.drawn(`forward · norm · ${stepName(0)}`);
  const tab = page.page.locator("[role=tab]", { hasText: /^\s*TREND ANALYZER\s*$/ });
  await tab.waitFor();
  const { rows, columns } = await page.map();
  assert.deepEqual([rows, columns], [MODULES, RANKS]);
  assert.deepEqual(await page.options("metric"), ["forward", "parameters_grad"]);
  assert.deepEqual(await page.options("statistic"), ["norm", "max", "min", "mean"]);
});

pageTest("all databases below the log directory are offered", async () => {
  const page = await openPage({ db: DATABASE });
  assert.deepEqual(await page.options("database"), [MSPROBE, DATABASE, "zz_broken.trend.db"]);
});

pageTest("module names stand on the axis, in network order, each at its row", async () => {
  const page = await openPage({ db: DATABASE });
  await page.drawn();
  const names = await page.rowNames();
  assert.ok(names.length > MODULES / 3, `${names.length} names`);
  const { plot } = await page.map();
  const pitch = plot[3] / MODULES;
  for (const { text, y } of names) {
    const row = Math.floor((y - plot[1]) / pitch);
    assert.equal(text, moduleNames[row]);
  }
  for (const row of [0, 1, 33, MODULES - 1]) {
    await page.pointAtName(row);
    assert.equal((await page.tooltip(moduleNames[row]))[0], moduleNames[row]);
  }
});

pageTest("every cell is where it belongs, whatever the dimension", async () => {
  const page = await openPage({ db: DATABASE });
  const check = async (row, column, module, rank, step) => {
    await page.pointAt(row, column);
    const expected = new RegExp(`${moduleNames[module].replaceAll(".", "\\.")}[^]*rank ${rank} `);
    const lines = await page.tooltip(expected);
    assert.ok(lines.includes(stepName(step)), lines.join("\n"));
    const value = await page.tooltipValue(expected);
    assert.ok(isShown(value, norm(module, rank, step)), `${value} is not ${norm(module, rank, step)}`);
  };

  await page.choose("value", stepOption(11));
  await page.drawn(`forward · norm · ${stepName(11)}`);
  await check(0, 0, 0, 0, 11);
  await check(40, 1, 40, 1, 11);
  await check(MODULES - 1, 0, MODULES - 1, 0, 11);

  await page.viewBy("Rank");
  await page.choose("value", "1 (node1)");
  await page.drawn("forward · norm · rank 1 (node1)");
  assert.deepEqual(Object.values(await page.map()).slice(1, 3), [MODULES, STEPS]);
  await check(2, 0, 2, 1, 0);
  await check(62, 15, 62, 1, 15);

  await page.viewBy("Module Name");
  await page.choose("value", moduleNames[21]);
  await page.drawn(`forward · norm · ${moduleNames[21]}`);
  assert.deepEqual(Object.values(await page.map()).slice(1, 3), [RANKS, STEPS]);
  await check(0, 0, 21, 0, 0);
  await check(1, 14, 21, 1, 14);
});

pageTest("NaN, infinities and no data are told apart by color, word and count", async () => {
  const page = await openPage({ db: DATABASE, step: 4 });
  await page.drawn(`forward · norm · ${stepName(4)}`);
  const states = [
    { module: NAN_MODULE, rank: 1, state: "notANumber", word: /^NaN/ },
    { module: PLUS_MODULE, rank: 0, state: "plusInfinity", word: /^\+infinity/ },
    { module: MINUS_MODULE, rank: 0, state: "minusInfinity", word: /^−infinity/ },
    { module: MISSING_MODULE, rank: 1, state: "missing", word: /^no data/ },
  ];
  const colors = new Set();
  for (const { module, rank, state, word } of states) {
    await page.page.mouse.move(0, 0);
    const color = await page.cellColor(module, rank);
    const chip = await page.frame.$eval(
      `.chip.${state}`,
      (element) => getComputedStyle(element).backgroundColor,
    );
    assert.equal(`rgb(${color.join(", ")})`, chip);
    colors.add(chip);
    await page.pointAt(module, rank);
    assert.match(await page.tooltipValue(moduleNames[module]), word);
    assert.equal(await page.count(state), 1);
    // The same module on the other rank is a plain number.
    const other = await page.cellColor(module, 1 - rank);
    assert.ok(!colors.has(`rgb(${other.join(", ")})`));
  }
  assert.equal(colors.size, 4);
  assert.equal(await page.count("number"), MODULES * RANKS - 4);
});

pageTest("a click on a cell adds its line, a second click another, the same cell none", async () => {
  const page = await openPage({ db: DATABASE });
  await page.drawn();
  await page.clickCell(12, 0);
  assert.deepEqual(await page.lines(1), [`rank 0 · ${moduleNames[12]}`]);
  assert.ok((await page.chartPixels(0)) > 100);
  await page.clickCell(30, 1);
  assert.deepEqual(await page.lines(2), [`rank 0 · ${moduleNames[12]}`, `rank 1 · ${moduleNames[30]}`]);
  assert.ok((await page.chartPixels(1)) > 100);
  await page.clickCell(12, 0);
  await page.lines(2);
  for (const step of [0, 7, STEPS - 1]) {
    const { title, values } = await page.pointAtChart(step / (STEPS - 1));
    assert.equal(title, stepName(step));
    assert.ok(isShown(values[0], norm(12, 0, step)), values[0]);
    assert.ok(isShown(values[1], norm(30, 1, step)), values[1]);
  }
});

pageTest("lines run along the dimension that the map holds fixed", async () => {
  const page = await openPage({ db: DATABASE, dim: "rank", rank: 1 });
  await page.drawn("forward · norm · rank 1 (node1)");
  await page.clickCell(20, 3);
  assert.deepEqual(await page.lines(1), [`step 3 · ${moduleNames[20]}`]);
  const rank = await page.pointAtChart(1);
  assert.equal(rank.title, "rank 1 (node1)");
  assert.ok(isShown(rank.values[0], norm(20, 1, 3)));

  await page.viewBy("Module Name");
  await page.drawn(`forward · norm · ${moduleNames[0]}`);
  await page.lines(0);
  await page.clickCell(1, 6);
  assert.deepEqual(await page.lines(1), ["step 6 · rank 1"]);
  const module = await page.pointAtChart(1);
  assert.equal(module.title, moduleNames[MODULES - 1]);
  assert.ok(isShown(module.values[0], norm(MODULES - 1, 1, 6)));

  await page.viewBy("Rank");
  assert.deepEqual(await page.lines(1), [`step 3 · ${moduleNames[20]}`]);
});

pageTest("the chart says NaN and no data in words, never as a number", async () => {
  const page = await openPage({ db: DATABASE, line: `s~~1~${moduleNames[NAN_MODULE]}` });
  await page.lines(1);
  assert.equal((await page.pointAtChart(10 / 15)).values[0], "NaN");
  assert.ok(isShown((await page.pointAtChart(2 / 15)).values[0], norm(NAN_MODULE, 1, 2)));
  const symbols = await page.frame.$eval(".line-plot canvas", (canvas) =>
    canvas.writtenTexts.filter(({ text }) => text === "✕").map(({ x }) => x),
  );
  assert.equal(new Set(symbols).size, STEPS - 4);
  await page.clickCell(MISSING_MODULE, 1);
  await page.lines(2);
  assert.equal((await page.pointAtChart(10 / 15)).values[1], "no data");
  await page.clickCell(PLUS_MODULE, 0);
  await page.lines(3);
  assert.equal((await page.pointAtChart(4 / 15)).values[2], "+infinity");
});

pageTest("lines can be hidden, removed, cleared and brought back", async () => {
  const page = await openPage({ db: DATABASE });
  await page.drawn();
  for (const row of [1, 20, 50]) await page.clickCell(row, 0);
  await page.lines(3);
  await page.frame.locator(".line-legend .legend-toggle").first().click();
  await page.frame.waitForSelector(".line-legend .legend-toggle[aria-pressed=false]");
  assert.equal((await page.pointAtChart(0.5)).values.length, 2);
  await page.frame.locator(".line-legend .icon").first().click();
  assert.deepEqual(await page.lines(2), [`rank 0 · ${moduleNames[20]}`, `rank 0 · ${moduleNames[50]}`]);
  await page.frame.click("text=Clear all");
  await page.frame.waitForSelector("text=Click a cell in the map");
  await page.frame.click("text=Undo clear");
  await page.lines(2);
});

pageTest("metric and statistic are chosen by name; step, lines and zoom stay", async () => {
  const page = await openPage({ db: DATABASE });
  await page.drawn();
  await page.choose("value", stepOption(6));
  await page.clickCell(30, 0);
  await page.lines(1);
  const center = await page.cellCenter(30, 0);
  await page.page.mouse.move(center.x, center.y);
  await page.page.mouse.wheel(0, -300);
  await page.frame.waitForSelector("text=Whole map");
  const { view } = await page.map();
  await page.choose("statistic", "min");
  await page.drawn(`forward · min · ${stepName(6)}`);
  assert.deepEqual((await page.map()).view, view);
  await page.lines(1);
  const { values } = await page.pointAtChart(0);
  assert.ok(isShown(values[0], -norm(30, 0, 0)), values[0]);
  await page.frame.click("text=Whole map");

  await page.choose("metric", "parameters_grad");
  await page.drawn(`parameters_grad · norm · ${stepName(6)}`);
  assert.equal((await page.map()).rows, 3);
  await page.pointAt(0, 0);
  assert.equal((await page.tooltip(moduleNames[MODULES - 3]))[0], moduleNames[MODULES - 3]);
});

pageTest("a step without data is all gray, not an error", async () => {
  const page = await openPage({ db: DATABASE, metric: "parameters_grad", step: 15 });
  await page.drawn(`parameters_grad · norm · ${stepName(15)}`);
  assert.equal(await page.count("missing"), 6);
  assert.equal(await page.count("number"), 0);
});

pageTest("slider, buttons and keys walk through the steps", async () => {
  const page = await openPage({ db: DATABASE });
  await page.drawn();
  await page.frame.click("button[aria-label='Next (→)']");
  await page.drawn(`forward · norm · ${stepName(1)}`);
  await page.frame.locator(".sidebar input[type=range]").fill("9");
  await page.drawn(`forward · norm · ${stepName(9)}`);
  await page.frame.locator(".splitter.horizontal").hover();
  await page.frame.locator("h1").click();
  await page.page.keyboard.press("ArrowLeft");
  await page.drawn(`forward · norm · ${stepName(8)}`);
});

pageTest("the keyboard alone reaches a cell and adds its line", async () => {
  const page = await openPage({ db: DATABASE });
  await page.drawn();
  await page.frame.locator(".heat-map").focus();
  for (let press = 0; press < MODULES; ++press) await page.page.keyboard.press("ArrowUp");
  await page.page.keyboard.press("ArrowDown");
  await page.tooltip(moduleNames[1]);
  await page.page.keyboard.press("Enter");
  const [line] = await page.lines(1);
  assert.ok(line.endsWith(moduleNames[1]), line);
});

pageTest("a late answer never replaces a newer choice", async () => {
  let release;
  const released = new Promise((resolve) => (release = resolve));
  const page = await openPage(
    { db: DATABASE },
    {
      prepare: (browserPage) =>
        browserPage.route(/\/slice\?.*value=3$/, async (route) => {
          await released;
          await route.continue().catch(() => undefined);
        }),
    },
  );
  await page.drawn();
  await page.choose("value", stepOption(3));
  await page.frame.waitForSelector(".map-section[aria-busy=true]");
  await page.choose("value", stepOption(12));
  await page.drawn(`forward · norm · ${stepName(12)}`);
  release();
  await page.choose("value", stepOption(13));
  await page.drawn(`forward · norm · ${stepName(13)}`);
  await page.pointAt(0, 0);
  const lines = await page.tooltip(moduleNames[0]);
  assert.ok(lines.includes(stepName(13)));
});

pageTest("the address brings the same view back", async () => {
  const first = await openPage({ db: DATABASE });
  await first.drawn();
  await first.choose("statistic", "max");
  await first.viewBy("Rank");
  await first.choose("value", "1 (node1)");
  await first.drawn("forward · max · rank 1 (node1)");
  await first.clickCell(4, 4);
  await first.lines(1);
  await first.page.waitForFunction(() => location.hash.includes("p.trendprobe.line="));
  const address = first.page.url();
  const view = {};
  for (const [name, value] of new URLSearchParams(new URL(address).hash.slice(1))) {
    if (name.startsWith("p.trendprobe.")) view[name.slice("p.trendprobe.".length)] = value;
  }
  const second = await openPage(view);
  await second.drawn("forward · max · rank 1 (node1)");
  assert.deepEqual(await second.lines(1), [`step 4 · ${moduleNames[4]}`]);
});

pageTest("two pages look at two databases at once", async () => {
  const [own, foreign] = [await openPage({ db: DATABASE }), await openPage({ db: MSPROBE, step: 4 })];
  await foreign.drawn("forward · norm · step 4");
  await own.choose("value", stepOption(5));
  await own.drawn(`forward · norm · ${stepName(5)}`);
  await foreign.frame.click("button[aria-label='Next (→)']");
  await foreign.drawn("forward · norm · step 5");
});

pageTest("a database of msProbe is shown, its NULL as NaN, and said to be one", async () => {
  const page = await openPage({ db: MSPROBE, step: 4 });
  await page.drawn("forward · norm · step 4");
  assert.equal((await page.map()).rows, MODULES);
  await page.frame.waitForSelector("text=made by msProbe");
  assert.equal(await page.count("notANumber"), 1);
  assert.equal(await page.count("plusInfinity"), 1);
  assert.equal(await page.count("missing"), 1);
});

pageTest(
  "a broken database says what is wrong, and the others go on",
  async () => {
    const page = await openPage({ db: "zz_broken.trend.db" });
    await page.frame.waitForSelector("text=zz_broken.trend.db can't be read: file is not a database");
    await page.choose("database", DATABASE);
    await page.drawn(`forward · norm · ${stepName(0)}`);
  },
  { expectedProblem: /422/ },
);

pageTest("a database made later appears with TensorBoard's reload button", async () => {
  const page = await openPage({ db: DATABASE });
  await page.drawn();
  await mkdir(path.join(directory, "later"));
  await writeDatabases(path.join(directory, "later"));
  try {
    const deadline = Date.now() + 30_000;
    while (!(await page.frame.locator(".field-label", { hasText: "Database (6)" }).count())) {
      assert.ok(Date.now() < deadline, "the new databases never appeared");
      await page.page.locator(".reload-button").first().click();
      await new Promise((resolve) => setTimeout(resolve, 500));
    }
    await page.drawn(`forward · norm · ${stepName(0)}`);
  } finally {
    await rm(path.join(directory, "later"), { recursive: true });
  }
});

pageTest("the page follows TensorBoard's dark mode", async () => {
  const page = await openPage({ db: DATABASE }, { query: "?darkMode=true" });
  await page.drawn();
  const [ink, paper] = await page.frame.evaluate(() => {
    const { color, backgroundColor } = getComputedStyle(document.documentElement);
    return [color, backgroundColor].map((text) => Number(text.match(/\d+/)[0]));
  });
  assert.ok(ink > 200 && paper < 60, `${ink} on ${paper}`);
});

pageTest("an empty log directory says what to do", async () => {
  const empty = await mkdtemp(path.join(tmpdir(), "trendprobe-empty-"));
  const lonely = await startTensorBoard(empty);
  try {
    const page = await TrendPage.open(browser, lonely.url);
    open.push(page);
    await page.frame.waitForSelector("text=No trend database below the log directory");
    await page.frame.waitForSelector("text=trendprobe merge");
  } finally {
    await lonely.stop();
    await rm(empty, { recursive: true });
  }
});
