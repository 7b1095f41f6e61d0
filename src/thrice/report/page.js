"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const make = (tag, settings, ...inside) => {
    const node = Object.assign(document.createElement(tag), settings);
    node.append(...inside);
    return node;
  };
  const hidden = new Set();
  const views = [];

  // Cells: what a row shows, column by column. Rows of long tables come as JSON and become elements when shown.
  const fromPage = (row) => ({
    arm: row.dataset.arm, node: row,
    cells: [...row.cells].map((cell) => (cell.querySelector("[data-name]") || cell).textContent.trim()),
  });
  const fromData = ({words, rows}) => rows.map((row) => ({
    arm: String(row[0]), cells: row.map((cell, column) => words[column] ? words[column][cell] : cell),
  }));
  const element = (row) => {
    if (row.node) return row.node;
    const [name, ...others] = row.cells;
    const mark = document.querySelector(`.arms [data-arm="${row.arm}"] svg`).cloneNode(true);
    const head = make("th", {scope: "row"}, mark, name);
    const cells = others.map((text) => make("td", {textContent: text}));
    const last = cells[cells.length - 1];
    if (last.textContent !== "finished") last.className = "warn";
    return row.node = make("tr", {}, head, ...cells);
  };

  const number = (text) => {
    const found = /^[+×<]?\s*(−?[\d,]*\.?\d+)/.exec(text);
    return found ? Number(found[1].replace("−", "-").replaceAll(",", "")) : NaN;
  };
  const compared = (column, sign, texts) => (one, other) => {
    const [a, b] = [one.cells[column], other.cells[column]];
    if ((a === "—") !== (b === "—")) return a === "—" ? 1 : -1;
    if (texts) return sign * a.localeCompare(b, undefined, {numeric: true});
    const [x, y] = [number(a), number(b)];
    if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y);
    return sign * (x - y);
  };

  const tables = [...document.querySelectorAll("table[data-sortable]")].map((table) => {
    const data = byId(`${table.id}-data`);
    const body = table.tBodies[0];
    const form = document.querySelector(`form[data-table="${table.id}"]`);
    const pages = document.querySelector(`.pages[data-table="${table.id}"]`);
    const most = Number(table.dataset.page) || Infinity;
    let rows = data ? fromData(JSON.parse(data.textContent)) : [...body.rows].map(fromPage);
    let page = 0;

    const wanted = (row) => {
      if (hidden.has(row.arm)) return false;
      if (!form) return true;
      for (const select of form.querySelectorAll("select")) {
        if (select.value && row.cells[Number(select.dataset.column)] !== select.value) return false;
      }
      const text = form.querySelector("input").value.trim().toLowerCase();
      return !text || row.cells.some((cell) => cell.toLowerCase().includes(text));
    };
    const show = () => {
      const kept = rows.filter(wanted);
      page = Math.max(0, Math.min(page, Math.ceil(kept.length / most) - 1));
      const first = most === Infinity ? 0 : page * most;
      const shown = kept.slice(first, first + most);
      body.replaceChildren(...shown.map(element));
      if (form) {
        const part = shown.length < kept.length ? `, ${first + 1} to ${first + shown.length} shown` : "";
        form.querySelector("output").textContent = `${kept.length} of ${rows.length} rows${part}`;
      }
      if (pages) {
        pages.hidden = kept.length <= most;
        const [back, on] = pages.querySelectorAll("button");
        back.disabled = page === 0;
        on.disabled = first + most >= kept.length;
      }
    };
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const button = make("button", {type: "button"}, ...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const texts = rows.every((row) => Number.isNaN(number(row.cells[column])));
        rows = [...rows].sort(compared(column, down ? -1 : 1, texts || column === 0));
        page = 0;
        show();
      });
    });
    if (form) {
      form.hidden = false;
      form.addEventListener("input", () => { page = 0; show(); });
      form.addEventListener("submit", (event) => event.preventDefault());
    }
    if (pages) {
      pages.querySelectorAll("button").forEach((button, place) => button.addEventListener("click", () => {
        page += place ? 1 : -1;
        show();
      }));
    }
    show();
    return show;
  });

  const names = new Map();
  const draw = ({view, datasets}) => {
    for (const [name, points] of Object.entries(datasets)) {
      if (points.some((point) => "arm" in point)) view.data(name, points.filter((point) => !hidden.has(names.get(point.arm))));
    }
    return view.runAsync();
  };
  for (const item of document.querySelectorAll(".arms [data-arm]")) {
    names.set(item.dataset.name, item.dataset.arm);
    const box = make("input", {type: "checkbox", checked: true});
    item.prepend(box);
    box.addEventListener("change", () => {
      if (box.checked) hidden.delete(item.dataset.arm); else hidden.add(item.dataset.arm);
      tables.forEach((show) => show());
      views.forEach(draw);
    });
  }

  const specs = byId("specs");
  if (!specs) return;
  // `ast` makes Vega interpret its expressions: the page's security policy forbids building code from strings.
  const options = {mode: "vega-lite", renderer: "svg", actions: false, ast: true, defaultStyle: false,
                   tooltip: {disableDefaultStyle: true}};
  Promise.all(Object.entries(JSON.parse(specs.textContent)).map(async ([id, spec]) => {
    const datasets = structuredClone(spec.datasets);
    try {
      views.push({view: (await vegaEmbed("#" + id, spec, options)).view, datasets});
    } catch (error) {
      byId(id).textContent = "This picture could not be drawn: " + error.message;
      console.error(error);
    }
  })).then(() => { document.documentElement.dataset.charts = "drawn"; });
})();
