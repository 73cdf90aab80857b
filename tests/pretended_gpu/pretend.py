"""Runs a command of this Python on GPUs that are none: all that is the host's happens, kernels do not run.

    /path/to/python tests/pretended_gpu/pretend.py [--gpus 8] [--gigabytes 141] -- -m holdfast train --steps 3

Shows whether what is written for GPUs gets through a step at all: types, devices and shapes that torch refuses, kernels
that Triton cannot compile for an H200, operations that are not deterministic, memory that does not suffice, a process
that asks for GPUs before it forks. Also what a step costs the host. It says nothing of numbers or of a GPU's time, and
several ranks hear only themselves. This Python needs a torch built for CUDA, and nvidia-cuda-crt for its headers
(pip install torch==2.13.0 nvidia-cuda-crt==13.0.*: 5 GB); the machine needs gcc and binutils.
"""

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
CALLS = re.compile(r"(_*cuda[A-Z]|cublas|p?nccl[A-Z])\w*")
DEFINED = re.compile(r"\b((?:_*cu|cublas|nccl)[A-Za-z_0-9]+)\(")


def build(into: Path) -> None:
    """The libraries that are put before CUDA's own. What they do not know answers that all is well."""
    found = importlib.util.find_spec("torch")
    headers = [Path(folder) / "nvidia/cu13/include" for folder in sys.path]
    include = next((folder for folder in headers if (folder / "crt/host_defines.h").exists()), None)
    torch = Path(found.origin).parent / "lib" if found and found.origin else Path()
    tools = [tool for tool in ("gcc", "nm") if shutil.which(tool) is None]
    if tools or include is None or not (torch / "libtorch_cuda.so").exists():
        print(
            f"pretend: {' and '.join(tools)} not found; install gcc and binutils"
            if tools
            else f"pretend: {sys.executable} needs a torch for CUDA 13 and nvidia-cuda-crt",
            file=sys.stderr,
        )
        sys.exit(2)
    called = set()
    for library in ("torch_cuda", "c10_cuda", "torch_python", "torch_cuda_linalg", "torch_cpu"):
        said = subprocess.check_output(["nm", "-D", "--undefined-only", torch / f"lib{library}.so"], text=True)
        called |= {name for line in said.splitlines() if CALLS.fullmatch(name := line.split()[-1].split("@")[0])}
    driver = set(re.findall(r"CUresult CUDAAPI (cu\w+)\(", (include / "cuda.h").read_text()))
    # Later versions of a call are macros for a name with a number.
    driver |= set(re.findall(r"#define cu\w+\s+(cu\w+_v\d)\b", (include / "cuda.h").read_text()))
    for name, sources, all_names in (
        ("libpretended.so", ("runtime.c", "libraries.c"), called),
        ("libcuda.so.1", ("driver.c",), driver),
    ):
        defined = {word for source in sources for word in DEFINED.findall((HERE / source).read_text())}
        rest = into / f"{name}.c"
        rest.write_text("".join(f"int {word}() {{ return 0; }}\n" for word in sorted(all_names - defined)))
        compiler = ["gcc", "-w", "-O1", "-fPIC", "-shared", f"-I{include}", "-o", into / name]
        subprocess.run([*compiler, *(HERE / source for source in sources), rest, "-ldl", "-lpthread"], check=True)
    (into / "libcuda.so").symlink_to("libcuda.so.1")  # Triton links with it


def main() -> int:
    parser = argparse.ArgumentParser(prog="pretend", description=__doc__.splitlines()[0])
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--gigabytes", type=float, default=141.0)
    parser.add_argument("command", nargs="+", help="what to give to Python")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="holdfast-pretended-") as folder:
        build(Path(folder))
        env = os.environ | {
            "LD_PRELOAD": f"{folder}/libpretended.so",
            "LD_LIBRARY_PATH": folder,
            "PYTHONPATH": os.pathsep.join([str(HERE / "site"), str(REPOSITORY)]),
            "PRETENDED_GPUS": str(options.gpus),
            "PRETENDED_GIGABYTES": str(options.gigabytes),
            "TRITON_CACHE_DIR": f"{folder}/triton",
        }
        return subprocess.run([sys.executable, *options.command], env=env).returncode


if __name__ == "__main__":
    sys.exit(main())
