"""Templates in the words of this ansible-core: since 2.19 a text is a template only if it is marked as trusted. Earlier ones template every text."""

from __future__ import annotations

import ansible.template

trust_as_template = getattr(ansible.template, "trust_as_template", str)
