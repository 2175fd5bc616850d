#!/usr/bin/env bash
# The package from its wheel, and the adapters under real engines.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

tests/engines/setup.sh
cmake --build --preset release --parallel "${JOBS:-2}" --target sortitiond example_worker llama_cpp_check

readonly python=$PWD/build/engines/venv/bin/python3
export TEST_SORTITIOND=$PWD/build/release/bin/sortitiond
export TEST_EXAMPLE_WORKER=$PWD/build/release/bin/example_worker
export TEST_LLAMA_CPP_CHECK=$PWD/build/release/bin/llama_cpp_check
export TEST_SOURCE_DIR=$PWD PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$PWD/tests/server:$PWD/tests/python

failed=()
for file in tests/python/{client,example,local,tensor}_test.py tests/engines/*_test.py; do
  printf '== %s\n' "$file"
  timeout 600 "$python" "$file" || failed+=("$file")
done
((${#failed[@]} == 0)) || { printf 'failed: %s\n' "${failed[*]}" && exit 1; }
