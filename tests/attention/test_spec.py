"""Names of mechanisms: parsing, canonical form, errors and the table."""

from typing import Any

import pytest

from asr.attention import MECHANISMS, build_mechanism, build_self_attention, mechanism_table, parse_name
from asr.attention.spec import number
from asr.attention.table import canonical, option_table
from asr.config.schema import Setting, accepted, settings, written
from asr.errors import UserError


def values_of(setting: Setting) -> list[Any]:
    """Return the smallest, the largest and the default value."""
    allowed = accepted(setting.field)
    if allowed.choices or setting.kind is bool:
        return list(allowed.choices or (False, True))
    return [
        int(allowed.minimum),
        int(allowed.maximum - (allowed.maximum - allowed.minimum) % allowed.step),
        setting.value,
    ]


def test_windows_are_symmetric_unless_the_name_says_otherwise() -> None:
    assert str(parse_name("local-08:right=8,chunk=1")) == "local-8"
    assert str(parse_name("local-8:global=2,chunk=4,right=0")) == "local-8:right=0,chunk=4,global=2"
    assert parse_name("local-8").arguments["right"] == 8
    rows = [row for row in option_table().splitlines() if row.startswith("| `right` | null |")]
    assert len(rows) == 1


def test_values_in_turn_are_a_grid() -> None:
    assert canonical(["full", "i-clustered-10/25:topk=8/16,grouping=hash/keys"]) == [
        "full",
        *(
            f"i-clustered-{clusters}:topk={top}{grouping}"
            for clusters in (10, 25)
            for top in (8, 16)
            for grouping in ("", ",grouping=keys")
        ),
    ]
    assert canonical(["full*3,local-8/16*2"]) == ["full*3,local-8*2", "full*3,local-16*2"]
    with pytest.raises(UserError, match=r"'iclustered-25' \(did you mean 'i-clustered-25'\?\): expected one"):
        parse_name("iclustered-25")
    with pytest.raises(UserError, match=r"'near25' \(did you mean 'near-25'\?\)"):  # not near-100
        parse_name("near25")
    with pytest.raises(UserError, match=r"'fulll' \(did you mean 'full'\?\)"):
        parse_name("fulll")
    with pytest.raises(UserError, match=r"expected a mechanism without frames=1,2\*, which is an option"):
        canonical(["near-25 frames=1,2*"])
    with pytest.raises(UserError, match="unknown attention 'i-clustered-x'"):
        canonical(["i-clustered-10/x"])


def test_every_option_survives_the_round_trip() -> None:
    for mechanism, row in MECHANISMS.items():
        size = number(row.options)
        heads = [f"{mechanism}-{value}" for value in values_of(size)] if size else [mechanism]
        for head in heads:
            for x in settings(row.options()):
                given = [f"{only.option}={written(only.values[0])}" for only, _ in x.conditions]
                for value in values_of(x) if not x.letter else ():
                    spec = parse_name(f"{head}:{','.join([*given, f'{x.key}={written(value)}'])}")
                    without = parse_name(f"{head}:{','.join(given)}" if given else head)
                    assert spec.mechanism == mechanism
                    stands_for = {"clustered:iterations=0": 10, "i-clustered:iterations=0": 10}
                    expected = stands_for.get(f"{mechanism}:{x.key}={value}", value)
                    assert spec.arguments[x.key] == expected
                    assert parse_name(str(spec)) == spec
                    assert (x.key in str(spec)) == (spec != without)


def test_canonical_names_order_options_and_drop_defaults() -> None:
    assert (
        str(parse_name("i-clustered-0100:bits=31,iterations=10,topk=16")) == "i-clustered-100:topk=16,bits=31"
    )
    assert str(parse_name("i-clustered-100:topk=32")) == "i-clustered-100"
    assert (
        str(parse_name("i-clustered-9:rank=4,iterations=0,grouping=keys"))
        == "i-clustered-9:grouping=keys,rank=4"
    )
    assert build_mechanism("lsh-2:chunk=32").name == "lsh-2"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fulll", "oracle-top-K"),
        ("clustered", "i-clustered-C"),
        ("clustered-", "unknown attention"),
        ("clustered-x", "unknown attention"),
        ("clustered-٣", "unknown attention"),
        ("", "unknown attention"),
        ("full-3", "unknown attention"),
        ("clustered-0", "clusters=0: expected a number 1 … 65536"),
        ("clustered-99999999999999999999", "expected a number 1 … 65536"),
        ("clustered-9:bits=64", "bits=64: expected a number 1 … 63"),
        ("clustered-9:bits=-1", "expected a number 1 … 63"),
        (
            "clustered-9:topk=3",
            "unknown option 'topk=3', expected grouping=hash | keys, bits=1 … 63, rank=0 … 256, "
            "iterations=0 … 1000, planes=fixed | layer | fresh, bias=true | false, center=true | false",
        ),
        ("clustered-9:grouping=key", "grouping=key: expected one of hash, keys"),
        ("clustered-9:rank=4", "rank=4: has no effect with grouping=hash, only with grouping=keys"),
        (
            "clustered-9:bits=4,grouping=keys",
            "bits=4: has no effect with grouping=keys, only with grouping=hash",
        ),
        (
            "clustered-9:grouping=keys,center=true",
            "center=true: has no effect with grouping=keys, only with grouping=hash",
        ),
        ("near-9:center=true", "center=true: has no effect with grouping=keys, only with grouping=hash"),
        (
            "clustered-9:bits=4:planes=layer",
            "expected options separated by commas, found 'bits=4:planes=layer'",
        ),
        ("clustered-9:", "unknown option ''"),
        ("clustered-9:bits", "unknown option 'bits'"),
        ("clustered-9:bits=3,bits=3", "given twice"),
        ("clustered-9:planes=new", "planes=new: expected one of fixed, layer, fresh"),
        ("i-clustered-9:bias=1", "bias=1: expected true or false"),
        ("clustered-9:grouping=keys,planes=fresh", "planes"),
        ("lsh-2:rounds=sum", "rounds=sum: expected one of merge, mean"),
        ("lsh-0", "hashes=0: expected a number 1 … 64"),
        ("lsh-2:buckets=7", "buckets=7: expected a number 2 … 65536 in steps of 2"),
        ("cast-8:assign=best", "assign=best: expected one of topk, single"),
        ("agglomerative-8:causal=2", "causal=2: expected true or false"),
        ("shared-full:x=1", "none is allowed"),
        ("local", "local-W"),
        ("local-65537", "window=65537: expected a number 0 … 65536"),
        ("local-8:right=-1", "right=-1: expected a number 0 … 65536"),
        ("local-8:chunk=0", "chunk=0: expected a number 1 … 65536"),
        ("local-8:global=-1", "global=-1: expected a number 0 … 65536"),
        ("local-8:first=1", "expected right=0 … 65536, chunk=1 … 65536, global=0 … 65536"),
        ("linear:causal=maybe", "causal=maybe: expected true or false"),
        ("summary:mean=1", "none is allowed"),
        ("hyper:tie=both", "tie=both: expected true or false"),
    ],
)
def test_errors_list_what_is_allowed(name: str, expected: str) -> None:
    with pytest.raises(UserError, match=r"(?s).*") as error:
        build_self_attention(name, 32, 4)
    message = str(error.value)
    assert expected in message
    assert repr(name) in message
    assert "\n" not in message


def test_table_lists_every_mechanism() -> None:
    table = mechanism_table().splitlines()
    assert len(table) == 2 + len(MECHANISMS)
    assert len({line.count("|") for line in table}) == 1
    row = next(line for line in table if "`i-clustered-C`" in line)
    assert "| yes |" in row
    assert (
        "| `topk` | 32 | 1 … 65536 | keys of each cluster with exact weights, K | `i-clustered-C`, `near-C` |"
        in option_table()
    )
