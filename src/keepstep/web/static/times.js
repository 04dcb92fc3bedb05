// Times in the viewer's zone. The server writes UTC; it stays as the tip.

const full = new Intl.DateTimeFormat(undefined, {
  year: "numeric", month: "short", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit", timeZoneName: "short",
});
const today = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", timeZoneName: "short" });

export function clock(date) {
  return sameDay(date, new Date()) ? today.format(date) : full.format(date);
}

function sameDay(one, other) {
  return one.toDateString() === other.toDateString();
}

export function localise(root) {
  for (const time of root.querySelectorAll("time[data-at]")) {
    const date = new Date(time.dateTime);
    const text = "whole" in time.dataset ? full.format(date) : clock(date);
    if (time.textContent !== text) time.textContent = text;
  }
}
