"""Registries that other packages add to by entry points, and what a web client may choose in them."""

from importlib.metadata import EntryPoint
from types import SimpleNamespace

import pytest

from texturevlm import registry
from texturevlm.registry import Registry

GROUP = "texturevlm.things"


def things(**options):
    return Registry("thing", GROUP, {"one": len, "far": "math:sqrt"}, lab=("lost",), clients=("one",), **options)


@pytest.fixture
def installed(monkeypatch):
    """Another package that adds three things, two of which cannot be loaded, and tries to replace one of ours."""
    points = {"their": "math:floor", "broken": "no_such_module:thing", "gone": "math:sqrrt", "one": "math:ceil"}
    looked_up = []

    def plug_ins(group):
        looked_up.append(group)
        return {name: EntryPoint(name, value, group) for name, value in points.items()}

    monkeypatch.setattr(registry, "plug_ins", plug_ins)
    return looked_up


def test_a_built_in_name_looks_nothing_up(installed):
    import math

    assert things().find("test", "one") is len and things()["far"] is math.sqrt and "one" in things()
    assert installed == []


def test_another_package_adds_names_and_replaces_none(installed):
    import math

    assert things().find("test", "their") is math.floor and things()["their"] is math.floor
    assert things()["one"] is len and list(things()) == ["one", "far", "their", "broken", "gone"] and len(things()) == 5
    with pytest.raises(ImportError, match=r"test: thing 'broken' \(no_such_module:thing\) fails to load: No module"):
        things().find("test", "broken")
    with pytest.raises(ImportError, match=r"test: thing 'gone' \(math:sqrrt\) fails to load: module 'math' has no"):
        things().find("test", "gone")


def test_an_object_stands_in_the_place_of_a_name():
    assert things().find("test", print) is print
    with pytest.raises(TypeError, match="test: thing must be a name, or an object of its kind, got 7"):
        things().find("test", 7)


def test_unknown_names_and_what_to_install(monkeypatch):
    monkeypatch.setattr(registry, "plug_ins", lambda group: {})
    with pytest.raises(ValueError, match=r"test: thing must be one of one, far, got 'onne' \(did you mean one\?\)"):
        things().find("test", "onne")
    with pytest.raises(ImportError, match=r"test: thing 'lost' comes with the lab: pip install \./lab"):
        things().find("test", "lost")
    with pytest.raises(KeyError):
        things()["lost"]
    assert things().knows("lost") and not things().knows("onne")


def test_a_web_client_chooses_among_few_names(installed):
    assert things().find_for_client("POST", "one") is len
    for given in ("far", "their", "/etc/passwd", print):
        with pytest.raises(ValueError, match="POST: thing must be one of one, got "):
            things().find_for_client("POST", given)
    assert installed == []
    with pytest.raises(ValueError, match="clients must be built-in names"):
        Registry("thing", GROUP, {}, clients=("their",))


def test_of_two_packages_that_use_one_name_the_first_stays(monkeypatch):
    """A clash of two plug-ins must not stop those who use neither."""
    points = [SimpleNamespace(name="a", value="x:y"), SimpleNamespace(name="a", value="z:y")]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    with pytest.warns(UserWarning, match="twice: a must name one thing, got z:y beside x:y, which stays"):
        assert registry.plug_ins("twice")["a"].value == "x:y"
