"use strict";
// Beside pages that work without it: the theme of JupyterHub, times in the zone of the browser, tables for phones, the values of curves, and what changes
// while a page is open.
(function () {
  const KEY = "jupyterhub-bs-theme";
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const chosen = () => localStorage.getItem(KEY) || (dark.matches ? "dark" : "light");
  const show = () => document.documentElement.setAttribute("data-bs-theme", chosen());
  show();
  dark.addEventListener("change", show);

  // A time of the last hours can be the clock alone.
  function local(moment, isClock) {
    const form = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
    if (!isClock || Math.abs(new Date() - moment) > 72e6) {
      Object.assign(form, { month: "short", day: "numeric" });
    }
    if (moment.getFullYear() !== new Date().getFullYear()) {
      form.year = "numeric";
    }
    return moment.toLocaleString([], form);
  }

  function times(part) {
    for (const element of part.querySelectorAll("time[datetime]")) {
      const moment = new Date(element.dateTime);
      if (!isNaN(moment)) {
        element.title = element.dateTime;
        element.textContent = local(moment, element.classList.contains("clock"));
      }
    }
  }

  // On a phone, the style sheet shows the cells of a row below each other, each with its head.
  function tables(part) {
    for (const table of part.querySelectorAll(".table:not(.jobs)")) {
      const heads = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
      for (const row of table.tBodies[0].rows) {
        [...row.cells].forEach((cell, at) => { cell.dataset.head = heads[at]; });
      }
      table.classList.add("stack");
    }
  }

  const SVG = "http://www.w3.org/2000/svg";
  const WIDTH = 1000, HEIGHT = 100, MOST_VALUES = 8, STEP = 20;

  // The points of an edge, from left to right. An area has its upper edge, then the lower one from right to left.
  function edgesOf(line) {
    const points = line.getAttribute("points").split(" ").map((pair) => pair.split(",").map(Number));
    const turn = points.findIndex((point, at) => at > 0 && point[0] <= points[at - 1][0]);
    return turn < 0 ? [points] : [points.slice(0, turn), points.slice(turn).reverse()];
  }

  // The height of an edge at a place, not a number outside of it.
  function heightAt(points, x) {
    const after = points.findIndex((point) => point[0] >= x);
    if (after < 0 || (after === 0 && points[0][0] > x)) {
      return NaN;
    }
    const [right, top] = points[after];
    const [left, before] = points[Math.max(0, after - 1)];
    return right === left ? top : before + ((top - before) * (x - left)) / (right - left);
  }

  function valuesAt(svg, names, x) {
    const found = [];
    for (const line of svg.querySelectorAll("[data-of]")) {
      const [upper, lower] = edgesOf(line);
      const height = (lower ? heightAt(lower, x) : HEIGHT) - heightAt(upper, x);
      if (!isNaN(height)) {
        found.push([(height * Number(svg.dataset.top)) / HEIGHT, names[line.dataset.of] || ""]);
      }
    }
    return found.sort((one, other) => other[0] - one[0]);
  }

  // What a picture says at a time: under the pointer, or where the arrow keys have led.
  function values(figure) {
    const svg = figure.querySelector("svg");
    const names = [...figure.querySelectorAll(".legend li span")].map((name) => name.textContent);
    const ends = [...figure.querySelectorAll(".times time")].map((time) => new Date(time.dateTime).getTime());
    const box = figure.appendChild(document.createElement("p"));
    const mark = document.createElementNS(SVG, "path");
    let place = WIDTH;
    box.className = "values";
    box.setAttribute("role", "status");
    mark.setAttribute("class", "mark");
    svg.tabIndex = 0;
    const hide = () => { box.textContent = ""; mark.remove(); };
    const tell = (x) => {
      place = Math.round(Math.min(WIDTH, Math.max(0, x)));
      const found = valuesAt(svg, names, place);
      const texts = found.map(([value, name]) => name + " " + Number(value.toPrecision(3)) + " " + svg.dataset.unit);
      if (texts.length > MOST_VALUES) {
        texts.splice(MOST_VALUES / 2, texts.length - MOST_VALUES, "…");
      }
      const moment = new Date(ends[0] + ((ends[ends.length - 1] - ends[0]) * place) / WIDTH);
      box.textContent = [local(moment, true), ...texts].join("\n");
      mark.setAttribute("d", "M" + place + " 0V" + HEIGHT);
      svg.append(mark);
    };
    svg.addEventListener("pointermove", (event) => {
      const area = svg.getBoundingClientRect();
      tell((WIDTH * (event.clientX - area.left)) / area.width);
    });
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("blur", hide);
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -STEP, ArrowRight: STEP }[event.key];
      if (step) {
        event.preventDefault();
        tell(box.textContent ? place + step : place);
      } else if (event.key === "Escape") {
        hide();
      }
    });
  }

  function dress(part) {
    times(part);
    tables(part);
    part.querySelectorAll(".chart").forEach(values);
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
    const isRead = part.contains(document.activeElement) || part.querySelector(".values:not(:empty)");
    if (fresh && !isRead && String(getSelection()) === "") {
      const before = part.textContent;
      part.replaceWith(fresh);
      dress(fresh);
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
    dress(document);
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
