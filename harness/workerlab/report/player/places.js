"use strict";
// The layout of a server's picture: a box for each place, and a grid of positions for its dots. All
// functions are pure.
(() => {
  const Lab = (window.Lab = window.Lab || {});
  const MAX_CELL = 17; // px from dot to dot
  const MIN_WIDE = 540; // px: a narrower picture flows from top to bottom

  // A grid for `count` dots in a rectangle. `from`: the edge of the first dot
  function grid(area, count, from, maxCell = MAX_CELL) {
    const box = { ...area, w: Math.max(6, area.w), h: Math.max(6, area.h) };
    let cell = Math.min(maxCell, Math.sqrt((box.w * box.h) / Math.max(1, count)));
    while (cell > 3 && Math.floor(box.w / cell) * Math.floor(box.h / cell) < count) cell -= 0.25;
    const columns = Math.max(1, Math.floor(box.w / cell)),
      rows = Math.max(1, Math.floor(box.h / cell)),
      r = Math.max(Math.min(1.3, cell * 0.42), cell * 0.38);
    const upwards = from === "bottom",
      leftwards = from === "right";
    return {
      cell,
      capacity: columns * rows,
      down: leftwards,
      per: leftwards ? rows : columns,
      x: leftwards ? box.x + box.w - cell / 2 : box.x + cell / 2,
      y: upwards ? box.y + box.h - cell / 2 : box.y + cell / 2,
      dx: leftwards ? -cell : cell,
      dy: upwards ? -cell : cell,
      r,
      line: Math.min(Math.max(1.2, r * 0.4), Math.max(0.3, 0.8 * (cell - 2 * r))), // leaves a gap between dots
    };
  }

  const gridX = (cells, i) =>
    cells.x + cells.dx * (cells.down ? Math.floor(i / cells.per) : i % cells.per);
  const gridY = (cells, i) =>
    cells.y + cells.dy * (cells.down ? i % cells.per : Math.floor(i / cells.per));

  // The boxes with room for headings: five columns, or five rows on a narrow screen
  function boxes(width, height) {
    const tall = width < MIN_WIDE,
      gap = tall ? 7 : 16,
      head = tall ? 21 : 40;
    const shares = tall ? [0.11, 0.17, 0.22, 0.39, 0.11] : [0.12, 0.14, 0.23, 0.39, 0.12];
    const length = (tall ? height : width) - gap * 4;
    let at = 0;
    return shares.map((share) => {
      const size = share * length,
        from = at;
      at += size + gap;
      return tall
        ? { tall, left: 0, top: from, x: 0, y: from + head, w: width, h: size - head }
        : { tall, left: from, top: 0, x: from, y: head, w: size, h: height - head };
    });
  }

  const inset = (box, by) => ({
    x: box.x + by,
    y: box.y + by,
    w: box.w - 2 * by,
    h: box.h - 2 * by,
  });

  function cut(box, share, tall) {
    const w = tall ? box.w * share : box.w,
      h = tall ? box.h : box.h * share;
    const rest = tall
      ? { x: box.x + w, y: box.y, w: box.w - w, h }
      : { x: box.x, y: box.y + h, w, h: box.h - h };
    return [{ x: box.x, y: box.y, w, h }, rest];
  }

  // The parts of the workers' box. `accepted`: the box of requests that wait in a worker, or null;
  // `dots`: the area of their dots; `area`: that of the workers
  function splitWorkers(box, tall, accepts) {
    const inside = inset(box, 6);
    if (!accepts) return { accepted: null, dots: { ...inside, w: 10 }, area: inside };
    const w = inside.w * (tall ? 0.26 : 0.27);
    const accepted = { ...inside, w: w - 6 };
    const dots = { x: inside.x + 3, y: inside.y + 36, w: w - 12, h: Math.max(12, inside.h - 40) };
    return { accepted, dots, area: { ...inside, x: inside.x + w, w: inside.w - w } };
  }

  // One box per worker, in the grid whose boxes come closest to a width of 3.2 times the height
  function workerBoxes(area, count, slotCount) {
    let columns = 1;
    const aspect = (c) => Math.abs(Math.log(area.w / c / (area.h / Math.ceil(count / c)) / 3.2));
    for (let c = 2; c <= count; c++) if (aspect(c) < aspect(columns)) columns = c;
    const rows = Math.ceil(count / columns),
      gap = count > 8 ? 4 : 7;
    const w = (area.w + gap) / columns - gap,
      h = (area.h + gap) / rows - gap;
    return Array.from({ length: count }, (_, i) => {
      const box = {
        x: area.x + (i % columns) * (w + gap),
        y: area.y + Math.floor(i / columns) * (h + gap),
        w,
        h,
      };
      const side = h < 42;
      const inner = side
        ? {
            x: box.x + Math.min(34, w * 0.4),
            y: box.y + 2,
            w: w - Math.min(34, w * 0.4) - 3,
            h: h - 4,
          }
        : { x: box.x + 5, y: box.y + 20, w: w - 10, h: h - 24 };
      const maxCell = Math.max(22, Math.min(34, inner.h * 0.7));
      return { ...box, side, grid: grid(inner, slotCount(i), "top", slotCount(i) > 16 ? 22 : maxCell) };
    });
  }

  // A capacity for `count`: a power of two, so that the layout does not change with every request
  function capacityFor(count, before) {
    if (count <= before && count > before / 5) return before;
    return Math.max(8, 2 ** Math.ceil(Math.log2(Math.max(1, count))));
  }

  Lab.layout = { grid, gridX, gridY, boxes, inset, cut, splitWorkers, workerBoxes, capacityFor };
})();
