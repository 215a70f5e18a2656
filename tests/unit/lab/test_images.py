from __future__ import annotations

from types import SimpleNamespace

import images


def test_an_archive_is_named_after_its_inputs_and_replaces_the_former_one(tmp_path):
    for name in ("host-000000000000.tar", "host-aaaaaaaaaaaa.tar", "training-base-0.tar"):
        (tmp_path / name).write_text("")
    recipe = SimpleNamespace(name="host", image="trainyard-lab/host:aaaaaaaaaaaa")
    assert images.archive_of(recipe, tmp_path) == tmp_path / "host-aaaaaaaaaaaa.tar"
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "host-aaaaaaaaaaaa.tar",
        "training-base-0.tar",
    ]


def test_an_engine_without_images_gets_the_archive_of_the_hosts_without_a_build(
    tmp_path, monkeypatch
):
    recipe = SimpleNamespace(name="host", image="trainyard-lab/host:aaaaaaaaaaaa", make=None)
    monkeypatch.setattr(images, "Recipe", lambda *_inputs: recipe)
    built, commands = [], []

    def make(target, _log):
        if not target.exists():
            built.append(target.name)
            target.write_text("")

    def docker(*command):
        commands.append(command[0])
        return SimpleNamespace(stdout="")

    recipe.make = make
    for _engine in range(2):
        assert images.host_image(SimpleNamespace(docker=docker), tmp_path, None) == recipe.image
    assert built == ["host-aaaaaaaaaaaa.tar"]
    assert commands == ["images", "import", "tag"] * 2
