// The page as a user handles it: choose, point, click, read.

const SETTLE_MILLISECONDS = 30_000;

export class TrendPage {
  /**
   * Opens the plugin's tab in a new browser page.
   * @param view parts of the address as the page itself writes them: {db: "run.trend.db", dim: "rank"}
   */
  static async open(browser, url, view = {}, { query = "", prepare = async () => {} } = {}) {
    const page = await browser.newPage({ viewport: { width: 1400, height: 900 } });
    const problems = [];
    page.on("pageerror", (error) => problems.push(String(error)));
    page.on("console", (message) => {
      if (message.type() === "error") problems.push(`${message.text()} (${message.location().url})`);
    });
    // What is written on canvases, so that a test can read the axes.
    await page.addInitScript(() => {
      const original = CanvasRenderingContext2D.prototype.fillText;
      CanvasRenderingContext2D.prototype.fillText = function (text, x, y, ...rest) {
        const { a, d } = this.getTransform();
        (this.canvas.writtenTexts ??= []).push({ text, x: x * a, y: y * d });
        return original.call(this, text, x, y, ...rest);
      };
      const clear = CanvasRenderingContext2D.prototype.clearRect;
      CanvasRenderingContext2D.prototype.clearRect = function (...rectangle) {
        this.canvas.writtenTexts = [];
        return clear.apply(this, rectangle);
      };
    });
    await prepare(page);
    const hash = Object.entries(view).map(
      ([name, value]) => `&p.trendprobe.${name}=${encodeURIComponent(value)}`,
    );
    await page.goto(`${url}${query}#trendprobe${hash.join("")}`);
    const element = await page.waitForSelector("iframe", { timeout: SETTLE_MILLISECONDS });
    const frame = await element.contentFrame();
    await frame.waitForSelector(".heat-map[data-drawn], .message[role=alert]", {
      timeout: SETTLE_MILLISECONDS,
    });
    return new TrendPage(page, frame, problems);
  }

  constructor(page, frame, problems) {
    this.page = page;
    this.frame = frame;
    /** Errors on the console so far. */
    this.problems = problems;
  }

  async close() {
    await this.page.close();
  }

  /** Waits until the map with this title is drawn and nothing is loading. */
  async drawn(title) {
    const wanted = title === undefined ? "[data-drawn]" : `[data-drawn="${title}"]`;
    await this.frame.waitForSelector(`.map-section[aria-busy=false] .heat-map${wanted}`, {
      timeout: SETTLE_MILLISECONDS,
    });
  }

  /** What the map says about itself: title, numbers of rows and columns, plot in CSS pixels. */
  async map() {
    return await this.frame.$eval(".heat-map", (element) => {
      const numbers = (text) => text.split(",").map(Number);
      const { drawn, rows, columns, plot, view } = element.dataset;
      return {
        title: drawn,
        rows: Number(rows),
        columns: Number(columns),
        plot: numbers(plot),
        view: numbers(view),
      };
    });
  }

  /** A point of the page in the middle of a cell. */
  async cellCenter(row, column) {
    const { plot, view } = await this.map();
    const [left, top, width, height] = plot;
    const [fromColumn, toColumn, fromRow, toRow] = view;
    const box = await (await this.frame.$(".heat-map")).boundingBox();
    return {
      x: box.x + left + ((column + 0.5 - fromColumn) / (toColumn - fromColumn)) * width,
      y: box.y + top + ((row + 0.5 - fromRow) / (toRow - fromRow)) * height,
    };
  }

  async pointAt(row, column) {
    const { x, y } = await this.cellCenter(row, column);
    await this.page.mouse.move(x, y);
  }

  /** Points at a row's name on the axis. */
  async pointAtName(row) {
    const { plot } = await this.map();
    const box = await (await this.frame.$(".heat-map")).boundingBox();
    const { y } = await this.cellCenter(row, 0);
    await this.page.mouse.move(box.x + plot[0] - 20, y);
  }

  async clickCell(row, column) {
    const { x, y } = await this.cellCenter(row, column);
    await this.page.mouse.click(x, y);
  }

  /** The map's tooltip as lines of text, once it holds `expected`. */
  async tooltip(expected) {
    const tooltip = this.frame.locator(".heat-map .tooltip", { hasText: expected });
    await tooltip.waitFor({ timeout: SETTLE_MILLISECONDS });
    return (await tooltip.innerText()).split("\n");
  }

  /** The value in bold in the map's tooltip, once that holds `expected`. */
  async tooltipValue(expected) {
    await this.tooltip(expected);
    return await this.frame.locator(".heat-map .tooltip-value strong").innerText();
  }

  /** The color of the middle of a cell, as [r, g, b]. */
  async cellColor(row, column) {
    const { x, y } = await this.cellCenter(row, column);
    const box = await (await this.frame.$(".heat-map")).boundingBox();
    return await this.frame.$eval(
      ".map-cells",
      (canvas, point) => {
        const pixel = canvas.getContext("2d").getImageData(point.x, point.y, 1, 1).data;
        return [...pixel.subarray(0, 3)];
      },
      { x: Math.floor(x - box.x), y: Math.floor(y - box.y) },
    );
  }

  /** Names on the map's row axis: [{text, y}] from top to bottom, y in CSS pixels. */
  async rowNames() {
    const { plot } = await this.map();
    const texts = await this.frame.$eval(".map-cells", (canvas) => canvas.writtenTexts);
    return texts.filter(({ x, y }) => x <= plot[0] && y >= plot[1]).sort((a, b) => a.y - b.y);
  }

  /** Chooses from one of the selectors (database, metric, statistic, value) by its label. */
  async choose(name, label) {
    await this.frame.click(`.select[data-name=${name}]`);
    const search = this.frame.locator(".popup input");
    if (await search.count()) await search.fill(label);
    await this.frame
      .locator(".popup [role=option]")
      .filter({ has: this.frame.locator(".option-label", { hasText: new RegExp(`^${escaped(label)}$`) }) })
      .click();
  }

  /** The labels that a selector offers (as many as its list draws). */
  async options(name) {
    await this.frame.click(`.select[data-name=${name}]`);
    const labels = await this.frame.locator(".popup .option-label").allInnerTexts();
    await this.page.keyboard.press("Escape");
    return labels;
  }

  async viewBy(dimension) {
    await this.frame.locator(".segments label", { hasText: new RegExp(`^${dimension}$`) }).click();
  }

  /** The legend's count of a state: number, missing, notANumber, plusInfinity, minusInfinity. */
  async count(state) {
    const text = await this.frame.locator(`.legend-count[data-state=${state}]`).innerText();
    return Number(text.replaceAll(",", ""));
  }

  /** The names in the line chart's legend, once there are so many of them, loaded. */
  async lines(count) {
    await this.frame.waitForFunction(
      (wanted) =>
        document.querySelectorAll(".line-legend li").length === wanted &&
        document.querySelectorAll(".line-legend .legend-note").length === 0,
      count,
      { timeout: SETTLE_MILLISECONDS },
    );
    return await this.frame
      .locator(".line-legend .legend-toggle")
      .evaluateAll((list) => list.map((b) => b.title));
  }

  /** Points at a place of the chart's x axis, from 0 (left) to 1, and returns its tooltip as rows of text. */
  async pointAtChart(share) {
    const box = await (await this.frame.waitForSelector(".line-plot .u-over")).boundingBox();
    // One pixel inside: the edges themselves belong to nobody.
    await this.page.mouse.move(box.x + 1 + share * (box.width - 2), box.y + box.height / 2);
    const tooltip = this.frame.locator(".chart-tooltip");
    await tooltip.waitFor({ timeout: SETTLE_MILLISECONDS });
    const title = await tooltip.locator(".tooltip-name").innerText();
    const values = await tooltip.locator("strong").allInnerTexts();
    return { title, values };
  }

  /** How many pixels of the chart have a line's color. */
  async chartPixels(position) {
    return await this.frame.evaluate((index) => {
      const swatch = document.querySelectorAll(".line-legend .line-swatch")[index];
      const [r, g, b] = getComputedStyle(swatch).backgroundColor.match(/\d+/g).map(Number);
      const canvas = document.querySelector(".line-plot canvas");
      const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      let found = 0;
      for (let i = 0; i < data.length; i += 4) {
        if (data[i] === r && data[i + 1] === g && data[i + 2] === b && data[i + 3] === 255) found++;
      }
      return found;
    }, position);
  }
}

function escaped(text) {
  return text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
}
