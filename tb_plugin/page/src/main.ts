// Entry point: TensorBoard imports this module into an empty frame and calls render().

import { h, render as renderTree } from "preact";

import { App } from "./app";
import plotStyle from "uplot/dist/uPlot.min.css";

import style from "./style.css";

export function render(): void {
  const sheet = document.createElement("style");
  sheet.textContent = plotStyle + style;
  document.head.append(sheet);
  document.documentElement.lang = "en";
  document.title = "Trend Analyzer";
  renderTree(h(App, {}), document.body);
}
