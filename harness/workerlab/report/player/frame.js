"use strict";
// The static parts of the picture (boxes, slots, headings), and the numbers in them.
(() => {
  const Lab = (window.Lab = window.Lab || {});
  const { gridX, gridY } = Lab.layout;
  const { QUEUED } = Lab.places;
  const FONT = 'system-ui, -apple-system, "Segoe UI", "Liberation Sans", Arial, sans-serif';
  const SLOT_NAMES = {
    gthread: "threads",
    gevent: "greenlets",
    eventlet: "greenlets",
    asgi: "tasks",
    uvicorn: "tasks",
  };
  const HEADINGS = [
    ["clients", "Clients"],
    ["connection", "Connection"],
    ["queue", "Accept queue"],
    ["workers", "Workers"],
    ["done", "Done"],
  ];

  function outline(to, box, radius) {
    to.beginPath();
    to.roundRect(box.x + 0.5, box.y + 0.5, box.w - 1, box.h - 1, radius);
  }

  Lab.paintStill = (to, scene) => {
    const { colour } = scene;
    to.setTransform(scene.ratio, 0, 0, scene.ratio, 0, 0);
    to.fillStyle = colour.paper;
    to.fillRect(0, 0, scene.width, scene.height);
    to.lineWidth = 1;
    for (const [name, title] of HEADINGS) paintBox(to, scene, scene.at[name], title);
    if (scene.bounded) paintRoom(to, scene);
    to.strokeStyle = colour.soft;
    for (const box of scene.boxes) {
      to.fillStyle = colour.paper;
      outline(to, box, 5);
      to.fill();
      to.stroke();
    }
    if (scene.slotted) paintSlots(to, scene);
    if (scene.at.accepted) paintAccepted(to, scene);
  };

  function paintBox(to, scene, box, title) {
    to.fillStyle = scene.colour.panel;
    to.strokeStyle = scene.colour.line;
    outline(to, box, 6);
    to.fill();
    to.stroke();
    to.fillStyle = scene.colour.ink;
    to.font = `600 13px ${FONT}`;
    to.textAlign = "left";
    to.fillText(title, box.left + 1, box.top + 14, scene.tall ? box.w / 2 : box.w);
  }

  // The individual places of a short accept queue
  function paintRoom(to, scene) {
    const cells = scene.grids.waiting[QUEUED],
      { backlog } = scene.side.server;
    to.strokeStyle = scene.colour.soft;
    for (let i = 0; i <= backlog && i < cells.room; i++) {
      to.strokeRect(
        gridX(cells, i) - cells.cell * 0.45,
        gridY(cells, i) - cells.cell * 0.45,
        cells.cell * 0.9,
        cells.cell * 0.9,
      );
    }
  }

  function paintSlots(to, scene) {
    to.strokeStyle = scene.colour.soft;
    to.beginPath();
    for (const { grid: cells } of scene.boxes) {
      const half = cells.cell * 0.46;
      for (let i = 0; i < scene.each && i < cells.room; i++) {
        to.rect(gridX(cells, i) - half, gridY(cells, i) - half, 2 * half, 2 * half);
      }
    }
    to.stroke();
  }

  function paintAccepted(to, scene) {
    const box = scene.at.accepted;
    to.save();
    if (scene.inferred) to.setLineDash([5, 4]);
    to.strokeStyle = scene.colour.soft;
    outline(to, box, 5);
    to.stroke();
    to.restore();
    to.fillStyle = scene.colour.ink;
    to.font = `12px ${FONT}`;
    to.fillText("accepted", box.x + 5, box.y + 15, box.w - 10);
    to.fillStyle = scene.colour.soft;
    if (scene.inferred) to.fillText("inferred", box.x + 5, box.y + 30, box.w - 34);
  }

  Lab.paintNumbers = (to, scene) => {
    const { side, figures, at } = scene,
      { backlog } = side.server;
    to.font = `13px ${FONT}`;
    to.fillStyle = scene.colour.ink;
    paintNumber(to, scene, at.clients, clientsText(scene));
    paintNumber(
      to,
      scene,
      at.connection,
      scene.repeated
        ? `${figures.connecting}, SYN retries: ${scene.repeated}`
        : `${figures.connecting} connecting`,
    );
    const room = figures.queued > backlog ? ", full" : ` of ${backlog}`; // one more than the backlog
    paintNumber(
      to,
      scene,
      at.queue,
      backlog ? `${figures.queued}${room}` : `${figures.queued}`,
    );
    paintNumber(to, scene, at.workers, servedText(scene));
    paintNumber(
      to,
      scene,
      at.done,
      figures.failed ? `${figures.answered}, ${figures.failed} failed` : `${figures.answered} answered`,
    );
    to.font = `12px ${FONT}`;
    if (at.accepted)
      to.fillText(figures.accepted, at.accepted.x + at.accepted.w - 22, at.accepted.y + 30, 20);
    if (figures.idle)
      to.fillText(`${figures.idle} kept, idle`, at.links.x, at.links.y + at.links.h, at.links.w);
    for (let i = 0; i < scene.boxes.length; i++) paintWorker(to, scene, i);
  };

  function paintNumber(to, scene, box, text) {
    to.textAlign = scene.tall ? "right" : "left";
    if (scene.tall) to.fillText(text, box.left + box.w - 1, box.top + 14, box.w / 2);
    else to.fillText(text, box.left + 1, box.top + 31, box.w);
    to.textAlign = "left";
  }

  function clientsText(scene) {
    const { load } = scene;
    if (load && load.model === "open")
      return `${Lab.amount(load.rate, load.rate % 1 ? 1 : 0)} a second`;
    return scene.clients ? `${scene.clients}` : "";
  }

  function servedText(scene) {
    const { served } = scene.figures,
      { slots, blocked } = scene.side;
    if (blocked) return `${served} in the app, ${blocked} at once: the app blocks`;
    return slots === null || slots === undefined
      ? `${served} in the app, slots unlimited`
      : `${served} in the app, ${slots} slots`;
  }

  function paintWorker(to, scene, i) {
    const box = scene.boxes[i],
      seats = scene.crowd.seats[i];
    let busy = 0;
    if (seats) for (const dot of seats) if (dot >= 0) busy++;
    to.fillStyle = scene.colour.ink;
    if (box.side) {
      to.fillText(`${i + 1}: ${busy}`, box.x + 5, box.y + box.h / 2 + 4, 28);
      return;
    }
    const name = SLOT_NAMES[scene.side.server.worker_class];
    const { served } = scene.figures; // if not all are drawn, estimated by share
    if (served > 1.05 * scene.crowd.served)
      busy = `about ${Math.round((busy * served) / scene.crowd.served)}`;
    const many =
      scene.each === null
        ? (name && busy === 1 && name.slice(0, -1)) || name || ""
        : scene.each > 1
          ? `of ${scene.each} ${name || "slots"}`
          : "";
    const busyOf = many ? `${busy} ${many}` : busy ? "busy" : "free",
      title = box.w > 150 ? `worker ${i + 1}` : `${i + 1}`;
    to.fillText(
      scene.runs || busy ? `${title}: ${busyOf}` : title,
      box.x + 6,
      box.y + 15,
      box.w - 10,
    );
  }
})();
