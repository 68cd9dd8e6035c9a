"""The one owner of every line that the recipes share. `tools/sync.py` stamps these modules into `ocr/*.py`."""
