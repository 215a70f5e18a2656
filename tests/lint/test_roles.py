"""The shape of a role: what its user reads is what it does."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path

import pytest
import role_readmes
import yaml

ROOT = Path(__file__).resolve().parents[2]
ROLES = sorted(path.name for path in (ROOT / "roles").iterdir() if path.is_dir())
FILES = [
    "README.md",
    "defaults/main.yml",
    "meta/argument_specs.yml",
    "meta/main.yml",
    "tasks/main.yml",
    "tasks/remove.yml",
]

HEADINGS = ["Example", "Variables", "Notes"]
UNITS = re.compile(
    r"\b(seconds?|MiB|KiB|bytes|GB/s|percent|fraction|number|ID|UID|GID|port)\b", re.IGNORECASE
)

# Roles that need a whole cluster, or that others exercise in each of their runs, are proved in
# scenario `cluster`.
IN_SCENARIO_CLUSTER = {"burn_in", "cluster", "train", "verify"}
# Those that need a kernel of their own.
IN_SCENARIO_VM = {"nfs_client", "nfs_server"}
# Those that share a scenario, whose tests name their role.
IN_ANOTHER = dict.fromkeys(
    ["nvidia_driver", "cuda_toolkit", "nccl", "nccl_tests", "container_toolkit"], "gpu_stack"
)
IN_ANOTHER.update(
    dict.fromkeys(["slurm", "slurm_controller", "slurm_node", "slurm_accounts"], "scheduler")
)
IN_ANOTHER["training_sshd"] = "training_container"
IN_ANOTHER.update(dict.fromkeys(["jobs", "jupyterhub"], "workbench"))
IN_ANOTHER["host_library"] = "job_container"
IN_ANOTHER.update(dict.fromkeys(["monitoring_host", "monitoring_server"], "monitoring"))
# Of an expression in a role.
MOST_FILTERS = 5
CONDITIONS = ("when", "that", "until", "failed_when", "changed_when")
# Of a row of rules in meta.
RULE_EXPRESSIONS = ("that", "when", "for_each", "hosts", "only_warn")
# A published default, which a site may copy into its inventory.
PROGRAMS = {("training_image", "training_image_requires")}

INCLUDES = ("ansible.builtin.include_tasks", "ansible.builtin.import_tasks")
# tasks/main.yml is the first storey, a file that it includes the second.
MOST_STOREYS = 2
GATE = "a host that needs none of it skips one task, and what changes it is skipped as one task"
# Roles with more storeys, and why.
STOREYS = {
    "ascend": (4, "preflight and drift include what reads the NPUs; " + GATE),
    "burn_in": (3, GATE),
    "container_toolkit": (6, "refresh.yml and verify.yml include parts of it; " + GATE),
    "cuda_toolkit": (4, "runfile.yml is included in a loop over runfiles"),
    "docker_engine": (3, GATE),
    "image_relay": (
        4,
        "server.yml is a part of people.yml, and other registries skip registry.yml",
    ),
    "infiniband": (5, "read.yml is included before and after a change; " + GATE),
    "job_container": (
        3,
        "read.yml and check.yml are included before and after a change, and by drift",
    ),
    "jupyterhub": (3, "environment.yml is included in a loop, and other files by drift and people"),
    "nccl": (4, "the packages and the build from source are two ways; " + GATE),
    "nccl_tests": (3, GATE),
    "nfs_server": (4, "serve.yml and teardown share firewall.yml"),
    "nvidia_driver": (6, "fabric.yml and install.yml share apt.yml, and others plan.yml; " + GATE),
    "package_sources": (5, "other roles include vendor.yml; " + GATE),
    "shared_storage": (
        4,
        "playbook people includes people.yml, and a host without people skips it",
    ),
    "slurm": (3, "drift includes plan.yml, and other roles read.yml"),
    "slurm_controller": (3, "teardown includes undump.yml and unidle.yml; " + GATE),
    "training_container": (5, GATE),
    "training_image": (7, "the ways from the head to the hosts, early and late; " + GATE),
    "training_sshd": (4, "verify includes mesh.yml, log_in.yml and absent.yml; " + GATE),
    "upgrade": (5, "drain.yml and resume.yml are a part of the upgrade and of the way back"),
    "verify": (6, "a failed part is recorded on its own; " + GATE),
}

pytestmark = pytest.mark.parametrize("role", ROLES)


def load(role, path):
    with open(ROOT / "roles" / role / path, encoding="utf-8") as opened:
        return yaml.safe_load(opened) or {}


def yaml_files(role):
    return sorted(
        path
        for folder in ("tasks", "handlers", "vars")
        for path in (ROOT / "roles" / role / folder).glob("**/*.yml")
    )


def tasks_of(document):
    for task in document or []:
        yield task
        for section in ("block", "rescue", "always"):
            yield from tasks_of(task.get(section))


def files_included(role, task):
    """Return the files of the role that a task includes: those that its name, loop and variables
    have, or those that match a name with a variable in it.
    """
    value = next((task[key] for key in INCLUDES if key in task), "")
    name = value["file"] if isinstance(value, dict) else value
    folder = ROOT / "roles" / role
    pattern = re.sub(r"{{.*?}}", "*", name)
    if pattern != "*":
        return [path.name for path in (folder / "tasks").glob(pattern or "-")]
    variables = load(role, "vars/main.yml")
    text = json.dumps([name, task.get("loop"), task.get("vars")])
    text += "".join(str(variables.get(word, "")) for word in re.findall(r"\w+", text))
    return re.findall(r"\b\w+\.yml\b", text)


def deepest(included, name, above=()):
    """Return the longest chain of files that include each other, from C(name) down.

    A name with a variable in it may match the file itself, or one of those C(above) it.
    """
    below = [each for each in included[name] if each not in (*above, name)]
    chains = [deepest(included, each, (*above, name)) for each in below]
    return [name, *max(chains, key=len, default=[])]


def public(role):
    return set(load(role, "meta/argument_specs.yml")["argument_specs"]["main"].get("options", {}))


def test_has_its_files(role):
    missing = [name for name in FILES if not (ROOT / "roles" / role / name).is_file()]
    assert not missing
    unwanted = [path.name for path in (ROOT / "roles" / role).glob("**/*.yaml")]
    assert not unwanted


def test_main_tells_what_the_role_does(role):
    """In two storeys of files, or in as many as the table has a reason for."""
    included = {
        path.name: [
            name
            for task in tasks_of(load(role, "tasks/" + path.name))
            for name in files_included(role, task)
        ]
        for path in (ROOT / "roles" / role / "tasks").glob("*.yml")
    }
    chain = deepest(included, "main.yml")
    storeys, _reason = STOREYS.get(role, (min(len(chain), MOST_STOREYS), ""))
    assert len(chain) == storeys, (
        "%s: %d storeys, expected %d; include the last file from a file above it, or change STOREYS"
        % (" > ".join(chain), len(chain), storeys)
    )


def options_of(options):
    """Yield (name, option), the options in others too."""
    for name, option in options.items():
        yield name, option
        yield from options_of(option.get("options", {}))


def test_argument_specs_equal_defaults(role):
    options = load(role, "meta/argument_specs.yml")["argument_specs"]["main"].get("options", {})
    specified = {
        name: option.get("default")
        for name, option in options.items()
        if not option.get("required")
    }
    defaults = load(role, "defaults/main.yml")
    assert set(defaults) == set(specified)
    # A template is a text. As the default of another type Galaxy refuses it, so the spec has none,
    # and the description tells it: see role_readmes.py.
    in_words = {
        name
        for name, value in defaults.items()
        if isinstance(value, str)
        and "{{" in value
        and options[name]["type"] not in ("str", "path", "raw")
    }
    assert [name for name in in_words if "default" in options[name]] == []
    assert {name: value for name, value in defaults.items() if name not in in_words} == {
        name: value for name, value in specified.items() if name not in in_words
    }


def test_options_are_described(role):
    for entry, spec in load(role, "meta/argument_specs.yml")["argument_specs"].items():
        assert spec.get("short_description") and spec.get("description"), entry
        undescribed = [
            name
            for name, option in options_of(spec.get("options", {}))
            if not option.get("description") or not option.get("type")
        ]
        assert not undescribed, "without description or type"
        numbers = [
            name
            for name, option in options_of(spec.get("options", {}))
            if option["type"] in ("int", "float")
            and not UNITS.search(" ".join(role_readmes.paragraphs(option)))
        ]
        assert not numbers, "the description does not say what is counted or measured"


def test_options_of_other_roles_are_not_linked(role):
    """O() is for options of the same entry point; C() names a variable of another role."""
    for entry, spec in load(role, "meta/argument_specs.yml")["argument_specs"].items():
        known = set(
            load(role, "meta/argument_specs.yml")["argument_specs"]["main"].get("options", {})
        ) | set(spec.get("options", {}))
        texts = [
            text
            for part in (spec, *(option for _name, option in options_of(spec.get("options", {}))))
            for text in role_readmes.paragraphs(part)
        ]
        linked = {
            re.match(r"\w*", name).group()
            for text in texts
            for name in re.findall(r"\bO\(([^)]*)\)", text)
        }
        assert linked - known == set(), entry


def test_entry_points_have_specs(role):
    """Those that playbooks include, and remove.yml, which teardown.yml includes by a variable."""
    used = {"remove"} | {
        entry
        for path in (ROOT / "playbooks").glob("**/*.yml")
        for entry in re.findall(
            r"trainyard\.gpu\.%s\n\s+tasks_from: (\w+)" % role, path.read_text(encoding="utf-8")
        )
    }
    assert used - set(load(role, "meta/argument_specs.yml")["argument_specs"]) == set()


def test_variables_and_checks_are_described_once(role):
    readme = (ROOT / "roles" / role / "README.md").read_text(encoding="utf-8")
    tables = role_readmes.rule_tables(ROOT / "roles" / role / "meta")
    assert (
        role_readmes.written(
            readme, load(role, "meta/argument_specs.yml")["argument_specs"], tables
        )
        == readme
    ), "run make docs"
    remarks = [
        line
        for line in (ROOT / "roles" / role / "defaults/main.yml")
        .read_text(encoding="utf-8")
        .splitlines()[2:]
        if line.lstrip().startswith("#")
    ]
    assert remarks == [], "describe variables in meta/argument_specs.yml"


def test_readmes_have_the_same_headings(role):
    """The title and some sentences about the purpose, then these sections, then what else the role
    needs.
    """
    readme = re.sub(
        r"^```.*?^```",
        "",
        (ROOT / "roles" / role / "README.md").read_text(encoding="utf-8"),
        flags=re.MULTILINE | re.DOTALL,
    )
    title, *sections = re.split(r"^## ", readme, flags=re.MULTILINE)
    assert [section.partition("\n")[0] for section in sections[:3]] == HEADINGS
    assert re.fullmatch(r"# %s\n\n(?![|#-]).+\n\n" % role, title, re.DOTALL), (
        "a title, and what the role is for"
    )
    assert not re.search("^# ", "".join(sections), re.MULTILINE)


def test_readme_lists_the_variables(role):
    readme = (ROOT / "roles" / role / "README.md").read_text(encoding="utf-8")
    rows = {match.group(1) for match in re.finditer(r"^\| *`([a-z0-9_]+)`", readme, re.MULTILINE)}
    assert public(role) - rows == set(), "missing in the README's table"
    known = public(role) | set(
        re.findall(
            r"\b%s_[a-z0-9_]+\b" % role,
            "".join(path.read_text(encoding="utf-8") for path in yaml_files(role)),
        )
    )
    assert {name for name in rows if name.startswith(role + "_")} - known == set(), (
        "in the README's table, but not in the role"
    )


def test_names_are_prefixed(role):
    options = public(role)
    assert [name for name in options if not name.startswith(role + "_")] == []
    if (ROOT / "roles" / role / "vars").is_dir():
        for path in (ROOT / "roles" / role / "vars").glob("*.yml"):
            names = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
            assert [name for name in names if not name.startswith("__%s_" % role)] == [], path
    readme = (ROOT / "roles" / role / "README.md").read_text(encoding="utf-8")
    for path in (ROOT / "roles" / role / "tasks").glob("**/*.yml"):
        for task in tasks_of(yaml.safe_load(path.read_text(encoding="utf-8"))):
            where = "%s: %s" % (path, task.get("name"))
            registered = task.get("register")
            # A result that a different role reads is part of the interface like a public fact, so
            # it is documented.
            assert (
                registered is None
                or registered.startswith("__%s_" % role)
                or registered.startswith(role + "_")
                and "`%s`" % registered in readme
            ), where
            loop_variable = (task.get("loop_control") or {}).get("loop_var", "__%s_item" % role)
            assert loop_variable.startswith("__%s_" % role), where
            for fact in task.get("ansible.builtin.set_fact") or {}:
                # A public fact is part of the interface, so it is documented.
                assert (
                    fact in ("cacheable", "__" + role)
                    or fact.startswith("__%s_" % role)
                    or (fact.startswith(role + "_") and fact in readme)
                ), where


def test_private_variables_of_other_roles_are_not_used(role):
    others = sorted((path.name for path in (ROOT / "roles").iterdir()), key=len, reverse=True)
    found = []
    for path in yaml_files(role):
        for name in sorted(set(re.findall(r"\b__[a-z_]+\b", path.read_text(encoding="utf-8")))):
            owner = next((other for other in others if name.startswith("__%s_" % other)), role)
            found += (
                ["%s: %s of role %s" % (path.relative_to(ROOT), name, owner)]
                if owner != role
                else []
            )
    assert found == [], "give that role an entry point with arguments, or a documented result"


def expressions_of(value, whole=False):
    """Jinja expressions in data: what stands in braces, and whole values where Ansible expects an
    expression.
    """
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from expressions_of(
                inner, key in ("when", "that", "failed_when", "changed_when", "until")
            )
    elif isinstance(value, list):
        for inner in value:
            yield from expressions_of(inner, whole)
    elif isinstance(value, str):
        yield from [value] if whole else re.findall(r"{[{%](.*?)[%}]}", value, re.DOTALL)


@functools.lru_cache(maxsize=None)
def expressions_in(path):
    """Those of a file, which is parsed once for all roles."""
    return list(expressions_of(yaml.safe_load(path.read_text(encoding="utf-8"))))


def test_numbers_and_truth_values_may_come_as_text(role):
    """From -e name=value and from INI inventories they do.

    A module's own option takes '{{ name }}' unchanged; an expression has to convert it.
    """
    options = load(role, "meta/argument_specs.yml")["argument_specs"]["main"].get("options", {})
    names = [name for name, option in options.items() if option["type"] in ("bool", "int", "float")]
    found = []
    for path in [
        path
        for name in ROLES
        for path in yaml_files(name) + list((ROOT / "roles" / name / "meta").glob("host_rules.yml"))
    ]:
        for expression in expressions_in(path):
            found += [
                "%s: %s" % (path.relative_to(ROOT), expression)
                for name in names
                if expression.strip() != name
                and re.search(
                    r"\b%s\b(?!\s*\|\s*(?:bool|int|float))" % name,
                    re.sub(r"'[^']*'", "''", expression),
                )
            ]
    assert found == []


def test_is_exercised_by_a_scenario(role):
    if role not in IN_SCENARIO_CLUSTER | IN_SCENARIO_VM:
        scenario, named = (
            IN_ANOTHER.get(role, role),
            'ROLE = "%s"\n' % role if role in IN_ANOTHER else "",
        )
        assert (ROOT / "molecule" / scenario / "molecule.yml").is_file()
        tests = [
            path
            for path in (ROOT / "molecule" / scenario / "tests").glob("test_*.py")
            if named in path.read_text(encoding="utf-8")
        ]
        assert tests, "a scenario without a test proves nothing"


def test_decisions_are_functions_with_tests(role):
    """No programs in Jinja: loops, and expressions with more than five filters, are functions of
    plugins/plugin_utils. Messages of rules may list in a loop.
    """

    def texts(value, where=()):
        if isinstance(value, dict):
            for key, entry in value.items():
                yield from texts(entry, (*where, str(key)))
        elif isinstance(value, list):
            for number, entry in enumerate(value):
                yield from texts(entry, (*where, str(number)))
        elif isinstance(value, str):
            yield where, value

    def has_many_filters(expression):
        return re.sub(r"'[^']*'|\"[^\"]*\"", "''", expression).count("|") > MOST_FILTERS

    found = []
    for path in sorted((ROOT / "roles" / role / "meta").glob("*.yml")):
        if path.name == "argument_specs.yml":
            continue  # equals the defaults
        for where, text in texts(yaml.safe_load(path.read_text(encoding="utf-8"))):
            parts = re.findall(r"{[{%](.*?)[%}]}", text, re.DOTALL)
            # What a rule needs is a key, and its reason the text.
            parts += (
                [where[-1]]
                if where[-2:-1] == ("needs",)
                else [text]
                if where[0] == "let" or where[-1] in RULE_EXPRESSIONS
                else []
            )
            if any(map(has_many_filters, parts)):
                found.append("%s: %s" % (path.relative_to(ROOT), "/".join(where)))
    for path in yaml_files(role) + [ROOT / "roles" / role / "defaults/main.yml"]:
        for where, text in texts(yaml.safe_load(path.read_text(encoding="utf-8"))):
            is_expression = (
                "{{" in text or where[-1] in CONDITIONS or where[-2:-1] and where[-2] in CONDITIONS
            )
            # The text of a file, which may repeat a line. Each of its expressions is judged alone.
            if len(where) == 1 and where[0].endswith("_text") and text.count("\n") > 1:
                parts, loops = re.findall(r"{[{%](.*?)[%}]}", text, re.DOTALL), r"\{%-?\s*set\b"
            else:
                parts, loops = [text] if is_expression else [], r"\{%-?\s*(?:for|set)\b"
            many = [part for part in parts if part.count("|") - 2 * part.count("||") > MOST_FILTERS]
            if (many or re.search(loops, text)) and (role, where[0]) not in PROGRAMS:
                found.append("%s: %s" % (path.relative_to(ROOT), "/".join(where)))
    assert found == []
