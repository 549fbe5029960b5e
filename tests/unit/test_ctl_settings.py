"""devwardctl config --check, which needs no daemon, and how a mode that was set at run time is shown."""

import json
from pathlib import Path

import pytest

from devward.ctl.main import main
from devward.ctl.settings import RUN_TIME, in_force


def written(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o644)
    return str(path)


def test_a_good_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path / "c.toml", '[cdi]\nmode = "observe"\n')
    assert main(["config", "--check", "--config", file]) == 0
    shown = capsys.readouterr().out
    assert "The configuration is good." in shown
    assert [line.split() for line in shown.splitlines() if line.startswith("cdi.")] == [["cdi.mode", '"observe"', file]]
    assert main(["config", "--check", "--config", file, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["good"], document["problems"], document["warnings"]) == (True, [], [])
    assert {"key": "cdi.mode", "value": "observe", "source": file} in document["settings"]


def test_a_bad_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path / "c.toml", '[cdi]\nmode = "som\\u001betimes"\nno_such_key = 1\n')
    assert main(["config", "--check", "--config", file]) == 1
    captured = capsys.readouterr()
    assert f"{file}: cdi.mode:" in captured.out
    assert "no_such_key" in captured.out
    assert "\x1b" not in captured.out
    assert main(["config", "--check", "--config", file, "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["good"] is False
    assert len(document["problems"]) == 2


def test_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path / "c.toml", '[cdi]\ndevice_uid = "x"\n')
    assert main(["config", "--check", "--config", file]) == 0
    assert "warning: " in capsys.readouterr().out


def test_a_missing_file_that_was_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--check", "--config", str(tmp_path / "none")]) == 1
    assert "cannot be read" in capsys.readouterr().out


def test_dropins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main_file = written(tmp_path / "c.toml", "")
    dropins = tmp_path / "conf.d"
    dropins.mkdir()
    written(dropins / "a.toml", "[cdi]\nsettle_time = 5\n")
    assert main(["config", "--check", "--config", main_file, "--config-dropins", str(dropins)]) == 0
    assert f"{dropins}/a.toml" in capsys.readouterr().out
    assert main(["config", "--check", "--config", main_file]) == 0
    assert "Every setting has its default." in capsys.readouterr().out


def test_a_mode_that_was_set_at_run_time() -> None:
    listed: list[dict[str, object]] = [
        {"key": "cdi.mode", "value": "repair", "source": "default"},
        {"key": "x.y", "value": 1, "source": "f"},
    ]
    assert in_force(listed, "repair") == listed
    assert in_force(listed, "") == listed, "an older daemon does not tell"
    changed = in_force(listed, "off")
    assert changed[0] == {"key": "cdi.mode", "value": "off", "source": RUN_TIME, "configured": "repair"}
    assert changed[1] == listed[1]
