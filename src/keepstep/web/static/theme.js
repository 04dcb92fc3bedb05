// The theme: the system's, or the one that was chosen here. Owns the choice and its place in localStorage.

const KEY = "keepstep-theme";

export function startTheme() {
  const chosen = document.documentElement.dataset.theme ?? "";
  for (const radio of document.querySelectorAll("input[name=theme]")) {
    radio.checked = radio.value === chosen;
    radio.addEventListener("change", () => choose(radio.value));
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", tell);
}

function choose(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  try {
    if (theme) localStorage.setItem(KEY, theme);
    else localStorage.removeItem(KEY);
  } catch {
    // It holds for this page only.
  }
  tell();
}

function tell() {
  document.dispatchEvent(new CustomEvent("keepstep:theme"));
}
