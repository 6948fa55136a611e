"""Fill tests/golden/{a,b} from the full set of golden numbers: `python copy_goldens.py SOURCE`.

SOURCE holds a/ and b/, each with model/, expected.safetensors and expected.json, as computed by
NVIDIA NeMo AutoModel's DeepSeek-V4.1 model on random weights. The checkpoints are copied as they
are. Of the expected values only those named in KEPT stay, bit for bit, packed with xz: the whole
folder has to fit in MAX_BYTES.
"""

import json
import lzma
import re
import shutil
import sys
from pathlib import Path

import safetensors.torch

FOLDER = Path(__file__).parent
MAX_BYTES = 14_500_000

# Patterns of names, a full match each. Intermediates are kept in fp32 alone: a bf16 run is judged
# by what comes out at its end.
KEPT_OF_BOTH = (
    r"p\d+/(input_ids|hash_ids)",
    r"p\d+/(logits|noise)\.(fp32|fp32_noqdq)",
    r"p(40|200)/logits\.bf16",
    r"p\d+/(topk|topk_margin|candidates)\.(fp32|fp32_noqdq)\.layer\d+",
    r"(engram|rope|quant|greedy)/.*",
    r"draft/\d/(?!target_features|logits\.bf16).*",
    r"dspark/p(17|40)/(anchors|previous_token_ids|noise\.fp32)",
    r"dspark/p(17|40)/(normalized|raw|confidence_normalized|confidence_raw)\.(fp32|bf16)",
    r"dspark/p(17|40)/target_features\.fp32",
    r"dspark/p40/base_logits\.fp32",
    r"dspark/p40/main_x\.(fp32|bf16)",
    r"p40/(router_ids|router_weights|router_margin)\.fp32",
    r"p40/(index_scores|compressed_kv|index_keys)\.layer\d+\.fp32",
)
KEPT_OF = {
    "a": (
        r"p40/[a-z_]+\.fp32",
        r"p40/engram_out\.layer\d+\.fp32",
        r"dspark/p17/base_logits\.fp32",
        r"dspark/p40/transition_logits\.fp32",
        r"dspark/p40/stage_streams\.fp32",
    ),
    "b": (r"p40/(mix_(attn|ffn)_(pre|post|comb)|pre_mix|final_hidden)\.fp32",),
}
KEPT_INFO = (
    *("variant", "versions", "checkpoint_sha256"),
    *("prompts", "tokenization", "engram", "dspark", "greedy", "draft"),
)
# 4-byte floats: the exponent bytes line up, so xz gets a model for each of the four positions.
XZ = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 1, "lp": 2, "pb": 2}]


def copy_golden(source: Path, target: Path) -> None:
    """Copy one golden: its checkpoint whole, its expected values where KEPT names them."""
    target.mkdir(exist_ok=True)
    (target / "model").mkdir(exist_ok=True)
    for file in sorted((source / "model").iterdir()):
        shutil.copyfile(file, target / "model" / file.name)

    kept = re.compile("|".join(f"(?:{pattern})" for pattern in KEPT_OF_BOTH + KEPT_OF[source.name]))
    everything = safetensors.torch.load_file(source / "expected.safetensors")
    expected = {name: tensor for name, tensor in everything.items() if kept.fullmatch(name)}
    packed = lzma.compress(safetensors.torch.save(expected), format=lzma.FORMAT_XZ, filters=XZ)
    (target / "expected.safetensors.xz").write_bytes(packed)

    info = json.loads((source / "expected.json").read_text())
    text = json.dumps({key: info[key] for key in KEPT_INFO}, ensure_ascii=False)
    (target / "expected.json").write_text(text + "\n")


def main() -> None:
    """Copy both goldens and fail if they grew beyond MAX_BYTES."""
    source = Path(sys.argv[1])
    for name in KEPT_OF:
        copy_golden(source / name, FOLDER / name)
    files = [file for file in FOLDER.rglob("*") if file.is_file() and file.suffix != ".pyc"]
    size = sum(file.stat().st_size for file in files)
    sys.stdout.write(f"{size} bytes of {MAX_BYTES}\n")
    if size > MAX_BYTES:
        sys.exit("too large: name fewer tensors in KEPT_OF")


if __name__ == "__main__":
    main()
