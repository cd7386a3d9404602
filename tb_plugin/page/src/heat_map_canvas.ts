// The heat map's drawing: cells, axes and marks on two canvases (the upper one for what moves with the pointer). Knows
// nothing of where the data came from; heat_map.tsx connects it with the user.

import { codeColors, codePriorities, drawCells, encodeCells, unpacked, type Viewport } from "./cells";
import { elideMiddle, formatNumber } from "./format";
import { css, type PaletteKind, stateColors, textColorOn } from "./palette";
import type { ColorScale } from "./scale";
import { State, stateOf } from "./values";
import type { Matrix } from "./api";

export interface AxisText {
  title: string;
  /** Shown on the axis. */
  label: (index: number) => string;
  /** Second line under a column's label. */
  detail?: (index: number) => string;
  /** What all labels begin with: left out, and said once in the title, where the labels are too long. */
  prefix?: string;
}

export interface Picture {
  matrix: Matrix;
  scale: ColorScale;
  median: number;
  palette: PaletteKind;
  dark: boolean;
  rowAxis: AxisText;
  columnAxis: AxisText;
}

export interface Mark {
  row: number;
  column: number;
  color: string;
}

export interface CellPlace {
  row: number;
  column: number;
}

/** What lies under a point of the canvas. */
export interface Hit {
  row?: number;
  column?: number;
}

/** The space at the left of the cells. */
interface Gutter {
  axis: AxisText;
  canvasWidth: number;
  width: number;
  /** What is left out at the beginning of every label. */
  prefix: string;
}

const FONT_SIZE = 11;
const FONT = `${FONT_SIZE}px system-ui, "Segoe UI", Roboto, "Helvetica Neue", sans-serif`;
const ROW_PITCH = 14;
const MAX_CELL_HEIGHT = 80;
const TICK = 4;
const TOP = 20;
const RIGHT = 12;
const GUTTER_SHARE = 0.4;
const TEXT_MIN_WIDTH = 46;
const TEXT_MIN_HEIGHT = 13;

export class HeatMapCanvas {
  private readonly base: CanvasRenderingContext2D;
  private readonly overlay: CanvasRenderingContext2D;
  private picture?: Picture;
  private codes = new Uint16Array(0);
  private priorities = new Uint16Array(0);
  private colors = new Uint32Array(0);
  private view: Viewport = { left: 0, right: 1, top: 0, bottom: 1 };
  private marks: Mark[] = [];
  private width = 0;
  private height = 0;
  private ratio = 1;
  private left = 0;
  private plotWidth = 0;
  private plotHeight = 0;
  private gutter?: Gutter;

  constructor(base: HTMLCanvasElement, overlay: HTMLCanvasElement) {
    this.base = context(base);
    this.overlay = context(overlay);
  }

  /** CSS pixels. */
  resize(width: number, height: number): void {
    this.width = width;
    this.height = height;
    this.ratio = window.devicePixelRatio || 1;
    for (const { canvas } of [this.base, this.overlay]) {
      canvas.width = Math.round(width * this.ratio);
      canvas.height = Math.round(height * this.ratio);
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
    }
    this.draw();
  }

  /** @param view in cells */
  show(picture: Picture, view: Viewport, marks: Mark[]): void {
    const previous = this.picture;
    if (previous?.matrix !== picture.matrix || previous.scale !== picture.scale) {
      this.codes = encodeCells(picture.matrix.values, picture.scale);
      const unit = picture.scale.toUnit(picture.median);
      this.priorities = codePriorities(Number.isFinite(unit) ? unit : 0);
    }
    this.colors = codeColors(picture.scale, picture.palette, stateColors(picture.dark, picture.palette));
    this.picture = picture;
    this.view = view;
    this.marks = marks;
    this.draw();
  }

  /** Where the cells are, in CSS pixels. */
  get plot(): { left: number; top: number; width: number; height: number } {
    return { left: this.left, top: TOP, width: this.plotWidth, height: this.plotHeight };
  }

  /** The row and column at a point; each undefined outside its axis. Points in a margin hit the other axis alone. */
  hit(x: number, y: number): Hit {
    if (!this.picture) return {};
    const { rows, columns } = this.picture.matrix;
    const across = (x - this.left) / this.plotWidth;
    const down = (y - TOP) / this.plotHeight;
    const hit: Hit = {};
    if (across >= 0 && across < 1 && y >= TOP) {
      const column = Math.floor(this.view.left + across * (this.view.right - this.view.left));
      if (column >= 0 && column < columns) hit.column = column;
    }
    if (down >= 0 && down < 1 && x < this.left + this.plotWidth) {
      const row = Math.floor(this.view.top + down * (this.view.bottom - this.view.top));
      if (row >= 0 && row < rows) hit.row = row;
    }
    return hit;
  }

  /** The rectangle of a cell in CSS pixels, cut to the plot. */
  cellRectangle({ row, column }: CellPlace): { x: number; y: number; width: number; height: number } {
    const across = this.plotWidth / (this.view.right - this.view.left);
    const down = this.plotHeight / (this.view.bottom - this.view.top);
    const x0 = Math.max(this.left, this.left + (column - this.view.left) * across);
    const x1 = Math.min(this.left + this.plotWidth, this.left + (column + 1 - this.view.left) * across);
    const y0 = Math.max(TOP, TOP + (row - this.view.top) * down);
    const y1 = Math.min(TOP + this.plotHeight, TOP + (row + 1 - this.view.top) * down);
    return { x: x0, y: y0, width: x1 - x0, height: y1 - y0 };
  }

  /** Draws the cursor, or a box being dragged. */
  drawOverlay(cursor: Hit, box?: { x0: number; y0: number; x1: number; y1: number }): void {
    const { overlay: g, ratio } = this;
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    g.clearRect(0, 0, this.width, this.height);
    if (!this.picture) return;
    const ink = this.picture.dark ? "#fff" : "#000";
    const paper = this.picture.dark ? "#000" : "#fff";
    if (box) {
      g.strokeStyle = ink;
      g.setLineDash([4, 3]);
      g.strokeRect(
        Math.min(box.x0, box.x1) + 0.5,
        Math.min(box.y0, box.y1) + 0.5,
        Math.abs(box.x1 - box.x0),
        Math.abs(box.y1 - box.y0),
      );
      g.setLineDash([]);
      return;
    }
    if (cursor.row === undefined || cursor.column === undefined) return;
    const cell = this.cellRectangle({ row: cursor.row, column: cursor.column });
    if (cell.width <= 0 || cell.height <= 0) return;
    // A cell of less than a pixel gets a ring around it.
    const grow = Math.max(0, (5 - Math.min(cell.width, cell.height)) / 2);
    const [x, y, w, h] = [cell.x - grow, cell.y - grow, cell.width + 2 * grow, cell.height + 2 * grow];
    g.lineWidth = 3;
    g.strokeStyle = paper;
    g.strokeRect(x, y, w, h);
    g.lineWidth = 1.5;
    g.strokeStyle = ink;
    g.strokeRect(x, y, w, h);
    g.fillStyle = ink;
    g.fillRect(this.left - TICK - 1, cell.y, TICK, Math.max(1, cell.height));
    g.fillRect(cell.x, TOP + this.plotHeight + 1, Math.max(1, cell.width), TICK);
  }

  private draw(): void {
    const { base: g, picture, ratio } = this;
    g.setTransform(1, 0, 0, 1, 0, 0);
    g.clearRect(0, 0, g.canvas.width, g.canvas.height);
    if (!picture || this.width < 80 || this.height < 80) return;
    const { rows, columns } = picture.matrix;
    g.font = FONT;
    this.gutter = this.measureGutter(picture);
    this.left = this.gutter.width;
    const bottom = (picture.columnAxis.detail ? 2 : 1) * (FONT_SIZE + 2) + FONT_SIZE + 14;
    this.plotWidth = this.width - this.left - RIGHT;
    this.plotHeight = Math.min(this.height - TOP - bottom, rows * MAX_CELL_HEIGHT);
    if (this.plotWidth < 1 || this.plotHeight < 1) return;

    const width = Math.max(1, Math.round(this.plotWidth * ratio));
    const height = Math.max(1, Math.round(this.plotHeight * ratio));
    const image = g.createImageData(width, height);
    drawCells(
      this.codes,
      rows,
      columns,
      this.view,
      width,
      height,
      this.priorities,
      this.colors,
      new Uint32Array(image.data.buffer),
    );
    g.putImageData(image, Math.round(this.left * ratio), Math.round(TOP * ratio));

    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.drawCellTexts(picture);
    this.drawFrame(picture);
    this.drawRowAxis(picture);
    this.drawColumnAxis(picture);
    this.drawMarks();
  }

  /** As wide as the longest label, at most a share of the canvas; longer labels lose what they all begin with. */
  private measureGutter({ rowAxis, matrix: { rows } }: Picture): Gutter {
    const known = this.gutter;
    if (known?.canvasWidth === this.width && known.axis === rowAxis) return known;
    const limit = this.width * GUTTER_SHARE;
    const stride = Math.max(1, Math.floor(rows / 500));
    const longest = (cut: number) => {
      let width = 0;
      for (let row = 0; row < rows; row += stride) {
        width = Math.max(width, this.base.measureText(rowAxis.label(row).slice(cut)).width);
      }
      return width;
    };
    let prefix = "";
    let width = longest(0);
    if (width > limit && rowAxis.prefix) {
      prefix = rowAxis.prefix;
      width = longest(prefix.length);
    }
    return {
      axis: rowAxis,
      canvasWidth: this.width,
      width: Math.ceil(Math.min(limit, width) + TICK + 8),
      prefix,
    };
  }

  private ink(strength: "strong" | "weak"): string {
    const dark = this.picture?.dark ?? false;
    if (strength === "strong") return dark ? "#e8e8e8" : "#222";
    return dark ? "#a6a6a6" : "#616161";
  }

  private drawFrame(picture: Picture): void {
    const g = this.base;
    g.strokeStyle = picture.dark ? "#777" : "#999";
    g.lineWidth = 1;
    g.strokeRect(this.left - 0.5, TOP - 0.5, this.plotWidth + 1, this.plotHeight + 1);
  }

  private drawRowAxis(picture: Picture): void {
    const g = this.base;
    const { top, bottom } = this.view;
    const pitch = this.plotHeight / (bottom - top);
    const stride = Math.max(1, Math.ceil(ROW_PITCH / pitch));
    const room = this.left - TICK - 8;
    const prefix = this.gutter?.prefix ?? "";
    const measure = (label: string) => g.measureText(label).width;
    g.fillStyle = this.ink("strong");
    g.strokeStyle = picture.dark ? "#777" : "#999";
    g.textAlign = "right";
    g.textBaseline = "middle";
    const first = Math.ceil(Math.floor(top) / stride) * stride;
    for (let row = first; row < Math.min(bottom, picture.matrix.rows); row += stride) {
      const y = TOP + (row + 0.5 - top) * pitch;
      if (y < TOP + FONT_SIZE / 2 - 2 || y > TOP + this.plotHeight - FONT_SIZE / 2 + 2) continue;
      const label = picture.rowAxis.label(row).slice(prefix.length);
      g.fillText(elideMiddle(label, room, measure), this.left - TICK - 3, y + 0.5);
      g.beginPath();
      g.moveTo(this.left - TICK, Math.round(y) + 0.5);
      g.lineTo(this.left - 1, Math.round(y) + 0.5);
      g.stroke();
    }
    g.fillStyle = this.ink("weak");
    g.textBaseline = "alphabetic";
    g.textAlign = "left";
    const title = prefix === "" ? picture.rowAxis.title : `${picture.rowAxis.title}: ${prefix}…`;
    g.fillText(elideMiddle(`${title} ↓`, this.width - 6, measure), 2, TOP - 7);
  }

  private drawColumnAxis(picture: Picture): void {
    const g = this.base;
    const { left, right } = this.view;
    const pitch = this.plotWidth / (right - left);
    const { label, detail, title } = picture.columnAxis;
    const last = picture.matrix.columns - 1;
    let widest = 0;
    for (const column of [0, Math.floor(last / 2), last]) {
      widest = Math.max(
        widest,
        g.measureText(label(column)).width,
        detail ? g.measureText(detail(column)).width : 0,
      );
    }
    const stride = niceStride((widest + 14) / pitch);
    const base = TOP + this.plotHeight;
    g.strokeStyle = picture.dark ? "#777" : "#999";
    g.textAlign = "center";
    g.textBaseline = "top";
    const first = Math.ceil(Math.floor(left) / stride) * stride;
    for (let column = first; column < Math.min(right, picture.matrix.columns); column += stride) {
      const x = this.left + (column + 0.5 - left) * pitch;
      if (x < this.left || x > this.left + this.plotWidth) continue;
      g.beginPath();
      g.moveTo(Math.round(x) + 0.5, base + 1);
      g.lineTo(Math.round(x) + 0.5, base + TICK);
      g.stroke();
      g.fillStyle = this.ink("strong");
      g.fillText(label(column), x, base + TICK + 2);
      if (detail) {
        g.fillStyle = this.ink("weak");
        g.fillText(detail(column), x, base + TICK + 2 + FONT_SIZE + 2);
      }
    }
    g.fillStyle = this.ink("weak");
    const titleTop = base + TICK + 4 + (detail ? 2 : 1) * (FONT_SIZE + 2);
    const half = g.measureText(title).width / 2;
    g.fillText(
      title,
      Math.min(this.width - half - 2, this.left + Math.max(this.plotWidth / 2, half)),
      titleTop,
    );
  }

  /** Values inside the cells, as soon as there is room for them. */
  private drawCellTexts(picture: Picture): void {
    const { left, right, top, bottom } = this.view;
    const across = this.plotWidth / (right - left);
    const down = this.plotHeight / (bottom - top);
    if (across < TEXT_MIN_WIDTH || down < TEXT_MIN_HEIGHT) return;
    const g = this.base;
    const { rows, columns, values } = picture.matrix;
    g.save();
    g.beginPath();
    g.rect(this.left, TOP, this.plotWidth, this.plotHeight);
    g.clip();
    g.textAlign = "center";
    g.textBaseline = "middle";
    for (let row = Math.floor(top); row < Math.min(bottom, rows); ++row) {
      for (let column = Math.floor(left); column < Math.min(right, columns); ++column) {
        const index = row * columns + column;
        if (stateOf(values, index) === State.Missing) continue;
        g.fillStyle = textColorOn(unpacked(this.colors[this.codes[index]]));
        g.fillText(
          formatNumber(values[index], across < 60 ? 3 : 4),
          this.left + (column + 0.5 - left) * across,
          TOP + (row + 0.5 - top) * down + 0.5,
        );
      }
    }
    g.restore();
  }

  private drawMarks(): void {
    const g = this.base;
    for (const mark of this.marks) {
      const { left, right, top, bottom } = this.view;
      if (mark.column + 1 <= left || mark.column >= right || mark.row + 1 <= top || mark.row >= bottom)
        continue;
      const cell = this.cellRectangle(mark);
      const grow = Math.max(0, (7 - Math.min(cell.width, cell.height)) / 2);
      const rectangle = [
        cell.x - grow,
        cell.y - grow,
        cell.width + 2 * grow,
        cell.height + 2 * grow,
      ] as const;
      g.lineWidth = 4;
      g.strokeStyle = this.picture?.dark ? "#000" : "#fff";
      g.strokeRect(...rectangle);
      g.lineWidth = 2;
      g.strokeStyle = mark.color;
      g.strokeRect(...rectangle);
    }
  }

  /** The color that a cell is drawn in. */
  cellColor({ row, column }: CellPlace): string {
    if (!this.picture) return "transparent";
    return css(unpacked(this.colors[this.codes[row * this.picture.matrix.columns + column]]));
  }
}

function niceStride(atLeast: number): number {
  if (atLeast <= 1) return 1;
  const power = 10 ** Math.floor(Math.log10(atLeast));
  for (const factor of [1, 2, 4, 5, 10]) {
    const stride = Math.max(1, Math.round(factor * power));
    if (stride >= atLeast) return stride;
  }
  return 10 * power;
}

function context(canvas: HTMLCanvasElement): CanvasRenderingContext2D {
  const result = canvas.getContext("2d");
  if (!result) throw new Error("This browser has no 2D canvas");
  return result;
}
