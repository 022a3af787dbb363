"""Models that the tests run on: tiny random ones made here, and the default model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
TINY_VOCABULARY = 64
CHAT_TEMPLATE = "{% for message in messages %}{{ message.content }} {% endfor %}"
ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3")

SMALL = {
    "vocab_size": TINY_VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 7,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
GRANITE = {
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.3,
    "residual_multiplier": 0.7,
    "logits_scaling": 2.0,
    "tie_word_embeddings": True,
}
HALF_A_HEAD = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
GEMMA = {"head_dim": 16, "query_pre_attn_scalar": 10, "sliding_window": 12, "final_logit_softcapping": 3.0}
GEMMA3_ROPE = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 100000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
}


def tiny_config(architecture: str, **changes: Any) -> Any:
    """A transformers config of a few thousand weights, with what is special about the architecture switched on."""
    import transformers

    special: dict[str, tuple[str, dict[str, Any]]] = {
        "llama": ("LlamaConfig", {"rope_parameters": LLAMA3_ROPE, "tie_word_embeddings": True}),
        "mistral": ("MistralConfig", {"sliding_window": 12, "head_dim": 8}),
        "qwen2": ("Qwen2Config", {"tie_word_embeddings": False}),
        "qwen3": ("Qwen3Config", {"head_dim": 16}),
        "granite": ("GraniteConfig", GRANITE),
        "olmo2": ("Olmo2Config", {}),
        "smollm3": ("SmolLM3Config", {"no_rope_layer_interval": 3}),
        "phi3": ("Phi3Config", {"sliding_window": 12, "rope_parameters": HALF_A_HEAD}),
        "gemma2": ("Gemma2Config", {**GEMMA, "attn_logit_softcapping": 2.0}),
        "gemma3_text": ("Gemma3TextConfig", {**GEMMA, "sliding_window_pattern": 3, "rope_parameters": GEMMA3_ROPE}),
        "stablelm": ("StableLmConfig", {"use_qkv_bias": True, "qk_layernorm": True}),
        "gpt_neox": ("GPTNeoXConfig", {"rope_parameters": HALF_A_HEAD}),
    }
    name, extra = special[architecture]
    return getattr(transformers, name)(**{**SMALL, **extra, **changes})


def save_tiny_model(directory: Path, config: Any, seed: int = 0, *, draw_norms: bool = False) -> Path:
    """Write a random model and a word-level tokenizer (word "w7" is id 7) as a Hugging Face directory.

    draw_norms: the norms' weights are random, too, and not those that change nothing.
    """
    import transformers

    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):  # transformers starts biases at zero, which would test nothing
            torch.nn.init.normal_(parameter, std=0.2)
        elif draw_norms and parameter.ndim == 1:
            parameter.data += 0.2 * torch.randn_like(parameter)
    model.save_pretrained(directory)
    save_word_tokenizer(directory, config.vocab_size)
    return directory


def change_config(directory: Path, **changes: Any) -> Path:
    """Overwrite fields of a saved model's config.json, as a stranger's file may have them."""
    file = directory / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    return directory


def save_word_tokenizer(directory: Path, vocab_size: int) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(vocab_size)}, unk_token="w2"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    fast = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w1", unk_token="w2")
    fast.save_pretrained(directory)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """tiny_model("llama") is the directory of a random model of that architecture, made once."""
    made: dict[str, Path] = {}

    def get(architecture: str) -> Path:
        if architecture not in made:
            directory = tmp_path_factory.mktemp(architecture)
            made[architecture] = save_tiny_model(directory, tiny_config(architecture))
        return made[architecture]

    return get


@pytest.fixture(scope="session")
def smollm2_float32() -> Path:
    """The default model in float32, converted once per machine."""
    from swift_backend.model.checkpoint import resolve_model

    return resolve_model(None, "float32")


@pytest.fixture(scope="session")
def shared_prompts() -> list[dict[str, Any]]:
    """Rows of every dataset in ../shared/data, round robin over the files."""
    files = sorted(SHARED_DATA.glob("*.jsonl"))
    if not files:
        pytest.skip("../shared/data is not there; it holds the prompts")
    columns = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
    return [row for rows in zip(*columns, strict=False) for row in rows]


@pytest.fixture(scope="session")
def lasting_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For servers: a context that a stream takes minutes to fill, and a chat template that joins the contents."""
    config = tiny_config("llama", max_position_embeddings=32768)
    directory = save_tiny_model(tmp_path_factory.mktemp("lasting"), config)
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return directory


@pytest.fixture(scope="session")
def lasting_environment(lasting_model: Path) -> dict[str, str]:
    """For servers of that model."""
    options = {"MODEL": str(lasting_model), "DTYPE": "float32", "DEBUG": "true", "KV_CACHE_TOKENS": "200000"}
    return {f"SWIFT_{name}": value for name, value in options.items()}


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What engines learn of layer sets, and measure, stays out of the user's cache; converted models are shared.

    What is measured is kept, though tests run side by side.
    """
    from swift_backend.config import default_cache_dir
    from swift_backend.speculation import cost_store

    shared, own = default_cache_dir(), tmp_path_factory.mktemp("cache")
    (shared / "models").mkdir(parents=True, exist_ok=True)
    for entry in shared.iterdir():
        if entry.name not in ("costs", "pools"):
            (own / entry.name).symlink_to(entry)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SWIFT_CACHE_DIR", str(own))
        patch.setattr(cost_store, "interruptions", lambda: 0)
        yield own


@pytest.fixture(autouse=True)
def own_pools(own_cache: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test starts from what another one's engine learnt, which may be written while the other one is running."""
    (own_cache / "costs").mkdir(exist_ok=True)
    own = tmp_path_factory.mktemp("cache")
    for entry in own_cache.iterdir():
        if entry.name != "pools":  # of fixtures that outlive a test
            (own / entry.name).symlink_to(entry)
    monkeypatch.setenv("SWIFT_CACHE_DIR", str(own))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Waking a second thread costs more than a tiny model's whole pass; real models keep all cores."""
    threads = torch.get_num_threads()
    if not item.get_closest_marker("model"):
        torch.set_num_threads(1)
    try:
        return (yield)
    finally:
        torch.set_num_threads(threads)
