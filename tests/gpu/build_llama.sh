#!/usr/bin/env bash
# build_llama.sh FOLDER: builds the llama.cpp whose sources lie in FOLDER/source, for the GPU of this machine,
# and the program that measures it. Needs cmake, ninja, a C++ compiler and the CUDA toolkit. What has been
# compiled stays: a call that was stopped is gone on with.
set -euo pipefail
folder="$1"
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
architecture="$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d .)"
[ -f "$folder/build/build.ninja" ] ||
        cmake -S "$folder/source" -B "$folder/build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
                -DGGML_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES="$architecture" -DGGML_CUDA_NCCL=OFF \
                -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_COMMON=OFF -DLLAMA_BUILD_TESTS=OFF \
                -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF
cmake --build "$folder/build" --target llama
libraries="$(find "$folder/build" -name 'libllama.so' -printf '%h\n' | head -n 1)"
g++ -O2 -std=c++17 -I"$folder/source/include" -I"$folder/source/ggml/include" \
        "$here/llama_gpu_peer.cpp" -o "$folder/llama_gpu_peer" -L"$libraries" -lllama -lggml -lggml-base \
        -Wl,-rpath,"$libraries" -Wl,-rpath-link,"$libraries"
echo "llama.cpp for compute capability $architecture"
