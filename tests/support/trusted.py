"""Templates in the words of this ansible-core: since 2.19 a text is a template only if it is marked
as trusted. Earlier ones template every text.
"""

from __future__ import annotations

import ansible.template

trust_as_template = getattr(ansible.template, "trust_as_template", str)


def trusted(value):
    """Mark the templates wherever in a value they are."""
    if isinstance(value, str):
        return trust_as_template(value)
    if isinstance(value, dict):
        return {key: trusted(inner) for key, inner in value.items()}
    return [trusted(inner) for inner in value] if isinstance(value, list) else value
