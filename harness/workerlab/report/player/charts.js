"use strict";
// Three charts over time: throughput, response time and queue length, each with the law's prediction
// as a dashed line. They are redrawn when a sample is added.
(() => {
  const Lab = (window.Lab = window.Lab || {});
  const { make, amount } = Lab;
  const WINDOW_MS = 30000;
  const MAX_SAMPLES = 2000; // per side
  const LEFT = 34,
    RIGHT = 8,
    TOP = 7,
    BOTTOM = 16;
  const HUES = ["class-1", "class-2"];

  const CHARTS = [
    {
      title: "Throughput",
      unit: "/s",
      lines: ["rps"],
      law: (side) => side.law.rps,
      suffix: ({ law, model }) =>
        law.knee && model === "closed"
          ? `; knee at ${amount(law.knee, law.knee % 1 ? 1 : 0)} client${law.knee === 1 ? "" : "s"}`
          : "",
      whyNoLaw: () => "",
    },
    {
      title: "Response time",
      unit: " s",
      lines: ["mean", "p95"],
      law: (side) => side.law.response_s,
      suffix: () => " on average",
      whyNoLaw: ({ law }) => law.why.response_s,
    },
    {
      title: "Accept queue",
      unit: "",
      lines: ["queue"],
      law: (side) => side.law.queue,
      isFull: ({ law, backlog }) => law.queue >= backlog + 1, // a freed position may stay empty
      suffix: () => "",
      whyNoLaw: ({ law }) => law.why.queue,
    },
  ];
  const NO_LAW = { rps: null, knee: null, response_s: null, queue: null, why: {} };

  // Rounds up to 1, 2 or 5 times a power of ten
  function roundUp(value) {
    const power = 10 ** Math.floor(Math.log10(Math.max(value, 1e-3)));
    return [1, 2, 5, 10].map((factor) => factor * power).find((top) => top >= value * 0.999);
  }

  const counted = (value) =>
    value === null || value === undefined ? "–" : amount(value, value % 1 ? 1 : 0);

  // An axis label, which has no room for 10000
  const brief = (value) =>
    value >= 10000 ? `${Number((value / 1000).toPrecision(3))}k` : String(Number(value.toPrecision(3)));

  class Chart {
    constructor(spec) {
      this.spec = spec;
      this.now = make("span", { className: "lab-chart-now" });
      this.law = make("span", { className: "lab-chart-law" });
      this.canvas = make("canvas", { className: "lab-chart-canvas", role: "img" });
      const title = make("span", { className: "lab-chart-title", textContent: spec.title });
      this.element = make(
        "figure",
        { className: "lab-chart" },
        make("figcaption", {}, make("span", {}, title, " ", this.now), this.law),
        this.canvas,
      );
    }

    // `sides`: {name, law, samples: [{t, rps, mean, p95, queue, settled}]}; `cursor`: the current time
    // of a replay, or null
    draw(sides, from, to, cursor, live) {
      this.showText(sides, cursor); // even if there is no room for the lines
      const { canvas } = this,
        width = canvas.clientWidth,
        height = canvas.clientHeight;
      if (!width || !height) return;
      const ratio = Math.min(2, window.devicePixelRatio || 1),
        context = canvas.getContext("2d");
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      const maxValue = roundUp(1.08 * this.maxValue(sides, from, to)),
        colour = Lab.colours(canvas);
      const at = {
        width,
        height,
        maxValue,
        from,
        to,
        live,
        x: (t) => LEFT + ((t - from) / (to - from)) * (width - LEFT - RIGHT),
        y: (value) => height - BOTTOM - (value / maxValue) * (height - BOTTOM - TOP),
      };
      this.axes(context, at, colour);
      sides.forEach((side, i) => this.side(context, at, colour, side, i, sides.length));
      if (cursor !== null)
        this.rule(context, at.x(cursor), TOP, at.x(cursor), height - BOTTOM, colour("link"));
    }

    maxValue(sides, from, to) {
      let maxValue = 0;
      for (const side of sides) {
        maxValue = Math.max(maxValue, this.spec.law(side) ?? 0);
        for (const sample of side.samples) {
          if (sample.t >= from && sample.t <= to)
            for (const name of this.spec.lines) maxValue = Math.max(maxValue, sample[name] ?? 0);
        }
      }
      return maxValue || 1;
    }

    rule(context, x1, y1, x2, y2, colour) {
      context.strokeStyle = colour;
      context.lineWidth = 1;
      context.beginPath();
      context.moveTo(x1, y1);
      context.lineTo(x2, y2);
      context.stroke();
    }

    axes(context, at, colour) {
      context.font =
        '11px system-ui, -apple-system, "Segoe UI", "Liberation Sans", Arial, sans-serif';
      context.fillStyle = colour("soft");
      context.textAlign = "right";
      for (const part of [0, 0.5, 1]) {
        const y = Math.round(at.y(part * at.maxValue)) + 0.5;
        this.rule(context, LEFT, y, at.width - RIGHT, y, colour("line"));
        context.fillText(brief(part * at.maxValue), LEFT - 5, y + 4);
      }
      const y = at.height - 3,
        { live } = at;
      context.fillText(live ? "now" : `${amount(at.to / 1000)} s`, at.width - RIGHT, y);
      context.textAlign = "left";
      context.fillText(live ? `${Math.round((at.to - at.from) / 1000)} s ago` : "0", LEFT, y);
    }

    side(context, at, colour, side, i, count) {
      const law = this.spec.law(side),
        hue = count > 1 ? colour(HUES[i]) : colour("measured");
      context.setLineDash([6, 4]);
      if (law !== null && law !== undefined) {
        this.rule(
          context,
          LEFT,
          at.y(law),
          at.width - RIGHT,
          at.y(law),
          count > 1 ? hue : colour("prediction"),
        );
      }
      context.setLineDash([]);
      context.strokeStyle = context.fillStyle = hue;
      this.spec.lines.forEach((name, k) => {
        context.lineWidth = k ? 1 : 2;
        context.setLineDash(k ? [2, 2] : []);
        const marked = i > 0 && k === 0;
        context.strokeStyle = hue;
        this.line(context, at, side.samples, name, marked, true);
        context.strokeStyle = colour("line");
        this.line(context, at, side.samples, name, marked, false);
      });
      context.setLineDash([]);
    }

    // The second server's line has dots, so that the two are distinguishable without colour.
    // `settled`: true for the part measured under the current load only, false for the rest (grey)
    line(context, at, samples, name, marked, settled) {
      let down = false;
      context.beginPath();
      for (const sample of samples) {
        const value = sample[name],
          other = (sample.settled ?? true) !== settled;
        if (
          other || sample.t < at.from || sample.t > at.to || value === null || value === undefined
        ) {
          down = false;
          continue;
        }
        if (down) context.lineTo(at.x(sample.t), at.y(value));
        else context.moveTo(at.x(sample.t), at.y(value));
        if (marked && sample.serial % 5 === 0) {
          context.rect(at.x(sample.t) - 1.5, at.y(value) - 1.5, 3, 3);
          context.moveTo(at.x(sample.t), at.y(value));
        }
        down = true;
      }
      context.stroke();
    }

    showText(sides, cursor) {
      const multiple = sides.length > 1,
        now = [],
        laws = [],
        remarks = [];
      for (const side of sides) {
        const last = lastBefore(side.samples, cursor),
          sample = side.now ? { ...last, ...side.now } : last,
          law = this.spec.law(side);
        const name = multiple ? `${side.name} ` : "";
        now.push(name + this.value(sample, multiple));
        if (sample && sample.left) remarks.push(`${name}${sample.left} left over from the previous load`);
        if (law !== null && law !== undefined)
          laws.push(
            (this.spec.isFull?.(side) ? `${name}at most ` : name) +
              this.text(law) +
              (multiple ? "" : this.spec.suffix(side)),
          );
        else if (!multiple && this.spec.whyNoLaw(side)) remarks.push(this.spec.whyNoLaw(side));
      }
      this.now.textContent = (multiple && this.spec.lines.length > 1 ? "mean " : "") + now.join(", ");
      if (multiple) this.keyOfColours(sides, now);
      const parts = laws.length ? [`law: ${laws.join(", ")}`, ...remarks] : remarks;
      if (this.spec.lines.length > 1) parts.push("mean: in flight / throughput", "p95 dotted");
      if (this.spec.unit && sides[0]?.recent_s) parts.push(`last ${sides[0].recent_s} s`);
      this.law.textContent = parts.join("; ");
      this.canvas.setAttribute(
        "aria-label",
        `${this.spec.title} over time. Now ${now.join(", ")}. ${this.law.textContent}`,
      );
    }

    // Each server's name has the colour of its line
    keyOfColours(sides, now) {
      const parts = sides.flatMap(({ name }, i) => [
        i ? ", " : this.spec.lines.length > 1 ? "mean " : "",
        make("span", { className: `lab-hue-${i}`, textContent: name }),
        now[i].slice(name.length),
      ]);
      this.now.replaceChildren(...parts);
    }

    text(value) {
      return this.spec.unit
        ? amount(value, value === 0 ? 0 : value < 0.1 ? 3 : value < 1 ? 2 : 1) + this.spec.unit
        : counted(value);
    }

    value(sample, short) {
      if (!sample) return "–";
      const [first, second] = this.spec.lines;
      const text = (name) =>
        sample[name] === null || sample[name] === undefined ? "–" : this.text(sample[name]);
      const settles = sample.settled === false && first !== "queue" ? ", not settled yet" : "";
      return (second && !short ? `mean ${text(first)}, p95 ${text(second)}` : text(first)) + settles;
    }
  }

  function lastBefore(samples, t) {
    if (t === null) return samples[samples.length - 1];
    let last;
    for (const sample of samples) if (sample.t <= t) last = sample;
    return last;
  }

  // ------------------------------------------------------------------ all three

  // `length`: that of the trace in ms; null: live, showing the last half minute
  Lab.Charts = class {
    constructor(element, { length = null } = {}) {
      this.length = length;
      this.at = length === null ? null : 0;
      this.sides = [];
      this.serial = 0;
      this.charts = CHARTS.map((spec) => new Chart(spec));
      element.replaceChildren(...this.charts.map((chart) => chart.element));
      this.draw = this.draw.bind(this);
      new ResizeObserver(() => this.refresh()).observe(element);
      matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.refresh());
    }

    // `sides`: {name, law, model, recent_s, backlog}; sides that stay keep their samples
    configure(sides) {
      this.sides = sides.map((side, i) => ({
        ...side,
        law: side.law || NO_LAW,
        samples: this.sides[i] ? this.sides[i].samples : [],
      }));
      this.refresh();
    }

    add(i, t, sample) {
      const side = this.sides[i];
      if (!side) return;
      side.samples.push({ t, serial: this.serial++, ...sample });
      if (side.samples.length > MAX_SAMPLES) side.samples.splice(0, MAX_SAMPLES / 4);
      this.refresh();
    }

    // A restarted server's lines begin again
    interrupt(i) {
      if (this.sides[i]) this.sides[i].samples.length = 0;
      this.refresh();
    }

    clear() {
      for (const side of this.sides) side.samples.length = 0;
      this.refresh();
    }

    // `now`: for each side, the values at that time that are newer than its last sample
    cursor(t, now) {
      this.at = t;
      this.sides.forEach((side, i) => {
        side.now = now[i];
      });
      this.draw();
    }

    refresh() {
      if (!this.frame) this.frame = requestAnimationFrame(this.draw);
    }

    // Draws immediately, so that the charts agree with the numbers next to them
    draw() {
      if (this.frame) cancelAnimationFrame(this.frame);
      this.frame = 0;
      let [from, to] = [0, this.length];
      if (to === null) {
        to = Math.max(
          0,
          ...this.sides.map(({ samples }) => (samples.length ? samples[samples.length - 1].t : 0)),
        );
        from = to - WINDOW_MS;
      }
      for (const chart of this.charts)
        chart.draw(this.sides, from, to, this.at, this.length === null);
    }
  };
})();
