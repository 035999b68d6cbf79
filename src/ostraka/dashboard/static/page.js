// Puts the parts of the page in their places as they come, and lets the deadline run.
"use strict";

const link = document.getElementById("link");
let ahead = 0; // seconds that the server's clock is ahead of this one

function say(text, lost) {
  if (link.textContent !== text) link.textContent = text;
  document.documentElement.classList.toggle("lost", lost);
}

function put(name, html) {
  const place = document.querySelector(`[data-part="${CSS.escape(name)}"]`);
  if (!place) return;
  const open = [...place.querySelectorAll("details[open]")].map((each) => each.id);
  const scrolled = [...place.querySelectorAll(".scroll")].map((each) => each.scrollLeft);
  const regions = [...place.querySelectorAll(".scroll, summary")];
  const focused = regions.indexOf(document.activeElement);
  place.innerHTML = html; // Escaped by the server; no script in it would run.
  for (const id of open) document.getElementById(id)?.setAttribute("open", "");
  place.querySelectorAll(".scroll").forEach((each, at) => (each.scrollLeft = scrolled[at] ?? 0));
  if (focused >= 0) place.querySelectorAll(".scroll, summary")[focused]?.focus();
  const section = place.closest("section");
  if (section && section.id === "figures") section.hidden = html === "";
}

function tick() {
  for (const each of document.querySelectorAll("[data-until]")) {
    const left = Math.max(0, Math.round(Number(each.dataset.until) - ahead - Date.now() / 1000));
    const parts = [Math.floor(left / 60) % 60, left % 60].map((n) => String(n).padStart(2, "0"));
    const hours = Math.floor(left / 3600);
    each.textContent = (hours ? `${hours}:` : "") + parts.join(":");
  }
}

function listen() {
  const source = new EventSource("events");
  source.onopen = () => say("live", false);
  source.onmessage = (event) => {
    const { now, parts } = JSON.parse(event.data);
    ahead = now - Date.now() / 1000;
    for (const [name, html] of Object.entries(parts)) put(name, html);
    tick();
  };
  source.onerror = () => {
    say("connection lost, trying again", true);
    if (source.readyState !== EventSource.CLOSED) return; // The browser tries again by itself.
    setTimeout(async () => {
      const reply = await fetch("./").catch(() => null);
      if (reply && reply.status === 401) location.reload();
      else listen();
    }, 2000);
  };
}

setInterval(tick, 500);
tick();
listen();
