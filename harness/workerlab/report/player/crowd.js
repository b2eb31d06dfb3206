"use strict";
// The requests in flight of one server: their places, since when they are there, and their slots.
(() => {
  const Lab = (window.Lab = window.Lab || {});
  const CONNECTING = 0,
    QUEUED = 1,
    ACCEPTED = 2,
    SERVED = 3,
    ANSWERED = 4,
    FAILED = 5;
  const LEAVE_MS = 700; // how long an answered request remains visible

  function drop(list, value) {
    const at = list.indexOf(value);
    if (at < 0) return;
    list.copyWithin(at, at + 1);
    list.pop();
  }

  // A dot is an index into arrays of properties, so drawing a frame allocates nothing
  class Crowd {
    constructor() {
      this.slotsPerWorker = Infinity;
      this.capacity = 0;
      this.grow(1024);
      this.clear();
    }

    grow(capacity) {
      const wider = (old, Type) => {
        const wide = new Type(capacity);
        if (old) wide.set(old);
        return wide;
      };
      for (const name of ["x", "y", "r", "left", "begun", "since"])
        this[name] = wider(this[name], Float64Array);
      for (const name of ["place", "worker", "id", "from"])
        this[name] = wider(this[name], Int32Array);
      this.capacity = capacity;
    }

    clear() {
      this.byId = new Map();
      this.free = [];
      this.used = 0;
      this.waiting = [[], [], []]; // dots at the places 0, 1, 2, in order of arrival
      this.slots = []; // the slots of each worker: a dot, or -1 if free
      this.served = 0;
      this.leaving = [];
      this.answered = this.failed = 0;
      this.stay = null; // recent mean time in the app, ms
    }

    get underWay() {
      return this.byId.size;
    }

    add(id, t) {
      if (!this.free.length && this.used === this.capacity) this.grow(2 * this.capacity);
      const dot = this.free.length ? this.free.pop() : this.used++;
      this.x[dot] = NaN; // placed when it is first drawn
      this.id[dot] = id;
      this.from[dot] = -1;
      this.begun[dot] = t;
      this.byId.set(id, dot);
      return dot;
    }

    move(id, place, worker, t) {
      let dot = this.byId.get(id);
      if (place === ANSWERED) this.answered++;
      if (place === FAILED) this.failed++;
      if (dot !== undefined) this.leavePlace(dot, t);
      else if (place < ANSWERED) dot = this.add(id, t);
      else return;
      this.place[dot] = place;
      this.since[dot] = t;
      this.worker[dot] = worker ?? -1;
      if (place === SERVED) this.enterApp(dot);
      else if (place < SERVED) this.waiting[place].push(dot);
      else {
        this.byId.delete(id);
        this.left[dot] = LEAVE_MS;
        this.leaving.push(dot);
      }
    }

    leavePlace(dot, t) {
      this.from[dot] = this.place[dot];
      if (this.place[dot] !== SERVED) {
        drop(this.waiting[this.place[dot]], dot);
        return;
      }
      const stay = t - this.since[dot];
      this.stay = this.stay === null ? stay : this.stay + (stay - this.stay) * 0.1;
      const slots = this.slots[Math.max(0, this.worker[dot])];
      const slot = slots.indexOf(dot);
      slots[slot] = -1;
      // The next request is often reported in the app before this one is reported as answered
      if (slots.length > this.slotsPerWorker && slot < this.slotsPerWorker) slots[slot] = slots.pop();
      while (slots.length && slots[slots.length - 1] < 0) slots.pop();
      this.served--;
    }

    enterApp(dot) {
      const worker = Math.max(0, this.worker[dot]);
      while (this.slots.length <= worker) this.slots.push([]);
      const slots = this.slots[worker],
        empty = slots.indexOf(-1);
      if (empty < 0) slots.push(dot);
      else slots[empty] = dot;
      this.served++;
    }

    // Answered and failed requests fade, then leave the picture
    fade(dt) {
      let remaining = 0;
      for (const dot of this.leaving) {
        this.left[dot] -= dt;
        if (this.left[dot] > 0) this.leaving[remaining++] = dot;
        else this.free.push(dot);
      }
      this.leaving.length = remaining;
    }
  }

  Lab.places = { CONNECTING, QUEUED, ACCEPTED, SERVED, ANSWERED, FAILED };
  Lab.LEAVE_MS = LEAVE_MS;
  Lab.Crowd = Crowd;
})();
