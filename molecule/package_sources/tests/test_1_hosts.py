"""Every host reaches the site's servers with its configuration."""

from __future__ import annotations

import configparser

testinfra_hosts = ["ansible://cluster"]
SITE = "/etc/trainyard/site"
ASK = "import ssl, urllib.request; print(urllib.request.urlopen('https://172.30.83.24:8443/simple/index.html', context=ssl.create_default_context({})).read())"
# Only the role's source, with separate lists.
ONLY = "-o Dir::State::Lists=/tmp/lists -o Dir::Etc::SourceParts=/dev/null -o Dir::Etc::SourceList="


def test_system_trusts_the_sites_authority(host):
    assert "the site's index" in host.check_output("python3 -c %s", ASK.format(""))


def test_bundle_for_containers_trusts_it_and_the_systems(host):
    assert "the site's index" in host.check_output(
        "python3 -c %s", ASK.format(f"cafile='{SITE}/ca-bundle.crt'")
    )
    assert (
        host.file(f"{SITE}/ca-bundle.crt").content
        == host.file("/etc/ssl/certs/ca-certificates.crt").content
    )


def test_the_sites_name_server_is_asked_first(host):
    lines = host.file("/etc/resolv.conf").content_string.splitlines()
    assert lines[0].startswith("# Begin of trainyard.gpu") and lines[1] == "nameserver 127.0.0.11"
    assert "172.30.83.25" in host.check_output("getent hosts package-sources-b")


def test_pip_is_told_index_and_bundle(host):
    pip = configparser.ConfigParser()
    pip.read_string(host.file(f"{SITE}/pip.conf").content_string)
    assert pip["global"]["index-url"] == "https://172.30.83.24:8443/simple"
    assert pip["global"]["extra-index-url"].split() == ["https://172.30.83.24:8443/more"]
    assert pip["global"]["cert"] == f"{SITE}/ca-bundle.crt"


def test_apt_takes_the_mirror_without_the_proxy_by_its_own_key(host):
    source = "/etc/apt/sources.list.d/trainyard.sources"
    host.run_expect(
        [0], f"mkdir -p /tmp/lists && apt-get update {ONLY}{source} -o APT::Update::Error-Mode=any"
    )
    assert "172.30.83.24:8000" in host.check_output(f"apt-cache policy {ONLY}{source} site-proof")


def test_builds_take_the_mirror_in_place_of_the_images_sources(host):
    build = f"APT_CONFIG={SITE}/apt.conf apt-get -o Dir::State::Lists=/tmp/lists"
    host.run_expect([0], f"mkdir -p /tmp/lists && {build} update -o APT::Update::Error-Mode=any")
    assert (
        host.check_output(f"{build} indextargets --format '$(SITE)' | sort --unique")
        == "http://172.30.83.24:8000"
    )


def test_mirror_that_another_key_signed_is_refused(host):
    source, other = "/etc/apt/sources.list.d/trainyard.sources", "/tmp/other.sources"
    host.run_expect(
        [0],
        f"sed '/^Signed-By/,$d' {source} > {other} && echo 'Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg' >> {other}",
    )
    refused = host.run(
        f"mkdir -p /tmp/fresh && apt-get update -o Dir::State::Lists=/tmp/fresh -o Dir::Etc::SourceParts=/dev/null -o Dir::Etc::SourceList={other}"
    )
    assert refused.rc != 0
    assert "is not signed" in refused.stderr


def test_apt_goes_through_the_proxy_otherwise(host):
    host.run("echo 'deb http://packages.example.com/ ./' > /tmp/far.list; mkdir -p /tmp/far")
    asked = host.run(
        "apt-get update -o Dir::State::Lists=/tmp/far -o Dir::Etc::SourceParts=/dev/null -o Dir::Etc::SourceList=/tmp/far.list"
    )
    # The site's proxy has no content. The test checks who answers.
    assert "404  File not found [IP: 172.30.83.24 3128]" in asked.stdout + asked.stderr


def test_secret_is_for_root_alone_and_apt_still_works_for_others(host):
    for path in (f"{SITE}/environment", f"{SITE}/apt.conf", "/etc/apt/apt.conf.d/80trainyard"):
        assert "s3cret" in host.file(path).content_string
        assert host.file(path).mode == 0o600
    host.run_expect([0], "su ops --command 'apt-cache policy bash'")


def test_environment_names_the_proxy_in_both_cases(host):
    lines = host.file(f"{SITE}/environment").content_string.splitlines()
    for name in ("http_proxy", "HTTP_PROXY"):
        assert f"{name}=http://operator:s3cret@172.30.83.24:3128" in lines
    assert "NO_PROXY=localhost,172.30.83.24,.example.org" in lines
