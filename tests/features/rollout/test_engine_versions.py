"""Releases that cannot be imported together end a job at its start; releases that no document names are reported."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from verl_npu.errors import JobSettingError
from verl_npu.features.rollout import engine_versions, rules
from verl_npu.registry.source.tree import SourceTree

from .job import job

ROLLOUT = "verl/workers/rollout/vllm_rollout"
FILES = {
    "verl/__init__.py": "",
    f"{ROLLOUT}/__init__.py": "from .vllm_rollout_spmd import vLLMRollout",
    f"{ROLLOUT}/vllm_rollout_spmd.py": "from vllm import LLM\nclass vLLMRollout: ...",
    f"{ROLLOUT}/vllm_async_server.py": "from vllm.engine import AsyncLLM",
    "vllm/__init__.py": "LLM = 1",
    "vllm/engine.py": "AsyncLLM = 1",
    "vllm_ascend/__init__.py": "raise RuntimeError('imported')",
    "vllm_ascend/platform.py": "new, old = 'vllm_ascend.worker.new.NPUWorker', 'vllm_ascend.worker.old.NPUWorker'",
    "vllm_ascend/patch/platform/__init__.py": "",
    "vllm_ascend/patch/worker/__init__.py": "",
    "vllm_ascend/worker/new.py": "from vllm.engine import AsyncLLM",
    "vllm_ascend/worker/old.py": "from vllm.engine import AsyncLLM",
}
ENGINES = {"vllm": "0.11.0", "vllm_ascend": "0.11.0rc1", "torch": "2.7.1", "torch_npu": "2.7.1.post2"}


class Site:
    """A folder of packages that come before the installed ones."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def has(self, name: str, text: str) -> None:
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_text(text)

    def installs(self, package: str, version: str, *requires: str) -> None:
        for old in self.folder.glob(f"{package}-*.dist-info"):
            (old / "METADATA").unlink()
            old.rmdir()
        lines = [f"Name: {package}", f"Version: {version}", *(f"Requires-Dist: {each}" for each in requires)]
        self.has(f"{package}-{version}.dist-info/METADATA", "\n".join(["Metadata-Version: 2.1", *lines]))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Install the releases that the documents of ccd7d934 name, all of which fit each other."""
    made = Site(tmp_path / "site")
    for name, text in FILES.items():
        made.has(name, text)
    for package, version in ENGINES.items():
        made.installs(package, version, *(["torch==2.7.1", "torch-npu==2.7.1"] if package == "vllm_ascend" else []))
    monkeypatch.syspath_prepend(str(made.folder))
    for package in ("verl", "vllm", "vllm_ascend"):
        monkeypatch.delitem(sys.modules, package, raising=False)
    for variable in ("VIRTUAL_ASCEND", "VLLM_VERSION"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(engine_versions, "manifest", lambda: {"upstreams": {"verl": {"nearest_pin": "ccd7d934"}}})
    return made


def refuse_engine_versions(config: Any) -> None:
    rules.check(config, ("rollout.engine_versions",))


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.usefixtures("site")
def test_releases_that_fit_pass_without_a_word(mode: str, said: list[str]) -> None:
    refuse_engine_versions(job(mode=mode))
    assert said == []


# verl and vLLM.


def test_a_vllm_without_what_verl_imports_is_refused(site: Site) -> None:
    site.has("vllm/__init__.py", "")
    with pytest.raises(JobSettingError) as caught:
        refuse_engine_versions(job(mode="sync"))
    assert str(caught.value) == (
        "vllm 0.11.0: expected a vLLM with every name that the installed verl's rollout imports; found no "
        "vllm.LLM, although line 1 of verl.workers.rollout.vllm_rollout.vllm_rollout_spmd imports vllm.LLM; install "
        "another vLLM; verl's documentation for NPUs names vllm 0.11.0 and vllm-ascend 0.11.0rc1 for ccd7d934 "
        "(override: VERL_NPU_DISABLE=rollout)"
    )


def test_what_only_the_server_imports_is_refused_with_the_way_around_it(site: Site) -> None:
    site.has("vllm/engine.py", "")
    with pytest.raises(JobSettingError, match=r"vllm\.engine:AsyncLLM.*or set .*mode=sync, which this vLLM supports"):
        refuse_engine_versions(job(mode="async"))


def test_an_engine_without_the_server_is_not_refused_for_it(site: Site) -> None:
    site.has(f"{ROLLOUT}/vllm_async_server.py", "from vllm.gone import AsyncLLM")
    refuse_engine_versions(job(mode="sync"))
    refuse_engine_versions(job(mode="async", agent={"custom_async_server": {"path": "mine.py"}}))


def test_a_verl_that_knows_servers_only_is_judged_by_its_server(site: Site) -> None:
    site.has(f"{ROLLOUT}/vllm_rollout_spmd.py", "")
    site.has(f"{ROLLOUT}/vllm_async_server.py", "import vllm.gone")
    with pytest.raises(JobSettingError, match=r"found no vllm\.gone,"):
        refuse_engine_versions(job())


# vLLM and vllm-ascend.


def test_a_vllm_without_what_vllm_ascend_imports_is_refused(site: Site) -> None:
    site.installs("vllm", "0.13.0")
    site.has("vllm_ascend/patch/worker/__init__.py", "import vllm_ascend.more")
    site.has("vllm_ascend/more.py", "import os\nfrom vllm.engine import Gone")
    with pytest.raises(JobSettingError) as caught:
        refuse_engine_versions(job(mode="sync"))
    assert str(caught.value) == (
        "vllm 0.13.0 with vllm-ascend 0.11.0rc1: expected a vLLM with every name that the installed vllm-ascend "
        "imports when an engine starts; found no vllm.engine:Gone, although line 2 of vllm_ascend.more imports "
        "vllm.engine.Gone; install vllm and vllm-ascend in the same version; verl's documentation for NPUs names vllm "
        "0.11.0 and vllm-ascend 0.11.0rc1 for ccd7d934 (override: VERL_NPU_DISABLE=rollout)"
    )


def test_one_worker_that_can_be_imported_is_enough(site: Site) -> None:
    site.installs("vllm", "0.13.0")
    site.has("vllm_ascend/worker/old.py", "import vllm.gone")
    refuse_engine_versions(job(mode="sync"))
    site.has("vllm_ascend/worker/new.py", "import vllm.lost")
    with pytest.raises(JobSettingError, match=r"no vllm\.(gone|lost),"):
        refuse_engine_versions(job(mode="sync"))


def test_a_pair_of_one_number_is_taken_for_what_it_says(site: Site) -> None:
    site.has("vllm_ascend/platform.py", "import vllm.gone")
    refuse_engine_versions(job(mode="sync"))


@pytest.mark.parametrize(("assumed", "refused"), [("", True), ("0.11.0", False)])
def test_vllm_ascends_own_gate_is_followed(
    assumed: str, refused: bool, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.installs("vllm", "0.11.2")
    site.has("vllm_ascend/platform.py", "if not vllm_version_is('0.11.0'):\n    import vllm.gone")
    monkeypatch.setenv("VLLM_VERSION", assumed)
    if refused:
        with pytest.raises(JobSettingError, match=r"no vllm\.gone,"):
            refuse_engine_versions(job(mode="sync"))
    else:
        refuse_engine_versions(job(mode="sync"))


# Releases that no document names, without a conflict.


def test_releases_that_nobody_named_are_said_in_one_line(site: Site, said: list[str]) -> None:
    site.installs("vllm", "0.12.0")
    site.installs("vllm_ascend", "0.12.0")
    refuse_engine_versions(job(mode="sync"))
    (line,) = said
    assert line.startswith(
        "verl's documentation for NPUs names vllm 0.11.0 and vllm-ascend 0.11.0rc1 for ccd7d934, but vllm 0.12.0 and "
        "vllm-ascend 0.12.0 are installed here; verl-npu found no import that fails;"
    )


def test_the_release_of_a_named_candidate_is_named(site: Site, said: list[str]) -> None:
    site.installs("vllm_ascend", "0.11.0")
    refuse_engine_versions(job(mode="sync"))
    assert said == []


def test_a_torch_npu_that_vllm_ascend_does_not_ask_for_is_said(site: Site, said: list[str]) -> None:
    site.installs("torch_npu", "2.8.0")
    refuse_engine_versions(job(mode="sync"))
    (line,) = said
    assert line.startswith("vllm-ascend 0.11.0rc1 requires torch_npu==2.7.1, but torch_npu 2.8.0 is installed here;")


def test_nothing_is_said_on_virtual_npus(site: Site, said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIRTUAL_ASCEND", "2")
    site.installs("torch_npu", "2.8.0")
    site.installs("vllm", "0.12.0")
    refuse_engine_versions(job(mode="sync"))
    assert said == []


def test_without_a_judged_verl_no_range_is_known(site: Site, said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        raise LookupError

    monkeypatch.setattr(engine_versions, "manifest", none)
    site.installs("vllm", "0.12.0")
    refuse_engine_versions(job(mode="sync"))
    assert said == []


# Environments in which there is nothing to judge.


def test_another_engine_is_left(site: Site) -> None:
    site.has("vllm/__init__.py", "")
    refuse_engine_versions(job("sglang", mode="async"))


def test_a_host_without_vllm_is_left(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.has("vllm/__init__.py", "")
    everything = SourceTree.installed(("verl", "vllm_ascend"))
    monkeypatch.setattr(SourceTree, "installed", lambda packages: everything)
    refuse_engine_versions(job(mode="sync"))


# Upstream's own releases.

Source = Callable[[str, str], Path]


@pytest.fixture
def real(site: Site, source: Source, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that replaces the installed packages with releases of verl, vLLM and vllm-ascend."""

    def put(vllm: str, verl: str = "", ascend: str = "") -> None:
        tree = SourceTree.at(source("vllm", f"v{vllm}"), ("vllm",))
        site.installs("vllm", vllm)
        if verl:
            tree = tree.with_packages(SourceTree.at(source("verl", verl), ("verl",)))
        if ascend:
            tree = tree.with_packages(SourceTree.at(source("vllm-ascend", f"v{ascend}"), ("vllm_ascend",)))
            site.installs("vllm_ascend", ascend)
        monkeypatch.setattr(SourceTree, "installed", lambda packages: tree)

    return put


@pytest.mark.upstream
@pytest.mark.parametrize(
    ("verl", "vllm", "mode", "missing"),
    [
        ("796871d7", "0.7.3", "async", ""),
        ("796871d7", "0.9.1", "async", ""),
        ("796871d7", "0.11.0", "sync", "vllm.model_executor.sampling_metadata"),
        ("v0.6.1", "0.9.1", "sync", ""),
        # The release that its documents name works only in the other mode.
        ("v0.6.1", "0.9.1", "async", "vllm.v1.engine.utils"),
        ("v0.6.1", "0.11.0", "async", ""),
        ("ccd7d934", "0.9.1", "async", "vllm.v1.engine.utils"),
        ("ccd7d934", "0.11.0", "async", ""),
        ("1dda039b", "0.11.0", "async", "vllm.entrypoints.openai.parser"),
        ("1dda039b", "0.23.0", "async", ""),
    ],
)
def test_what_upstreams_rollout_finds_in_releases_of_vllm(
    verl: str, vllm: str, mode: str, missing: str, real: Callable[..., None]
) -> None:
    real(verl=verl, vllm=vllm)
    if missing:
        with pytest.raises(JobSettingError, match=rf"found no {missing},"):
            refuse_engine_versions(job(mode=mode))
    else:
        refuse_engine_versions(job(mode=mode))


@pytest.mark.upstream
@pytest.mark.parametrize("release", ["0.7.3", "0.9.1", "0.11.0", "0.13.0", "0.18.0", "0.23.0", "0.25.1"])
def test_vllm_ascend_finds_all_in_the_vllm_of_its_number_and_something_missing_in_others(
    release: str, real: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    ascend = {"0.7.3": "0.7.3.post1", "0.25.1": "0.25.1rc1"}.get(release, release)
    real(vllm=release, ascend=ascend)
    monkeypatch.setattr(engine_versions, "_version", lambda component: None)  # version numbers must not decide
    monkeypatch.setenv("VLLM_VERSION", release)
    refuse_engine_versions(job(mode="sync"))
    for other in {"0.9.1", "0.11.0", "0.18.0"} - {release}:
        real(vllm=other, ascend=ascend)
        monkeypatch.setenv("VLLM_VERSION", other)
        with pytest.raises(JobSettingError, match="everything that the installed vllm-ascend imports"):
            refuse_engine_versions(job(mode="sync"))
