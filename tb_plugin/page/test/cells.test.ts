import assert from "node:assert/strict";
import { test } from "node:test";

import {
  CODE_COUNT,
  CODE_MINUS_INFINITY,
  CODE_MISSING,
  CODE_NAN,
  CODE_PLUS_INFINITY,
  codeColors,
  codePriorities,
  drawCells,
  encodeCells,
} from "../src/cells";
import { stateColors } from "../src/palette";
import { makeScale } from "../src/scale";
import { summarize } from "../src/values";

const summary = summarize(new Float32Array([0, 1]));
const scale = makeScale(summary, "linear", "full");
const colors = codeColors(scale, "safe", stateColors(false, "safe"));
const priorities = codePriorities(0.5);

function draw(codes: Uint16Array, rows: number, columns: number, width: number, height: number): Uint32Array {
  const pixels = new Uint32Array(width * height);
  const whole = { left: 0, right: columns, top: 0, bottom: rows };
  drawCells(codes, rows, columns, whole, width, height, priorities, colors, pixels);
  return pixels;
}

test("each state has a code and a color of its own", () => {
  const values = new Float32Array([0.5, NaN, Infinity, -Infinity, 0]);
  new Uint32Array(values.buffer)[4] = 0x7fc04d56;
  const codes = encodeCells(values, scale);
  assert.deepEqual([...codes.subarray(1)], [CODE_NAN, CODE_PLUS_INFINITY, CODE_MINUS_INFINITY, CODE_MISSING]);
  const shown = new Set(
    [CODE_NAN, CODE_PLUS_INFINITY, CODE_MINUS_INFINITY, CODE_MISSING].map((c) => colors[c]),
  );
  assert.equal(shown.size, 4);
  for (let code = codes[0]; code < CODE_COUNT; ++code) assert.ok(!shown.has(colors[code]));
});

test("values outside the range take the end colors, one infinity changes nothing", () => {
  const codes = encodeCells(new Float32Array([-5, 0, 1, 7]), scale);
  assert.equal(codes[0], codes[1]);
  assert.equal(codes[2], codes[3]);
  const withInfinity = summarize(new Float32Array([0, 1, Infinity]));
  assert.deepEqual([withInfinity.min, withInfinity.max], [0, 1]);
});

test("each cell gets its own pixels where there is room", () => {
  const codes = Uint16Array.from([10, 20, 30, 40, 50, 60]);
  const pixels = draw(codes, 2, 3, 9, 4);
  for (let y = 0; y < 4; ++y) {
    for (let x = 0; x < 9; ++x) {
      const code = codes[Math.floor(y / 2) * 3 + Math.floor(x / 3)];
      assert.equal(pixels[y * 9 + x], colors[code]);
    }
  }
});

test("one NaN in a million cells is still seen", () => {
  const codes = new Uint16Array(1000 * 1000).fill(500);
  codes[654_321] = CODE_NAN;
  const pixels = draw(codes, 1000, 1000, 100, 80);
  const bad = pixels.filter((pixel) => pixel === colors[CODE_NAN]).length;
  assert.equal(bad, 9);
});

test("the worst cell of a pixel wins: NaN, infinity, extreme, anything, nothing", () => {
  const extreme = CODE_COUNT - 1;
  const middle = 4 + 512;
  const order = [CODE_NAN, CODE_PLUS_INFINITY, CODE_MINUS_INFINITY, extreme, middle, CODE_MISSING];
  for (let worse = 0; worse < order.length - 1; ++worse) {
    for (const [a, b] of [
      [order[worse], order[worse + 1]],
      [order[worse + 1], order[worse]],
    ]) {
      assert.equal(draw(Uint16Array.from([a, b]), 1, 2, 1, 1)[0], colors[order[worse]]);
    }
  }
});

test("a zoomed view shows its part alone", () => {
  const codes = Uint16Array.from([10, 20, 30, 40]);
  const pixels = new Uint32Array(4);
  const view = { left: 1, right: 2, top: 1, bottom: 2 };
  drawCells(codes, 2, 2, view, 2, 2, priorities, colors, pixels);
  assert.deepEqual([...pixels], Array<number>(4).fill(colors[40]));
});
