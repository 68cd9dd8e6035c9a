"""Makes a small random PP-DocLayoutV3 of the real class: `python tiny_layout.py FOLDER`."""

import sys

import torch
from transformers import PPDocLayoutV3Config, PPDocLayoutV3ForObjectDetection
from transformers.models.pp_doclayout_v3.image_processing_pp_doclayout_v3 import PPDocLayoutV3ImageProcessor

LABELS = (
    "abstract algorithm aside_text chart content display_formula doc_title figure_title footer footer_image footnote "
    "formula_number header header_image image inline_formula number paragraph_title reference reference_content seal "
    "table text vertical_text vision_footnote"
).split()


def main(folder):
    torch.manual_seed(0)
    config = PPDocLayoutV3Config(
        id2label=dict(enumerate(LABELS)),
        label2id={label: number for number, label in enumerate(LABELS)},
        num_queries=30,
        decoder_layers=2,
    )
    PPDocLayoutV3ForObjectDetection(config).save_pretrained(folder)
    PPDocLayoutV3ImageProcessor().save_pretrained(folder)


if __name__ == "__main__":
    main(sys.argv[1])
