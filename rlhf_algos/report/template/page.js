"use strict";
(() => {
  const charts = [...document.querySelectorAll(".chart")].map((place) => {
    const source = place.querySelector("script");
    const figure = JSON.parse(source.textContent);
    source.remove();
    return { place, figure };
  });
  const hidden = new Set();
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function painted(trace) {
    const { group, part, color: index } = trace.meta;
    const own = color(`--group-${index}`);
    const copy = { ...trace, visible: !hidden.has(group), line: { ...trace.line, color: own } };
    if (part === "band") {
      copy.fillcolor = own + "26";
    } else {
      copy.marker = { ...trace.marker, color: own };
    }
    return copy;
  }

  function layoutOf(layout) {
    const axis = (given) => ({
      ...given, gridcolor: color("--grid"), linecolor: color("--line"), zerolinecolor: color("--line"), showline: true,
    });
    return {
      ...layout,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: color("--text"), family: getComputedStyle(document.body).fontFamily, size: 12 },
      hoverlabel: { bgcolor: color("--raised"), bordercolor: color("--line"), font: { color: color("--text") }, namelength: -1 },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: color("--quiet"), activecolor: color("--text") },
      // A negative thickness is Plotly's way to say: without a white border.
      xaxis: { ...axis(layout.xaxis), showspikes: true, spikemode: "across", spikedash: "dot", spikethickness: -2, spikecolor: color("--quiet") },
      yaxis: { ...axis(layout.yaxis), showspikes: false },
    };
  }

  const config = {
    responsive: true,
    displaylogo: false,
    modeBarButtonsToRemove: ["select2d", "lasso2d"],
    // The page stays on this machine: no button that uploads a chart.
    showSendToCloud: false,
    plotlyServerURL: "",
  };

  function draw() {
    for (const { place, figure } of charts) {
      Plotly.react(place, figure.data.map(painted), layoutOf(figure.layout), config);
    }
  }

  for (const button of document.querySelectorAll("#legend button")) {
    button.addEventListener("click", () => {
      const group = Number(button.dataset.group);
      const shown = button.getAttribute("aria-pressed") === "true";
      button.setAttribute("aria-pressed", String(!shown));
      if (shown) { hidden.add(group); } else { hidden.delete(group); }
      draw();
    });
  }
  // A heading that a link leads to must not end up under the legend.
  const legend = document.getElementById("legend");
  new ResizeObserver(() => {
    document.documentElement.style.scrollPaddingTop = `${legend.offsetHeight + 16}px`;
  }).observe(legend);

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  draw();
})();
