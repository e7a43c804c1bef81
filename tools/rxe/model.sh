#!/bin/bash
# Writes a model for the probe: a safetensors file of one f32 tensor for each ELEMENTS, all zero, which takes no room
# on the disk: `model.sh FILE ELEMENTS...`. Emulated NICs move tens of megabytes a second, so it is to be small.
set -eu -o pipefail
file=$1
shift
header="" end=0 number=0
for elements in "$@"; do
    begin=$end end=$((end + 4 * elements)) number=$((number + 1))
    header="$header${header:+,}\"tensor $number\":{\"dtype\":\"F32\",\"shape\":[$elements],\"data_offsets\":[$begin,$end]}"
done
header="{$header}"
# Its length comes first, in eight bytes, the lowest first.
for ((byte = 0; byte < 8; byte++)); do
    printf -v octal %03o $((${#header} >> (8 * byte) & 255))
    printf '%b' "\\0$octal"
done >"$file"
printf %s "$header" >>"$file"
truncate -s "+$end" "$file"
