// What can be checked of a page without a person: structure, names, contrast. Gives complaints, each a sentence.
() => {
  const found = [];
  const visible = (e) => e.checkVisibility({ visibilityProperty: true, opacityProperty: true }) && !e.closest(".hidden, .skip");
  const said = (e) => `<${e.nodeName.toLowerCase()}${e.id ? " id=" + e.id : ""} class="${e.getAttribute("class") ?? ""}"> ${(e.textContent ?? "").trim().slice(0, 40)}`;

  // ---- structure
  for (const [selector, count] of [["h1", 1], ["main", 1], ["body > header", 1], ["body > footer", 1], ["nav[aria-label=Views]", 1], ["[role=search]", 1]]) {
    const there = document.querySelectorAll(selector).length;
    if (there !== count) found.push(`${there} of ${selector}, there must be ${count}`);
  }
  let level = 0;
  for (const heading of [...document.querySelectorAll("h1, h2, h3, h4")].filter(visible)) {
    const now = Number(heading.nodeName[1]);
    if (now > level + 1) found.push(`a level of headings is left out before ${said(heading)}`);
    level = now;
  }
  const ids = [...document.querySelectorAll("main [id], header [id], dialog [id]")].map((e) => e.id);
  for (const id of ids.filter((id, i) => ids.indexOf(id) !== i)) found.push(`the id ${id} is there twice`);
  for (const attribute of ["aria-labelledby", "aria-describedby", "for"]) {
    for (const e of document.querySelectorAll(`[${attribute}]`)) {
      for (const id of e.getAttribute(attribute).split(/\s+/)) {
        if (!document.getElementById(id)) found.push(`${attribute} of ${said(e)} names ${id}, which is not there`);
      }
    }
  }
  for (const table of document.querySelectorAll("table")) {
    if (!table.caption) found.push(`a table has no caption: ${said(table)}`);
    for (const th of table.querySelectorAll("th")) if (!th.scope) found.push(`a head has no scope: ${said(th)}`);
  }
  for (const e of document.querySelectorAll("[tabindex]")) if (e.tabIndex > 0) found.push(`its own order of focus: ${said(e)}`);
  for (const e of document.querySelectorAll("img:not([alt]), svg:not([aria-hidden]):not([role=img])")) found.push(`a picture without words: ${said(e)}`);
  if (!document.documentElement.lang) found.push("the page has no language");

  // ---- contrast
  const channels = (text) => {
    const numbers = text.match(/[\d.]+/g).map(Number);
    return text.startsWith("color(srgb") ? [...numbers.slice(0, 3).map((n) => n * 255), numbers[3] ?? 1] : [...numbers.slice(0, 3), numbers[3] ?? 1];
  };
  const over = (top, under) => [0, 1, 2].map((i) => top[i] * top[3] + under[i] * (1 - top[3]));
  const ground = (e) => {
    const layers = [];
    for (let at = e; at; at = at.parentElement) layers.push(channels(getComputedStyle(at).backgroundColor));
    return layers.reverse().reduce((under, layer) => over(layer, under), [255, 255, 255]);
  };
  const light = (colour) => {
    const [r, g, b] = colour.map((v) => (v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const texts = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) if (walker.currentNode.nodeValue.trim()) texts.add(walker.currentNode.parentElement);
  for (const e of texts) {
    if (!visible(e) || e.closest("noscript, option, [disabled]")) continue;
    const style = getComputedStyle(e);
    const under = ground(e);
    const ink = e instanceof SVGElement ? style.fill : style.color;
    if (!/^(rgb|color)/.test(ink)) continue;
    const [one, other] = [light(over(channels(ink), under)), light(under)].sort((a, b) => b - a);
    const ratio = (one + 0.05) / (other + 0.05);
    const size = parseFloat(style.fontSize);
    const least = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700) ? 3 : 4.5;
    if (ratio < least) found.push(`contrast ${ratio.toFixed(2)} of ${said(e)}`);
  }
  return found;
}
