#!/usr/bin/env bash
# Compiles the device API's headers, each alone, and all kernels with nvcc as C++17, with warnings as errors, and all headers
# together as C++20; then the headers with the plain C++ compiler that the layout tests use. Needs python3 and a C++ compiler;
# nvcc comes from PyPI, pinned, into target/ci-nvcc. NVCC=/path/to/nvcc names another one.
set -euo pipefail

cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}

if [ -z "${NVCC:-}" ]; then
  venv=$target/ci-nvcc
  if [ ! -f "$venv/complete" ]; then
    python3 -m venv --clear "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check \
      nvidia-cuda-nvcc==13.0.88 \
      nvidia-cuda-crt==13.0.88 \
      nvidia-nvvm==13.0.88 \
      nvidia-cuda-runtime==13.0.96 \
      nvidia-cuda-cccl==13.0.85
    touch "$venv/complete"
  fi
  NVCC=$(echo "$venv"/lib/python3*/site-packages/nvidia/cu13/bin/nvcc)
fi
"$NVCC" --version | tail -n 2

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# compile STANDARD SOURCE: compiles a source, or a header through a file that includes only it: it must include what it needs.
compile() {
  unit=$scratch/$1-$(basename "$2").cu
  case $2 in
    *.hpp) printf '#include "mscclpp/%s"\n' "$(basename "$2")" >"$unit" ;;
    *) unit=$2 ;;
  esac
  # The code is not run, so -Ofc=max leaves optimisations out.
  echo "nvcc c++$1  $2"
  "$NVCC" -x cu "-std=c++$1" -arch=sm_90 -Ofc=max -I cuda/include -Xcompiler -Wall -Werror all-warnings \
    -c -o "$scratch/$1-$(echo "$2" | tr / _).o" "$unit"
}
export -f compile
export NVCC scratch

# As C++20 the headers are compiled together (each includes what it needs, as C++17 shows), and the kernels that use most of them.
all=$scratch/all_headers.cu
for header in cuda/include/mscclpp/*.hpp; do
  printf '#include "mscclpp/%s"\n' "$(basename "$header")"
done >"$all"

# The longest first, so that no core is idle at the end.
kernels=$(git ls-files -s '*.cu' | awk '$1 != 120000 { print $4 }' | xargs ls -S)
{
  printf '17 %s\n' $kernels cuda/include/mscclpp/*.hpp
  printf '20 %s\n' cuda/kernels/{collectives,experts}.cu "$all"
} | xargs -P "$(nproc)" -L 1 bash -euc 'compile "$@"' compile

echo cuda/include/mscclpp/*.hpp | tr ' ' '\n' | xargs -P "$(nproc)" -I HEADER bash -euc '
  echo "c++ c++17   HEADER"
  printf "#include \"mscclpp/%s\"\n" "$(basename HEADER)" |
    "${CXX:-c++}" -std=c++17 -I cuda/include -Wall -Wextra -Werror -fsyntax-only -x c++ -'
echo "headers and kernels compile"
