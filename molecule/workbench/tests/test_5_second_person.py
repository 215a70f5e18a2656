"""What a second person tries: alice's jobs, sessions, files and limits, from bob's account. docs/security.md names the promises."""

from __future__ import annotations

# --- between jobs -----------------------------------------------------------------------------------------------------------


# --- in the browser: identity of instances -----------------------------------------------------------------------------------


# --- in the browser: pages, tokens and helpers ------------------------------------------------------------------------------


# --- on the hosts -----------------------------------------------------------------------------------------------------------


# --- people who leave, and limits -------------------------------------------------------------------------------------------
