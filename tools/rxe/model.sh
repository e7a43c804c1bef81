#!/bin/bash
# Writes a model for the probe: `model.sh FILE ELEMENTS...` makes a safetensors file with one f32 tensor of zeros for each
# ELEMENTS, which takes no room on the disk. Keep it small: emulated NICs move tens of megabytes a second.
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
