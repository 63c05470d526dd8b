"use strict";
// Draws the charts and handles legends, tables and the error browser. Text from the data is only set as text
// (textContent, or Vega's own text and tooltips), never as markup.
(() => {
  const data = JSON.parse(document.getElementById("report-data").textContent);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const make = (tag, className, text) => {
    const node = document.createElement(tag);
    if (className) node.className = className;
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const narrow = () => window.innerWidth < 640;

  // Charts

  const withScale = (spec, axes) => {
    if (Array.isArray(spec)) return spec.map((item) => withScale(item, axes));
    if (spec === null || typeof spec !== "object") return spec;
    const copy = {};
    for (const [key, value] of Object.entries(spec)) {
      copy[key] = key === "data" ? value : withScale(value, axes);
    }
    for (const axis of Object.keys(axes)) {
      const channel = copy.encoding && copy.encoding[axis];
      if (channel && channel.type === "quantitative") {
        const { zero, ...scale } = channel.scale || {};
        if (axes[axis]) { // log scales need positive values
          const field = `datum[${JSON.stringify(channel.field)}]`;
          copy.transform = [...(copy.transform || []), { filter: `!isValid(${field}) || ${field} > 0` }];
        }
        if (!axes[axis] && channel.axis) { // its labels are for a log scale
          const { values, ...rest } = channel.axis;
          channel.axis = rest;
        }
        channel.scale = axes[axis] ? { ...scale, type: "log" } : { ...scale, zero: zero ?? false, type: "linear" };
      }
    }
    return copy;
  };

  const withoutLegends = (spec) => {
    if (Array.isArray(spec)) return spec.map(withoutLegends);
    if (spec === null || typeof spec !== "object") return spec;
    const copy = Object.entries(spec).map(([key, value]) =>
      [key, key === "legend" ? null : key === "data" ? value : withoutLegends(value)]);
    return Object.fromEntries(copy);
  };

  const loaded = all("figure.chart").map((figure) => {
    const { panels, columns, log } = data.figures[figure.dataset.figure];
    const state = { figure, panels, columns, hidden: [], axes: {}, views: [] };
    for (const button of all("[data-log]", figure)) {
      const axis = button.dataset.log;
      state.axes[axis] = log.includes(axis);
      button.setAttribute("aria-pressed", String(state.axes[axis]));
      button.addEventListener("click", () => {
        state.axes[axis] = !state.axes[axis];
        button.setAttribute("aria-pressed", String(state.axes[axis]));
        draw(state);
      });
    }
    for (const button of all("[data-series]", figure)) {
      if (button.getAttribute("aria-pressed") !== "true") state.hidden.push(button.dataset.series);
      button.addEventListener("click", () => {
        const shown = button.getAttribute("aria-pressed") !== "true";
        button.setAttribute("aria-pressed", String(shown));
        const series = button.dataset.series;
        state.hidden = shown ? state.hidden.filter((x) => x !== series) : [...state.hidden, series];
        for (const view of state.views) view.signal("hidden", state.hidden).runAsync();
      });
    }
    for (const button of all("[data-svg]", figure)) button.addEventListener("click", () => save(state));
    return state;
  });

  const scaled = (state, i) => {
    const { spec } = state.panels[i];
    return Object.keys(state.axes).length > 0 ? withScale(spec, state.axes) : spec;
  };

  async function draw(state) {
    const places = all(".view", state.figure);
    for (const view of state.views) view.finalize();
    state.views = [];
    for (const [i, place] of places.entries()) {
      const { width, height } = state.panels[i];
      const spec = {
        ...withoutLegends(scaled(state, i)), width: width ?? "container", height,
        autosize: { type: width === null ? "fit-x" : "pad", contains: "padding" },
      };
      const { view } = await vegaEmbed(place, spec, {
        actions: false, logLevel: 1, renderer: "svg", ast: true, config: data.config,
        tooltip: { theme: "custom", disableDefaultStyle: false },
      });
      state.views.push(view);
      for (const [name, value] of [["hidden", state.hidden], ["labels", !narrow()]]) {
        if (name in view.getState({ signals: () => true }).signals) view.signal(name, value);
      }
      await view.runAsync();
    }
    state.figure.dataset.drawn = "true";
  }

  function download(name, type, text) {
    const link = make("a");
    link.href = URL.createObjectURL(new Blob([text], { type }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  // All panels as shown, in one file with Vega's legend, on white as in the other files.
  async function save(state) {
    const params = new Map();
    const panels = state.panels.map(({ title, width, height }, i) => {
      const { params: own, $schema, ...spec } = scaled(state, i);
      for (const param of own) params.set(param.name, param); // Vega-Lite wants them at the top level
      const [alone, beside] = data.widths;
      return { ...spec, ...(title && { title }), height, width: width ?? (state.panels.length > 1 ? beside : alone) };
    });
    params.set("hidden", { name: "hidden", value: state.hidden });
    const spec = { $schema: state.panels[0].spec.$schema, concat: panels, columns: state.columns,
      params: [...params.values()], padding: 8 };
    const light = (x) => JSON.parse(JSON.stringify(x).replace(/var\((--[\w-]+)\)/g, (all, name) => data.light[name] ?? all));
    const { view } = await vegaEmbed(make("div"), light(spec), {
      actions: false, logLevel: 1, renderer: "svg", ast: true, config: { ...light(data.config), background: "#ffffff" },
    });
    download(`${state.figure.dataset.figure}.svg`, "image/svg+xml", await view.toSVG());
    view.finalize();
  }

  // Theme

  const root = document.documentElement;
  const toggle = document.getElementById("theme");
  const isDark = () => root.dataset.theme
    ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const name = () => { toggle.textContent = isDark() ? "Light" : "Dark"; };
  toggle.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; name(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", name);
  name();

  // Tables

  const key = (row, column) => {
    const value = row.cells[column].dataset.sort;
    return value === "" ? null : Number.isNaN(Number(value)) ? value : Number(value);
  };
  for (const table of all("table.sortable")) {
    const heads = all("thead th", table);
    heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const compare = (a, b) => {
        const [x, y] = [key(a, column), key(b, column)];
        if (x === null || y === null) return (x === null) - (y === null); // empty cells last
        const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
        return up ? order : -order;
      };
      const body = table.tBodies[0];
      body.append(...[...body.rows].sort(compare));
    }));
  }

  // A table that continues beyond the edge fades out there.
  const fade = (place) => place.classList.toggle("more", place.scrollLeft + place.clientWidth < place.scrollWidth - 1);
  for (const place of all(".scroll")) {
    place.addEventListener("scroll", () => fade(place), { passive: true });
    new ResizeObserver(() => fade(place)).observe(place);
  }

  const tidy = (node) => node.textContent.trim().replace(/\s+/g, " ");
  const cellText = (cell) => { // `8.10 (7.52 … 8.71)`: the value with its interval or range
    const [value, detail] = [cell.querySelector(".value"), cell.querySelector("small")];
    return value && detail ? `${tidy(value)} (${tidy(detail)})` : tidy(value || cell);
  };
  const writers = {
    markdown: (rows) => {
      const clean = rows.map((row) => row.map((text) => text.replace(/\|/g, "\\|")));
      const line = (row) => `| ${row.join(" | ")} |`;
      return [line(clean[0]), line(clean[0].map((_, i) => (i ? "---:" : "---"))), ...clean.slice(1).map(line)].join("\n");
    },
    latex: (rows) => {
      const escaped = (text) => text.replace(/\\/g, "\\textbackslash ").replace(/[&%$#_{}]/g, "\\$&").replace(/–/g, "--").replace(/ … /g, "--").replace(/×/g, "$\\times$");
      const line = (row) => `  ${row.map(escaped).join(" & ")} \\\\`;
      return [`\\begin{tabular}{l${"r".repeat(rows[0].length - 1)}}`, "  \\toprule", line(rows[0]), "  \\midrule",
        ...rows.slice(1).map(line), "  \\bottomrule", "\\end{tabular}"].join("\n");
    },
  };
  for (const button of all("[data-copy]")) {
    const label = button.textContent;
    button.addEventListener("click", async () => {
      const rows = [...button.closest("section").querySelector("table").rows].map((row) => [...row.cells].map(cellText));
      const text = writers[button.dataset.copy](rows);
      let done = true;
      try { await navigator.clipboard.writeText(text); } catch { done = copyOld(text); }
      button.textContent = done ? "Copied" : "The browser refused to copy";
      setTimeout(() => { button.textContent = label; }, 1500);
    });
  }
  function copyOld(text) { // fallback without permission for the clipboard API
    const area = make("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }

  // Error browser

  const PAGE = 8;
  const GAP = "∅";
  if (data.errors) {
    const [systems, speakers] = ["error-system", "error-speaker"].map((id) => document.getElementById(id));
    const boxes = all("#error-kinds input");
    const list = document.getElementById("utterances");
    const more = document.getElementById("more");
    let shown = PAGE;
    const option = (select, value, text) => { const node = make("option", "", text); node.value = value; select.append(node); };
    data.errors.systems.forEach((system, i) => option(systems, i, `${system.name} · ${system.split}`));

    const refill = () => {
      const chosen = speakers.value;
      const names = [...new Set(data.errors.systems[systems.value].utterances.map((x) => x.speaker))].sort();
      speakers.replaceChildren();
      option(speakers, "", `all (${names.length})`);
      names.forEach((speaker) => option(speakers, "=" + speaker, speaker));
      speakers.value = names.includes(chosen.slice(1)) ? chosen : "";
    };

    const show = () => {
      const system = data.errors.systems[systems.value];
      const kinds = boxes.filter((box) => box.checked).map((box) => "SDI".indexOf(box.value));
      const found = system.utterances.filter((x) =>
        (!speakers.value || "=" + x.speaker === speakers.value) && kinds.every((kind) => x.counts[kind] > 0));
      document.getElementById("error-count").textContent =
        `Utterances shown, worst first: ${found.length} of ${system.utterances.length} on this page. The split has ${system.of}.`;
      list.replaceChildren(...found.slice(0, shown).map((x) => utterance(x, system)));
      more.hidden = found.length <= shown;
      document.getElementById("confusions").replaceChildren(...[["S", "substitutions"], ["D", "deletions"], ["I", "insertions"]]
        .filter(([kind]) => system.confusions[kind].length).map(([kind, title]) => confusions(title, kind, system.confusions[kind])));
    };

    const confusions = (title, kind, pairs) => {
      const block = make("div");
      const line = make("p");
      for (const [reference, heard, times] of pairs) {
        const text = kind === "S" ? `${reference} → ${heard}` : reference ?? heard;
        line.append(make("span", kind, `${text} ×${times}`), " ");
      }
      block.append(make("h3", "", `Most frequent ${title}`), line);
      return block;
    };

    const utterance = (entry, system) => {
      const item = make("li");
      const head = make("div", "utterance-head");
      const [s, d, i, length] = entry.counts;
      const rate = length ? `${(100 * (s + d + i) / length).toFixed(1)} %` : "–";
      head.append(make("b", "", entry.id), make("span", "", `speaker ${entry.speaker}`),
        make("span", "", `${system.metric} ${rate}: S ${s}, D ${d}, I ${i} of ${length}`));
      const sound = data.errors.audio[`${system.split}/${entry.id}`];
      if (sound) {
        const player = make("audio");
        player.controls = true;
        player.preload = "none";
        player.setAttribute("aria-label", `Utterance ${entry.id} of ${system.split}, speaker ${entry.speaker}`);
        player.src = sound;
        head.append(player);
      }
      item.append(head, alignment(entry.edits));
      if (entry.words.length) item.append(alignment(entry.words));
      if (entry.spoken) item.append(make("p", "spoken", `“${entry.spoken}”`));
      return item;
    };

    const alignment = (edits) => {
      const line = make("div", "alignment");
      for (const edit of edits) {
        const [kind, reference, heard] = typeof edit === "string" ? ["=", edit, edit] : edit;
        const column = make("span", kind === "=" ? "" : kind);
        column.append(make("span", "", (reference ?? GAP) === " " ? "␣" : reference ?? GAP));
        if (kind !== "=") column.append(make("span", "", heard ?? GAP), make("span", "kind", kind));
        line.append(column);
      }
      return line;
    };

    const again = () => { shown = PAGE; show(); };
    systems.addEventListener("change", () => { refill(); again(); });
    speakers.addEventListener("change", again);
    boxes.forEach((box) => box.addEventListener("change", again));
    more.addEventListener("click", () => { shown += PAGE; show(); });
    refill();
    show();
  }

  (async () => {
    for (const state of loaded) await draw(state);
    root.dataset.ready = "true";
  })();
})();
