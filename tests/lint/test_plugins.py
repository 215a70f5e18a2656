"""Plugins: what each may import.

Filters and decisions: whom they serve. Modules: who they are for, which platform they need, and the
group of those with common options.
"""

from __future__ import annotations

import ast
import graphlib
import importlib.util
import inspect
import os
import re
from pathlib import Path

import jinja2
import pytest
import yaml

from ansible_collections.trainyard.gpu.plugins.module_utils import _recipe
from ansible_collections.trainyard.gpu.plugins.plugin_utils import (
    _compat,
    _nfs_server_plan,
    _preflight_plan,
    _shared_storage_plan,
    _slurm_plan,
    _vendor_source,
    _verify_plan,
)
from ansible_collections.trainyard.gpu.plugins.plugin_utils._decisions import DECISIONS, function

ROOT = Path(__file__).resolve().parents[2]
#: Decisions that make a tuple with names of a dictionary, and the parameter that it is.
PASSED_ON = {
    "base_image_problems": ("requested", _recipe.Build),
    "image_fit": ("requested", _compat.ImageRequest),
    "nfs_server_plan": ("requested", _nfs_server_plan.Requested),
    "preflight_plan": ("requested", _preflight_plan.Requested),
    "shared_storage_plan": ("requested", _shared_storage_plan.Requested),
    "slurm_plan": ("requested", _slurm_plan.Requested),
    "vendor_source": ("requested", _vendor_source.Requested),
    "verify_unmeasured": ("run", _verify_plan.Measurement),
}
INTERNAL = "trainyard.gpu.attributes.internal"
POSIX_INFO = "trainyard.gpu.attributes.posix_info"
COLLECTION = "ansible_collections.trainyard.gpu."


def documentation(path):
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    return next(
        yaml.safe_load(node.value.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and node.targets[0].id == "DOCUMENTATION"
    )


@pytest.fixture(name="modules", scope="module")
def _modules():
    """The documentation of all modules by name."""
    return {
        path.stem: documentation(path) for path in sorted((ROOT / "plugins/modules").glob("*.py"))
    }


def of_kind(modules):
    internal = {
        name for name, doc in modules.items() if INTERNAL in doc["extends_documentation_fragment"]
    }
    return {"Public": set(modules) - internal, "Internal": internal}


@pytest.mark.parametrize("kind", ["Public", "Internal"])
def test_architecture_lists_the_modules(modules, kind):
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    listed = re.search(r"^- %s: (.*?)(?=^- |^$)" % kind, text, re.MULTILINE | re.DOTALL)
    assert re.findall(r"`(\w+)`", listed.group(1)) == sorted(of_kind(modules)[kind])


@pytest.mark.parametrize("kind", ["Public", "Internal"])
def test_each_module_is_described_once(modules, kind):
    text = (ROOT / "docs/modules.md").read_text(encoding="utf-8")
    section = re.search(
        r"^## %s modules$(.*?)(?=^## |\Z)" % kind, text, re.MULTILINE | re.DOTALL
    ).group(1)
    rows = [row.split("|")[1] for row in section.splitlines() if row.startswith("| `")]
    assert sorted(name for row in rows for name in re.findall(r"`(\w+)`", row)) == sorted(
        of_kind(modules)[kind]
    )


def test_every_module_says_what_it_supports(modules):
    """antsibull-docs and ansible-test accept a module without attributes."""
    text = (ROOT / "plugins/doc_fragments/attributes.py").read_text(encoding="utf-8")
    fragment = yaml.safe_load(re.search(r'DOCUMENTATION = r"""(.*?)"""', text, re.DOTALL).group(1))
    assert set(fragment["attributes"]) == {"check_mode", "diff_mode", "platform"}
    assert fragment["attributes"]["platform"]["support"] == "full"
    assert [
        name
        for name, doc in modules.items()
        if not {"trainyard.gpu.attributes", POSIX_INFO} & set(doc["extends_documentation_fragment"])
    ] == []
    for name, doc in modules.items():
        fragments = doc["extends_documentation_fragment"]
        info = {"trainyard.gpu.attributes.info_module", POSIX_INFO} & set(fragments)
        assert info or all(
            "support" in doc["attributes"][attribute] for attribute in ("check_mode", "diff_mode")
        ), name


def test_group_tools_has_the_modules_with_common_options(modules):
    groups = yaml.safe_load((ROOT / "meta/runtime.yml").read_text(encoding="utf-8"))[
        "action_groups"
    ]
    assert groups == {
        "tools": [
            name
            for name, doc in modules.items()
            if "trainyard.gpu.tool" in doc["extends_documentation_fragment"]
        ]
    }
    assert set(groups["tools"]) <= of_kind(modules)["Public"]


def architecture(heading):
    """The rows of the table below a heading of docs/architecture.md, as lists of cells."""
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    section = re.search(r"^## %s$(.*?)(?=^## |\Z)" % heading, text, re.MULTILINE | re.DOTALL).group(
        1
    )
    return [
        [cell.strip() for cell in row.strip("|").split("|")]
        for row in section.splitlines()
        if row.startswith("| `")
    ]


def names_in(cell):
    return re.findall(r"`([^`]+)`", cell)


def imported_by(path):
    """The files of the collection that a file imports, also inside functions."""
    package = COLLECTION + ".".join(path.relative_to(ROOT).parent.parts)
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        names = (
            [alias.name for alias in node.names]
            if isinstance(node, (ast.Import, ast.ImportFrom))
            else []
        )
        if isinstance(node, ast.ImportFrom):
            module = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            names = [module] + ["%s.%s" % (module, name) for name in names]
        files = (
            name[len(COLLECTION) :].replace(".", "/") + ".py"
            for name in names
            if name.startswith(COLLECTION)
        )
        found.update(file for file in files if (ROOT / file).is_file())
    return found


@pytest.fixture(name="imports", scope="module")
def _imports():
    """What each file below plugins/ imports of the collection, by path."""
    return {
        str(path.relative_to(ROOT)): imported_by(path)
        for path in sorted((ROOT / "plugins").glob("**/*.py"))
    }


def test_imports_are_those_of_the_table_of_folders(imports):
    """Modules run without plugin_utils, and no filter or action plugin imports another: what they
    share is a function of plugin_utils.
    """
    allowed = {
        folder: {"plugins/" + name for name in names_in(cells[2])}
        for cells in architecture("Folders")
        for folder in names_in(cells[0])
    }
    folders = {file: os.path.dirname(file) for file in imports}
    assert {folder + "/" for folder in folders.values()} <= set(allowed)
    assert [
        (file, other)
        for file in imports
        for other in sorted(imports[file])
        if folders[other] not in allowed[folders[file] + "/"]
    ] == []


def test_no_imports_in_a_circle(imports):
    graphlib.TopologicalSorter(imports).prepare()


def test_modules_reach_module_utils(imports):
    """Code that only the controller runs is in plugin_utils."""
    reached, left = set(), [file for file in imports if file.startswith("plugins/modules/")]
    while left:
        file = left.pop()
        left += imports[file] - reached
        reached.add(file)
    shipped = {names_in(cells[0])[0] for cells in architecture("Code that is shipped as text")}
    assert [
        file
        for file in imports
        if file.startswith("plugins/module_utils/") and file not in reached | shipped
    ] == []


@pytest.fixture(name="filters", scope="module")
def _filters():
    """The names of the filters in each file, by the name of the file."""
    found = {}
    for path in sorted((ROOT / "plugins/filter").glob("*.py")):
        functions = [
            node
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.FunctionDef) and node.name == "filters"
        ]
        found[path.stem] = [
            key.value for function in functions for key in function.body[-1].value.keys
        ]
    return found


def test_each_filter_has_a_file_with_its_documentation(filters):
    assert {file: names for file, names in filters.items() if names != [file]} == {}
    assert [
        path.name for path in (ROOT / "plugins/filter").iterdir() if path.suffix == ".yml"
    ] == []
    assert all(documentation(ROOT / "plugins/filter" / (file + ".py")) for file in filters)


def test_filters_for_users_are_listed(filters):
    text = (ROOT / "docs/modules.md").read_text(encoding="utf-8")
    section = re.search(r"^## Filters$(.*?)(?=^## )", text, re.MULTILINE | re.DOTALL).group(1)
    rows = [names_in(row.split("|")[1]) for row in section.splitlines() if row.startswith("| `")]
    assert rows == [[file] for file in filters if file != "decide"]


@pytest.fixture(name="calls", scope="module")
def _calls():
    """The decisions that each role, and each other folder with templates, makes."""
    found = {}
    for folder in ("roles", "playbooks", "molecule", "lab", "inventories", "tests"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and path.suffix in (".yml", ".j2", ".py", ".md"):
                parts = path.relative_to(ROOT).parts
                text = path.read_text(encoding="utf-8", errors="replace")
                names = re.findall(r"trainyard\.gpu\.decide(?:\(|',)\s*'(\w+)'", text)
                found.setdefault(parts[1] if folder == "roles" else folder, set()).update(names)
    return found


def test_decisions_are_those_that_are_made(calls):
    """A name without a function fails a run, and nobody would miss a function without a call."""
    made = set().union(*calls.values())
    assert sorted(made) == sorted(DECISIONS) == list(DECISIONS)


def test_each_decision_is_a_function_with_a_docstring():
    found = {name: function(name) for name in DECISIONS}
    assert [name for name, decision in found.items() if not decision.__doc__] == []
    assert len({DECISIONS[name] for name in DECISIONS}) == len(DECISIONS)


def without_docstring(body: list[ast.stmt], prefix: str = "") -> list[str]:
    """Return the public functions, classes and methods of a file or class without a docstring."""
    found = []
    for node in body:
        if not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            continue
        name = prefix + node.name
        if not node.name.startswith("_") and not ast.get_docstring(node):
            found.append(name)
        # Other classes call the methods of a private one.
        if isinstance(node, ast.ClassDef):
            found += without_docstring(node.body, name + ".")
    return found


def test_public_names_have_docstrings():
    missing = []
    for folder in ("plugin_utils", "module_utils"):
        for path in sorted((ROOT / "plugins" / folder).glob("*.py")):
            names = without_docstring(ast.parse(path.read_text(encoding="utf-8")).body)
            missing += ["%s/%s %s" % (folder, path.name, name) for name in names]
    assert missing == [], "say what it returns, in which units, and which errors it raises"


@pytest.mark.parametrize(
    "text, names",
    [
        ("def one(): pass", ["one"]),
        ("def _one(): pass", []),
        ("def one():\n    'Return nothing.'", []),
        ("class _A:\n    def __init__(self): pass\n    def one(self): pass", ["_A.one"]),
        ("class A:\n    b: int", ["A"]),
    ],
)
def test_missing_docstrings_are_found(text, names):
    assert without_docstring(ast.parse(text).body) == names


def test_a_decision_serves_one_role(calls):
    """That of the role whose name its own begins with, and the role's parts: slurm_node has those
    of slurm.
    """
    roles = sorted((path.name for path in (ROOT / "roles").iterdir()), key=len, reverse=True)
    strangers = []
    # That of the compatibility data is for several.
    for name in sorted(set(DECISIONS) - {"nccl_pair"}):
        owners = [role + "_" for role in roles if name.startswith(role + "_")][:1]
        users = [user for user in roles if name in calls.get(user, ())]
        strangers += [
            (name, user) for owner in owners for user in users if not (user + "_").startswith(owner)
        ]
    assert strangers == []


def texts_in(value):
    if isinstance(value, (dict, list)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from texts_in(inner)
    elif isinstance(value, str):
        yield value


def decisions_in(text):
    """Yield (name, arguments, keywords, whether more come at run time) of each decision in a text
    with Jinja. The first argument is the filter's input, None if it is that of C(map).
    """
    template = text if "{{" in text or "{%" in text else "{{ %s }}" % text
    for node in jinja2.Environment().parse(template).find_all(jinja2.nodes.Filter):
        arguments, given = node.args, node.node
        if arguments and getattr(arguments[0], "value", "") == "trainyard.gpu.decide":
            arguments, given = arguments[1:], None
        elif node.name != "trainyard.gpu.decide":
            continue
        keywords = {keyword.key: keyword.value for keyword in node.kwargs}
        more = bool(node.dyn_args or node.dyn_kwargs)
        yield arguments[0].value, [given, *arguments[1:]], keywords, more


def keys_of(decision, parameter):
    """Return (all keys, required keys) of a dictionary that a decision takes, empty if its type
    does not name them.
    """
    name, fields = PASSED_ON.get(decision, ("", None))
    if parameter.name == name:
        return set(fields._fields), set(fields._fields) - set(fields._field_defaults)
    kind = inspect.unwrap(function(decision)).__globals__.get(parameter.annotation)
    if not hasattr(kind, "__required_keys__"):
        return set(), set()
    return set(kind.__annotations__), set(kind.__required_keys__)


def wrong_keys(decision, bound):
    """Return what is wrong with the keys of dictionaries that a call writes out."""
    found = []
    for name, parameter in inspect.signature(function(decision)).parameters.items():
        known, required = keys_of(decision, parameter)
        value = bound.get(name)
        # A request of a role's variables together with a few keys of the call.
        is_all = isinstance(value, jinja2.nodes.Dict)
        if isinstance(value, jinja2.nodes.Filter) and value.name == "combine":
            value = value.args[0]
        if not known or not isinstance(value, jinja2.nodes.Dict):
            continue
        keys = {item.key.value for item in value.items}
        found += ["%s has no key %s" % (name, key) for key in sorted(keys - known)]
        if is_all:
            found += ["%s lacks %s" % (name, key) for key in sorted(required - keys)]
    return found


def test_each_call_of_a_decision_fits_its_function():
    """A wrong number of arguments fails a run, often in a branch that only some clusters take."""
    made, wrong = set(), []
    for path in sorted((ROOT / "roles").rglob("*.yml")) + sorted(
        (ROOT / "playbooks").rglob("*.yml")
    ):
        text = path.read_text(encoding="utf-8")
        if "trainyard.gpu.decide" not in text:
            continue
        documents = [yaml.safe_load(text)]
        for inner in texts_in(documents):
            if "trainyard.gpu.decide" not in inner:
                continue
            for name, arguments, keywords, more in decisions_in(inner):
                made.add(name)
                signature = inspect.signature(function(name))
                bind = signature.bind_partial if more else signature.bind
                try:
                    faults = wrong_keys(name, bind(*arguments, **keywords).arguments)
                except TypeError as error:
                    faults = [str(error)]
                wrong += ["%s: %s: %s" % (path.relative_to(ROOT), name, each) for each in faults]
    assert wrong == []
    assert sorted(made) == sorted(DECISIONS)


def value_of(node, variables):
    """The text of a Jinja expression that joins texts and variables of the role.

    What only a run knows is '?'.
    """
    nodes = jinja2.nodes
    if isinstance(node, nodes.Const):
        return str(node.value)
    if isinstance(node, nodes.Name) and node.name in variables:
        return value_of(jinja2.Environment().parse(str(variables[node.name])), variables)
    if isinstance(node, nodes.Filter) and node.name == "dirname":
        return os.path.dirname(value_of(node.node, variables))
    if isinstance(node, nodes.TemplateData):
        return node.data
    if isinstance(node, (nodes.Template, nodes.Output, nodes.Concat)):
        return "".join(value_of(inner, variables) for inner in node.iter_child_nodes())
    return "?"


def files_read(role):
    """The files of the collection, as paths, that a role reads with lookup 'file'."""
    folder = ROOT / "roles" / role
    data = {
        path: yaml.safe_load(path.read_text(encoding="utf-8")) for path in folder.glob("*/**/*.yml")
    }
    variables = {"role_path": str(folder)}
    for path, document in data.items():
        variables.update(document or {} if path.parent.name == "vars" else {})
    texts = [
        *texts_in(list(data.values())),
        *(path.read_text(encoding="utf-8") for path in folder.glob("templates/**/*.j2")),
    ]
    found = set()
    for text in texts:
        calls = (
            jinja2.Environment().parse(text).find_all(jinja2.nodes.Call)
            if re.search(r"\b(lookup|query|q)\(", text)
            else []
        )
        for call in calls:
            if getattr(call.node, "name", "") in ("lookup", "query", "q") and value_of(
                call.args[0], {}
            ) in ("file", "ansible.builtin.file"):
                names = [value_of(argument, variables) for argument in call.args[1:]]
                # A name without a folder is of the role's files/.
                found.update(
                    os.path.relpath(folder / "files" / name, ROOT)
                    for name in names
                    if "?" not in name
                )
    return found


def test_architecture_lists_the_code_that_is_shipped_as_text():
    read = {}
    for path in sorted((ROOT / "roles").iterdir()):
        for file in files_read(path.name):
            assert (ROOT / file).is_file(), (path.name, file)
            if not file.startswith("roles/%s/" % path.name):
                read.setdefault(file, []).append(path.name)
    assert [
        (names_in(file)[0], names_in(roles))
        for file, roles in architecture("Code that is shipped as text")
    ] == sorted(read.items())
