"""A tensor is what its file says, or the error says which one is not and where."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from swift_backend.errors import ModelLoadError
from swift_backend.model.weights import Weights

A = torch.arange(6, dtype=torch.float32).reshape(2, 3)
B = torch.tensor([1.5, -2.0], dtype=torch.bfloat16)


def test_one_safetensors_file(tmp_path: Path) -> None:
    save_file({"a": A, "b": B}, tmp_path / "model.safetensors")
    save_file({"a": A + 1}, tmp_path / "another.safetensors")
    weights = Weights.open(tmp_path)
    assert torch.equal(weights.get("a", (2, 3)), A)
    assert weights.get("b", (2,)).dtype == torch.bfloat16
    assert (weights.has("a"), weights.has("c")) == (True, False)


def test_shards_named_by_the_index(tmp_path: Path) -> None:
    save_file({"a": A}, tmp_path / "model-00001-of-00002.safetensors")
    save_file({"b": B}, tmp_path / "model-00002-of-00002.safetensors")
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    weights = Weights.open(tmp_path)
    assert torch.equal(weights.get("a", (2, 3)), A)
    assert torch.equal(weights.get("b", (2,)), B)


def test_shards_without_index(tmp_path: Path) -> None:
    save_file({"a": A}, tmp_path / "part1.safetensors")
    save_file({"b": B}, tmp_path / "part2.safetensors")
    assert torch.equal(Weights.open(tmp_path).get("b", (2,)), B)


def test_pickled_weights(tmp_path: Path) -> None:
    torch.save({"a": A, "b": B}, tmp_path / "pytorch_model.bin")
    assert torch.equal(Weights.open(tmp_path).get("a", (2, 3)), A)


def test_safetensors_win_over_pickles(tmp_path: Path) -> None:
    save_file({"a": A}, tmp_path / "model.safetensors")
    (tmp_path / "pytorch_model.bin").write_bytes(b"never read")
    assert torch.equal(Weights.open(tmp_path).get("a", (2, 3)), A)


def test_pickled_code_is_not_run(tmp_path: Path) -> None:
    torch.save({"a": Path("x")}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelLoadError, match=r"pytorch_model\.bin is missing, damaged"):
        Weights.open(tmp_path)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    save_file({"a": A}, tmp_path / "model.safetensors")
    with pytest.raises(ModelLoadError) as raised:
        Weights.open(tmp_path).get("model.norm.weight", (3,))
    assert str(raised.value) == f"Tensor model.norm.weight with shape [3] is not in the checkpoint {tmp_path}."


def test_a_wrong_shape_is_named(tmp_path: Path) -> None:
    save_file({"a": A}, tmp_path / "model.safetensors")
    with pytest.raises(ModelLoadError) as raised:
        Weights.open(tmp_path).get("a", (3, 2))
    assert str(raised.value) == f"Tensor a in {tmp_path / 'model.safetensors'} must have shape [3, 2], found [2, 3]."


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_a_quantised_tensor_is_refused(tmp_path: Path, dtype: torch.dtype) -> None:
    save_file({"a": torch.zeros(2).to(dtype)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelLoadError, match=f"must be of a 16 to 64 bit float, found {dtype}"):
        Weights.open(tmp_path).get("a", (2,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_is_none_is_refused(tmp_path: Path, dtype: torch.dtype, bad: float) -> None:
    tensor = torch.ones(40, 50, dtype=dtype)
    tensor[31, 7] = bad
    save_file({"a": A, "norm.weight": tensor}, tmp_path / "model.safetensors")
    weights = Weights.open(tmp_path)
    assert torch.equal(weights.get("a", (2, 3)), A)
    with pytest.raises(ModelLoadError) as raised:
        weights.get("norm.weight", (40, 50))
    file = tmp_path / "model.safetensors"
    assert str(raised.value) == f"Tensor norm.weight in {file} holds NaN or infinity; the file is damaged."


@pytest.mark.parametrize("largest", [torch.finfo(torch.float32).max, -torch.finfo(torch.float32).max])
def test_the_largest_numbers_are_no_infinity(tmp_path: Path, largest: float) -> None:
    save_file({"a": torch.full((2, 3), largest), "empty": torch.ones(0)}, tmp_path / "model.safetensors")
    assert Weights.open(tmp_path).get("a", (2, 3))[1, 2] == largest
    assert Weights.open(tmp_path).get("empty", (0,)).shape == (0,)


@pytest.mark.parametrize("num_bytes", [0, 5, 40, -1])
def test_a_cut_off_file_is_refused(tmp_path: Path, num_bytes: int) -> None:
    file = tmp_path / "model.safetensors"
    save_file({"a": A}, file)
    file.write_bytes(file.read_bytes()[:num_bytes])
    with pytest.raises(ModelLoadError, match=r"model\.safetensors is missing, damaged or cut off"):
        Weights.open(tmp_path)


@pytest.mark.parametrize("content", [b"", b"not a pickle", b"PK\x03\x04 cut"])
def test_a_damaged_pickle_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(content)
    with pytest.raises(ModelLoadError, match=r"pytorch_model\.bin is missing, damaged, cut off"):
        Weights.open(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([A, B], "must hold tensors by name, found a list"),
        (A, "must hold tensors by name, found a Tensor"),
        ({"a": A, "epoch": 3}, r"epoch in .*pytorch_model\.bin must be a tensor, found a int"),
        ({"state_dict": {"a": A}}, r"state_dict in .*pytorch_model\.bin must be a tensor, found a dict"),
    ],
)
def test_a_pickle_of_something_else_is_refused(tmp_path: Path, content: object, message: str) -> None:
    torch.save(content, tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelLoadError, match=message):
        Weights.open(tmp_path)


def test_a_sparse_tensor_is_refused(tmp_path: Path) -> None:
    torch.save({"a": A.to_sparse()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelLoadError, match=r"Tensor a in .* must be dense, found torch\.sparse_coo"):
        Weights.open(tmp_path).get("a", (2, 3))


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "gone.safetensors"}}')
    with pytest.raises(ModelLoadError, match=r"gone\.safetensors is missing"):
        Weights.open(tmp_path)


@pytest.mark.parametrize("content", ["{", "{}", "[]", '{"weight_map": 3}'])
def test_a_damaged_index_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(ModelLoadError, match=r"index\.json is not an index of weights"):
        Weights.open(tmp_path)


def test_a_directory_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"has no .*safetensors and no pytorch_model"):
        Weights.open(tmp_path)


def test_tensors_are_mapped_not_copied(tmp_path: Path) -> None:
    """Two reads of one file share memory, so opening a model of 10 GB costs no 10 GB."""
    save_file({"a": torch.zeros(1 << 20)}, tmp_path / "model.safetensors")
    weights = Weights.open(tmp_path)
    assert weights.get("a", (1 << 20,)).data_ptr() == weights.get("a", (1 << 20,)).data_ptr()
