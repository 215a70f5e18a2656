// Copyright: (c) 2026, trainyard maintainers
// GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
// SPDX-License-Identifier: GPL-3.0-or-later
// An extension of JupyterLab without a build: it shows the warning before an idle instance is stopped, also in the title of a hidden tab.
(function () {
  "use strict";

  function activate(app) {
    var base = JSON.parse(document.getElementById("jupyter-config-data").textContent).baseUrl;
    var usual = "", shown = "";

    function tell(message) {
      if (message && !shown) {
        usual = document.title;
        app.commands.execute("apputils:notify", {message: message, type: "warning", options: {autoClose: false}});
      }
      if (message) {
        document.title = "(!) " + usual;
      } else if (shown) {
        document.title = usual;
      }
      shown = message;
    }

    function look() {
      // JupyterHub takes a script's request without this header for one of nobody, and would start a login of its own for it each time.
      var token = /(?:^|; )_xsrf=([^;]*)/.exec(document.cookie);
      fetch(base + "trainyard/idle", {
        credentials: "same-origin", cache: "no-store", redirect: "error", headers: token ? {"X-XSRFToken": token[1]} : {}
      }).then(function (answer) {
        return answer.json();
      }).then(function (told) {
        tell(told.message);
      }).catch(function () {
        // Without an answer there is nothing to tell. The next look follows.
      });
    }

    setInterval(look, 60000);
    look();
  }

  window._JUPYTERLAB = window._JUPYTERLAB || {};
  window._JUPYTERLAB["trainyard-instance"] = {
    init: function () {},
    get: function () {
      return Promise.resolve(function () {
        // Without the mark JupyterLab takes the object itself for the extension, and does not start.
        return {__esModule: true, "default": {id: "trainyard-instance:idle", autoStart: true, activate: activate}};
      });
    }
  };
})();
