"use strict";
// The picture of one server: clients, connection, accept queue, workers with their slots, done. Each
// dot is a request. A Scene receives data (configure, move, observe) and draws it on its canvas. It
// does no I/O and reads no clock: the caller passes the time.
(() => {
  const Lab = (window.Lab = window.Lab || {});

  const { CONNECTING, QUEUED, ACCEPTED, SERVED, FAILED } = Lab.places;
  const MAX_ALL_DRAWN = 600; // up to this many requests in the app, all are drawn
  const EASE_MS = 75; // a dot covers 63 % of its way in this time, but at most in
  const EASES_PER_STAY = 8; // a request's mean time in the app, divided by this
  const [FILLED, HOLLOW, FADED] = [0, 1, 2]; // how a dot is drawn
  const FADED_ALPHA = 0.35;
  const MIN_WAIT_MS = 300; // an accepted request is waiting if it enters the app later than this
  const SYN_RETRY_MS = 1000; // Linux retransmits an unanswered SYN after a second
  const { grid, gridX, gridY, boxes, inset, cut, splitWorkers, workerBoxes, capacityFor } = Lab.layout;

  const STATES = ["connect", "accept-queue", "in-worker", "service", "transfer", "connect"];
  const COLOURS = ["paper", "panel", "ink", "soft", "line", "sockets", ...STATES];

  Lab.colours = (element) => {
    const style = getComputedStyle(element);
    return (name) => style.getPropertyValue(`--${name}`).trim() || "#808080";
  };

  Lab.amount = (value, digits = 1) =>
    value === null || value === undefined
      ? "–"
      : value >= 100
        ? value.toFixed(0)
        : value.toFixed(digits);

  const spread = (id) => (id * 0.618034) % 1; // evenly from 0 to 1, whatever the ids

  function circle(ctx, x, y, r) {
    ctx.moveTo(x + r, y);
    ctx.arc(x, y, r, 0, 2 * Math.PI);
  }

  class Scene {
    constructor(canvas) {
      this.canvas = canvas;
      this.context = canvas.getContext("2d");
      this.background = document.createElement("canvas"); // the static parts, drawn once
      this.crowd = new Lab.Crowd();
      this.side = { server: {}, slots: null, accepts_first: false };
      this.load = null;
      this.workers = 1;
      this.slotsPerWorker = null; // null: unlimited
      this.figures = {};
      this.capacities = { waiting: [8, 8, 8], slots: 1, links: 8 };
      this.onstale = null;
      this.pace = 1;
      this.patience = Infinity;
      this.clear();
      new ResizeObserver(() => this.refresh()).observe(canvas);
      matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.refresh());
    }

    refresh() {
      this.stale = this.fresh = true;
      if (this.onstale) this.onstale();
    }

    clear() {
      this.crowd.clear();
      this.queue = this.connections = this.total = this.counts = null;
      this.capacities.waiting.fill(8);
      this.capacities.slots = 1;
      this.stale = this.fresh = true;
      this.accepts = false; // whether an accepted request ever waited, whatever the class
      this.inferred = false; // whether the place of an accepted request was ever inferred
    }

    // `side`: an entry of the stream or a trace; `load`: {model, clients, rate}, or null if unknown
    configure(side, load) {
      const { server, backlog = server.backlog } = side;
      this.side = { ...side, server: { ...server, backlog } };
      this.load = load;
      this.patience = 1000 * (load?.patience_s || Infinity); // ms
      this.isRunning = side.phase === undefined || side.phase === "running";
      this.workers = side.server.workers || side.workers || 1;
      this.slotsPerWorker =
        side.slots === null || side.slots === undefined
          ? null
          : Math.max(1, Math.round(side.slots / this.workers));
      this.crowd.slotsPerWorker = this.slotsPerWorker ?? Infinity;
      this.refresh();
    }

    move(id, place, worker, t) {
      this.crowd.move(id, place, worker, t);
      this.fresh = true;
    }

    // Takes counts of all requests, for loads that are drawn only in part, or that began before this
    // page was opened. `queue`: the kernel's count, if the moves do not show the queue
    observe({ queue, connections, counts, drawn, answered, failed, causes }) {
      const differs = (value, old) => value !== undefined && value !== old;
      const isNew = differs(queue, this.queue) || differs(connections, this.connections);
      if (isNew || answered !== undefined) this.fresh = true;
      if (queue !== undefined) this.queue = queue;
      if (connections !== undefined) this.connections = connections;
      this.counts = drawn > 1 ? counts : null;
      if (answered !== undefined) this.total = { answered, failed: failed || 0, causes };
    }

    // Returns the number of requests at each place and of idle connections. `into`: an object to reuse
    numbers(into = {}) {
      const { crowd, total } = this,
        [connecting, queued, accepted] = crowd.waiting;
      const keptAlive = !this.load || this.load.keepalive ? (this.connections ?? 0) : 0;
      const drawnCounts = [connecting.length, queued.length, accepted.length, crowd.served];
      // Moves continue between two counts
      [into.connecting, into.queued, into.accepted, into.served] = drawnCounts.map((count, place) =>
        this.counts && (place < SERVED || count >= MAX_ALL_DRAWN) ? Math.max(count, this.counts[place]) : count,
      );
      into.underWay = into.connecting + into.queued + into.accepted + into.served;
      into.queued = this.queue ?? into.queued;
      into.idle = Math.max(0, keptAlive - into.underWay);
      into.answered = total ? total.answered : crowd.answered;
      into.abandoned = 0;
      for (const dot of crowd.byId.values()) if (this.gaveUp(dot)) into.abandoned++;
      // A request fails when its client gives up
      into.failed = total ? total.failed : crowd.failed + into.abandoned;
      into.causes = total?.causes ?? {};
      return into;
    }

    // Draws the state at `at` ms. `dt`: ms on the screen since the last frame; `snap`: dots jump to
    // their positions; `pace`: ms on the screen per ms of the load. Returns whether a dot still moves.
    draw(at, dt, snap, pace = 1) {
      this.now = at;
      this.pace = pace;
      const { [CONNECTING]: connecting, [ACCEPTED]: accepted } = this.crowd.waiting;
      // Nothing has changed, and no request changes its look with its age
      if (!this.fresh && !connecting.length && !accepted.length && this.patience === Infinity)
        return false;
      this.numbers(this.figures);
      this.fitCapacities();
      if (this.stale) this.arrange();
      if (!this.width) return false;
      const { context } = this;
      context.setTransform(1, 0, 0, 1, 0, 0);
      context.drawImage(this.background, 0, 0);
      context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
      this.moved = 0;
      const { stay } = this.crowd,
        easeMs = stay === null ? EASE_MS : Math.min(EASE_MS, (stay * pace) / EASES_PER_STAY);
      this.ease = snap ? 1 : 1 - Math.exp(-dt / Math.max(1, easeMs));
      this.crowd.fade(dt);
      this.paintLinks();
      this.paintWaiting();
      this.paintServed();
      this.paintLeaving();
      Lab.paintNumbers(context, this);
      this.fresh = this.moved > 0.3 || this.crowd.leaving.length > 0;
      return this.fresh;
    }

    // ---------------------------------------------------------------- the static parts

    // Makes room for all requests. A change of capacity makes the layout stale
    fitCapacities() {
      const { capacities, crowd, side } = this,
        { waiting } = capacities,
        { backlog } = side.server;
      this.update(
        waiting,
        CONNECTING,
        capacityFor(crowd.waiting[CONNECTING].length, waiting[CONNECTING]),
      );
      this.update(waiting, ACCEPTED, capacityFor(crowd.waiting[ACCEPTED].length, waiting[ACCEPTED]));
      this.bounded = backlog <= 48; // whether each position in the queue is drawn
      const queued = crowd.waiting[QUEUED].length;
      this.update(
        waiting,
        QUEUED,
        this.bounded ? Math.max(backlog + 1, queued) : capacityFor(queued, waiting[QUEUED]),
      );
      let most = this.slotsPerWorker !== null && this.slotsPerWorker <= 64 ? this.slotsPerWorker : 0;
      this.slotted = most > 0;
      for (const slots of crowd.slots) most = Math.max(most, slots.length);
      this.update(capacities, "slots", this.slotted ? most : capacityFor(most, capacities.slots));
      this.update(capacities, "links", capacityFor(Math.min(500, this.figures.idle), capacities.links));
      const [accepted] = crowd.waiting[ACCEPTED]; // the first has waited longest
      const waits = accepted !== undefined && this.now - crowd.since[accepted] > MIN_WAIT_MS;
      if (waits) this.update(this, "accepts", true);
      if (crowd.waiting[ACCEPTED].some((dot) => crowd.worker[dot] < 0))
        this.update(this, "inferred", true);
    }

    update(holder, name, value) {
      if (holder[name] === value) return;
      holder[name] = value;
      this.stale = true;
    }

    // The number of clients; 0: unknown, or random arrivals
    get clients() {
      if (!this.load) return this.side.clients || 0;
      return this.load.model === "closed" ? this.load.clients : 0;
    }

    // Whether the client has given up; the server does not notice and still serves the request
    gaveUp(dot) {
      return this.now - this.crowd.begun[dot] >= this.patience;
    }

    arrange() {
      const { canvas, background } = this;
      this.width = canvas.clientWidth;
      this.height = canvas.clientHeight;
      if (!this.width || !this.height) return;
      this.stale = false;
      this.ratio = Math.min(2, window.devicePixelRatio || 1);
      for (const layer of [canvas, background]) {
        layer.width = Math.round(this.width * this.ratio);
        layer.height = Math.round(this.height * this.ratio);
      }
      this.colour = {};
      const colour = Lab.colours(canvas);
      for (const name of COLOURS) this.colour[name] = colour(name);
      this.placeBoxes();
      Lab.paintBackground(background.getContext("2d"), this);
    }

    placeBoxes() {
      const { waiting, links: linksCapacity } = this.capacities;
      const [clients, connection, queue, workers, done] = boxes(this.width, this.height);
      this.tall = clients.tall;
      const [syn, links] = cut(inset(connection, 5), 0.6, this.tall);
      const accepts = this.side.accepts_first || this.accepts;
      const { accepted, dots, area } = splitWorkers(workers, this.tall, accepts);
      this.at = { clients, connection, queue, workers, done, links, accepted };
      const first = this.tall ? "bottom" : "right";
      this.grids = {
        links: grid(links, linksCapacity, "top", 16),
        waiting: [
          grid(syn, waiting[CONNECTING], first),
          grid(inset(queue, 6), waiting[QUEUED], first),
          grid(dots, waiting[ACCEPTED], first),
        ],
      };
      this.boxes = workerBoxes(area, Math.min(64, this.workers), () => this.capacities.slots);
    }

    // ---------------------------------------------------------------- the moving parts

    // Moves a dot one step towards its position
    step(dot, x, y, r) {
      const { crowd } = this;
      if (Number.isNaN(crowd.x[dot])) this.appear(dot);
      const dx = x - crowd.x[dot],
        dy = y - crowd.y[dot],
        way = Math.abs(dx) + Math.abs(dy);
      crowd.x[dot] += dx * this.ease;
      crowd.y[dot] += dy * this.ease;
      crowd.r[dot] += (r - crowd.r[dot]) * this.ease;
      const rest = way * (1 - this.ease);
      if (rest > this.moved) this.moved = rest;
    }

    appear(dot) {
      const { crowd } = this,
        box = this.at.clients;
      crowd.x[dot] = box.x + box.w / 2;
      crowd.y[dot] = box.y + box.h * spread(crowd.id[dot]);
      crowd.r[dot] = 2;
    }

    // An idle connection: two ends and a line between them
    paintLinks() {
      const { context: ctx } = this,
        cells = this.grids.links,
        count = Math.min(this.figures.idle, cells.capacity);
      if (!count) return;
      const long = Math.min(5.5, cells.cell * 0.36),
        end = Math.max(1, long * 0.36);
      ctx.strokeStyle = this.colour.sockets;
      ctx.lineWidth = 1.2;
      ctx.beginPath();
      for (let i = 0; i < count; i++) {
        const x = gridX(cells, i),
          y = gridY(cells, i);
        ctx.moveTo(x - long + end, y);
        ctx.lineTo(x + long - end, y);
        ctx.moveTo(x - long + end, y);
        ctx.arc(x - long, y, end, 0, 7);
        ctx.moveTo(x + long + end, y);
        ctx.arc(x + long, y, end, 0, 7);
      }
      ctx.stroke();
    }

    // Requests that are connecting, in the accept queue, or accepted
    paintWaiting() {
      const { context: ctx, crowd } = this;
      this.repeated = 0;
      for (let place = CONNECTING; place <= ACCEPTED; place++) {
        const cells = this.grids.waiting[place],
          list = crowd.waiting[place],
          last = cells.capacity - 1;
        for (let i = 0; i < list.length; i++) {
          const position = i < last ? i : last;
          this.step(list[i], gridX(cells, position), gridY(cells, position), cells.r);
          if (place === CONNECTING && this.repeats(list[i])) this.repeated++;
        }
        ctx.fillStyle = ctx.strokeStyle = this.colour[STATES[place]];
        ctx.lineWidth = cells.line;
        this.pathOf(list, place, FILLED);
        ctx.fill();
        this.pathOf(list, place, HOLLOW);
        ctx.stroke();
        this.pathOf(list, place, FADED);
        this.fillFaded();
      }
    }

    fillFaded() {
      this.context.globalAlpha = FADED_ALPHA;
      this.context.fill();
      this.context.globalAlpha = 1;
    }

    repeats(dot) {
      return this.now - this.crowd.since[dot] >= SYN_RETRY_MS;
    }

    // Hollow: the place is inferred, or the client retransmits the SYN
    lookOf(dot, place) {
      if (this.gaveUp(dot)) return FADED;
      const inferred = place === ACCEPTED && this.crowd.worker[dot] < 0;
      return inferred || (place === CONNECTING && this.repeats(dot)) ? HOLLOW : FILLED;
    }

    pathOf(list, place, look) {
      const { context: ctx, crowd } = this;
      ctx.beginPath();
      for (const dot of list)
        if (this.lookOf(dot, place) === look) circle(ctx, crowd.x[dot], crowd.y[dot], crowd.r[dot]);
    }

    paintServed() {
      this.context.fillStyle = this.colour.service;
      this.pathServed(FILLED);
      this.context.fill();
      this.pathServed(FADED);
      this.fillFaded();
    }

    pathServed(look) {
      const { context: ctx, crowd, boxes: all } = this;
      ctx.beginPath();
      for (let worker = 0; worker < crowd.slots.length; worker++) {
        const cells = all[worker % all.length].grid,
          slots = crowd.slots[worker],
          last = cells.capacity - 1;
        for (let i = 0; i < slots.length; i++) {
          const dot = slots[i],
            position = i < last ? i : last;
          if (dot < 0 || this.lookOf(dot, SERVED) !== look) continue;
          this.step(dot, gridX(cells, position), gridY(cells, position), cells.r);
          circle(ctx, crowd.x[dot], crowd.y[dot], crowd.r[dot]);
        }
      }
    }

    // Answered requests fade in the last box. Failed ones are crosses there, or at their last place if
    // no worker had accepted them
    paintLeaving() {
      const { context: ctx, crowd } = this,
        box = this.at.done,
        size = Math.min(5, Math.max(2, this.boxes[0].grid.r));
      const { tall } = this;
      for (const dot of crowd.leaving) {
        const aside = spread(crowd.id[dot]) * 0.8 + 0.1;
        if (crowd.place[dot] !== FAILED || crowd.from[dot] > QUEUED)
          this.step(
            dot,
            box.x + box.w * (tall ? aside : 0.5),
            box.y + box.h * (tall ? 0.5 : aside),
            size,
          );
        else if (Number.isNaN(crowd.x[dot])) continue; // was never sent
        const x = crowd.x[dot],
          y = crowd.y[dot],
          r = crowd.r[dot];
        ctx.globalAlpha = Math.min(1, (1.6 * crowd.left[dot]) / Lab.LEAVE_MS);
        ctx.beginPath();
        if (crowd.place[dot] === FAILED) {
          ctx.moveTo(x - r, y - r);
          ctx.lineTo(x + r, y + r);
          ctx.moveTo(x + r, y - r);
          ctx.lineTo(x - r, y + r);
          ctx.strokeStyle = this.colour.connect;
          ctx.lineWidth = 2.5;
          ctx.stroke();
        } else {
          circle(ctx, x, y, r);
          ctx.fillStyle = this.colour.transfer;
          ctx.fill();
        }
      }
      ctx.globalAlpha = 1;
    }
  }

  Lab.Scene = Scene;
})();
