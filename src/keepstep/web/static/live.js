// Keeps the page as the server knows it, and says so when it cannot. Owns the word "live" at the top.
//
// Server-sent events say when something changed; the page is asked for in any case every few seconds, since step and loss
// move without an entry, and since only an answer proves that the server is there.

import { morph } from "./morph.js";
import { clock, localise } from "./times.js";

const POLL_MS = 5000;
const GATHER_MS = 300;
const PATIENCE_MS = 8000;

let answered = Date.now();
let asking = false;
let again = false;
let timer = 0;
let failed = "";
let streaming = false;
let source = null;

export function startLive() {
  if (!document.hidden) listen();
  schedule(POLL_MS);
  setInterval(tell, 1000);
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) return hush();
    listen();
    refresh();
  });
  addEventListener("online", () => refresh());
  addEventListener("offline", () => { failed = "this computer is offline"; tell(); });
  tell();
}

// A browser has six connections to one server: tabs that nobody looks at give theirs back, and go on asking.
function hush() {
  source?.close();
  source = null;
  streaming = false;
}

function listen() {
  hush();
  source = new EventSource("/api/v1/events");
  const changed = (event) => {
    let subjects = [];
    try {
      subjects = JSON.parse(event.data).subjects ?? [];
    } catch {
      // Whatever changed, the page is asked for again.
    }
    document.dispatchEvent(new CustomEvent("keepstep:change", { detail: subjects }));
    schedule(GATHER_MS);
  };
  source.onmessage = changed;
  source.addEventListener("change", changed);
  source.addEventListener("reset", changed);
  source.onopen = () => { if (!streaming) schedule(GATHER_MS); streaming = true; tell(); };
  source.onerror = () => {
    if (streaming) schedule(0);
    streaming = false;
    tell();
    if (source?.readyState === EventSource.CLOSED) setTimeout(() => document.hidden || listen(), POLL_MS);
  };
}

function schedule(ms) {
  clearTimeout(timer);
  timer = setTimeout(refresh, ms);
}

export async function refresh() {
  if (asking) { again = true; return; }
  asking = true;
  try {
    await ask();
    failed = "";
    answered = Date.now();
  } catch (error) {
    failed = error.message;
  }
  asking = false;
  tell();
  schedule(again ? GATHER_MS : POLL_MS);
  again = false;
}

async function ask() {
  const main = document.getElementById("main");
  if (main.hasAttribute("data-still")) return prove();
  const address = new URL(location.href);
  address.searchParams.set("fragment", "1");
  address.hash = "";
  const response = await fetch(address, {
    headers: { Accept: "text/html", "X-Keepstep-Request": "1" }, cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS),
  });
  if (response.status === 401 || (response.redirected && new URL(response.url).pathname === "/login")) {
    throw new Error("you are signed out: sign in again");
  }
  if (response.status >= 500) throw new Error(`the server answered ${response.status}`);
  const parsed = new DOMParser().parseFromString(`<main>${await response.text()}</main>`, "text/html");
  const wanted = parsed.querySelector("main");
  localise(wanted);
  morph(main, document.adoptNode(wanted));
  title();
  document.dispatchEvent(new CustomEvent("keepstep:shown"));
}

// Of a page that does not update: only whether the server is there.
async function prove() {
  const response = await fetch("/healthz", { cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
  if (!response.ok) throw new Error(`the server answered ${response.status}`);
}

export function title() {
  const counted = document.querySelector("h1[data-count]");
  const name = `${document.getElementById("main").dataset.title} · Keepstep`;
  const count = Number(counted?.dataset.count ?? 0);
  document.title = count ? `(${count} ${counted.dataset.word}) ${name}` : name;
}

export function isStale() {
  return failed !== "" || Date.now() - answered > POLL_MS + PATIENCE_MS;
}

function tell() {
  const live = document.getElementById("live");
  const text = document.getElementById("live-text");
  const banner = document.getElementById("stale");
  const stale = isStale();
  const state = stale ? "stale" : streaming ? "live" : "polling";
  const said = stale ? `stale since ${clock(new Date(answered))}` : streaming ? "live" : `every ${POLL_MS / 1000} s`;
  if (text.textContent !== said) text.textContent = said;
  if (live.dataset.live !== state) {
    live.dataset.live = state;
    document.documentElement.classList.toggle("is-stale", stale);
    banner.hidden = !stale;
  }
  if (!stale) return;
  const why = failed === "Failed to fetch" ? "no connection to the server" : failed || "no answer";
  const warning = `What you see is old: it was true at ${clock(new Date(answered))} (${why}). It is tried again every ${POLL_MS / 1000} s.`;
  if (banner.textContent !== warning) banner.textContent = warning;
}
