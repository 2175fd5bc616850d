#!/usr/bin/env bash
# The package from its wheel, and the adapters under real engines.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

tests/engines/setup.sh
cmake --build --preset release --parallel "${JOBS:-2}" --target \
  sortitiond example_worker llama_cpp_check sortition_fake_libcuda sortition_llama_server row_answers

readonly python=$PWD/build/engines/venv/bin/python3
export TEST_SORTITIOND=$PWD/build/release/bin/sortitiond
export TEST_EXAMPLE_WORKER=$PWD/build/release/bin/example_worker
export TEST_LLAMA_CPP_CHECK=$PWD/build/release/bin/llama_cpp_check
export TEST_FAKE_CUDA=$PWD/build/release/fake_cuda  # loaded by vllm_stream_test alone
export TEST_SOURCE_DIR=$PWD PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$PWD/tests/server:$PWD/tests/python

failed=()
for file in tests/engines/{interfaces,vllm,vllm_{tokens,runner_2,runner_2_drafts,stream,processors}}_test.py; do
  printf '== %s\n' "$file"
  timeout 600 build/engines/vllm/bin/python3 "$file" || failed+=("$file")
done
for file in tests/engines/{interfaces,sglang}_test.py; do
  printf '== %s\n' "$file"
  timeout 600 build/engines/sglang/bin/python3 "$file" || failed+=("$file")
done
for trainer in trl verl; do
  printf '== %s\n' "tests/engines/${trainer}_test.py"
  timeout 600 "build/engines/$trainer/bin/python3" "tests/engines/${trainer}_test.py" || failed+=("$trainer")
done
for file in tests/engines/{interfaces,vllm_{served,generation_2,watermark}}_test.py; do
  printf '== %s\n' "$file"
  timeout 3600 build/engines/served/bin/python3 "$file" || failed+=("$file")
done
for file in tests/{python/{client,example,local,tensor},engines/{interfaces,llama_cpp,transformers}}_test.py; do
  printf '== %s\n' "$file"
  timeout 600 "$python" "$file" || failed+=("$file")
done

llama=$(echo "$PWD"/build/engines/llama-cpp-python-*)
export TEST_LLAMA_SERVER=$llama/bin/llama-server
export TEST_LLAMA_SERVER_LIBRARY=$PWD/build/release/lib/libsortition_llama_server.so
for file in tests/engines/llama_{cpp_python,server}_test.py; do
  printf '== %s\n' "$file"
  LLAMA_CPP_LIB_PATH=$llama/lib PYTHONPATH=$PYTHONPATH:$llama/python timeout 1200 "$python" "$file" || failed+=("$file")
done

printf '== what the peers answer to recorded rows\n'
record=$PWD/build/engines/recorded
version=${llama##*llama-cpp-python-}
mkdir -p "$record"
"$python" tests/peers/record_transformers.py "$record/transformers.json" &&
  "$python" tests/peers/record_llama_cpp.py "$record/llama_cpp.json" "$llama/lib/libllama.so" "$version" &&
  "$python" tests/peers/recorded_test.py build/release/bin/row_answers "$record" || failed+=(recorded)

((${#failed[@]} == 0)) || { printf 'failed: %s\n' "${failed[*]}" && exit 1; }
