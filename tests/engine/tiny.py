"""Tiny random checkpoints, one function per architecture: python tiny.py ARCHITECTURE FOLDER (in the engine's venv).

Weights are drawn with a wide standard deviation: with the usual 0.02 a random model repeats its last token whatever
the image shows, and no test could tell one page's answer from another's.
"""

import json
import re
import sys
from pathlib import Path

WIDE = 0.35  # standard deviation of the weights
WORDS = "anchor bell cargo deck ferry gale harbour island jetty keel lantern mast".split()


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


QWEN2_TEXT = dict(
    vocab_size=320, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=2, max_position_embeddings=32768, tie_word_embeddings=False,
)  # fmt: skip


def widen(weights):
    """Draws every matrix of a dict or iterator of (name, tensor) anew, in place.

    Where queries and keys are normalised, their norms let attention pick single tokens: the mean of thousands is the
    same on every page.
    """
    import torch

    torch.manual_seed(0)
    for name, weight in weights:
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=WIDE / 2 if "embed_tokens" in name else WIDE)
        elif re.search(r"(q|k|query|key)_(layer)?norm", name):
            torch.nn.init.constant_(weight, 4.0)


def save(folder, model, processor, eos, said=None):
    """Saves a checkpoint with weights drawn anew; of `said`, a list of token ids, it says nothing else."""
    import torch

    widen(model.named_parameters())
    if said:
        with torch.no_grad():
            weight = model.lm_head.weight
            weight[[number for number in range(len(weight)) if number not in said]] = 0
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    write(folder, "generation_config.json", {"eos_token_id": eos, "do_sample": False})


def write(folder, name, content):
    Path(folder, name).write_text(json.dumps(content, indent=2))


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
        text_config=QWEN2_TEXT | dict(
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


def glm_ocr(folder):
    from transformers import (
        Glm46VImageProcessor,
        Glm46VProcessor,
        Glm46VVideoProcessor,
        GlmOcrConfig,
        GlmOcrForConditionalGeneration,
    )

    special = (
        "<|endoftext|> [MASK] [gMASK] [sMASK] <sop> <eop> <|system|> <|user|> <|assistant|> <|observation|> "
        "<|begin_of_image|> <|end_of_image|> <|begin_of_video|> <|end_of_video|> <|image|> <|video|>"
    ).split()
    image = "<|begin_of_image|><|image|><|end_of_image|>"
    template = "[gMASK]<sop>" + chat_template("<|{{ m['role'] }}|>\n", image, "", "<|assistant|>\n")
    words, ids = tokenizer(special, template, "<|user|>", "<|endoftext|>")
    config = GlmOcrConfig(
        text_config=QWEN2_TEXT | dict(
            head_dim=32, num_nextn_predict_layers=0,
            rope_parameters={"rope_type": "default", "mrope_section": [4, 6, 6], "rope_theta": 10000.0,
                             "partial_rotary_factor": 1.0},
            eos_token_id=[ids["<|endoftext|>"], ids["<|user|>"]], pad_token_id=ids["<|endoftext|>"],
        ),
        vision_config=dict(
            depth=2, hidden_size=64, intermediate_size=128, num_heads=2, out_hidden_size=64, patch_size=14,
            spatial_merge_size=2, temporal_patch_size=2, image_size=336,
        ),
        image_token_id=ids["<|image|>"], video_token_id=ids["<|video|>"],
        image_start_token_id=ids["<|begin_of_image|>"], image_end_token_id=ids["<|end_of_image|>"],
        video_start_token_id=ids["<|begin_of_video|>"], video_end_token_id=ids["<|end_of_video|>"],
        tie_word_embeddings=False, dtype="float32",
    )  # fmt: skip
    images = Glm46VImageProcessor(patch_size=14, size={"shortest_edge": 12544, "longest_edge": 1003520})
    processor = Glm46VProcessor(images, words, Glm46VVideoProcessor(), chat_template=template)
    eos = [ids["<|endoftext|>"], ids["<|user|>"]]
    save(folder, GlmOcrForConditionalGeneration(config), processor, eos)


def lighton_ocr(folder):
    """LightOnOCR 1 and 2: the weights' names of the transformers class, the config and processor of Mistral 3."""
    from transformers import (
        LightOnOcrConfig,
        LightOnOcrForConditionalGeneration,
        PixtralImageProcessor,
        PixtralProcessor,
    )

    words, ids = tokenizer(QWEN_TOKENS, chatml("<|image_pad|>"), "<|im_end|>", "<|endoftext|>")
    text = QWEN2_TEXT | dict(model_type="qwen3", head_dim=32, eos_token_id=ids["<|im_end|>"])
    vision = dict(
        model_type="pixtral", hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
        head_dim=32, patch_size=14, image_size=1540, num_channels=3,
    )  # fmt: skip
    config = LightOnOcrConfig(
        text_config=text, vision_config=vision, image_token_id=ids["<|image_pad|>"], tie_word_embeddings=False,
        dtype="float32",
    )  # fmt: skip
    processor = PixtralProcessor(
        PixtralImageProcessor(patch_size=14, size={"longest_edge": 1540}), words, patch_size=14, spatial_merge_size=2,
        chat_template=words.chat_template, image_token="<|image_pad|>", image_break_token="<|vision_pad|>",
        image_end_token="<|vision_end|>",
    )  # fmt: skip
    save(folder, LightOnOcrForConditionalGeneration(config), processor, ids["<|im_end|>"])
    mistral = {
        "architectures": ["LightOnOCRForConditionalGeneration"], "model_type": "mistral3", "dtype": "float32",
        "image_token_index": ids["<|image_pad|>"], "multimodal_projector_bias": False, "projector_hidden_act": "gelu",
        "spatial_merge_size": 2, "vision_feature_layer": -1, "tie_word_embeddings": False,
        "text_config": text, "vision_config": vision,
    }  # fmt: skip
    write(folder, "config.json", mistral)


def dots_ocr(folder):
    """No class of transformers: the configuration is code of the checkpoint, as it is there, and the vision weights
    have the names that the checkpoint gives them.
    """
    import torch
    from safetensors.torch import save_file
    from transformers import (
        Qwen2_5_VLProcessor,
        Qwen2Config,
        Qwen2ForCausalLM,
        Qwen2VLImageProcessor,
        Qwen2VLVideoProcessor,
    )

    special = (
        "<|endoftext|> <|img|> <|imgpad|> <|endofimg|> <|user|> <|endofuser|> <|assistant|> <|endofassistant|> "
        "<|system|> <|endofsystem|> <|image_pad|> <|video_pad|>"
    ).split()
    turn, end = "<|{{ m['role'] }}|>", "<|endof{{ m['role'] }}|>"
    template = chat_template(turn, "<|img|><|imgpad|><|endofimg|>", end, "<|assistant|>")
    words, ids = tokenizer(special, template, "<|endofassistant|>", "<|endoftext|>")
    text = Qwen2ForCausalLM(Qwen2Config(**QWEN2_TEXT, dtype="float32"))
    vision = dict(
        embed_dim=64, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
        num_channels=3, patch_size=14, spatial_merge_size=2, temporal_patch_size=1, rms_norm_eps=1e-5, use_bias=False,
        post_norm=True,
    )  # fmt: skip
    shapes = {
        "patch_embed.patchifier.proj.weight": (64, 3, 14, 14), "patch_embed.patchifier.proj.bias": (64,),
        "patch_embed.patchifier.norm.weight": (64,), "post_trunk_norm.weight": (64,),
        "merger.ln_q.weight": (64,), "merger.ln_q.bias": (64,), "merger.mlp.0.weight": (256, 256),
        "merger.mlp.0.bias": (256,), "merger.mlp.2.weight": (64, 256), "merger.mlp.2.bias": (64,),
    }  # fmt: skip
    for layer in range(2):
        block = {
            "norm1.weight": (64,), "norm2.weight": (64,), "attn.qkv.weight": (192, 64), "attn.proj.weight": (64, 64),
            "mlp.fc1.weight": (128, 64), "mlp.fc2.weight": (64, 128), "mlp.fc3.weight": (128, 64),
        }  # fmt: skip
        shapes |= {f"blocks.{layer}.{name}": shape for name, shape in block.items()}
    weights = {name: weight.detach().clone() for name, weight in text.state_dict().items()}
    weights |= {f"vision_tower.{name}": torch.ones(shape) for name, shape in shapes.items()}
    widen(weights.items())
    save_file(weights, Path(folder, "model.safetensors"), {"format": "pt"})
    config = text.config.to_dict() | {
        "architectures": ["DotsOCRForCausalLM"], "model_type": "dots_ocr", "vision_config": vision,
        "auto_map": {"AutoConfig": "configuration_dots.DotsOCRConfig"},
        "image_token_id": ids["<|imgpad|>"], "video_token_id": ids["<|video_pad|>"], "dtype": "float32",
        "eos_token_id": [ids["<|endoftext|>"], ids["<|endofassistant|>"]],
    }  # fmt: skip
    write(folder, "config.json", config)
    Path(folder, "configuration_dots.py").write_text(
        'from transformers import Qwen2Config\n\n\nclass DotsOCRConfig(Qwen2Config):\n    model_type = "dots_ocr"\n'
    )
    write(folder, "generation_config.json", {"eos_token_id": config["eos_token_id"]})
    images = Qwen2VLImageProcessor(patch_size=14, temporal_patch_size=1, min_pixels=3136, max_pixels=1003520)
    Qwen2_5_VLProcessor(images, words, Qwen2VLVideoProcessor(), chat_template=template).save_pretrained(folder)


def paddleocr_vl(folder):
    from transformers import (
        PaddleOCRVLConfig,
        PaddleOCRVLForConditionalGeneration,
        PaddleOCRVLImageProcessor,
        PaddleOCRVLProcessor,
    )

    special = "<unk> <s> </s> <|begin_of_sentence|> <|IMAGE_START|> <|IMAGE_PLACEHOLDER|> <|IMAGE_END|>".split()
    image = "<|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>"
    template = "<|begin_of_sentence|>" + chat_template("User: ", image, "\n", "Assistant:\n")
    words, ids = tokenizer(special, template, "</s>", "<unk>")
    words.image_token, words.image_token_id = "<|IMAGE_PLACEHOLDER|>", ids["<|IMAGE_PLACEHOLDER|>"]
    words.init_kwargs["image_token"] = words.image_token
    config = PaddleOCRVLConfig(
        text_config=QWEN2_TEXT | dict(
            head_dim=32, pad_token_id=ids["<unk>"], bos_token_id=ids["<s>"], eos_token_id=ids["</s>"],
            rope_parameters={"rope_type": "default", "mrope_section": [4, 6, 6], "rope_theta": 500000.0},
        ),
        vision_config=dict(
            hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2, patch_size=14,
            spatial_merge_size=2, image_size=384,
        ),
        image_token_id=ids["<|IMAGE_PLACEHOLDER|>"], vision_start_token_id=ids["<|IMAGE_START|>"],
        vision_end_token_id=ids["<|IMAGE_END|>"], tie_word_embeddings=False, dtype="float32",
    )  # fmt: skip
    processor = PaddleOCRVLProcessor(PaddleOCRVLImageProcessor(), words, chat_template=template)
    save(folder, PaddleOCRVLForConditionalGeneration(config), processor, ids["</s>"])


def qwen3_vl(folder):
    from transformers import (
        Qwen2VLImageProcessor,
        Qwen3VLConfig,
        Qwen3VLForConditionalGeneration,
        Qwen3VLProcessor,
        Qwen3VLVideoProcessor,
    )

    words, ids = tokenizer(QWEN_TOKENS, chatml(QWEN_IMAGE), "<|im_end|>", "<|endoftext|>")
    config = Qwen3VLConfig(
        text_config=QWEN2_TEXT | dict(
            head_dim=32, bos_token_id=ids["<|endoftext|>"], eos_token_id=ids["<|im_end|>"],
            rope_parameters={
                "rope_type": "default", "mrope_section": [6, 5, 5], "mrope_interleaved": True, "rope_theta": 5e6,
            },
        ),
        vision_config=dict(
            depth=2, hidden_size=64, intermediate_size=128, num_heads=2, out_hidden_size=64, patch_size=16,
            spatial_merge_size=2, temporal_patch_size=2, num_position_embeddings=256, deepstack_visual_indexes=[0],
        ),
        image_token_id=ids["<|image_pad|>"], video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"], vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=False, dtype="float32",
    )  # fmt: skip
    images = Qwen2VLImageProcessor(patch_size=16, min_pixels=65536, max_pixels=1003520)
    processor = Qwen3VLProcessor(images, words, Qwen3VLVideoProcessor(), chat_template=words.chat_template)
    save(folder, Qwen3VLForConditionalGeneration(config), processor, ids["<|im_end|>"])


def qwen2_vl(folder):
    """Of the layout that MinerU's package reads, a line is one token here, so that every answer is a layout and the
    blocks on it are asked for; words of a block are others.
    """
    from transformers import (
        Qwen2VLConfig,
        Qwen2VLForConditionalGeneration,
        Qwen2VLImageProcessor,
        Qwen2VLProcessor,
        Qwen2VLVideoProcessor,
    )

    boxes = [(50 + 40 * n, 40 * n, 400 + 40 * n, 200 + 60 * n) for n in range(12)]  # 1000ths of the page
    lines = [
        f"<|box_start|>{' '.join(f'{edge:03}' for edge in box)}<|box_end|>"
        f"<|ref_start|>{'text' if number % 4 else 'title'}<|ref_end|><|rotate_up|>"
        for number, box in enumerate(boxes)
    ]
    special = QWEN_TOKENS + lines + [f" {word}" for word in WORDS]
    words, ids = tokenizer(special, chatml(QWEN_IMAGE), "<|im_end|>", "<|endoftext|>")
    config = Qwen2VLConfig(
        text_config=QWEN2_TEXT | dict(
            rope_parameters={"rope_type": "default", "mrope_section": [4, 6, 6], "rope_theta": 1e6},
            bos_token_id=ids["<|endoftext|>"], eos_token_id=ids["<|im_end|>"],
        ),
        vision_config=dict(
            depth=2, embed_dim=64, hidden_size=64, mlp_ratio=2, num_heads=2, patch_size=14, spatial_merge_size=2,
            temporal_patch_size=2,
        ),
        image_token_id=ids["<|image_pad|>"], video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"], vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=False, dtype="float32",
    )  # fmt: skip
    images = Qwen2VLImageProcessor(patch_size=14, min_pixels=3136, max_pixels=1605632)
    processor = Qwen2VLProcessor(images, words, Qwen2VLVideoProcessor(), chat_template=words.chat_template)
    said = [ids[token] for token in special[len(QWEN_TOKENS) :]]
    save(folder, Qwen2VLForConditionalGeneration(config), processor, ids["<|im_end|>"], said)


def idefics3(folder):
    """SmolDocling and Granite-Docling. An element of DocTags is one token here, so that every answer is a document."""
    from transformers import (
        Idefics3Config,
        Idefics3ForConditionalGeneration,
        Idefics3ImageProcessor,
        Idefics3Processor,
    )

    places = [f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5)]
    special = (
        "<|endoftext|> <|im_start|> <end_of_utterance> <|end_of_text|> <image> <fake_token_around_image> <global-img>"
    ).split() + places
    tags = ["text", "section_header_level_1", "page_header"] * 4
    elements = [
        f"<{tag}><loc_{20 + number}><loc_{30 * number}><loc_{300 + number}><loc_{30 * number + 25}>{word}</{tag}>"
        for number, (word, tag) in enumerate(zip(WORDS, tags, strict=True))
    ] + ["</doctag>"]
    template = "<|im_start|>" + chat_template(
        "{{ m['role'] | capitalize }}:", "<image>", "<end_of_utterance>\n", "Assistant:"
    )
    words, ids = tokenizer(special + elements, template, "<end_of_utterance>", "<|endoftext|>")
    vision = dict(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2, image_size=512, patch_size=16
    )  # fmt: skip
    config = Idefics3Config(
        text_config=QWEN2_TEXT | dict(model_type="llama", eos_token_id=ids["<end_of_utterance>"]),
        vision_config=vision, image_token_id=ids["<image>"], scale_factor=4, pad_token_id=ids["<|endoftext|>"],
        tie_word_embeddings=False, dtype="float32",
    )  # fmt: skip
    images = Idefics3ImageProcessor(size={"longest_edge": 2048}, max_image_size={"longest_edge": 512})
    processor = Idefics3Processor(images, words, image_seq_len=64, chat_template=template)
    said = [ids[token] for token in elements]
    save(folder, Idefics3ForConditionalGeneration(config), processor, ids["<end_of_utterance>"], said)


def qianfan_ocr(folder):
    """The names of the checkpoint, which are InternVL's and not those of the transformers class; no processor."""
    import torch
    from safetensors.torch import save_file
    from transformers import Qwen3Config, Qwen3ForCausalLM

    special = ["<img>", "</img>", "<IMG_CONTEXT>", "<think>", "</think>", *(f"<COORD_{n:03}>" for n in range(8))]
    words, ids = tokenizer(QWEN_TOKENS + special, chatml("<image>\n"), "<|im_end|>", "<|endoftext|>")
    text = QWEN2_TEXT | dict(model_type="qwen3", head_dim=32, eos_token_id=ids["<|im_end|>"])
    vision = dict(
        model_type="qianfan_ocr_vision", hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=2, image_size=448, patch_size=14,
    )  # fmt: skip
    shapes = {
        "vision_model.embeddings.class_embedding": (1, 1, 64),
        "vision_model.embeddings.patch_embedding.weight": (64, 3, 14, 14),
        "vision_model.embeddings.patch_embedding.bias": (64,),
        "vision_model.embeddings.position_embedding": (1, 1025, 64),
        "mlp1.0.weight": (256,), "mlp1.0.bias": (256,), "mlp1.1.weight": (64, 256), "mlp1.1.bias": (64,),
        "mlp1.3.weight": (64, 64), "mlp1.3.bias": (64,),
    }  # fmt: skip
    for layer in range(2):
        block = {
            "ls1": (64,), "ls2": (64,), "norm1.weight": (64,), "norm1.bias": (64,), "norm2.weight": (64,),
            "norm2.bias": (64,), "attn.qkv.weight": (192, 64), "attn.qkv.bias": (192,), "attn.proj.weight": (64, 64),
            "attn.proj.bias": (64,), "mlp.fc1.weight": (128, 64), "mlp.fc1.bias": (128,), "mlp.fc2.weight": (64, 128),
            "mlp.fc2.bias": (64,),
        }  # fmt: skip
        shapes |= {f"vision_model.encoder.layers.{layer}.{name}": shape for name, shape in block.items()}
    weights = {name: torch.full(shape, float(not name.endswith("bias"))) for name, shape in shapes.items()}
    model = Qwen3ForCausalLM(Qwen3Config(**text, dtype="float32"))
    weights |= {f"language_model.{name}": weight.detach().clone() for name, weight in model.state_dict().items()}
    widen(weights.items())
    save_file(weights, Path(folder, "model.safetensors"), {"format": "pt"})
    config = {
        "architectures": ["QianfanOCRForConditionalGeneration"], "model_type": "qianfan_ocr", "dtype": "float32",
        "image_token_id": ids["<IMG_CONTEXT>"], "text_config": text, "vision_config": vision,
    }  # fmt: skip
    write(folder, "config.json", config)
    write(folder, "generation_config.json", {"eos_token_id": ids["<|im_end|>"]})
    words.save_pretrained(folder)


def qwen3_5(folder):
    """On a CPU its linear attention needs bfloat16, and heads of 64."""
    import torch
    from transformers import (
        Qwen2VLImageProcessor,
        Qwen3_5Config,
        Qwen3_5ForConditionalGeneration,
        Qwen3VLProcessor,
        Qwen3VLVideoProcessor,
    )

    words, ids = tokenizer(QWEN_TOKENS, chatml(QWEN_IMAGE), "<|im_end|>", "<|endoftext|>")
    config = Qwen3_5Config(
        text_config=QWEN2_TEXT | dict(
            head_dim=64, bos_token_id=ids["<|endoftext|>"], eos_token_id=ids["<|im_end|>"],
            layer_types=["linear_attention", "full_attention"], linear_key_head_dim=64, linear_value_head_dim=64,
            linear_num_key_heads=2, linear_num_value_heads=2,
            rope_parameters={
                "rope_type": "default", "mrope_section": [4, 2, 2], "mrope_interleaved": True, "rope_theta": 1e7,
                "partial_rotary_factor": 0.25,
            },
        ),
        vision_config=dict(
            depth=2, hidden_size=64, intermediate_size=128, num_heads=2, out_hidden_size=64, patch_size=16,
            spatial_merge_size=2, temporal_patch_size=2, num_position_embeddings=256,
        ),
        image_token_id=ids["<|image_pad|>"], video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"], vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=False, dtype="float32",
    )  # fmt: skip
    images = Qwen2VLImageProcessor(patch_size=16, min_pixels=65536, max_pixels=16777216)
    processor = Qwen3VLProcessor(images, words, Qwen3VLVideoProcessor(), chat_template=words.chat_template)
    model = Qwen3_5ForConditionalGeneration(config)
    for name, weight in model.named_parameters():  # what linear attention has read of a page must not fade at once
        if name.endswith(("A_log", "dt_bias")):
            torch.nn.init.constant_(weight, -6.0 if name.endswith("A_log") else 0.0)
    save(folder, model, processor, ids["<|im_end|>"])


LFM2_TOKENS = (
    "<|pad|> <|startoftext|> <|im_start|> <|im_end|> <image> <|image_start|> <|image_end|> <|img_thumbnail|>"
).split() + [f"<|img_row_{row}_col_{column}|>" for row in range(1, 11) for column in range(1, 11)]
LFM2_TEXT = dict(
    vocab_size=384, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=2, max_position_embeddings=32768, layer_types=["conv", "full_attention"],
    conv_dim=64, block_dim=64, block_auto_adjust_ff_dim=False, tie_word_embeddings=False,
)  # fmt: skip


def lfm2_words():
    words, ids = tokenizer(LFM2_TOKENS, "<|startoftext|>" + chatml("<image>"), "<|im_end|>", "<|pad|>")
    ends = {"bos_token_id": ids["<|startoftext|>"], "eos_token_id": ids["<|im_end|>"], "pad_token_id": ids["<|pad|>"]}
    return words, ids, ends


def lfm2(folder):
    from transformers import Lfm2Config, Lfm2ForCausalLM

    words, ids, ends = lfm2_words()
    save(folder, Lfm2ForCausalLM(Lfm2Config(**LFM2_TEXT, **ends, dtype="float32")), words, ids["<|im_end|>"])


def lfm2_vl(folder):
    """The vision weights have the names of the checkpoint, which transformers 5 shortens."""
    from safetensors.torch import load_file, save_file
    from transformers import Lfm2VlConfig, Lfm2VlForConditionalGeneration, Lfm2VlImageProcessor, Lfm2VlProcessor

    words, ids, ends = lfm2_words()
    vision = dict(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2, patch_size=16,
        num_patches=256, vision_use_head=False,
    )  # fmt: skip
    config = Lfm2VlConfig(
        text_config=LFM2_TEXT | ends, vision_config=vision, image_token_id=ids["<image>"], projector_hidden_size=64,
        tie_word_embeddings=False, dtype="float32",
    )  # fmt: skip
    processor = Lfm2VlProcessor(Lfm2VlImageProcessor(), words, chat_template=words.chat_template)
    save(folder, Lfm2VlForConditionalGeneration(config), processor, ids["<|im_end|>"])
    path, tower = Path(folder, "model.safetensors"), "vision_tower."
    weights = {name.replace(tower, tower + "vision_model."): weight for name, weight in load_file(path).items()}
    save_file(weights, path, {"format": "pt"})


def hunyuan_vl(folder):
    from transformers import (
        HunYuanVLConfig,
        HunYuanVLForConditionalGeneration,
        HunYuanVLImageProcessor,
        HunYuanVLProcessor,
    )

    named = {"image_start_token": "<im_start>", "image_token": "<image>", "image_end_token": "<im_end>"}
    special = ["<|begin|>", "<|user|>", "<|end|>", "<pad>", "<im_newline>", *named.values()]
    template = "<|begin|>" + chat_template("", "".join(named.values()), "<|user|>", "")
    words, ids = tokenizer(special, template, "<|end|>", "<pad>")
    words.init_kwargs |= named
    for role, name in named.items():
        setattr(words, role, name)
        setattr(words, f"{role}_id", ids[name])
    rope = {"rope_type": "dynamic", "alpha": 1000.0, "factor": 1.0, "mrope_section": [4, 4, 4, 4], "rope_theta": 1e4}
    config = HunYuanVLConfig(
        text_config=QWEN2_TEXT | dict(
            head_dim=32, rope_parameters=rope, bos_token_id=ids["<|begin|>"], eos_token_id=ids["<|end|>"],
            pad_token_id=ids["<pad>"],
        ),
        vision_config=dict(
            hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2, out_hidden_size=64,
            text_hidden_size=64,
        ),
        image_token_id=ids["<image>"], im_start_id=ids["<im_start>"], im_end_id=ids["<im_end>"],
        im_newline_id=ids["<im_newline>"], tie_word_embeddings=False, dtype="float32",
    )  # fmt: skip
    processor = HunYuanVLProcessor(HunYuanVLImageProcessor(), words, chat_template=template)
    save(folder, HunYuanVLForConditionalGeneration(config), processor, ids["<|end|>"])


def deepseek_ocr(folder):
    """The towers' sizes are fixed in vLLM (SAM-B and CLIP-L, 0.4B), so this one is not tiny."""
    layer = {
        "self_attn.qkv_proj.weight": (3072, 1024), "self_attn.qkv_proj.bias": (3072,),
        "self_attn.out_proj.weight": (1024, 1024), "self_attn.out_proj.bias": (1024,),
        "layer_norm1.weight": (1024,), "layer_norm1.bias": (1024,), "layer_norm2.weight": (1024,),
        "layer_norm2.bias": (1024,), "mlp.fc1.weight": (4096, 1024), "mlp.fc1.bias": (4096,),
        "mlp.fc2.weight": (1024, 4096), "mlp.fc2.bias": (1024,),
    }  # fmt: skip
    shapes = {
        "vision_model.embeddings.class_embedding": (1024,),
        "vision_model.embeddings.patch_embedding.weight": (1024, 3, 14, 14),
        "vision_model.embeddings.position_embedding.weight": (257, 1024),
        "vision_model.pre_layrnorm.weight": (1024,), "vision_model.pre_layrnorm.bias": (1024,),
        "image_newline": (64,),
    }  # fmt: skip
    for number in range(24):
        shapes |= {f"vision_model.transformer.layers.{number}.{name}": shape for name, shape in layer.items()}
    deepseek(folder, "DeepseekOCRForCausalLM", shapes, 1024, 2048)


def unlimited_ocr(folder):
    deepseek_ocr(folder)
    config = json.loads(Path(folder, "config.json").read_text())
    write(folder, "config.json", config | {"architectures": ["UnlimitedOCRForCausalLM"], "model_type": "unlimited-ocr"})


def deepseek_ocr2(folder):
    """As `deepseek_ocr`, with a Qwen2 of 24 layers in the place of CLIP."""
    layer = {
        "self_attn.q_proj.weight": (896, 896), "self_attn.q_proj.bias": (896,), "self_attn.k_proj.weight": (128, 896),
        "self_attn.k_proj.bias": (128,), "self_attn.v_proj.weight": (128, 896), "self_attn.v_proj.bias": (128,),
        "self_attn.o_proj.weight": (896, 896), "mlp.gate_proj.weight": (4864, 896), "mlp.up_proj.weight": (4864, 896),
        "mlp.down_proj.weight": (896, 4864), "input_layernorm.weight": (896,),
        "post_attention_layernorm.weight": (896,),
    }  # fmt: skip
    shapes = {
        "qwen2_model.model.model.norm.weight": (896,), "qwen2_model.query_768.weight": (144, 896),
        "qwen2_model.query_1024.weight": (256, 896),
    }  # fmt: skip
    for number in range(24):
        shapes |= {f"qwen2_model.model.model.layers.{number}.{name}": shape for name, shape in layer.items()}
    deepseek(folder, "DeepseekOCR2ForCausalLM", shapes, 896, 896)


def deepseek(folder, name, shapes, width, projected):
    """A small DeepSeek V2 of plain attention and experts, SAM-B giving `width` channels, the tensors of `shapes`, and
    a projector of `projected` channels.
    """
    import torch
    from safetensors.torch import save_file

    begin, end, pad = (f"<｜{role}｜>" for role in ("begin▁of▁sentence", "end▁of▁sentence", "▁pad▁"))
    words, ids = tokenizer([begin, end, pad, "<image>", "<|grounding|>"], None, end, pad)
    words.bos_token = begin
    shapes = shapes | sam(width) | {
        "view_seperator": (64,), "projector.layers.weight": (64, projected),
        "projector.layers.bias": (64,), "embed_tokens.weight": (320, 64), "norm.weight": (64,),
    }  # fmt: skip
    for number in range(2):
        experts = ["mlp"] if not number else [f"mlp.experts.{expert}" for expert in range(4)] + ["mlp.shared_experts"]
        layer = {f"self_attn.{letter}_proj.weight": (64, 64) for letter in "qkvo"}
        layer |= {"input_layernorm.weight": (64,), "post_attention_layernorm.weight": (64,)}
        layer |= {"mlp.gate.weight": (4, 64)} if number else {}
        for expert in experts:
            layer |= {f"{expert}.{way}_proj.weight": (128, 64) for way in ("gate", "up")}
            layer |= {f"{expert}.down_proj.weight": (64, 128)}
        shapes |= {f"layers.{number}.{part}": shape for part, shape in layer.items()}
    torch.manual_seed(0)
    weights = {"lm_head.weight": torch.randn(320, 64) * WIDE}  # stored in bfloat16: half the 1.6 GB
    for part, shape in shapes.items():
        # Fan-in decides the spread, as the towers are wide: their sums stay near one.
        spread = WIDE * 8 / max(64, torch.Size(shape[1:]).numel()) ** 0.5
        vector = torch.zeros(shape) if part.endswith("bias") else torch.ones(shape)
        weights[f"model.{part}"] = (torch.randn(shape) * spread if len(shape) > 1 else vector).bfloat16()
    save_file(weights, Path(folder, "model.safetensors"), {"format": "pt"})
    text = dict(
        architectures=["DeepseekV2ForCausalLM"], model_type="deepseek_v2", vocab_size=320, hidden_size=64,
        intermediate_size=128, moe_intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2, first_k_dense_replace=1,
        topk_method="greedy", n_group=1, topk_group=1, use_mla=False, q_lora_rank=None, kv_lora_rank=None,
        qk_nope_head_dim=0, qk_rope_head_dim=0, v_head_dim=0, max_position_embeddings=32768,
        bos_token_id=ids[begin], eos_token_id=ids[end], tie_word_embeddings=False,
    )  # fmt: skip
    config = {
        "architectures": [name], "model_type": "deepseek_vl_v2", "language_config": text, "tile_tag": "2D",
        "projector_config": {"projector_type": "linear", "input_dim": projected, "n_embed": 64},
        "vision_config": {"image_size": 1024}, "dtype": "float32",
    }  # fmt: skip
    write(folder, "config.json", text | config)
    write(folder, "generation_config.json", {"eos_token_id": ids[end]})
    words.save_pretrained(folder)


def sam(width):
    """Shapes of SAM-B's image encoder, whose last convolution gives `width` channels."""
    shapes = {
        "patch_embed.proj.weight": (768, 3, 16, 16), "patch_embed.proj.bias": (768,), "pos_embed": (1, 64, 64, 768),
        "neck.0.weight": (256, 768, 1, 1), "neck.1.weight": (256,), "neck.1.bias": (256,),
        "neck.2.weight": (256, 256, 3, 3), "neck.3.weight": (256,), "neck.3.bias": (256,),
        "net_2.weight": (512, 256, 3, 3), "net_3.weight": (width, 512, 3, 3),
    }  # fmt: skip
    for number in range(12):
        side = 64 if number % 3 == 2 else 14  # of what attention spans: the page, or a window
        block = {
            "norm1.weight": (768,), "norm1.bias": (768,), "norm2.weight": (768,), "norm2.bias": (768,),
            "attn.qkv.weight": (2304, 768), "attn.qkv.bias": (2304,), "attn.proj.weight": (768, 768),
            "attn.proj.bias": (768,), "attn.rel_pos_h": (2 * side - 1, 64), "attn.rel_pos_w": (2 * side - 1, 64),
            "mlp.lin1.weight": (3072, 768), "mlp.lin1.bias": (3072,), "mlp.lin2.weight": (768, 3072),
            "mlp.lin2.bias": (768,),
        }  # fmt: skip
        shapes |= {f"blocks.{number}.{name}": shape for name, shape in block.items()}
    return {f"sam_model.{name}": shape for name, shape in shapes.items()}


ARCHITECTURES = {
    made.__name__: made
    for made in (
        glm_ocr, lighton_ocr, dots_ocr, qwen2_vl, qwen2_5_vl, idefics3, paddleocr_vl, qwen3_vl, qianfan_ocr, qwen3_5,
        lfm2, lfm2_vl, hunyuan_vl, deepseek_ocr, deepseek_ocr2, unlimited_ocr,
    )
}  # fmt: skip

if __name__ == "__main__":
    import torch

    torch.manual_seed(0)  # for the vectors, which `widen` leaves as the classes draw them
    name, folder = sys.argv[1:]
    Path(folder).mkdir(parents=True, exist_ok=True)
    ARCHITECTURES[name](folder)
