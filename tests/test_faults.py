"""The list of planted faults: each can be planted in one place, wherever that has been moved to."""

from __future__ import annotations

from collections import Counter

from faults.run import ROOT, faults, package


def test_each_fault_has_its_one_place_in_the_package() -> None:
    found, texts = faults(), list(package(ROOT).values())
    places = {one.id: sum(text.count(one.old) for text in texts) for one in found}
    assert {name: count for name, count in places.items() if count != 1} == {}
    assert [one.id for one in found if one.new == one.old] == []


def test_there_are_many_faults_each_with_a_name_of_its_own_and_tests_that_exist() -> None:
    found = faults()
    assert len(found) >= 150
    assert [name for name, count in Counter(one.id for one in found).items() if count > 1] == []
    files = {word for one in found for word in one.selection[0].split() if not word.startswith("-")}
    assert sorted(name for name in files if not (ROOT / name).is_file()) == []
