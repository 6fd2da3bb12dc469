"""Train the tiny model until it repeats the demo's dialogues exactly, and check that it does."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from sglang_instrument.demo.chat import (
    CHAT_TEMPLATE,
    EOS,
    GENERATION_PROMPT,
    PAD,
    SPECIAL_TOKENS,
    encode,
    message_text,
)
from sglang_instrument.demo.problems import PROBLEMS, SYSTEM, transcript
from sglang_instrument.errors import InstrumentError

VOCABULARY: Final = 900
EPOCHS: Final = 150
LEARNING_RATE: Final = 7e-3
#: Below this loss the model is checked: each token must lead all others by this margin in logits.
LEARNED_LOSS: Final = 0.02
LEARNED_MARGIN: Final = 3.0
SEEDS: Final = (0, 1, 2)
IGNORED: Final = -100

#: Called with the completed share of the training, 0 to 1.
Progress = Callable[[float], None]


class ModelError(InstrumentError):
    """The tiny model did not learn its dialogues."""


def model_folder(parent: Path) -> Path:
    """Return the model's folder; its name is a hash of the dialogues and of this file."""
    sources = (Path(__file__), *(Path(__file__).with_name(f"{name}.py") for name in ("problems", "chat")))
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
    return parent / f"tiny-llama-{digest[:12]}"


def ensure_model(parent: Path, progress: Progress = lambda share: None) -> Path:
    """Return the folder of the trained model; build it below `parent` if it is missing.

    Two processes may build at the same time: each uses its own folder, and the first to finish wins.

    Raises:
        ModelError: The model did not learn its dialogues with any seed.
    """
    folder = model_folder(parent)
    if folder.is_dir():
        return folder
    parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix="building-", dir=parent))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about libraries that the demo does not use
            _build(building, progress)
        building.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return folder


def _build(folder: Path, progress: Progress) -> None:
    from transformers.utils import logging

    logging.disable_progress_bar()  # it would overwrite the demo's bar
    tokenizer = make_tokenizer()
    batches = _batches(tokenizer)
    with _one_thread():
        for seed in SEEDS:
            model = _train(tokenizer, batches, seed, progress)
            if _knows(model, batches):
                tokenizer.save_pretrained(folder)
                model.save_pretrained(folder)
                return
    raise ModelError(f"the demo's model did not learn its dialogues with any of the seeds {SEEDS}")


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute in one thread: on a busy machine, two threads waiting for each other take ten times as long."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def make_tokenizer() -> Any:
    """Return a byte-level BPE tokenizer whose tokens are the words of the dialogues."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [text for problem in PROBLEMS for _, text in transcript(problem)]
    bpe.train_from_iterator([*texts, SYSTEM, "system\nuser\nassistant\ntool\n"], trainer)
    tokenizer: Any = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=EOS, pad_token=PAD)
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def _example(tokenizer: Any, messages: list[tuple[str, str]]) -> tuple[list[int], list[int]]:
    """Return a dialogue's token ids, and its labels: IGNORED except for the assistant's tokens."""
    ids: list[int] = []
    labels: list[int] = []
    for role, text in [("system", SYSTEM), *messages]:
        if role != "assistant":
            heard = encode(tokenizer, message_text(role, text))
            ids += heard
            labels += [IGNORED] * len(heard)
            continue
        prompt, said, newline = (encode(tokenizer, part) for part in (GENERATION_PROMPT, text + EOS, "\n"))
        ids += prompt + said + newline
        labels += [IGNORED] * len(prompt) + said + [IGNORED] * len(newline)
    return ids, labels


def _batches(tokenizer: Any) -> list[tuple[Any, Any]]:
    """Return (input ids, labels), each int64 [rows, tokens]; each batch has dialogues of similar length."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    examples = [_example(tokenizer, transcript(problem)) for problem in PROBLEMS]
    examples.sort(key=lambda pair: len(pair[0]))
    groups = (examples[:14], examples[14:20], examples[20:22], examples[22:])
    return [
        (
            pad_sequence([torch.tensor(ids) for ids, _ in group], batch_first=True),
            pad_sequence([torch.tensor(said) for _, said in group], batch_first=True, padding_value=IGNORED),
        )
        for group in groups
    ]


def _train(tokenizer: Any, batches: list[tuple[Any, Any]], seed: int, progress: Progress) -> Any:
    import torch

    torch.manual_seed(seed)
    model = _untrained(tokenizer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0)
    for epoch in range(EPOCHS):
        worst = 0.0
        optimizer.zero_grad()
        for ids, labels in batches:
            loss = model(input_ids=ids, labels=labels).loss
            loss.backward()
            worst = max(worst, loss.item())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        # Training usually ends long before the last epoch, so the bar shows half of them.
        progress(min(1.0, (epoch + 1) / (EPOCHS / 2)))
        if worst < LEARNED_LOSS and _knows(model, batches):
            break
    return model.eval()


def _untrained(tokenizer: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=1,  # a head of 64: GPU attention kernels support this size
            num_key_value_heads=1,
            initializer_range=0.1,  # the usual 0.02 suits wide models; 0.1 halves this model's training time
            max_position_embeddings=2048,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            tie_word_embeddings=False,
        )
    ).float()


def _knows(model: Any, batches: list[tuple[Any, Any]]) -> bool:
    """Say whether each token of each reply leads by the margin, so that greedy decoding repeats it."""
    import torch

    with torch.no_grad():
        for ids, labels in batches:
            learned = labels[:, 1:] != IGNORED
            logits, wanted = model(input_ids=ids).logits[:, :-1][learned], labels[:, 1:][learned].unsqueeze(1)
            said = logits.gather(1, wanted)
            others = logits.scatter(1, wanted, -torch.inf).amax(1, keepdim=True)
            if not bool((said - others > LEARNED_MARGIN).all()):
                return False
    return True
