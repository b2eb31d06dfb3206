"use strict";
// Draws the static parts of the picture (boxes, slots, headings) and the numbers in them.
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

  function outline(ctx, box, radius) {
    ctx.beginPath();
    ctx.roundRect(box.x + 0.5, box.y + 0.5, box.w - 1, box.h - 1, radius);
  }

  Lab.paintBackground = (ctx, scene) => {
    const { colour } = scene;
    ctx.setTransform(scene.ratio, 0, 0, scene.ratio, 0, 0);
    ctx.fillStyle = colour.paper;
    ctx.fillRect(0, 0, scene.width, scene.height);
    ctx.lineWidth = 1;
    for (const [name, title] of HEADINGS) paintBox(ctx, scene, scene.at[name], title);
    if (scene.bounded) paintQueuePositions(ctx, scene);
    ctx.strokeStyle = colour.soft;
    for (const box of scene.boxes) {
      ctx.fillStyle = colour.paper;
      outline(ctx, box, 5);
      ctx.fill();
      ctx.stroke();
    }
    if (scene.slotted) paintSlots(ctx, scene);
    if (scene.at.accepted) paintAccepted(ctx, scene);
  };

  function paintBox(ctx, scene, box, title) {
    ctx.fillStyle = scene.colour.panel;
    ctx.strokeStyle = scene.colour.line;
    outline(ctx, box, 6);
    ctx.fill();
    ctx.stroke();
    ctx.fillStyle = scene.colour.ink;
    ctx.font = `600 13px ${FONT}`;
    ctx.textAlign = "left";
    ctx.fillText(title, box.left + 1, box.top + 14, scene.tall ? box.w / 2 : box.w);
  }

  // The individual positions of a short accept queue
  function paintQueuePositions(ctx, scene) {
    const cells = scene.grids.waiting[QUEUED],
      { backlog } = scene.side.server;
    ctx.strokeStyle = scene.colour.soft;
    for (let i = 0; i <= backlog && i < cells.capacity; i++) {
      ctx.strokeRect(
        gridX(cells, i) - cells.cell * 0.45,
        gridY(cells, i) - cells.cell * 0.45,
        cells.cell * 0.9,
        cells.cell * 0.9,
      );
    }
  }

  function paintSlots(ctx, scene) {
    ctx.strokeStyle = scene.colour.soft;
    ctx.beginPath();
    for (const { grid: cells } of scene.boxes) {
      const half = cells.cell * 0.46;
      for (let i = 0; i < scene.slotsPerWorker && i < cells.capacity; i++) {
        ctx.rect(gridX(cells, i) - half, gridY(cells, i) - half, 2 * half, 2 * half);
      }
    }
    ctx.stroke();
  }

  function paintAccepted(ctx, scene) {
    const box = scene.at.accepted;
    ctx.save();
    if (scene.inferred) ctx.setLineDash([5, 4]);
    ctx.strokeStyle = scene.colour.soft;
    outline(ctx, box, 5);
    ctx.stroke();
    ctx.restore();
    ctx.fillStyle = scene.colour.ink;
    ctx.font = `12px ${FONT}`;
    ctx.fillText("accepted", box.x + 5, box.y + 15, box.w - 10);
    ctx.fillStyle = scene.colour.soft;
    if (scene.inferred) ctx.fillText("inferred", box.x + 5, box.y + 30, box.w - 34);
  }

  Lab.paintNumbers = (ctx, scene) => {
    const { side, figures, at } = scene,
      { backlog } = side.server;
    ctx.font = `13px ${FONT}`;
    ctx.fillStyle = scene.colour.ink;
    paintNumber(ctx, scene, at.clients, clientsText(scene));
    paintNumber(
      ctx,
      scene,
      at.connection,
      scene.repeated
        ? `${figures.connecting}, SYN retries: ${scene.repeated}`
        : `${figures.connecting} connecting`,
    );
    const room = figures.queued > backlog ? ", full" : ` of ${backlog}`; // the kernel admits one more
    paintNumber(
      ctx,
      scene,
      at.queue,
      backlog ? `${figures.queued}${room}` : `${figures.queued}`,
    );
    paintNumber(ctx, scene, at.workers, servedText(scene));
    paintNumber(
      ctx,
      scene,
      at.done,
      figures.failed ? `${figures.answered}, ${figures.failed} failed` : `${figures.answered} answered`,
    );
    ctx.font = `12px ${FONT}`;
    if (at.accepted)
      ctx.fillText(figures.accepted, at.accepted.x + at.accepted.w - 22, at.accepted.y + 30, 20);
    if (figures.idle)
      ctx.fillText(`${figures.idle} idle`, at.links.x, at.links.y + at.links.h, at.links.w);
    for (let i = 0; i < scene.boxes.length; i++) paintWorker(ctx, scene, i);
  };

  function paintNumber(ctx, scene, box, text) {
    ctx.textAlign = scene.tall ? "right" : "left";
    if (scene.tall) ctx.fillText(text, box.left + box.w - 1, box.top + 14, box.w / 2);
    else ctx.fillText(text, box.left + 1, box.top + 31, box.w);
    ctx.textAlign = "left";
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
    if (blocked) return `${served} in the app, ${blocked} at a time: the app blocks`;
    return slots === null || slots === undefined
      ? `${served} in the app, slots unlimited`
      : `${served} in the app, ${slots} slots`;
  }

  function paintWorker(ctx, scene, i) {
    const box = scene.boxes[i],
      slots = scene.crowd.slots[i];
    let busy = 0;
    if (slots) for (const dot of slots) if (dot >= 0) busy++;
    ctx.fillStyle = scene.colour.ink;
    if (box.side) {
      ctx.fillText(`${i + 1}: ${busy}`, box.x + 5, box.y + box.h / 2 + 4, 28);
      return;
    }
    const name = SLOT_NAMES[scene.side.server.worker_class];
    const { served } = scene.figures; // if only some are drawn, the number is estimated
    if (served > 1.05 * scene.crowd.served)
      busy = `about ${Math.round((busy * served) / scene.crowd.served)}`;
    const many =
      scene.slotsPerWorker === null
        ? (name && busy === 1 && name.slice(0, -1)) || name || ""
        : scene.slotsPerWorker > 1
          ? `of ${scene.slotsPerWorker} ${name || "slots"}`
          : "";
    const busyOf = many ? `${busy} ${many}` : busy ? "busy" : "free",
      title = box.w > 150 ? `worker ${i + 1}` : `${i + 1}`;
    ctx.fillText(
      scene.isRunning || busy ? `${title}: ${busyOf}` : title,
      box.x + 6,
      box.y + 15,
      box.w - 10,
    );
  }
})();
