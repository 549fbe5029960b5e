"""CDI documents: the reference loader's verdicts, hostile input, the document of devward and what differs from it."""

import builtins
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devward.cdi import document as document_module
from devward.cdi.document import MAX_ALIASED_NODES, MAX_DEPTH, MAX_NODES, MAX_TAG_DIRECTIVES
from devward.cdi.scalar import float_text, resolve_scalar
from devward.cdi.spec import (
    KNOWN_VERSIONS,
    MAX_NAMES,
    MAX_REMARKS,
    LoadedSpec,
    NotExamined,
    NotPlain,
    SpecError,
    differences,
    kind_of,
    load,
    minimum_version,
    render_hypervisor,
)
from devward.model import DeviceKind

VERDICTS: list[dict[str, Any]] = json.loads((Path(__file__).parent.parent / "data" / "cdi-verdicts.json").read_text("utf-8"))
#: No database: the suite also runs where it may not write, and a slow machine is no failure.
PROPERTY = settings(database=None, deadline=None)
KVM = "hyperlight.dev/hypervisor=kvm"
DESIRED = render_hypervisor([DeviceKind.KVM, DeviceKind.MSHV], uid=65534, gid=65534)


def doc(device: Mapping[str, object] | None = None, edits: Mapping[str, object] | None = None, **top: object) -> dict[str, Any]:
    """Return a minimal document with some members replaced."""
    return {
        "cdiVersion": "1.1.0",
        "kind": "example.com/thing",
        "devices": [{"name": "one", "containerEdits": {"env": ["A=b"], **(edits or {})}, **(device or {})}],
        **top,
    }


def as_bytes(value: object) -> bytes:
    return json.dumps(value).encode()


def refused(data: bytes, name: str = "x.json") -> str:
    with pytest.raises(SpecError) as caught:
        load(data, name)
    return str(caught.value)


def verdict_on(data: bytes, name: str = "x.json") -> tuple[LoadedSpec | None, str]:
    """Return what was loaded, or None and why not."""
    try:
        return load(data, name), ""
    except SpecError as error:
        return None, str(error)


# --- the reference's verdicts ----------------------------------------------------------------------------------------
def test_the_recorded_verdicts_are_all_there() -> None:
    assert len(VERDICTS) == 178


@pytest.mark.parametrize("verdict", VERDICTS, ids=[f"{index}-{entry['name'][:40]!r}" for index, entry in enumerate(VERDICTS)])
def test_the_verdict_and_the_devices_are_the_reference_loaders(verdict: dict[str, Any]) -> None:
    loaded, error = verdict_on(verdict["text"].encode(), "f" + verdict["ext"])
    assert (loaded is not None) == verdict["accepted"], error or f"the reference says: {verdict['error']}"
    if loaded is None:
        assert error
        assert error.isprintable()
    else:
        assert list(loaded.devices) == verdict["devices"]
        assert loaded.version in KNOWN_VERSIONS
        assert loaded.minimum_version in KNOWN_VERSIONS


# More verdicts of the libraries that the reference loader reads with (go-yaml v2.4, sigs.k8s.io/yaml), for notations that JSON and YAML
# read differently: is this something that its struct can be filled from?
NOTATIONS = [
    (b'{"kind":"example.com\\/thing"}', False),
    (b'{"annotations":{"a":"\\ud83d\\ude00"}}', False),
    (b'{"annotations":{"a":"\xf0\x9f\x98\x80"}}', True),
    (b'{"kind"\n:"example.com/thing"}', False),
    (b'\t{"kind":"example.com/thing"}', False),
    (b'{"kind":"example.com/thing"}\n\t\n', False),
    (b'{"kind":"example.com/thing"}\t\n', True),
    (b'{\n\t"kind"\t:\t"example.com/thing"\n}', True),
    (b'{"annotations":{"a":"\x7f"}}', False),
    (b'{"annotations":{"a":"\\u007f\\u0000"}}', True),
    (b'{"annotations":{"' + b"a" * 1100 + b'":"x"}}', False),
    (b'{"annotations":{"' + b"a" * 900 + b'":"x"}}', True),
    (b'{"annotations":{"a"' + b" " * 1100 + b':"x"}}', False),
    (b'{"annotations":{"<<":"x"}}', True),
    (b"annotations: {<<: {a: b}}", True),
    (b"annotations: {a: c, <<: {a: b}}", False),
    (b"annotations: {<<: [{a: b}, {c: d}]}", True),
    (b"annotations: {<<: x}", False),
    (b"annotations: {1: x, true: y, 1.5: z}", True),
    (b"annotations: {~: x}", False),
    (b"annotations: {[a]: x}", False),
    (b"annotations: {a: .nan}", True),
    (b"annotations: {a: !!int x}", False),
    (b"annotations: {a: !!int '5', b: !!binary aGk=, c: !other 5, d: !!float 5}", True),
    (b"annotations: {a: !!binary '*'}", False),
    (b"annotations: {a: *nothing}", False),
    (b"annotations: &a {a: *a}", False),
    (b"%YAML 1.1\n---\nannotations: {a: b}", True),
    (b"%YAML 1.2\n---\nannotations: {a: b}", False),
    (b"containerEdits: {additionalGids: [017, 0o17, 0x1f, 0b11, 1_0, 1e3, +5, ~]}", True),
    (b"containerEdits: {additionalGids: [-0]}", True),
    (b"containerEdits: {additionalGids: [-0.0]}", False),
    (b"containerEdits: {additionalGids: [1e400]}", False),
    (b"containerEdits: {additionalGids: [1:30]}", False),
    (b"containerEdits: {additionalGids: [yes]}", False),
    (b"containerEdits: {intelRdt: {enableMonitoring: on}}", True),
    (b"containerEdits: {intelRdt: {enableCMT: on}}", False),
    (b"containerEdits: {deviceNodes: [~]}", True),
    (b"containerEdits: {env: [A=b? c]}", False),
    (b"containerEdits: {env: [A=b?c]}", False),
    (b"containerEdits: {env: ['A=b? c']}", True),
    (b"containerEdits:\n  env:\n  - A=b? c\n", True),
    (b'{"cdi\xc5\xbfpec": 1}', False),
    (b'{"\xe2\x84\xaaind": "example.com/thing"}', True),
    (b"\xff\xfe" + '{"kind":"example.com/thing"}'.encode("utf-16-le"), True),
    (b'{"kind":"example.com/thing"}\xff', False),
]


@pytest.mark.parametrize(("data", "accepted"), NOTATIONS)
def test_notation_counts_as_it_does_for_the_reference(data: bytes, accepted: bool) -> None:
    """Only the shape is judged here: what is missing from these documents is another error."""
    error = refused(data, "x.yaml")
    assert (error == "engines do not know its cdiVersion ''") == accepted, error


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("~", None),
        ("yes", True),
        ("n", False),
        ("017", 15),
        ("0o17", 15),
        ("08", 8.0),
        ("0x_1F", 31),
        ("-0b11", -3),
        ("18446744073709551615", 18446744073709551615),
        ("18446744073709551616", 18446744073709551616.0),
        ("-9223372036854775808", -9223372036854775808),
        ("+9223372036854775808", 9223372036854775808.0),
        ("1e400", "1e400"),
        (".5", 0.5),
        (".5_0", 0.5),
        (".5__0", ".5__0"),
        (".", "."),
        ("1.", 1.0),
        ("1:30", "1:30"),
        ("2001-01-01", "2001-01-01"),
        ("0x", "0x"),
        ("<<", "<<"),
        ("nan", "nan"),
    ],
)
def test_plain_scalars_are_those_of_go_yaml(text: str, value: object) -> None:
    resolved = resolve_scalar(text)
    assert (type(resolved), resolved) == (type(value), value)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0, "0"),
        (-0.0, "-0"),
        (1.0, "1"),
        (0.6, "0.6"),
        (100000.0, "100000"),
        (123456.7, "123456.7"),
        (1e6, "1e+06"),
        (16777217.0, "1.6777217e+07"),
        (0.0001, "0.0001"),
        (0.00001, "1e-05"),
        (1.5e300, "1.5e+300"),
        (-2.5e-7, "-2.5e-07"),
        (float("inf"), "+Inf"),
        (float("-inf"), "-Inf"),
        (float("nan"), "NaN"),
    ],
)
def test_floats_become_the_text_that_go_gives_them(number: float, text: str) -> None:
    assert float_text(number) == text


@settings(PROPERTY)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_the_text_of_a_float_is_the_float(number: float) -> None:
    assert float(float_text(number)) == number


def test_two_spellings_of_one_key_fill_one_object() -> None:
    data = b"""{"cdiVersion": "0.6.0", "kind": "a/b", "Devices": [{"name": "first", "containerEdits": {"env": ["A=1"]}}],
        "devices": [{"name": "second"}]}"""
    loaded = load(data, "x.json")
    assert loaded.devices == ("a/b=second",)
    assert any("'Devices' as 'devices'" in remark for remark in loaded.remarks)


def test_devices_keep_their_order_and_may_be_numbers() -> None:
    data = b"{cdiVersion: 0.6.0, kind: a/b, devices: [{name: 010, containerEdits: {env: [A=1]}}, {name: a, containerEdits: {env: [A=1]}}]}"
    loaded = load(data, "x.yaml")
    assert loaded.devices == ("a/b=8", "a/b=a")
    assert loaded.remarks == ("devices[0].name is a number, which engines take as text",)


# --- remarks ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("data", "remark"),
    [
        (as_bytes(doc()).replace(b'"kind"', b'"Kind"'), "engines take the key 'Kind' as 'kind'"),
        (b"# comment\n" + as_bytes(doc()), "comment"),
        (as_bytes(doc()) + b"\n# comment", "text follows"),
        (b"\xef\xbb\xbf" + as_bytes(doc()), "byte order mark"),
        (as_bytes(doc())[:-1] + b",}", "comma before a closing bracket"),
        (as_bytes(doc()) + b"\n---\n" + as_bytes(doc()), "only the first of its documents"),
        (as_bytes(doc()) + b"\n" + as_bytes(doc()), "only the first of its documents"),
        (as_bytes(doc()) + b"\n--- {", "only the first of its documents"),
        (as_bytes(doc(edits={"deviceNodes": [{"path": "/dev/x", "permissions": "none"}]})), "permissions 'none'"),
        (as_bytes(doc(edits={"deviceNodes": [{"path": "/dev/x", "major": -1}]})), "negative number"),
        (as_bytes(doc(edits={"deviceNodes": [{"path": "dev/x"}]})), "not a plain absolute one"),
        (as_bytes(doc(annotations={"-": "x"})), "that the CDI schema forbids"),
        (as_bytes(doc(device={"annotations": {"a/b/c": "x"}})), "that the CDI schema forbids"),
        (as_bytes(doc(annotations={"a": 5})), "which engines take as text"),
        (as_bytes(doc(cdiVersion="v1.1.0")), "begins with a v"),
    ],
)
def test_what_engines_accept_and_a_careful_reader_does_not_is_remarked(data: bytes, remark: str) -> None:
    remarks = load(data, "x.json").remarks
    assert any(remark in entry for entry in remarks), remarks
    assert all(entry.isprintable() for entry in remarks)


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (as_bytes(doc()), "x.json"),
        (json.dumps(doc(), indent="\t").encode(), "x.json"),
        (as_bytes(doc()), "x.yaml"),
        (as_bytes(doc(cdiVersion="1.1.0")), "x.json"),
        (as_bytes(doc(annotations={"example.com/a.b_c": "x", "A": "y"})), "x.json"),
        (b"# comment\ncdiVersion: 0.3.0\nkind: a/b\ndevices:\n- name: x\n  containerEdits: {env: [A=b]}\n", "x.yaml"),
        (json.dumps(doc(annotations={"a" * 63: "x"}, kind="a.b/" + "c" * 300)).encode() + b"\t", "x.json"),
    ],
)
def test_an_ordinary_file_has_no_remarks(data: bytes, name: str) -> None:
    """A version higher than the content needs is ordinary too."""
    assert load(data, name).remarks == ()


# --- versions --------------------------------------------------------------------------------------------------------
NODE = {"path": "/dev/x"}


@pytest.mark.parametrize(
    ("needed", "document"),
    [
        ("0.3.0", doc()),
        ("0.3.0", doc(edits={"mounts": [{"hostPath": "/a", "containerPath": "/b"}], "additionalGids": []}, annotations={})),
        ("0.4.0", doc(edits={"mounts": [{"hostPath": "/a", "containerPath": "/b", "type": "bind"}]})),
        ("0.5.0", doc(device={"name": "1"})),
        ("0.5.0", doc(edits={"deviceNodes": [{**NODE, "hostPath": "/dev/y"}]})),
        ("0.5.0", doc(containerEdits={"deviceNodes": [{**NODE, "hostPath": "/dev/y"}]})),
        ("0.6.0", doc(annotations={"a": "b"})),
        ("0.6.0", doc(device={"annotations": {"a": "b"}})),
        ("0.6.0", doc(kind="example.com/a.b")),
        ("0.7.0", doc(edits={"additionalGids": [0]})),
        ("0.7.0", doc(containerEdits={"intelRdt": {}})),
        ("1.1.0", doc(edits={"netDevices": [{"hostInterfaceName": "a", "name": "b"}]})),
        ("1.1.0", doc(edits={"intelRdt": {"schemata": []}})),
        ("1.1.0", doc(edits={"intelRdt": {"enableMonitoring": True}})),
        ("0.7.0", doc(edits={"intelRdt": {"enableMonitoring": False, "schemata": None}})),
    ],
)
def test_the_minimum_version_is_what_the_content_needs(needed: str, document: dict[str, Any]) -> None:
    assert minimum_version(document) == needed
    assert load(as_bytes({**document, "cdiVersion": needed}), "x.json").minimum_version == needed
    lower = KNOWN_VERSIONS[KNOWN_VERSIONS.index(needed) - 1]
    assert f"needs cdiVersion {needed}" in refused(as_bytes({**document, "cdiVersion": lower}))


def test_a_document_of_another_shape_has_no_minimum_version() -> None:
    with pytest.raises(SpecError):
        minimum_version({"devices": 5})


# --- hostile input ---------------------------------------------------------------------------------------------------
MEBIBYTE = 1024 * 1024
BOMB = (
    b"a: &a ["
    + b"x," * 10
    + b"]\n"
    + b"".join(b"%c: &%c [%s]\n" % (98 + i, 98 + i, b",".join([b"*%c" % (97 + i)] * 10)) for i in range(10))
)
HOSTILE = {
    "deep JSON": b"[" * MEBIBYTE,
    "deep JSON objects": b'{"a":' * 200_000,
    "deep YAML": b"- " * 500_000,
    "deep YAML in brackets": b"{a: " * 200_000,
    "alias bomb": BOMB,
    "wide aliases": b"a: &a [" + b"x," * 1000 + b"]\nb: [" + b"*a," * 200_000 + b"]",
    "merge bomb": b"a: &a {x: 1}\nb: [" + b"{<<: *a}," * 100_000 + b"]",
    "self reference": b"devices: &a [*a]",
    "huge integer": b'{"cdiVersion": ' + b"9" * 1_000_000 + b"}",
    "huge integer as id": b'{"containerEdits": {"additionalGids": [' + b"9" * 1_000_000 + b"]}}",
    "huge hexadecimal": b"cdiVersion: 0x" + b"f" * 1_000_000,
    "huge fraction": b'{"cdiVersion": 0.' + b"9" * 1_000_000 + b"}",
    "huge exponent": b'{"containerEdits": {"additionalGids": [1e' + b"9" * 1_000_000 + b"]}}",
    "many scalars": b"x: [" + b"a," * 500_000 + b"]",
    "many directives": b"".join(b"%%TAG !a%d! b\n" % i for i in range(70_000)),
    "many blank lines before a colon": b'{"a"' + b"\n" * 1_000_000 + b":1}",
    "blank lines": b"{" + b"\n" * 1_000_000 + b'"a":1}',
    "backslashes": b'{"a": "' + b"\\\\" * 500_000 + b'"}',
    "NUL": b"\0" * MEBIBYTE,
    "not UTF-8": b"\xff" * MEBIBYTE,
    "half of UTF-16": b"\xff\xfea",
    "long device name": as_bytes(doc(device={"name": "x" + "-" * 1_000_000})),
    "long annotation key": as_bytes(doc(annotations={"a-." * 300_000: "x"})),
    "impossible character": b'kind: "\\Uffffffff"',
    "impossible YAML version": b"%YAML 1." + b"9" * 100_000 + b"\n--- {}",
}


TOO_DEEP = "it is nested more deeply than a CDI document can be"
MANY_ALIASED = f"its aliases repeat more values than devward examines ({MAX_ALIASED_NODES})"
MANY_VALUES = f"it has more values than devward examines ({MAX_NODES})"
#: The bound that must stop it, so that no other one does by chance and later.
STOPPED_BY = {
    "deep JSON": TOO_DEEP,
    "deep YAML": TOO_DEEP,
    "deep YAML in brackets": TOO_DEEP,
    "alias bomb": MANY_ALIASED,
    "wide aliases": MANY_ALIASED,
    "merge bomb": MANY_ALIASED,
    "self reference": "its anchor 'a' contains itself",
    "many scalars": MANY_VALUES,
    "many directives": f"it has more YAML directives than devward examines ({MAX_TAG_DIRECTIVES})",
}
#: Those that stop at a bound of ours, of which engines know nothing.
OUR_BOUNDS = {"alias bomb", "wide aliases", "merge bomb", "many scalars", "many directives"}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_input_ends_in_an_ordinary_error(name: str) -> None:
    """Fast is a matter of algorithms, which a hang shows; the error must be ours and its text short and printable."""
    data = HOSTILE[name][:MEBIBYTE]
    with pytest.raises(SpecError) as caught:
        load(data, "x.json")
    text = str(caught.value)
    assert isinstance(caught.value, NotExamined) == (name in OUR_BOUNDS)
    assert len(text) < 400
    assert text.isprintable()
    assert text == STOPPED_BY.get(name, text)
    kind_of(data, "x.json")
    told: tuple[str, ...]
    try:
        told = differences(data, DESIRED)
    except SpecError as error:
        told = (str(error),)
    assert told
    assert all(len(entry) < 400 for entry in told)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_input_ends_the_same_without_libyaml(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import yaml

    monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    assert len(refused(HOSTILE[name][:MEBIBYTE])) < 400


def test_an_element_that_is_null_is_refused() -> None:
    for name in ("deviceNodes", "hooks", "mounts", "netDevices"):
        assert refused(as_bytes(doc(edits={name: [None]})))


def test_aliases_are_fine_within_bounds() -> None:
    data = b"cdiVersion: 0.6.0\nkind: a/b\ndevices:\n- name: x\n  containerEdits: &e {env: [A=b]}\n- {name: z, containerEdits: *e}\n"
    assert load(data, "x.yaml").devices == ("a/b=x", "a/b=z")


#: A document that engines load, with room for more: of its parts each may go beyond a bound of ours.
LOADABLE = b"cdiVersion: 0.6.0\nkind: a/b\ndevices: [{name: x, containerEdits: {env: [A=b]}}]\n"


@pytest.mark.parametrize(
    ("within", "beyond", "told"),
    [
        (
            LOADABLE + b"containerEdits: {env: [&a A=b" + b", *a" * MAX_ALIASED_NODES + b"]}\n",
            LOADABLE + b"containerEdits: {env: [&a A=b" + b", *a" * (MAX_ALIASED_NODES + 1) + b"]}\n",
            MANY_ALIASED,
        ),
        (
            LOADABLE + b"containerEdits: {env: [" + b"A=b, " * (MAX_NODES - 100) + b"]}\n",
            LOADABLE + b"containerEdits: {env: [" + b"A=b, " * MAX_NODES + b"]}\n",
            MANY_VALUES,
        ),
        (
            b"".join(b"%%TAG !a%d! b\n" % i for i in range(MAX_TAG_DIRECTIVES)) + b"---\n" + LOADABLE,
            b"".join(b"%%TAG !a%d! b\n" % i for i in range(MAX_TAG_DIRECTIVES + 1)) + b"---\n" + LOADABLE,
            f"it has more YAML directives than devward examines ({MAX_TAG_DIRECTIVES})",
        ),
        (
            LOADABLE + b"annotations: {" + b"<<: {" * (MAX_DEPTH - 2) + b"a: b" + b"}" * (MAX_DEPTH - 1) + b"\n",
            LOADABLE + b"annotations: {" + b"<<: {" * (MAX_DEPTH - 1) + b"a: b" + b"}" * MAX_DEPTH + b"\n",
            f"its merges (<<) are nested deeper than devward examines ({MAX_DEPTH})",
        ),
        (
            as_bytes(doc(kind="a/" + "b" * 1000)),
            as_bytes(doc(kind="a/" + "b" * (MAX_NAMES // 2), devices=[{**doc()["devices"][0], "name": name} for name in "xyz"])),
            f"its device names are longer together than devward examines ({MAX_NAMES})",
        ),
    ],
    ids=["aliases", "values", "directives", "merges", "names"],
)
def test_what_engines_may_load_beyond_our_bounds_is_not_said_to_be_refused(within: bytes, beyond: bytes, told: str) -> None:
    """Engines know none of these bounds: such a document may define our device, and counts as one that could not be read."""
    assert load(within, "x.yaml").devices
    with pytest.raises(NotExamined) as caught:
        load(beyond, "x.yaml")
    assert str(caught.value) == told


@pytest.mark.parametrize("deep", [b"[" * MAX_DEPTH + b"]" * MAX_DEPTH, b"{a: " * MAX_DEPTH + b"x" + b"}" * MAX_DEPTH])
def test_depth_alone_is_a_defect_that_engines_see_too(deep: bytes) -> None:
    """No struct of the reference holds anything so deep, unknown keys are refused, and annotations are texts."""
    for key in (b"annotations", b"unknown", b"devices"):
        with pytest.raises(SpecError) as caught:
            load(b"cdiVersion: 0.6.0\nkind: a/b\n" + key + b": " + deep, "x.yaml")
        assert not isinstance(caught.value, NotExamined)
        assert str(caught.value) == TOO_DEEP


def test_remarks_are_few_however_many_a_document_earns() -> None:
    annotations = {f"-{number}": "x" for number in range(1000)}
    assert len(load(as_bytes(doc(annotations=annotations)), "x.json").remarks) == MAX_REMARKS


def test_plain_only_spares_the_slow_way() -> None:
    assert load(as_bytes(doc()), "x.json", plain_only=True).devices == ("example.com/thing=one",)
    with pytest.raises(NotPlain):
        load(LOADABLE, "x.yaml", plain_only=True)
    with pytest.raises(SpecError) as caught:
        load(b'{"kind": 5}', "x.json", plain_only=True)
    assert not isinstance(caught.value, NotExamined)


@settings(PROPERTY, max_examples=300)
@given(st.binary(max_size=80))
def test_any_bytes_give_a_verdict(data: bytes) -> None:
    assert verdict_on(data)[1].isprintable()
    kind_of(data, "x.json")


@settings(PROPERTY, max_examples=300)
@given(st.text(alphabet="{}[]:,\"'\\#&*!|>%@-? \t\n~<.0123456789abkindy", max_size=80))
def test_any_notation_gives_a_verdict(text: str) -> None:
    assert verdict_on(text.encode(), "x.yaml")[1].isprintable()


# --- PyYAML ----------------------------------------------------------------------------------------------------------
def without_yaml(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *rest: Any, **named: Any) -> Any:
        if name == "yaml":
            raise ImportError(name)
        return real(name, *rest, **named)

    monkeypatch.delitem(sys.modules, "yaml", raising=False)
    monkeypatch.setattr(builtins, "__import__", refuse)


def test_without_pyyaml_only_yaml_is_not_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    without_yaml(monkeypatch)
    assert load(as_bytes(doc()), "x.json").devices == ("example.com/thing=one",)
    with pytest.raises(NotExamined, match="PyYAML"):
        load(b"kind: a/b", "x.yaml")
    for data in (as_bytes({"kind": 5}), b'{"kind": 1, "kind": 2}', b'{"kind": "a\\/b"}', b""):
        with pytest.raises(SpecError) as caught:
            load(data, "x.json")
        assert not isinstance(caught.value, NotExamined)
    assert kind_of(b"kind: a/b", "x.yaml") == "a/b"


def test_without_libyaml_long_yaml_is_not_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    import yaml

    monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    with pytest.raises(NotExamined):
        load(b"# " + b"x" * document_module.MAX_WITHOUT_LIBYAML, "x.yaml")


@pytest.mark.parametrize("verdict", [entry for entry in VERDICTS if len(entry["text"]) < document_module.MAX_WITHOUT_LIBYAML])
def test_the_verdict_is_the_same_without_libyaml(verdict: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    import yaml

    monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    loaded, error = verdict_on(verdict["text"].encode(), "f" + verdict["ext"])
    assert (loaded is not None, list(loaded.devices if loaded else ())) == (verdict["accepted"], verdict["devices"]), error


def test_json_alone_imports_no_yaml() -> None:
    source = str(Path(document_module.__file__).parents[2])
    program = (
        f"import sys; sys.path.insert(0, {source!r})\n"
        "from devward.cdi import spec\nfrom devward.model import DeviceKind\n"
        "spec.load(spec.render_hypervisor([DeviceKind.KVM], uid=0, gid=0), 'x.json')\n"
        "raise SystemExit('yaml' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0


# --- kind ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (as_bytes(doc()), "example.com/thing"),
        (b"kind: example.com/thing\n", "example.com/thing"),
        (b'{"Kind": "example.com/thing"}', "example.com/thing"),
        (as_bytes({"kind": "not a kind"}), "not a kind"),
        (as_bytes(doc(foo=1)), "example.com/thing"),
        (as_bytes(doc())[:60], "example.com/thing"),
        (b'{"kind": "a.com/b", "kind": "a.com/b"}', "a.com/b"),
        (b"kind: a.com/b\n\tx: [", "a.com/b"),
        (b'{"cdiVersion": "0.6.0", "mankind": "a.com/b", ', None),
        (b"{}", None),
        (b'{"kind": 5}', None),
        (b'{"kind": null}', None),
        (b"[]", None),
        (b"", None),
        (b"\xff\xff", None),
        (b"{", None),
    ],
)
def test_the_kind_is_told_as_far_as_it_can_be(data: bytes, kind: str | None) -> None:
    assert kind_of(data, "x.json") == kind


# --- the document of devward -----------------------------------------------------------------------------------------
def test_the_document_is_canonical() -> None:
    rendered = render_hypervisor([DeviceKind.MSHV, DeviceKind.KVM], uid=1, gid=4294967295)
    assert (
        rendered
        == b"""{
  "cdiVersion": "0.3.0",
  "kind": "hyperlight.dev/hypervisor",
  "devices": [
    {
      "name": "kvm",
      "containerEdits": {
        "deviceNodes": [
          {
            "path": "/dev/kvm",
            "type": "c",
            "permissions": "rw",
            "uid": 1,
            "gid": 4294967295
          }
        ],
        "env": [
          "HYPERLIGHT_HYPERVISOR=kvm",
          "HYPERLIGHT_DEVICE_PATH=/dev/kvm"
        ]
      }
    },
    {
      "name": "mshv",
      "containerEdits": {
        "deviceNodes": [
          {
            "path": "/dev/mshv",
            "type": "c",
            "permissions": "rw",
            "uid": 1,
            "gid": 4294967295
          }
        ],
        "env": [
          "HYPERLIGHT_HYPERVISOR=mshv",
          "HYPERLIGHT_DEVICE_PATH=/dev/mshv"
        ]
      }
    }
  ]
}
"""
    )
    assert rendered == render_hypervisor([DeviceKind.KVM, DeviceKind.MSHV], uid=1, gid=4294967295)
    loaded = load(rendered, "x.json")
    assert loaded.devices == (KVM, "hyperlight.dev/hypervisor=mshv")
    assert loaded.version == loaded.minimum_version == "0.3.0"
    assert loaded.remarks == ()


@pytest.mark.parametrize(
    ("kinds", "uid", "gid"),
    [
        ([], 0, 0),
        ([DeviceKind.KVM, DeviceKind.KVM], 0, 0),
        ([DeviceKind.KVM], -1, 0),
        ([DeviceKind.KVM], 0, 4294967296),
    ],
)
def test_a_document_that_engines_would_refuse_is_not_rendered(kinds: list[DeviceKind], uid: int, gid: int) -> None:
    """R5: 4294967296 makes every allocation fail as unresolvable."""
    with pytest.raises(ValueError, match=r"at least one device|must be between"):
        render_hypervisor(kinds, uid=uid, gid=gid)


# --- differences (R4) ------------------------------------------------------------------------------------------------
def changed(change: Callable[[dict[str, Any]], object]) -> bytes:
    document = json.loads(DESIRED)
    change(document)
    return as_bytes(document)


def node(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = document["devices"][0]["containerEdits"]["deviceNodes"][0]
    return found


def edits(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = document["devices"][0]["containerEdits"]
    return found


def test_formatting_and_order_are_no_difference() -> None:
    assert differences(DESIRED, DESIRED) == ()
    assert differences(json.dumps(json.loads(DESIRED), sort_keys=True).encode(), DESIRED) == ()
    assert differences(b"\n " + json.dumps(json.loads(DESIRED), indent=7).encode() + b"\n\n", DESIRED) == ()
    assert differences(changed(lambda document: document["devices"].reverse()), DESIRED) == ()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda d: d.update(kind="a.com/b"), "kind is 'a.com/b', should be 'hyperlight.dev/hypervisor'"),
        (lambda d: d.update(cdiVersion="0.6.0"), "cdiVersion is '0.6.0', should be '0.3.0'"),
        (lambda d: d.update(containerEdits={}), "unexpected key 'containerEdits'"),
        (lambda d: d.update(annotations={"a": "b"}), "unexpected key 'annotations'"),
        (lambda d: d.pop("cdiVersion"), "cdiVersion is missing"),
        (lambda d: d.pop("devices"), "devices is missing"),
        (lambda d: d.update(devices={}), "devices is an object of 0 keys, should be a list of 2"),
        (lambda d: d["devices"].append(5), "devices has 3 entries, should have 2"),
        (lambda d: d["devices"].pop(), "device mshv is missing"),
        (lambda d: d["devices"].append({"name": "x"}), "unexpected device 'x'"),
        (lambda d: d["devices"].append(d["devices"][0]), "device kvm is defined twice"),
        (lambda d: d["devices"][0].update(name="kvm2"), "unexpected device 'kvm2'"),
        (lambda d: d["devices"][0].update(annotations={}), "unexpected key 'annotations' in device kvm"),
        (lambda d: node(d).update(path="/dev/null"), "device kvm: path is '/dev/null', should be '/dev/kvm'"),
        (lambda d: node(d).update(permissions="rwm"), "device kvm: permissions is 'rwm', should be 'rw'"),
        (lambda d: node(d).update(uid=0), "device kvm: uid is 0, should be 65534"),
        (lambda d: node(d).update(uid=65534.0), "device kvm: uid is 65534.0, should be 65534"),
        (lambda d: node(d).update(gid="65534"), "device kvm: gid is '65534', should be 65534"),
        (lambda d: node(d).update(gid=None), "device kvm: gid is null, should be 65534"),
        (lambda d: node(d).update(uid=True), "device kvm: uid is true, should be 65534"),
        (lambda d: node(d).pop("uid"), "device kvm: uid is missing"),
        (lambda d: node(d).update(major=10), "unexpected key 'major' in deviceNodes[0] of device kvm"),
        (lambda d: edits(d).update(hooks=[]), "unexpected key 'hooks' in containerEdits of device kvm"),
        (lambda d: edits(d).update(mounts=[{"hostPath": "/"}]), "unexpected key 'mounts' in containerEdits of device kvm"),
        (lambda d: edits(d)["env"].append("LD_PRELOAD=x"), "device kvm: env has 3 entries, should have 2"),
        (
            lambda d: edits(d)["env"].reverse(),
            "device kvm: env[0] is 'HYPERLIGHT_DEVICE_PATH=/dev/kvm', should be 'HYPERLIGHT_HYPERVISOR=kvm'",
        ),
        (lambda d: edits(d)["deviceNodes"].append(node(d)), "device kvm: deviceNodes has 2 entries, should have 1"),
        (lambda d: edits(d).update(env="x"), "device kvm: env is 'x', should be a list of 2"),
    ],
)
def test_any_difference_in_a_parsed_value_counts(change: Callable[[dict[str, Any]], object], told: str) -> None:
    """R4: kind, device name, path, permissions, uid, gid or additional container edits; here everything else too."""
    assert told in differences(changed(change), DESIRED)


def paths_into(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(below for key, member in items for below in paths_into(member, (*path, key)))]


@settings(PROPERTY)
@given(
    st.sampled_from(paths_into(json.loads(DESIRED))),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=5,
    ),
)
def test_no_other_value_anywhere_goes_unnoticed(path: tuple[str | int, ...], value: object) -> None:
    document: Any = json.loads(DESIRED)
    holder = {"": document}
    where: Any = holder
    last: str | int = ""
    for step in path:
        where, last = where[last], step
    before = json.dumps(where[last])
    where[last] = value
    if json.dumps(value) != before:
        told = differences(as_bytes(holder[""]), DESIRED)
        assert told
        assert all(entry.isprintable() and len(entry) < 400 for entry in told)


def test_foreign_text_is_escaped_and_cut() -> None:
    def change(document: dict[str, Any]) -> None:
        document["\x1b[2J\n"] = 1
        node(document)["path"] = "/dev/\u202ex\n" + "y" * 10_000
        node(document)["type"] = "\ud800"

    told = differences(changed(change), DESIRED)
    assert len(told) == 3
    assert all(entry.isprintable() and len(entry) < 200 for entry in told)


def test_many_differences_are_counted() -> None:
    told = differences(changed(lambda document: document.update({f"k{index}": 1 for index in range(1000)})), DESIRED)
    assert len(told) == 21
    assert told[-1] == "and 980 more"


def test_a_deep_or_huge_value_is_told_briefly() -> None:
    deep: Any = 1
    for _ in range(400):
        deep = [deep]
    assert differences(changed(lambda document: document.update(kind=deep)), DESIRED) == (
        "kind is a list of 1, should be 'hyperlight.dev/hypervisor'",
    )
    assert differences(changed(lambda document: node(document).update(uid=10**4000)), DESIRED) == (
        "device kvm: uid is a huge number, should be 65534",
    )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        DESIRED[:-10],
        b"\xef\xbb\xbf" + DESIRED,
        b"// comment\n" + DESIRED,
        b"# comment\n" + DESIRED,
        DESIRED + b"{}",
        DESIRED + b"\0",
        DESIRED.rstrip()[:-1] + b",}",
        DESIRED.replace(b'"kind"', b'"kind": 1, "kind"'),
        DESIRED.replace(b"65534", b"NaN"),
        DESIRED.replace(b"65534", b"9" * 5000),
        DESIRED.replace(b"kvm", b"k\xffm"),
        b"kind: hyperlight.dev/hypervisor\n",
        b"[" * 100_000,
    ],
)
def test_what_is_no_strict_json_is_malformed(data: bytes) -> None:
    """Our own file has no excuse for what engines let pass."""
    with pytest.raises(SpecError) as caught:
        differences(data, DESIRED)
    assert str(caught.value).isprintable()
