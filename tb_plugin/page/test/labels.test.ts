import assert from "node:assert/strict";
import { test } from "node:test";

import type { Dataset } from "../src/api";
import { commonPrefix, rankLabel, stepDetail, stepLabel, targetLabels } from "../src/labels";

const dataset: Dataset = {
  db: "run.trend.db",
  version: "1",
  source: "trendprobe",
  kind: "dump",
  cut_at: null,
  metrics: [],
  steps: { step: [0, 1, 2], training_step: [7, 7, 8], micro_step: [0, 1, 0] },
  ranks: { rank: [0, 5], host: ["node-a", null] },
};
const plain: Dataset = { ...dataset, steps: { step: [3, 9] }, ranks: { rank: [2] } };

test("steps say which training step they are of, where the file tells", () => {
  assert.equal(stepLabel(dataset, 1), "1 (training step 7, micro-step 1)");
  assert.equal(stepDetail(dataset, 2), "8/0");
  assert.equal(stepLabel(plain, 1), "9");
  assert.equal(stepDetail(plain, 1), "");
});

test("steps say no more than tells them apart", () => {
  const steps = { step: [0, 1, 2], training_step: [7, 8, 9], micro_step: [0, 0, 0] };
  assert.equal(stepLabel({ ...dataset, steps }, 1), "1 (training step 8)");
  assert.equal(stepDetail({ ...dataset, steps }, 1), "8");
  const same = { ...steps, training_step: [0, 1, 2] };
  assert.equal(stepLabel({ ...dataset, steps: same }, 1), "1");
  assert.equal(stepDetail({ ...dataset, steps: same }, 1), "");
});

test("the common prefix ends at a dot and leaves each name a part of its own", () => {
  assert.equal(commonPrefix(["Module.h.10.a", "Module.h.11.b"]), "Module.h.");
  assert.equal(commonPrefix(["Module.a", "Module.a"]), "Module.");
  assert.equal(commonPrefix(["Module.a", "Torch.add"]), "");
  assert.equal(commonPrefix(["Module.a.b"]), "");
  assert.equal(commonPrefix([]), "");
});

test("ranks say their host, where the file tells", () => {
  assert.deepEqual(
    [rankLabel(dataset, 0), rankLabel(dataset, 1), rankLabel(plain, 0)],
    ["0 (node-a)", "5", "2"],
  );
});

test("targets of one name are told apart, others keep their plain name", () => {
  const labels = targetLabels({
    target: [1, 2, 3],
    name: ["a.output.0", "a.output.0", "b"],
    vpp_stage: [0, 1, 0],
    call: [0, 0, 3],
  });
  assert.deepEqual(labels, ["a.output.0", "a.output.0 · vpp 1", "b · call 3"]);
});
