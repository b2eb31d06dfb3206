"use strict";
// The fields: the load, which changes at once, and the settings of each server, which restart it.
// Input is validated here first; an error from the lab is shown next to its field.
(() => {
  const Lab = (window.Lab = window.Lab || {});
  const { make } = Lab;
  const DEBOUNCE_MS = 200; // after the last key or the last movement of a slider

  const LOAD = [
    { name: "clients", label: "Clients", slider: true, model: "closed" },
    { name: "rate", label: "Requests per second", slider: true, model: "open", fraction: true },
    { name: "delay_s", label: "App waits, s", min: 0, fraction: true },
    { name: "cpu_ms", label: "CPU per request, ms", min: 0, fraction: true },
  ];
  const SERVER = [
    { name: "workers", label: "Workers" },
    { name: "threads", label: "Threads" },
    { name: "worker_connections", label: "Worker connections" },
    { name: "backlog", label: "Backlog" },
  ];
  const MODELS = [
    ["closed", "closed: a new request after each response"],
    ["open", "open: requests arrive at random (Poisson)"],
  ];
  let serial = 0;

  // A labelled control with a hint and an error message
  class Field {
    constructor({ name, label, min = 1, fraction = false, slider = false }, control, changed) {
      Object.assign(this, {
        name,
        label,
        min,
        fraction,
        control,
        changed,
        max: Infinity,
        timer: 0,
      });
      const id = `lab-field-${++serial}`;
      control.id = id;
      this.hint = make("p", { className: "lab-hint", id: `${id}-hint`, hidden: true });
      this.error = make("p", { className: "lab-error", id: `${id}-error`, hidden: true });
      control.setAttribute("aria-describedby", `${id}-hint ${id}-error`);
      const row = make("div", { className: "lab-row" }, control);
      if (slider) row.prepend(this.makeSlider());
      this.element = make(
        "div",
        { className: "lab-field" },
        make("label", { htmlFor: id, textContent: label }),
        row,
        this.hint,
        this.error,
      );
    }

    makeSlider() {
      this.slider = make("input", { type: "range", min: "1", className: "lab-slider" });
      this.slider.setAttribute("aria-label", `${this.label}, slider`);
      this.slider.addEventListener("input", () => {
        this.control.value = this.slider.value;
        this.debounce();
      });
      return this.slider;
    }

    limit(max) {
      this.max = max;
      this.control.max = String(max);
      if (this.slider) this.slider.max = String(max);
    }

    // Returns the value; null for invalid input, whose error is then shown
    read() {
      if (this.control.tagName === "SELECT") return this.control.value;
      const typed = this.control.value.trim().replace(",", "."),
        value = Number(typed);
      const inRange =
        typed !== "" && Number.isFinite(value) && value >= this.min && value <= this.max;
      if (inRange && (this.fraction || Number.isInteger(value))) {
        this.showError(null);
        return value;
      }
      const number = this.fraction ? "number" : "whole number";
      this.showError(`${this.label}: enter a ${number} from ${this.min} to ${this.max}.`);
      return null;
    }

    showError(why) {
      this.error.textContent = why || "";
      this.error.hidden = !why;
      if (why) this.control.setAttribute("aria-invalid", "true");
      else this.control.removeAttribute("aria-invalid");
    }

    showHint(hint) {
      this.hint.textContent = hint || "";
      this.hint.hidden = !hint;
    }

    // Shows the lab's value unless the user is typing
    show(value) {
      if (this.isEditing()) return;
      this.control.value = String(value);
      if (this.slider) this.slider.value = String(value);
    }

    isEditing() {
      const { control, slider } = this,
        active = document.activeElement;
      if (this.timer || !this.error.hidden) return true;
      return active === slider || (active === control && control.tagName !== "SELECT");
    }

    debounce() {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => {
        this.timer = 0;
        this.submit();
      }, DEBOUNCE_MS);
    }

    submit() {
      const value = this.read();
      if (value === null) return;
      if (this.slider) this.slider.value = String(value);
      this.changed(this.name, value);
    }
  }

  // Numbers have text fields: a browser does not return the value of an invalid number field
  function numberField(spec, changed, atOnce) {
    const control = make("input", {
      type: "text",
      inputMode: "decimal",
      autocomplete: "off",
      className: "lab-number",
    });
    const field = new Field(spec, control, changed);
    control.addEventListener(atOnce ? "input" : "change", () =>
      atOnce ? field.debounce() : field.submit(),
    );
    return field;
  }

  function choiceField(name, label, changed) {
    const field = new Field({ name, label }, make("select"), changed);
    field.control.addEventListener("change", () => field.submit());
    return field;
  }

  const options = (select, entries) => {
    const key = JSON.stringify(entries);
    if (select.dataset.key === key) return;
    select.dataset.key = key;
    select.replaceChildren(
      ...entries.map(([value, words, disabled]) =>
        make("option", { value, textContent: words, disabled: Boolean(disabled) }),
      ),
    );
  };

  function fieldset(title, ...content) {
    return make(
      "fieldset",
      { className: "lab-fieldset" },
      make("legend", { textContent: title }),
      ...content,
    );
  }

  // ------------------------------------------------------------------ load

  class LoadForm {
    constructor(act) {
      const changed = (name, value) => act({ do: "load", [name]: value }, this);
      this.fields = Object.fromEntries(
        LOAD.map((spec) => [spec.name, numberField(spec, changed, true)]),
      );
      this.models = MODELS.map(([value, words]) => {
        const radio = make("input", {
          type: "radio",
          name: "lab-model",
          value,
          onchange: () => changed("model", value),
        });
        return {
          value,
          radio,
          label: make("label", { className: "lab-check" }, radio, ` ${words}`),
        };
      });
      this.keepalive = make("input", {
        type: "checkbox",
        onchange: () => changed("keepalive", this.keepalive.checked),
      });
      const all = LOAD.map(({ name }) => this.fields[name].element);
      this.error = make("p", { className: "lab-error", role: "alert", hidden: true });
      this.element = fieldset(
        "Load: changes at once",
        ...this.models.map(({ label }) => label),
        make("div", { className: "lab-fields" }, ...all),
        make(
          "label",
          { className: "lab-check" },
          this.keepalive,
          " keep connections open (keep-alive)",
        ),
        this.error,
      );
    }

    limit(limits) {
      for (const field of Object.values(this.fields)) field.limit(limits[field.name]);
    }

    show(load) {
      for (const { value, radio } of this.models) radio.checked = value === load.model;
      for (const { name, model } of LOAD) {
        this.fields[name].show(load[name]);
        this.fields[name].element.hidden = model !== undefined && model !== load.model;
      }
      this.keepalive.checked = load.keepalive;
    }
  }

  // ------------------------------------------------------------------ a server

  class ServerForm {
    constructor(act, side) {
      this.side = side;
      const changed = (name, value) => act({ do: "server", side, [name]: value }, this);
      this.fields = Object.fromEntries(
        SERVER.map((spec) => [spec.name, numberField(spec, changed, false)]),
      );
      this.fields.worker_class = choiceField("worker_class", "Worker class", (_name, value) =>
        act({ do: "server", side, ...this.withApp(value) }, this),
      );
      this.fields.app = choiceField("app", "App", changed);
      const order = ["worker_class", "app", ...SERVER.map(({ name }) => name)];
      this.missing = make("details", { className: "lab-hint", hidden: true });
      this.fields.worker_class.element.append(this.missing);
      this.error = make("p", { className: "lab-error", role: "alert", hidden: true });
      this.element = fieldset(
        "",
        make("div", { className: "lab-fields" }, ...order.map((name) => this.fields[name].element)),
        this.error,
      );
    }

    // The class and an app that it can serve: the selected one, else the first
    withApp(name) {
      const fits = this.apps.filter((app) => app.classes.includes(name)).map((app) => app.name);
      const app = this.fields.app.control.value;
      return fits.includes(app) || !fits.length
        ? { worker_class: name }
        : { worker_class: name, app: fits[0] };
    }

    limit({ limits, classes, apps }) {
      this.apps = apps;
      for (const { name } of SERVER) this.fields[name].limit(limits[name]);
      options(
        this.fields.worker_class.control,
        classes.map(({ name, why }) => [name, why ? `${name} (not available)` : name, why]),
      );
      const unavailable = classes.filter(({ why }) => why);
      this.missing.hidden = !unavailable.length;
      this.missing.replaceChildren(
        make("summary", { textContent: `not available: ${unavailable.map(({ name }) => name).join(", ")}` }),
        ...unavailable.map(({ name, why }) => make("p", { textContent: `${name}: ${why}` })),
      );
    }

    show({ server, heeds }, title) {
      this.element.firstChild.textContent = title;
      const fits = this.apps.filter((app) => app.classes.includes(server.worker_class));
      options(
        this.fields.app.control,
        fits.map((app) => [app.name, app.title]),
      );
      for (const field of Object.values(this.fields)) field.show(server[field.name]);
      for (const { name } of SERVER) {
        const ignored = heeds && !heeds.includes(name);
        this.fields[name].showHint(ignored ? "ignored" : "");
        this.fields[name].element.classList.toggle("lab-ignored", Boolean(ignored));
      }
    }
  }

  // ------------------------------------------------------------------ all fields

  // `act(order)` resolves to null, or to {why, field} if the action is refused
  Lab.Controls = class {
    constructor(element, act) {
      this.act = async (order, form) => this.showRefusal(form, order, await act(order));
      this.element = element;
      this.load = new LoadForm(this.act);
      this.servers = [];
      this.container = make("div", { className: "lab-servers" });
      element.replaceChildren(this.load.element, this.container);
    }

    hello(hello) {
      this.greeting = hello;
      this.load.limit(hello.limits);
      for (const server of this.servers) server.limit(hello);
    }

    showRefusal(form, order, refusal) {
      const field = refusal && form.fields[refusal.field];
      for (const name of Object.keys(order))
        if (form.fields[name]) form.fields[name].showError(null);
      if (field) field.showError(refusal.why);
      form.error.textContent = refusal && !field ? refusal.why : "";
      form.error.hidden = !refusal || Boolean(field);
    }

    show({ sides, load }) {
      this.load.show(load);
      while (this.servers.length > sides.length) this.servers.pop().element.remove();
      while (this.servers.length < sides.length) {
        const form = new ServerForm(this.act, this.servers.length);
        form.limit(this.greeting);
        this.servers.push(form);
        this.container.append(form.element);
      }
      sides.forEach((side, i) =>
        this.servers[i].show(
          side,
          sides.length > 1 ? `Server ${"AB"[i]}` : "Server: a change restarts it",
        ),
      );
      this.container.classList.toggle("lab-servers-two", sides.length > 1);
    }

    enable(on) {
      this.load.element.disabled = !on;
      for (const { element } of this.servers) element.disabled = !on;
      this.enabled = on;
    }
  };
})();
