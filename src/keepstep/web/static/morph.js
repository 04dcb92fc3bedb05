// Turns what is on the page into what the server wrote anew, and touches only what differs: focus, selections, open details
// and what is being typed stay. Children are matched by data-key or id, else by their order.

export function morph(present, wanted) {
  const focused = document.activeElement;
  morphChildren(present, wanted);
  // A row that changed its place was taken out for a moment.
  if (focused !== document.activeElement && focused?.isConnected) focused.focus({ preventScroll: true });
}

function keyOf(node) {
  if (node.nodeType !== Node.ELEMENT_NODE) return null;
  if (node.nodeName === "SECTION") return node.getAttribute("aria-labelledby");
  return node.dataset.key ?? (node.id || null);
}

function isBlank(node) {
  return node.nodeType === Node.TEXT_NODE && !node.nodeValue.trim();
}

function alike(one, other) {
  return one.nodeType === other.nodeType && one.nodeName === other.nodeName && keyOf(one) === keyOf(other);
}

function morphNode(present, wanted) {
  if (present.nodeType !== Node.ELEMENT_NODE) {
    if (present.nodeValue !== wanted.nodeValue) present.nodeValue = wanted.nodeValue;
    return;
  }
  if (present.hasAttribute("data-keep")) return;
  morphAttributes(present, wanted);
  morphChildren(present, wanted);
}

// What the viewer changed is the viewer's.
const KEPT = { DETAILS: ["open"], INPUT: ["value", "checked"], OPTION: ["selected"] };

function morphAttributes(present, wanted) {
  const kept = KEPT[present.nodeName] ?? [];
  for (const { name } of [...present.attributes]) {
    if (!wanted.hasAttribute(name) && !kept.includes(name)) present.removeAttribute(name);
  }
  for (const { name, value } of wanted.attributes) {
    if (!kept.includes(name) && present.getAttribute(name) !== value) present.setAttribute(name, value);
  }
}

// Blank text is left as it is: it shows nothing.
function morphChildren(present, wanted) {
  const news = [...wanted.childNodes].filter((node) => !isBlank(node));
  const wantedKeys = new Set(news.map(keyOf).filter(Boolean));
  const keyed = new Map();
  for (const child of [...present.childNodes]) {
    const key = keyOf(child);
    if (key && wantedKeys.has(key)) keyed.set(key, child);
    else if (key) child.remove();
  }
  let at = skip(present.firstChild);
  for (const next of news) {
    const key = keyOf(next);
    const match = key ? keyed.get(key) : at && !keyOf(at) ? at : null;
    if (!match || !alike(match, next)) {
      present.insertBefore(next, at);
      continue;
    }
    if (match === at) at = skip(at.nextSibling);
    else present.insertBefore(match, at);
    morphNode(match, next);
  }
  while (at) {
    const gone = at;
    at = skip(at.nextSibling);
    gone.remove();
  }
}

function skip(node) {
  let found = node;
  while (found && isBlank(found)) found = found.nextSibling;
  return found;
}
