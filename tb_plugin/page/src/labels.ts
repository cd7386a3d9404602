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

/** True where the file tells training steps and micro-steps apart. */
export function hasMicroSteps(dataset: Dataset): boolean {
  return dataset.steps.training_step !== undefined;
}

/** "12", or "12 (training step 6, micro-step 0)". */
export function stepLabel(dataset: Dataset, index: number): string {
  const { step, training_step: training, micro_step: micro } = dataset.steps;
  if (!training || !micro) return String(step[index]);
  return `${step[index]} (training step ${training[index]}, micro-step ${micro[index]})`;
}

/** "6/0", or nothing. */
export function stepDetail(dataset: Dataset, index: number): string {
  const { training_step: training, micro_step: micro } = dataset.steps;
  return training && micro ? `${training[index]}/${micro[index]}` : "";
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
