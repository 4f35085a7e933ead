"""Makes what verl's trainers need, small enough for two CPU cores: a random model, a tokenizer, and rows.

::

    python tiny_inputs.py FOLDER

writes ``FOLDER/model`` (a Qwen2 of two layers with random weights and a tokenizer of whole words),
``FOLDER/sft.parquet`` (conversations) and ``FOLDER/rl.parquet`` (prompts with the answer a rule checks).
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pandas
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

_NUMBERS = [str(number) for number in range(40)]
_MARKS = ["<pad>", "<unk>", "<|im_start|>", "<|im_end|>"]
_WORDS = ["system", "user", "assistant", "add", "and", "####", *_NUMBERS]
_TEMPLATE = (
    "{% for m in messages %}<|im_start|> {{ m['role'] }} {{ m['content'] }} <|im_end|> {% endfor %}"
    "{% if add_generation_prompt %}<|im_start|> assistant {% endif %}"
)


def write_model(folder: Path, seed: int = 0) -> None:
    """Write a random model and its tokenizer."""
    vocabulary = {word: number for number, word in enumerate([*_MARKS, *_WORDS])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", unk_token="<unk>", eos_token="<|im_end|>"
    )
    tokenizer.chat_template = _TEMPLATE
    tokenizer.save_pretrained(folder)
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(vocabulary),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        eos_token_id=vocabulary["<|im_end|>"],
        pad_token_id=vocabulary["<pad>"],
        bos_token_id=None,
        tie_word_embeddings=False,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)


def write_rows(folder: Path, n_rows: int = 64, seed: int = 0) -> None:
    """Write sums of two numbers, as conversations and as prompts."""
    choose = random.Random(seed)
    pairs = [(choose.randrange(20), choose.randrange(20)) for _ in range(n_rows)]
    asked = [{"role": "user", "content": f"add {a} and {b}"} for a, b in pairs]
    answers = [str(a + b) for a, b in pairs]
    conversations = [
        [question, {"role": "assistant", "content": f"#### {answer}"}]
        for question, answer in zip(asked, answers, strict=True)
    ]
    pandas.DataFrame({"messages": conversations}).to_parquet(folder / "sft.parquet")
    pandas.DataFrame(
        {
            "data_source": ["openai/gsm8k"] * n_rows,
            "prompt": [[question] for question in asked],
            "ability": ["math"] * n_rows,
            "reward_model": [{"style": "rule", "ground_truth": answer} for answer in answers],
            "extra_info": [{"split": "train", "index": index} for index in range(n_rows)],
        }
    ).to_parquet(folder / "rl.parquet")


def main() -> None:
    """Write everything into the folder that is given."""
    folder = Path(sys.argv[1])
    (folder / "model").mkdir(parents=True, exist_ok=True)
    write_model(folder / "model")
    write_rows(folder)


if __name__ == "__main__":
    main()
