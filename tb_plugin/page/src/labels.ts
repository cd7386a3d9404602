// How places on the axes are called.

import type { Dataset, Dimension, Targets } from "./api";

/** A module's name; its virtual pipeline stage and call only where they tell it from another. */
export function targetLabel(targets: Targets, index: number): string {
  let label = targets.name[index];
  if (targets.vpp_stage[index] !== 0) label += ` · vpp ${targets.vpp_stage[index]}`;
  if (targets.call[index] !== 0) label += ` · call ${targets.call[index]}`;
  return label;
}

export function targetLabels(targets: Targets): string[] {
  return targets.target.map((_, index) => targetLabel(targets, index));
}

/** What a global step says beside its own number: nothing, its training step, or that and its micro-step. */
export type StepDetail = "none" | "training" | "micro";

const stepDetails = new WeakMap<Dataset["steps"], StepDetail>();

/** The least that tells the steps of a database: without micro-steps none are named. */
export function stepDetailKind({ steps }: Dataset): StepDetail {
  let kind = stepDetails.get(steps);
  if (kind === undefined) {
    const { step, training_step: training, micro_step: micro } = steps;
    if (micro?.some((number) => number !== 0)) kind = "micro";
    else kind = training?.some((number, index) => number !== step[index]) ? "training" : "none";
    stepDetails.set(steps, kind);
  }
  return kind;
}

/** "12", "12 (training step 6)", or "12 (training step 6, micro-step 0)". */
export function stepLabel(dataset: Dataset, index: number): string {
  const { step, training_step: training = [], micro_step: micro = [] } = dataset.steps;
  const kind = stepDetailKind(dataset);
  if (kind === "none") return String(step[index]);
  const passes = kind === "micro" ? `, micro-step ${micro[index]}` : "";
  return `${step[index]} (training step ${training[index]}${passes})`;
}

/** "6/0", "6", or nothing. */
export function stepDetail(dataset: Dataset, index: number): string {
  const { training_step: training = [], micro_step: micro = [] } = dataset.steps;
  const kind = stepDetailKind(dataset);
  if (kind === "none") return "";
  return kind === "micro" ? `${training[index]}/${micro[index]}` : String(training[index]);
}

/** The part up to a dot that all names begin with; names keep at least one part of their own. */
export function commonPrefix(names: readonly string[]): string {
  if (names.length < 2) return "";
  let [prefix] = names;
  for (const name of names) {
    let length = 0;
    while (length < prefix.length && prefix[length] === name[length]) length++;
    prefix = prefix.slice(0, length);
  }
  return prefix.slice(0, prefix.lastIndexOf(".") + 1);
}

/** "3", or "3 (host)". */
export function rankLabel(dataset: Dataset, index: number): string {
  const host = dataset.ranks.host?.[index];
  return host ? `${dataset.ranks.rank[index]} (${host})` : String(dataset.ranks.rank[index]);
}

/** The dimensions of a slice's rows and columns. */
export const SLICE_AXES: Record<Dimension, { row: Dimension; column: Dimension }> = {
  step: { row: "target", column: "rank" },
  rank: { row: "target", column: "step" },
  target: { row: "rank", column: "step" },
};
