"""The assignments that a module makes in other packages, read from its source in every form that upstreams use."""

from __future__ import annotations

import pytest

from verl_npu.registry.source.named import PatchModule
from verl_npu.registry.source.probe import Assigns
from verl_npu.registry.source.reader import Step, read_patches

from ..conftest import Package

GIVEN = ("is_npu_available",)


def assigned(package: Package, source: str, *, calls: tuple[str, ...] = ()) -> list[Step]:
    package.write("up.patches", source)
    steps = read_patches(PatchModule("up.patches", calls, GIVEN), package.tree()).steps
    return [step for step in steps if step.value]


def places(package: Package, source: str, *, calls: tuple[str, ...] = ()) -> list[str]:
    return [step.place for step in assigned(package, source, calls=calls)]


def test_a_function_that_another_module_of_the_upstream_defines_is_read_there(package) -> None:
    package.write(
        "up.moved", "from lib.models import Norm\nNorm.backward = ours\ndef patch(c):\n    c.forward = ours\n"
    )
    source = "from lib.models import Norm\nfrom .moved import patch\npatch(Norm)"
    assert places(package, source) == ["lib.models.Norm.forward"]


def test_modules_that_call_each_other_end_the_reading(package) -> None:
    package.write("up.moved", "from up.patches import first\ndef second():\n    first()\nsecond()\n")
    source = (
        "from lib.models import Norm\nfrom .moved import second\ndef first():\n    Norm.forward = ours\n    second()\n"
    )
    assert set(places(package, source + "first()")) == {"lib.models.Norm.forward"}


def test_a_table_of_functions_that_is_kept_elsewhere_is_said_to_be_unread(package) -> None:
    package.write("up.patches", "from up.moved import ALL\nfor name, function in ALL.items():\n    function()")
    assigns = Assigns(PatchModule("up.patches"), "lib.models:Norm.forward")
    assert assigns.unread(package.tree()) == "the calls that up.patches makes for each of ALL.items() cannot be read"


def test_a_loop_that_calls_nothing_that_it_goes_over_hides_nothing(package) -> None:
    package.write("up.patches", "for name in names():\n    print(name)")
    assert Assigns(PatchModule("up.patches"), "lib.models:Norm.forward").unread(package.tree()) == ""


def test_a_function_of_another_package_is_not_followed(package) -> None:
    package.write("lib.tools", "from lib.models import Norm\ndef patch():\n    Norm.forward = ours\n")
    assert places(package, "from lib.tools import patch\npatch()") == []


FORMS = {
    "a method of a class of an imported module": "from lib import models\nmodels.Norm.forward = ours",
    "a method of an imported class": "from lib.models import Norm\nNorm.forward = ours",
    "under another name": "from lib.models import Norm as TheirNorm\nTheirNorm.forward = ours",
    "by the whole path": "import lib.models\nlib.models.Norm.forward = ours",
    "by a module with another name": "import lib.models as m\nm.Norm.forward = ours",
    "by a name for the class": "from lib import models\nNorm = models.Norm\nNorm.forward = ours",
    "by getattr": "from lib import models\ngetattr(models, 'Norm').forward = ours",
    "by setattr": "from lib import models\nsetattr(models.Norm, 'forward', ours)",
    "one of two in a line": "from lib import models\nmodels.Norm.forward, x = ours, 1",
    "wrapped": "from lib.models import Norm\nNorm.forward = wrap(Norm.forward)",
    "in a function that is called": "def patch():\n    from lib.models import Norm\n    Norm.forward = ours\npatch()",
    "in a function of a function": (
        "from lib.models import Norm\ndef inner(c):\n    c.forward = ours\ndef outer():\n    inner(Norm)\nouter()"
    ),
    "in a loop over pairs": (
        "from lib import models\nfor owner, name in [(models.Norm, 'forward')]:\n    setattr(owner, name, ours)"
    ),
    "in a loop over a table of functions": (
        "def patch():\n    from lib.models import Norm\n    Norm.forward = ours\nALL = {'a': patch}\n"
        "for name, function in ALL.items():\n    try:\n        function()\n    except ImportError:\n        pass"
    ),
    "in a loop over values": (
        "def patch():\n    from lib.models import Norm\n    Norm.forward = ours\nALL = {'a': patch}\n"
        "for function in ALL.values():\n    function()"
    ),
    "under a condition that is given": (
        "from lib.models import Norm\nif is_npu_available:\n    Norm.forward = ours\nelse:\n    Norm.backward = ours"
    ),
    "after a return that is never reached": (
        "from lib.models import Norm\ndef patch():\n    if not is_npu_available:\n        return\n"
        "    Norm.forward = ours\npatch()"
    ),
    "with a context": "from lib.models import Norm\nwith quietly():\n    Norm.forward = ours",
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_an_assignment_is_read(form: str, package: Package) -> None:
    (step,) = assigned(package, FORMS[form])
    assert step.place == "lib.models.Norm.forward"
    assert not step.conditions


def test_a_function_that_nobody_calls_assigns_nothing(package: Package) -> None:
    source = "from lib.models import Norm\ndef patch():\n    Norm.forward = ours"
    assert places(package, source) == []
    assert places(package, source.replace("patch", "apply"), calls=("apply",)) == ["lib.models.Norm.forward"]


def test_what_is_assigned_to_the_modules_own_things_is_no_patch(package: Package) -> None:
    assert places(package, "class Own: pass\nOwn.x = 1\nlogger = log(__name__)\nlogger.level = 1") == []


def test_the_steps_of_a_call_carry_its_name(package: Package) -> None:
    source = "from lib.models import Norm\nNorm.a = ours\ndef apply():\n    Norm.b = ours"
    assert {s.place: s.call for s in assigned(package, source, calls=("apply",))} == {
        "lib.models.Norm.a": "",
        "lib.models.Norm.b": "apply",
    }


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("if version('lib') == '4.52.4':\n    Norm.forward = ours", "version('lib') == '4.52.4'"),
        (
            "def f():\n    if not isinstance(Norm, type):\n        return\n    Norm.forward = ours\nf()",
            "isinstance(Norm, type)",
        ),
        ("try:\n    import a\nexcept ImportError:\n    Norm.forward = ours", "ImportError is raised"),
        ("for c in find():\n    Norm.forward = ours", "find() is not empty"),
        ("if hasattr(Norm, 'weight'):\n    Norm.forward = ours", "hasattr(Norm, 'weight')"),
        ("while more():\n    Norm.forward = ours", "more()"),
    ],
)
def test_any_other_condition_is_reported(source: str, text: str, package: Package) -> None:
    (step,) = assigned(package, f"from lib.models import Norm\n{source}")
    assert step.conditions == (text,)


def test_a_name_that_is_one_of_two_things_is_not_guessed(package: Package) -> None:
    source = "from lib.models import A, B\nif pick():\n    C = A\nelse:\n    C = B\nC.forward = ours"
    assert places(package, source) == []


def test_functions_that_call_themselves_end(package: Package) -> None:
    assert places(package, "def f():\n    f()\nf()") == []


def test_a_module_that_is_not_there_assigns_nothing(package: Package) -> None:
    assert read_patches(PatchModule("up.nowhere"), package.tree()).steps == []
