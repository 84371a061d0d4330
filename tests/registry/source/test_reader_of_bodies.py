"""The actions of a definition, read from its source: only code that can be executed counts, wherever it is written."""

from __future__ import annotations

import pytest

from verl_npu.registry.source.named import Key
from verl_npu.registry.source.probe import (
    Atom,
    Calls,
    Imported,
    Imports,
    Passes,
    Raises,
    Reads,
    Sets,
    Takes,
)
from verl_npu.registry.source.reader import is_hollow, read_body
from verl_npu.registry.source.tree import SourceTree

SOURCE = '''
from functools import partial
from typing import TYPE_CHECKING
from .tools import padding as pad
from . import tools
if TYPE_CHECKING:
    import checked

DEVICE = "cuda"
OLD = False

class Base:
    def close(self):
        self.link.destroy(self.link)

class Model(Base):
    kind = "fast"

    def __init__(self, config, device=DEVICE, retries=3):
        self.count = config.count

    def direct(self):
        self.link.destroy(self.link)

    def by_method(self):
        self.close()

    def by_name(self):
        getattr(self.link, "destroy")(self.link)

    def by_local(self):
        drop = self.link.destroy
        drop()

    def never(self):
        if False:
            self.link.destroy()
        if TYPE_CHECKING:
            self.link.destroy()
        if OLD:
            self.link.destroy()
        return
        self.link.destroy()

    def unused(self):
        def inner():
            self.link.destroy()

    def only_says(self):
        "destroy"
        logger.info(self.link.destroy())
        if self.device == "destroy":
            raise ValueError("destroy")

    def depending(self):
        size = self.limit
        if size > 1:
            self.link.destroy()

    def until(self):
        while self.more:
            self.link.destroy()

    def literal(self): load(how="fast")
    def of_class(self): load(how=self.kind)
    def of_module(self): load(how=DEVICE)
    def of_local(self):
        how = "fast"
        load(how=how)
    def joined(self): load(how="fa" + "st")
    def unpacked(self): load(**{"how": "fast"})
    def filled(self):
        options = {}
        options["how"] = "fast"
        load(**options)
    def partly(self): partial(load, how="fast")()
    def through(self): self._load("fast")
    def _load(self, how): load(how=how)
    def setting(self): load(how=self.config.get("how", "fast"))
    def attribute(self): load(how=self.config.how)
    def kept(self): load(how=self.count)
    def unknown(self): load(how=compute())

    def refuses(self, limit):
        if limit < 1:
            raise ValueError(limit)
    def asserts(self, limit):
        assert limit
    def catches(self):
        try:
            load()
        except (ValueError, OSError):
            recover()

    def absolute(self): import up.tools.padding
    def relative(self): from .tools import padding
    def aliased(self): import up.tools.padding as p
    def of_helper(self): bring()
    def by_string(self): importlib.import_module("up.tools.padding")

    def hollow(self):
        """Nothing yet."""
        raise NotImplementedError
    def gutted(self): pass

def bring():
    from up.tools import padding

Base.step = bring
'''
M = "up.model:Model"
DESTROY = "link.destroy"


@pytest.fixture
def tree(package) -> SourceTree:
    package.write("up.model", SOURCE)
    package.write("up.tools", "padding = 1\n")
    return package.tree()


@pytest.mark.parametrize("name", ["direct", "by_method", "by_name", "by_local", "depending", "until"])
def test_a_call_is_seen_however_it_is_written(name: str, tree: SourceTree) -> None:
    assert Calls(f"{M}.{name}", DESTROY).holds(tree)


@pytest.mark.parametrize("name", ["never", "unused", "only_says"])
def test_what_is_never_called_here_is_no_call(name: str, tree: SourceTree) -> None:
    assert not Calls(f"{M}.{name}", DESTROY).holds(tree)
    assert not Reads(f"{M}.{name}", "destroy").holds(tree)


@pytest.mark.parametrize(
    ("atom", "holds"),
    [
        (Calls(f"{M}.by_method", DESTROY, directly=True), False),
        (Calls(f"{M}.direct", DESTROY, directly=True), True),
        (Calls(f"{M}.direct", DESTROY, given=Key("link")), True),
        (Calls(f"{M}.direct", DESTROY, given="link"), False),
        (Calls(f"{M}.depending", DESTROY, when="limit"), True),
        (Calls(f"{M}.direct", DESTROY, when="limit"), False),
        (Raises(f"{M}.refuses", "ValueError", when="limit"), True),
        (Raises(f"{M}.refuses", "", when="limit"), True),
        (Raises(f"{M}.refuses", "KeyError", when="limit"), False),
        (Raises(f"{M}.refuses", "ValueError", when="other"), False),
        (Raises(f"{M}.asserts", "AssertionError", when="limit"), True),
        (Reads(f"{M}.catches", "OSError"), True),
        (Takes(f"{M}.__init__", "device"), True),
        (Takes(f"{M}.__init__", "device", "cuda"), True),
        (Takes(f"{M}.__init__", "retries", 4), False),
        (Takes(f"{M}.__init__", "other"), False),
        (Sets("up.model", "Base.step"), True),
        (Sets("up.model", "Base.other"), False),
        (Imports("up.model", "up.tools.padding"), True),
        (Imports("up.model", "checked"), False),
        (Imported("up", "up.tools.padding"), True),
        (Imported("up", "up.tools.other"), False),
        (Reads(f"{M}.setting", "config"), True),
        (Calls("up.model:gone", "x"), False),
    ],
    ids=str,
)
def test_a_question_about_what_is_done(atom: Atom, holds: bool, tree: SourceTree) -> None:
    assert atom.holds(tree) is holds


CONSTANT = ["literal", "of_class", "of_local", "joined", "unpacked", "filled", "partly", "through", "setting"]


@pytest.mark.parametrize("name", CONSTANT)
def test_a_constant_is_followed_to_the_argument(name: str, tree: SourceTree) -> None:
    atom = Passes(f"{M}.{name}", "how", "fast")
    assert atom.holds(tree)
    assert not Passes(f"{M}.{name}", "how", "slow").holds(tree)


@pytest.mark.parametrize(
    ("name", "value", "closed"),
    [("of_module", "cuda", True), ("setting", Key("how"), True), ("attribute", Key("how"), True),
     ("kept", Key("count"), True), ("unknown", None, False)],
)  # fmt: skip
def test_what_reaches_an_argument_is_told_or_known_to_be_unknown(
    name: str, value: object, closed: bool, tree: SourceTree
) -> None:
    atom = Passes(f"{M}.{name}", "how", value)
    assert atom.holds(tree) is closed
    assert atom.is_closed(tree) is closed


@pytest.mark.parametrize("name", ["absolute", "relative", "aliased", "of_helper", "by_string"])
def test_an_import_is_seen_however_it_is_written(name: str, tree: SourceTree) -> None:
    assert Imports(f"{M}.{name}", "up.tools.padding").holds(tree)


def test_only_of_a_whole_module_it_is_known_that_something_is_not_imported(tree: SourceTree) -> None:
    assert not Imports(f"{M}.direct", "up.tools.padding").is_closed(tree)
    assert Imports("up.tools", "up.other").is_closed(tree)
    # It imports something by its name.
    assert not Imports("up.model", "up.other").is_closed(tree)


@pytest.mark.parametrize(("name", "hollow"), [("hollow", True), ("gutted", True), ("direct", False), ("gone", False)])
def test_a_body_that_does_nothing_is_hollow(name: str, hollow: bool, tree: SourceTree) -> None:
    assert is_hollow(f"{M}.{name}", tree) is hollow


def test_the_form_covers_what_is_called_and_no_comment(package, tree: SourceTree) -> None:
    before = read_body(f"{M}.by_method", tree).form
    package.write("up.model", SOURCE.replace("self.close()", "self.close()  # at the end"))
    assert read_body(f"{M}.by_method", package.tree()).form == before
    package.write("up.model", SOURCE.replace("self.link.destroy(self.link)", "self.link.destroy(None)"))
    assert read_body(f"{M}.by_method", package.tree()).form != before
