#!/usr/bin/env bash
# What tests and benchmarks under real engines need, in build/engines: a virtual environment that is clean but for the
# wheel and the engines, and llama.cpp from the sources in llama-cpp-python's distribution. Downloads some gigabytes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

readonly folder=$PWD/build/engines
readonly packages=(torch==2.15.0 transformers==5.23.0 gguf==0.19.0 ml_dtypes==0.6.0)
readonly llama=llama-cpp-python==0.3.36

pip() { "$folder/venv/bin/pip" --quiet --disable-pip-version-check "$@" >&2; }

install_packages() {
  [[ -x $folder/venv/bin/python3 ]] || python3 -m venv "$folder/venv"
  rm -rf "$folder/wheel"
  ./dev wheel "$folder/wheel" >&2
  pip install "${packages[@]}" "$folder"/wheel/sortition-*.whl
  pip install --force-reinstall --no-deps "$folder"/wheel/sortition-*.whl
}

# Its library alone, for this machine's processor.
install_llama() {
  local prefix=$folder/${llama/==/-} sources
  if [[ ! -e $prefix/done ]]; then
    rm -rf "$folder/sources"
    mkdir -p "$folder/sources"
    pip download --no-deps --no-binary :all: --dest "$folder/sources" "$llama"
    tar -xzf "$folder"/sources/*.tar.gz -C "$folder/sources"
    sources=$(echo "$folder"/sources/*/vendor/llama.cpp)
    cmake -S "$sources" -B "$folder/sources/build" -G Ninja \
      -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX="$prefix" \
      -DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache -DCMAKE_INSTALL_RPATH="\$ORIGIN" \
      -DBUILD_SHARED_LIBS=ON -DGGML_OPENMP=OFF -DGGML_LLAMAFILE=OFF -DLLAMA_OPENSSL=OFF \
      -DLLAMA_BUILD_{COMMON,TESTS,TOOLS,EXAMPLES,SERVER,APP}=OFF >&2
    cmake --build "$folder/sources/build" --parallel "${JOBS:-2}" >&2
    cmake --install "$folder/sources/build" >/dev/null
    rm -rf "$folder/sources"
    touch "$prefix/done"
  fi
  cmake --preset release -DSORTITION_LLAMA_CPP="$prefix" >/dev/null
}

mkdir -p "$folder"
install_packages
install_llama
