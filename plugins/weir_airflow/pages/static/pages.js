// Airflow shows these pages in a frame that may not navigate the window around it: a link to one of Airflow's own
// pages is followed by that window. A page about something that is under way asks again, until it is over.
"use strict";

function leaveFrame(event) {
  const link = event.target.closest("a[data-airflow]");
  if (!link || window.parent === window) return;
  event.preventDefault();
  const way = window.parent.document.createElement("a");
  way.href = link.href;
  window.parent.document.body.append(way);
  way.click();
  way.remove();
}

async function follow() {
  const main = document.querySelector("main");
  const seconds = Number(main.dataset.follow || 0);
  if (!seconds) return;
  await new Promise((done) => setTimeout(done, seconds * 1000));
  try {
    const answer = await fetch(window.location.href, { headers: { Accept: "text/html" } });
    if (answer.ok) {
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      main.replaceWith(page.querySelector("main"));
    }
  } catch {
    // The API server restarts, or is away: the page stays as it is, and asks again.
  }
  follow();
}

document.addEventListener("click", leaveFrame);
follow();
