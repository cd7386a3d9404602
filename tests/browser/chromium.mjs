// The system's Chromium, driven by Playwright's library alone: no browser is downloaded.
import { existsSync } from "node:fs";
import process from "node:process";

import { chromium } from "playwright-core";

const PLACES = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];

/** Starts the browser; the caller closes it. TRENDPROBE_CHROMIUM names another one than the system's. */
export async function launchChromium() {
  const executablePath = process.env.TRENDPROBE_CHROMIUM ?? PLACES.find(existsSync);
  if (!executablePath) {
    throw new Error(
      "No Chromium: install the package chromium, or set TRENDPROBE_CHROMIUM to a Chromium or Chrome",
    );
  }
  return await chromium.launch({
    executablePath,
    args: [
      "--headless",
      "--no-sandbox",
      "--disable-gpu",
      "--disable-quic",
      "--no-first-run",
      "--disable-background-networking",
      "--disable-component-update",
      "--disable-sync",
    ],
  });
}
