// Starts what every page has. Each module owns one thing; this one owns the keys that hold everywhere.

import { startActs } from "./acts.js";
import { startLive, title } from "./live.js";
import { startMap } from "./map.js";
import { startTheme } from "./theme.js";
import { localise } from "./times.js";

localise(document);
title();
startTheme();
startActs();
startLive();
startMap();

document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, select, textarea, dialog");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    document.getElementById("find").focus();
  }
  if (event.key === "Escape") for (const menu of document.querySelectorAll("details.me[open]")) menu.open = false;
});

// Filters keep empty fields out of the address.
document.addEventListener("submit", (event) => {
  if (!event.target.matches("[data-filters]")) return;
  for (const field of event.target.elements) if (field.name && field.value === "") field.disabled = true;
});

document.addEventListener("change", (event) => {
  const form = event.target.closest("form[data-filters]");
  if (form && event.target.matches("select, [type=date]")) form.requestSubmit();
});
addEventListener("pageshow", () => {
  for (const field of document.querySelectorAll("[data-filters] :disabled")) field.disabled = false;
});
