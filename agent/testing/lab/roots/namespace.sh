#!/bin/bash
# Process 1 of a namespace: make its root, say "ready", and live until stdin closes.
# namespace.sh FOLDER LOWER [OUTSIDE INSIDE rw|ro]...
set -eu
folder=$1 lower=$2
shift 2

# Writes go to memory. (An upper folder on the disk could not lie below the lower one, `/`.)
mount -t tmpfs tmpfs "$folder/root"
mkdir "$folder"/root/{upper,work,all}
mount -t overlay overlay \
    -o "lowerdir=$lower,upperdir=$folder/root/upper,workdir=$folder/root/work" "$folder/root/all"
cd "$folder/root/all"
mkdir -p proc sys dev
mount -t proc proc proc
mount --rbind /sys sys
mount --rbind /dev dev

while [ $# -gt 0 ]; do
    if [ -d "$1" ]; then
        mkdir -p ".$2"
    else
        mkdir -p ".${2%/*}"
        [ -e ".$2" ] || : >".$2"
    fi
    mount --bind "$1" ".$2"
    [ "$3" = rw ] || mount -o remount,bind,ro ".$2"
    shift 3
done

pivot_root . .
umount -l .
cd /
echo ready
while read -r _; do :; done
