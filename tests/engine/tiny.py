"""Tiny random checkpoints, one function per architecture: python tiny.py ARCHITECTURE FOLDER (in the engine's venv).

Weights are drawn with a wide standard deviation: with the usual 0.02 a random model repeats its last token whatever
the image shows, and no test could tell one page's answer from another's.
"""

import json
import sys
from pathlib import Path

WIDE = 0.35  # standard deviation of the weights


def tokenizer(special, template, eos, pad=None):
    """A byte-level tokenizer with one token per byte and the special tokens given; (tokenizer, name to id)."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {character: number for number, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    bare = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    bare.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bare.decoder = decoders.ByteLevel()
    bare.add_special_tokens(special)
    made = PreTrainedTokenizerFast(
        tokenizer_object=bare, eos_token=eos, pad_token=pad or eos, additional_special_tokens=special
    )
    made.chat_template = template
    return made, {name: made.convert_tokens_to_ids(name) for name in special}


def chat_template(turn, image, end, answer):
    """A Jinja chat template: `turn` opens a message, `image` stands for a picture, `answer` opens the reply."""
    return (
        "{% for m in messages %}" + turn + "{% if m['content'] is string %}{{ m['content'] }}{% else %}"
        "{% for c in m['content'] %}{% if c['type'] in ('image', 'image_url') %}" + image
        + "{% elif c['type'] == 'text' %}{{ c['text'] }}{% endif %}{% endfor %}{% endif %}" + end + "{% endfor %}"
        "{% if add_generation_prompt %}" + answer + "{% endif %}"
    )  # fmt: skip


def chatml(image):
    return chat_template("<|im_start|>{{ m['role'] }}\n", image, "<|im_end|>\n", "<|im_start|>assistant\n")


QWEN_TOKENS = (
    "<|endoftext|> <|im_start|> <|im_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|>"
).split()
QWEN_IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"


def save(folder, model, processor, eos):
    import torch

    torch.manual_seed(0)
    for name, weight in model.named_parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=WIDE / 2 if "embed" in name else WIDE)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    Path(folder, "generation_config.json").write_text(json.dumps({"eos_token_id": eos, "do_sample": False}))


def qwen2_5_vl(folder):
    from transformers import (
        Qwen2_5_VLConfig,
        Qwen2_5_VLForConditionalGeneration,
        Qwen2_5_VLProcessor,
        Qwen2VLImageProcessor,
        Qwen2VLVideoProcessor,
    )

    words, ids = tokenizer(QWEN_TOKENS, chatml(QWEN_IMAGE), "<|im_end|>", "<|endoftext|>")
    config = Qwen2_5_VLConfig(
        text_config=dict(
            vocab_size=320, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=2, max_position_embeddings=32768, tie_word_embeddings=False,
            rope_parameters={"rope_type": "default", "mrope_section": [4, 6, 6], "rope_theta": 1e6},
            bos_token_id=ids["<|endoftext|>"], eos_token_id=ids["<|im_end|>"],
        ),
        vision_config=dict(
            depth=2, hidden_size=64, intermediate_size=128, num_heads=2, out_hidden_size=64, patch_size=14,
            spatial_merge_size=2, temporal_patch_size=2, fullatt_block_indexes=[1], window_size=112,
        ),
        image_token_id=ids["<|image_pad|>"], video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"], vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=False, dtype="float32",
    )  # fmt: skip
    images = Qwen2VLImageProcessor(patch_size=14, min_pixels=3136, max_pixels=1003520)
    videos = Qwen2VLVideoProcessor()
    processor = Qwen2_5_VLProcessor(images, words, videos, chat_template=words.chat_template)
    save(folder, Qwen2_5_VLForConditionalGeneration(config), processor, ids["<|im_end|>"])


ARCHITECTURES = {made.__name__: made for made in (qwen2_5_vl,)}

if __name__ == "__main__":
    name, folder = sys.argv[1:]
    ARCHITECTURES[name](folder)
