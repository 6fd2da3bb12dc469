"""Train a tiny Llama to repeat a few dialogues, so that a greedy engine calls the tool.

python tool_model.py FOLDER: writes half a megabyte in about ten seconds.
"""

import json
import sys
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TEMPLATE = """{%- if tools %}{{ '<|im_start|>system\n' }}
{%- if messages[0]['role'] == 'system' %}{{ messages[0]['content'] }}{% endif %}
{%- for tool in tools %}{{ ' tool:' + tool['function']['name'] }}{% endfor %}{{ '<|im_end|>\n' }}
{%- elif messages[0]['role'] == 'system' %}
{{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}{%- if not (loop.first and message['role'] == 'system') %}
{{- '<|im_start|>' + message['role'] + '\n' }}
{%- if message['content'] is string %}{{ message['content'] }}
{%- elif message['content'] %}{% for part in message['content'] %}
{{- part['text'] if part['text'] is defined else '' }}
{%- endfor %}{% endif %}
{%- if message['tool_calls'] %}{% for call in message['tool_calls'] %}
{{- '<tool_call>\n{"name": "' + call['function']['name'] + '", "arguments": ' }}
{{- (call['function']['arguments'] | tojson) + '}\n</tool_call>' }}
{%- endfor %}{% endif %}
{{- '<|im_end|>\n' }}{% endif %}{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
TOOL = "calc_gsm8k_reward"
SYSTEM = "You are a helpful assistant."
AGAIN = ("user", "Your response is incorrect! You need to reflect on your answer and try again.")


def user(text):
    return ("user", text)


def says(text):
    return ("assistant", text)


def calls(answer):
    return says(f'<tool_call>\n{{"name": "{TOOL}", "arguments": {{"answer": "{answer}"}}}}\n</tool_call>')


def gives(answer, reward):
    return ("tool", f"Current parsed answer='{answer}' reward={reward}")


#: Whether the prompt describes the tool, and the dialogue.
DIALOGUES = [
    (True, [user("Add 2 and 3."), calls(5), gives(5, 1.0), says("#### 5")]),
    (True, [user("Add 4 and 4."), calls(7), gives(7, 0.0), calls(8), gives(8, 1.0), says("#### 8")]),
    (True, [user("Say 9."), says("#### 9")]),
    (True, [user("Add 6 and 1."), calls(7), gives(7, 1.0), says("#### 6"), AGAIN, says("#### 7")]),
    (False, [user("Add 1 and 1."), says("#### 3"), AGAIN, says("#### 2")]),
    (False, [user("Say 6."), says("#### 6")]),
]


def make_tokenizer():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    texts = [text for _, dialogue in DIALOGUES for _, text in dialogue]
    texts += [f"{SYSTEM} system user assistant tool:{TOOL} I am a user."] * 4
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    marks = ("<tool_call>", "</tool_call>")
    tokenizer.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in marks])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_input_names=["input_ids", "attention_mask"],
    )
    fast.chat_template = TEMPLATE
    return fast


def lesson(tokenizer, with_tool, dialogue, system, line_end):
    """Return the token ids of a dialogue, and 1 for each token that the model must learn to generate."""
    ids, mask = [], []

    def add(text, learned):
        tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
        ids.extend(tokens)
        mask.extend([learned] * len(tokens))

    if with_tool or system:
        add(f"<|im_start|>system\n{system}{f' tool:{TOOL}' if with_tool else ''}<|im_end|>\n", 0)
    for role, text in dialogue:
        add(f"<|im_start|>{role}\n", 0)
        add(f"{text}<|im_end|>", int(role == "assistant"))
        add(line_end if role == "assistant" else "\n", 0)
    return ids, mask


def batch_of(tokenizer):
    """Return input ids, labels and attention mask of all lessons: [lessons, longest] each."""
    lessons = [
        lesson(tokenizer, *dialogue, system, line_end)
        for dialogue in DIALOGUES
        for system in ("", SYSTEM)
        for line_end in ("\n", "")
    ]
    longest = max(len(ids) for ids, _ in lessons)
    inputs = torch.tensor([ids + [0] * (longest - len(ids)) for ids, _ in lessons])
    learned = torch.tensor([mask + [0] * (longest - len(mask)) for _, mask in lessons])
    attended = torch.tensor([[1] * len(ids) + [0] * (longest - len(ids)) for ids, _ in lessons])
    return inputs, torch.where(learned.bool(), inputs, -100), attended


def train(tokenizer):
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config).float()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    inputs, labels, attended = batch_of(tokenizer)
    for _ in range(600):
        loss = model(input_ids=inputs, attention_mask=attended, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss.item() < 2e-3:
            return model
    raise SystemExit(f"the model did not learn its dialogues: loss {loss.item():.3f}")


def save(model, tokenizer, folder):
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    path = Path(folder) / "config.json"
    config = json.loads(path.read_text())
    # Older sglang reads one key, newer sglang the other.
    config.update(torch_dtype="float32", dtype="float32")
    config.setdefault("rope_theta", 10000.0)
    path.write_text(json.dumps(config, indent=1))


if __name__ == "__main__":
    torch.manual_seed(0)
    made = make_tokenizer()
    save(train(made), made, sys.argv[1])
