"use strict";
// Beside pages that work without it: the theme of JupyterHub, times in the zone of the browser, and what changes while a page is open.
(function () {
  const KEY = "jupyterhub-bs-theme";
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const chosen = () => localStorage.getItem(KEY) || (dark.matches ? "dark" : "light");
  const show = () => document.documentElement.setAttribute("data-bs-theme", chosen());
  show();
  dark.addEventListener("change", show);

  function times(part) {
    for (const element of part.querySelectorAll("time[datetime]")) {
      const moment = new Date(element.dateTime);
      if (!isNaN(moment)) {
        const form = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
        if (!element.classList.contains("clock") || Math.abs(new Date() - moment) > 72e6) {
          Object.assign(form, { month: "short", day: "numeric" });
        }
        if (moment.getFullYear() !== new Date().getFullYear()) {
          form.year = "numeric";
        }
        element.title = element.dateTime;
        element.textContent = moment.toLocaleString([], form);
      }
    }
  }

  // JupyterHub takes the cookie of a request that a script makes only with the token of the page.
  function ask(address) {
    return fetch(address, { redirect: "error", headers: { "X-XSRFToken": document.body.dataset.xsrf } });
  }

  // The page once more, of which one part is taken. What a person reads or types there stays.
  async function refresh(frame) {
    const part = document.getElementById("live");
    const answer = await ask(frame.dataset.live || location.href);
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("live");
    if (fresh && !part.contains(document.activeElement) && String(getSelection()) === "") {
      times(fresh);
      const before = part.textContent;
      part.replaceWith(fresh);
      return before === fresh.textContent ? "same" : "grown";
    }
    return "same";
  }

  async function follow(log) {
    const answer = await ask(log.dataset.log + "&from=" + log.dataset.next);
    const found = await answer.json();
    const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
    log.append(found.text);
    log.dataset.next = found.next;
    if (atEnd) {
      log.scrollTop = log.scrollHeight;
    }
    return found.ended ? "ended" : found.text !== "" ? "grown" : "same";
  }

  // Each look starts a program on the host of the hub. Where nothing changes, the looks become fewer.
  function again(action, seconds) {
    let idle = 0;
    const look = async () => {
      let found = "same";
      if (!document.hidden) {
        try {
          found = await action();
        } catch (error) {
          found = "same";
        }
        idle = found === "grown" ? 0 : idle + 1;
      }
      if (found !== "ended") {
        setTimeout(look, 1000 * seconds * Math.min(6, 1 + idle / 4));
      }
    };
    setTimeout(look, 1000 * seconds);
  }

  document.addEventListener("DOMContentLoaded", () => {
    const toggle = document.getElementById("theme");
    toggle.hidden = false;
    toggle.addEventListener("click", () => {
      localStorage.setItem(KEY, chosen() === "dark" ? "light" : "dark");
      show();
    });
    times(document);
    const seconds = Number(document.body.dataset.seconds);
    const frame = document.querySelector("[data-live]");
    if (frame) {
      again(() => refresh(frame), 3 * seconds);
    }
    const log = document.querySelector("[data-log]");
    if (log) {
      log.scrollTop = log.scrollHeight;
      again(() => follow(log), seconds);
    }
    const wrong = document.querySelector("[aria-invalid]");
    if (wrong) {
      wrong.focus();
    }
  });
})();
