// Buttons that ask the API for something: each is confirmed in a dialog that says what will follow.

import { isStale, refresh } from "./live.js";

const get = (id) => document.getElementById(id);
let button = null;
let key = "";

export function startActs() {
  const dialog = get("confirm");
  document.addEventListener("click", (event) => {
    const pressed = event.target.closest("button[data-post]");
    if (pressed && pressed.getAttribute("aria-disabled") !== "true") open(dialog, pressed);
  });
  get("confirm-no").addEventListener("click", () => dialog.close());
  dialog.querySelector("form").addEventListener("submit", (event) => {
    event.preventDefault();
    send(dialog);
  });
  dialog.addEventListener("close", () => {
    if (button?.isConnected) button.focus();
    else get("main").focus();
  });
  get("sign-out").addEventListener("click", signOut);
}

function open(dialog, pressed) {
  button = pressed;
  key = fresh();
  get("confirm-title").textContent = pressed.dataset.question;
  get("confirm-follows").replaceChildren(
    ...JSON.parse(pressed.dataset.follows).map((sentence) => {
      const item = document.createElement("li");
      item.textContent = sentence;
      return item;
    }),
  );
  get("confirm-reason-row").hidden = !pressed.hasAttribute("data-reason");
  get("confirm-reason").value = "";
  const yes = get("confirm-yes");
  yes.textContent = pressed.textContent;
  yes.className = pressed.className === "primary" ? "primary" : "danger";
  yes.disabled = false;
  fail(isStale() ? "What you see is old: the connection is lost. Things may stand otherwise by now." : "");
  dialog.showModal();
  get("confirm-no").focus();
}

function fail(text) {
  get("confirm-error").hidden = !text;
  get("confirm-error").textContent = text;
}

// While it is on its way the dialog may be closed, and opened for something else: that one is not touched.
async function send(dialog) {
  const yes = get("confirm-yes");
  const what = button.textContent;
  const sent = key;
  const isOpen = () => dialog.open && key === sent;
  yes.disabled = true;
  fail("");
  const reason = button.hasAttribute("data-reason") ? { reason: get("confirm-reason").value } : {};
  const body = { ...JSON.parse(button.dataset.body || "{}"), ...reason };
  try {
    const response = await fetch(button.dataset.post, {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-Keepstep-Request": "1", "Idempotency-Key": key },
      body: JSON.stringify(body),
      signal: AbortSignal.timeout(15000),
    });
    if (!response.ok) throw new Error(await problem(response));
    get("said").textContent = `${what}: accepted.`;
    if (isOpen()) dialog.close();
    refresh();
  } catch (error) {
    if (!isOpen()) {
      get("said").textContent = `${what}: not accepted: ${error.message}.`;
      return;
    }
    fail(`It was not accepted: ${error.message}. You may try again; it is done once at most.`);
    yes.disabled = false;
  }
}

async function problem(response) {
  try {
    const told = await response.json();
    return (told.detail || told.title || `status ${response.status}`).replace(/\.$/, "");
  } catch {
    return `status ${response.status}`;
  }
}

function fresh() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

async function signOut() {
  try {
    const response = await fetch("/logout", { method: "POST", headers: { "X-Keepstep-Request": "1" } });
    if (!response.ok && response.status !== 401) throw new Error(await problem(response));
    location.assign("/login");
  } catch (error) {
    get("said").textContent = `You are still logged in: ${error.message}.`;
  }
}
