// Takes a picture of the TREND ANALYZER tab of a running TensorBoard, once its heat map is drawn.
//
// usage: node screenshot.mjs URL FILE.png [--size WIDTHxHEIGHT] [NAME=VALUE...]
//
// NAME=VALUE are parts of the page's address: db, metric, stat, dim (step, rank, target), step, rank, module, line.
// The exit status is 1, with the reason on standard error, when there is no heat map within 60 seconds.
import process from "node:process";

import { launchChromium } from "./chromium.mjs";

const MILLISECONDS = 60_000;

function parseArguments(words) {
  const options = { width: 1600, height: 1000, view: [] };
  const places = [];
  while (words.length > 0) {
    const word = words.shift();
    if (word === "--size") {
      const match = /^(\d{2,5})x(\d{2,5})$/.exec(words.shift() ?? "");
      if (!match) throw new Error("--size needs WIDTHxHEIGHT, such as 1600x1000");
      [options.width, options.height] = [Number(match[1]), Number(match[2])];
    } else if (places.length < 2) places.push(word);
    else if (/^\w+=/.test(word)) options.view.push(word);
    else throw new Error(`unexpected argument ${word}`);
  }
  if (places.length < 2)
    throw new Error("usage: node screenshot.mjs URL FILE.png [--size WIDTHxHEIGHT] [NAME=VALUE...]");
  return { ...options, url: new URL(places[0]), file: places[1] };
}

async function takeScreenshot({ url, file, width, height, view }) {
  const browser = await launchChromium();
  try {
    const page = await browser.newPage({ viewport: { width, height } });
    const parts = view.map((part) => {
      const equals = part.indexOf("=");
      return `&p.trendprobe.${part.slice(0, equals)}=${encodeURIComponent(part.slice(equals + 1))}`;
    });
    url.hash = `trendprobe${parts.join("")}`;
    await page.goto(url.href, { timeout: MILLISECONDS });
    const frame = await (await page.waitForSelector("iframe", { timeout: MILLISECONDS })).contentFrame();
    const selector = ".map-section[aria-busy=false] .heat-map[data-drawn], .message[role=alert]";
    const found = await frame.waitForSelector(selector, { timeout: MILLISECONDS });
    const lines = view.filter((part) => part.startsWith("line=")).length;
    await frame.waitForFunction(
      (count) =>
        document.querySelectorAll(".line-legend li").length >= count &&
        document.querySelectorAll(".line-legend .legend-note").length === 0,
      lines,
      { timeout: MILLISECONDS },
    );
    // Two frames: the browser has painted what the script drew.
    await frame.evaluate(
      () => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(() => resolve()))),
    );
    await page.screenshot({ path: file });
    if (await found.evaluate((element) => element.classList.contains("message"))) {
      throw new Error(
        `there is no heat map: ${(await found.innerText()).replaceAll("\n", " ")} (see ${file})`,
      );
    }
  } finally {
    await browser.close();
  }
}

try {
  await takeScreenshot(parseArguments(process.argv.slice(2)));
} catch (error) {
  process.stderr.write(`screenshot: ${error.message}\n`);
  process.exitCode = 1;
}
