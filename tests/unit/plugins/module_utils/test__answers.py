"""_answers: what another module would answer, asked in the run of this one."""

from types import SimpleNamespace

import pytest

from ansible_collections.trainyard.gpu.plugins.module_utils._answers import answer_of

SPEC = {"name": {"type": "str", "required": True}, "wait": {"type": "int", "default": 3}}


def refuse(msg):
    raise AssertionError("the module that asks ends: %s" % msg)


@pytest.fixture(name="module")
def fixture_module():
    return SimpleNamespace(params={"step": "read"}, check_mode=False, fail_json=refuse)


def test_it_is_asked_with_its_own_options_in_check_mode(module):
    seen = answer_of(module, lambda asked: dict(vars(asked), fail_json=None), SPEC, {"name": "a"})
    assert seen == {"params": {"name": "a", "wait": 3}, "check_mode": True, "fail_json": None}
    assert (module.params, module.check_mode) == ({"step": "read"}, False)


def test_without_options_it_is_not_asked(module):
    assert answer_of(module, refuse, SPEC, {}) == {}


def fails(asked):
    asked.fail_json(msg="the record is damaged", rc=1)


def is_denied(_asked):
    raise PermissionError("/etc/trainyard/ssh")


@pytest.mark.parametrize(
    "read, options",
    [(fails, {"name": "a"}), (is_denied, {"name": "a"}), (dict, {"wait": 3})],
)
def test_what_it_cannot_answer_does_not_end_the_module_that_asks(module, read, options):
    assert answer_of(module, read, SPEC, options) == {}
