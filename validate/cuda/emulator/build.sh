#!/usr/bin/env bash
# Builds a GPU that is none: the CUDA driver and cuBLAS on the processor, and the
# kernels in ../kernels compiled for it, each source one library.
#
#   bash validate/cuda/emulator/build.sh DIR
#   LD_LIBRARY_PATH=DIR MEMPLAN_CUBLAS=DIR MEMPLAN_CUDNN=DIR MEMPLAN_EMULATOR=DIR go test -tags cuda ./validate/cuda
#
# Needs g++ and the headers of CUDA 11 or newer: CPATH names their folder. Only
# what is older than its sources is built again.
set -euo pipefail

out=$(mkdir -p "$1" && cd "$1" && pwd)
cd "$(dirname "${BASH_SOURCE[0]}")"
kernels=../kernels

# compile LIBRARY SOURCE FLAGS...: a library of its own for each source, in which
# names count for itself alone (-fno-gnu-unique: those of templates too).
compile() {
  local library="$out/$1" source=$2
  shift 2
  if [ -f "$library" ] && [ -z "$(find . "$source" $kernels/*.cuh $kernels/*.inc -newer "$library" -type f -print -quit)" ]; then return 0; fi
  g++ -std=c++17 -w -fPIC -shared -fno-gnu-unique -o "$library.new" "$@" "$source"
  mv "$library.new" "$library"
}

case "${2:-all}" in
all)
  { printf '%s\n' libcuda.so.1 libcublas.so.13; find $kernels -name '*.cu' ! -name '*_sm80.cu'; } |
    xargs -n 1 -P "$(nproc)" bash "$(basename "${BASH_SOURCE[0]}")" "$out" ;;
libcuda.so.1) compile "$2" driver.cpp -O2 emulator.cpp -ldl ;;
libcublas.so.13) compile "$2" cublas.cpp -O2 ;;
*)
  name=$(basename "$2" .cu)
  gzip -dc "$kernels/$name.ptx.gz" >"$out/$name.ptx"
  # -fno-extern-tls-init: "memory" is plain bytes
  compile "$name.so" "$2" -O1 -fno-extern-tls-init -x c++ -include emulator.h ;;
esac
