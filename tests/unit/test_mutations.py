"""The table of safety rules fits the source: each of them can still be deleted, and is asked about where tests are."""

from collections import Counter
from pathlib import Path

import pytest

from mutations.rule import RottenError, Rule
from mutations.running import Children, Fate, Tree, Verdict
from mutations.table import RULES, asked_about

ROOT = Path(__file__).parents[2]


def test_every_rule_can_be_deleted() -> None:
    texts = {file: (ROOT / file).read_text(encoding="utf-8") for file in {rule.file for rule in RULES}}
    assert [str(error) for rule in RULES if (error := rotten(rule, texts[rule.file])) is not None] == []


def rotten(rule: Rule, text: str) -> RottenError | None:
    try:
        rule.delete(text)
    except RottenError as error:
        return error
    return None


def test_every_rule_has_a_name_of_its_own_and_tests() -> None:
    assert [name for name, count in Counter(rule.name for rule in RULES).items() if count > 1] == []
    files = {name.partition("::")[0] for rule in RULES for name in asked_about(rule)}
    assert [name for name in sorted(files) if not (ROOT / "tests/unit" / name).is_file()] == []
    assert all(map(asked_about, RULES))


def test_what_is_left_is_still_python() -> None:
    # Each takes a few milliseconds: one of each place is a sample that is taken in no time.
    for rule in {rule.file: rule for rule in RULES if rule.file.endswith(".py")}.values():
        compile(rule.delete((ROOT / rule.file).read_text(encoding="utf-8")), rule.file, "exec", dont_inherit=True)


@pytest.mark.parametrize(("text", "complaint"), [("nothing", "0 times"), ("if safe: if safe:", "2 times")])
def test_a_rule_that_does_not_stand_there_once_is_rotten(text: str, complaint: str) -> None:
    with pytest.raises(RottenError, match=complaint):
        Rule("4.5 safe", "file.py", "if safe:", "if True:").delete(text)


def test_a_rule_is_deleted() -> None:
    assert Rule("4.5 safe", "file.py", "if safe:", "if True:").delete("if safe: go") == "if True: go"
    with pytest.raises(RottenError, match="nothing"):
        Rule("4.5 safe", "file.py", "if safe:", "if safe:").delete("if safe: go")


def test_a_rule_that_a_test_notices_is_told_from_one_that_cannot_be_judged(tmp_path: Path) -> None:
    tree = tmp_path / "source"
    (tree / "tests" / "unit").mkdir(parents=True)
    (tree / "tests" / "mutations").symlink_to(ROOT / "tests" / "mutations")
    (tree / "src").mkdir()
    (tree / "src" / "safe.py").write_text("def is_safe(size):\n    return size < 3\n")
    (tree / "tests" / "unit" / "test_safe.py").write_text("from safe import is_safe\n\ndef test_four():\n    assert not is_safe(4)\n")
    copy = Tree(str(tree), str(tmp_path / "copy"), Children())

    def judged(old: str, new: str) -> Verdict:
        return copy.judge(Rule("4.5 safe", "src/safe.py", old, new, ("test_safe.py",)), seeds=0)

    found = judged("size < 3", "True")
    assert (found.fate, found.by) == (Fate.CAUGHT, "test_safe.py::test_four")
    assert judged("def is_safe", "def nothing").fate is Fate.WRONG, "it cannot be loaded"
    assert judged("size < 7", "True").fate is Fate.WRONG, "it does not stand there"
    assert (tree / "src" / "safe.py").read_text() == (tmp_path / "copy" / "src" / "safe.py").read_text()
