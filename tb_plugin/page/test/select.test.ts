import assert from "node:assert/strict";
import { test } from "node:test";

import { searchOptions } from "../src/select";

const options = ["layers.1.mlp.output.0", "layers.11.mlp.output.0", "layers.1.Attention.output.0"].map(
  (label) => ({
    label,
  }),
);

test("every word must occur, in any order and case", () => {
  assert.deepEqual(searchOptions(options, ""), [0, 1, 2]);
  assert.deepEqual(searchOptions(options, "MLP layers.1."), [0]);
  assert.deepEqual(searchOptions(options, "  attention "), [2]);
  assert.deepEqual(searchOptions(options, "conv"), []);
});

test("characters of regular expressions are plain text", () => {
  assert.deepEqual(searchOptions(options, ".*"), []);
  assert.deepEqual(searchOptions(options, "("), []);
});
