"use strict";
// The picture of one server: clients, connection, accept queue, workers and their slots, done.
// Every dot is a request. A Scene gets data (configure, move, observe) and draws on its canvas. It
// does no I/O and reads no clock: its caller passes the time.
(() => {
  const Lab = (window.Lab = window.Lab || {});

  const { CONNECTING, QUEUED, ACCEPTED, SERVED, FAILED } = Lab.places;
  const DRAWN = 600; // up to this many requests in the app, all are drawn
  const EASE_MS = 75; // a dot covers 63 % of its way in this time, or, if that is shorter,
  const STAY_EASED = 8; // in the time that requests are in the app, divided by this
  const [FILLED, HOLLOW, FADED] = [0, 1, 2]; // how a dot is drawn
  const FADED_ALPHA = 0.35;
  const LASTING_MS = 300; // an accepted request that is not in the app for this long is waiting
  const SYN_MS = 1000; // Linux retransmits an unanswered SYN after a second
  const { grid, gridX, gridY, boxes, inset, cut, splitWorkers, workerBoxes, roomFor } = Lab.layout;

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

  const spread = (id) => (id * 0.618034) % 1; // evenly over 0 to 1, for any ids

  function circle(to, x, y, r) {
    to.moveTo(x + r, y);
    to.arc(x, y, r, 0, 2 * Math.PI);
  }

  class Scene {
    constructor(canvas) {
      this.canvas = canvas;
      this.context = canvas.getContext("2d");
      this.still = document.createElement("canvas"); // the static parts, drawn once
      this.crowd = new Lab.Crowd();
      this.side = { server: {}, slots: null, accepts_first: false };
      this.load = null;
      this.workers = 1;
      this.each = null; // slots of a worker; null: unlimited
      this.figures = {};
      this.rooms = { waiting: [8, 8, 8], seats: 1, links: 8 };
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
      this.rooms.waiting.fill(8);
      this.rooms.seats = 1;
      this.stale = this.fresh = true;
      this.accepts = false; // whether an accepted request has waited, whatever the class
      this.inferred = false; // whether the place of an accepted request was ever inferred
    }

    // `side`: as in the stream or a trace; `load`: {model, clients, rate}, or null if unknown
    configure(side, load) {
      const { server, backlog = server.backlog } = side;
      this.side = { ...side, server: { ...server, backlog } };
      this.load = load;
      this.patience = 1000 * (load?.patience_s || Infinity); // ms
      this.runs = side.phase === undefined || side.phase === "running";
      this.workers = side.server.workers || side.workers || 1;
      this.each =
        side.slots === null || side.slots === undefined
          ? null
          : Math.max(1, Math.round(side.slots / this.workers));
      this.crowd.each = this.each ?? Infinity;
      this.refresh();
    }

    move(id, place, worker, t) {
      this.crowd.move(id, place, worker, t);
      this.fresh = true;
    }

    // Counts of all requests, for a load of which only some are drawn, or which began before this
    // page was opened; `queue`: as counted by the kernel, if the moves do not show it
    observe({ queue, connections, counts, drawn, answered, failed, causes }) {
      const differs = (value, old) => value !== undefined && value !== old;
      const isNew = differs(queue, this.queue) || differs(connections, this.connections);
      if (isNew || answered !== undefined) this.fresh = true;
      if (queue !== undefined) this.queue = queue;
      if (connections !== undefined) this.connections = connections;
      this.counts = drawn > 1 ? counts : null;
      if (answered !== undefined) this.total = { answered, failed: failed || 0, causes };
    }

    // Requests at each place, and idle connections; `into`: an object to reuse
    numbers(into = {}) {
      const { crowd, total } = this,
        [connecting, queued, accepted] = crowd.waiting;
      const kept = !this.load || this.load.keepalive ? (this.connections ?? 0) : 0;
      const drawn = [connecting.length, queued.length, accepted.length, crowd.served];
      // Moves continue between two counts
      [into.connecting, into.queued, into.accepted, into.served] = drawn.map((count, place) =>
        this.counts && (place < SERVED || count >= DRAWN) ? Math.max(count, this.counts[place]) : count,
      );
      into.underWay = into.connecting + into.queued + into.accepted + into.served;
      into.queued = this.queue ?? into.queued;
      into.idle = Math.max(0, kept - into.underWay);
      into.answered = total ? total.answered : crowd.answered;
      into.abandoned = 0;
      for (const dot of crowd.byId.values()) if (this.gaveUp(dot)) into.abandoned++;
      into.failed = total ? total.failed : crowd.failed + into.abandoned; // each when its client gave up
      into.causes = total?.causes ?? {};
      return into;
    }

    // Draws the state at `at` ms. `dt`: ms on the screen since the last frame; `snap`: without
    // movement; `pace`: ms on the screen per ms of the load. Returns whether anything still moves.
    draw(at, dt, snap, pace = 1) {
      this.now = at;
      this.pace = pace;
      const { [CONNECTING]: connecting, [ACCEPTED]: accepted } = this.crowd.waiting;
      // Nothing is new, and no request changes its look with its age
      if (!this.fresh && !connecting.length && !accepted.length && this.patience === Infinity)
        return false;
      this.numbers(this.figures);
      this.fitRooms();
      if (this.stale) this.arrange();
      if (!this.width) return false;
      const { context } = this;
      context.setTransform(1, 0, 0, 1, 0, 0);
      context.drawImage(this.still, 0, 0);
      context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
      this.moved = 0;
      const { stay } = this.crowd,
        easeMs = stay === null ? EASE_MS : Math.min(EASE_MS, (stay * pace) / STAY_EASED);
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

    // Makes room for all requests; if the room changes, the layout is made anew
    fitRooms() {
      const { rooms, crowd, side } = this,
        { waiting } = rooms,
        { backlog } = side.server;
      this.room(
        waiting,
        CONNECTING,
        roomFor(crowd.waiting[CONNECTING].length, waiting[CONNECTING]),
      );
      this.room(waiting, ACCEPTED, roomFor(crowd.waiting[ACCEPTED].length, waiting[ACCEPTED]));
      this.bounded = backlog <= 48; // whether each place of the queue is drawn
      const queued = crowd.waiting[QUEUED].length;
      this.room(
        waiting,
        QUEUED,
        this.bounded ? Math.max(backlog + 1, queued) : roomFor(queued, waiting[QUEUED]),
      );
      let most = this.each !== null && this.each <= 64 ? this.each : 0;
      this.slotted = most > 0;
      for (const seats of crowd.seats) most = Math.max(most, seats.length);
      this.room(rooms, "seats", this.slotted ? most : roomFor(most, rooms.seats));
      this.room(rooms, "links", roomFor(Math.min(500, this.figures.idle), rooms.links));
      const [accepted] = crowd.waiting[ACCEPTED]; // the first has waited longest
      const waits = accepted !== undefined && this.now - crowd.since[accepted] > LASTING_MS;
      if (waits) this.room(this, "accepts", true);
      if (crowd.waiting[ACCEPTED].some((dot) => crowd.worker[dot] < 0))
        this.room(this, "inferred", true);
    }

    room(holder, name, value) {
      if (holder[name] === value) return;
      holder[name] = value;
      this.stale = true;
    }

    // The number of clients; 0: unknown, or random arrivals
    get clients() {
      if (!this.load) return this.side.clients || 0;
      return this.load.model === "closed" ? this.load.clients : 0;
    }

    // Whether its client has given up; the server does not notice that and still serves it
    gaveUp(dot) {
      return this.now - this.crowd.begun[dot] >= this.patience;
    }

    arrange() {
      const { canvas, still } = this;
      this.width = canvas.clientWidth;
      this.height = canvas.clientHeight;
      if (!this.width || !this.height) return;
      this.stale = false;
      this.ratio = Math.min(2, window.devicePixelRatio || 1);
      for (const layer of [canvas, still]) {
        layer.width = Math.round(this.width * this.ratio);
        layer.height = Math.round(this.height * this.ratio);
      }
      this.colour = {};
      const colour = Lab.colours(canvas);
      for (const name of COLOURS) this.colour[name] = colour(name);
      this.placeBoxes();
      Lab.paintStill(still.getContext("2d"), this);
    }

    placeBoxes() {
      const { waiting, links: linksRoom } = this.rooms;
      const [clients, connection, queue, workers, done] = boxes(this.width, this.height);
      this.tall = clients.tall;
      const [syn, links] = cut(inset(connection, 5), 0.6, this.tall);
      const accepts = this.side.accepts_first || this.accepts;
      const { accepted, dots, area } = splitWorkers(workers, this.tall, accepts);
      this.at = { clients, connection, queue, workers, done, links, accepted };
      const first = this.tall ? "bottom" : "right";
      this.grids = {
        links: grid(links, linksRoom, "top", 16),
        waiting: [
          grid(syn, waiting[CONNECTING], first),
          grid(inset(queue, 6), waiting[QUEUED], first),
          grid(dots, waiting[ACCEPTED], first),
        ],
      };
      this.boxes = workerBoxes(area, Math.min(64, this.workers), () => this.rooms.seats);
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
      const { context: to } = this,
        cells = this.grids.links,
        count = Math.min(this.figures.idle, cells.room);
      if (!count) return;
      const long = Math.min(5.5, cells.cell * 0.36),
        end = Math.max(1, long * 0.36);
      to.strokeStyle = this.colour.sockets;
      to.lineWidth = 1.2;
      to.beginPath();
      for (let i = 0; i < count; i++) {
        const x = gridX(cells, i),
          y = gridY(cells, i);
        to.moveTo(x - long + end, y);
        to.lineTo(x + long - end, y);
        to.moveTo(x - long + end, y);
        to.arc(x - long, y, end, 0, 7);
        to.moveTo(x + long + end, y);
        to.arc(x + long, y, end, 0, 7);
      }
      to.stroke();
    }

    // Requests that are connecting, in the accept queue, or accepted
    paintWaiting() {
      const { context: to, crowd } = this;
      this.repeated = 0;
      for (let place = CONNECTING; place <= ACCEPTED; place++) {
        const cells = this.grids.waiting[place],
          list = crowd.waiting[place],
          last = cells.room - 1;
        for (let i = 0; i < list.length; i++) {
          const seat = i < last ? i : last;
          this.step(list[i], gridX(cells, seat), gridY(cells, seat), cells.r);
          if (place === CONNECTING && this.repeats(list[i])) this.repeated++;
        }
        to.fillStyle = to.strokeStyle = this.colour[STATES[place]];
        to.lineWidth = cells.line;
        this.pathOf(list, place, FILLED);
        to.fill();
        this.pathOf(list, place, HOLLOW);
        to.stroke();
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
      return this.now - this.crowd.since[dot] >= SYN_MS;
    }

    // Hollow: its place is inferred, or its client retransmits the SYN
    lookOf(dot, place) {
      if (this.gaveUp(dot)) return FADED;
      const inferred = place === ACCEPTED && this.crowd.worker[dot] < 0;
      return inferred || (place === CONNECTING && this.repeats(dot)) ? HOLLOW : FILLED;
    }

    pathOf(list, place, look) {
      const { context: to, crowd } = this;
      to.beginPath();
      for (const dot of list)
        if (this.lookOf(dot, place) === look) circle(to, crowd.x[dot], crowd.y[dot], crowd.r[dot]);
    }

    paintServed() {
      this.context.fillStyle = this.colour.service;
      this.pathServed(FILLED);
      this.context.fill();
      this.pathServed(FADED);
      this.fillFaded();
    }

    pathServed(look) {
      const { context: to, crowd, boxes: all } = this;
      to.beginPath();
      for (let worker = 0; worker < crowd.seats.length; worker++) {
        const cells = all[worker % all.length].grid,
          seats = crowd.seats[worker],
          last = cells.room - 1;
        for (let i = 0; i < seats.length; i++) {
          const dot = seats[i],
            seat = i < last ? i : last;
          if (dot < 0 || this.lookOf(dot, SERVED) !== look) continue;
          this.step(dot, gridX(cells, seat), gridY(cells, seat), cells.r);
          circle(to, crowd.x[dot], crowd.y[dot], crowd.r[dot]);
        }
      }
    }

    // Answered requests fade in the last box. Failed ones are crosses, at their last place if no
    // worker had accepted them.
    paintLeaving() {
      const { context: to, crowd } = this,
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
        else if (Number.isNaN(crowd.x[dot])) continue; // it was never sent
        const x = crowd.x[dot],
          y = crowd.y[dot],
          r = crowd.r[dot];
        to.globalAlpha = Math.min(1, (1.6 * crowd.left[dot]) / Lab.LEAVE_MS);
        to.beginPath();
        if (crowd.place[dot] === FAILED) {
          to.moveTo(x - r, y - r);
          to.lineTo(x + r, y + r);
          to.moveTo(x + r, y - r);
          to.lineTo(x - r, y + r);
          to.strokeStyle = this.colour.connect;
          to.lineWidth = 2.5;
          to.stroke();
        } else {
          circle(to, x, y, r);
          to.fillStyle = this.colour.transfer;
          to.fill();
        }
      }
      to.globalAlpha = 1;
    }
  }

  Lab.Scene = Scene;
})();
