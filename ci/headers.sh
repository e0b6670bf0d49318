#!/bin/sh
# Compiles the device API's headers, each alone, and all kernels with nvcc, as C++17 and C++20, warnings being errors;
# then the headers with the plain C++ compiler, which the layout tests compile them with. Needs python3 and a C++
# compiler; nvcc comes from PyPI, pinned, into target/ci-nvcc. NVCC=/path/to/nvcc takes that one instead.
set -eu

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

for standard in 17 20; do
  for source in cuda/include/mscclpp/*.hpp $(git ls-files '*.cu'); do
    # A header is compiled through a file that includes it alone: what it needs, it must include itself.
    unit=$scratch/unit.cu
    case $source in
      *.hpp) printf '#include "mscclpp/%s"\n' "$(basename "$source")" >"$unit" ;;
      *) unit=$source ;;
    esac
    echo "nvcc c++$standard  $source"
    "$NVCC" -x cu -std=c++$standard -arch=sm_90 -I cuda/include -Xcompiler -Wall -Werror all-warnings \
      -c -o "$scratch/unit.o" "$unit"
  done
done

for header in cuda/include/mscclpp/*.hpp; do
  echo "c++ c++17   $header"
  printf '#include "mscclpp/%s"\n' "$(basename "$header")" |
    "${CXX:-c++}" -std=c++17 -I cuda/include -Wall -Wextra -Werror -fsyntax-only -x c++ -
done
echo "headers and kernels compile"
