"""Our ids are transformers' ids, from many threads at once and without its warnings."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as RustTokenizer

from swift_backend.errors import InvalidRequest, ModelLoadError
from swift_backend.model.checkpoint import resolve_model
from swift_backend.text.tokenizer import Tokenizer

TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "[{{ m['role'] }}]{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)


def save(directory: Path, template: str | None = TEMPLATE) -> Path:
    """A byte-level tokenizer with BOS, EOS, one more added token, and a context of 8 tokens."""
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    rust = RustTokenizer(models.BPE(vocab={token: i for i, token in enumerate(alphabet)}, merges=[]))
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    rust.decoder = decoders.ByteLevel()
    rust.add_special_tokens([AddedToken("<s>"), AddedToken("</s>")])
    rust.add_tokens([AddedToken("<think>")])
    rust.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 256)])
    rust.enable_truncation(4)
    rust.enable_padding(length=16, pad_id=257, pad_token="</s>")
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=rust, bos_token="<s>", eos_token="</s>", model_max_length=8, chat_template=template
    )
    wrapped.save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> Tokenizer:
    return Tokenizer.load(directory)


@pytest.mark.parametrize("text", ["", "Hello", " two  spaces ", "日本 😀 e\u0301", "<s>raw</s> <think>", "long " * 20])
def test_the_ids_are_those_of_transformers(tokenizer: Tokenizer, directory: Path, text: str) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(directory)
    assert tokenizer.encode(text) == theirs(text, verbose=False, truncation=False, padding=False)["input_ids"]
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == "<s>" + text


def test_special_tokens(tokenizer: Tokenizer) -> None:
    assert tokenizer.special_ids == {256, 257}
    assert tokenizer.vocab_size == 259
    assert tokenizer.encode("<think>")[-1] == 258
    assert tokenizer.encode("</s>", add_special_tokens=False) == [257]
    assert tokenizer.decode([256, 258, 257]) == "<think>"
    assert tokenizer.decode([256, 258, 257], skip_special_tokens=False) == "<s><think></s>"


def test_text_is_never_tidied(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode("a , b do n't .")) == "a , b do n't ."


def test_ids_beyond_the_vocabulary_give_nothing(tokenizer: Tokenizer) -> None:
    """A model's head is often padded to a round number of rows."""
    assert tokenizer.decode([*tokenizer.encode("a"), 5000]) == "a"


def test_a_long_prompt_is_neither_cut_nor_warned_about(tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture) -> None:
    assert len(tokenizer.encode("x" * 100)) == 101
    assert caplog.records == []


def test_chat(tokenizer: Tokenizer) -> None:
    messages = [{"role": "user", "content": "Hi </s>"}]
    assert tokenizer.has_chat_template
    assert tokenizer.render_chat(messages) == "[user]Hi </s>[assistant]"
    assert tokenizer.decode(tokenizer.encode_chat(messages)) == "[user]Hi </s>[assistant]"


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "messages: must not be empty"),
        ([{"role": "user"}], "messages: message 0 needs a string content, got None"),
        ([{"role": "user", "content": "a"}, {"role": 3, "content": "b"}], "messages: message 1 needs a string role"),
        (["hi"], "messages: message 0 must be an object with role and content, got 'hi'"),
        ([{"role": "user", "content": [{"type": "text", "text": "a"}]}], "message 0 needs a string content, got [{"),
        ([{"role": "user", "content": "\ud83d"}], "messages: the content of message 0 holds half a surrogate pair"),
        ([{"role": "system", "content": "a"}], "messages: the model's chat template refuses them: no system role"),
    ],
)
def test_bad_messages(tokenizer: Tokenizer, messages: list[dict[str, str]], message: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        tokenizer.encode_chat(messages)
    assert raised.value.field == "messages"
    assert message.removeprefix("messages: ") in str(raised.value)


def test_no_chat_template(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(save(tmp_path, template=None))
    assert not tokenizer.has_chat_template
    with pytest.raises(InvalidRequest, match="this model has no chat template; use text_input instead"):
        tokenizer.encode_chat([{"role": "user", "content": "Hi"}])


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ messages[0].name.first }}", "'dict object' has no attribute 'name'"),
        ("{{ 'a' + messages[0].name }}", "no attribute 'name'"),
        ("{{ messages[0].content + 1 }}", "can only concatenate str"),
        ("{{ 1 // (messages|length - 1) }}", "zero"),
        ("{{ messages[0].content.index('x') }}", "substring not found"),
        ("{{ messages[0].content.encode('utf-8').decode('utf-16') }}", "codec"),
        ("{{ '%d' % messages[0].content }}", "a real number is required"),
    ],
)
def test_a_template_that_fails_is_the_fault_of_the_messages(tmp_path: Path, template: str, reason: str) -> None:
    tokenizer = Tokenizer.load(save(tmp_path, template=template))
    with pytest.raises(InvalidRequest, match="the model's chat template refuses them: ") as raised:
        tokenizer.encode_chat([{"role": "user", "content": "Hey"}])
    assert reason in str(raised.value)


def test_many_threads(tokenizer: Tokenizer) -> None:
    texts = [f"{number} " * (number % 7) for number in range(200)]
    alone = [tokenizer.encode(text) for text in texts]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(tokenizer.encode, texts)) == alone
        assert list(pool.map(tokenizer.decode, alone)) == texts


@pytest.mark.parametrize("files", [{}, {"tokenizer.json": "{"}, {"tokenizer.json": "{}", "config.json": "{}"}])
def test_a_directory_without_tokenizer_is_refused(tmp_path: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(ModelLoadError, match=r"The tokenizer in .* cannot be loaded") as raised:
        Tokenizer.load(tmp_path)
    assert "\n" not in str(raised.value)


@pytest.mark.model
def test_the_default_model() -> None:
    """Ids checked against llama.cpp's tokenizer for the same file."""
    tokenizer = Tokenizer.load(resolve_model(None, "float32"))
    assert tokenizer.encode("x =  42") == [104, 446, 256, 36, 34]
    chat = tokenizer.encode_chat([{"role": "user", "content": "Hi"}])
    assert chat[-10:] == [1, 4093, 198, 26843, 2, 198, 1, 520, 9531, 198]
    assert (tokenizer.vocab_size, tokenizer.special_ids) == (49152, frozenset(range(17)))
