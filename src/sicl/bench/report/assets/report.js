"use strict";
(() => {
  const all = (query, root = document) => [...root.querySelectorAll(query)];
  const root = document.documentElement;

  // The theme follows the system until the button says otherwise.
  const stored = (value) => {
    try {
      if (value) localStorage.setItem("sicl-theme", value);
      return localStorage.getItem("sicl-theme");
    } catch { return null; }
  };
  if (stored()) root.dataset.theme = stored();
  document.querySelector(".theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    stored(root.dataset.theme);
  });

  // Tabs: a tablist or a select shows one of its panels.
  const show = (owner, id) => {
    for (const panel of all(`[data-owner="${owner}"]`)) panel.hidden = panel.id !== id;
    for (const tab of all(`[role=tab][data-list="${owner}"]`)) {
      const chosen = tab.getAttribute("aria-controls") === id;
      tab.setAttribute("aria-selected", chosen);
      tab.tabIndex = chosen ? 0 : -1;
    }
  };
  for (const list of all("[role=tablist]")) {
    const tabs = all("[role=tab]", list);
    tabs.forEach((tab, i) => {
      tab.addEventListener("click", () => show(list.id, tab.getAttribute("aria-controls")));
      tab.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (!step) return;
        const next = tabs[(i + step + tabs.length) % tabs.length];
        next.focus();
        next.click();
      });
    });
    show(list.id, tabs[0].getAttribute("aria-controls"));
  }
  for (const pick of all("select.pick")) {
    pick.addEventListener("change", () => show(pick.id, pick.value));
    show(pick.id, pick.value);
  }

  // Sorting: numbers by data-v, others by text; missing values stay last.
  const value = (row, column) => {
    const cell = row.cells[column];
    if (cell.dataset.v === undefined) return cell.textContent.trim().toLowerCase();
    return cell.dataset.v === "" ? null : Number(cell.dataset.v);
  };
  for (const table of all("table.sortable")) {
    all("thead th", table).forEach((head, column) => {
      head.querySelector("button")?.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") !== "ascending";
        for (const other of all("thead th", table)) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const rows = [...table.tBodies[0].rows].sort((a, b) => {
          const [x, y] = [value(a, column), value(b, column)];
          if (x === null || y === null) return (x === null) - (y === null);
          return (x < y ? -1 : x > y ? 1 : 0) * (up ? 1 : -1);
        });
        table.tBodies[0].append(...rows);
      });
    });
  }
  for (const box of all("input.filter")) {
    box.addEventListener("input", () => {
      const words = box.value.toLowerCase().split(/\s+/);
      for (const row of document.getElementById(box.dataset.table).tBodies[0].rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
      }
    });
  }

  // The key of colours hides and shows a calibrator in every chart.
  for (const chip of all(".key button")) {
    chip.addEventListener("click", () => {
      const on = chip.getAttribute("aria-pressed") === "false";
      for (const twin of all(`.key [data-c="${chip.dataset.c}"]`)) twin.setAttribute("aria-pressed", on);
      const parts = `svg.lines .c-${chip.dataset.c}, .multiples [data-c="${chip.dataset.c}"]`;
      for (const part of all(parts)) part.style.display = on ? "" : "none";
    });
  }

  // Tooltips: a bar tells its own text; a line chart reads its values off the lines.
  const tip = document.getElementById("tip");
  const place = (event, text) => {
    tip.hidden = false;
    tip.textContent = text;
    const box = tip.getBoundingClientRect();
    const left = event.clientX + 14 + box.width > innerWidth ? event.clientX - box.width - 14 : event.clientX + 14;
    tip.style.left = `${Math.max(6, left)}px`;
    tip.style.top = `${Math.max(6, Math.min(event.clientY + 14, innerHeight - box.height - 6))}px`;
  };
  const read = (chart, event) => {
    const view = chart.viewBox.baseVal;
    const box = chart.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * view.width;
    const [xLow, xHigh, xStart, xStop] = chart.dataset.x.split(" ").map(Number);
    const [yLow, yHigh, yStart, yStop] = chart.dataset.y.split(" ").map(Number);
    if (at < xStart - 6 || at > xStop + 6) return null;
    const found = [];
    let cross = at;
    for (const line of all("polyline", chart)) {
      if (line.style.display === "none") continue;
      const points = [...line.points];
      const near = points.reduce((a, b) => (Math.abs(b.x - at) < Math.abs(a.x - at) ? b : a));
      cross = near.x;
      found.push([line.dataset.n, yLow + ((near.y - yStart) / (yStop - yStart)) * (yHigh - yLow)]);
    }
    const x = xLow + ((cross - xStart) / (xStop - xStart)) * (xHigh - xLow);
    const where = chart.dataset.f === "share" ? `${(100 * x).toFixed(0)} %` : Math.round(x).toLocaleString("en");
    found.sort((a, b) => b[1] - a[1]);
    const rows = found.map(([name, y]) => `${name}  ${(100 * y).toFixed(1)} %`);
    return { cross, yStart, yStop, text: [`${chart.dataset.title}: ${where}`, ...rows].join("\n") };
  };
  for (const chart of all("svg.lines")) {
    const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
    line.setAttribute("class", "cross");
    chart.addEventListener("pointermove", (event) => {
      const values = read(chart, event);
      if (!values) { line.remove(); tip.hidden = true; return; }
      for (const [key, v] of Object.entries({ x1: values.cross, x2: values.cross, y1: values.yStart, y2: values.yStop })) line.setAttribute(key, v);
      chart.append(line);
      place(event, values.text);
    });
    chart.addEventListener("pointerleave", () => { line.remove(); tip.hidden = true; });
  }
  document.addEventListener("pointerover", (event) => {
    const owner = event.target.closest("[data-t]");
    if (owner) place(event, owner.dataset.t);
    else if (!event.target.closest("svg.lines")) tip.hidden = true;
  });
  addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });
})();
