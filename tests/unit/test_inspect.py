"""The picture of a prompt's sublayers: what is measured, and how it is shown."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console, RenderableType

from swift_backend import InvalidRequest, SwiftLLM
from swift_backend.inspect import Picture, layer_table, look, main, prompt_profile, summary
from swift_backend.speculation.cost_model import CostModel, RowCosts
from swift_backend.speculation.layer_set import LayerSet


def costs(milliseconds: float) -> RowCosts:
    return RowCosts((1, 4), (milliseconds / 1000, 2 * milliseconds / 1000))


PICTURE = Picture(
    title="[tiny], float32, a prompt of 9 tokens",
    sublayers=(0.91, 0.953, 0.5, 1.00001, -0.2, 0.77),
    layers=(0.9, 0.99, 0.3),
    layer_set=LayerSet(3, 0b1100),
    costs=CostModel(3, costs(2.0), costs(3.0), costs(4.0), costs(1.0), per_key=1e-5),
    context=100,
)


@pytest.fixture(scope="module")
def llm(tiny_model: Callable[[str], Path]) -> SwiftLLM:
    return SwiftLLM(tiny_model("llama"), "float32", kv_cache_tokens=128)


def shown(*renderables: RenderableType) -> list[str]:
    """The lines as a terminal of 80 columns shows them, without colours."""
    console = Console(file=StringIO(), width=80)
    console.print(*renderables)
    assert isinstance(console.file, StringIO)
    return [line.strip() for line in console.file.getvalue().splitlines()]


def test_a_row_for_each_layer() -> None:
    """Attention and MLP side by side; a bar is as long as the cosine, or empty below zero."""
    assert shown(layer_table(PICTURE)) == [
        "[tiny], float32, a prompt of 9 tokens",
        "layer   cos attention    cos               ms     MLP   cos               ms",
        "0 0.900      kept  0.910 █████████  3.000    kept 0.953 █████████▌ 3.000",
        "1 0.990   skipped  0.500 █████      3.000 skipped 1.000 ██████████ 3.000",
        "2 0.300      kept -0.200            3.000    kept 0.770 ███████▋   3.000",
        "cos: similarity of the hidden states before and after",
    ]


def test_sublayers_are_marked_one_by_one() -> None:
    odd = Picture("tiny", PICTURE.sublayers, PICTURE.layers, LayerSet(3, 0b100001), PICTURE.costs, 0)
    rows = shown(layer_table(odd))[2:5]
    assert [[word for word in row.split() if word in ("kept", "skipped")] for row in rows] == [
        ["skipped", "kept"],
        ["kept", "kept"],
        ["kept", "skipped"],
    ]
    assert [row.split()[-1] for row in rows] == ["3.000"] * 3


def test_where_attention_and_mlp_are_one_they_share_a_column() -> None:
    picture = replace(PICTURE, layer_set=LayerSet(3, 0b0100), parallel=True)
    assert shown(layer_table(picture))[1:5] == [
        "layer   cos attention and MLP    cos               ms",
        "0 0.900              kept  0.910 █████████  3.000",
        "1 0.990           skipped  0.500 █████      3.000",
        "2 0.300              kept -0.200            3.000",
    ]
    assert "skipped                               1 of 3 sublayers" in shown(summary(picture))


def test_a_model_whose_attention_and_mlp_are_one(tiny_model: Callable[[str], Path]) -> None:
    neox = SwiftLLM(tiny_model("gpt_neox"), "float32", kv_cache_tokens=128, skip_ratio=0.3)
    picture = look(neox, "w3 w4 w5 w6 w7")
    assert picture.parallel and picture.layer_set.skip_mask.bit_count() == 2
    assert picture.sublayers[1::2] == pytest.approx((1.0,) * 7)
    attention, nothing = picture.costs.sublayer_seconds(0)
    assert nothing < attention / 4


def test_what_the_choice_means() -> None:
    """A full pass: three layers of 2 + 1 + 3 ms, 4 for the head and 1 for the rest."""
    assert [" ".join(line.split()) for line in shown(summary(PICTURE))] == [
        "mask 0xc",
        "skipped 2 of 6 sublayers",
        "skipped share of the sublayers' time 33.3%",
        "full pass of one row 23.000 ms at a context of 100",
        "c: draft pass over full pass 0.739",
        "full pass of 2 rows 32.667 ms, 1.42 of one row's",
        "full pass of 4 rows 52.000 ms, 2.26 of one row's",
        "full pass of 8 rows 90.667 ms, 3.94 of one row's",
    ]


def test_nothing_skipped() -> None:
    nothing = Picture("tiny", PICTURE.sublayers, PICTURE.layers, LayerSet(3), PICTURE.costs, 100)
    lines = [" ".join(line.split()) for line in shown(summary(nothing))]
    assert lines[:3] == ["mask 0x0", "skipped 0 of 6 sublayers", "skipped share of the sublayers' time 0.0%"]
    assert "c: draft pass over full pass 1.000" in lines


def test_a_look_at_a_model(llm: SwiftLLM) -> None:
    """Seven layers, of which the two at each end are spared, and of the others the most similar is skipped."""
    picture = look(llm, "w5 w9 w33 w3 w44")
    assert picture.title.endswith(", float32, a prompt of 5 tokens")
    assert picture.context == 5
    assert len(picture.sublayers) == 14 and len(picture.layers) == 7
    best = max(range(2, 5), key=lambda layer: picture.layers[layer])
    assert picture.layer_set == LayerSet.skipping(7, [best])
    assert picture.costs.num_layers == 7 and picture.costs.seconds(1, 5) > 0
    assert llm.engine.runner.cache.tokens_used == 0


def test_the_engines_options_count(tiny_model: Callable[[str], Path]) -> None:
    llm = SwiftLLM(tiny_model("llama"), "float32", kv_cache_tokens=64, skip_ratio=0.6, protected_layers=1)
    assert len(look(llm, "w5 w9").layer_set.skipped_layers) == 4


def test_a_profile_is_that_of_the_whole_prompt(llm: SwiftLLM) -> None:
    """One more token changes it; the same prompt gives the same, whatever the cache held before."""
    runner = llm.engine.runner
    first = prompt_profile(runner, [5, 9, 17])
    longer = prompt_profile(runner, [5, 9, 17, 3])
    torch.testing.assert_close(prompt_profile(runner, [5, 9, 17]).values, first.values)
    assert not torch.allclose(longer.values, first.values)
    assert float(first.values.abs().max()) <= 1.00001


@pytest.mark.parametrize("prompt", ["", "  ", "\ud800"])
def test_a_prompt_without_tokens_is_refused(llm: SwiftLLM, prompt: str) -> None:
    with pytest.raises(InvalidRequest, match="prompt must be text that the model knows tokens for"):
        look(llm, prompt)


def test_a_token_that_the_model_does_not_have_is_refused(llm: SwiftLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tokenizer may know more than the model."""
    monkeypatch.setattr(type(llm.engine.tokenizer), "encode", lambda self, text: [5, 64])
    with pytest.raises(InvalidRequest, match="prompt must be text that the model knows tokens for"):
        look(llm, "w5 w64")


def test_a_prompt_that_is_too_long_is_refused(llm: SwiftLLM) -> None:
    with pytest.raises(InvalidRequest, match="prompt must be at most 128 tokens long, got 129"):
        look(llm, "w5 " * 129)
    assert look(llm, "w5 " * 128, context=7).context == 7


def test_the_command(
    tiny_model: Callable[[str], Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    arguments = ["--model", str(tiny_model("llama")), "--dtype", "float32"]
    assert main([*arguments, "--prompt", "w5 w9 w33", "--context", "50"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    layers = [words for words in lines if words[0].isdecimal()]
    assert [words[0] for words in layers] == [str(layer) for layer in range(7)]
    [skipped] = [int(words[0]) for words in layers if "skipped" in words]
    assert ["mask", hex(0b11 << 2 * skipped)] in lines
    assert any(words[-4:] == ["a", "context", "of", "50"] for words in lines)


def test_a_model_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["--model", str(tmp_path / "none.gguf")]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: The model ") and error.count("\n") == 1


@pytest.mark.parametrize("context", ["-1", "many"])
def test_a_context_that_is_none_is_refused_before_anything_is_loaded(
    capsys: pytest.CaptureFixture[str], context: str
) -> None:
    with pytest.raises(SystemExit):
        main(["--context", context])
    assert "--context" in capsys.readouterr().err


def test_the_standard_librarys_inspect_is_still_itself() -> None:
    assert inspect.signature(look).parameters.keys() == {"llm", "prompt", "context"}
