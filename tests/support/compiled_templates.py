"""Templates that are compiled once in a process, and filters and tests that are looked up once.

Ansible compiles a template anew for each task, and searches its plugins for each set of variables.
Unit tests judge hosts with the same rules hundreds of times.
"""

from __future__ import annotations

import pytest
from jinja2.environment import Environment, TemplateExpression
from jinja2.nodes import Template

try:
    # How Ansible tells its lexer, since ansible-core 2.19, how to read backslashes.
    from ansible._internal._templating._jinja_bits import _TemplateCompileContext
    from ansible._internal._templating._jinja_plugins import JinjaPluginIntercept
except ImportError:
    _TemplateCompileContext = None
    JinjaPluginIntercept = None

# All that the code of a template depends on, beside its text and the class of the environment.
SETTINGS = (
    "block_start_string",
    "block_end_string",
    "variable_start_string",
    "variable_end_string",
    "comment_start_string",
    "comment_end_string",
    "line_statement_prefix",
    "line_comment_prefix",
    "trim_blocks",
    "lstrip_blocks",
    "newline_sequence",
    "keep_trailing_newline",
    "autoescape",
    "sandboxed",
    "finalize",
)
CODE = {}
PLUGINS = {}


def key_of(environment, *parts):
    context = _TemplateCompileContext.current(optional=True) if _TemplateCompileContext else None
    return (
        type(environment),
        *(getattr(environment, name) for name in SETTINGS),
        tuple(environment.extensions),
        None if context is None else context.escape_backslashes,
        *parts,
    )


def remember(patch):
    """Compile each text once, until the patch is undone.

    A text that cannot be compiled is tried anew.

    An environment with the optimizer is left alone: it has the answers of its filters in its code.
    Ansible has none since ansible-core 2.19.
    """
    compile_text, compile_expression = Environment.compile, Environment.compile_expression
    compiled = []

    def compile_once(self, source, name=None, filename=None, raw=False, defer_init=False):
        if raw or self.optimized or isinstance(source, Template):
            code = compile_text(self, source, name, filename, raw, defer_init)
            compiled[:] = [code]
            return code
        key = key_of(self, "template", str(source), name, filename, defer_init)
        if key not in CODE:
            CODE[key] = compile_text(self, source, name, filename, raw, defer_init)
        return CODE[key]

    def compile_expression_once(self, source, undefined_to_none=True):
        if self.optimized:
            return compile_expression(self, source, undefined_to_none)
        key = key_of(self, "expression", str(source))
        if key not in CODE:
            expression = compile_expression(self, source, undefined_to_none)
            CODE[key] = compiled[0]
            return expression
        return TemplateExpression(
            self.template_class.from_code(self, CODE[key], self.make_globals(None), None),
            undefined_to_none,
        )

    patch.setattr(Environment, "compile", compile_once)
    patch.setattr(Environment, "compile_expression", compile_expression_once)
    if JinjaPluginIntercept:
        remember_plugins(patch)


def remember_plugins(patch: pytest.MonkeyPatch) -> None:
    """Look up each filter and test once, until the patch is undone.

    They do not depend on the environment that asks. One that is missing is looked up again.
    """
    look_up = JinjaPluginIntercept.__getitem__

    def look_up_once(self, name):
        key = self._plugin_loader.type, name
        if key not in PLUGINS:
            PLUGINS[key] = look_up(self, name)
        return PLUGINS[key]

    patch.setattr(JinjaPluginIntercept, "__getitem__", look_up_once)
