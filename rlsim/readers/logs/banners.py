"""What the lines around a run's metrics name: its GPUs, the releases of its engine and libraries, model and layout.

Read are vLLM's start-up lines (vllm-project/vllm, entrypoints/openai/api_server.py: "vLLM API server version 0.8.5";
v1/engine/core.py: "Initializing a V1 LLM engine (v0.8.5)"), versions as pip and collect_env print them, GPUs as
nvidia-smi, PyTorch and vLLM's tuned kernels name them, and wandb's wandb-metadata.json and requirements.txt. The model
and the layout stand in vLLM's and SGLang's start-up lines (v1/engine/core.py, ServerArgs; from memory), the number of
GPUs in the resources that Ray prints of its cluster (``'GPU': 64.0``; from memory).
"""

import re
from collections.abc import Mapping
from pathlib import Path

from rlsim.errors import shortened
from rlsim.files.reading import TRACE_BYTES, read_bytes
from rlsim.loading.models import card_of_same_layers
from rlsim.schema.engine import RELEASE
from rlsim.tables.profile import load_profile, profile_called

READ_CHARS = 2**21
"""Of a text; jobs name what they run on when they start."""
GPU = "gpu"
BESIDE = ("wandb-metadata.json", "requirements.txt")
"""Files of a run of wandb, beside its run file or in its folder ``files``."""
_VLLM = re.compile(
    r"vLLM API server version v?(\d[\w.+]{1,38})|Initializing an? (?:V\d )?LLM engine \(v(\d[\w.+]{1,38})\)"
)
_RELEASE = re.compile(
    r"\b(vllm|sglang|torch|pytorch|transformers|trl|verl|nemo[-_]rl|megatron[-_]core|ms[-_]swift)"
    r"(?:\.__version__| version)?['\"]?\s*(?:==|[:=])\s*['\"]?v?(\d+\.\d+[\w.+]{0,34})",
    re.IGNORECASE,
)
_GPU = re.compile(
    r"(?:NVIDIA|AMD[ _]Instinct)[ _]((?:GeForce[ _])?(?:RTX[ _])?(?:PRO[ _])?[A-Z]{0,3}\d[A-Za-z\d]{0,6}(?:-\w{2,8})*"
    r"(?:[ _](?:\d{2,3}GB|PCIe|NVL|HBM\w{1,2}|SXM\d|Blackwell|Server|Edition)(?![A-Za-z\d]))*)"
)
_STARTED = re.compile(r"(?:LLM engine \([^)\n]{1,40}\) with config: |server_args=ServerArgs\()(.{1,6000})")
_RAY_GPUS = re.compile(r"\{[^{}\n]{0,400}['\"]GPU['\"]: (\d{1,6})\.0\b")
MODEL, GPUS = "model", "gpus"
_STATED = {
    MODEL: re.compile(r"\bmodel(?:_path)?='([^'\n]{1,200})'"),
    "engine.tensor_parallel": re.compile(r"\b(?:tensor_parallel_size|tp_size)=(\d{1,4})\b"),
    "engine.pipeline_parallel": re.compile(r"\b(?:pipeline_parallel_size|pp_size)=(\d{1,4})\b"),
}
"""What a start-up line states of an engine, by key of a scenario or as a name."""
_UNNAMED = re.compile(r"\b(?:geforce|blackwell|edition|hbm\w*|sxm\d?|(?!40gb)\d+gb)\b", re.IGNORECASE)
"""Words of a product that its profile has not."""
_SIZE = re.compile(r"(?!480)\b(\d+)GB")
"""480 GB of a GH200 are its host's."""
NEAR = 0.15
"""Share by which the memory in a product's name may differ from its profile's: 80 GB are 79.2 GiB."""


def banners_of(text: str) -> dict[str, str]:
    """The GPU, the releases, the model and the layout that a text names, the last release of each; none of the others
    where it names several."""
    head, out = text[:READ_CHARS], dict[str, str]()
    # vLLM's own lines last: what runs counts before what pip lists or a requirement asks for.
    for found in (*_RELEASE.finditer(head), *_VLLM.finditer(head)):
        name, release = (found[1], found[2]) if found.re is _RELEASE else ("vllm", found[1] or found[2])
        # The full stop of a sentence is no part of a release.
        if RELEASE.fullmatch(release := release.rstrip(".+")):
            out[name.lower().replace("_", "-").replace("pytorch", "torch")] = release
    lines = [found[1] for found in _STARTED.finditer(head)]
    stated = {key: {one for line in lines for one in form.findall(line)} for key, form in _STATED.items()}
    stated[GPUS] = set(_RAY_GPUS.findall(head))
    # Several engines, as of a judge beside the policy: which is meant nobody says.
    out |= {key: next(iter(values)) for key, values in stated.items() if len(values) == 1}
    gpus = {found[1].replace("_", " ").strip() for found in _GPU.finditer(head)}
    if len({profile_of(gpu) for gpu in gpus} - {None}) == 1:
        out[GPU] = next(gpu for gpu in sorted(gpus) if profile_of(gpu))
    return out


def banners_beside(path: Path) -> dict[str, str]:
    """What the files of wandb beside a run file, or in a folder of it, name."""
    folder, out = path if path.is_dir() else path.parent, dict[str, str]()
    for name in BESIDE:
        for file in (folder / name, folder / "files" / name):
            if file.is_file():
                out |= banners_of(read_bytes(file, TRACE_BYTES).decode("utf-8", errors="replace"))
    return out


def profile_of(gpu: str) -> str | None:
    """The profile of a product: ``H100 80GB HBM3`` is h100_sxm. None of an unknown one, or of other memory."""
    name = profile_called(_UNNAMED.sub(" ", gpu))
    size = _SIZE.search(gpu)
    if name is None or size is None:
        return name
    held_gb = load_profile(name).memory_bytes.value / 1e9
    return name if abs(held_gb / float(size[1]) - 1) <= NEAR else None


def contradictions(banners: Mapping[str, str], device: str, engine: str, release: str | None) -> list[str]:
    """What the run ran on where the scenario states another ``device`` (a profile), ``engine`` or ``release``."""
    out = []
    profile = profile_of(banners.get(GPU, ""))
    if profile is not None and profile != device:
        out.append(
            f"the log's GPU is {banners[GPU]} ({profile}), the scenario's {device}: times are expected of that one"
        )
    engines = [name for name in ("vllm", "sglang") if name in banners]
    if engines and engine not in engines:
        out.append(f"the log names {engines[0]} {banners[engines[0]]}, the scenario's engine is {engine}")
    elif release is not None and banners.get(engine, release) != release:
        out.append(f"the log's {engine} is {banners[engine]}, the scenario's {release}")
    return out


def layout_contradictions(banners: Mapping[str, str], model: str, stated: Mapping[str, int]) -> list[str]:
    """Where the log names another model, layout or number of GPUs than a scenario of ``model`` states by key."""
    out, card = [], card_of_same_layers(banners.get(MODEL, "").rstrip("/"))
    if card is not None and card != (card_of_same_layers(model) or model):
        out.append(f"the log's model is {shortened(banners[MODEL])}, the scenario's {model}")
    for key, value in stated.items():
        name = GPUS if key == "cluster.num_gpus" else key
        if name in banners and int(banners[name]) != value:
            what = "Ray cluster has" if name == GPUS else f"{key} is"
            unit = " GPUs" if name == GPUS else ""
            out.append(f"the log's {what} {int(banners[name]):,}{unit}, the scenario states {key}={value}")
    return out
