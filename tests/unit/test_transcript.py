"""The transcript of the documentation, as a test types it (tests/scenarios/test_lab.py), and the
comparison that it makes.
"""

from __future__ import annotations

import pytest
import transcript


def test_the_first_job():
    found = transcript.steps(transcript.FIRST_JOB)
    assert [command.split("\n")[0].split()[:2] for command, _said in found] == [["cat", ">"]] + [
        ["trainyard", word] for word in ("submit", "submit", "logs", "list", "quota")
    ]
    # The guide's file as it stands.
    assert transcript.here_document().startswith(
        "name=first_job\nkind=PyTorchJob\n"
    ) and transcript.here_document().endswith("interactive=false\n")
    assert found[0][1] == "" and "'your-workspace-id' is not one of your accounts" in found[1][1]


def test_examples_are_found_by_their_headings():
    assert (
        len(transcript.blocks("Horovod on two hosts", "yaml")) == 1
        and "kind: HorovodJob" in transcript.blocks("Horovod on two hosts", "yaml")[0]
    )
    assert "interactive=true" in transcript.blocks("A shell in a container", "")[0]
    # A section has those below it, and not the next one.
    assert "HorovodJob" in transcript.section(
        "Jobs from a file"
    ) and "Remote editors" not in transcript.section("Jobs from a file")


def replayed(change):
    """Plays the transcript against its own lines, with other numbers, hosts and widths, and one
    change.
    """
    said = dict(transcript.steps(transcript.FIRST_JOB))
    typed = []

    def run(command):
        typed.append(command)
        text = (
            said[command.replace("41", "7")]
            .replace("job 7", "job 41")
            .replace("-f 7", "-f 41")
            .replace("lab-a", "lab-b")
            .replace("  ", "   ")
        )
        return change(text.replace("0a1b2c3d4e5f", "ffffffffffff"))

    transcript.play(transcript.steps(transcript.FIRST_JOB), run)
    return typed


def test_numbers_hosts_and_tags_may_differ():
    assert replayed(lambda text: text)[3] == "trainyard logs -f 41"
    replayed(
        lambda text: (
            "trainyard: job 41 is waiting: it starts in a moment\n" + text
            if "hello" in text
            else text
        )
    )


@pytest.mark.parametrize(
    "old, new",
    [
        ("hello world", "hello"),
        ("exit code 0", "exit code zero"),
        ("done", "failed"),
        ("no limit", "10"),
        ("[0 lab-b] hello world\n", ""),
        ("your accounts (vision)", "your accounts (language)"),
    ],
)
def test_another_word_is_a_difference(old, new):
    with pytest.raises(AssertionError, match="is expected, and this was printed"):
        replayed(lambda text: text.replace(old, new))
