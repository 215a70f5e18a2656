"""Single quoted values for configuration files; tests/unit/roles/test_texts_of_files.py tests whole
files.
"""

from __future__ import annotations

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.trainyard.gpu.plugins.filter.quoted import quoted as quoted_filter
from ansible_collections.trainyard.gpu.plugins.plugin_utils._quoting import (
    FORMATS,
    QuoteError,
    quoted,
)


@pytest.mark.parametrize("form", sorted(FORMATS))
@pytest.mark.parametrize("value", ["a\nb", "a\n", "a\x00", "a\r", "a\u2028b", "a\x1b[31m"])
def test_a_line_break_is_in_no_format(form, value):
    with pytest.raises(QuoteError, match="cannot be written as %s" % form):
        quoted(value, form)


@pytest.mark.parametrize(
    "form, value",
    [
        ("one_line", "ssh-ed25519 AAAA"),
        ("field", "https://m.example/$(ARCH)/%40?a=b#c"),
        ("host_name", "server-a.example.org"),
        ("host_name", "2001:db8::1"),
        ("systemd_line", "nas:/My Data"),
        ("systemd_word", "/data1/share~2"),
        ("systemd_argument", "trainyard-training"),
        # An engine is restarted where this file changes.
        ("environment_file", "http://ops:p%40ss@proxy.example.org:3128"),
        ("environment_file", "localhost,.example.org,10.0.0.0/8,*"),
        ("export_word", "10.0.0.0/24"),
    ],
)
def test_what_a_format_reads_as_it_stands_is_left_alone(form, value):
    assert quoted(value, form) == value


@pytest.mark.parametrize(
    "form, value, text",
    [
        ("systemd_line", "/50%", "/50%%"),
        ("systemd_word", "", '""'),
        ("systemd_word", 'a "b" \\c %d $e', '"a \\"b\\" \\\\c %%d $e"'),
        ("systemd_argument", "$a", '"$$a"'),
        ("environment_file", 'a"$`\\', '"a\\"\\$\\`\\\\"'),
        ("apt_conf", "http://p;#{}\\%", '"http://p;#{}\\%"'),
        ("export_path", '/a "b"\\', '"/a \\042b\\042\\134"'),
        ("systemd_line", 12, "12"),
    ],
)
def test_quotes(form, value, text):
    assert quoted(value, form) == text


@pytest.mark.parametrize(
    "form, value",
    [
        ("field", ""),
        ("field", "a b"),
        ("field", "a\tb"),
        ("field", "a\u00a0b"),
        ("host_name", "*"),
        ("host_name", "a,b"),
        ("host_name", ""),
        ("host_name", "a b"),
        ("systemd_line", " a"),
        ("systemd_line", "a\\"),
        ("apt_conf", 'a"b'),
        ("export_word", "a b"),
        ("export_word", "rw,no_root_squash"),
        ("export_word", "*(rw)"),
    ],
)
def test_what_a_format_cannot_hold_is_refused(form, value):
    with pytest.raises(QuoteError):
        quoted(value, form)


def test_the_message_has_no_password():
    with pytest.raises(AnsibleFilterError) as error:
        quoted_filter('http://ops:hunter2@p"', "apt_conf")
    assert "hunter2" not in str(error.value) and "no escape" in str(error.value)
    with pytest.raises(AnsibleFilterError, match="is not a format"):
        quoted_filter("a", "xml")
