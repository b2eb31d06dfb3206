"use strict";
// The lesson's panel: question and choices; after the guess, the law, a reaction, the outcome and
// the explanation; at the end, all guesses in a table. It receives messages and reports choices, so
// the same panel serves the live lab and a recorded lesson (Lab.recordedLesson, at the bottom).
(() => {
  const Lab = (window.Lab = window.Lab || {});
  const { make } = Lab;
  const LETTERS = "abcdefgh";

  class Lesson {
    // `actions`: {guess(choice), go(step), showTally()}; choice null: no guess. A pupil has no `go`:
    // the teacher chooses the step, and pupils may change their guess until it starts
    constructor(element, actions) {
      this.element = element;
      this.actions = actions;
      this.enabled = true;
      this.message = null;
      this.titles = [];
      this.steps = make("ol", { className: "lab-steps" });
      this.number = make("p", { className: "lab-step" });
      this.name = make("p", { className: "lab-lesson-name", hidden: true });
      this.title = make("h2", { className: "lab-lesson-title", tabIndex: -1 });
      this.changed = make("p", { className: "lab-changed" });
      this.question = make("p", { className: "lab-question", id: "lab-question" });
      this.choices = make("div", { className: "lab-choices", role: "group" });
      this.choices.setAttribute("aria-labelledby", "lab-question");
      this.class = make("p", { className: "lab-class-guesses", hidden: true });
      this.explanation = make("div", { className: "lab-explanation", tabIndex: -1 });
      this.explanation.setAttribute("aria-live", "polite");
      this.onward = make("p", { className: "lab-onward" });
      const nav = make("nav", {}, this.steps);
      nav.setAttribute("aria-label", "steps of the lesson");
      element.replaceChildren(
        make("div", { className: "lab-step-bar" }, nav, this.number),
        this.name,
        this.title,
        this.changed,
        this.question,
        this.choices,
        this.class,
        this.explanation,
        this.onward,
      );
      document.addEventListener("keydown", (event) => this.key(event));
    }

    // Sets the titles of all steps
    outline(titles, name = "") {
      this.titles = titles;
      this.name.textContent = name;
      this.steps.replaceChildren(
        ...titles.map((title, i) => {
          const button = make("button", {
            type: "button",
            className: "lab-step-button",
            textContent: String(i + 1),
            title,
            onclick: () => this.actions.go(i),
          });
          button.setAttribute("aria-label", `step ${i + 1}: ${title}`);
          return make("li", {}, button);
        }),
      );
      this.mark();
    }

    // A page without control cannot choose
    enable(on) {
      this.enabled = on;
      this.mark();
    }

    // Shows a message of kind `lesson`
    show(message) {
      const before = this.message,
        inside = this.element.contains(document.activeElement);
      const moved =
        !before ||
        before.step !== message.step ||
        (before.phase !== message.phase && message.phase === "ask");
      const ended = message.phase === "end" && (!before || before.phase !== "end");
      this.message = message;
      this.showStep(message);
      this.showChoices(message);
      this.showExplanation(message);
      this.showOnward(message);
      if (this.classroom) this.showClass(this.classroom);
      this.mark();
      if (!inside) return;
      // Do not scroll: the picture must stay visible
      if (moved || ended) this.title.focus({ preventScroll: true });
      else if (!this.element.contains(document.activeElement))
        this.explanation.focus({ preventScroll: true });
    }

    // At the end, only the table is shown
    widen(on) {
      const page = this.element.closest(".lab-main, .lab-recorded");
      if (page) page.classList.toggle("lab-ended", on);
    }

    // A message of kind `class`, for the teacher; the guesses are shown once the teacher asks for them
    showClass(message) {
      this.classroom = message;
      const asks = this.message && this.message.phase === "ask",
        { pupils, guessed, tally } = message,
        count = `${pupils} ${pupils === 1 ? "pupil" : "pupils"}`,
        words = `${count}, ${guessed} ${guessed === 1 ? "has" : "have"} guessed. `;
      this.class.hidden = this.choices.hidden;
      this.tallyButton ||= Lab.button("Show guesses", () => this.actions.showTally());
      this.tallyButton.hidden = !asks || tally.length > 0;
      this.tallyButton.disabled = !this.enabled;
      if (!this.class.firstChild) this.class.append("", this.tallyButton);
      this.class.firstChild.data = words;
      for (const shown of this.choices.querySelectorAll(".lab-tally")) shown.remove();
      const options = this.choices.querySelectorAll(".lab-choice:not(.lab-no-guess), li");
      tally.forEach((count, i) => {
        const bar = make("meter", { max: Math.max(1, guessed), value: count, title: "guesses" });
        if (options[i]) options[i].append(make("span", { className: "lab-tally" }, bar, ` ${count}`));
      });
      const start = this.choices.querySelector(".lab-no-guess");
      if (start) start.textContent = "Start the step and close the guesses";
    }

    close() {
      this.message = null;
      this.widen(false);
    }

    showStep(message) {
      const end = message.phase === "end";
      this.widen(end);
      // The lesson's name is shown until its first step has started
      this.name.hidden = end || message.step > 0 || message.phase !== "ask" || !this.name.textContent;
      this.number.textContent = end ? "The end" : `Step ${message.step + 1} of ${message.of}`;
      this.title.textContent = end ? "Guess, law and measurement" : message.title;
      for (const [part, words] of [
        [this.changed, message.changed],
        [this.question, message.question],
      ]) {
        part.textContent = words || "";
        part.hidden = end || !words;
      }
      if (message.phase === "told") this.changed.hidden = true; // room for the outcome
      this.choices.hidden = end;
    }

    // Shows buttons until there is a guess, then a list of the choices
    showChoices({ phase, choices, guess, right }) {
      if (phase === "ask") {
        const noGuess = make("button", {
          type: "button",
          className: "lab-choice lab-no-guess",
          textContent: "No guess, just show me",
          onclick: () => this.guess(null),
        });
        const buttons = choices.map((words, i) => this.choice(i, words));
        if (this.actions.go) buttons.push(noGuess);
        else buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(i === guess)));
        const at = [...this.choices.children].indexOf(document.activeElement);
        this.choices.replaceChildren(...buttons);
        if (at >= 0 && buttons[at]) buttons[at].focus({ preventScroll: true });
        return;
      }
      this.choices.replaceChildren(
        make(
          "ul",
          { className: "lab-guessed" },
          ...(choices || []).map((words, i) => {
            const marks = [i === guess && "your guess", i === right && "right"].filter(Boolean);
            const item = make(
              "li",
              { className: i === right ? "lab-right" : i === guess ? "lab-guess" : "" },
              `${LETTERS[i]}) ${words}`,
            );
            if (marks.length)
              item.append(" ", make("strong", { textContent: `← ${marks.join(", ")}` }));
            return item;
          }),
        ),
      );
    }

    choice(i, words) {
      return make(
        "button",
        { type: "button", className: "lab-choice", onclick: () => this.guess(i) },
        make("span", { className: "lab-letter", textContent: `${LETTERS[i]})` }),
        ` ${words}`,
      );
    }

    showExplanation(message) {
      const parts = [],
        { phase } = message,
        add = (className, words) => words && parts.push(make("p", { className }, words));
      if (phase === "end") {
        parts.push(this.table(message.table || []));
        add("lab-score", message.score);
        add("lab-why", message.end);
        const link =
          message.page &&
          make("a", { href: message.page, textContent: "This lesson as a page to take home" });
        if (link) parts.push(make("p", {}, link));
      }
      const isPupil = !this.actions.go;
      if (isPupil && phase === "ask")
        add("lab-runs", message.guess === null ? "Make your guess." : "You can change it until the step starts.");
      if (phase === "run" || phase === "told") {
        add("lab-law", message.law);
        if (phase === "run") {
          add("lab-reaction", message.reaction);
          add("lab-runs", "The step is running: watch the picture.");
        }
        add("lab-spoken", message.answer); // for screen readers; others see it in the list of choices
        for (const line of message.outcome || []) add("lab-outcome", line);
        add("lab-why", message.why);
      }
      const text = parts.map((part) => part.textContent).join("\n");
      if (text === this.text) return;
      this.text = text;
      this.explanation.replaceChildren(...parts);
    }

    showOnward({ phase, step, of }) {
      this.onward.hidden = (phase !== "told" && phase !== "end") || !this.actions.go;
      const next = phase === "end" ? 0 : step + 1;
      const words = phase === "end" ? "Begin again" : next < of ? "Next step" : "All guesses";
      if (this.button && this.onward.contains(this.button)) {
        this.button.textContent = words;
        this.button.onclick = () => this.actions.go(next);
        return;
      }
      this.button = make("button", {
        type: "button",
        className: "lab-button lab-next",
        textContent: words,
        onclick: () => this.actions.go(next),
      });
      this.onward.replaceChildren(this.button);
    }

    table(rows) {
      const head = ["Step", "Your guess", "Right answer", "The law", "Measured"];
      const cells = (row) =>
        row.map((cell, i) => make(i ? "td" : "th", i ? {} : { scope: "row" }, cell ?? "no guess"));
      const table = make(
        "table",
        {},
        make("caption", { textContent: "All steps" }),
        make(
          "thead",
          {},
          make("tr", {}, ...head.map((words) => make("th", { scope: "col", textContent: words }))),
        ),
        make(
          "tbody",
          {},
          ...rows.map((row) =>
            make("tr", {}, ...cells(row.map((cell) => (cell === null ? cell : String(cell))))),
          ),
        ),
      );
      const scroll = make("div", { className: "lab-scroll", tabIndex: 0, role: "region" }, table);
      scroll.setAttribute("aria-label", "all steps");
      return scroll;
    }

    mark() {
      const { message } = this,
        at = message && message.phase !== "end" ? message.step : -1;
      [...this.steps.children].forEach((item, i) => {
        if (i === at) item.firstChild.setAttribute("aria-current", "step");
        else item.firstChild.removeAttribute("aria-current");
      });
      for (const button of this.element.querySelectorAll("button")) button.disabled = !this.enabled;
      if (!this.actions.go) for (const item of this.steps.children) item.firstChild.disabled = true;
    }

    guess(choice) {
      if (this.message && this.message.phase === "ask" && this.enabled) this.actions.guess(choice);
    }

    // A letter or digit selects a choice, wherever the focus is, except in an input field
    key(event) {
      if (event.ctrlKey || event.altKey || event.metaKey || event.key.length > 1 || event.repeat)
        return;
      const { message } = this;
      if (!message || message.phase !== "ask" || event.target.closest("input, select")) return;
      const letter = LETTERS.indexOf(event.key.toLowerCase()),
        digit = "12345678".indexOf(event.key);
      const choice = Math.max(letter, digit);
      if (choice >= 0 && choice < message.choices.length) this.guess(choice);
    }
  }

  Lab.Lesson = Lesson;

  // ------------------------------------------------------------------ recorded

  // The trace of a step before the guess: the server without any requests
  const withoutRequests = (trace) => ({
    ...trace,
    sides: trace.sides.map((side) => ({
      ...side,
      moves: [],
      samples: [],
      sentence: "",
      law: null,
      blocked: null,
    })),
  });

  // A lesson without a server. `lesson`: {title, end, steps: [{title, changed, question, choices, right,
  // law, law_in_short, reactions (one per choice, then one for no guess), answer, outcome, why,
  // measured, trace}]}
  class RecordedLesson {
    constructor(element, lesson) {
      this.lesson = lesson;
      this.guesses = lesson.steps.map(() => null);
      this.picture = make("div", { className: "lab-recorded-picture" });
      this.aside = make("section", { className: "lab-panel" });
      this.aside.setAttribute("aria-label", "lesson");
      element.replaceChildren(make("div", { className: "lab-recorded" }, this.picture, this.aside));
      this.panel = new Lesson(this.aside, {
        guess: (choice) => this.guess(choice),
        go: (step) => this.go(step),
      });
      this.panel.outline(lesson.steps.map((step) => step.title));
      this.go(0);
    }

    message(phase, more) {
      const { title, changed, question, choices } = this.lesson.steps[this.step];
      return {
        kind: "lesson",
        step: this.step,
        of: this.lesson.steps.length,
        phase,
        title,
        changed,
        question,
        choices,
        guess: null,
        right: null,
        law: null,
        reaction: null,
        answer: null,
        outcome: [],
        why: null,
        ...more,
      };
    }

    go(step) {
      if (this.player) this.player.stop();
      if (step >= this.lesson.steps.length) {
        const { end } = this.lesson;
        this.panel.show({ ...this.message("end"), table: this.table(), score: this.score(), end });
        return;
      }
      this.step = step;
      this.player = Lab.player(this.picture, withoutRequests(this.lesson.steps[step].trace), {
        charts: false,
        locked: true,
        level: 2,
      });
      this.panel.show(this.message("ask"));
    }

    guess(choice) {
      const step = this.lesson.steps[this.step],
        { law, reactions, right, outcome, why, answer } = step;
      this.guesses[this.step] = choice;
      const reaction = (reactions || [])[choice ?? step.choices.length] || null;
      const revealed = { guess: choice, law, reaction };
      this.panel.show(this.message("run", revealed));
      this.player.stop();
      this.player = Lab.player(this.picture, step.trace, {
        level: 2,
        onend: () => this.panel.show(this.message("told", { ...revealed, right, outcome, why, answer })),
      });
      this.player.play();
    }

    table() {
      return this.lesson.steps.map(({ title, choices, right, law_in_short: law, measured }, i) => {
        const guess = this.guesses[i];
        return [title, guess === null ? null : choices[guess], choices[right], law, measured || ""];
      });
    }

    // The score over the steps that have a guess
    score() {
      const guessed = this.lesson.steps.filter((_, i) => this.guesses[i] !== null),
        right = this.lesson.steps.filter((step, i) => this.guesses[i] === step.right).length;
      if (!guessed.length) return "";
      const guesses = guessed.length === 1 ? "guess" : "guesses";
      return `${right} of ${guessed.length} ${guesses} ${right === 1 ? "was" : "were"} right.`;
    }
  }

  Lab.recordedLesson = (element, lesson) => new RecordedLesson(element, lesson);

  // A page with a recorded lesson has #lab-recorded, and the data as JSON in #lab-recorded-data
  document.addEventListener("DOMContentLoaded", () => {
    const place = document.getElementById("lab-recorded");
    const data = document.getElementById("lab-recorded-data");
    if (place && data) Lab.recordedLesson(place, JSON.parse(data.textContent));
  });
})();
