"use strict";
// The live page: shows the lab's stream in pictures, charts, fields and lesson, and posts actions.
// Moves are buffered until they are due on the picture's clock, which can be paused or slowed down.
(() => {
  const Lab = (window.Lab = window.Lab || {});
  const { make } = Lab;
  const PUPIL = location.pathname === "/"; // a teacher's address has a token
  // The picture's delay: late ticks still arrive in time, and pupils get five ticks at once
  const DELAY_MS = PUPIL ? 450 : 150;
  const SLOW = 0.1;
  const MAX_BEHIND_MS = 60000; // a picture that is further behind skips ahead
  const RETRY_MS = 2000;
  const byId = (id) => document.getElementById(id);

  // ------------------------------------------------------------------ the stream and the actions

  class Stream {
    constructor(handle, showStatus) {
      this.handle = handle;
      this.showStatus = showStatus;
      this.tries = 0;
      this.open();
    }

    open() {
      this.source = new EventSource("stream");
      this.source.onopen = () => {
        this.showStatus(this.tries ? "Reconnected." : "");
        this.tries = 0;
      };
      this.source.onmessage = (event) => this.handle(JSON.parse(event.data));
      this.source.onerror = () => this.lost();
    }

    lost() {
      this.source.close();
      this.tries++;
      this.showStatus(
        `No connection to the lab, so the picture is frozen. Reconnecting every` +
          ` ${RETRY_MS / 1000} s (attempt ${this.tries}).`,
        true,
      );
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.open(), RETRY_MS);
    }
  }

  // Resolves to null, or to {why, field} if the lab refuses the action or does not respond
  async function post(path, order) {
    try {
      const response = await fetch(path, {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify(order),
      });
      if (response.ok) return null;
      const refusal = await response.json().catch(() => ({}));
      return {
        why: refusal.why || `The lab refused this action (status ${response.status}).`,
        field: refusal.field || null,
      };
    } catch {
      return { why: "The lab does not respond.", field: null };
    }
  }

  const act = (order, tab) => post("act", { ...order, tab });

  // Resolves once this page has joined as a pupil: by cookie, by the code after #, or a typed code
  function joinClass() {
    const form = byId("join"),
      field = byId("join-code"),
      main = document.querySelector("main");
    return new Promise((resolve) => {
      const join = async (code) => {
        const refusal = await post("join", { code });
        form.hidden = !refusal;
        main.hidden = Boolean(refusal);
        byId("join-error").textContent = refusal && code ? `Not joined: ${refusal.why}.` : "";
        if (refusal) field.focus();
        else resolve();
      };
      form.onsubmit = (event) => {
        event.preventDefault();
        join(field.value);
      };
      join(location.hash.slice(1));
    });
  }

  // ------------------------------------------------------------------ the clock of the picture

  // Follows the lab's clock, or falls behind it in slow motion or while paused
  class Clock {
    constructor() {
      this.slow = this.paused = false;
      this.reset();
    }

    reset() {
      this.offset = null;
      this.at = this.edge = this.last = 0;
    }

    // Called when a tick of time `t` arrives
    receive(t, now) {
      const offset = now - t;
      if (this.offset === null) this.at = t;
      if (this.offset === null || offset < this.offset || offset > this.offset + 2000)
        this.offset = offset;
      else this.offset += (offset - this.offset) * 0.01;
      this.edge = t;
    }

    advance(now) {
      const dt = Math.min(1000, now - this.last);
      this.last = now;
      if (this.offset === null || this.paused) return;
      const live = now - this.offset - DELAY_MS;
      this.at = this.slow ? Math.min(live, this.at + dt * SLOW) : Math.max(this.at, live);
      this.at = Math.max(this.at, this.edge - MAX_BEHIND_MS);
    }

    get behind() {
      return Math.max(0, this.edge - this.at);
    }
  }

  // ------------------------------------------------------------------ the page

  class Live {
    constructor() {
      this.sides = [];
      this.ticks = []; // data other than the moves, kept until the clock reaches its time
      this.clock = new Clock();
      this.state = this.lessonMessage = null;
      this.role = "control";
      this.controls = new Lab.Controls(byId("controls"), (order) => act(order, this.tab));
      this.lesson = new Lab.Lesson(
        byId("lesson"),
        PUPIL
          ? { guess: (choice) => this.guess(choice) }
          : {
              guess: (choice) => this.order({ do: "guess", choice }),
              go: (step) => this.order({ do: "lesson", step }),
              showTally: () => this.order({ do: "tally" }),
            },
      );
      document.body.classList.toggle("lab-pupil", PUPIL);
      this.charts = new Lab.Charts(byId("charts"));
      this.words = new Lab.StatusText(byId("words"));
      this.updateTimer = new Lab.UpdateTimer();
      byId("legend").append(Lab.legend());
      this.loop = new Lab.Loop(byId("sides"), (now, dt) => this.step(now, dt));
      this.bindButtons();
      this.connect();
    }

    async connect() {
      if (PUPIL) await joinClass();
      this.stream = new Stream(
        (message) => this.handle(message),
        (words, isError) => this.showStatus(words, isError),
      );
    }

    async guess(choice) {
      const refusal = await post("guess", { step: this.lessonMessage.step, choice });
      byId("refused").textContent = refusal ? refusal.why : "";
    }

    bindButtons() {
      const click = (id, what) => byId(id).addEventListener("click", what);
      click("start", () => this.order({ do: this.hasStarted() ? "stop" : "start" }));
      click("restart", () => this.order({ do: "restart" }));
      click("compare", () => this.order({ do: "compare", on: this.sides.length < 2 }));
      click("show-lesson", () => this.order({ do: "lesson" }));
      click("show-controls", () => this.order({ do: "leave" }));
      click("pause", () => this.pace({ paused: !this.clock.paused }));
      click("slow", () => this.pace({ slow: !this.clock.slow }));
    }

    async order(order) {
      const refusal = await act(order, this.tab);
      byId("refused").textContent = refusal ? refusal.why : "";
    }

    // Pause and slow motion affect only this page: the server keeps running
    pace(change) {
      Object.assign(this.clock, change);
      byId("pause").setAttribute("aria-pressed", String(this.clock.paused));
      byId("slow").setAttribute("aria-pressed", String(this.clock.slow));
      this.showPace();
      this.loop.wake();
    }

    isRunning(i) {
      const side = this.state && this.state.sides[i];
      return Boolean(side) && side.phase === "running" && Boolean(this.sides[i]);
    }

    showPace() {
      const { paused, slow, behind } = this.clock;
      const words = paused
        ? "paused; the server keeps running"
        : slow
          ? "slow motion: 10 times slower"
          : "";
      const late = words && behind > 1000 ? `; ${Math.round(behind / 1000)} s behind` : "";
      if (byId("pace").textContent !== words + late) byId("pace").textContent = words + late;
    }

    showStatus(words, isError = false) {
      byId("status").textContent = words;
      document.body.classList.toggle("lab-lost", isError);
      if (!isError && words)
        setTimeout(() => {
          if (byId("status").textContent === words) byId("status").textContent = "";
        }, 4000);
    }

    hasStarted() {
      return (
        Boolean(this.state) &&
        this.state.sides.some(({ phase }) => phase === "running" || phase === "starting")
      );
    }

    // ---------------------------------------------------------------- messages

    handle(message) {
      if (message.kind === "tick") this.handleTick(message);
      else if (message.kind === "state") this.handleState(message);
      else if (message.kind === "lesson") this.handleLesson(message);
      else if (message.kind === "hello") this.handleHello(message);
      else if (message.kind === "class") this.handleClass(message);
    }

    handleClass(message) {
      const { address, code, pupils } = message;
      byId("class").textContent =
        `Join at ${address} with the code ${code} (${pupils} ${pupils === 1 ? "pupil" : "pupils"}).`;
      this.lesson.showClass(message);
    }

    handleHello(hello) {
      const isNew = this.tab === undefined || this.tab !== hello.tab; // else only the role changed
      this.role = hello.role;
      this.tab = hello.tab;
      if (isNew) this.reset();
      this.controls.hello(hello);
      this.lesson.outline(
        hello.lesson.steps.map(({ title }) => title),
        hello.lesson.title,
      );
      byId("lesson-name").textContent = hello.lesson.title;
      this.showRole();
    }

    // Clears the data that another connection, or another lab, has sent
    reset() {
      this.clock.reset();
      this.ticks.length = 0;
      for (const side of this.sides) this.clearSide(side);
      this.charts.clear();
    }

    showRole() {
      const inControl = this.role === "control";
      byId("role").hidden = inControl || (PUPIL && this.lessonMessage !== null);
      if (PUPIL) byId("role").textContent = "Your teacher controls this lab. The questions appear here.";
      for (const id of ["show-lesson", "show-controls"]) byId(id).disabled = !inControl;
      // The lesson starts and stops by itself
      for (const id of ["start", "restart", "compare"])
        byId(id).disabled = !inControl || this.lessonMessage !== null;
      this.lesson.enable(inControl || PUPIL);
      this.controls.enable(inControl);
    }

    handleState(state) {
      const before = this.state;
      this.state = state;
      const countChanged = this.sides.length !== state.sides.length;
      if (countChanged) this.buildSides(state.sides.length);
      state.sides.forEach((side, i) => {
        const previous = before && before.sides[i];
        if (side.phase !== "running" && (!previous || previous.phase !== side.phase))
          this.clearSide(this.sides[i]);
        this.showSide(this.sides[i], side, i);
      });
      this.controls.show(state);
      this.controls.enable(this.role === "control");
      this.showLaws();
      if (countChanged) this.addToCharts();
      byId("start").textContent = this.hasStarted() ? "Stop" : "Start";
      byId("compare").setAttribute("aria-pressed", String(state.sides.length > 1));
      this.charts.draw();
      this.showWords();
      this.paint(0);
      this.loop.wake();
    }

    // Remaining sides keep their picture because the requests in flight are sent only once
    buildSides(count) {
      this.sides = Array.from({ length: count }, (_, i) => {
        if (this.sides[i]) return this.sides[i];
        const picture = Lab.sidePicture(2);
        picture.scene.onstale = () => this.loop.wake();
        picture.track = new Lab.Track(picture.scene);
        picture.sample = null;
        return picture;
      });
      this.charts.clear(); // the lines of one server do not continue as those of two
      byId("sides").replaceChildren(...this.sides.map(({ element }) => element));
      byId("sides").classList.toggle("lab-two", count > 1);
    }

    clearSide(side) {
      const i = this.sides.indexOf(side);
      for (const tick of this.ticks) tick.sides[i] = null;
      side.scene.clear();
      side.track.moves.length = side.track.next = 0;
      side.sample = null;
      this.charts.interrupt(i);
    }

    // Before the guess, the state has no sentence and no law: they would reveal the answer
    isAsking() {
      return Boolean(this.lessonMessage) && this.lessonMessage.phase === "ask";
    }

    showSide(picture, side, i) {
      const phases = {
        stopped: this.isAsking() ? "Stopped. " : "Stopped. When running: ",
        starting: "Starting. ",
        failed: `Failed: ${side.why || ""}`,
      };
      const name = this.sides.length > 1 ? `${"AB"[i]}: ` : "";
      picture.title.textContent = name + Lab.settingsText(side);
      picture.sentence.textContent = phases[side.phase] || "";
      if (side.phase !== "failed") picture.sentence.append(side.sentence || "");
      picture.element.dataset.phase = side.phase;
      picture.scene.configure(side, this.state.load);
    }

    showLaws() {
      byId("glossary").hidden = this.isAsking(); // it contains the law
      this.charts.configure(
        this.state.sides.map((side, i) => ({
          name: "AB"[i],
          law: side.law,
          recent_s: side.recent_s,
          backlog: side.backlog,
          model: this.state.load.model,
        })),
      );
    }

    handleLesson(message) {
      const before = this.lessonMessage;
      const on = ["ask", "run", "told", "end"].includes(message.phase);
      this.lessonMessage = on ? message : null;
      byId("lesson").hidden = !on;
      byId("controls").hidden = on;
      if (!on) this.lesson.close();
      byId("show-lesson").setAttribute("aria-pressed", String(on));
      byId("show-controls").setAttribute("aria-pressed", String(!on));
      if (on) this.lesson.show(message);
      this.showRole();
      if (on && (!before || before.step !== message.step)) this.charts.clear();
      if (!this.state) return;
      this.state.sides.forEach((side, i) => this.showSide(this.sides[i], side, i));
      this.showLaws();
    }

    handleTick(tick) {
      this.clock.receive(tick.t, performance.now());
      // Data about a stopped server is stale
      tick.sides = tick.sides.map((side, i) => (this.isRunning(i) ? side : null));
      tick.sides.forEach((side, i) => side && this.sides[i].track.add(side.moves));
      this.ticks.push(tick);
      this.showPace();
      // While the page is hidden, the picture is kept up to date without being drawn
      if (document.hidden && !this.clock.slow && !this.clock.paused)
        this.advance(performance.now());
      this.scheduleFrame();
    }

    // ---------------------------------------------------------------- frames

    // Updates the whole page to the clock's time
    advance(now) {
      const { clock } = this;
      clock.advance(now);
      let done = 0;
      for (const side of this.sides) side.track.upTo(clock.at);
      while (done < this.ticks.length && this.ticks[done].t <= clock.at)
        this.observe(this.ticks[done++]);
      this.ticks.splice(0, done);
      this.addToCharts();
      this.charts.draw();
      this.showWords();
    }

    addToCharts() {
      this.sides.forEach(({ scene, sample }, i) => {
        if (!sample || !this.isRunning(i)) return;
        const { queued: queue, underWay } = scene.numbers();
        const left = Math.min(sample.left, underWay); // as in the words
        this.charts.add(i, this.clock.at, { ...sample, queue, left });
      });
    }

    observe(tick) {
      tick.sides.forEach((update, i) => {
        const side = this.sides[i];
        if (!side || !update) return;
        const { connections, counts, drawn, sample } = update;
        side.scene.observe({ connections, counts, drawn, ...sample });
        if (sample) side.sample = sample;
      });
    }

    showWords() {
      const sentences = this.sides.map(({ scene, sample, canvas }, i) => {
        const name = this.sides.length > 1 ? `${"AB"[i]}: ` : "";
        const words = Lab.inWords(scene, sample, this.state.cores);
        canvas.setAttribute("aria-label", `picture: ${words}`);
        return name + words;
      });
      this.words.set(sentences.join(". "));
    }

    step(now, dt) {
      const { clock } = this;
      if (!clock.paused && this.updateTimer.due(now)) this.advance(now);
      const moves = this.paint(clock.paused ? 0 : dt);
      if (clock.paused) return false;
      if (!moves) this.scheduleFrame();
      return moves;
    }

    // Returns whether a dot still moves
    paint(dt) {
      const { at, slow } = this.clock,
        pace = slow ? 1 / SLOW : 1;
      const moving = this.sides.filter(({ scene }) => scene.draw(at, dt, Lab.calm(), pace));
      return moving.length > 0;
    }

    // While nothing moves, draws again when the next update is due, if ticks are waiting
    scheduleFrame() {
      if (this.timer || !this.ticks.length) return;
      this.timer = setTimeout(() => {
        this.timer = 0;
        this.loop.wake();
      }, Lab.UPDATE_MS);
    }
  }

  Lab.Live = Live;
  if (byId("lab-live")) Lab.live = new Live();
})();
