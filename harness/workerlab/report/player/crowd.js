"use strict";
// The requests in flight of one server: where each one is, since when, and in which slot.
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

  // A dot is an index into arrays of its properties, so that drawing a frame allocates nothing.
  class Crowd {
    constructor() {
      this.each = Infinity; // slots of a worker
      this.room = 0;
      this.grow(1024);
      this.clear();
    }

    grow(room) {
      const wider = (old, Type) => {
        const wide = new Type(room);
        if (old) wide.set(old);
        return wide;
      };
      for (const name of ["x", "y", "r", "left", "begun", "since"])
        this[name] = wider(this[name], Float64Array);
      for (const name of ["place", "worker", "id", "from"])
        this[name] = wider(this[name], Int32Array);
      this.room = room;
    }

    clear() {
      this.byId = new Map();
      this.free = [];
      this.used = 0;
      this.waiting = [[], [], []]; // dots at the places 0, 1, 2, in order of arrival
      this.seats = []; // per worker: its slots, each with a dot or -1
      this.served = 0;
      this.leaving = [];
      this.answered = this.failed = 0;
      this.stay = null; // recent mean time in the app, ms
    }

    get underWay() {
      return this.byId.size;
    }

    spawn(id, t) {
      if (!this.free.length && this.used === this.room) this.grow(2 * this.room);
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
      if (dot !== undefined) this.rise(dot, t);
      else if (place < ANSWERED) dot = this.spawn(id, t);
      else return;
      this.place[dot] = place;
      this.since[dot] = t;
      this.worker[dot] = worker ?? -1;
      if (place === SERVED) this.sit(dot);
      else if (place < SERVED) this.waiting[place].push(dot);
      else {
        this.byId.delete(id);
        this.left[dot] = LEAVE_MS;
        this.leaving.push(dot);
      }
    }

    rise(dot, t) {
      this.from[dot] = this.place[dot];
      if (this.place[dot] !== SERVED) {
        drop(this.waiting[this.place[dot]], dot);
        return;
      }
      const stay = t - this.since[dot];
      this.stay = this.stay === null ? stay : this.stay + (stay - this.stay) * 0.1;
      const seats = this.seats[Math.max(0, this.worker[dot])];
      const seat = seats.indexOf(dot);
      seats[seat] = -1;
      // The next request is often reported in the app before this one's answer
      if (seats.length > this.each && seat < this.each) seats[seat] = seats.pop();
      while (seats.length && seats[seats.length - 1] < 0) seats.pop();
      this.served--;
    }

    sit(dot) {
      const worker = Math.max(0, this.worker[dot]);
      while (this.seats.length <= worker) this.seats.push([]);
      const seats = this.seats[worker],
        empty = seats.indexOf(-1);
      if (empty < 0) seats.push(dot);
      else seats[empty] = dot;
      this.served++;
    }

    // Answered and failed requests fade, then leave the picture
    fade(dt) {
      let kept = 0;
      for (const dot of this.leaving) {
        this.left[dot] -= dt;
        if (this.left[dot] > 0) this.leaving[kept++] = dot;
        else this.free.push(dot);
      }
      this.leaving.length = kept;
    }
  }

  Lab.places = { CONNECTING, QUEUED, ACCEPTED, SERVED, ANSWERED, FAILED };
  Lab.LEAVE_MS = LEAVE_MS;
  Lab.Crowd = Crowd;
})();
