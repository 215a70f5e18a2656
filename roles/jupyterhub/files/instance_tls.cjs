// Copyright: (c) 2026, trainyard maintainers
// GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
// SPDX-License-Identifier: GPL-3.0-or-later
//
// Node loads it before configurable-http-proxy, which verifies all targets by the name in the browser's request, so that one instance could stand for
// another. The host of a route to an instance is ADDRESS.ID.instance.invalid (_identity.py): connect to the address, and verify the name ID.instance.invalid.
"use strict";

const https = require("node:https");
const net = require("node:net");

const ROUTE = /^([0-9a-f]{8}|[0-9a-f]{32})\.([0-9a-f]{32}\.instance\.invalid)$/;

function addressOf(hex) {
  const bytes = Buffer.from(hex, "hex");
  return bytes.length === 4 ? bytes.join(".") : bytes.toString("hex").match(/.{4}/g).join(":");
}

function verified(options) {
  const found = ROUTE.exec(options.host || "");
  if (!found) {
    return options;
  }
  const address = addressOf(found[1]);
  return {
    ...options,
    servername: found[2],
    rejectUnauthorized: true,
    lookup: (_name, asked, done) => {
      const family = net.isIP(address);
      if (asked.all) {
        done(null, [{ address, family }]);
      } else {
        done(null, address, family);
      }
    },
  };
}

const connect = https.Agent.prototype.createConnection;
https.Agent.prototype.createConnection = function (options, ...more) {
  return connect.call(this, verified(options), ...more);
};
