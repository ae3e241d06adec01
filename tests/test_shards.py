"""Shard files: what is written comes back, and damage is found and named."""

import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtkit.data.shards import VERSION, find_shards, id_dtype, open_shard, shard_name, write_shard
from mtkit.errors import ModelError

ROWS = st.lists(st.tuples(st.lists(st.integers(0, 65535), max_size=9), st.lists(st.integers(0, 65535), max_size=9)))


def write(path, pairs, dtype="uint16", lines=None, **facts):
    source, target = ([pair[side] for pair in pairs] for side in (0, 1))
    write_shard(
        path,
        np.array([number for row in source for number in row], dtype=dtype),
        np.array([number for row in target for number in row], dtype=dtype),
        np.array([len(row) for row in source], dtype=np.int64),
        np.array([len(row) for row in target], dtype=np.int64),
        np.array(lines if lines is not None else range(1, len(pairs) + 1), dtype=np.uint64),
        {"corpus": "c", **facts},
    )


@pytest.fixture
def path(tmp_path):
    pairs = [([5, 6, 7], [8]), ([9], [10, 11]), ([12, 13], [14, 15, 16])]
    write(tmp_path / "c-00000.shard", pairs, lines=[1, 3, 2**40])
    return tmp_path / "c-00000.shard"


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
@given(pairs=ROWS)
def test_pairs_come_back(tmp_path_factory, dtype, pairs):
    path = tmp_path_factory.mktemp("shard") / "x.shard"
    if dtype == "uint32":
        pairs = [([number + 70_000 for number in source], target) for source, target in pairs]
    write(path, pairs, dtype)
    shard = open_shard(path)
    assert [(shard.source(i).tolist(), shard.target(i).tolist()) for i in range(len(shard))] == pairs
    assert shard.source_lengths.tolist() == [len(source) for source, _ in pairs]
    assert shard.target_lengths.tolist() == [len(target) for _, target in pairs]
    blocks = [block.tolist() for block in shard.longer_lengths(2)]
    assert [length for block in blocks for length in block] == [max(map(len, pair)) for pair in pairs]
    assert all(1 <= len(block) <= 2 for block in blocks)
    assert shard.line_numbers.tolist() == list(range(1, len(pairs) + 1))
    assert shard.header["pairs"] == len(pairs)
    assert shard.header["dtype"] == shard.source_ids.dtype.name == dtype
    shard.verify()


def test_header_says_what_is_inside(path):
    header = open_shard(path).header
    expected = {
        "version": VERSION,
        "dtype": "uint16",
        "pairs": 3,
        "source_tokens": 6,
        "target_tokens": 6,
        "corpus": "c",
    }
    assert expected.items() <= header.items()


def test_arrays_are_aligned_read_only_and_little_endian(path):
    shard = open_shard(path)
    for array in (shard.source_ids, shard.target_ids, shard.source_offsets, shard.target_offsets, shard.line_numbers):
        assert array.ctypes.data % 64 == 0
        assert not array.flags.writeable
        assert array.dtype.newbyteorder("<") == array.dtype
    assert shard.line_numbers.tolist() == [1, 3, 2**40]
    assert np.array([5, 6, 7, 9, 12, 13], "<u2").tobytes() in path.read_bytes()


def test_equal_pairs_make_equal_bytes(tmp_path):
    for name in ("a", "b"):
        write(tmp_path / name, [([1], [2])])
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize(("size", "dtype"), [(16, "uint16"), (65_536, "uint16"), (65_537, "uint32")])
def test_ids_take_two_bytes_where_they_can(size, dtype):
    assert id_dtype(size) == dtype
    assert np.iinfo(dtype).max >= size - 1


def test_every_cut_and_every_addition_is_noticed(path):
    whole = path.read_bytes()
    for content in [*(whole[:length] for length in range(len(whole))), whole + b"\0"]:
        path.write_bytes(content)
        with pytest.raises(ModelError, match=r"c-00000\.shard.*\n.*mtkit binarize"):
            open_shard(path)


def test_every_changed_byte_of_the_arrays_is_noticed_on_demand(path):
    whole = path.read_bytes()
    shard = open_shard(path)
    begin = 16 + struct.unpack_from("<8sII", whole)[2]
    places: list[int] = []
    for array in (shard.source_ids, shard.target_ids, shard.source_offsets, shard.target_offsets, shard.line_numbers):
        begin += -begin % 64
        places += range(begin, begin + array.nbytes)
        begin += array.nbytes
    for place in places:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x41]) + whole[place + 1 :])
        with pytest.raises(ModelError, match=r"c-00000\.shard: .*damaged"):
            open_shard(path).verify()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a shard of mtkit, or is cut short"),
        (b"PK\x03\x04 some other file", "is not a shard"),
        (struct.pack("<8sII", b"MTKSHARD", VERSION + 1, 2) + b"{}", f"has format version {VERSION + 1}"),
        (struct.pack("<8sII", b"MTKSHARD", VERSION, 2) + b"{}", "disagree"),
        (struct.pack("<8sII", b"MTKSHARD", VERSION, 2) + b"[]", "header is damaged"),
        (struct.pack("<8sII", b"MTKSHARD", VERSION, 4) + b"\xff\xfe{}", "header is damaged"),
        (struct.pack("<8sII", b"MTKSHARD", VERSION, 99) + b"{}", "cut short inside its header"),
        (struct.pack("<8sII", b"MTKSHARD", VERSION, 2**32 - 1) + b"{}", "cut short inside its header"),
    ],
)
def test_foreign_files_and_newer_versions_are_refused_by_name_and_with_the_remedy(tmp_path, content, message):
    (tmp_path / "x.shard").write_bytes(content)
    with pytest.raises(ModelError) as caught:
        open_shard(tmp_path / "x.shard")
    assert "x.shard: " in caught.value.message
    assert message in caught.value.message
    assert "mtkit binarize RECIPE" in str(caught.value.hint)


@pytest.mark.parametrize(
    "change", [{"pairs": 2}, {"arrays": {}}, {"arrays": []}, {"content_sha256": 1}, {"pairs": "3"}]
)
def test_a_header_that_does_not_fit_the_arrays_is_refused(path, change):
    whole = path.read_bytes()
    length = struct.unpack_from("<8sII", whole)[2]
    header = json.loads(whole[16 : 16 + length]) | change
    text = json.dumps(header).encode()
    padded = text + b" " * ((length - len(text)) % 64)
    path.write_bytes(struct.pack("<8sII", b"MTKSHARD", VERSION, len(padded)) + padded + whole[16 + length :])
    with pytest.raises(ModelError, match=r"c-00000\.shard"):
        open_shard(path)


def test_a_missing_shard_is_refused_by_name(tmp_path):
    with pytest.raises(ModelError, match=r"x\.shard: the shard cannot be read \(No such file"):
        open_shard(tmp_path / "x.shard")


def test_shards_of_a_corpus_are_found_in_order_and_gaps_noticed(tmp_path):
    for name in ("a", "a-00000", "a.b"):
        for number in (0, 1, 2):
            (tmp_path / shard_name(name, number)).touch()
    assert [path.name for path in find_shards(tmp_path, "a")] == ["a-00000.shard", "a-00001.shard", "a-00002.shard"]
    assert find_shards(tmp_path, "a.b")[0].name == "a.b-00000.shard"
    (tmp_path / "a-00001.shard").unlink()
    with pytest.raises(ModelError, match=r"a-00001\.shard: no such shard"):
        find_shards(tmp_path, "a")
    with pytest.raises(ModelError, match=r"z-00000\.shard: no such shard"):
        find_shards(tmp_path / "nowhere", "z")
