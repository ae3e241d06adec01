"use strict";
// Attention. Weights are 16-bit numbers in Base64, in the order layer, head, row, column.
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const payload = JSON.parse(document.getElementById("payload").textContent);
  const at = (id) => document.getElementById(id);

  function svg(name, attributes, parent, text) {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    parent.append(node);
    return node;
  }

  function unpacked(text) {
    const bytes = atob(text);
    const numbers = new Float32Array(bytes.length / 2);
    for (let i = 0; i < numbers.length; i += 1) {
      numbers[i] = (bytes.charCodeAt(2 * i) + 256 * bytes.charCodeAt(2 * i + 1)) / 65535;
    }
    return numbers;
  }

  // What stands at the rows and columns of a kind, and which of them can be aligned: [first, end).
  function labels(sentence, kind) {
    const source = [...sentence.sourcePieces, "</s>"];
    const chosen = [...sentence.targetPieces, "</s>"];
    const ofSource = [sentence.tags, source.length - 1];
    if (kind === "encoder") return { rows: source, columns: source, rowRange: ofSource, columnRange: ofSource };
    const rowRange = [0, chosen.length - 1];
    if (kind === "cross") return { rows: chosen, columns: source, rowRange, columnRange: ofSource };
    return { rows: chosen, columns: ["<s>", ...sentence.targetPieces], rowRange, columnRange: [1, chosen.length] };
  }

  // One heat map: weights[row][column]; `head` may be "mean".
  function view(sentence, kind, layer, head, byWords) {
    const shape = labels(sentence, kind);
    const size = shape.rows.length * shape.columns.length;
    const numbers = weightsOf(sentence, kind);
    const heads = head === "mean" ? [...Array(sentence.heads).keys()] : [Number(head)];
    const weights = shape.rows.map((_, row) =>
      shape.columns.map((_, column) => {
        const place = row * shape.columns.length + column;
        let sum = 0;
        for (const one of heads) sum += numbers[(layer * sentence.heads + one) * size + place];
        return sum / heads.length;
      })
    );
    return byWords ? merged({ ...shape, weights }) : { ...shape, weights };
  }

  const cache = new Map();
  function weightsOf(sentence, kind) {
    const text = sentence.weights[kind];
    if (!cache.has(text)) cache.set(text, unpacked(text));
    return cache.get(text);
  }

  // The indices of each word's pieces; those outside the range are words by themselves.
  function words(pieces, [first, end]) {
    const groups = [];
    pieces.forEach((piece, index) => {
      const alone = index <= first || index >= end;
      const before = groups.length ? groups[groups.length - 1].map((i) => pieces[i]).join("") : "";
      const bare = !alone && before === "\u2581";
      const trailing = piece === "\u2581" && index + 1 === end;
      if (alone || (piece.startsWith("\u2581") && !bare && !trailing)) groups.push([index]);
      else groups[groups.length - 1].push(index);
    });
    return groups;
  }

  function merged(map) {
    const rows = words(map.rows, map.rowRange);
    const columns = words(map.columns, map.columnRange);
    const joined = (pieces, groups) =>
      groups.map((group) => group.map((i) => pieces[i]).join("").replaceAll("\u2581", ""));
    const range = (groups, [first, end]) => {
      const inside = groups.map((group, word) => [group[0], word]).filter(([i]) => i >= first && i < end);
      return inside.length ? [inside[0][1], inside[inside.length - 1][1] + 1] : [0, 0];
    };
    const weights = rows.map((group) =>
      columns.map((part) => {
        let sum = 0;
        for (const row of group) for (const column of part) sum += map.weights[row][column];
        return sum / group.length;
      })
    );
    return {
      rows: joined(map.rows, rows),
      columns: joined(map.columns, columns),
      rowRange: range(rows, map.rowRange),
      columnRange: range(columns, map.columnRange),
      weights,
    };
  }

  // [column, row] of the largest weight of each row that can be aligned.
  function aligned(map) {
    const pairs = [];
    for (let row = map.rowRange[0]; row < map.rowRange[1]; row += 1) {
      let best = -1;
      for (let column = map.columnRange[0]; column < map.columnRange[1]; column += 1) {
        if (best < 0 || map.weights[row][column] > map.weights[row][best]) best = column;
      }
      if (best >= 0 && map.weights[row][best] > 0) pairs.push([best, row]);
    }
    return pairs;
  }

  const measure = document.createElement("canvas").getContext("2d");
  function widest(texts) {
    measure.font = `13px ${getComputedStyle(document.body).fontFamily}`;
    return Math.ceil(Math.max(...texts.map((text) => measure.measureText(text).width)));
  }

  const CELL = 22;
  const GAP = 8;

  if (!payload.sentences.length) return;
  const state = { sentence: 0, kind: "cross", layer: 0, head: "mean", words: false, row: -1, column: -1 };
  let map = null;
  let cursor = null;
  state.layer = payload.sentences[0].layers.cross - 1;

  const current = () => payload.sentences[state.sentence];

  function options(select, entries, chosen) {
    select.replaceChildren(
      ...entries.map(([value, text]) => {
        const option = document.createElement("option");
        option.value = value;
        option.textContent = text;
        option.selected = String(value) === String(chosen);
        return option;
      })
    );
  }

  function fillSelectors() {
    const layers = current().layers[state.kind];
    state.layer = Math.min(state.layer, layers - 1);
    options(at("layer"), [...Array(layers).keys()].map((layer) => [layer, `layer ${layer}`]), state.layer);
    const heads = [...Array(current().heads).keys()].map((head) => [head, `head ${head}`]);
    options(at("head"), [["mean", "mean of all heads"], ...heads], state.head);
  }

  const name = (head) => (head === "mean" ? "mean of heads" : `head ${head}`);

  function draw() {
    map = view(current(), state.kind, state.layer, state.head, state.words);
    state.row = -1;
    state.column = -1;
    at("pair-source").textContent = current().source;
    at("pair-target").textContent = current().target;
    at("pair-reference").textContent = current().reference;
    at("heat-title").textContent = `${state.kind}, layer ${state.layer}, ${name(state.head)}`;
    const pairs = aligned(map);
    drawHeat(pairs);
    drawAlignment(pairs);
    const cross = state.kind === "cross";
    at("pharaoh").textContent = cross
      ? pairs.map(([column, row]) => `${column - map.columnRange[0]}-${row - map.rowRange[0]}`).join(" ")
      : "";
    for (const button of at("overview").querySelectorAll("button")) {
      const pressed = button.dataset.layer === String(state.layer) && button.dataset.head === String(state.head);
      button.setAttribute("aria-pressed", pressed);
    }
  }

  function drawHeat(pairs) {
    const left = widest(map.rows) + GAP;
    const top = widest(map.columns) + GAP;
    const width = left + CELL * map.columns.length + 2;
    const height = top + CELL * map.rows.length + 2;
    const picture = document.createElementNS(SVG, "svg");
    const title = `Heat map: ${at("heat-title").textContent}. Arrow keys move from cell to cell.`;
    for (const [key, value] of Object.entries({
      width, height, viewBox: `0 0 ${width} ${height}`, tabindex: 0, role: "application", "aria-label": title,
    })) picture.setAttribute(key, value);
    const soft = (index, [first, end]) => (index < first || index >= end ? "soft" : "");
    map.columns.forEach((text, column) => {
      const x = left + CELL * column + CELL * 0.68;
      const turned = `rotate(-90 ${x} ${top - GAP})`;
      const kind = `column ${soft(column, map.columnRange)}`;
      svg("text", { x, y: top - GAP, transform: turned, class: kind }, picture, text);
    });
    map.rows.forEach((text, row) => {
      const y = top + CELL * row + CELL * 0.7;
      svg("text", { x: left - GAP, y, "text-anchor": "end", class: `row ${soft(row, map.rowRange)}` }, picture, text);
    });
    map.weights.forEach((weights, row) => {
      weights.forEach((weight, column) => {
        const place = { x: left + CELL * column, y: top + CELL * row, width: CELL - 1, height: CELL - 1 };
        const shade = { class: "cell", "fill-opacity": weight.toFixed(3), "data-row": row, "data-column": column };
        svg("rect", { ...place, ...shade }, picture);
      });
    });
    const whole = { x: left - 0.5, y: top - 0.5, width: CELL * map.columns.length, height: CELL * map.rows.length };
    svg("rect", { ...whole, class: "frame", "pointer-events": "none" }, picture);
    for (const [column, row] of pairs) {
      const place = { x: left + CELL * column + 1, y: top + CELL * row + 1, width: CELL - 3, height: CELL - 3 };
      svg("rect", { ...place, class: "mark" }, picture);
    }
    cursor = svg("rect", { width: CELL - 1, height: CELL - 1, class: "at", visibility: "hidden" }, picture);
    const move = (row, column) => {
      state.row = row;
      state.column = column;
      cursor.setAttribute("x", left + CELL * column);
      cursor.setAttribute("y", top + CELL * row);
      cursor.setAttribute("visibility", "visible");
      tell();
    };
    picture.addEventListener("pointermove", (event) => {
      const { row, column } = event.target.dataset;
      if (row !== undefined && column !== undefined) move(Number(row), Number(column));
    });
    picture.addEventListener("keydown", (event) => {
      const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
      const step = steps[event.key];
      if (!step) return;
      event.preventDefault();
      const fresh = state.row < 0;
      const row = fresh ? 0 : Math.min(map.rows.length - 1, Math.max(0, state.row + step[0]));
      const column = fresh ? 0 : Math.min(map.columns.length - 1, Math.max(0, state.column + step[1]));
      move(row, column);
      const cell = picture.querySelector(`.cell[data-row="${row}"][data-column="${column}"]`);
      cell.scrollIntoView({ block: "nearest", inline: "nearest" });
    });
    at("heat").replaceChildren(picture);
  }

  // Columns to the left, rows to the right, a line where a row looks; the thickest are the alignment.
  function drawAlignment(pairs) {
    const left = widest(map.columns) + GAP;
    const right = widest(map.rows) + GAP;
    const middle = 130;
    const width = left + middle + right;
    const height = CELL * Math.max(map.rows.length, map.columns.length) + 4;
    const picture = document.createElementNS(SVG, "svg");
    const words = pairs.map(([column, row]) => `${map.rows[row]} to ${map.columns[column]}`).join(", ");
    for (const [key, value] of Object.entries({
      width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Alignment: ${words}`,
    })) picture.setAttribute(key, value);
    const y = (index, count) => (height * (index + 0.5)) / count;
    const best = new Set(pairs.map(([column, row]) => `${column}-${row}`));
    map.weights.forEach((weights, row) => {
      weights.forEach((weight, column) => {
        const strongest = best.has(`${column}-${row}`);
        if (weight < 0.1 && !strongest) return;
        const [from, to] = [y(column, map.columns.length), y(row, map.rows.length)];
        const [x1, x2] = [left, left + middle];
        const curve = `M${x1} ${from}C${x1 + middle / 2} ${from} ${x2 - middle / 2} ${to} ${x2} ${to}`;
        const look = { "stroke-width": (0.6 + 4 * weight).toFixed(2), "stroke-opacity": Math.min(1, 0.15 + weight) };
        svg("path", { d: curve, class: `link ${strongest ? "best" : ""}`, "data-row": row, ...look }, picture);
      });
    });
    map.columns.forEach((text, column) => {
      const place = { x: left - GAP, y: y(column, map.columns.length) + 4, "text-anchor": "end" };
      svg("text", { ...place, class: "column", "data-column": column }, picture, text);
    });
    map.rows.forEach((text, row) => {
      const place = { x: left + middle + GAP, y: y(row, map.rows.length) + 4 };
      svg("text", { ...place, class: "row", "data-row": row }, picture, text);
    });
    picture.addEventListener("pointermove", (event) => {
      if (event.target.dataset.row !== undefined) light(Number(event.target.dataset.row), -1);
    });
    picture.addEventListener("pointerleave", () => light(-1, -1));
    at("alignment").replaceChildren(picture);
    const titles = { cross: "Alignment: source to the left, target to the right", encoder: "Source to source" };
    at("alignment-title").textContent = titles[state.kind] || "Target so far to the left, next token to the right";
  }

  function light(row, column) {
    for (const link of at("alignment").querySelectorAll(".link")) {
      link.classList.toggle("faded", row >= 0 && link.dataset.row !== String(row));
    }
    for (const place of ["heat", "alignment"]) {
      at(place).querySelectorAll("text.row").forEach((text, i) => text.classList.toggle("on", i === row));
      at(place).querySelectorAll("text.column").forEach((text, i) => text.classList.toggle("on", i === column));
    }
  }

  function tell() {
    const { row, column } = state;
    const weight = map.weights[row][column].toFixed(3);
    at("readout").textContent = `${map.rows[row]} ← ${map.columns[column]}: ${weight}`;
    light(row, column);
  }

  // A small picture of every layer and head of the kind.
  function drawOverview() {
    const place = at("overview");
    const heads = [...[...Array(current().heads).keys()].map(String), "mean"];
    place.style.gridTemplateColumns = `repeat(${heads.length}, max-content)`;
    const colour = getComputedStyle(document.documentElement).getPropertyValue("--heat").trim();
    const buttons = [];
    for (let layer = 0; layer < current().layers[state.kind]; layer += 1) {
      for (const head of heads) {
        const small = view(current(), state.kind, layer, head, false);
        const canvas = document.createElement("canvas");
        canvas.width = small.columns.length;
        canvas.height = small.rows.length;
        const context = canvas.getContext("2d");
        context.fillStyle = colour;
        small.weights.forEach((weights, row) => {
          weights.forEach((weight, column) => {
            context.globalAlpha = weight;
            context.fillRect(column, row, 1, 1);
          });
        });
        const button = document.createElement("button");
        button.type = "button";
        button.dataset.layer = layer;
        button.dataset.head = head;
        button.setAttribute("aria-label", `layer ${layer}, ${name(head)}`);
        button.append(canvas, head === "mean" ? `${layer} · mean` : `${layer} · ${head}`);
        button.addEventListener("click", () => {
          state.layer = layer;
          state.head = head;
          fillSelectors();
          draw();
        });
        buttons.push(button);
      }
    }
    place.replaceChildren(...buttons);
  }

  function refresh() {
    fillSelectors();
    drawOverview();
    draw();
  }

  at("controls").addEventListener("submit", (event) => event.preventDefault());
  at("sentence").addEventListener("change", (event) => {
    state.sentence = Number(event.target.value);
    refresh();
  });
  for (const radio of document.querySelectorAll("input[name=kind]")) {
    radio.addEventListener("change", () => {
      state.kind = radio.value;
      refresh();
    });
  }
  at("layer").addEventListener("change", (event) => {
    state.layer = Number(event.target.value);
    draw();
  });
  at("head").addEventListener("change", (event) => {
    state.head = event.target.value;
    draw();
  });
  at("words").addEventListener("change", (event) => {
    state.words = event.target.checked;
    draw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", refresh);
  refresh();
})();
