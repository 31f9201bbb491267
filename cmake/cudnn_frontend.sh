#!/bin/bash
# Usage: cudnn_frontend.sh FOLDER. Puts the headers of cudnn-frontend (github.com/NVIDIA/cudnn-frontend, MIT) into FOLDER/include, from its wheel: no Debian
# package has them, and without them attention on GPUs is our own kernel, which is slow. Done already: nothing to do. Exit 1: not to be had, and why.
set -euo pipefail
folder=$1
version=1.18.0  # the newest tried that needs nothing but cuDNN: 1.32 calls NVRTC and the driver
[[ ! -e $folder/include/cudnn_frontend.h ]] || exit 0
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd -- "$scratch"
timeout 60 python3 -m pip download --quiet --disable-pip-version-check --no-deps --retries 1 "nvidia-cudnn-frontend==$version"
python3 -m zipfile -e ./*.whl wheel
mkdir -p "$folder"
cp -r wheel/include "$folder/"
