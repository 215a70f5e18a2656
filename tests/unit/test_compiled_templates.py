"""Templates that unit tests compile once mean the same as those that Ansible compiles each time."""

from __future__ import annotations

import pytest
from ansible.errors import AnsibleError
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.loader import Jinja2Loader
from ansible.template import Templar
from compiled_templates import _TemplateCompileContext
from jinja2 import Environment, TemplateSyntaxError
from trusted import trusted


# Before ansible-core 2.19 nothing is kept, and a template that is not native gives text.
KEPT = _TemplateCompileContext is not None


def templated(text, **variables):
    return Templar(DataLoader(), variables).template(trusted(text))


@pytest.fixture(name="generated")
def _generated(monkeypatch):
    """The environments that have compiled something."""
    environments, generate = [], Environment._generate
    monkeypatch.setattr(
        Environment,
        "_generate",
        lambda self, *args, **options: (
            environments.append(self) or generate(self, *args, **options)
        ),
    )
    return environments


def test_a_text_is_compiled_once_and_has_the_values_of_each_task(generated):
    assert [
        int(templated("{{ compiled_once + 1 }}", compiled_once=number)) for number in (1, 2)
    ] == [2, 3]
    assert len(generated) == (1 if KEPT else 2)
    assert int(templated("{{ compiled_once + 2 }}", compiled_once=1)) == 3 and len(generated) == (
        2 if KEPT else 3
    )


def test_an_expression_is_compiled_once_and_has_the_filters_of_each_environment(generated):
    def expressions(**settings):
        for number in (1, 2):
            environment = Environment(**settings)
            environment.filters["of_its_own"] = lambda value, number=number: [number, value]
            yield environment.compile_expression("5 | of_its_own")()

    assert list(expressions(optimized=False)) == [[1, 5], [2, 5]] and len(generated) == 1
    # An optimizer calls the filter when it compiles.
    assert list(expressions()) == [[1, 5], [2, 5]] and len(generated) == 3


def test_settings_are_told_apart():
    assert [
        Environment(optimized=False, **settings).from_string("{{ '<' }}\n").render()
        for settings in (
            {},
            {"keep_trailing_newline": True},
            {"autoescape": True},
            {"variable_start_string": "[["},
        )
    ] == ["<", "<\n", "&lt;", "{{ '<' }}"]
    text = r"{{ 'a\tb' }}"
    assert [
        Templar(DataLoader(), {}).template(trusted(text), escape_backslashes=escape)
        for escape in (False, True)
    ] == ["a\tb", r"a\tb"]


def test_what_cannot_be_compiled_fails_each_time():
    for dummy in range(2):
        with pytest.raises(AnsibleError):
            templated("{{ compiled_once | }}", compiled_once=1)
        with pytest.raises(TemplateSyntaxError):
            Environment().compile_expression("1 +")


@pytest.mark.usefixtures("generated")
def test_a_filter_is_looked_up_once_and_a_missing_one_each_time(monkeypatch):
    found, get = [], Jinja2Loader.get
    monkeypatch.setattr(
        Jinja2Loader,
        "get",
        lambda self, name, *args, **options: (
            found.append(name) or get(self, name, *args, **options)
        ),
    )
    for number in (1, 2):
        text = "{{ [%d] | ansible.builtin.flatten | first }}" % number
        assert int(templated(text)) == number
    assert not KEPT or found.count("ansible.builtin.flatten") == 1
    for _time in range(2):
        with pytest.raises(AnsibleError):
            templated("{{ 1 | no.such.filter }}")
    assert found.count("no.such.filter") >= 2
