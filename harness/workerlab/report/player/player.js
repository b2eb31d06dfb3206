"use strict";
// Replays a trace of one or two servers. Lab.player(element, trace) adds the picture, and controls
// for play, pause, restart, position and speed; a page may have several players. The drawing loop,
// the track of moves, and the legend are shared with the live page.
(() => {
  const Lab = (window.Lab = window.Lab || {});
  const STEP_MS = 200; // between two frames if the user prefers reduced motion
  const UPDATE_MS = 200; // between two updates of picture, numbers, words and charts
  const ANNOUNCE_MS = 3000; // between two announcements to screen readers
  const MIN_VISIBLE_MS = 300; // the eye can follow a request that takes at least this long
  const SPEEDS = [0.1, 0.25, 0.5, 1, 2, 4];
  const calm = matchMedia("(prefers-reduced-motion: reduce)");

  Lab.calm = () => calm.matches;

  // Creates an element with attributes (or properties) and content
  Lab.make = (name, attributes = {}, ...content) => {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (key in element && key !== "list" && key !== "role") element[key] = value;
      else element.setAttribute(key, value);
    }
    element.append(...content);
    return element;
  };

  Lab.button = (textContent, onclick) =>
    Lab.make("button", { type: "button", className: "lab-button", textContent, onclick });

  // ------------------------------------------------------------------ shared with the live page

  // Calls step(now, dt) once per frame while the element is visible and step returns true
  Lab.Loop = class {
    constructor(element, step) {
      this.step = step;
      this.seen = true;
      this.frame = this.timer = 0;
      this.last = 0;
      this.run = this.run.bind(this);
      new IntersectionObserver((entries) => {
        this.seen = entries[entries.length - 1].isIntersecting;
        if (this.seen) this.wake();
      }).observe(element);
      document.addEventListener("visibilitychange", () => this.wake());
    }

    wake() {
      if (this.frame || this.timer) return;
      this.last = performance.now();
      this.more();
    }

    more() {
      if (!this.seen || document.hidden) return;
      if (!calm.matches) this.frame = requestAnimationFrame(this.run);
      else this.timer = setTimeout(() => this.run(performance.now()), STEP_MS);
    }

    run(now) {
      this.frame = this.timer = 0;
      if (!this.seen || document.hidden) return;
      const dt = Math.min(now - this.last, 1000);
      this.last = now;
      if (this.step(now, Math.max(0, dt))) this.more();
    }
  };

  // The moves of one side in order of time. Passes moves to a scene when they are due
  Lab.Track = class {
    constructor(scene, moves = []) {
      this.scene = scene;
      this.moves = moves;
      this.next = 0;
    }

    get due() {
      return this.next < this.moves.length;
    }

    add(moves) {
      if (this.next > 20000) {
        this.moves.splice(0, this.next);
        this.next = 0;
      }
      for (const move of moves) this.moves.push(move);
    }

    // Returns whether any move was due
    upTo(t) {
      const before = this.next;
      this.scene.now = t;
      while (this.next < this.moves.length && this.moves[this.next][3] <= t) {
        const [id, place, worker, at] = this.moves[this.next++];
        this.scene.move(id, place, worker, at);
      }
      return this.next > before;
    }

    // Replays all moves from the beginning, because the time may have gone back
    seek(t) {
      this.scene.clear();
      this.next = 0;
      this.upTo(t);
      this.scene.crowd.leaving.length = 0;
    }
  };

  // Sets the text of an element at most once per `intervalMs`, always to the newest words
  class ThrottledText {
    constructor(element, intervalMs) {
      this.element = element;
      this.intervalMs = intervalMs;
      this.last = -Infinity;
      this.timer = 0;
    }

    set(words, atOnce) {
      this.words = words;
      const wait = Math.max(0, this.last + this.intervalMs - performance.now());
      if (atOnce) clearTimeout(this.timer);
      if (atOnce) this.update();
      else if (!this.timer) this.timer = setTimeout(() => this.update(), wait);
    }

    update() {
      this.timer = 0;
      this.last = performance.now();
      if (this.words !== this.element.textContent) this.element.textContent = this.words;
    }
  }

  // Text that changes all the time: shown at once, announced to screen readers at intervals
  Lab.StatusText = class {
    constructor(element) {
      this.shown = Lab.make("span", { ariaHidden: "true" });
      const spoken = Lab.make("span", { className: "lab-spoken", role: "status" });
      element.replaceChildren(this.shown, spoken);
      this.announcement = new ThrottledText(spoken, ANNOUNCE_MS);
    }

    set(words, atOnce = false) {
      if (this.shown.textContent !== words) this.shown.textContent = words;
      this.announcement.set(words, atOnce);
    }
  };

  // One timer for everything on display: `due` is true once per UPDATE_MS
  Lab.UpdateTimer = class {
    constructor() {
      this.next = 0;
    }

    due(now) {
      if (now < this.next) return false;
      this.next = now + UPDATE_MS;
      return true;
    }
  };
  Lab.UPDATE_MS = UPDATE_MS;

  Lab.legend = () => {
    const entries = [
      ["connect", "connecting (hollow: SYN retransmitted)"],
      ["accept-queue", "in the accept queue"],
      ["in-worker", "accepted, not yet in the app (hollow: inferred)"],
      ["service", "in the app"],
      ["abandoned", "faded: its client has given up"],
      ["transfer", "answered"],
      ["failed", "failed"],
      ["sockets", "idle connection"],
    ];
    const list = Lab.make("ul", { className: "lab-legend" });
    for (const [mark, words] of entries) {
      list.append(
        Lab.make(
          "li",
          {},
          Lab.make("span", { className: `lab-mark lab-mark-${mark}`, ariaHidden: "true" }),
          words,
        ),
      );
    }
    return list;
  };

  const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

  // The causes of failures, most frequent first
  const CAUSES = { unsent: "not sent because 1000 were in flight", gave_up: "given up" };
  function causesText(causes) {
    const entries = Object.entries(causes).sort(([, a], [, b]) => b - a);
    return entries.length
      ? ` (${entries.map(([cause, count]) => `${count} ${CAUSES[cause] || cause}`).join(", ")})`
      : "";
  }

  // If all cores are busy, the law of the slots does not hold
  const MIN_FULL_SHARE = 0.95; // of the cores
  function fullText({ server, load, lab, machine }, cores) {
    if (!(machine >= MIN_FULL_SHARE * cores)) return "";
    const rest = Math.max(0, machine - server - load - lab),
      parts = { server, load, workerlab: lab, "everything else, including this page": rest };
    const shares = Object.entries(parts).map(([name, used]) => `${name} ${amountOf(used)}`);
    return `all ${amountOf(cores)} cores are busy: ${shares.join(", ")}`;
  }
  const amountOf = (used) => Lab.amount(used, used % 1 ? 1 : 0);

  // The picture in words. `sample`: the latest one, or null
  Lab.inWords = (scene, sample, cores) => {
    const figures = scene.numbers(),
      { rps = null, left = 0, busy = null, settled = true } = sample || {},
      where = [];
    if (figures.served) where.push(`${figures.served} in the app`);
    if (figures.queued) where.push(`${figures.queued} in the accept queue`);
    if (figures.accepted) where.push(`${figures.accepted} accepted, not yet in the app`);
    if (figures.connecting) where.push(`${figures.connecting} connecting`);
    const { crowd } = scene,
      part = [];
    if (left) part.push(`, ${Math.min(left, figures.underWay)} of them left over from the previous load`);
    if (figures.abandoned) part.push(`, ${figures.abandoned} of them abandoned by their clients`);
    if (figures.underWay > crowd.underWay) part.push(`, ${crowd.underWay} of them drawn`);
    const places = where.length ? `: ${where.join(", ")}` : "";
    const words = [`${plural(figures.underWay, "request")} in flight${part.join("")}${places}`];
    if (rps !== null)
      words.push(`${Lab.amount(rps)} requests/s${settled ? "" : ", not settled yet"}`);
    if (busy && fullText(busy, cores)) words.push(fullText(busy, cores));
    if (crowd.stay !== null && crowd.stay * scene.pace < MIN_VISIBLE_MS && figures.underWay)
      words.push(`each is in the app too briefly to be seen${scene.pace < 10 ? ": slow it down" : ""}`);
    if (figures.idle) words.push(plural(figures.idle, "idle connection"));
    if (figures.failed) words.push(`${figures.failed} failed${causesText(figures.causes)}`);
    return words.join("; ");
  };

  // `backlog`: the effective one, if it differs from the server's setting
  Lab.settingsText = ({ server, backlog = server.backlog }) => {
    const { worker_class: name, workers, threads } = server;
    const thread = name === "gthread" ? `, ${plural(threads, "thread")}` : "";
    const each = thread && workers > 1 ? " each" : "";
    return `${name}: ${plural(workers, "worker")}${thread}${each}, backlog ${backlog}`;
  };

  // The elements of one side: heading, picture, and a sentence. The sentence is below the picture, so
  // its length does not move the picture
  Lab.sidePicture = (level = 3) => {
    const title = Lab.make(`h${level}`, { className: "lab-side-title" });
    const sentence = Lab.make("p", { className: "lab-side-sentence" });
    const canvas = Lab.make("canvas", { className: "lab-scene", role: "img" });
    canvas.setAttribute("aria-label", "picture of the requests in flight");
    const element = Lab.make("section", { className: "lab-side" }, title, canvas, sentence);
    return { element, title, sentence, canvas, scene: new Lab.Scene(canvas) };
  };

  // ------------------------------------------------------------------ the player

  // The highest number of requests in flight: the number of clients to draw if that is unknown
  function mostUnderWay(moves) {
    const inFlight = new Set();
    let most = 0;
    for (const [id, place] of moves) {
      if (place < Lab.places.ANSWERED) inFlight.add(id);
      else inFlight.delete(id);
      if (inFlight.size > most) most = inFlight.size;
    }
    return most;
  }

  // Sets the length of the accept queue at each sample, from the moves
  function countQueues(samples, moves) {
    const crowd = new Lab.Crowd();
    let next = 0;
    for (const sample of samples) {
      for (; next < moves.length && moves[next][3] <= sample.t; next++) crowd.move(...moves[next]);
      sample.queue = crowd.waiting[Lab.places.QUEUED].length;
    }
  }

  class Player {
    constructor(element, trace, options = {}) {
      this.trace = trace;
      this.length = trace.length_ms;
      this.at = 0;
      this.speed = 1;
      this.playing = false;
      this.onend = options.onend || null; // called once, the first time the end is reached
      this.build(element, options);
      this.updateTimer = new Lab.UpdateTimer();
      this.loop = new Lab.Loop(this.element, (now, dt) => this.step(now, dt));
      for (const { scene } of this.sides) scene.onstale = () => this.loop.wake();
      this.seek(0);
    }

    build(element, { charts = true, level = 3, locked = false }) {
      this.sides = this.trace.sides.map((side) => {
        const picture = Lab.sidePicture(level);
        const clients = side.clients || mostUnderWay(side.moves);
        picture.scene.configure({ ...side, clients }, side.load || this.trace.load || null);
        picture.title.textContent = Lab.settingsText(side);
        picture.sentence.textContent = side.sentence || "";
        picture.track = new Lab.Track(picture.scene, side.moves);
        const named = this.trace.named !== false;
        picture.samples = (side.samples || []).map(([t, rps, mean, p95, queue]) => {
          return { t, rps, mean: 1000 * mean > t ? null : mean, p95, queue }; // as in `Places.sample`
        });
        if (named) countQueues(picture.samples, side.moves);
        picture.named = named;
        picture.sample = null;
        return picture;
      });
      this.element = Lab.make("div", { className: "lab-player", role: "group" });
      this.element.setAttribute("aria-label", "replay of real requests");
      const pictures = Lab.make(
        "div",
        { className: "lab-sides" },
        ...this.sides.map((side) => side.element),
      );
      this.words = Lab.make("p", { className: "lab-words" });
      this.status = new Lab.StatusText(this.words);
      const transport = this.transport();
      transport.hidden = locked;
      this.element.append(pictures, transport, this.words, Lab.legend());
      if (charts && Lab.Charts && this.sides.some((side) => side.samples.length)) this.addCharts();
      this.element.addEventListener("keydown", (event) => this.key(event));
      element.replaceChildren(this.element);
    }

    addCharts() {
      const place = Lab.make("div", { className: "lab-charts" });
      this.element.insertBefore(place, this.words);
      this.charts = new Lab.Charts(place, { length: this.length });
      this.charts.configure(
        this.trace.sides.map((side) => ({
          name: side.server.worker_class,
          law: side.law,
          recent_s: side.recent_s,
          backlog: side.backlog,
          model: (side.load || this.trace.load || {}).model,
        })),
      );
      this.sides.forEach(({ samples }, i) => {
        for (const { t, ...sample } of samples) this.charts.add(i, t, sample);
      });
    }

    transport() {
      this.toggle = Lab.button("Play", () => this.play(!this.playing));
      const again = Lab.button("Restart", () => this.restart());
      this.scrub = Lab.make("input", {
        type: "range",
        className: "lab-scrub",
        min: "0",
        max: String(this.length),
        step: "10",
        value: "0",
        oninput: () => this.seek(Number(this.scrub.value)),
      });
      this.scrub.setAttribute("aria-label", "time");
      const speeds = SPEEDS.map((speed) => {
        return Lab.make("option", { value: String(speed), textContent: `${speed}x` });
      });
      this.rate = Lab.make("select", {}, ...speeds);
      this.rate.addEventListener("change", () => {
        this.speed = Number(this.rate.value);
      });
      this.rate.value = "1";
      this.clock = Lab.make("span", { className: "lab-clock" });
      const speed = Lab.make("label", { className: "lab-speed" }, "Speed ", this.rate);
      return Lab.make(
        "div",
        { className: "lab-transport" },
        this.toggle,
        again,
        this.scrub,
        this.clock,
        speed,
      );
    }

    // Space: play or pause; arrows: half a second; Home, End: start, end; < and >: speed
    key(event) {
      const { target, key } = event;
      if (event.ctrlKey || event.altKey || event.metaKey) return;
      if (target === this.rate || (key === " " && target.tagName === "BUTTON")) return;
      const to = { ArrowLeft: this.at - 500, ArrowRight: this.at + 500, Home: 0, End: this.length }[
        key
      ];
      const faster = { "<": -1, ">": 1 }[key];
      if (to !== undefined) this.seek(to);
      else if (key === " ") this.play(!this.playing);
      else if (faster) this.faster(faster);
      else return;
      event.preventDefault();
    }

    faster(by) {
      const at = SPEEDS.indexOf(this.speed) + by;
      this.speed = SPEEDS[Math.min(SPEEDS.length - 1, Math.max(0, at))];
      this.rate.value = String(this.speed);
    }

    play(on = true) {
      if (on && this.at >= this.length) this.seek(0);
      this.playing = on;
      this.loop.wake();
      this.show();
      this.paint(0);
    }

    restart() {
      this.seek(0);
      this.play(true);
    }

    seek(t) {
      this.at = Math.min(this.length, Math.max(0, t));
      for (const side of this.sides) side.track.seek(this.at);
      this.show(true);
      this.paint(0, true);
      this.loop.wake();
    }

    // Returns whether a dot still moves
    paint(dt, snap = Lab.calm()) {
      const moving = this.sides.filter(({ scene }) => scene.draw(this.at, dt, snap, 1 / this.speed));
      return moving.length > 0;
    }

    end() {
      const { onend } = this;
      this.playing = false;
      this.onend = null;
      if (onend) onend();
    }

    // Stops for good, because another player replaces this one
    stop() {
      this.playing = false;
      this.onend = null;
    }

    // Updates everything on display to this moment. `atOnce`: announces the words at once, too
    show(atOnce = false) {
      const { at } = this;
      for (const side of this.sides) {
        side.track.upTo(at);
        side.sample = side.samples.findLast(({ t }) => t <= at) || null;
        if (!side.named && side.sample) side.scene.observe({ queue: side.sample.queue });
      }
      const seconds = (ms) => (ms / 1000).toFixed(1);
      this.scrub.value = String(at);
      this.clock.textContent = `${seconds(at)} of ${seconds(this.length)} s`;
      this.toggle.textContent = this.playing ? "Pause" : "Play";
      this.scrub.setAttribute("aria-valuetext", this.clock.textContent);
      const now = this.sides.map(({ scene }) => ({ queue: scene.numbers().queued }));
      if (this.charts) this.charts.cursor(at, now);
      const words = this.sides.map(({ scene, sample }) => Lab.inWords(scene, sample));
      this.status.set(words.join(". "), atOnce);
    }

    step(now, dt) {
      if (this.playing) this.at = Math.min(this.length, this.at + dt * this.speed);
      const ended = this.at >= this.length,
        ends = ended && this.playing;
      if (ends) this.playing = false;
      if (this.updateTimer.due(now) || ends) this.show();
      if (ended) this.end();
      return this.paint(dt) || this.playing;
    }
  }

  Lab.player = (element, trace, options) => new Player(element, trace, options);

  // Adds a player to each .lab-trace element once it is visible. The element contains the trace as JSON
  Lab.mount = () => {
    const mounting = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) {
        if (!isIntersecting) continue;
        mounting.unobserve(target);
        Lab.player(target, JSON.parse(target.querySelector("script").textContent), { level: 4 });
      }
    });
    for (const element of document.querySelectorAll(".lab-trace")) mounting.observe(element);
  };
  document.addEventListener("DOMContentLoaded", Lab.mount);
})();
