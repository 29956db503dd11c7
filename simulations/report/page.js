"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const night = matchMedia("(prefers-color-scheme: dark)");
  const narrow = matchMedia("(max-width: 760px)");
  const panel = { ...data.start };
  const hidden = new Set();
  let from = 0;
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const colour = (series) => (night.matches ? series.dark : series.light);
  const faded = (hex, alpha) =>
    `rgba(${[1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)).join(",")},${alpha})`;
  const here = (place) => Object.entries(place).every(([key, value]) => panel[key] === value);
  const number = (chart, value) =>
    chart.percent ? (100 * value).toFixed(1) + " %" : value === 0 ? "0" : Number(value.toPrecision(3)).toString();

  // The curves of a chart from the chosen round on; what is drawn against swept values has no rounds.
  const curvesOf = (chart) => chart.points || !from ? chart.curves : chart.curves.map((curve) => {
    const start = Math.floor(curve.x.length * from), late = { ...curve };
    for (const key of ["x", "mean", "low", "high"]) late[key] = curve[key].slice(start);
    return late;
  });

  function words(chart, curve, at) {
    const { low, high, mean } = curve;
    if (low[at] === null) return number(chart, mean[at]);
    const interval = chart.percent || !chart.logY
      ? " ± " + number(chart, (high[at] - low[at]) / 2).replace(" %", "")
      : ` (${number(chart, low[at])} to ${number(chart, high[at])})`;
    return number(chart, mean[at]).replace(" %", "") + interval + (chart.percent ? " %" : "");
  }

  // A chart of rows: one series a row, the best on top; bars begin at zero, points need not.
  function rowsOf(chart) {
    return chart.curves.filter((curve) => !hidden.has(curve.series)).map((curve, place) => {
      const series = data.series[curve.series], ink = colour(series), mean = curve.mean[0];
      const reach = curve.low[0] === null ? undefined
        : { type: "data", symmetric: false, thickness: 1.4, width: 4, color: chart.bars ? css("--ink") : ink,
            array: [curve.high[0] - mean], arrayminus: [mean - curve.low[0]] };
      const both = { x: [mean], y: [place], name: curve.name, showlegend: false, error_x: reach,
        text: [words(chart, curve, 0)], hovertemplate: `%{text}<extra>${curve.name}</extra>` };
      return chart.bars
        ? { ...both, type: "bar", orientation: "h", width: 0.62, marker: { color: faded(ink, 0.85) }, textposition: "none" }
        : { ...both, mode: "markers", marker: { symbol: series.symbol, size: 11, color: ink } };
    });
  }

  function layoutOfRows(chart) {
    const shown = chart.curves.filter((curve) => !hidden.has(curve.series));
    const all = (key) => shown.map((curve) => curve[key][0]).filter((value) => value !== null);
    const ends = [...all("low"), ...all("mean"), ...all("high")];
    const air = 0.06 * Math.max(Math.max(...ends) - Math.min(...ends), 1e-12);
    const axis = { gridcolor: css("--grid"), linecolor: css("--rule"), zeroline: false, automargin: true };
    return {
      ...frame(chart),
      xaxis: { ...axis, title: { text: chart.x, standoff: 10 }, tickformat: chart.percent ? ".0%" : undefined, exponentformat: "power", nticks: narrow.matches ? 4 : 7,
               range: chart.bars ? [0, Math.max(...ends) + air] : [Math.min(...ends) - air, Math.max(...ends) + air] },
      yaxis: { ...axis, showgrid: false, range: [shown.length - 0.4, -0.6], tickvals: shown.map((_, place) => place), ticktext: shown.map((curve) => curve.name) },
      hovermode: "closest", dragmode: false,
    };
  }

  function traces(chart) {
    if (chart.rows) return rowsOf(chart);
    const bands = [], lines = [];
    const shown = curvesOf(chart).filter((curve) => !hidden.has(curve.series) && here(curve.place));
    // Many bands on top of each other are mud: the more there are, the fainter each one.
    const alpha = (night.matches ? 0.24 : 0.18) / Math.sqrt(Math.max(1, shown.length - 1));
    for (const curve of shown) {
      const series = data.series[curve.series], ink = colour(series);
      const certain = curve.low.map((value, at) => (value === null ? -1 : at)).filter((at) => at >= 0);
      if (certain.length > 1 && (!chart.points || curve.flat)) {
        const back = [...certain].reverse();
        bands.push({
          x: [...certain, ...back].map((at) => curve.x[at]),
          y: [...certain.map((at) => curve.high[at]), ...back.map((at) => curve.low[at])],
          fill: "toself", fillcolor: faded(ink, alpha), line: { width: 0 },
          mode: "lines", hoverinfo: "skip", showlegend: false,
        });
      }
      lines.push({
        x: curve.x, y: curve.mean, name: series.name, showlegend: false,
        mode: curve.flat ? "lines" : "lines+markers",
        line: { color: ink, width: 2, dash: series.dash },
        marker: { symbol: series.symbol, size: 7, maxdisplayed: chart.points ? 0 : 7 },
        text: curve.mean.map((_, at) => words(chart, curve, at)),
        hovertemplate: chart.logX && !chart.points
          ? `${series.name}<br>%{text}<br>%{x:.3g} MB<extra></extra>`
          : `%{text}<extra>${series.name}</extra>`,
        error_y: chart.points && !curve.flat && certain.length
          ? { type: "data", symmetric: false, thickness: 1.3, width: 3, color: ink,
              array: curve.high.map((value, at) => (value === null ? 0 : value - curve.mean[at])),
              arrayminus: curve.low.map((value, at) => (value === null ? 0 : curve.mean[at] - value)) }
          : undefined,
      });
    }
    return [...bands, ...lines];
  }

  // The same as `extent` in charts.py, for what is not hidden; all panels share it, so that they compare.
  function range(chart) {
    let curves = curvesOf(chart).filter((curve) => !hidden.has(curve.series));
    if (!curves.length) curves = curvesOf(chart);
    if (chart.logY) {
      const largest = Math.max(...curves.flatMap((curve) => curve.mean));
      curves = curves.filter((curve) => Math.max(...curve.mean) >= data.floor * largest);
    }
    const scale = chart.logY ? Math.log10 : (value) => value;
    const all = (key) => curves.flatMap((curve) => curve[key]).filter((value) => value !== null).map(scale).filter(Number.isFinite);
    const mean = all("mean");
    let [low, high] = [Math.min(...mean), Math.max(...mean)];
    const room = Math.max(high - low, data.leastRoom);
    low = Math.max(low - 0.35 * room, Math.min(low, ...all("low"))) - 0.04 * room;
    high = Math.min(high + 0.35 * room, Math.max(high, ...all("high"))) + 0.04 * room;
    return chart.percent ? [Math.max(low, -0.01), Math.min(high, 1.01)] : [low, high];
  }

  // The same as `log_ticks` in charts.py, between two powers of ten: the coarsest steps that give three ticks.
  function logTicks(low, high) {
    const tenths = Array.from({ length: 90 }, (_, at) => (10 + at) / 10);
    let tickvals = [], ticktext = [];
    for (const steps of [[1], [1, 2, 5], [1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9], tenths]) {
      tickvals = []; ticktext = [];
      for (let power = Math.floor(low); power <= Math.ceil(high); power++) {
        for (const step of steps.filter((each) => Math.log10(each) + power >= low && Math.log10(each) + power <= high)) {
          tickvals.push(step * 10 ** power);
          const plain = Number((step * 10 ** power).toPrecision(3)).toString();
          const sup = `10<sup>${String(power).replace("-", "−")}</sup>`;
          ticktext.push(power > -4 && power < 5 ? plain : step === 1 ? sup : `${step} × ${sup}`);
        }
      }
      if (tickvals.length >= 3) break;
    }
    return { tickvals, ticktext };
  }

  function frame(chart) {
    return {
      margin: { l: narrow.matches ? 44 : 56, r: 12, t: 16, b: 44 },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: css("--sans"), size: 12.5, color: css("--quiet") },
      hovermode: chart.logX && !chart.points ? "closest" : "x unified",
      hoverlabel: { bgcolor: css("--raised"), bordercolor: css("--rule"), font: { color: css("--ink"), size: 12.5 } },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: css("--quiet"), activecolor: css("--accent") },
      dragmode: narrow.matches ? false : "zoom",
    };
  }

  // Rounds are whole, and so are their ticks.
  const wholeStep = (length) => [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].find((step) => length / step <= 10) || Math.ceil(length / 10);

  function layout(chart) {
    if (chart.rows) return layoutOfRows(chart);
    const axis = { gridcolor: css("--grid"), linecolor: css("--rule"), zeroline: false, automargin: true, title: { standoff: 10 } };
    const x = { ...axis, title: { ...axis.title, text: narrow.matches ? chart.x.replace(", ", ",<br>") : chart.x }, showgrid: false, showline: true, spikecolor: css("--quiet"), spikethickness: 1, spikedash: "2px,3px", ticks: "outside", tickcolor: css("--rule") };
    const y = { ...axis, title: { ...axis.title, text: chart.y }, range: range(chart) };
    if (chart.logX) {
      const shown = curvesOf(chart).filter((curve) => chart.points || here(curve.place));
      const all = (shown.length ? shown : chart.curves).flatMap((curve) => curve.x).map(Math.log10);
      Object.assign(x, { type: "log", ...logTicks(Math.min(...all), Math.max(...all)) });
    }
    if (chart.logY) Object.assign(y, { type: "log", ...logTicks(...y.range) });
    if (chart.percent) y.tickformat = ".0%";
    if (chart.ticks.length) Object.assign(x, { tickvals: chart.ticks, ticktext: chart.ticks.map((tick) => Number(tick.toPrecision(3)).toString()) });
    if (!chart.logX && !chart.points) {
      const rounds = chart.curves.flatMap((curve) => curve.x), last = Math.max(...rounds);
      const first = from ? Math.min(...curvesOf(chart).flatMap((curve) => curve.x)) : 0, air = 0.02 * (last - first);
      Object.assign(x, { range: [first - air, last + air], dtick: wholeStep(last - first), tick0: 0, tickformat: "d", hoverformat: "d", unifiedhovertitle: { text: `${chart.x} %{x}` } });
    }
    return { ...frame(chart), xaxis: x, yaxis: y };
  }

  const config = { displaylogo: false, responsive: true, modeBarButtons: [["toImage", "resetScale2d"]] };
  function draw() {
    document.querySelectorAll("[data-chart]").forEach((element) => {
      const chart = data.charts[Number(element.dataset.chart)];
      Plotly.react(element, traces(chart), layout(chart), {
        ...config, toImageButtonOptions: { format: "svg", filename: chart.key },
      });
    });
    document.querySelectorAll(".card").forEach((card) => {
      const place = Object.keys(panel).filter((key) => key in card.dataset);
      card.hidden = !place.every((key) => Number(card.dataset[key]) === panel[key]);
    });
  }

  document.querySelector(".controls").hidden = false;
  document.querySelectorAll("[data-series]").forEach((button) =>
    button.addEventListener("click", () => {
      const series = Number(button.dataset.series);
      if (!hidden.delete(series)) hidden.add(series);
      button.setAttribute("aria-pressed", String(!hidden.has(series)));
      draw();
    }));
  document.querySelectorAll("[data-dimension] input").forEach((input) =>
    input.addEventListener("change", () => {
      panel[input.name] = Number(input.value);
      draw();
    }));
  const rounds = [...document.querySelectorAll("input[name=rounds]")];
  rounds.forEach((input) => input.addEventListener("change", () => {
    from = Number(input.value);
    draw();
  }));
  from = Number(rounds.find((input) => input.checked).value);
  // Browsers keep what was chosen when a page is loaded again.
  document.querySelectorAll("[data-dimension] input:checked").forEach((input) => (panel[input.name] = Number(input.value)));
  night.addEventListener("change", draw);
  narrow.addEventListener("change", draw);
  draw();
})();
